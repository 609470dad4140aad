"""The two loaders of a run, and the properties of the data that the model depends on."""

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
"""The longer side in pixels up to which images of one size keep that size."""

BAD_SAMPLES_FILE = "bad.jsonl"

_LABELS_PER_READ = 1 << 20
_NORMALIZE = {
    1: Normalize(0.5, 0.25),
    3: Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # of ImageNet, as most published weights expect
}


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a run.

    Attributes:
        train: loader of the training set.
        val: loader of the validation set, which marks each sample as valid once; None without one.
        num_classes: number of classes.
        channels: 1 for grey images, 3 for RGB.
        image_size: the longer side in pixels of the model's input.
    """

    train: Loader
    val: Loader | None
    num_classes: int
    channels: int
    image_size: int


def open_data(config: TrainConfig, job: Job) -> Data:
    """Open the datasets and create their loaders. All ranks must call it.

    Raises ConfigError if a dataset lacks a field or the two disagree, and what `shardio.open` raises.
    """
    train = _open(config.train)
    val = None if config.val is None else _open(config.val)
    channels, shape = train.fields["image"].channels or 3, train.fields["image"].shape
    if val is not None and (val.fields["image"].channels or 3) != channels:
        raise ConfigError(
            f"train and val must have the same number of channels: {config.train} has {channels} channels, "
            f"{config.val} has {val.fields['image'].channels}"
        )
    size = (shape[0], shape[1]) if shape is not None else None
    train_transforms, val_transforms = transforms(size, channels, config.image_size)
    quarantine_file = None if config.on_bad_sample == "raise" else Path(config.output, BAD_SAMPLES_FILE)
    if quarantine_file is not None:
        quarantine_file.parent.mkdir(parents=True, exist_ok=True)
    loader = Loader(
        train,
        config.batch_size,
        transforms=train_transforms,
        seed=config.seed,
        world=job.world,
        tail="pad",  # every sample counts once: the last step is smaller
        threads=config.threads,
        on_bad_sample=config.on_bad_sample,
        max_bad=config.max_bad,
        quarantine_file=quarantine_file,
        device=job.device,
        fields=("image", "label"),
    )
    val_loader = (
        None
        if val is None
        else Loader(
            val,
            config.batch_size,
            transforms=val_transforms,
            shuffle=None,
            world=job.world,
            tail="pad",
            threads=config.threads,
            on_bad_sample="raise" if quarantine_file is None else "mask",  # accuracy counts readable samples
            max_bad=config.max_bad,
            quarantine_file=quarantine_file,
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
    """Return the transforms of training images and those of validation images.

    Crops of small images of one size keep most of their area. Larger images are cropped as in Szegedy et al. 2014, and
    validated on the middle 7/8 of their shorter side.

    Args:
        size: the (height, width) in pixels of all images; None if they differ.
        channels: 1 or 3.
        image_size: the side in pixels of the crops; None chooses it.
    """
    normalize = _NORMALIZE[channels]
    if image_size is None and size is not None and _small(size):
        # The crops nearly keep the aspect ratio: stretched further, a small image would lose the few shapes it shows.
        crop = RandomResizedCrop(size, scale=(0.6, 1.0), ratio=(0.9, 1 / 0.9))
        # A resize to the same size costs nothing, and allows a validation set whose images differ in size.
        return [crop, RandomHorizontalFlip(), normalize], [Resize(size), normalize]
    side = image_size or 224
    larger = round(side * 256 / 224)
    return (
        [RandomResizedCrop(side), RandomHorizontalFlip(), normalize],
        [Resize(larger), CenterCrop(side), normalize],
    )


def count_classes(dataset: Dataset, job: Job) -> int:
    """Return the number of classes in the metadata, or else the largest label + 1; ranks share the reading."""
    classes = dataset.manifest.metadata.get("classes")
    if isinstance(classes, (list, tuple)) and len(classes) >= 2:
        return len(classes)
    start, stop = (len(dataset) * rank // job.world.size for rank in (job.world.rank, job.world.rank + 1))
    highest, lowest = 0, 0
    for first in range(start, stop, _LABELS_PER_READ):
        labels = dataset.read(np.arange(first, min(stop, first + _LABELS_PER_READ)), ["label"])["label"]
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
    fields = describe_fields(dataset.fields)
    if image is None or not image.is_image:
        raise ConfigError(
            f"{path}: training needs an image field called 'image'; there are {describe_fields(dataset.fields)}"
        )
    if label is None or label.kind != "scalar" or np.dtype(label.dtype).kind not in "iu":
        raise ConfigError(f"{path}: training needs an integer scalar field called 'label'; there are {fields}")
    return dataset
