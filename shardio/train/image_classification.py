"""Classes of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor
from torch.nn import functional

from ..errors import ConfigError
from ..format.fields import describe_fields
from ..transforms import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, Transform
from ..views.classes import alike
from ..views.view import BaseDataset
from .config import TrainConfig
from .distributed import Job

SMALL = 64
"""The longer side in pixels up to which images of one size keep that size."""

_LABELS_PER_READ = 1 << 20
_MOST_CLASSES = 1_000_000  # unless somebody says so: weights of more are a mistake, and may take all memory
_NORMALIZE = {
    1: Normalize(0.5, 0.25),
    3: Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # of ImageNet, as most published weights expect
}


@final
@dataclass(frozen=True, slots=True)
class ImageClassification:
    """Predict the class of an image; the loss is the cross-entropy.

    Attributes:
        outputs: number of classes.
        channels: 1 for grey images, 3 for RGB.
        stored_size: the (height, width) in pixels of all images; None if they differ.
        crop: the side in pixels of the crops; None chooses it.
    """

    metric: ClassVar[str] = "accuracy"
    inputs: ClassVar[str] = "image"
    targets: ClassVar[str] = "label"

    outputs: int
    channels: int
    stored_size: tuple[int, int] | None = None
    crop: int | None = None

    @classmethod
    def of(cls, config: TrainConfig, train: BaseDataset, val: BaseDataset | None, job: Job) -> "ImageClassification":
        """Return the task of datasets that `check_images` returned; all ranks must call it.

        Raises ConfigError for labels that are negative, or beyond the model's classes.
        """
        outputs = config.num_classes or count_classes(train, job)
        for place, dataset in ((config.train, train if config.num_classes else None), (config.val, val)):
            if dataset is not None and (top := _largest_label(dataset, job)) >= outputs:
                raise ConfigError(f"{place}: labels must be below {outputs}, the model's number of classes, got {top}")
        return cls(
            outputs=outputs,
            channels=train.fields["image"].channels or 3,
            stored_size=train.fields["image"].image_size,
            crop=config.image_size,
        )

    @property
    def size(self) -> int:
        """The longer side in pixels of the model's input."""
        return max(self._kept) if self._kept is not None else self.crop or 224

    @property
    def _kept(self) -> tuple[int, int] | None:
        small = self.crop is None and self.stored_size is not None and max(self.stored_size) <= SMALL
        return self.stored_size if small else None

    def transforms(self) -> tuple[Sequence[Transform], Sequence[Transform]]:
        """Return the transforms of images in training, and in validation.

        Crops of small images of one size keep most of their area. Larger images are cropped as in Szegedy et al. 2014,
        and validated on the middle 7/8 of their shorter side.
        """
        normalize, kept = _NORMALIZE[self.channels], self._kept
        if kept is not None:
            # The crops nearly keep the aspect ratio: stretched further, a small image would lose the few shapes it
            # shows.
            crop = RandomResizedCrop(kept, scale=(0.6, 1.0), ratio=(0.9, 1 / 0.9))
            # A resize to the same size costs nothing, and allows a validation set whose images differ in size.
            return [crop, RandomHorizontalFlip(), normalize], [Resize(kept), normalize]
        side, larger = self.size, round(self.size * 256 / 224)
        return (
            [RandomResizedCrop(side), RandomHorizontalFlip(), normalize],
            [Resize(larger), CenterCrop(side), normalize],
        )

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return what the model takes: the images as the transforms made them."""
        return inputs

    def losses(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the cross-entropy of each sample."""
        return functional.cross_entropy(outputs, targets.long(), reduction="none", label_smoothing=label_smoothing)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each sample whose label has the highest score, else 0."""
        return (outputs.argmax(dim=1) == targets).float()

    def describe(self) -> dict[str, Any]:
        """Return what must be the same on resuming, plain values."""
        return {"num_classes": self.outputs, "channels": self.channels}


def count_classes(dataset: BaseDataset, job: Job) -> int:
    """Return the number of classes in the metadata, or else the largest label + 1; ranks share the reading.

    Raises ConfigError for labels that are negative, beyond the classes, or so large that they number none.
    """
    top = _largest_label(dataset, job)
    named = len(dataset.classes or ())
    if named >= 2 and top >= named:
        raise ConfigError(f"{dataset.path}: labels must be below {named}, the number of its classes, got {top}")
    if named < 2 and top >= _MOST_CLASSES:
        told = "{}: the labels, up to {}, number no classes; {num_classes} takes more than {:,}"
        raise ConfigError(told, dataset.path, top, _MOST_CLASSES)
    return named if named >= 2 else max(2, top + 1)


def check_images(
    config: TrainConfig, train: BaseDataset, val: BaseDataset | None
) -> tuple[BaseDataset, BaseDataset | None]:
    """Return the datasets with labels that mean the same classes, as `config.classes` says.

    Raises ConfigError if a dataset lacks a field, or the two differ in channels, or in classes without that.
    """
    _check_fields(f"{config.train}", train)
    if val is None:
        return train, None
    _check_fields(f"{config.val}", val)
    channels, others = (dataset.fields["image"].channels or 3 for dataset in (train, val))
    if channels != others:
        raise ConfigError(
            f"train and val must have the same number of channels: {config.train} has {channels} channels, "
            f"{config.val} has {others}"
        )
    narrow = min((train.fields["label"], val.fields["label"]), key=lambda field: np.iinfo(field.row_dtype).max)
    train, val = alike({"train": train, "val": val}, {"label": narrow}, config.classes)
    return train, val


def _largest_label(dataset: BaseDataset, job: Job) -> int:
    """Return the largest label; ranks share the reading. Raise ConfigError for a negative one."""
    start, stop = (dataset.numbers * rank // job.world.size for rank in (job.world.rank, job.world.rank + 1))
    highest, lowest = 0, 0
    for first in range(start, stop, _LABELS_PER_READ):
        labels = dataset.read(np.arange(first, min(stop, first + _LABELS_PER_READ)), ["label"])["label"]
        highest, lowest = max(highest, int(labels.max())), min(lowest, int(labels.min()))
    top, bottom = job.largest(highest, -lowest)
    if bottom > 0:
        told = "{}: labels must be 0 or more, got {}: leave out samples without a label by {where}, as in 'label >= 0'"
        raise ConfigError(told, dataset.path, -int(bottom))
    return int(top)


def _check_fields(path: str, dataset: BaseDataset) -> None:
    label, image = dataset.fields.get("label"), dataset.fields.get("image")
    fields = describe_fields(dataset.fields)
    if image is None or not image.is_image:
        raise ConfigError(f"{path}: training needs an image field called 'image'; there are {fields}")
    if label is None or label.kind != "scalar" or np.dtype(label.dtype).kind not in "iu":
        raise ConfigError(f"{path}: training needs an integer scalar field called 'label'; there are {fields}")
