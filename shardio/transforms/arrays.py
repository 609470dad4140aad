"""Transforms of arrays of one shape, such as volumes (C, D, H, W): crops, flips and rotations by quarter turns.

They move values and change none. Axes are counted from the end (-1 is the last), so that one transform serves arrays
with any number of leading axes, such as channels, which stay in place.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
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
        size: lengths along the last axes, one for each axis that is cropped; an integer crops the last axis only.

    Raises:
        ConfigError: if `size` is not integers of at least 1. The loader raises it for arrays smaller than that.
    """

    size: int | Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_shape(self.size))

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
        """Return a crop for arrays of this shape."""
        size = _as_shape(self.size)
        room = np.array(shape[-len(size) :]) - size + 1
        return (ArrayCrop(np.floor(generator.uniform(len(size)) * room).astype(np.int64), size),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        return _cropped_shape(shape, _as_shape(self.size))


@dataclass(frozen=True, slots=True)
class CenterSpatialCrop:
    """Crop the block of `size` in the center.

    Args:
        size: lengths along the last axes, one for each axis that is cropped; an integer crops the last axis only.

    Raises:
        ConfigError: if `size` is not integers of at least 1. The loader raises it for arrays smaller than that.
    """

    size: int | Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_shape(self.size))

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
        """Return a crop for arrays of this shape."""
        size = _as_shape(self.size)
        corner = (np.array(shape[-len(size) :]) - size) // 2
        return (ArrayCrop(np.tile(corner.astype(np.int64), (len(generator.indices), 1)), size),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        return _cropped_shape(shape, _as_shape(self.size))


@dataclass(frozen=True, slots=True)
class RandomAxisFlip:
    """Reverse each of some axes with probability `p`, independently of the others.

    Args:
        p: the probability for each axis, in [0, 1].
        axes: the axes, counted from the end: -1 is the last.

    Raises:
        ConfigError: if an argument is out of range. The loader raises it for arrays without such an axis.
    """

    p: float = 0.5
    axes: Sequence[int] = (-1,)

    def __post_init__(self) -> None:
        check_probability(self.p)
        object.__setattr__(self, "axes", _as_axes(self.axes))

    def moves(self, shape: Shape, generator: RandomGenerator) -> tuple[Move, ...]:
        """Return a flip for each axis."""
        masks = generator.uniform(len(self.axes)) < self.p
        return tuple(ArrayFlip(mask, axis) for mask, axis in zip(masks.T, self.axes, strict=True))

    def out_shape(self, shape: Shape) -> Shape:
        """Return `shape`. Raise ConfigError if it lacks one of the axes."""
        _check_axes_exist(self.axes, shape)
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
        """Return a rotation."""
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
class ArrayRecipe:
    """The transforms of an array field, checked.

    Attributes:
        transforms: the transforms, in order.
        shape: the shape of the stored arrays.
        out_shape: the shape of the results.
    """

    transforms: tuple[ArrayTransform, ...]
    shape: Shape
    out_shape: Shape

    @classmethod
    def of(cls, transforms: Sequence[object], shape: Shape) -> "ArrayRecipe":
        """Check `transforms` against arrays of this shape. Raise ConfigError if they do not suit it."""
        checked: list[ArrayTransform] = []
        out_shape = shape
        for position, transform in enumerate(transforms):
            if not isinstance(transform, ArrayTransform):
                raise ConfigError(
                    f"transform {position} must be a shardio array transform, got {transform!r}; arrays of pixels "
                    "become images when they are converted with --as-image"
                )
            out_shape = transform.out_shape(out_shape)
            checked.append(transform)
        return cls(tuple(checked), shape, out_shape)

    def moves(self, *, seed: int, epoch: int, indices: NDArray[np.int64]) -> tuple[Move, ...]:
        """Return all moves for the arrays of these samples, int64 [B]."""
        moves: list[Move] = []
        shape = self.shape
        for position, transform in enumerate(self.transforms):
            moves += transform.moves(shape, RandomGenerator(seed, epoch, position, indices))
            shape = transform.out_shape(shape)
        return tuple(moves)


def _as_shape(value: int | Sequence[int]) -> Shape:
    try:
        shape = tuple(map(operator.index, [value] if isinstance(value, int) else value))
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(f"size must be whole numbers of at least 1, got {value!r}")
    return shape


def _as_axes(value: Sequence[int]) -> tuple[int, ...]:
    axes = tuple(value)
    if not axes or len(set(axes)) != len(axes) or any(not isinstance(a, int) or a >= 0 for a in axes):
        raise ConfigError(f"axes must be different whole numbers below 0, counted from the end, got {value!r}")
    return axes


def _check_axes_exist(axes: Sequence[int], shape: Shape) -> None:
    if -min(axes) > len(shape):
        raise ConfigError(f"there is no axis {min(axes)} in arrays of shape {shape}")


def _cropped_shape(shape: Shape, size: Shape) -> Shape:
    if len(size) > len(shape) or any(want > have for want, have in zip(size, shape[-len(size) :], strict=False)):
        raise ConfigError(f"a block of {size} is not in arrays of shape {shape}")
    return (*shape[: -len(size)], *size)
