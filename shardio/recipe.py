"""A field's transforms put in order: what moves pixels, what changes values, and the size that comes out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .augment import (
    CenterCrop,
    Crop,
    Draws,
    Geometry,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Scale,
    Sizes,
    Step,
    ToFloat,
    Transform,
)
from .errors import ConfigError
from .types import Indices


@dataclass(frozen=True, slots=True)
class Recipe:
    """A field's transforms, checked and sorted: first what moves pixels, then what changes values.

    Attributes:
        geometry: what moves pixels, in order.
        affine: None for uint8; else per channel (factor, offset) so that `x * factor + offset` of a byte is the result.
        size: the (height, width) of every result in pixels; None where they differ.
    """

    geometry: tuple[Geometry, ...]
    affine: NDArray[np.float32] | None
    size: tuple[int, int] | None

    @classmethod
    def of(cls, transforms: Sequence[Transform], *, channels: int, size: tuple[int, int] | None) -> "Recipe":
        """Checks `transforms` for images of `channels` channels and of one `size`, or None where they differ."""
        geometry: list[Geometry] = []
        affine: NDArray[np.float32] | None = None
        for place, transform in enumerate(transforms):
            match transform:
                case ToFloat():
                    if affine is not None:
                        raise ConfigError(f"transform {place}: ToFloat must come once, and before any Normalize")
                    affine = _affine(0.0, 1.0, channels)
                case Normalize():
                    if affine is not None and place and isinstance(transforms[place - 1], Normalize):
                        raise ConfigError(f"transform {place}: one Normalize is enough")
                    affine = _affine(transform.mean, transform.std, channels)
                case RandomResizedCrop() | CenterCrop() | Resize() | RandomHorizontalFlip():
                    if affine is not None:
                        raise ConfigError(
                            f"transform {place}: {type(transform).__name__} must come before ToFloat and Normalize"
                        )
                    geometry.append(transform)
                    size = transform.out_size(size)
                case _:
                    raise ConfigError(f"transform {place} must be one of shardio's, got {transform!r}")
        return cls(tuple(geometry), affine, size)

    def steps(self, sizes: Sizes, *, seed: int, epoch: int, indices: Indices) -> tuple[Step, ...]:
        """All steps for the images of these samples, int32 [B, 2] and int64 [B]."""
        steps: list[Step] = []
        for place, transform in enumerate(self.geometry):
            made = transform.steps(sizes, Draws(seed, epoch, place, indices))
            for step in made:
                if isinstance(step, Crop):
                    sizes = step.boxes[:, 2:]
                elif isinstance(step, Scale):
                    sizes = step.sizes
            steps.extend(made)
        return tuple(steps)


def _affine(mean: float | tuple[float, ...], std: float | tuple[float, ...], channels: int) -> NDArray[np.float32]:
    means, stds = np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(std, np.float64))
    for name, values in (("mean", means), ("std", stds)):
        if len(values) not in (1, channels):
            raise ConfigError(f"Normalize's {name} must have 1 or {channels} numbers, got {len(values)}")
    factor = np.broadcast_to(1 / (255 * stds), channels)
    offset = np.broadcast_to(-means / stds, channels)
    return np.stack((factor, offset), axis=1).astype(np.float32)
