"""A field's transforms put in order: steps on pixels, what bytes become, and the size that comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from . import (
    CutMix,
    Draws,
    KeepingSize,
    MixUp,
    Normalize,
    RandomErasing,
    Resizing,
    ToFloat,
    Transform,
)
from .steps import Crop, Erase, Scale, Sizes, Step


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image field's transforms, checked and sorted: first steps on pixels, then what changes bytes to numbers.

    Attributes:
        transforms: those that become steps, in order.
        affine: None for uint8; else per channel (factor, offset) so that `x * factor + offset` of a byte is the result.
        dtype: of the result: "uint8" without `affine`, else "float32", "float16" or "bfloat16".
        size: the (height, width) of every result in pixels; None where they differ.
        erasings: how many of `transforms`, the last ones, come behind `affine`. Each becomes one step.
    """

    transforms: tuple[Resizing | KeepingSize, ...]
    affine: NDArray[np.float32] | None
    dtype: str
    size: tuple[int, int] | None
    erasings: int = 0

    @classmethod
    def of(cls, transforms: Sequence[Transform], *, channels: int, size: tuple[int, int] | None) -> "Recipe":
        """Checks `transforms` for images of `channels` channels and of one `size`, or None where they differ."""
        stepped: list[Resizing | KeepingSize] = []
        affine: NDArray[np.float32] | None = None
        dtype, erasings = "uint8", 0
        for place, transform in enumerate(transforms):
            for one in getattr(transform, "transforms", (transform,)):
                if isinstance(one, RandomErasing) and np.size(one.value) not in (1, channels):
                    raise ConfigError(
                        f"transform {place}: RandomErasing's value must have 1 or {channels} numbers, got {one.value}"
                    )
                if isinstance(one, RandomErasing) and affine is None and not _are_bytes(one.value):
                    raise ConfigError(
                        f"transform {place}: RandomErasing's value must be whole numbers from 0 to 255 before ToFloat "
                        f"and Normalize, got {one.value}"
                    )
            match transform:
                case ToFloat():
                    if affine is not None:
                        raise ConfigError(f"transform {place}: ToFloat must come once, and before any Normalize")
                    affine, dtype = _affine(0.0, 1.0, channels), transform.dtype
                case Normalize():
                    before = transforms[place - 1] if place else None
                    if affine is not None and not isinstance(before, ToFloat):
                        raise ConfigError(
                            f"transform {place}: one Normalize is enough, next to ToFloat if that is there"
                        )
                    affine = _affine(transform.mean, transform.std, channels)
                    dtype = transform.dtype or (dtype if dtype != "uint8" else "float32")
                case RandomErasing() if affine is not None:
                    stepped.append(transform)
                    erasings += 1
                case _ if isinstance(transform, Resizing | KeepingSize):
                    if affine is not None:
                        raise ConfigError(
                            f"transform {place}: {type(transform).__name__} must come before ToFloat and Normalize"
                        )
                    stepped.append(transform)
                    size = transform.out_size(size) if isinstance(transform, Resizing) else size
                case MixUp() | CutMix():
                    raise ConfigError(
                        f"transform {place}: {type(transform).__name__} goes to mixing=, not to transforms"
                    )
                case _:
                    raise ConfigError(f"transform {place} must be one of shardio's for images, got {transform!r}")
        return cls(tuple(stepped), affine, dtype, size, erasings)

    def steps(self, sizes: Sizes, *, seed: int, epoch: int, indices: Indices) -> tuple[Step, ...]:
        """All steps for the images of these samples, int32 [B, 2] and int64 [B]. Of which kinds, and with what that is
        no array, is the same for all images."""
        steps: list[Step] = []
        for place, transform in enumerate(self.transforms):
            made = transform.steps(sizes, Draws(seed, epoch, place, indices))
            for step in made:
                if isinstance(step, Crop):
                    sizes = step.boxes[:, 2:]
                elif isinstance(step, Scale):
                    sizes = step.sizes
            steps.extend(made)
        return tuple(steps)

    def erased(self, *, seed: int, epoch: int, indices: Indices) -> tuple[Erase, ...]:
        """The last steps alone: those behind the change to numbers, where all results have one size."""
        first = len(self.transforms) - self.erasings
        sizes = np.full((len(indices), 2), self.size or (1, 1), np.int32)
        return tuple(
            step
            for place, transform in enumerate(self.transforms[first:], first)
            for step in transform.steps(sizes, Draws(seed, epoch, place, indices))
            if isinstance(step, Erase)
        )

    def bytes(self) -> "Recipe":
        """What of it gives bytes."""
        kept = self.transforms[: len(self.transforms) - self.erasings]
        return replace(self, transforms=kept, affine=None, dtype="uint8", erasings=0)


def _are_bytes(value: float | tuple[float, ...]) -> bool:
    return all(one in range(256) for one in np.atleast_1d(value).tolist())


def _affine(mean: float | tuple[float, ...], std: float | tuple[float, ...], channels: int) -> NDArray[np.float32]:
    means, stds = np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(std, np.float64))
    for name, values in (("mean", means), ("std", stds)):
        if len(values) not in (1, channels):
            raise ConfigError(f"Normalize's {name} must have 1 or {channels} numbers, got {len(values)}")
    factor = np.broadcast_to(1 / (255 * stds), channels)
    offset = np.broadcast_to(-means / stds, channels)
    return np.stack((factor, offset), axis=1).astype(np.float32)
