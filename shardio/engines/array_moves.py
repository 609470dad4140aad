"""Moves of arrays carried out: by NumPy on the host, as views up to one final copy, or by torch on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..transforms.arrays import ArrayCrop, ArrayFlip, ArrayRotate90, Move


def apply_moves(arrays: NDArray[Any], moves: Sequence[Move], out: NDArray[Any]) -> None:
    """Carry out moves on arrays [B, *shape]; write the results to `out` [B, *out_shape], copying each value once."""
    for row, array in enumerate(arrays):
        for move in moves:
            match move:
                case ArrayCrop():
                    array = array[_block(move, row)]
                case ArrayFlip():
                    array = np.flip(array, move.axis) if move.mask[row] else array
                case ArrayRotate90():
                    array = np.rot90(array, int(move.quarters[row]), move.axes)
        out[row] = array


def apply_moves_to_tensor(arrays: torch.Tensor, moves: Sequence[Move], out_shape: tuple[int, ...]) -> torch.Tensor:
    """Carry out moves on a tensor [B, *shape] on its device; return a new one, [B, *out_shape]."""
    out = arrays.new_empty((len(arrays), *out_shape))
    for row, array in enumerate(arrays):
        for move in moves:
            match move:
                case ArrayCrop():
                    array = array[_block(move, row)]
                case ArrayFlip():
                    array = array.flip(move.axis) if move.mask[row] else array
                case ArrayRotate90():
                    quarters = int(move.quarters[row])
                    array = torch.rot90(array, quarters, move.axes) if quarters else array
        out[row] = array
    return out


def _block(crop: ArrayCrop, row: int) -> Any:
    return (..., *(slice(low, low + size) for low, size in zip(crop.corners[row].tolist(), crop.size, strict=True)))
