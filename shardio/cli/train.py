"""`shardio train`: run the reference data-parallel trainer."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import Preempted
from ._options import threads_option

REQUEUE = 85
"""The exit code of a run that a signal has stopped, and that may be resumed."""

RECIPE, COMPUTE = "Recipe", "Computation and communication"


def train(
    dataset: Annotated[Path, typer.Argument(help="The training dataset's directory.", metavar="TRAIN")],
    output: Annotated[Path, typer.Option(help="Directory for checkpoints and the log.")],
    val: Annotated[Path | None, typer.Option(help="The validation dataset's directory.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 128,
    accumulate: Annotated[
        int, typer.Option(help="Batches per rank whose gradients are summed before a step.", rich_help_panel=RECIPE)
    ] = 1,
    optimizer: Annotated[
        str, typer.Option(help="sgd, adam, adamw, lars, larc or lamb.", rich_help_panel=RECIPE)
    ] = "sgd",
    lr: Annotated[
        float, typer.Option(help="Learning rate for a global batch of --lr-reference-batch.", rich_help_panel=RECIPE)
    ] = 0.1,
    lr_reference_batch: Annotated[
        int, typer.Option(help="The global batch that --lr is meant for.", rich_help_panel=RECIPE)
    ] = 256,
    lr_scaling: Annotated[
        str,
        typer.Option(help="How the rate grows with the global batch: linear, sqrt or none.", rich_help_panel=RECIPE),
    ] = "linear",
    lr_schedule: Annotated[
        str,
        typer.Option(
            help="How the rate falls: cosine, polynomial, step, exponential, inverse-time or constant.",
            rich_help_panel=RECIPE,
        ),
    ] = "cosine",
    lr_decay_epochs: Annotated[
        float | None,
        typer.Option(
            help="Epochs after which step, exponential and inverse-time have left --lr-decay-factor of the rate; by "
            "default a third of all.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    lr_decay_factor: Annotated[
        float, typer.Option(help="What is left of the rate after --lr-decay-epochs.", rich_help_panel=RECIPE)
    ] = 0.1,
    lr_power: Annotated[float, typer.Option(help="The exponent of polynomial.", rich_help_panel=RECIPE)] = 2.0,
    warmup_epochs: Annotated[float, typer.Option(help="Epochs of linear warm-up.", rich_help_panel=RECIPE)] = 1.0,
    momentum: Annotated[
        float,
        typer.Option(
            help="Momentum of sgd, lars and larc; the first beta of adam, adamw and lamb.", rich_help_panel=RECIPE
        ),
    ] = 0.9,
    weight_decay: Annotated[
        float, typer.Option(help="Weight decay; biases and normalization layers have none.", rich_help_panel=RECIPE)
    ] = 5e-4,
    trust_coefficient: Annotated[
        float, typer.Option(help="Trust coefficient of lars and larc.", rich_help_panel=RECIPE)
    ] = 0.001,
    clip_norm: Annotated[
        float | None, typer.Option(help="The largest norm of all gradients together.", rich_help_panel=RECIPE)
    ] = None,
    label_smoothing: Annotated[float, typer.Option(help="Label smoothing, 0 for none.", rich_help_panel=RECIPE)] = 0.0,
    ema: Annotated[
        float | None,
        typer.Option(help="Decay of a moving average of the weights, which is validated.", rich_help_panel=RECIPE),
    ] = None,
    precision: Annotated[str, typer.Option(help="float32, bf16 or fp16.", rich_help_panel=COMPUTE)] = "float32",
    compile: Annotated[bool, typer.Option("--compile", help="Use torch.compile.", rich_help_panel=COMPUTE)] = False,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Keep channels last in memory.", rich_help_panel=COMPUTE)
    ] = False,
    sync_batchnorm: Annotated[
        bool,
        typer.Option(
            "--sync-batchnorm", help="Normalize over the batches of all ranks; on GPUs.", rich_help_panel=COMPUTE
        ),
    ] = False,
    bucket_mb: Annotated[
        float, typer.Option(help="MiB of gradients in one message (DDP's bucket).", rich_help_panel=COMPUTE)
    ] = 25.0,
    hook: Annotated[
        str, typer.Option(help="How gradients are sent: none, fp16, bf16 or powersgd.", rich_help_panel=COMPUTE)
    ] = "none",
    powersgd_rank: Annotated[int, typer.Option(help="Rank of PowerSGD.", rich_help_panel=COMPUTE)] = 2,
    powersgd_start: Annotated[
        int, typer.Option(help="Step from which PowerSGD approximates gradients.", rich_help_panel=COMPUTE)
    ] = 100,
    measure_noise_scale: Annotated[
        bool,
        typer.Option(
            "--measure-noise-scale",
            help="Measure how large a batch may be, from the noise of gradients; on two ranks or more.",
            rich_help_panel=RECIPE,
        ),
    ] = False,
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

      torchrun --nproc-per-node 8 -m shardio train data/train --output runs/large --batch-size 1024 --optimizer lars \
          --lr-schedule polynomial --warmup-epochs 5 --precision bf16 --channels-last --hook bf16
    """
    from .. import train as trainer  # imported here because it loads torch

    words: dict[str, Any] = {  # which TrainConfig checks
        "optimizer": optimizer,
        "lr_scaling": lr_scaling,
        "lr_schedule": lr_schedule,
        "precision": precision,
        "hook": hook,
        "on_bad_sample": on_bad_sample,
    }
    try:
        trainer.run(
            trainer.TrainConfig(
                train=str(dataset),
                val=None if val is None else str(val),
                output=str(output),
                epochs=epochs,
                batch_size=batch_size,
                accumulate=accumulate,
                lr=lr,
                lr_reference_batch=lr_reference_batch,
                lr_decay_epochs=lr_decay_epochs,
                lr_decay_factor=lr_decay_factor,
                lr_power=lr_power,
                momentum=momentum,
                weight_decay=weight_decay,
                trust_coefficient=trust_coefficient,
                clip_norm=clip_norm,
                warmup_epochs=warmup_epochs,
                label_smoothing=label_smoothing,
                ema=ema,
                compile=compile,
                channels_last=channels_last,
                sync_batchnorm=sync_batchnorm,
                bucket_mb=bucket_mb,
                powersgd_rank=powersgd_rank,
                powersgd_start=powersgd_start,
                measure_noise_scale=measure_noise_scale,
                model=model,
                image_size=image_size,
                threads=threads_option(threads),
                max_bad=max_bad,
                seed=seed,
                resume=resume,
                checkpoint_every_steps=checkpoint_every,
                device=device,
                **words,
            )
        )
    except Preempted as stopped:
        print(stopped, file=sys.stderr)
        raise typer.Exit(REQUEUE) from stopped
