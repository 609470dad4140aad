"""Numbers of volumes, such as the parameters of a simulation from its fields in space."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, ClassVar, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import BadSample, ConfigError, Option
from ..format.fields import Field, describe_fields
from ..transforms import CenterSpatialCrop, RandomAxisFlip, RandomRotate90, RandomSpatialCrop, Transform
from ..views.view import BaseDataset
from .config import TrainConfig
from .distributed import Job

_VOLUMES_READ = 64
_VALUES_PER_READ = 1 << 24


@final
@dataclass(frozen=True, slots=True)
class VolumeRegression:
    """Predict numbers of a volume [C, D, H, W]; the loss is the mean squared error.

    Volumes and targets are standardized: the model gives `(target - mean) / deviation`. So a model that
    always predicts the mean of the training set has the loss 1, and `explained` is the share of the targets' variance
    that a model explains, 1 - loss.

    Attributes:
        inputs: the field of the volumes.
        targets: the field of the targets: scalars or vectors.
        shape: [C, D, H, W] as stored.
        means: the mean of each target over the training set.
        deviations: the standard deviation of each.
        input_means: the mean of each channel, over some volumes of the training set.
        input_deviations: the standard deviation of each.
        crop: the side in voxels of the crops; None takes whole volumes.
    """

    metric: ClassVar[str] = "explained"

    inputs: str
    targets: str
    shape: tuple[int, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    input_means: tuple[float, ...]
    input_deviations: tuple[float, ...]
    crop: int | None = None

    @classmethod
    def of(cls, config: TrainConfig, train: BaseDataset, val: BaseDataset | None, job: Job) -> "VolumeRegression":
        """Return the task of these datasets; all ranks must call it.

        Raises ConfigError if a dataset lacks a field or the two disagree.
        """
        inputs, targets = _find_fields(config, train)
        shape = train.fields[inputs].row_shape
        if val is not None:
            for name in (inputs, targets):
                if val.fields.get(name) != train.fields[name]:
                    raise ConfigError(
                        f"train and val must have the same field {name!r}: {config.train} has "
                        f"{describe_fields(train.fields)}; {config.val} has {describe_fields(val.fields)}"
                    )
        if config.image_size is not None and config.image_size > (side := min(shape[1:])):
            words = "{image_size} must be at most the shortest side of the volumes, {}, got {}"
            raise ConfigError(words, side, config.image_size)
        every = max(1, len(train) // _VOLUMES_READ)
        skip = config.on_bad_sample == "replace"
        moments = _moments(train, targets, job, skip_bad=skip), _moments(train, inputs, job, every, skip_bad=skip)
        return cls(inputs, targets, shape, *moments[0], *moments[1], config.image_size)

    @property
    def channels(self) -> int:
        """The channels of a volume."""
        return self.shape[0]

    @property
    def _sides(self) -> tuple[int, ...]:
        return self.shape[1:] if self.crop is None else (self.crop,) * 3

    @property
    def outputs(self) -> int:
        """The number of targets."""
        return len(self.means)

    def transforms(self) -> tuple[Sequence[Transform], Sequence[Transform]]:
        """Return the transforms of volumes in training, and in validation.

        In training these are random crops, flips, and quarter turns in the planes that are square: all directions of
        space count as equal.
        """
        axes = (-3, -2, -1)
        turns = [RandomRotate90(axes=(a, b)) for a, b in combinations(axes, 2) if self._sides[a] == self._sides[b]]
        augment: list[Transform] = [RandomAxisFlip(axes=axes), *turns]
        if self.crop is None:
            return augment, []
        return [RandomSpatialCrop(self.crop), *augment], [CenterSpatialCrop(self.crop)]

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return standardized volumes, as `Normalize` makes them, whatever their dtype."""
        means, deviations = (_on(inputs.device, numbers) for numbers in (self.input_means, self.input_deviations))
        return (inputs.float() - means[:, None, None, None]) / deviations[:, None, None, None]

    def losses(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean squared error of the standardized targets of each sample."""
        return (outputs - self._standardized(targets)).square().mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 - loss, whose mean is the share of the variance that is explained."""
        return 1 - self.losses(outputs, targets)

    def _standardized(self, targets: Tensor) -> Tensor:
        values = targets.float().reshape(len(targets), -1)
        means, deviations = (_on(values.device, numbers) for numbers in (self.means, self.deviations))
        return (values - means) / deviations

    def describe(self) -> dict[str, Any]:
        """Return what must be the same on resuming; it also says how to use the model elsewhere."""
        names = ("means", "deviations", "input_means", "input_deviations")
        return {"channels": self.channels, **{name: list(getattr(self, name)) for name in names}}


@lru_cache(maxsize=16)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Return numbers on a device; to copy them there at every step would wait for it."""
    return torch.tensor(numbers, device=device)


def _find_fields(config: TrainConfig, dataset: BaseDataset) -> tuple[str, str]:
    def is_volume(field: Field) -> bool:
        return field.kind == "array" and len(field.row_shape) == 4 and _kind(field) in "fiu"

    def is_target(field: Field) -> bool:
        return _kind(field) == "f" and (field.kind == "scalar" or len(field.row_shape) == 1)

    found = []
    for given, option, fits, words in (
        (config.input_field, "input_field", is_volume, "arrays of numbers [C, D, H, W] of one shape"),
        (config.target_field, "target_field", is_target, "float scalars or vectors of one length"),
    ):
        names = [name for name, field in dataset.fields.items() if fits(field) and given in (None, name)]
        floats = [name for name in names if _kind(dataset.fields[name]) == "f"]
        names = floats or names  # next to a float volume, one of integers is rather a mask
        if len(names) != 1:
            wanted = f"field {given!r} with" if given is not None else "one field of"
            there = describe_fields(dataset.fields)
            raise ConfigError("{}: {} needs {} {}; there are {}", config.train, Option(option), wanted, words, there)
        found.append(names[0])
    return found[0], found[1]


def _kind(field: Field) -> str:
    return "-" if field.dtype is None else np.dtype(field.dtype).kind


def _moments(
    dataset: BaseDataset, name: str, job: Job, every: int = 1, *, skip_bad: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each target or channel; ranks share the reading."""
    shape = dataset.fields[name].row_shape or (1,)
    chosen = dataset.plan(0, None, 1, 1).lookup(np.arange(0, len(dataset), every))[0]
    mine = chosen[job.world.rank :: job.world.size]
    sums = np.zeros((3, shape[0]))  # of ones, of the values, of their squares
    for numbers in np.array_split(mine, max(1, len(mine) // max(1, _VALUES_PER_READ // math.prod(shape)))):
        if len(read := _read(dataset, name, numbers, skip_bad)):
            values = np.asarray(read, np.float64).reshape(len(read), shape[0], -1)
            ones = np.full(shape[0], values[:, 0].size)
            sums += np.stack((ones, values.sum(axis=(0, 2)), np.square(values).sum(axis=(0, 2))))
    count, total, squares = np.array(job.total(*sums.ravel().tolist())).reshape(sums.shape)
    means = total / count
    deviations = np.sqrt(np.maximum(squares / count - means**2, 0))
    if not (np.isfinite(deviations) & (deviations > 1e-6 * np.abs(means))).all():
        raise ConfigError(
            f"{dataset.path}: each part of {name!r} must be finite and vary, got the standard deviations "
            f"{deviations.tolist()}"
        )
    return tuple(means.tolist()), tuple(deviations.tolist())


def _read(dataset: BaseDataset, name: str, numbers: NDArray[np.int64], skip_bad: bool) -> Sequence[Any]:
    """Return the values of samples, without those that cannot be read if `skip_bad`."""
    try:
        return cast(Sequence[Any], dataset.read(numbers, [name])[name])
    except BadSample:
        if not skip_bad or len(numbers) == 0:
            raise
    if len(numbers) == 1:
        return []
    return [value for half in np.array_split(numbers, 2) for value in _read(dataset, name, half, skip_bad)]
