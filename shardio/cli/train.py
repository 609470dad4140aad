"""`shardio train`: run the reference data-parallel trainer."""

import sys
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from ..dataset.classes import Classes
from ..errors import Preempted
from ._options import threads_option
from ._store_options import StoreOptions, with_store_options

REQUEUE = 85
"""The exit code of a run that a signal has stopped, and that may be resumed."""

RECIPE, COMPUTE, LOCAL_SGD, SEEING, CHECKPOINTS, INPUT = (
    *("Recipe", "Computation and communication", "Local SGD", "Seeing it", "Checkpoints", "Input"),
)

# The words that TrainConfig takes; its own types would load torch.
Optimizer: TypeAlias = Literal["sgd", "adam", "adamw", "lars", "larc", "lamb"]
Scaling: TypeAlias = Literal["linear", "sqrt", "none"]
Schedule: TypeAlias = Literal["cosine", "polynomial", "step", "exponential", "inverse-time", "constant"]
Precision: TypeAlias = Literal["float32", "bf16", "fp16"]
Hook: TypeAlias = Literal["none", "fp16", "bf16", "powersgd"]
Task: TypeAlias = Literal["classification", "regression"]
OnBadSample: TypeAlias = Literal["raise", "replace"]


@with_store_options
def train(
    stores: StoreOptions,
    dataset: Annotated[str, typer.Argument(help="The training dataset's directory or URL.", metavar="TRAIN")],
    output: Annotated[Path, typer.Option(help="Directory for checkpoints and logs; all ranks must share it.")],
    val: Annotated[str | None, typer.Option(help="The validation dataset's directory or URL.")] = None,
    classes: Annotated[
        Classes | None,
        typer.Option(
            help="What validation labels mean where --val has other classes than TRAIN. union: number classes by name, "
            "those of TRAIN as they are and others after them; ignore: take labels as they are.",
            show_default="such a --val is refused",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 128,
    accumulate: Annotated[
        int, typer.Option(help="Batches per rank to accumulate before each step.", rich_help_panel=RECIPE)
    ] = 1,
    optimizer: Annotated[
        Optimizer, typer.Option(help="What makes a step of the gradients.", rich_help_panel=RECIPE)
    ] = "sgd",
    lr: Annotated[
        float,
        typer.Option(
            help="Peak learning rate for a global batch of --lr-reference-batch; --lr-scaling scales it to yours. The "
            "default is for sgd: start with 0.001 for adam and adamw.",
            rich_help_panel=RECIPE,
        ),
    ] = 0.1,
    lr_reference_batch: Annotated[
        int, typer.Option(help="The global batch that --lr is meant for.", rich_help_panel=RECIPE)
    ] = 256,
    lr_scaling: Annotated[
        Scaling,
        typer.Option(help="How the rate grows with the global batch.", rich_help_panel=RECIPE),
    ] = "linear",
    lr_schedule: Annotated[
        Schedule,
        typer.Option(help="How the rate falls.", rich_help_panel=RECIPE),
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
    precision: Annotated[
        Precision, typer.Option(help="What the network computes in.", rich_help_panel=COMPUTE)
    ] = "float32",
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
        Hook, typer.Option(help="DDP's communication hook: how gradients are sent.", rich_help_panel=COMPUTE)
    ] = "none",
    powersgd_rank: Annotated[int, typer.Option(help="Rank of PowerSGD.", rich_help_panel=COMPUTE)] = 2,
    powersgd_start: Annotated[
        int, typer.Option(help="Step from which PowerSGD approximates gradients.", rich_help_panel=COMPUTE)
    ] = 100,
    local_sgd_period: Annotated[
        int | None,
        typer.Option(
            help="Local SGD: steps that ranks take on their own between averages of their weights; not with --hook.",
            rich_help_panel=LOCAL_SGD,
        ),
    ] = None,
    local_sgd_start: Annotated[
        int, typer.Option(help="Step from which local SGD begins (post-local SGD).", rich_help_panel=LOCAL_SGD)
    ] = 0,
    local_sgd_node_period: Annotated[
        int | None,
        typer.Option(
            help="Steps between averages within a node; 1 exchanges gradients there.", rich_help_panel=LOCAL_SGD
        ),
    ] = None,
    measure_noise_scale: Annotated[
        bool,
        typer.Option(
            "--measure-noise-scale",
            help="Measure how large a batch may be, from the noise of gradients; on two ranks or more.",
            rich_help_panel=RECIPE,
        ),
    ] = False,
    task: Annotated[
        Task, typer.Option(help="classification of images, or regression of numbers from volumes.")
    ] = "classification",
    input_field: Annotated[
        str | None, typer.Option(help="The field of the volumes; by default the only one there is.")
    ] = None,
    target_field: Annotated[
        str | None, typer.Option(help="The field of the targets of regression; by default the only one there is.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="resnet, cnn3d, or module:function for your own; by default what suits the task."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the crops in pixels or voxels; by default what suits the data.")
    ] = None,
    threads: Annotated[
        str, typer.Option(help="Input workers per rank; auto divides the cores among the ranks.", rich_help_panel=INPUT)
    ] = "auto",
    on_bad_sample: Annotated[
        OnBadSample,
        typer.Option(help="raise ends the run at a bad sample; replace trains on another one.", rich_help_panel=INPUT),
    ] = "raise",
    max_bad: Annotated[
        float,
        typer.Option(
            help="With --on-bad-sample replace: bad samples allowed per rank and epoch, a count, or below 1 a share.",
            rich_help_panel=INPUT,
        ),
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and crops.")] = 0,
    resume: Annotated[
        str | None,
        typer.Option(
            help="auto continues from the newest whole checkpoint in --output, or starts a new run if there is none; "
            "or the path of a checkpoint. By default an --output that holds a run is refused.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between checkpoints; one is also written after each epoch.", rich_help_panel=CHECKPOINTS
        ),
    ] = None,
    keep_checkpoints: Annotated[
        int, typer.Option(help="Last checkpoints to keep, beside the best one.", rich_help_panel=CHECKPOINTS)
    ] = 2,
    metrics_every: Annotated[
        int, typer.Option(help="Steps between lines of metrics.jsonl.", rich_help_panel=SEEING)
    ] = 20,
    monitor: Annotated[
        float | None,
        typer.Option(
            help="Seconds between lines of input.jsonl, about the input of each rank.",
            show_default="no lines",
            rich_help_panel=SEEING,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Write the metrics for TensorBoard, too.", rich_help_panel=SEEING),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Write a trace of ten steps by torch's profiler.", rich_help_panel=SEEING),
    ] = False,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="First measure the throughput on one batch in memory: what input costs is the difference.",
            rich_help_panel=SEEING,
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a rank waits for the others before it ends the run.")
    ] = 600.0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
) -> None:
    """Train a classifier of images, data-parallel if a launcher such as torchrun starts several ranks.

    With --task regression, a network learns numbers of volumes [C, D, H, W], such as a simulation's parameters.

    Examples:

      shardio train data/train --val data/val --output runs/one

      torchrun --standalone --nproc-per-node 2 -m shardio train data/train --val data/val --output runs/two

      torchrun --standalone --nproc-per-node 4 -m shardio train data/train --output runs/two --resume auto

      torchrun --standalone --nproc-per-node 8 -m shardio train data/train --output runs/bf16 --precision bf16 --compile

      shardio train data/volumes --val data/more --output runs/volumes --task regression --optimizer adamw --lr 0.001

      shardio train s3://bucket/train --output runs/one --cache /local/cache --cache-size 200GB \
          --store-option region=eu-west-1

    The exit status is 85 if SIGTERM, SIGUSR1 or Ctrl-C has stopped the run after a checkpoint; torchrun makes 1 of it.
    See also docs/training.md.
    """
    from .. import train as trainer  # imported here because it loads torch

    access = stores.access(dataset, val or "")
    try:
        trainer.run(
            trainer.TrainConfig(
                train=dataset,
                val=val,
                classes=classes,
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
                local_sgd_period=local_sgd_period,
                local_sgd_start=local_sgd_start,
                local_sgd_node_period=local_sgd_node_period,
                measure_noise_scale=measure_noise_scale,
                input_field=input_field,
                target_field=target_field,
                model=model,
                image_size=image_size,
                threads=threads_option(threads),
                max_bad=max_bad,
                seed=seed,
                resume=resume,
                checkpoint_every_steps=checkpoint_every,
                keep_checkpoints=keep_checkpoints,
                metrics_every_steps=metrics_every,
                monitor_seconds=monitor,
                tensorboard=tensorboard,
                profile=profile,
                synthetic=synthetic,
                timeout=timeout,
                device=device,
                task=task,
                optimizer=optimizer,
                lr_scaling=lr_scaling,
                lr_schedule=lr_schedule,
                precision=precision,
                hook=hook,
                on_bad_sample=on_bad_sample,
                cache=None if access.cache is None else str(access.cache),
                cache_size=access.cache_size,
                store_options=access.store_options,
            )
        )
    except Preempted as stopped:
        print(stopped, file=sys.stderr)
        raise typer.Exit(REQUEUE) from stopped
