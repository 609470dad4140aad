"""Transforms of arrays of one shape, such as volumes and fields (C, D, H, W): crops, mirrors and quarter turns.

They move values and change none. Axes count from the end (-1 is the last), so that the same transform serves any number
of channels; the first axis is never moved unless it is named.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .checks import probability_of
from .draws import Draws
from .steps import Mask

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep `size` values of each of the last axes, from int64 [B, axes] on."""

    corners: NDArray[np.int64]
    size: Shape


@dataclass(frozen=True, slots=True)
class Mirror:
    """Turn the order along an axis round where bool [B] is true."""

    mask: Mask
    axis: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn by so many quarters, int64 [B], from the first of two axes towards the second, as numpy.rot90."""

    quarters: NDArray[np.int64]
    axes: tuple[int, int]


Move: TypeAlias = Cut | Mirror | Turn


@dataclass(frozen=True, slots=True)
class RandomSpatialCrop:
    """A block of `size` at a random place.

    Args:
        size: along the last axes; as many numbers as axes are cropped, one number for a single axis.
    """

    size: int | Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sizes(self.size))

    def moves(self, shape: Shape, draws: Draws) -> tuple[Move, ...]:
        """A cut, of arrays of this shape."""
        size = _sizes(self.size)
        room = np.array(shape[-len(size) :]) - size + 1
        return (Cut(np.floor(draws.uniform(len(size)) * room).astype(np.int64), size),)

    def out_shape(self, shape: Shape) -> Shape:
        """The shape of what comes out. ConfigError if there is less than that."""
        return _cut(shape, _sizes(self.size))


@dataclass(frozen=True, slots=True)
class CenterSpatialCrop:
    """The block of `size` in the middle.

    Args:
        size: along the last axes; as many numbers as axes are cropped, one number for a single axis.
    """

    size: int | Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _sizes(self.size))

    def moves(self, shape: Shape, draws: Draws) -> tuple[Move, ...]:
        """A cut."""
        size = _sizes(self.size)
        corner = (np.array(shape[-len(size) :]) - size) // 2
        return (Cut(np.tile(corner.astype(np.int64), (len(draws.indices), 1)), size),)

    def out_shape(self, shape: Shape) -> Shape:
        """The shape of what comes out. ConfigError if there is less than that."""
        return _cut(shape, _sizes(self.size))


@dataclass(frozen=True, slots=True)
class RandomAxisFlip:
    """Mirror along each of some axes with probability `p`, independently.

    Args:
        p: probability.
        axes: counted from the end.
    """

    p: float = 0.5
    axes: Sequence[int] = (-1,)

    def __post_init__(self) -> None:
        probability_of(self.p)
        object.__setattr__(self, "axes", _axes(self.axes))

    def moves(self, shape: Shape, draws: Draws) -> tuple[Move, ...]:
        """A mirror for each axis."""
        masks = draws.uniform(len(self.axes)) < self.p
        return tuple(Mirror(mask, axis) for mask, axis in zip(masks.T, self.axes, strict=True))

    def out_shape(self, shape: Shape) -> Shape:
        """The same as came in. ConfigError if it has no such axes."""
        _there(self.axes, shape)
        return shape


@dataclass(frozen=True, slots=True)
class RandomRotate90:
    """Turn by a quarter, a half or three quarters in the plane of two axes, with probability `p`, all as likely.

    Args:
        p: probability that it is turned at all.
        axes: counted from the end; both must be of one size.
    """

    p: float = 0.75
    axes: tuple[int, int] = (-2, -1)

    def __post_init__(self) -> None:
        probability_of(self.p)
        object.__setattr__(self, "axes", _axes(self.axes))
        if len(self.axes) != 2:
            raise ConfigError(f"axes must be two, got {self.axes!r}")

    def moves(self, shape: Shape, draws: Draws) -> tuple[Move, ...]:
        """A turn."""
        random = draws.uniform(2)
        quarters = np.where(random[:, 0] < self.p, 1 + np.floor(random[:, 1] * 3), 0)
        return (Turn(quarters.astype(np.int64), self.axes),)

    def out_shape(self, shape: Shape) -> Shape:
        """The same as came in. ConfigError if the plane is no square."""
        _there(self.axes, shape)
        sides = tuple(shape[axis] for axis in self.axes)
        if sides[0] != sides[1]:
            raise ConfigError(f"RandomRotate90 needs axes of one size, {self.axes} of {shape} are {sides}")
        return shape


ArrayTransform: TypeAlias = RandomSpatialCrop | CenterSpatialCrop | RandomAxisFlip | RandomRotate90


@dataclass(frozen=True, slots=True)
class ArrayRecipe:
    """An array field's transforms, checked.

    Attributes:
        transforms: in order.
        shape: of what comes in.
        out_shape: of what comes out.
    """

    transforms: tuple[ArrayTransform, ...]
    shape: Shape
    out_shape: Shape

    @classmethod
    def of(cls, transforms: Sequence[object], shape: Shape) -> "ArrayRecipe":
        """Checks `transforms` for arrays of this shape."""
        kept: list[ArrayTransform] = []
        out = shape
        for place, transform in enumerate(transforms):
            if not isinstance(transform, ArrayTransform):
                raise ConfigError(
                    f"transform {place} must be one of shardio's for arrays, got {transform!r}; arrays of pixels "
                    "become images when they are converted with --pixels"
                )
            out = transform.out_shape(out)
            kept.append(transform)
        return cls(tuple(kept), shape, out)

    def moves(self, *, seed: int, epoch: int, indices: NDArray[np.int64]) -> tuple[Move, ...]:
        """All moves for the arrays of these samples, int64 [B]."""
        made: list[Move] = []
        shape = self.shape
        for place, transform in enumerate(self.transforms):
            made += transform.moves(shape, Draws(seed, epoch, place, indices))
            shape = transform.out_shape(shape)
        return tuple(made)


def _sizes(value: int | Sequence[int]) -> Shape:
    try:
        sizes = tuple(map(operator.index, [value] if isinstance(value, int) else value))
    except TypeError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"size must be whole numbers of at least 1, got {value!r}")
    return sizes


def _axes(value: Sequence[int]) -> tuple[int, ...]:
    axes = tuple(value)
    if not axes or len(set(axes)) != len(axes) or any(not isinstance(a, int) or a >= 0 for a in axes):
        raise ConfigError(f"axes must be different whole numbers below 0, counted from the end, got {value!r}")
    return axes


def _there(axes: Sequence[int], shape: Shape) -> None:
    if -min(axes) > len(shape):
        raise ConfigError(f"there is no axis {min(axes)} in arrays of shape {shape}")


def _cut(shape: Shape, size: Shape) -> Shape:
    if len(size) > len(shape) or any(want > have for want, have in zip(size, shape[-len(size) :], strict=False)):
        raise ConfigError(f"a block of {size} is not in arrays of shape {shape}")
    return (*shape[: -len(size)], *size)
