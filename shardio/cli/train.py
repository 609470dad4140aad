"""`shardio train`: run the reference data-parallel trainer."""

from pathlib import Path
from typing import Annotated

import typer

from ._options import threads_option


def train(
    dataset: Annotated[Path, typer.Argument(help="The training dataset's directory.", metavar="TRAIN")],
    output: Annotated[Path, typer.Option(help="Directory for checkpoints and the log.")],
    val: Annotated[Path | None, typer.Option(help="The validation dataset's directory.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 128,
    lr: Annotated[
        float, typer.Option(help="Learning rate for a global batch of 256; it scales with the global batch.")
    ] = 0.1,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = 0.9,
    weight_decay: Annotated[
        float, typer.Option(help="Weight decay; biases and normalization layers have none.")
    ] = 5e-4,
    warmup_epochs: Annotated[float, typer.Option(help="Epochs of linear warm-up.")] = 1.0,
    label_smoothing: Annotated[float, typer.Option(help="Label smoothing, 0 for none.")] = 0.0,
    model: Annotated[str, typer.Option(help="resnet, or module:function for your own.")] = "resnet",
    image_size: Annotated[
        int | None, typer.Option(help="Side of the square crops in pixels; by default what suits the images.")
    ] = None,
    threads: Annotated[
        str, typer.Option(help="Input workers per rank; auto divides the cores among the ranks.")
    ] = "auto",
    on_bad_sample: Annotated[
        str, typer.Option(help="raise ends the run at a bad sample; replace trains on another one.")
    ] = "raise",
    max_bad: Annotated[
        float, typer.Option(help="Bad samples allowed per rank and epoch: a count, or below 1 a share.")
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and crops.")] = 0,
    resume: Annotated[str | None, typer.Option(help="auto, or a checkpoint to resume from.")] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints; one is also written after each epoch.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
) -> None:
    """Train an image classifier, data-parallel if a launcher such as torchrun starts several ranks.

    Examples:

      shardio train data/train --val data/val --output runs/one

      torchrun --nproc-per-node 2 -m shardio train data/train --val data/val --output runs/two --epochs 10

      torchrun --nproc-per-node 4 -m shardio train data/train --val data/val --output runs/two --epochs 10 --resume auto
    """
    from .. import train as trainer  # imported here because it loads torch

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
            on_bad_sample=on_bad_sample,  # type: ignore[arg-type]  # TrainConfig checks it
            max_bad=max_bad,
            seed=seed,
            resume=resume,
            checkpoint_every_steps=checkpoint_every,
            device=device,
        )
    )
