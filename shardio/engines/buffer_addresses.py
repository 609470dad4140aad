"""Addresses and lengths of encoded values in memory, as compiled code takes them."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..containers.row_locator import PackedValues
from ..system.types import Buffer


def buffer_addresses(encoded: Sequence[Buffer]) -> tuple[int, NDArray[np.int64], object]:
    """Return a pointer to the values' addresses, their lengths in bytes, int64 [n], and an object that owns the memory.

    Hold on to the lengths and the owner until the compiled code has returned.
    """
    if isinstance(encoded, PackedValues):
        starts = encoded.offsets + encoded.data.ctypes.data
        return starts.ctypes.data, np.ascontiguousarray(encoded.sizes), (starts, encoded)
    values = [value if isinstance(value, bytes) else bytes(value) for value in encoded]
    pointers = (ctypes.c_char_p * len(values))(*values)
    return ctypes.addressof(pointers), np.fromiter(map(len, values), np.int64, len(values)), (pointers, values)
