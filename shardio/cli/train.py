"""`shardio train`: the reference data-parallel trainer."""

from pathlib import Path
from typing import Annotated

import typer

from ._options import threads_option


def train(
    dataset: Annotated[Path, typer.Argument(help="The training dataset's directory.", metavar="TRAIN")],
    output: Annotated[Path, typer.Option(help="Where checkpoints and the log go.")],
    val: Annotated[Path | None, typer.Option(help="The validation dataset's directory.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate at a global batch of 256; it grows with the batch.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Weight decay; biases and norms are left out.")] = 5e-4,
    warmup_epochs: Annotated[float, typer.Option(help="Epochs of linear warm-up.")] = 1.0,
    label_smoothing: Annotated[float, typer.Option(help="0 for none.")] = 0.0,
    model: Annotated[str, typer.Option(help="resnet, or module:function for your own.")] = "resnet",
    image_size: Annotated[int | None, typer.Option(help="Pixels square; without it, what suits the images.")] = None,
    threads: Annotated[str, typer.Option(help="Input workers per rank; auto shares the processors.")] = "auto",
    on_bad_sample: Annotated[str, typer.Option(help="raise, or replace: train on another one.")] = "raise",
    max_bad: Annotated[float, typer.Option(help="Of a rank and epoch: a count, or below 1 a share.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and crops.")] = 0,
    resume: Annotated[str | None, typer.Option(help="auto, or a checkpoint to go on from.")] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints; always after an epoch.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; without it, a GPU where there is one.")] = None,
) -> None:
    """Train a classifier on images, data-parallel where a launcher started several ranks.

    Examples:

      shardio train data/train --val data/val --output runs/one

      torchrun --nproc-per-node 2 -m shardio train data/train --val data/val --output runs/two --epochs 10

      torchrun --nproc-per-node 4 -m shardio train data/train --val data/val --output runs/two --epochs 10 --resume auto
    """
    from .. import train as trainer  # here and not above, as it loads torch

    trainer.run(
        trainer.TrainConfig(
            train=str(dataset),
            val=None if val is None else str(val),
            output=str(output),
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            warmup_epochs=warmup_epochs,
            label_smoothing=label_smoothing,
            model=model,
            image_size=image_size,
            threads=threads_option(threads),
            on_bad_sample=on_bad_sample,  # type: ignore[arg-type]  # checked where it is used
            max_bad=max_bad,
            seed=seed,
            resume=resume,
            checkpoint_every_steps=checkpoint_every,
            device=device,
        )
    )
