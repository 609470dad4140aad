"""Transforms of arrays, such as volumes (C, D, H, W): crops, flips and rotations by quarter turns.

They move values and change none; ToFloat and Normalize, or ToInt64, may follow them, then PadTo or Ragged. Axes are
counted from the end (-1 is the last), so that one transform serves arrays with any number of leading axes, such as
channels, which stay in place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .normalization import Normalize, Precision, ToFloat, ToInt64, merged, per_channel
from .ragged import Collation, PadTo, Ragged
from .random_generator import RandomGenerator
from .steps import Mask
from .validation import at_least_one, check_probability

Shape: TypeAlias = tuple[int | None, ...]
"""A shape, in which None stands for an axis of any length."""
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
class ArrayFlip:
    """Reverse an axis where `mask`, bool [B], is true."""

    mask: Mask
    axis: int


@dataclass(frozen=True, slots=True)
class ArrayRotate90:
    """Rotate by a number of quarter turns, int64 [B], from the first of two axes towards the second, as numpy.rot90."""

    quarters: NDArray[np.int64]
    axes: tuple[int, int]


Move: TypeAlias = ArrayCrop | ArrayWindow | ArrayFlip | ArrayRotate90
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

    size: int | Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_size(self.size))

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        size = _block_size(self.size, shapes.shape[1])
        room = shapes[:, -len(size) :] - size + 1
        return (ArrayCrop(np.floor(generator.uniform(len(size)) * room).astype(np.int64), size),)

    def block(self, shape: Shape) -> Size:
        """Return the lengths along the last axes of arrays of this shape."""
        return _block_size(self.size, len(shape))

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        return _cropped_shape(shape, _block_size(self.size, len(shape)))


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

    size: int | Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _as_size(self.size))

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        size = _block_size(self.size, shapes.shape[1])
        corners = (shapes[:, -len(size) :] - size) // 2
        return (ArrayCrop(np.broadcast_to(corners, (len(generator.indices), len(size))), size),)

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too small."""
        return _cropped_shape(shape, _block_size(self.size, len(shape)))


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
    """Keep `n` neighbouring entries along the first axis, at a random place.

    Of arrays whose first axis has any length, only these entries are read if this is the first transform. A shorter
    array is a bad sample; with PadTo or Ragged at the end of the list it stays whole.

    Args:
        n: the number of entries, at least 1.

    Raises:
        ConfigError: if `n` is no whole number of at least 1. The loader raises it for arrays of one shape that have
            fewer entries.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", at_least_one(self.n, "n"))

    def moves(self, shapes: Shapes, generator: RandomGenerator) -> tuple[Move, ...]:
        lengths = shapes[:, 0]
        kept = np.minimum(lengths, min(self.n, np.iinfo(np.int64).max))
        begins = np.floor(generator.uniform(1)[:, 0] * (lengths - kept + 1)).astype(np.int64)
        return (ArrayWindow(begins, begins + kept, -shapes.shape[1]),)

    def out_shape(self, shape: Shape, *, keeps_shorter: bool = False) -> Shape:
        """Return the shape of the result. Raise ConfigError if an array of this shape is too short."""
        if not shape:
            raise ConfigError("there is no first axis in arrays of shape ()")
        length = shape[0]
        if keeps_shorter:
            return (None if length is None else min(length, self.n), *shape[1:])
        if length is not None and length < self.n:
            raise ConfigError(
                f"a window of {self.n} entries is not in arrays of shape {shape}; where the first axis has any length, "
                "PadTo or Ragged at the end of the transforms keeps shorter ones whole"
            )
        return (self.n, *shape[1:])


ArrayTransform: TypeAlias = RandomSpatialCrop | CenterSpatialCrop | RandomWindow | RandomAxisFlip | RandomRotate90


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
    def of(cls, normalize: Normalize, shape: Shape | None, *, ragged: bool = False) -> ArrayConversion:
        """Return the conversion of arrays of this shape, None for any. Raise ConfigError if they have other channels.

        The channels are the first axis, or of `ragged` arrays the one behind the first.
        """
        axes = (shape or ())[int(ragged) :]
        if axes[:1] in ((), (None,)):
            channels, why = (
                1,
                "" if shape == () else f": the number of channels of arrays of {_in_words(shape)} is unknown",
            )
        else:
            channels, place = axes[0] or 0, "second" if ragged else "first"
            why = f": the channels of arrays of {_in_words(shape)} are the {place} axis"
        sizes = (channels, *(1 for _ in axes[1:])) if axes else ()
        mean, std = per_channel(normalize, channels, why=why).T.reshape(2, *sizes)
        identity = not mean.any() and bool((std == 1).all())
        return cls(normalize.dtype or "float32", None if identity else (mean, std))


@dataclass(frozen=True, slots=True)
class ArrayRecipe:
    """The transforms of an array field, checked.

    Attributes:
        transforms: the transforms that move values, in order.
        shape: the shape of the stored arrays, None for any.
        out_shape: the shape of the results, before a batch is made of them; None for any.
        conversion: the conversion to floats or int64, which follows; None leaves the stored dtype.
        leading: the number of axes, of the rows of a window, that transforms don't see.
        collation: what a batch makes of results of several lengths; None leaves them a list.
    """

    transforms: tuple[ArrayTransform, ...]
    shape: Shape | None
    out_shape: Shape | None
    conversion: ArrayConversion | None = None
    leading: int = 0
    collation: Collation | None = None

    @classmethod
    def of(
        cls, transforms: Sequence[object], shape: Shape | None, dtype: np.dtype[Any], leading: int = 0
    ) -> ArrayRecipe:
        """Check `transforms` against arrays of this shape, None for any, and dtype. Raise ConfigError otherwise.

        Of arrays of any shape, a crop to several lengths takes those that have as many axes, and RandomWindow, PadTo
        and Ragged take those of one axis.
        """
        collation = next((each for each in transforms[-1:] if isinstance(each, Collation)), None)
        listed = transforms if collation is None else transforms[:-1]
        shape = _taken(transforms) if shape is None else shape
        rows, shape = (shape or ())[:leading], None if shape is None else shape[leading:]
        ragged = is_ragged(shape)
        checked: list[ArrayTransform] = []
        normalize: Normalize | None = None
        whole = False
        out_shape = shape
        for position, transform in enumerate(listed):
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
                normalize = merged(normalize, transform, listed[position - 1], position)
            elif isinstance(transform, PadTo | Ragged):
                raise ConfigError(f"transform {position}: {name} must come last, and once")
            elif not isinstance(transform, ArrayTransform):
                kinds = (*get_args(ArrayTransform), ToFloat, Normalize, ToInt64, PadTo, Ragged)
                advice = _advice(dtype) if shape is not None and _like_pixels(shape) else ""
                raise ConfigError(
                    f"transform {position} must be a shardio array transform, got {transform!r}: arrays of "
                    f"{_in_words(shape)} take {', '.join(kind.__name__ for kind in kinds)}{advice}"
                )
            elif normalize is not None:
                raise ConfigError(f"transform {position}: {name} must come before ToFloat and Normalize")
            else:
                out_shape = None if out_shape is None else _result(transform, out_shape, collation)
                checked.append(transform)
        if collation is not None and not is_ragged(out_shape):
            one = "" if out_shape is None or None in out_shape else ", which make one tensor without it"
            raise ConfigError(
                f"transform {len(listed)}: {type(collation).__name__} takes arrays whose first axis, and no other, has "
                f"any length, got arrays of {_in_words(out_shape)}{one}"
            )
        conversion = None if normalize is None else ArrayConversion.of(normalize, out_shape, ragged=ragged)
        if whole and dtype != np.int64:
            conversion = ArrayConversion("int64", None)
        if isinstance(collation, PadTo):
            check_padding(collation.value, dtype if conversion is None else conversion.dtype)
        if shape is None:
            return cls(tuple(checked), None, None, conversion, leading)
        return cls(tuple(checked), (*rows, *shape), (*rows, *(out_shape or ())), conversion, leading, collation)

    @property
    def seen(self) -> Shape | None:
        """The shape of the arrays that the first transform sees; None for any."""
        return None if self.shape is None else self.shape[self.leading :]

    @property
    def out_size(self) -> Size | None:
        """The shape of every result, if all have the same."""
        sizes = [size for size in self.out_shape or () if size is not None]
        return None if self.out_shape is None or len(sizes) < len(self.out_shape) else tuple(sizes)

    @property
    def out_entry(self) -> Size:
        """The shape of one entry along the first axis of the results; () if they have no such shape."""
        return tuple(size or 0 for size in (self.out_shape or ())[1:]) if is_ragged(self.out_shape) else ()

    def result(self, shape: Size) -> Shape:
        """Return the shape of the result of an array. Raise ConfigError if the transforms don't take its shape."""
        taken = self.shape
        if taken is not None and (
            len(shape) != len(taken) or any(t not in (None, s) for s, t in zip(shape, taken, strict=True))
        ):
            raise ConfigError(f"the transforms take arrays of {_in_words(taken)}, got {_in_words(shape)}")
        found: Shape = shape[self.leading :]
        for transform in self.transforms:
            found = _result(transform, found, self.collation)
        return (*shape[: self.leading], *found)

    def moves(
        self, *, seed: int, epoch: int, indices: NDArray[np.int64], shapes: Shapes | None = None
    ) -> tuple[Move, ...]:
        """Return all moves for the arrays of these samples, int64 [B].

        `shapes` are their shapes, int64 [B, axes], of which `result` takes each; it isn't needed if all are the same.
        """
        moves: list[Move] = []
        shapes = np.array([self.seen], np.int64) if shapes is None else shapes[:, self.leading :]
        for position, transform in enumerate(self.transforms):
            added = transform.moves(shapes, RandomGenerator(seed, epoch, position, indices))
            for move in added:
                shapes = _moved_shapes(shapes, move)
            moves += added
        return tuple(moves)


