"""Transforms of arrays, such as volumes (C, D, H, W): crops, flips and rotations by quarter turns.

They move values and change none; ToFloat and Normalize, or ToInt64, may follow them, then PadTo or Ragged. Axes are
counted from the end (-1 is the last), so that one transform serves arrays with any number of leading axes, such as
channels, which stay in place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format.fields import Shape
from ..system.rules import at_least_one
from .random_generator import RandomGenerator
from .steps import Mask
from .validation import check_flag, check_probability

Size: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = NDArray[np.int64]
"""The shape of each array, int64 [B, axes], or [1, axes] if all have the same."""


@dataclass(frozen=True, slots=True)
class ArrayCrop:
    """Keep a block of `size` along the last axes, starting at `corners`, int64 [B, len(size)]."""

    corners: NDArray[np.int64]
    size: Size


@dataclass(frozen=True, slots=True)
class ArrayWindow:
    """Keep the entries from `begins` to `ends`, int64 [B] each, along an axis, counted from the end."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    axis: int


@dataclass(frozen=True, slots=True)
class ArraySqueeze:
    """Remove an axis of length 1, counted from the end."""

    axis: int


@dataclass(frozen=True, slots=True)
class ArrayFlip:
    """Reverse an axis where `mask`, bool [B], is true."""

    mask: Mask
    axis: int


@dataclass(frozen=True, slots=True)
class ArrayRotate90:
    """Rotate by a number of quarter turns, int64 [B], from the first of two axes towards the second, as numpy.rot90."""

    quarters: NDArray[np.int64]
    axes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArrayMultiHot:
    """Make `count` numbers of an array of numbers below `count`: 1 for each that it holds, 0 for the others."""

    count: int


Move: TypeAlias = ArrayCrop | ArrayWindow | ArraySqueeze | ArrayFlip | ArrayRotate90 | ArrayMultiHot
"""An array transform's decisions for a batch, as arrays with a row per sample: the counterpart of an image `Step`."""


@dataclass(frozen=True, slots=True)
class SpatialCrop:
    """The size of a crop of arrays, which RandomSpatialCrop and CenterSpatialCrop place."""

    size: int | Size
    offset: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_size(self.size))
        check_flag(self.offset, "offset")

    def block(self, axes: int) -> Size:
        """Return the lengths along the last axes of arrays of so many: one number means all axes but the first."""
        if not isinstance(self.size, int):
            return self.size
        if axes < 2:
            raise ConfigError(
                f"a size of one number, {self.size}, is for all axes but the first, the channels, and arrays of {axes} "
                f"axes have no other: give ({self.size},)"
            )
        return (self.size,) * (axes - 1)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        size = self.block(len(shape))
        ends = zip(size, shape[-len(size) :], strict=False)
        if len(size) > len(shape) or any(have is not None and want > have for want, have in ends):
            raise ConfigError(f"a block of {size} is not in arrays of shape {shape}")
        return (*shape[: -len(size)], *size)


@final
@dataclass(frozen=True, slots=True)
class RandomSpatialCrop(SpatialCrop):
    """Crop a block of `size` at a random place.

    Args:
        size: lengths along the last axes, one for each axis that is cropped. An integer is the length of every axis
            but the first, which is the channels: 48 makes (4, 48, 48, 48) of (4, 64, 64, 64), and (4, 48) of (4, 64).
            So of a mask without channels, (64, 64, 64), an integer does not crop the depth: give (48, 48, 48), or store
            the mask as (1, 64, 64, 64).
        offset: whether to deliver `NAME_offset` too, int64 [B, axes that are cropped]: where the block begins in the
            stored value. A sample without the field, or masked, has 0.

    Raises:
        ConfigError: if `size` is not integers of at least 1. The loader raises it for arrays smaller than that, and for
            arrays of one axis if `size` is an integer: give `(48,)` for those.
    """

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        size = self.block(shapes.shape[1])
        room = shapes[:, -len(size) :] - size + 1
        return (ArrayCrop(np.floor(generator.uniform(len(size)) * room).astype(np.int64), size),)


@final
@dataclass(frozen=True, slots=True)
class CenterSpatialCrop(SpatialCrop):
    """Crop the block of `size` in the center.

    Args:
        size: lengths along the last axes, or an integer for every axis but the first: see RandomSpatialCrop.
        offset: whether to deliver `NAME_offset` too, int64 [B, axes that are cropped]: where the block begins in the
            stored value. A sample without the field, or masked, has 0.

    Raises:
        ConfigError: if `size` is not integers of at least 1. The loader raises it for arrays smaller than that.
    """

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        size = self.block(shapes.shape[1])
        corners = (shapes[:, -len(size) :] - size) // 2
        return (ArrayCrop(np.broadcast_to(corners, (len(generator.indices), len(size))), size),)


