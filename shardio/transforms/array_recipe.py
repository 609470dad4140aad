"""The transforms of an array field, checked against its shape and dtype: the counterpart of `recipe.Recipe`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format.fields import Shape, is_ragged
from .arrays import (
    ArrayCrop,
    ArrayCut,
    ArrayMultiHot,
    ArraySqueeze,
    ArrayTransform,
    ArrayWindow,
    Move,
    MultiHot,
    RandomAxisFlip,
    RandomRotate90,
    RandomRow,
    RandomSpatialCrop,
    RandomWindow,
    Shapes,
    Size,
    SpatialCrop,
)
from .normalization import FillMissing, Normalize, Numbers, Precision, ToFloat, ToInt64, along_axes, merged
from .ragged import Collation, PadTo, Ragged
from .random_generator import RandomKeys


@dataclass(frozen=True, slots=True)
class ArrayConversion:
    """The conversion of arrays to floats, or of integers to int64.

    Attributes:
        dtype: the dtype of the results; floats are computed in float32 and then rounded to it.
        moments: the mean to subtract, and the standard deviation to divide the difference by: float32,
            of a shape that broadcasts over the arrays. None leaves values as they are.
    """

    dtype: Precision | Literal["int64"]
    moments: tuple[NDArray[np.float32], NDArray[np.float32]] | None

    @classmethod
    def of(cls, normalize: Normalize, places: Places) -> ArrayConversion:
        """Return the conversion of arrays with these places. Raise ConfigError if its numbers do not fit them."""
        mean, std = (
            places.numbers(f"Normalize's {name}", getattr(normalize, name)).astype(np.float32)
            for name in ("mean", "std")
        )
        identity = not mean.any() and bool((std == 1).all())
        return cls(normalize.dtype or "float32", None if identity else (mean, std))

    def normalized(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return values with the mean subtracted, divided by the standard deviation, each rounded to float32."""
        if self.moments is None:
            return values
        with np.errstate(all="ignore"):
            return np.divide(np.subtract(values, self.moments[0]), self.moments[1])


@dataclass(frozen=True, slots=True)
class Filling:
    """The filling of missing values: it follows the conversion of the others and gives what that would have given.

    Attributes:
        fill: the numbers to put there, of a shape that broadcasts over the arrays; float32, rounded later, if the
            conversion gives floats, else of the dtype of the results.
        missing: the numbers that mark a missing value, in addition to NaN, of the stored dtype, [n].
        mask: whether to deliver where values were missing.
    """

    fill: NDArray[Any]
    missing: NDArray[Any]
    mask: bool

    @classmethod
    def of(
        cls, given: FillMissing, stored: np.dtype[Any], conversion: ArrayConversion | None, mean: Any, places: Places
    ) -> Filling:
        """Return the filling of arrays of the dtype `stored`, for their conversion and places.

        `mean` is that of the Normalize in the list, None without one. Raises ConfigError for numbers that do not fit.
        """
        if stored.kind not in "iuf":
            raise ConfigError(f"FillMissing takes real numbers, got arrays of {stored}")
        if not given.missing and stored.kind != "f":
            raise ConfigError(
                f"FillMissing of arrays of {stored}, which hold no NaN, needs missing=, as in missing=-9999"
            )
        numbers = np.asarray(given.missing)
        check_held("FillMissing's missing", numbers, stored)
        if given.value == "mean" and mean is None:
            raise ConfigError("FillMissing('mean') takes the mean of a Normalize behind it, and there is none")
        value = mean if isinstance(given.value, str) else given.value
        fill: NDArray[Any] = places.numbers("FillMissing's value", value)
        if conversion is None or conversion.dtype == "int64":
            dtype = stored if conversion is None else np.dtype(np.int64)
            check_held("FillMissing's value", fill, dtype)
            fill = fill.astype(dtype)
        else:
            fill = conversion.normalized(fill.astype(np.float32))
            check_held("FillMissing's value, normalized,", fill, conversion.dtype)
        return cls(fill, numbers.astype(stored), bool(given.mask))