def is_ragged(shape: Shape | None) -> bool:
    """Return whether the first axis of arrays of this shape, and no other, has any length."""
    return bool(shape) and shape is not None and shape[0] is None and None not in shape[1:]


def _taken(transforms: Sequence[object]) -> Shape | None:
    """Return the shape of arrays that transforms take of those of any shape; None for any."""
    for transform in transforms:
        if isinstance(transform, RandomSpatialCrop | CenterSpatialCrop) and not isinstance(transform.size, int):
            return (None,) * len(transform.size)
        if isinstance(transform, RandomWindow | PadTo | Ragged):
            return (None,)
    return None


def _result(transform: ArrayTransform, shape: Shape, collation: Collation | None) -> Shape:
    if isinstance(transform, RandomWindow):
        return transform.out_shape(shape, keeps_shorter=collation is not None)
    return transform.out_shape(shape)


def _moved_shapes(shapes: Shapes, move: Move) -> Shapes:
    """Return the shapes of arrays once a move was carried out."""
    match move:
        case ArrayCrop(size=size):
            shapes = shapes.copy()
            shapes[:, -len(size) :] = size
        case ArrayWindow(begins=begins, ends=ends):
            shapes = np.broadcast_to(shapes, (len(begins), shapes.shape[1])).copy()
            shapes[:, 0] = ends - begins
    return shapes


