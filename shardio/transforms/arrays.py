"""Transforms of arrays of one shape, such as volumes (C, D, H, W): crops, flips and rotations by quarter turns.

They move values and change none; ToFloat and Normalize, or ToInt64, may follow them. Axes are counted from the end (-1
is the last), so that one transform serves arrays with any number of leading axes, such as channels, which stay in
place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .normalization import Normalize, Precision, ToFloat, ToInt64, merged, per_channel
from .random_generator import RandomGenerator
from .steps import Mask
from .validation import check_probability

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArrayCrop:
    """Keep a block of `size` along the last axes, starting at `corners`, int64 [B, len(size)]."""

    corners: NDArray[np.int64]
    size: Shape


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


Move: TypeAlias = ArrayCrop | ArrayFlip | ArrayRotate90
"""An array transform's decisions for a batch, as arrays with a row per sample: the counterpart of an image `Step`."""


@dataclass(frozen=True, slots=True)
class RandomSpatialCrop:
    """Crop a block of `size` at a random place.

    Args:
        size: lengths along the last axes, one for each axis that is cropped. An integer is the length of every axis
            but the first, which is the channels: 48 makes (4, 48, 48, 48) of (4, 64, 64, 64), and (4, 48) of (4, 64).
            So of a mask without channels, (64, 64, 64), an integer does not crop the depth: give (48, 48, 48), or store
            the mask as (1, 64, 64, 64).

    Raises:
        ConfigError: if `size` is not integers of at least 1. The loader raises it for arrays smaller than that, and for
            arrays of one axis if `size` is an integer: give `(48,)` for those.
    """

    size: int | Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_size(self.size))

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
        size = self.block(shape)
        room = np.array(shape[-len(size) :]) - size + 1
        return (ArrayCrop(np.floor(generator.uniform(len(size)) * room).astype(np.int64), size),)

    def block(self, shape: Shape) -> Shape:
        """Return the lengths along the last axes of arrays of this shape."""
        return _block_size(self.size, shape)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        return _cropped_shape(shape, _block_size(self.size, shape))


