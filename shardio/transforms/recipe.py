"""A recipe: an image field's transforms, checked and compiled to steps, a conversion to floats and an output size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from . import (
    CutMix,
    ImageTransform,
    MixUp,
    Normalize,
    PadImages,
    RandomErasing,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    SizeChangingTransform,
    SizePreservingTransform,
    ToFloat,
    Transform,
)
from .coordinates import Boxes, Owners, move_boxes, sizes_after
from .normalization import merged, per_channel
from .random_generator import RandomKeys
from .steps import Erase, Interpolation, Sizes, Step

_LARGEST_BYTE, _LARGEST_LEVEL = (1 << 8) - 1, (1 << 16) - 1
_MOVES = SizeChangingTransform | RandomHorizontalFlip | RandomVerticalFlip | RandomRotation
"""The transforms that only move pixels."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The transforms of an image field: steps on uint8 pixels, then a conversion to floats, then boxes to erase.

    Those of a mask are only steps, and move its numbers without changing them.

    Attributes:
        transforms: the transforms that become steps, in order.
        normalization: mean and standard deviation per channel of the conversion to floats, float32 [channels, 2]; None
            leaves uint8.
        dtype: the dtype of the result: "uint8" without `normalization`, else "float32", "float16" or "bfloat16"; of
            a mask "int64".
        size: the (height, width) of every result in pixels; None if results differ in size.
        erasings: how many of `transforms`, counted from the last, follow the conversion. Each becomes one step.
        padding: how the images of a batch are padded to one size, after all steps but the conversion; None if they
            aren't. A padding to a given size is a step, too: the last that changes sizes.
    """

    transforms: tuple[SizeChangingTransform | SizePreservingTransform, ...]
    normalization: NDArray[np.float32] | None
    dtype: str
    size: tuple[int, int] | None
    erasings: int = 0
    padding: PadImages | None = None

    @classmethod
    def of(
        cls, transforms: Sequence[Transform], *, channels: int, size: tuple[int, int] | None, mask: bool = False
    ) -> "Recipe":
        """Compile `transforms` for images of `channels` channels.

        Args:
            transforms: the transforms, in order.
            channels: 3 for RGB, 1 for grey or a mask.
            size: the images' (height, width) in pixels; None if they differ in size.
            mask: whether the images are masks.

        Raises:
            ConfigError: for a transform of another kind, in the wrong order, or that does not suit the channels; for a
                mask, also if it would change the numbers of classes, or make others between them.
        """
        compiled: list[SizeChangingTransform | SizePreservingTransform] = []
        conversion: Normalize | None = None
        erasings, padding = 0, None
        for position, transform in enumerate(transforms):
            if padding is not None and not isinstance(transform, ToFloat | Normalize):
                raise ConfigError(f"transform {position}: only ToFloat and Normalize may follow PadImages")
            for simple in getattr(transform, "transforms", (transform,)):
                if isinstance(simple, RandomErasing):
                    largest = _LARGEST_LEVEL if mask else None if conversion is not None else _LARGEST_BYTE
                    _check_erasing(simple, position, channels, largest)
                elif mask:
                    _check_moves(simple, position)
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
                    if isinstance(transform, RandomZoomOut):
                        _check_pixel("RandomZoomOut's fill", transform.fill, position, channels)
                    if isinstance(transform, PadImages):
                        _check_pixel("PadImages' value", transform.value, position, channels)
                        padding = transform = replace(transform, size=transform.size or size)
                        if padding.size is None:
                            continue
                    compiled.append(_filtered(transform, "nearest" if mask else "bilinear"))
                    size = transform.out_size(size) if isinstance(transform, SizeChangingTransform) else size
                case MixUp() | CutMix():
                    raise ConfigError(
                        f"transform {position}: {type(transform).__name__} goes to mixing=, not to transforms"
                    )
                case _:
                    raise ConfigError(f"transform {position} must be a shardio image transform, got {transform!r}")
        if conversion is None:
            return cls(tuple(compiled), None, "int64" if mask else "uint8", size, padding=padding)
        normalization = per_channel(conversion, channels)
        return cls(tuple(compiled), normalization, conversion.dtype or "float32", size, erasings, padding)

    def to_floats(self, values: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Convert pixels with channels last as torchvision does: each operation is rounded to float32."""
        assert self.normalization is not None
        scaled = values.astype(np.float32) * np.float32(1 / 255)
        result: NDArray[np.float32] = (scaled - self.normalization[:, 0]) / self.normalization[:, 1]
        return result

    def steps(
        self, sizes: Sizes, keys: RandomKeys, boxes: Boxes | None = None, owners: Owners | None = None
    ) -> tuple[Step, ...]:
        """Return the steps for images of these heights and widths in pixels, int32 [B, 2], and the keys of B samples.

        The steps' types and what in them is not an array are the same for any images. If `needs_boxes`, the crops are
        drawn for `boxes` on the images, float32 [N, 4], with the row of each one's image in `owners`, ascending [N].
        """
        steps: list[Step] = []
        for position, transform in enumerate(self.transforms):
            generator = keys.generator(position)
            if isinstance(transform, RandomIoUCrop):
                added = transform.steps(sizes, generator, boxes, owners)
            else:
                added = transform.steps(sizes, generator)
            if boxes is not None and owners is not None:
                boxes = move_boxes(boxes, owners, sizes, added)
            for step in added:
                sizes = sizes_after(step, sizes)
            steps.extend(added)
        return tuple(steps)

    @property
    def needs_boxes(self) -> bool:
        """Whether crops are drawn for the boxes on an image."""
        return any(isinstance(transform, RandomIoUCrop) for transform in self.transforms)

    @property
    def until_crop(self) -> tuple[SizeChangingTransform, ...]:
        """The transforms that change sizes, up to the first that crops: RandomIoUCrop alone if there is one."""
        sized = [transform for transform in self.transforms if isinstance(transform, SizeChangingTransform)]
        # Boxes are in pixels of the stored image, whatever resizes it first.
        sized = [transform for transform in sized if isinstance(transform, RandomIoUCrop)] or sized
        crop = next((place for place, each in enumerate(sized) if not isinstance(each, Resize)), len(sized))
        return tuple(sized[: crop + 1])

    def sizes_at_crop(self, sizes: Sizes) -> Sizes:
        """Return the sizes, int32 [n, 2], that images of these sizes have at the first transform that crops."""
        for transform in self.until_crop:
            sizes = transform.targets(sizes) if isinstance(transform, Resize) else sizes
        return sizes

    def erase_steps(self, keys: RandomKeys) -> tuple[Erase, ...]:
        """Return only the last `erasings` steps: those after the conversion to floats, on images of one size."""
        first = len(self.transforms) - self.erasings
        sizes = np.full((len(keys.samples), 2), self.size or (1, 1), np.int32)
        return tuple(
            step
            for position, transform in enumerate(self.transforms[first:], first)
            for step in transform.steps(sizes, keys.generator(position))
            if isinstance(step, Erase)
        )

    def uint8_part(self) -> "Recipe":
        """Return the part of the recipe that produces uint8: all but the conversion to floats and what follows it.

        A mask's produces uint16.
        """
        kept = self.transforms[: len(self.transforms) - self.erasings]
        dtype = "uint16" if self.is_mask else "uint8"
        return replace(self, transforms=kept, normalization=None, dtype=dtype, erasings=0)

    @property
    def is_mask(self) -> bool:
        """Whether the recipe is of masks: numbers of classes, delivered without an axis of channels."""
        return self.dtype in ("int64", "uint16")

    @property
    def interpolates(self) -> bool:
        """Whether a resize or a rotation makes pixels of several others."""
        nested = (simple for transform in self.transforms for simple in getattr(transform, "transforms", (transform,)))
        return any(getattr(simple, "interpolation", "nearest") != "nearest" for simple in nested)