_BFLOAT16_MAX = 3.3895313892515355e38


def check_padding(value: float, dtype: np.dtype[Any] | str) -> None:
    """Raise ConfigError for padding that this dtype doesn't hold: floats round it, infinities and NaN are theirs."""
    kind = np.dtype("float32" if dtype == "bfloat16" else dtype)
    if kind.kind in "biu":
        least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        held = least <= value <= most and value == int(value)
    else:
        largest = _BFLOAT16_MAX if dtype == "bfloat16" else float(np.finfo(kind).max)
        held = not largest < abs(value) < math.inf
    if not held:
        raise ConfigError(f"PadTo's value must be one that {dtype} holds, got {value!r}")


def _in_words(shape: Shape | None) -> str:
    return "any shape" if shape is None else f"shape {shape}"


def _advice(dtype: np.dtype[Any]) -> str:
    """Say how arrays that may be pixels become images, which take the other transforms."""
    if dtype == np.uint8:
        return "; if these are pixels, converting with --as-image makes images"
    return f"; if these are images, convert them as they were before they became {dtype}: as files, or as uint8"


def _like_pixels(shape: Shape) -> bool:
    """Return whether the shape is one that `--as-image` takes: [h, w], [h, w, 1 or 3] or [1 or 3, h, w]."""
    return len(shape) == 2 or (len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)))


def _as_size(value: int | Sequence[int]) -> int | Size:
    size: int | Size
    try:
        size = operator.index(value) if isinstance(value, int | np.integer) else tuple(map(operator.index, value))
    except TypeError:
        size = ()
    if not size or np.min(size) < 1:
        raise ConfigError(f"size must be whole numbers of at least 1, got {value!r}")
    return size


def _block_size(size: int | Size, axes: int) -> Size:
    """Return the lengths along the last axes of arrays of so many: one number means all axes but the first."""
    if not isinstance(size, int):
        return size
    if axes < 2:
        raise ConfigError(
            f"a size of one number, {size}, is for all axes but the first, the channels, and arrays of {axes} axes "
            f"have no other: give ({size},)"
        )
    return (size,) * (axes - 1)


def _as_axes(value: int | Sequence[int]) -> tuple[int, ...]:
    axes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not axes or any(not isinstance(a, int) or a >= 0 for a in axes) or len(set(axes)) != len(axes):
        raise ConfigError(f"axes must be different whole numbers below 0, counted from the end, got {value!r}")
    return axes


def _check_axes_exist(axes: Sequence[int], shape: Shape) -> None:
    if -min(axes) > len(shape):
        raise ConfigError(f"there is no axis {min(axes)} in arrays of shape {shape}")


def _cropped_shape(shape: Shape, size: Size) -> Shape:
    ends = zip(size, shape[-len(size) :], strict=False)
    if len(size) > len(shape) or any(have is not None and want > have for want, have in ends):
        raise ConfigError(f"a block of {size} is not in arrays of shape {shape}")
    return (*shape[: -len(size)], *size)
