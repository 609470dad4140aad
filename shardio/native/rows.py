"""Many rows in one call, without the GIL: `rows.c`, `lmdb.c` and `permute.c`. Only where `library()` is."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import library

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@cache
def _function(name: str, *arguments: Any, result: Any = None) -> Any:
    found = getattr(library(), name)
    found.argtypes, found.restype = arguments, result
    return found


class Gone(Exception):
    """A mapped file has become too short, or its storage failed, while it was read."""


def _all(done: int, count: int) -> bool:
    if done < 0:
        raise Gone
    return done == count


def gather(addresses: NDArray[np.int64], size: int, out: NDArray[Any]) -> None:
    """Copies `size` bytes from each address, int64 [n], to `out`, C-contiguous of n * size bytes. May raise Gone."""
    call = _function("shardio_gather", _LONG, _POINTER, _LONG, _POINTER, result=_LONG)
    _all(call(len(addresses), addresses.ctypes.data, size, out.ctypes.data), len(addresses))


def copy(
    addresses: NDArray[np.int64],
    seen: NDArray[np.int64],
    files: NDArray[np.int32],
    ends: NDArray[np.int64],
    size: int,
    out: NDArray[Any],
) -> bool:
    """As `gather`, for large rows of mapped files; False if any could not be had so. May raise Gone.

    `seen` are addresses of a byte for each row, 0 until it was copied once; `files` descriptors; `ends` the places in
    the files where the rows end.
    """
    call = _function("shardio_copy", _LONG, *[_POINTER] * 4, _LONG, _POINTER, result=_LONG)
    columns = (column.ctypes.data for column in (addresses, seen, files, ends))
    return _all(call(len(addresses), *columns, size, out.ctypes.data), len(addresses))


def read(
    files: NDArray[np.int32],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Reads `sizes[i]` bytes at `offsets[i]` of the descriptor `files[i]` to `out[places[i]:]`; False if any failed."""
    call = _function("shardio_read", _LONG, *[_POINTER] * 5, result=_LONG)
    columns = (column.ctypes.data for column in (files, offsets, sizes, places))
    return bool(call(len(files), *columns, out.ctypes.data) == len(files))


def find_lmdb_values(
    maps: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint8], places: NDArray[np.int64]
) -> bool:
    """Looks up keys, uint8 [n, key bytes], in LMDB files mapped at the addresses `maps`, of `sizes` bytes; fills
    `places`, int64 [n, 2], with offsets and sizes in the files. False if any is not there. May raise Gone."""
    call = _function("shardio_lmdb_find", _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER, result=_LONG)
    columns = maps.ctypes.data, sizes.ctypes.data, keys.ctypes.data
    return _all(call(len(keys), *columns, keys.shape[1], places.ctypes.data), len(keys))


def is_lmdb(mapped: NDArray[np.uint8]) -> bool:
    """Whether a mapped file is an LMDB of the kind that `find` reads, by its head. May raise Gone."""
    call = _function("shardio_lmdb_known", _POINTER, _LONG, result=_LONG)
    return _all(call(mapped.ctypes.data, len(mapped)), 1)


def permute(numbers: NDArray[np.uint64], n: int, widths: tuple[int, int], keys: NDArray[np.uint64]) -> None:
    """Replaces positions by what `Permutation` has there, in place."""
    call = _function("shardio_permute", _LONG, _POINTER, ctypes.c_uint64, _INT, _INT, _INT, _POINTER)
    call(len(numbers), numbers.ctypes.data, n, *widths, len(keys), keys.ctypes.data)
