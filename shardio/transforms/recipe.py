"""A recipe: an image field's transforms, checked and compiled to steps, a conversion to floats and an output size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from . import (
    CutMix,
    MixUp,
    Normalize,
    RandomErasing,
    RandomGenerator,
    SizeChangingTransform,
    SizePreservingTransform,
    ToFloat,
    Transform,
)
from .normalization import merged, per_channel
from .steps import Crop, Erase, Scale, Sizes, Step


@dataclass(frozen=True, slots=True)
class Recipe:
    """The transforms of an image field: steps on uint8 pixels, then a conversion to floats, then boxes to erase.

    Attributes:
        transforms: the transforms that become steps, in order.
        normalization: mean and standard deviation per channel of the conversion to floats, float32 [channels, 2]; None
            leaves uint8.
        dtype: the dtype of the result: "uint8" without `normalization`, else "float32", "float16" or "bfloat16".
        size: the (height, width) of every result in pixels; None if results differ in size.
        erasings: how many of `transforms`, counted from the last, follow the conversion. Each becomes one step.
    """

    transforms: tuple[SizeChangingTransform | SizePreservingTransform, ...]
    normalization: NDArray[np.float32] | None
    dtype: str
    size: tuple[int, int] | None
    erasings: int = 0

    @classmethod
    def of(cls, transforms: Sequence[Transform], *, channels: int, size: tuple[int, int] | None) -> "Recipe":
        """Compile `transforms` for images of `channels` channels.

        Args:
            transforms: the transforms, in order.
            channels: 3 for RGB, 1 for grey.
            size: the images' (height, width) in pixels; None if they differ in size.

        Raises:
            ConfigError: for a transform of another kind, in the wrong order, or that does not suit the channels.
        """
        compiled: list[SizeChangingTransform | SizePreservingTransform] = []
        conversion: Normalize | None = None
        erasings = 0
        for position, transform in enumerate(transforms):
            for simple in getattr(transform, "transforms", (transform,)):
                if isinstance(simple, RandomErasing):
                    _check_erasing(simple, position, channels, as_bytes=conversion is None)
            match transform:
                case ToFloat() | Normalize():
                    if isinstance(transform, Normalize):
                        _check_scale(transform, position)
                    conversion = merged(conversion, transform, transforms[position - 1], position)
                case RandomErasing() if conversion is not None:
                    compiled.append(transform)
                    erasings += 1
                case _ if isinstance(transform, SizeChangingTransform | SizePreservingTransform):
                    if conversion is not None:
                        raise ConfigError(
                            f"transform {position}: {type(transform).__name__} must come before ToFloat and Normalize"
                        )
                    compiled.append(transform)
                    size = transform.out_size(size) if isinstance(transform, SizeChangingTransform) else size
                case MixUp() | CutMix():
                    raise ConfigError(
                        f"transform {position}: {type(transform).__name__} goes to mixing=, not to transforms"
                    )
                case _:
                    raise ConfigError(f"transform {position} must be a shardio image transform, got {transform!r}")
        if conversion is None:
            return cls(tuple(compiled), None, "uint8", size)
        normalization = per_channel(conversion, channels)
        return cls(tuple(compiled), normalization, conversion.dtype or "float32", size, erasings)

    def to_floats(self, values: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Convert pixels with channels last as torchvision does: each operation is rounded to float32."""
        assert self.normalization is not None
        scaled = values.astype(np.float32) * np.float32(1 / 255)
        result: NDArray[np.float32] = (scaled - self.normalization[:, 0]) / self.normalization[:, 1]
        return result

    def steps(self, sizes: Sizes, *, seed: int, epoch: int, indices: Indices) -> tuple[Step, ...]:
        """Return the steps for images of these sizes, int32 [B, 2], and sample indices, int64 [B].

        The steps' types and what in them is not an array are the same for any images.
        """
        steps: list[Step] = []
        for position, transform in enumerate(self.transforms):
            added = transform.steps(sizes, RandomGenerator(seed, epoch, position, indices))
            for step in added:
                if isinstance(step, Crop):
                    sizes = step.boxes[:, 2:]
                elif isinstance(step, Scale):
                    sizes = step.sizes
            steps.extend(added)
        return tuple(steps)

    def erase_steps(self, *, seed: int, epoch: int, indices: Indices) -> tuple[Erase, ...]:
        """Return only the last `erasings` steps: those after the conversion to floats, on images of one size."""
        first = len(self.transforms) - self.erasings
        sizes = np.full((len(indices), 2), self.size or (1, 1), np.int32)
        return tuple(
            step
            for position, transform in enumerate(self.transforms[first:], first)
            for step in transform.steps(sizes, RandomGenerator(seed, epoch, position, indices))
            if isinstance(step, Erase)
        )

    def uint8_part(self) -> "Recipe":
        """Return the part of the recipe that produces uint8: all but the conversion to floats and what follows it."""
        kept = self.transforms[: len(self.transforms) - self.erasings]
        return replace(self, transforms=kept, normalization=None, dtype="uint8", erasings=0)


def _check_erasing(erasing: RandomErasing, position: int, channels: int, *, as_bytes: bool) -> None:
    """Raise ConfigError unless the value suits the channels and, with `as_bytes`, uint8."""
    if np.size(erasing.value) not in (1, channels):
        raise ConfigError(
            f"transform {position}: RandomErasing's value must have 1 or {channels} numbers, got {erasing.value}"
        )
    if as_bytes and any(number not in range(256) for number in np.atleast_1d(erasing.value).tolist()):
        raise ConfigError(
            f"transform {position}: RandomErasing's value must be whole numbers from 0 to 255 before ToFloat "
            f"and Normalize, got {erasing.value}"
        )


def _check_scale(normalize: Normalize, position: int) -> None:
    """Raise ConfigError for numbers that no image on the scale of 0 to 1 has."""
    for name, numbers, largest in (("mean", normalize.mean, 1.0), ("std", normalize.std, 10.0)):
        if any(abs(number) > largest for number in np.atleast_1d(numbers)):
            raise ConfigError(
                f"transform {position}: Normalize's {name} of images is on the scale of 0 to 1, got {numbers}: divide "
                "it by 255"
            )
