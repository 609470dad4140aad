"""The two loaders of a run, and what the model must know of the data."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..errors import ConfigError
from ..format.fields import describe_fields
from ..loader.loader import Loader
from ..transforms import (
    CenterCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
)
from .config import TrainConfig
from .distributed import Job

SMALL = 64
"""Pixels a side up to which images of one size are trained on as they are."""

BAD = "bad.jsonl"

_CHUNK = 1 << 20  # labels read at once
_NORMALIZE = {
    1: Normalize(0.5, 0.25),
    3: Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet's, as most published weights expect
}


@dataclass(frozen=True, slots=True)
class Data:
    """What a run trains on.

    Attributes:
        train: loader of the training set.
        val: loader of the validation set, every sample of which counts once; None without one.
        num_classes: classes to tell apart.
        channels: 1 for grey images, 3 for RGB.
        image_size: the longer side in pixels of what the model gets.
    """

    train: Loader
    val: Loader | None
    num_classes: int
    channels: int
    image_size: int


def open_data(config: TrainConfig, job: Job) -> Data:
    """Opens the datasets and makes their loaders. All ranks must call it.

    Raises ConfigError if a dataset lacks a field or disagrees with the other, and what `shardio.open` raises.
    """
    train = _open(config.train)
    val = None if config.val is None else _open(config.val)
    channels, shape = train.fields["image"].channels or 3, train.fields["image"].shape
    if val is not None and (val.fields["image"].channels or 3) != channels:
        raise ConfigError(
            f"train and val must have images of one kind: {config.train} has {channels} channels, "
            f"{config.val} has {val.fields['image'].channels}"
        )
    size = (shape[0], shape[1]) if shape is not None else None
    for_train, for_val = transforms(size, channels, config.image_size)
    bad = None if config.on_bad_sample == "raise" else Path(config.output, BAD)
    if bad is not None:
        bad.parent.mkdir(parents=True, exist_ok=True)
    loader = Loader(
        train,
        config.batch_size,
        transforms=for_train,
        seed=config.seed,
        world=job.world,
        tail="drop",
        threads=config.threads,
        on_bad_sample=config.on_bad_sample,
        max_bad=config.max_bad,
        quarantine_file=bad,
        device=job.device,
        fields=("image", "label"),
    )
    val_loader = (
        None
        if val is None
        else Loader(
            val,
            config.batch_size,
            transforms=for_val,
            shuffle=None,
            world=job.world,
            tail="pad",
            threads=config.threads,
            on_bad_sample="raise" if bad is None else "mask",  # accuracy is that of the samples that can be read
            max_bad=config.max_bad,
            quarantine_file=bad,
            device=job.device,
            fields=("image", "label"),
        )
    )
    classes = config.num_classes or count_classes(train, job)
    longest = max(size) if config.image_size is None and _small(size) and size else config.image_size or 224
    return Data(loader, val_loader, classes, channels, longest)


def transforms(
    size: tuple[int, int] | None, channels: int, image_size: int | None
) -> tuple[list[Transform], list[Transform]]:
    """What is done to training images, and to validation images.

    Small images of one size keep most of their area; larger ones are cropped as Szegedy et al. 2014 do, and validated
    on the middle 7/8 of the shorter side.

    Args:
        size: the (height, width) in pixels that all images have; None where they differ.
        channels: 1 or 3.
        image_size: pixels a side that are asked for; None chooses.
    """
    normalize = _NORMALIZE[channels]
    if image_size is None and size is not None and _small(size):
        # Nearly their own shape: stretched further, what little a small image shows of shape is lost.
        crop = RandomResizedCrop(size, scale=(0.6, 1.0), ratio=(0.9, 1 / 0.9))
        # A resize to their own size costs nothing there, and admits a validation set whose images differ in size.
        return [crop, RandomHorizontalFlip(), normalize], [Resize(size), normalize]
    side = image_size or 224
    larger = round(side * 256 / 224)
    return (
        [RandomResizedCrop(side), RandomHorizontalFlip(), normalize],
        [Resize(larger), CenterCrop(side), normalize],
    )


def count_classes(dataset: Dataset, job: Job) -> int:
    """The classes that the metadata names, else the largest label + 1, each rank reading its share of the labels."""
    classes = dataset.manifest.metadata.get("classes")
    if isinstance(classes, (list, tuple)) and len(classes) >= 2:
        return len(classes)
    start, stop = (len(dataset) * rank // job.world.size for rank in (job.world.rank, job.world.rank + 1))
    highest, lowest = 0, 0
    for first in range(start, stop, _CHUNK):
        labels = dataset.read(np.arange(first, min(stop, first + _CHUNK)), ["label"])["label"]
        highest, lowest = max(highest, int(labels.max())), min(lowest, int(labels.min()))
    top, bottom = job.largest(highest, -lowest)
    if bottom > 0:
        raise ConfigError(f"{dataset.path}: labels must be 0 or more, got {-int(bottom)}")
    return max(2, int(top) + 1)


def _small(size: tuple[int, int] | None) -> bool:
    return size is not None and max(size) <= SMALL


def _open(path: str) -> Dataset:
    dataset = open_dataset(path)
    label, image = dataset.fields.get("label"), dataset.fields.get("image")
    if image is None or image.kind != "image":
        raise ConfigError(
            f"{path}: training needs an image field called 'image'; there are {describe_fields(dataset.fields)}"
        )
    if label is None or label.kind != "scalar" or np.dtype(label.dtype).kind not in "iu":
        raise ConfigError(
            f"{path}: training needs one whole number each called 'label'; there are {describe_fields(dataset.fields)}"
        )
    return dataset
