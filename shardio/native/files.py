"""Whole files, many in one call, without the GIL: `files.c`. Only where `library()` is."""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import library

_local = threading.local()


def read_files(paths: Sequence[bytes], sizes: NDArray[np.int64]) -> list[memoryview | None]:
    """The content of each file, in memory that this thread's next call uses again.

    None for a file that cannot be read, or has not `sizes[i]` bytes.
    """
    rooms, got = sizes + 1, np.empty(len(paths), np.int64)
    ends = np.cumsum(rooms)
    memory = _memory(int(ends[-1]))
    call: Any = getattr(library(), "shardio_read_files")  # noqa: B009  mypy knows that there may be none
    pointers = (ctypes.c_char_p * len(paths))(*paths)
    call(ctypes.c_int64(len(paths)), pointers, *(ctypes.c_void_p(a.ctypes.data) for a in (rooms, memory, got)))
    data = memory.data
    return [
        data[end - size - 1 : end - 1] if found == size else None
        for end, size, found in zip(ends.tolist(), sizes.tolist(), got.tolist(), strict=True)
    ]


def _memory(size: int) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] | None = getattr(_local, "memory", None)
    if found is None or len(found) < size:
        found = _local.memory = np.empty(size, np.uint8)
    return found