@dataclass(frozen=True, slots=True)
class Places:
    """The places along the leading axes of arrays: numbers may differ between them.

    Attributes:
        shape: the shape of arrays after all moves; None for any.
        ragged: whether the first axis has any length, so that channels are the second one.
        moved: by axis, counted from the end, the name of a transform that cuts, reverses or rotates it at random.
    """

    shape: Shape | None
    ragged: bool
    moved: Mapping[int, str]

    def numbers(self, what: str, given: Numbers) -> NDArray[np.float64]:
        """Return numbers in a shape that broadcasts over the arrays. Raise ConfigError, with `what`, if they do not."""
        axes = (self.shape or ())[int(self.ragged) :]
        shape = _in_words(self.shape)
        why = f": the channels of arrays of {shape} are the {'second' if self.ragged else 'first'} axis"
        if self.shape != () and axes[:1] in ((), (None,)):
            why = f": the number of channels of arrays of {shape} is unknown"
        for axis, size in zip(range(-len(axes), 0), np.shape(given), strict=False):
            if size > 1 and axis in self.moved:
                raise ConfigError(
                    f"{what} differs along axis {axis} of arrays, along which {self.moved[axis]} moves values at "
                    "random: give one number for all its places"
                )
        return along_axes(what, given, axes, "" if self.shape == () else why)


