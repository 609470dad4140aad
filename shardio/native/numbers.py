"""Numbers of arrays converted to floats, normalized and filled in one pass, without the GIL: `numbers.c`."""

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import library

_KINDS = ("float32", "float64", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
Steps: TypeAlias = tuple[int, ...]
_FLOATS = ("float32", "bfloat16", "float16")
_MOST_AXES = 32
LEAST = 4096
"""Values of each layout, on average, from which on a call is worth its while; NumPy is faster with fewer."""

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


def convert(
    values: Sequence[NDArray[Any]],
    numbers: Sequence[NDArray[np.float32]],
    codes: NDArray[Any] | None,
    dtype: str,
    out: Sequence[NDArray[Any]],
    missing: Sequence[NDArray[np.bool_]] | None,
) -> bool:
    """Write `(x - mean) / std` of the values of arrays to `out`, each operation rounded; fill those that are missing.

    Args:
        values: arrays of any layout and one dtype; an array of `out` may be the same one.
        numbers: mean, standard deviation, and what replaces missing values; each broadcasts over the values.
        codes: the numbers, of the values' dtype, that stand for no value as NaN does; None fills nothing.
        dtype: the type that results are rounded to: float32, float16, or bfloat16, whose bits are uint16.
        out: for each array one of the same shape, C-contiguous.
        missing: for each array, which values were missing, of the same shape and C-contiguous; None if nobody asks.

    Returns False, and does nothing, if it does not take such values, or there are few, or there is no compiled part.
    """
    compiled, dtype_name = library(), values[0].dtype.name if len(values) else _KINDS[0]
    if compiled is None or dtype_name not in _KINDS or not all(map(_is_plain, values)):
        return False
    if not all(array.flags.c_contiguous for array in out):
        return False
    kind, rounding, coded = _KINDS.index(dtype_name), _FLOATS.index(dtype), 0 if codes is None else codes.size
    listed = None if codes is None else _POINTER(codes.ctypes.data)
    at = _addresses(numbers, range(3))
    layouts: dict[tuple[Steps, Steps], list[int]] = defaultdict(list)
    for place, array in enumerate(values):
        layouts[array.shape, array.strides].append(place)
    if sum(array.size for array in values) < LEAST * len(layouts):
        return False
    for (shape, strides), places in layouts.items():
        axes = _merged(shape, [strides, *(_steps(each, len(shape)) for each in numbers)])
        sizes = (_LONG * len(axes))(*(size for size, _ in axes))
        steps = (_LONG * (4 * len(axes)))(
            *(step for row in zip(*(steps for _, steps in axes), strict=True) for step in row)
        )
        read, written, told = (_addresses(arrays, places) for arrays in (values, out, missing))
        compiled.shardio_convert_numbers(
            *(_LONG(kind), _LONG(len(axes)), sizes, steps, _LONG(len(places)), read, at, listed, _LONG(coded)),
            *(_LONG(codes is not None), _LONG(rounding), written, told),
        )
    return True


def _addresses(arrays: Sequence[NDArray[Any]] | None, places: Sequence[int]) -> Any:
    if arrays is None:
        return None
    return (_POINTER * len(places))(*(arrays[place].__array_interface__["data"][0] for place in places))


def _is_plain(array: NDArray[Any]) -> bool:
    return array.dtype.isnative and array.flags.aligned and 0 < array.ndim <= _MOST_AXES


def _steps(numbers: NDArray[np.float32], axes: int) -> Steps:
    """Return the distance between numbers along each axis of arrays over which they broadcast, in entries."""
    steps = (0 if size == 1 else step // 4 for size, step in zip(numbers.shape, numbers.strides, strict=True))
    return (*(0 for _ in range(axes - numbers.ndim)), *steps)


def _merged(shape: Steps, steps: Sequence[Steps]) -> list[tuple[int, Steps]]:
    """Return the size and the steps of each axis; neighbours that one step goes through become one longer axis."""
    axes: list[tuple[int, Steps]] = []
    for size, *each in zip(shape, *steps, strict=True):
        if axes and axes[-1][0] == 1:
            axes[-1] = size, tuple(each)
        elif axes and axes[-1][1] == tuple(step * size for step in each):
            axes[-1] = axes[-1][0] * size, tuple(each)
        else:
            axes.append((size, tuple(each)))
    return axes