def _filtered(
    transform: SizeChangingTransform | SizePreservingTransform, usual: Interpolation
) -> SizeChangingTransform | SizePreservingTransform:
    """Return the transform; a resize without a filter gets the usual one."""
    if isinstance(transform, Resize | RandomResizedCrop | ScaleJitter | RandomShortestSize):
        return replace(transform, interpolation=transform.interpolation or usual)
    return transform


def _check_moves(transform: object, position: int) -> None:
    """Raise ConfigError for a transform that would change the numbers of classes in a mask, or make others of them."""
    name = type(transform).__name__
    if not isinstance(transform, ImageTransform):
        raise ConfigError(f"transform {position} must be a shardio image transform, got {transform!r}")
    if not isinstance(transform, _MOVES):
        raise ConfigError(
            f"transform {position}: the pixels of a mask are numbers of classes, which {name} would change"
        )
    if (given := getattr(transform, "interpolation", None)) not in (None, "nearest"):
        raise ConfigError(
            f"transform {position}: a mask is resized and turned with interpolation='nearest', as numbers of classes "
            f"have none between them; {name} has interpolation={given!r}: leave it out"
        )


def _check_erasing(erasing: RandomErasing, position: int, channels: int, largest: int | None) -> None:
    """Raise ConfigError unless the value suits the channels and, with `largest`, is whole and at most this."""
    _check_pixel("RandomErasing's value", erasing.value, position, channels)
    values = np.atleast_1d(erasing.value).tolist()
    if largest is not None and any(number not in range(largest + 1) for number in values):
        where = " before ToFloat and Normalize" if largest == _LARGEST_BYTE else " for a mask"
        raise ConfigError(
            f"transform {position}: RandomErasing's value must be integers from 0 to {largest}{where}, "
            f"got {erasing.value}"
        )


def _check_pixel(what: str, value: float | Sequence[float], position: int, channels: int) -> None:
    """Raise ConfigError unless there is one number per channel, or one for all."""
    if np.size(value) not in (1, channels):
        raise ConfigError(f"transform {position}: {what} must have 1 or {channels} numbers, got {value}")


def _check_scale(normalize: Normalize, position: int) -> None:
    """Raise ConfigError for numbers that no image on the scale of 0 to 1 has."""
    for name, numbers, largest in (("mean", normalize.mean, 1.0), ("std", normalize.std, 10.0)):
        if (np.abs(np.asarray(numbers)) > largest).any():
            raise ConfigError(
                f"transform {position}: Normalize's {name} of images is on the scale of 0 to 1, got {numbers}: divide "
                "it by 255"
            )
