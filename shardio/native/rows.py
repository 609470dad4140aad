"""Many rows, files, LMDB keys, positions or elements in one call without the GIL.

In C they are in `rows.c`, `files.c`, `lmdb.c`, `permute.c` and `shuffle.c`.
"""

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import library

SMALL, GROUP = 16 << 10, 64 << 10
"""Bytes: of pieces of mapped files that are copied without further ado, and of pages that are mapped together."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_ONE_STEP = np.zeros(1, np.int64)


@cache
def function(name: str, *arguments: Any, result: Any = None) -> Any:
    """Return a compiled function by its name, with the types of its arguments and of its result."""
    found = getattr(library(), name)
    found.argtypes, found.restype = arguments, result
    return found


class MappedFileLost(Exception):
    """A mapped file was cut short, or its storage failed, during a read."""


def _all(done: int, count: int) -> bool:
    if done < 0:
        raise MappedFileLost
    return done == count


def gather(addresses: NDArray[np.int64], size: int, out: NDArray[Any]) -> None:
    """Copy n rows of `size` bytes from memory.

    Args:
        addresses: the address of each row, int64 [n].
        size: bytes per row.
        out: receives the rows, C-contiguous, n * size bytes.

    Raises MappedFileLost if a mapped file is lost.
    """
    call = function("shardio_gather", _LONG, _POINTER, _LONG, _POINTER, result=_LONG)
    _all(call(len(addresses), addresses.ctypes.data, size, out.ctypes.data), len(addresses))


def copy_large_rows(
    addresses: NDArray[np.int64],
    seen: NDArray[np.int64],
    files: NDArray[np.int32],
    ends: NDArray[np.int64],
    size: int,
    out: NDArray[Any],
) -> bool:
    """Copy n large rows of `size` bytes from mapped files, like `gather`.

    Args:
        addresses: the address of each row, int64 [n].
        seen: the address of a flag byte for each row, int64 [n]: 0 until the row is first copied, then 1.
        files: the descriptor of each row's file, int32 [n].
        ends: the offset in its file at which each row ends, int64 [n].
        size: bytes per row.
        out: receives the rows, C-contiguous, n * size bytes.

    Returns False if a row cannot be copied in this way. Raises MappedFileLost if a mapped file is lost.
    """
    call = function("shardio_copy", _LONG, *[_POINTER] * 4, _LONG, _POINTER, result=_LONG)
    columns = (column.ctypes.data for column in (addresses, seen, files, ends))
    return _all(call(len(addresses), *columns, size, out.ctypes.data), len(addresses))


def read(
    file_of: NDArray[np.int64],
    files: NDArray[np.int32],
    maps: NDArray[np.int64],
    most: NDArray[np.int64],
    seen: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
    steps: NDArray[np.int64] | None = None,
) -> bool:
    """Read `sizes[i]` bytes at `offsets[i]` of file number `file_of[i]` into `out[places[i]:]`, for each i.

    Args:
        file_of, offsets, sizes, places: int64 [n].
        files: the descriptor of each file, int32 [files].
        maps: the address at which each file is mapped into memory, int64 [files].
        most: the most bytes that are copied from there in one go, int64 [files]; 0 if it is not mapped.
        seen: the address of a flag byte for each `GROUP` bytes of the file, int64 [files]: 0 until a piece of more than
            `SMALL` bytes is first copied from there.
        out: receives the bytes.
        steps: how far behind `offsets[i]` each of several spans of that size begins, int64 [steps]; they come end to
            end. None for one.

    Returns False if any read fails. Raises MappedFileLost if a mapped file is lost.
    """
    call = function("shardio_read", _LONG, _LONG, *[_POINTER] * 10, result=_LONG)
    steps = _ONE_STEP if steps is None else steps
    columns = (column.ctypes.data for column in (steps, file_of, files, maps, most, seen, offsets, sizes, places, out))
    return _all(call(len(file_of), len(steps), *columns), len(file_of))


def read_ahead(
    file_of: NDArray[np.int64],
    files: NDArray[np.int32],
    seen: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    steps: NDArray[np.int64] | None = None,
) -> None:
    """Ask the kernel to read spans of files ahead, all at once; the arguments are those of `read`.

    Groups that `seen` knows are not asked for again; 0 instead of an address means that all are.
    """
    call = function("shardio_read_ahead", _LONG, _LONG, *[_POINTER] * 6, result=_LONG)
    steps = _ONE_STEP if steps is None else steps
    call(len(file_of), len(steps), *(column.ctypes.data for column in (steps, file_of, files, seen, offsets, sizes)))


def find_lmdb_values(
    maps: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint8], places: NDArray[np.int64]
) -> bool:
    """Look up n keys in memory-mapped LMDB files.

    Args:
        maps: the address at which each key's file is mapped, int64 [n].
        sizes: the size of that file in bytes, int64 [n].
        keys: uint8 [n, key bytes].
        places: receives the offset and the size in bytes of each value in its file, int64 [n, 2].

    Returns False if a key is missing or a file is damaged. Raises MappedFileLost if a mapped file is lost.
    """
    call = function("shardio_lmdb_find", _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER, result=_LONG)
    columns = maps.ctypes.data, sizes.ctypes.data, keys.ctypes.data
    return _all(call(len(keys), *columns, keys.shape[1], places.ctypes.data), len(keys))


def permute(numbers: NDArray[np.uint64], n: int, widths: tuple[int, int], keys: NDArray[np.uint64]) -> None:
    """Replace each position by the number that `Permutation` has there, in place."""
    call = function("shardio_permute", _LONG, _POINTER, ctypes.c_uint64, _INT, _INT, _INT, _POINTER)
    call(len(numbers), numbers.ctypes.data, n, *widths, len(keys), keys.ctypes.data)


def set_bits(numbers: NDArray[np.int64], bits: int, counts: NDArray[np.int64]) -> None:
    """Replace each number k by the place of the k-th set bit, as `index_map.BitMap` does, in place.

    Args:
        numbers: int64 [n].
        bits: the address of 64 bytes per count.
        counts: how many bits are set before each 64 bytes, and in all; int64 [blocks + 1].

    Raises MappedFileLost if a mapped file is lost, or its bits are no longer those that were counted.
    """
    call = function("shardio_set_bits", _LONG, _POINTER, _POINTER, _POINTER, _LONG, result=_LONG)
    if not _all(call(len(numbers), numbers.ctypes.data, bits, counts.ctypes.data, len(counts) - 1), len(numbers)):
        raise MappedFileLost


def unshuffle(width: int, apart: int, joined: int, size: int) -> bool:
    """Join elements whose first bytes are stored first, then their second bytes, and so on.

    Args:
        width: bytes of an element.
        apart: the address of `size` bytes.
        joined: the address of as much memory, which does not overlap them.
        size: bytes, a multiple of `width`.

    Returns False, and does nothing, for a width other than 2, 4 and 8.
    """
    call = function("shardio_unshuffle", _LONG, _LONG, _POINTER, _POINTER, result=_INT)
    return int(call(width, size // width, apart, joined)) == 0


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
    memory: NDArray[np.uint8] | None = getattr(_local, "memory", None)
    if memory is None or len(memory) < ends[-1]:
        memory = _local.memory = np.empty(ends[-1], np.uint8)
    call = function("shardio_read_files", _LONG, *[_POINTER] * 4)
    call(len(paths), (ctypes.c_char_p * len(paths))(*paths), *(a.ctypes.data for a in (rooms, memory, got)))
    data = memory.data
    return [
        data[end - size - 1 : end - 1] if read == size else None
        for end, size, read in zip(ends.tolist(), sizes.tolist(), got.tolist(), strict=True)
    ]


def open_below(folder: int, name: bytes) -> int:
    """Open a file, `a/b/c`, below an open folder for reading, through no symbolic link.

    Returns its descriptor; a negative number if it cannot be opened, or the system cannot do this in one call.
    """
    return int(function("shardio_open_below", _INT, ctypes.c_char_p, result=_INT)(folder, name))
