"""Transforms of arrays carried out: by NumPy on the host, as views up to one final copy, or by torch on a device.

Both give the same values: each operation is rounded to float32, and the result to the delivered dtype.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..native import numbers
from ..transforms.array_recipe import ArrayConversion, ArrayRecipe, Filling
from ..transforms.arrays import ArrayCrop, ArrayFlip, ArrayMultiHot, ArrayRotate90, ArraySqueeze, ArrayWindow, Move
from .output_format import as_tensor, numpy_dtype
from .torch_steps import to_device

_VALUES_AT_ONCE = 1 << 16
"""Values that are converted in one go where nothing moves them: they stay in a processor's cache between operations."""

_IDENTITY = np.zeros((), np.float32), np.ones((), np.float32)

_MOST_OF_ONE_THREAD = 1 << 15
"""Values up to which torch works on the thread that calls it. Workers are threads enough."""

_SAFE = {"float32": 1e38, "bfloat16": 1e38, "float16": 6e4}
"""Magnitudes well below the largest of each dtype, whatever is rounded."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtypes that torch cannot reverse along an axis, and the dtype to view each as."""


def delivered_dtype(recipe: ArrayRecipe, stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the arrays in memory; uint16 for the bits of bfloat16."""
    return stored if recipe.conversion is None else numpy_dtype(recipe.conversion.dtype)


def as_delivered(arrays: NDArray[Any], recipe: ArrayRecipe) -> torch.Tensor:
    """Return a view of arrays of `delivered_dtype` as the tensor to deliver."""
    return as_tensor(arrays, "" if recipe.conversion is None else recipe.conversion.dtype)


def transform_arrays(
    arrays: NDArray[Any],
    recipe: ArrayRecipe,
    moves: Sequence[Move],
    out: NDArray[Any],
    missing: NDArray[np.bool_] | None = None,
) -> None:
    """Carry out a recipe on arrays [B, *shape], with moves drawn for them; copy each value once.

    Write the results to `out`, [B, *out_shape] of `delivered_dtype`; without moves it may be `arrays` itself. If
    `missing` is given, of the same shape, write there which values the recipe filled.
    """
    if moves:
        transform_each([*arrays], recipe, moves, _views(out), None if missing is None else _views(missing))
        return
    if _converted_in_one_pass([arrays], recipe, [out], None if missing is None else [missing]):
        return
    rows = max(1, _VALUES_AT_ONCE // max(1, math.prod(arrays.shape[1:])))
    with np.errstate(all="ignore"):  # as torch: what a dtype cannot hold is infinite
        for start in range(0, len(arrays), rows):
            part = slice(start, start + rows)
            _write(arrays[part], recipe, out[part], None if missing is None else missing[part])


def transform_each(
    arrays: Sequence[NDArray[Any]],
    recipe: ArrayRecipe,
    moves: Sequence[Move],
    out: Sequence[NDArray[Any]] | None = None,
    missing: Sequence[NDArray[np.bool_]] | None = None,
) -> tuple[list[NDArray[Any]], list[NDArray[np.bool_]]]:
    """Carry out a recipe on arrays of several shapes, with moves drawn for them; copy each value at most once.

    Return the results, of `delivered_dtype`, and which of their values the recipe filled, [] if it fills none: new
    arrays, or views of the arrays given. If `out` is given, the results are its arrays, and those of `missing`.
    """
    moved = [_moved(array, moves, row, np) for row, array in enumerate(arrays)]
    if out is None and recipe.conversion is None and recipe.filling is None:
        return [array if _is_plain(array) else array.copy("C") for array in moved], []
    results = [np.empty(a.shape, delivered_dtype(recipe, a.dtype)) for a in moved] if out is None else [*out]
    new_marks = out is None and recipe.filling is not None
    filled = [np.empty(a.shape, np.bool_) for a in moved] if new_marks else [*(missing or ())]
    if not _converted_in_one_pass(moved, recipe, results, filled or None):
        with np.errstate(all="ignore"):
            for row, (array, result) in enumerate(zip(moved, results, strict=True)):
                _write(array[None], recipe, result[None], filled[row][None] if filled else None)
    return results, filled


def _views(arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Return a view of each array, also where each is one number."""
    return [arrays[row, ...] for row in range(len(arrays))]


def _is_plain(array: NDArray[Any]) -> bool:
    """Return whether PyTorch takes an array as it is.

    NumPy calls an array that is reversed along an axis of one entry contiguous; PyTorch takes none of these.
    """
    return array.flags.c_contiguous and min(array.strides, default=0) >= 0


def _write(moved: NDArray[Any], recipe: ArrayRecipe, out: NDArray[Any], marks: NDArray[np.bool_] | None) -> None:
    """Write converted and filled values to `out`, and to `marks`, if it is given, which were filled."""
    conversion, filling = recipe.conversion, recipe.filling
    rounds = conversion is not None and conversion.dtype in ("float16", "bfloat16")
    floats = np.empty(out.shape, np.float32) if rounds else out  # integers, or as stored, where nothing converts
    missing = None if filling is None else _missing(moved, filling, marks)
    _convert(moved, conversion, floats)
    if filling is not None and missing is not None and missing.any():
        np.copyto(floats, filling.fill, where=missing)
    if rounds and conversion is not None:
        _round(floats, conversion, out)


def _converted_in_one_pass(
    moved: Sequence[NDArray[Any]],
    recipe: ArrayRecipe,
    out: Sequence[NDArray[Any]],
    missing: Sequence[NDArray[np.bool_]] | None,
) -> bool:
    """Write the results of a recipe that converts to floats, as `_write` does; False if the compiled part does not."""
    conversion, filling = recipe.conversion, recipe.filling
    if conversion is None or conversion.dtype == "int64":
        return False
    mean, std = conversion.moments or _IDENTITY
    fill, codes = (mean, None) if filling is None else (filling.fill, filling.missing)
    return numbers.convert(moved, (mean, std, fill), codes, conversion.dtype, out, missing)


def _missing(values: NDArray[Any], filling: Filling, out: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Return which values are missing, in `out` if it is given."""
    found: NDArray[np.bool_] = np.isnan(values, out=out)
    for number in filling.missing:
        found |= values == number
    return found


def first_overflow(
    arrays: NDArray[Any] | Sequence[NDArray[Any]], recipe: ArrayRecipe, moves: Sequence[Move]
) -> tuple[int, Any] | None:
    """Return the row and the value of a finite number that the conversion cannot hold; None if there is none.

    Only numbers that the moves keep count. Arrays whose smallest and largest numbers fit cost one look at each.
    """
    conversion, filling = recipe.conversion, recipe.filling
    if conversion is None or not any(
        _may_overflow(part, conversion, filling) for part in ([arrays] if isinstance(arrays, np.ndarray) else arrays)
    ):
        return None
    for row, array in enumerate(arrays):
        moved = _moved(array, moves, row, np)
        lost = np.isfinite(moved) & _overflows(moved[None], conversion)[0]
        for number in () if filling is None else filling.missing:
            lost &= moved != number
        if lost.any():
            return row, moved[lost][0]
    return None


def _may_overflow(values: NDArray[Any], conversion: ArrayConversion, filling: Filling | None) -> bool:
    """Return whether the conversion may not hold some of these numbers, or those between them."""
    if not values.size:
        return False
    if values.dtype.kind in "biu" and conversion.dtype not in ("float16", "int64") and conversion.moments is None:
        return False
    if conversion.dtype == "int64" and values.dtype != np.uint64:
        return False
    with np.errstate(all="ignore"):  # NaN is no end
        ends = np.array([end.reduce(values, axis=None) for end in (np.fmin, np.fmax)])
    if conversion.dtype != "int64" and _far_within(ends, conversion):
        return False
    if filling is not None and len(filling.missing):  # which may be as large as 1e36, and does not count
        kept = np.ones(values.shape, np.bool_)
        for number in filling.missing:
            kept &= values != number
        return _may_overflow(values[kept], conversion, None)
    axes = 0 if conversion.moments is None else max(map(np.ndim, conversion.moments))
    return bool(_overflows(ends.reshape(2, *(1 for _ in range(axes))), conversion).any())


def _far_within(ends: NDArray[Any], conversion: ArrayConversion) -> bool:
    """Return whether the smallest and the largest number are so small that none between them can overflow."""
    magnitude, divisor = max(map(abs, ends.tolist())), 1.0
    if conversion.moments is not None:
        mean, std = conversion.moments
        magnitude, divisor = magnitude + float(np.abs(mean).max()), float(std.min())
    return bool(magnitude <= _SAFE["float32"] and magnitude / divisor <= _SAFE[conversion.dtype])


def _overflows(values: NDArray[Any], conversion: ArrayConversion) -> NDArray[np.bool_]:
    """Return which of these values, [B, *shape], the conversion makes infinite, or int64 cannot hold."""
    if conversion.dtype == "int64":
        beyond: NDArray[np.bool_] = values > np.iinfo(np.int64).max
        return beyond
    shape = np.broadcast_shapes(
        values.shape, *(() if conversion.moments is None else map(np.shape, conversion.moments))
    )
    floats, out = np.empty(shape, np.float32), np.empty(shape, numpy_dtype(conversion.dtype))
    with np.errstate(all="ignore"):
        _convert(values, conversion, floats)
        _round(floats, conversion, out)
    infinite: NDArray[np.bool_] = as_tensor(out, conversion.dtype).isinf().numpy()
    return infinite


def _moved(array: Any, moves: Sequence[Move], row: int, library: Any) -> Any:
    """Return a view of an array or tensor, moved as the moves of this row say; `library` is numpy or torch."""
    for move in moves:
        match move:
            case ArrayCrop():
                array = array[_block(move, row)]
            case ArrayWindow():
                array = array[_window(move, row)]
            case ArraySqueeze():
                array = array.squeeze(move.axis)
            case ArrayFlip():
                array = library.flip(array, (move.axis,)) if move.mask[row] else array
            case ArrayRotate90():
                quarters = int(move.quarters[row])
                array = library.rot90(array, quarters, move.axes) if quarters else array
            case ArrayMultiHot():
                marks = library.zeros(move.count, dtype=array.dtype)
                marks[array] = 1
                array = marks
    return array


def _convert(values: NDArray[Any], conversion: ArrayConversion | None, out: NDArray[Any]) -> None:
    """Write values to `out`, of float32 where they are converted to floats."""
    if conversion is None or conversion.moments is None:
        out[...] = values
    else:
        mean, std = conversion.moments
        np.subtract(values, mean, out=out, dtype=np.float32, casting="unsafe")
        np.divide(out, std, out=out)


def _round(floats: NDArray[np.float32], conversion: ArrayConversion, out: NDArray[Any]) -> None:
    """Round to the dtype of the conversion; torch does ten times as fast as NumPy, which has no bfloat16 either."""
    source = torch.from_numpy(floats).reshape(-1)
    target = torch.from_numpy(out.reshape(-1)).view(getattr(torch, conversion.dtype))
    for start in range(0, len(target), _MOST_OF_ONE_THREAD):
        stop = start + _MOST_OF_ONE_THREAD
        target[start:stop] = source[start:stop]


def transform_and_mark(
    arrays: torch.Tensor, recipe: ArrayRecipe, moves: Sequence[Move]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Carry out a recipe on a tensor [B, *shape] on its device, with moves drawn for it.

    Return the result [B, *out_shape], a new tensor, or `arrays` itself if nothing changes it; and which values the
    recipe filled, None if it fills none.
    """
    values = _moved_tensor(arrays, recipe.out_size or (), moves) if moves else arrays
    conversion, filling = recipe.conversion, recipe.filling
    missing = None if filling is None else _missing_in(values, filling)
    if conversion is not None:
        values = values.to(torch.int64 if conversion.dtype == "int64" else torch.float32)
        if conversion.moments is not None:
            mean, std = (to_device(numbers, values.device) for numbers in conversion.moments)
            values = (values - mean).div_(std)
    if filling is not None and missing is not None:
        signed, fill = values.view(_SIGNED.get(values.dtype, values.dtype)), to_device(filling.fill, values.device)
        values = torch.where(missing, fill.view(signed.dtype), signed).view(values.dtype)
    return values if conversion is None else values.to(getattr(torch, conversion.dtype)), missing


def _missing_in(values: torch.Tensor, filling: Filling) -> torch.Tensor:
    signed = values.view(_SIGNED.get(values.dtype, values.dtype))
    missing = signed.isnan()
    for number in to_device(filling.missing, values.device).view(signed.dtype):
        missing |= signed == number
    return missing


def _moved_tensor(arrays: torch.Tensor, out_shape: tuple[int, ...], moves: Sequence[Move]) -> torch.Tensor:
    arrays, dtype = arrays.view(_SIGNED.get(arrays.dtype, arrays.dtype)), arrays.dtype
    out = arrays.new_empty((len(arrays), *out_shape))
    for row, array in enumerate(arrays):
        out[row] = _moved(array, moves, row, torch)
    return out.view(dtype)


def _block(crop: ArrayCrop, row: int) -> Any:
    return (..., *(slice(low, low + size) for low, size in zip(crop.corners[row].tolist(), crop.size, strict=True)))


def _window(window: ArrayWindow, row: int) -> Any:
    return (..., slice(int(window.begins[row]), int(window.ends[row])), *(slice(None) for _ in range(-1 - window.axis)))