@dataclass(frozen=True, slots=True)
class RandomAxisFlip:
    """Reverse each of some axes with probability `p`, independently of the others.

    Args:
        p: the probability for each axis, in [0, 1].
        axes: the axis, or the axes, counted from the end: -1 is the last. Of arrays (C, D, H, W) -4 reverses the order
            of the channels.

    Raises:
        ConfigError: if an argument is out of range. The loader raises it for arrays without such an axis.
    """

    p: float = 0.5
    axes: int | Sequence[int] = (-1,)

    def __post_init__(self) -> None:
        check_probability(self.p)
        object.__setattr__(self, "axes", _as_axes(self.axes))

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        axes = _as_axes(self.axes)
        masks = generator.uniform(len(axes)) < self.p
        return tuple(ArrayFlip(mask, axis) for mask, axis in zip(masks.T, axes, strict=True))

    def out_shape(self, shape: Shape) -> Shape:
        _check_axes_exist(_as_axes(self.axes), shape)
        return shape


@dataclass(frozen=True, slots=True)
class RandomRotate90:
    """Rotate by one, two or three quarter turns in the plane of two axes, with probability `p`.

    The three angles are equally likely.

    Args:
        p: the probability that an array is rotated at all, in [0, 1].
        axes: the two axes, counted from the end; they must have the same length.

    Raises:
        ConfigError: if an argument is out of range. The loader raises it for arrays whose plane is not square.
    """

    p: float = 0.75
    axes: tuple[int, int] = (-2, -1)

    def __post_init__(self) -> None:
        check_probability(self.p)
        object.__setattr__(self, "axes", _as_axes(self.axes))
        if len(self.axes) != 2:
            raise ConfigError(f"axes must be two, got {self.axes!r}")

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        random = generator.uniform(2)
        quarters = np.where(random[:, 0] < self.p, 1 + np.floor(random[:, 1] * 3), 0)
        return (ArrayRotate90(quarters.astype(np.int64), self.axes),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return `shape`. Raise ConfigError if the plane of the two axes is not square."""
        _check_axes_exist(self.axes, shape)
        sides = tuple(shape[axis] for axis in self.axes)
        if sides[0] != sides[1] and None not in sides:
            raise ConfigError(f"RandomRotate90 needs axes of one size, {self.axes} of {shape} are {sides}")
        return shape


@dataclass(frozen=True, slots=True)
class RandomWindow:
    """Keep `n` neighbouring entries along the first axis, or those of some seconds, at a random place.

    Only these entries are read if this is the first transform. Where the first axis has any length, a shorter array is
    a bad sample; with PadTo or Ragged at the end of the list it stays whole.

    Args:
        n: the number of entries, at least 1.
        offset: whether to deliver `NAME_offset` too, int64 [B, 1]: where the window begins in the stored value. A
            sample without the field, or masked, has 0.
        seconds: instead of `n`, how long the window is, for fields whose attribute `rate` is the number of entries per
            second, as of sounds; rounded to whole entries.

    Raises:
        ConfigError: unless either `n` is an integer of at least 1 or `seconds` a number above 0. The loader raises it
            for arrays of one shape with fewer entries, and for `seconds` of a field without a rate.
    """

    n: int | None = None
    offset: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.n is None) == (self.seconds is None):
            raise ConfigError(f"RandomWindow takes either n or seconds, got {self.n!r} and {self.seconds!r}")
        if self.n is not None:
            object.__setattr__(self, "n", at_least_one(self.n, "n"))
        elif isinstance(self.seconds, bool) or not (isinstance(self.seconds, int | float) and 0 < self.seconds < 1e9):
            raise ConfigError(f"seconds must be a number above 0, got {self.seconds!r}")
        check_flag(self.offset, "offset")

    @property
    def entries(self) -> int:
        """The number of entries; ConfigError if it depends on a field's rate, see `at_rate`."""
        if self.n is None:
            raise ConfigError(f"RandomWindow(seconds={self.seconds}) is for stored fields with the attribute 'rate'")
        return self.n

    def at_rate(self, attributes: Mapping[str, Any] | None) -> RandomWindow:
        """Return the window in entries of a field that has these attributes; ConfigError if it needs a rate."""
        rate = (attributes or {}).get("rate")
        if self.seconds is None:
            return self
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e12:
            told = "takes fields whose attribute 'rate' is the number of entries per second"
            raise ConfigError(f"RandomWindow(seconds={self.seconds}) {told}, got the attributes {attributes or {}}")
        return RandomWindow(max(1, round(self.seconds * rate)), self.offset)

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        lengths = shapes[:, 0]
        kept = np.minimum(lengths, min(self.entries, np.iinfo(np.int64).max))
        begins = np.floor(generator.uniform(1)[:, 0] * (lengths - kept + 1)).astype(np.int64)
        return (ArrayWindow(begins, begins + kept, -shapes.shape[1]),)

    def out_shape(self, shape: Shape, *, keeps_shorter: bool = False) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too short."""
        if not shape:
            raise ConfigError("there is no first axis in arrays of shape ()")
        length = shape[0]
        if keeps_shorter:
            return (None if length is None else min(length, self.entries), *shape[1:])
        if length is not None and length < self.entries:
            raise ConfigError(
                f"a window of {self.entries} entries is not in arrays of shape {shape}; where the first axis has any "
                "length, PadTo or Ragged at the end of the transforms keeps shorter ones whole"
            )
        return (self.entries, *shape[1:])


@final
@dataclass(frozen=True, slots=True)
class RandomRow:
    """Keep one row of the first axis, another one in each epoch: `(k, ...)` becomes `(...)`.

    Rows take turns: a sample begins with a random one, which depends on the seed and the sample, and goes on with the
    next one in each epoch, so k epochs deliver each row once. Only the row is read. RandomRow must come first of the
    array transforms of its list; the others see the row.

    Args:
        offset: whether to deliver `NAME_offset` too, int64 [B, 1]: the row's number. A sample without the field, or
            masked, has 0.

    Raises:
        ConfigError: if `offset` isn't True or False. The loader raises it for arrays without a first axis. Where that
            has any length, an array without rows is a bad sample.
    """

    offset: bool = False

    def __post_init__(self) -> None:
        check_flag(self.offset, "offset")

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        rows, axis = shapes[:, 0], -shapes.shape[1]
        first = np.floor(replace(generator, epoch=0).uniform(1)[:, 0] * rows).astype(np.int64)
        chosen = (first + generator.epoch) % np.maximum(rows, 1)
        return ArrayWindow(chosen, np.minimum(chosen + 1, rows), axis), ArraySqueeze(axis)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of a row. Raise ConfigError if an array of this shape has none."""
        if 0 in (shape or (0,))[:1]:
            raise ConfigError(f"RandomRow takes arrays that have rows, and there are none in arrays of shape {shape}")
        return shape[1:]


@dataclass(frozen=True, slots=True)
class MultiHot:
    """Make one row per sample of labels of any length, [B, num_classes]: 1 for each label that it has, else 0.

    It is for fields of integers of one axis, such as `("int64", (None,))`, and keeps their dtype; ToFloat after it
    makes floats, as `binary_cross_entropy_with_logits` takes. A label that is not in [0, num_classes) is a bad sample.
    A missing or masked value has no labels.

    Args:
        num_classes: the number of classes, at least 1.

    Raises:
        ConfigError: if `num_classes` isn't an integer of at least 1. The loader raises it for other fields.
    """

    num_classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", at_least_one(self.num_classes, "num_classes"))

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        return (ArrayMultiHot(self.num_classes),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result."""
        return (self.num_classes,)


ArrayCut: TypeAlias = RandomSpatialCrop | CenterSpatialCrop | RandomWindow | RandomRow
"""A transform that keeps a part of an array, which its first move says."""

ArrayTransform: TypeAlias = ArrayCut | RandomAxisFlip | RandomRotate90 | MultiHot


def _as_size(value: int | Sequence[int]) -> int | Size:
    size: int | Size
    try:
        size = operator.index(value) if isinstance(value, int | np.integer) else tuple(map(operator.index, value))
    except TypeError:
        size = ()
    if not size or np.min(size) < 1:
        raise ConfigError(f"size must be integers of at least 1, got {value!r}")
    return size


def _as_axes(value: int | Sequence[int]) -> tuple[int, ...]:
    axes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not axes or any(not isinstance(a, int) or a >= 0 for a in axes) or len(set(axes)) != len(axes):
        raise ConfigError(f"axes must be different integers below 0, counted from the end, got {value!r}")
    return axes


def _check_axes_exist(axes: Sequence[int], shape: Shape) -> None:
    if -min(axes) > len(shape):
        raise ConfigError(f"there is no axis {min(axes)} in arrays of shape {shape}")