@dataclass(frozen=True, slots=True)
class ArrayRecipe:
    """The transforms of an array field, checked.

    Attributes:
        transforms: the transforms that move values, in order. Transforms that change each value by itself, wherever it
            is, are not among them: their position in a list changes neither what moves nor what is drawn.
        shape: the shape of the stored arrays, None for any.
        out_shape: the shape of the results, before a batch is made of them; None for any.
        conversion: the conversion to floats or int64, which follows; None leaves the stored dtype.
        leading: the number of axes, of the rows of a window, that transforms don't see.
        collation: what a batch makes of results of several lengths; None leaves them a list.
        filling: the filling of missing values; None leaves them.
    """

    transforms: tuple[ArrayTransform, ...]
    shape: Shape | None
    out_shape: Shape | None
    conversion: ArrayConversion | None = None
    leading: int = 0
    collation: Collation | None = None
    filling: Filling | None = None

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
        seen, ragged = shape, is_ragged(shape)
        checked: list[ArrayTransform] = []
        normalize: Normalize | None = None
        fill: FillMissing | None = None
        whole = False
        out_shape = shape
        for position, transform in enumerate(listed):
            name = type(transform).__name__
            if whole:
                raise ConfigError(f"transform {position}: {name} must come before ToInt64")
            if isinstance(transform, ToInt64):
                if dtype.kind not in "iu" or normalize is not None:
                    found = "floats" if normalize is not None else dtype
                    raise ConfigError(f"transform {position}: ToInt64 takes integers, got {found}")
                whole = True
            elif isinstance(transform, ToFloat | Normalize):
                if dtype.kind == "c":
                    raise ConfigError(f"transform {position}: {name} takes real numbers, got arrays of {dtype}")
                normalize = merged(normalize, transform, listed[position - 1], position)
            elif isinstance(transform, PadTo | Ragged):
                raise ConfigError(f"transform {position}: {name} must come last, and once")
            elif not isinstance(transform, ArrayTransform | FillMissing):
                kinds = (*get_args(ArrayTransform), FillMissing, ToFloat, Normalize, ToInt64, PadTo, Ragged)
                advice = _advice(dtype) if shape is not None and _like_pixels(shape) else ""
                raise ConfigError(
                    f"transform {position} must be a shardio array transform, got {transform!r}: arrays of "
                    f"{_in_words(shape)} take {', '.join(kind.__name__ for kind in kinds)}{advice}"
                )
            elif normalize is not None:
                raise ConfigError(f"transform {position}: {name} must come before ToFloat and Normalize")
            elif isinstance(transform, FillMissing):
                if fill is not None:
                    raise ConfigError(f"transform {position}: FillMissing must come once")
                fill = transform
            else:
                if isinstance(transform, MultiHot) and (dtype.kind not in "iu" or out_shape != (None,)):
                    told = f"got {dtype} of {_in_words(out_shape)}"
                    raise ConfigError(
                        f"transform {position}: MultiHot takes integers of one axis of any length, {told}"
                    )
                if isinstance(transform, RandomRow) and checked:
                    raise ConfigError(f"transform {position}: RandomRow must come first, and once")
                _check_offset(transform, position, checked, shape)
                out_shape = None if out_shape is None else _result(transform, out_shape, collation)
                checked.append(transform)
                if isinstance(transform, RandomRow):
                    seen, ragged = out_shape, is_ragged(out_shape)
        if collation is not None and not is_ragged(out_shape):
            one = "" if out_shape is None or None in out_shape else ", which make one tensor without it"
            raise ConfigError(
                f"transform {len(listed)}: {type(collation).__name__} takes arrays whose first axis, and no other, has "
                f"any length, got arrays of {_in_words(out_shape)}{one}"
            )
        places = Places(out_shape, ragged, _moved_axes(checked, seen))
        conversion = None if normalize is None else ArrayConversion.of(normalize, places)
        if whole and dtype != np.int64:
            conversion = ArrayConversion("int64", None)
        mean = next((each.mean for each in listed if isinstance(each, Normalize)), None)
        filling = None if fill is None else Filling.of(fill, dtype, conversion, mean, places)
        if isinstance(collation, PadTo):
            check_held("PadTo's value", collation.value, dtype if conversion is None else conversion.dtype)
        if shape is None:
            return cls(tuple(checked), None, None, conversion, leading, filling=filling)
        full, out = (*rows, *shape), (*rows, *(out_shape or ()))
        return cls(tuple(checked), full, out, conversion, leading, collation, filling)

    @property
    def seen(self) -> Shape | None:
        """The shape of the arrays that the first transform sees; None for any."""
        return None if self.shape is None else self.shape[self.leading :]

    @property
    def takes_row(self) -> bool:
        """Whether the first transform keeps one row of the first axis, so the others see arrays without that axis."""
        return isinstance(next(iter(self.transforms), None), RandomRow)

    @property
    def first_shape(self) -> Shape | None:
        """The shape of the results of the first transform, or of the stored arrays; None for any."""
        if self.shape is None or not self.transforms:
            return self.shape
        return (*self.shape[: self.leading], *_result(self.transforms[0], self.shape[self.leading :], self.collation))

    @property
    def out_size(self) -> Size | None:
        """The shape of every result, if all have the same."""
        sizes = [size for size in self.out_shape or () if size is not None]
        return None if self.out_shape is None or len(sizes) < len(self.out_shape) else tuple(sizes)

    @property
    def out_entry(self) -> Size:
        """The shape of one entry along the first axis of the results; () if they have no such shape."""
        return tuple(size or 0 for size in (self.out_shape or ())[1:]) if is_ragged(self.out_shape) else ()

    @property
    def offset(self) -> int | None:
        """The position of the transform whose offset in stored arrays is delivered; only ArrayCuts precede it."""
        return next((place for place, each in enumerate(self.transforms) if _tells_offset(each)), None)

    @property
    def offset_axes(self) -> int:
        """The number of axes that this transform cuts; 0 without one."""
        match None if self.offset is None else self.transforms[self.offset]:
            case SpatialCrop(size=size):
                return len(self.seen or ()) - self.takes_row - 1 if isinstance(size, int) else len(size)
            case RandomWindow() | RandomRow():
                return 1
        return 0

    def offsets(self, moves: Sequence[Move]) -> NDArray[np.int64]:
        """Return where this transform's parts begin in stored arrays, int64 [B, offset_axes], from all their moves."""
        axes = len(self.seen or ())
        places: list[NDArray[np.int64]] = [np.zeros(1, np.int64)] * axes
        cut: Sequence[int] = ()
        cuts = [move for move in moves if isinstance(move, ArrayCrop | ArrayWindow)]  # one of each ArrayCut
        for move in cuts[: 0 if self.offset is None else self.offset + 1]:
            begins: NDArray[np.int64] = np.empty((0, 0), np.int64)
            match move:
                case ArrayCrop(corners=begins):
                    cut = range(axes - begins.shape[1], axes)
                case ArrayWindow(begins=window, axis=axis):
                    cut, begins = (axes + axis,), window[:, None]
            for axis, begin in zip(cut, begins.T, strict=True):
                places[axis] = places[axis] + begin
        return np.stack([places[axis] for axis in cut], axis=1)

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

    def moves(self, keys: RandomKeys, shapes: Shapes | None = None) -> tuple[Move, ...]:
        """Return all moves, such as crops and flips, for the arrays of the samples with these keys.

        `shapes` are their shapes, int64 [B, axes], each one that `result` takes; not needed if all are the same.
        """
        moves: list[Move] = []
        shapes = np.array([self.seen], np.int64) if shapes is None else shapes[:, self.leading :]
        for position, transform in enumerate(self.transforms):
            added = transform.moves(shapes, keys.generator(position))
            for move in added:
                shapes = _moved_shapes(shapes, move)
            moves += added
        return tuple(moves)


