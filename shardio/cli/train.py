"""`shardio train`: run the reference data-parallel trainer."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..conversion.photo_folder import keep_dataset
from ..dataset.store_access import StoreAccess
from ..errors import Preempted, worded
from ..order.world import World
from ..stores.url import as_url
from ..system import did_you_mean
from ..train.config import TrainConfig
from ._conversion import print_note
from ._options import Shown, count_or_auto, options_of, with_options
from ._progress import progress
from ._store_options import with_store_options
from ._view_options import ViewChoice, with_view_options

SPLIT = "train=0.9,val=0.1"
"""The split of a folder of photos that comes without a validation set."""

REQUEUE = 85
"""The exit code of a run that a signal has stopped, and that may be resumed."""

OPTIONS = options_of(
    TrainConfig,
    {
        "": (
            "output val classes epochs batch_size task input_field target_field model pretrained image_size seed "
            "timeout device"
        ),
        "Recipe": (
            "accumulate optimizer lr lr_reference_batch lr_scaling lr_schedule lr_decay_epochs "
            "lr_decay_factor lr_power warmup_epochs momentum weight_decay trust_coefficient clip_norm "
            "label_smoothing ema measure_noise_scale"
        ),
        "Computation and communication": (
            "precision compile channels_last sync_batchnorm bucket_mb hook powersgd_rank powersgd_start gradient_lag"
        ),
        "Local SGD": "local_sgd_period local_sgd_start local_sgd_overlap outer_optimizer outer_lr outer_momentum",
        "Input": "threads on_bad_sample max_bad",
        "Checkpoints": "resume checkpoint_every_steps keep_checkpoints",
        "Logging": "metrics_every_steps monitor_seconds tensorboard profile synthetic",
    },
    {
        "train": Shown(flag="TRAIN"),
        "output": Shown(kind=Path),
        "checkpoint_every_steps": Shown(flag="--checkpoint-every"),
        "metrics_every_steps": Shown(flag="--metrics-every"),
        "monitor_seconds": Shown(flag="--monitor"),
    },
)


@with_store_options
@with_view_options
@with_options("options", OPTIONS)
def train(
    stores: dict[str, Any],
    choice: ViewChoice,
    dataset: Annotated[
        str,
        typer.Argument(
            help="The training dataset's directory or URL, the file of a view, or a folder of photos.", metavar="TRAIN"
        ),
    ],
    options: dict[str, Any],
) -> None:
    """Train a classifier of images, data-parallel if a launcher such as torchrun starts several ranks.

    With --task regression, a network learns numbers of volumes [C, D, H, W], such as a simulation's parameters.

    The options that choose samples apply to TRAIN. With --split it trains on --part, by default train, and validates on
    the part val, unless you give --val.

    TRAIN and --val may be folders with a folder of photos for each class. shardio keeps a copy of the photos in the
    cache, upright and shrunk to twice the size of the crops. Without --val and --split it validates on a tenth of each
    class. To choose how photos are stored, or to start several ranks, use shardio convert imagefolder first.

    Examples:

      shardio train photos --output runs/one --epochs 10 --pretrained resnet18.pth

      shardio train data/train --val data/val --output runs/one

      shardio train data/train --split train=0.9,val=0.1 --split-by label --output runs/one

      torchrun --standalone --nproc-per-node 2 -m shardio train data/train --val data/val --output runs/two

      torchrun --standalone --nproc-per-node 4 -m shardio train data/train --output runs/two --resume auto

      torchrun --standalone --nproc-per-node 8 -m shardio train data/train --output runs/bf16 --precision bf16 --compile

      shardio train data/volumes --val data/more --output runs/volumes --task regression --optimizer adamw --lr 0.001

      shardio train s3://bucket/train --output runs/one --cache /local/cache --store-option region=eu-west-1

    The exit status is 85 if SIGTERM, SIGUSR1 or Ctrl-C has stopped the run after a checkpoint; torchrun makes 1 of it.
    See also docs/training.md.
    """
    from ..train.trainer import run_with  # imported here because it loads torch

    place = _dataset_of(dataset, stores, options)
    if place != dataset and options["val"] is None and choice.split is None:
        choice = replace(choice, split=SPLIT, split_by="label")
        print("validating on a tenth of each class; --val or --split choose otherwise")
    options["val"] = options["val"] and _dataset_of(options["val"], stores, options)
    training_set, held_out = choice.to_train(place, stores, options["val"])
    options["val"] = held_out if options["val"] is None else options["val"]
    StoreAccess.of(training_set, options["val"] or "", **stores)
    options["threads"] = count_or_auto(options["threads"])
    try:
        # Nothing gives the handlers back: a signal that comes while a stopped run ends must not change the exit code.
        run_with(TrainConfig(train=training_set, **stores, **options), ExitStack())
    except Preempted as stopped:
        print(worded(stopped.wording), file=sys.stderr)
        raise typer.Exit(REQUEUE) from stopped


def _dataset_of(place: str, stores: dict[str, Any], options: dict[str, Any]) -> str:
    """Return the dataset of a folder of class folders of photos, in the cache; any other place as it is."""
    alone = World.detect().size == 1  # ranks would have to wait for the one that converts
    if not (alone and as_url(place) is None and did_you_mean.has_class_folders(Path(place))):
        return place
    with progress("photos") as report:
        made, side = keep_dataset(
            Path(place),
            stores["cache"],
            image_size=options["image_size"],
            on_error="skip" if options["on_bad_sample"] == "replace" else "raise",
            max_bad=options["max_bad"],
            tell=print_note,
            progress=report,
        )
    print(f"{place}: a copy of its photos, upright and at most {side} pixels along the shorter side, is in {made}")
    return str(made)
