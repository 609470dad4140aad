"""Transforms of arrays carried out: by NumPy on the host, as views up to one final copy, or by torch on a device.

Both give the same values: each operation is rounded to float32, and the result to the delivered dtype.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..transforms.array_recipe import ArrayConversion, ArrayRecipe
from ..transforms.arrays import ArrayCrop, ArrayFlip, ArrayRotate90, ArrayWindow, Move
from .output_format import numpy_dtype
from .torch_steps import to_device

_VALUES_AT_ONCE = 1 << 16
"""Values that are converted in one go where nothing moves them: they stay in a processor's cache between operations."""

_MOST_OF_ONE_THREAD = 1 << 15
"""Values up to which torch works on the thread that calls it. Workers are threads enough."""

_SAFE = {"float32": 1e38, "bfloat16": 1e38, "float16": 6e4}
"""Magnitudes well below the largest of each dtype, whatever is rounded."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""The dtypes as which torch moves those of which it cannot reverse an axis."""


def delivered_dtype(recipe: ArrayRecipe, stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the arrays in memory; uint16 for the bits of bfloat16."""
    return stored if recipe.conversion is None else numpy_dtype(recipe.conversion.dtype)


def as_delivered(arrays: NDArray[Any], recipe: ArrayRecipe) -> torch.Tensor:
    """Return a view of arrays of `delivered_dtype` as the tensor to deliver."""
    tensor = torch.from_numpy(arrays)
    is_bits = recipe.conversion is not None and recipe.conversion.dtype == "bfloat16"
    return tensor.view(torch.bfloat16) if is_bits else tensor


def transform_arrays(arrays: NDArray[Any], recipe: ArrayRecipe, moves: Sequence[Move], out: NDArray[Any]) -> None:
    """Carry out a recipe on arrays [B, *shape], with moves drawn for them; copy each value once.

    Write the results to `out`, [B, *out_shape] of `delivered_dtype`; without moves it may be `arrays` itself.
    """
    rows = 1 if moves else max(1, _VALUES_AT_ONCE // max(1, math.prod(arrays.shape[1:])))
    scratch = _scratch(recipe, (rows, *out.shape[1:]))
    with np.errstate(all="ignore"):  # as torch: what a dtype cannot hold is infinite
        for start in range(0, len(arrays), rows):
            moved = arrays[start : start + rows] if not moves else _moved(arrays[start], moves, start)[None]
            _write(moved, recipe, out[start : start + rows], scratch)


def transform_each(
    arrays: Sequence[NDArray[Any]],
    recipe: ArrayRecipe,
    moves: Sequence[Move],
    out: Sequence[NDArray[Any]] | None = None,
) -> list[NDArray[Any]]:
    """Carry out a recipe on arrays of several shapes, with moves drawn for them; copy each value at most once.

    Return the results, of `delivered_dtype`: those of `out` if it is given, else new arrays, or views of the arrays.
    """
    results = []
    with np.errstate(all="ignore"):
        for row, array in enumerate(arrays):
            moved = _moved(array, moves, row)
            # NumPy calls an array that is reversed along an axis of one entry contiguous; PyTorch takes none of these.
            plain = moved.flags.c_contiguous and min(moved.strides, default=0) >= 0
            if out is None and recipe.conversion is None and plain:
                results.append(moved)
                continue
            result = np.empty(moved.shape, delivered_dtype(recipe, moved.dtype)) if out is None else out[row]
            _write(moved[None], recipe, result[None], _scratch(recipe, (1, *result.shape)))
            results.append(result)
    return results


def _scratch(recipe: ArrayRecipe, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    rounds = recipe.conversion is not None and recipe.conversion.dtype in ("float16", "bfloat16")
    return np.empty(shape, np.float32) if rounds else None


def _write(moved: NDArray[Any], recipe: ArrayRecipe, out: NDArray[Any], scratch: NDArray[np.float32] | None) -> None:
    if recipe.conversion is None:
        out[...] = moved
    else:
        _convert(moved, recipe.conversion, out, scratch)


def first_overflow(
    arrays: NDArray[Any] | Sequence[NDArray[Any]], recipe: ArrayRecipe, moves: Sequence[Move]
) -> tuple[int, Any] | None:
    """Return the row and the value of a finite number that the conversion cannot hold; None if there is none.

    Only numbers that the moves keep count. Arrays whose smallest and largest numbers fit cost one look at each.
    """
    conversion = recipe.conversion
    if conversion is None or not any(
        _may_overflow(part, conversion) for part in ([arrays] if isinstance(arrays, np.ndarray) else arrays)
    ):
        return None
    for row, array in enumerate(arrays):
        moved = _moved(array, moves, row)
        if (lost := np.isfinite(moved) & _overflows(moved[None], conversion)[0]).any():
            return row, moved[lost][0]
    return None


def _may_overflow(values: NDArray[Any], conversion: ArrayConversion) -> bool:
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
    axes = 0 if conversion.moments is None else np.ndim(conversion.moments[0])
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
    shape = (
        values.shape if conversion.moments is None else np.broadcast_shapes(values.shape, conversion.moments[0].shape)
    )
    out, scratch = np.empty(shape, numpy_dtype(conversion.dtype)), np.empty(shape, np.float32)
    with np.errstate(all="ignore"):
        _convert(values, conversion, out, None if conversion.dtype == "float32" else scratch)
    delivered = torch.from_numpy(out)
    infinite: NDArray[np.bool_] = (
        (delivered.view(torch.bfloat16) if conversion.dtype == "bfloat16" else delivered).isinf().numpy()
    )
    return infinite


def _moved(array: NDArray[Any], moves: Sequence[Move], row: int) -> NDArray[Any]:
    """Return a view of an array, moved as the moves of this row of the batch say."""
    for move in moves:
        match move:
            case ArrayCrop():
                array = array[_block(move, row)]
            case ArrayWindow():
                array = array[_window(move, row)]
            case ArrayFlip():
                array = np.flip(array, move.axis) if move.mask[row] else array
            case ArrayRotate90():
                array = np.rot90(array, int(move.quarters[row]), move.axes)
    return array


def _convert(
    values: NDArray[Any], conversion: ArrayConversion, out: NDArray[Any], scratch: NDArray[np.float32] | None
) -> None:
    """Write converted values to `out`; `scratch` holds float32 of as many rows where `out` does not."""
    floats = out if scratch is None else scratch[: len(out)]  # whole numbers, for int64
    if conversion.moments is None:
        floats[...] = values
    else:
        mean, std = conversion.moments
        np.subtract(values, mean, out=floats, dtype=np.float32, casting="unsafe")
        np.divide(floats, std, out=floats)
    if scratch is not None:  # torch rounds ten times as fast as NumPy, which has no bfloat16 either
        source = torch.from_numpy(floats).reshape(-1)
        target = torch.from_numpy(out.reshape(-1)).view(getattr(torch, conversion.dtype))
        for start in range(0, len(target), _MOST_OF_ONE_THREAD):
            stop = start + _MOST_OF_ONE_THREAD
            target[start:stop] = source[start:stop]


def transform_tensor(arrays: torch.Tensor, recipe: ArrayRecipe, moves: Sequence[Move]) -> torch.Tensor:
    """Carry out a recipe on a tensor [B, *shape] on its device, with moves drawn for it; return [B, *out_shape].

    The result is a new tensor, or `arrays` itself if nothing changes it.
    """
    values = _moved_tensor(arrays, recipe.out_size or (), moves) if moves else arrays
    if (conversion := recipe.conversion) is None:
        return values
    if conversion.dtype == "int64":
        return values.to(torch.int64)
    values = values.to(torch.float32)
    if conversion.moments is not None:
        mean, std = (to_device(numbers, values.device) for numbers in conversion.moments)
        values = (values - mean).div_(std)
    return values.to(getattr(torch, conversion.dtype))


def _moved_tensor(arrays: torch.Tensor, out_shape: tuple[int, ...], moves: Sequence[Move]) -> torch.Tensor:
    arrays, dtype = arrays.view(_SIGNED.get(arrays.dtype, arrays.dtype)), arrays.dtype
    out = arrays.new_empty((len(arrays), *out_shape))
    for row, array in enumerate(arrays):
        for move in moves:
            match move:
                case ArrayCrop():
                    array = array[_block(move, row)]
                case ArrayWindow():
                    array = array[_window(move, row)]
                case ArrayFlip():
                    array = array.flip(move.axis) if move.mask[row] else array
                case ArrayRotate90():
                    quarters = int(move.quarters[row])
                    array = torch.rot90(array, quarters, move.axes) if quarters else array
        out[row] = array
    return out.view(dtype)


def _block(crop: ArrayCrop, row: int) -> Any:
    return (..., *(slice(low, low + size) for low, size in zip(crop.corners[row].tolist(), crop.size, strict=True)))


def _window(window: ArrayWindow, row: int) -> Any:
    return (..., slice(int(window.begins[row]), int(window.ends[row])), *(slice(None) for _ in range(-1 - window.axis)))
