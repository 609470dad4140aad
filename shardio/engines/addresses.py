"""Where stored values stand in memory, for compiled code."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..containers.row_locator import PackedValues
from ..system.types import Buffer


def addresses_of(encoded: Sequence[Buffer]) -> tuple[int, NDArray[np.int64], object]:
    """Where the addresses of some values stand, their sizes, and what to hold on to until both have been used."""
    if isinstance(encoded, PackedValues):
        starts = encoded.offsets + encoded.data.ctypes.data
        return starts.ctypes.data, np.ascontiguousarray(encoded.sizes), (starts, encoded)
    values = [value if isinstance(value, bytes) else bytes(value) for value in encoded]
    pointers = (ctypes.c_char_p * len(values))(*values)
    return ctypes.addressof(pointers), np.fromiter(map(len, values), np.int64, len(values)), (pointers, values)
