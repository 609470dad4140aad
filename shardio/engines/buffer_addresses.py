"""Addresses and lengths of encoded values in memory, as compiled code takes them."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..containers.packed_values import PackedValues
from ..system.types import Buffer


def buffer_addresses(
    encoded: Sequence[Buffer] | Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
) -> tuple[int, NDArray[np.int64], object]:
    """Return a pointer to the values' addresses, their lengths in bytes, int64 [n], and an object that owns the memory.

    Hold on to the lengths and the owner until the compiled code has returned.
    """
    if isinstance(encoded, PackedValues):
        starts = encoded.offsets + encoded.data.ctypes.data
        return starts.ctypes.data, np.ascontiguousarray(encoded.sizes), (starts, encoded)
    if isinstance(encoded, np.ndarray):  # rows of one size
        rows = np.ascontiguousarray(encoded)
        size = rows.nbytes // max(1, len(rows))
        starts = rows.ctypes.data + size * np.arange(len(rows))
        return starts.ctypes.data, np.full(len(rows), size, np.int64), (starts, rows)
    if len(encoded) and isinstance(encoded[0], np.ndarray):
        arrays = [np.ascontiguousarray(value, np.uint8) for value in encoded]
        places = np.array([array.ctypes.data for array in arrays], np.uint64)
        return places.ctypes.data, np.array([array.nbytes for array in arrays], np.int64), (places, arrays)
    values = [value if isinstance(value, bytes) else bytes(value) for value in encoded]
    pointers = (ctypes.c_char_p * len(values))(*values)
    return ctypes.addressof(pointers), np.fromiter(map(len, values), np.int64, len(values)), (pointers, values)