def _taken(transforms: Sequence[object]) -> Shape | None:
    """Return the shape of arrays that transforms take of those of any shape; None for any."""
    for transform in transforms:
        if isinstance(transform, SpatialCrop) and not isinstance(transform.size, int):
            return (None,) * len(transform.size)
        if isinstance(transform, RandomWindow | MultiHot | PadTo | Ragged):
            return (None,)
    return None


def _tells_offset(transform: ArrayTransform) -> bool:
    return isinstance(transform, ArrayCut) and bool(transform.offset)


def _check_offset(
    transform: ArrayTransform, position: int, before: Sequence[ArrayTransform], shape: Shape | None
) -> None:
    """Raise ConfigError if a transform is to deliver its offset in arrays of this shape, and cannot."""
    if not _tells_offset(transform):
        return
    what = f"transform {position}: {type(transform).__name__} with offset=True"
    if any(map(_tells_offset, before)):
        raise ConfigError(f"{what}: a transform before it has offset=True, and a field has one offset")
    if (moved := next((each for each in before if not isinstance(each, ArrayCut)), None)) is not None:
        raise ConfigError(
            f"{what} must come before {type(moved).__name__}, behind which places are not those of the stored values"
        )
    if shape is None:
        raise ConfigError(f"{what} needs the number of axes: give the field a shape, or size a length for each axis")


def _result(transform: ArrayTransform, shape: Shape, collation: Collation | None) -> Shape:
    if isinstance(transform, RandomWindow):
        return transform.out_shape(shape, keeps_shorter=collation is not None)
    return transform.out_shape(shape)


def _moved_axes(transforms: Sequence[ArrayTransform], shape: Shape | None) -> dict[int, str]:
    """Return the axes of arrays along which transforms move values at random, and the names of these transforms."""
    moved: dict[int, str] = {}
    for transform in transforms:
        axes: Sequence[int] = ()
        match transform:
            case RandomSpatialCrop(size=size):
                axes = range(1 - len(shape or ()) if isinstance(size, int) else -len(size), 0)
            case RandomWindow():
                axes = (-len(shape or ()),)
            case RandomAxisFlip(axes=tuple(flipped)) | RandomRotate90(axes=flipped):
                axes = flipped
        moved |= dict.fromkeys(axes, type(transform).__name__)
    return moved


def _moved_shapes(shapes: Shapes, move: Move) -> Shapes:
    """Return the shapes of arrays once a move was carried out."""
    match move:
        case ArrayCrop(size=size):
            shapes = shapes.copy()
            shapes[:, -len(size) :] = size
        case ArrayMultiHot(count=count):
            shapes = np.full((len(shapes), 1), count, np.int64)
        case ArraySqueeze():
            shapes = shapes[:, 1:]
        case ArrayWindow(begins=begins, ends=ends):
            shapes = np.broadcast_to(shapes, (len(begins), shapes.shape[1])).copy()
            shapes[:, 0] = ends - begins
    return shapes


_BFLOAT16_MAX = 3.3895313892515355e38


def check_held(what: str, numbers: float | NDArray[Any], dtype: np.dtype[Any] | str) -> None:
    """Raise ConfigError for numbers that this dtype doesn't hold: floats round them, infinities and NaN are theirs."""
    kind = np.dtype("float32" if dtype == "bfloat16" else dtype)
    for value in np.ravel(numbers).tolist():
        if kind.kind in "biu":
            least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
            held = least <= value <= most and value == int(value)
        else:
            largest = _BFLOAT16_MAX if dtype == "bfloat16" else float(np.finfo(kind).max)
            held = not largest < abs(value) < math.inf
        if not held:
            raise ConfigError(f"{what} must be one that {dtype} holds, got {value!r}")


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
