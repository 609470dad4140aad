"""Many whole files read in one call, without the GIL (`files.c`)."""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import library

_local = threading.local()


def read_files(paths: Sequence[bytes], sizes: NDArray[np.int64]) -> list[memoryview | None]:
    """Read many files.

    Args:
        paths: the files' paths, encoded for the file system.
        sizes: the expected size of each file in bytes, int64 [n].

    Returns the content of each file, valid until this thread's next call, which reuses the memory. It is None for a
    file that cannot be read or does not have the expected size.
    """
    rooms, got = sizes + 1, np.empty(len(paths), np.int64)  # a byte more, to notice files that are too large
    ends = np.cumsum(rooms)
    memory = _memory(int(ends[-1]))
    call: Any = getattr(library(), "shardio_read_files")  # noqa: B009  the library may be None to mypy
    pointers = (ctypes.c_char_p * len(paths))(*paths)
    call(ctypes.c_int64(len(paths)), pointers, *(ctypes.c_void_p(a.ctypes.data) for a in (rooms, memory, got)))
    data = memory.data
    return [
        data[end - size - 1 : end - 1] if read == size else None
        for end, size, read in zip(ends.tolist(), sizes.tolist(), got.tolist(), strict=True)
    ]


def _memory(size: int) -> NDArray[np.uint8]:
    memory: NDArray[np.uint8] | None = getattr(_local, "memory", None)
    if memory is None or len(memory) < size:
        memory = _local.memory = np.empty(size, np.uint8)
    return memory