@dataclass(frozen=True, slots=True)
class CenterSpatialCrop:
    """Crop the block of `size` in the center.

    Args:
        size: lengths along the last axes, one for each axis that is cropped. An integer is the length of every axis
            but the first, which is the channels: 48 makes (4, 48, 48, 48) of (4, 64, 64, 64), and (4, 48) of (4, 64).
            So of a mask without channels, (64, 64, 64), an integer does not crop the depth: give (48, 48, 48), or store
            the mask as (1, 64, 64, 64).

    Raises:
        ConfigError: if `size` is not integers of at least 1. The loader raises it for arrays smaller than that, and for
            arrays of one axis if `size` is an integer: give `(48,)` for those.
    """

    size: int | Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_size(self.size))

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
        size = _block_size(self.size, shape)
        corner = (np.array(shape[-len(size) :]) - size) // 2
        return (ArrayCrop(np.tile(corner.astype(np.int64), (len(generator.indices), 1)), size),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        return _cropped_shape(shape, _block_size(self.size, shape))


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

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
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

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
        random = generator.uniform(2)
        quarters = np.where(random[:, 0] < self.p, 1 + np.floor(random[:, 1] * 3), 0)
        return (ArrayRotate90(quarters.astype(np.int64), self.axes),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return `shape`. Raise ConfigError if the plane of the two axes is not square."""
        _check_axes_exist(self.axes, shape)
        sides = tuple(shape[axis] for axis in self.axes)
        if sides[0] != sides[1]:
            raise ConfigError(f"RandomRotate90 needs axes of one size, {self.axes} of {shape} are {sides}")
        return shape


ArrayTransform: TypeAlias = RandomSpatialCrop | CenterSpatialCrop | RandomAxisFlip | RandomRotate90


@dataclass(frozen=True, slots=True)
class ArrayConversion:
    """The conversion of arrays to floats, or of whole numbers to int64.

    Attributes:
        dtype: the dtype of the results, to which floats are rounded after they were computed in float32.
        moments: the mean, which is subtracted, and the standard deviation, by which the difference is divided: float32,
            of a shape that broadcasts over the arrays. None leaves values as they are.
    """

    dtype: Precision | Literal["int64"]
    moments: tuple[NDArray[np.float32], NDArray[np.float32]] | None

    @classmethod
    def of(cls, normalize: Normalize, shape: Shape) -> ArrayConversion:
        """Return the conversion of arrays of this shape. Raise ConfigError if they have other channels."""
        why = f": the channels of arrays of shape {shape} are the first axis" if shape else ""
        numbers = per_channel(normalize, shape[0] if shape else 1, why=why)
        mean, std = numbers.T.reshape(2, *shape[:1], *(1 for _ in shape[1:]))
        identity = not mean.any() and bool((std == 1).all())
        return cls(normalize.dtype or "float32", None if identity else (mean, std))


@dataclass(frozen=True, slots=True)
class ArrayRecipe:
    """The transforms of an array field, checked.

    Attributes:
        transforms: the transforms that move values, in order.
        shape: the shape of the stored arrays.
        out_shape: the shape of the results.
        leading: the number of axes, of the rows of a window, that transforms don't see.
        conversion: the conversion to floats or int64, which comes last; None leaves the stored dtype.
    """

    transforms: tuple[ArrayTransform, ...]
    shape: Shape
    out_shape: Shape
    conversion: ArrayConversion | None = None
    leading: int = 0

    @classmethod
    def of(cls, transforms: Sequence[object], shape: Shape, dtype: np.dtype[Any], leading: int = 0) -> ArrayRecipe:
        """Check `transforms` against arrays of this shape and dtype. Raise ConfigError if they do not suit them."""
        rows, shape = shape[:leading], shape[leading:]
        checked: list[ArrayTransform] = []
        normalize: Normalize | None = None
        whole = False
        out_shape = shape
        for position, transform in enumerate(transforms):
            name = type(transform).__name__
            if whole:
                raise ConfigError(f"transform {position}: {name} must come before ToInt64")
            if isinstance(transform, ToInt64):
                if dtype.kind not in "iu" or normalize is not None:
                    found = "floats" if normalize is not None else dtype
                    raise ConfigError(f"transform {position}: ToInt64 takes whole numbers, got {found}")
                whole = True
            elif isinstance(transform, ToFloat | Normalize):
                if dtype.kind == "c":
                    raise ConfigError(f"transform {position}: {name} takes real numbers, got arrays of {dtype}")
                normalize = merged(normalize, transform, transforms[position - 1], position)
            elif not isinstance(transform, ArrayTransform):
                names = ", ".join(kind.__name__ for kind in (*get_args(ArrayTransform), ToFloat, Normalize, ToInt64))
                advice = _advice(shape, dtype) if _like_pixels(shape) else ""
                raise ConfigError(
                    f"transform {position} must be a shardio array transform, got {transform!r}: arrays of shape "
                    f"{shape} take {names}{advice}"
                )
            elif normalize is not None:
                raise ConfigError(f"transform {position}: {name} must come before ToFloat and Normalize")
            else:
                out_shape = transform.out_shape(out_shape)
                checked.append(transform)
        conversion = None if normalize is None else ArrayConversion.of(normalize, out_shape)
        if whole and dtype != np.int64:
            conversion = ArrayConversion("int64", None)
        return cls(tuple(checked), (*rows, *shape), (*rows, *out_shape), conversion, leading)

    @property
    def seen(self) -> Shape:
        """The shape of the arrays that the first transform sees."""
        return self.shape[self.leading :]

    def moves(self, *, seed: int, epoch: int, indices: NDArray[np.int64]) -> tuple[Move, ...]:
        """Return all moves for the arrays of these samples, int64 [B]."""
        moves: list[Move] = []
        shape = self.seen
        for position, transform in enumerate(self.transforms):
            moves += transform.moves(shape, RandomGenerator(seed, epoch, position, indices))
            shape = transform.out_shape(shape)
        return tuple(moves)


def _advice(shape: Shape, dtype: np.dtype[Any]) -> str:
    """Say how arrays that may be pixels become images, which take the other transforms."""
    if dtype == np.uint8:
        return "; if these are pixels, converting with --as-image makes images"
    return f"; if these are images, convert them as they were before they became {dtype}: as files, or as uint8"


def _like_pixels(shape: Shape) -> bool:
    """Return whether the shape is one that `--as-image` takes: [h, w], [h, w, 1 or 3] or [1 or 3, h, w]."""
    return len(shape) == 2 or (len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)))


def _as_size(value: int | Sequence[int]) -> int | Shape:
    size: int | Shape
    try:
        size = operator.index(value) if isinstance(value, int | np.integer) else tuple(map(operator.index, value))
    except TypeError:
        size = ()
    if not size or np.min(size) < 1:
        raise ConfigError(f"size must be whole numbers of at least 1, got {value!r}")
    return size


def _block_size(size: int | Shape, shape: Shape) -> Shape:
    """Return the lengths along the last axes of arrays of this shape: one number means all axes but the first."""
    if not isinstance(size, int):
        return size
    if len(shape) < 2:
        raise ConfigError(
            f"a size of one number, {size}, is for all axes but the first, the channels, and arrays of shape {shape} "
            f"have no other: give ({size},)"
        )
    return (size,) * (len(shape) - 1)


def _as_axes(value: int | Sequence[int]) -> tuple[int, ...]:
    axes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not axes or any(not isinstance(a, int) or a >= 0 for a in axes) or len(set(axes)) != len(axes):
        raise ConfigError(f"axes must be different whole numbers below 0, counted from the end, got {value!r}")
    return axes


def _check_axes_exist(axes: Sequence[int], shape: Shape) -> None:
    if -min(axes) > len(shape):
        raise ConfigError(f"there is no axis {min(axes)} in arrays of shape {shape}")


def _cropped_shape(shape: Shape, size: Shape) -> Shape:
    if len(size) > len(shape) or any(want > have for want, have in zip(size, shape[-len(size) :], strict=False)):
        raise ConfigError(f"a block of {size} is not in arrays of shape {shape}")
    return (*shape[: -len(size)], *size)
