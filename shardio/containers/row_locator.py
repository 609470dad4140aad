"""Where a field's rows are, so that many rows of many shards are read in one call of compiled code."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from ..native import rows as native
from ..system.types import Rows

MAPPED_ROW = 4096
"""Rows up to this size are copied from a memory map; for larger ones a system call costs less than the page faults."""


@final
@dataclass(frozen=True, slots=True)
class RowLocator:
    """Where the rows of one field of one shard are.

    Attributes:
        kind: what is found at `address + row * stride`. `"rows"`: the row itself. `"places"`: its offset and size in
            the file, two int64. `"ends"`: where it begins and ends, two int64, counted from `base` in the file.
            `"file"`: the row itself, which is large, and at `base + row * stride` in the file. `"keys"`: `address` is
            an LMDB file in memory, and the row's key `base + row`, big-endian uint64, and `key`.
        stride: bytes.
        address: in memory; 0 for `"file"` where the file is not mapped.
        file: descriptor of the file; -1 for `"rows"`.
        base: bytes.
        limit: the byte of the file that no row reaches.
        seen: address of a byte for each row of a mapped `"file"`, 1 once its pages are mapped.
        key: for `"keys"`.
        owner: what keeps the memory where it is and the file open.
    """

    kind: Literal["rows", "places", "ends", "file", "keys"]
    stride: int
    address: int = 0
    file: int = -1
    base: int = 0
    limit: int = 0
    seen: int = 0
    key: bytes = b""
    owner: Any = None


def rows_of(array: NDArray[Any]) -> RowLocator:
    """Rows in memory: an array `[n, ...]` whose rows are contiguous each."""
    return RowLocator("rows", array.strides[0] if len(array) else 0, array.ctypes.data, owner=array)


class Scratch:
    """Memory for the values of one read; the next one reuses it. Not for two threads."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """uint8 [size] with whatever is in it."""
        if size > len(self._memory):
            self._memory = np.empty(size + size // 4, np.uint8)
        return self._memory[:size]


@final
class PackedValues(Sequence[memoryview]):
    """Values of different sizes end to end in one array: a sequence of memoryviews.

    Attributes:
        data: uint8.
        places, sizes: where each begins in `data`, and its bytes, int64 [n].
    """

    def __init__(self, data: NDArray[np.uint8], places: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.data, self.places, self.sizes = data, places, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: Any) -> Any:
        start = int(self.places[number])
        return self.data[start : start + int(self.sizes[number])].data


def fill(found: Sequence[RowLocator], which: NDArray[np.int64], rows: Rows, out: NDArray[np.uint8]) -> bool:
    """Fills `out` [n, row bytes], C-contiguous, with rows of a fixed field.

    Args:
        found: of each shard.
        which: for each row its shard, a place in `found`.
        rows: the row there, which must be one of the shard's.
        out: where to put them.

    Returns:
        False if anything is not as it should be: then `Reader.read` finds the words for it.
    """
    count, size = out.shape
    if found[0].kind == "rows":
        native.gather(_entries(found, which, rows), size, out)
        return True
    if found[0].kind == "file":
        offsets, sizes = _column(found, "base", which) + rows * found[0].stride, np.full(count, size)
        if all(place.address for place in found):
            files, seen = _column(found, "file", which).astype(np.int32), _column(found, "seen", which) + rows
            if native.copy_large_rows(_entries(found, which, rows), seen, files, offsets + sizes, size, out):
                return True
    else:
        located = _places(found, which, rows)
        if located is None or (located[1] != size).any():
            return False
        offsets, sizes = located
        if found[0].kind == "keys" and size <= MAPPED_ROW:
            native.gather(_column(found, "address", which) + offsets, size, out)
            return True
    return _read(found, which, offsets, sizes, np.arange(0, count * size, size), out.reshape(-1))


def values(found: Sequence[RowLocator], which: NDArray[np.int64], rows: Rows, memory: Scratch) -> PackedValues | None:
    """The values of a field that is not fixed, in `memory`; see `fill`. None where that returns False."""
    located = _places(found, which, rows)
    if located is None or not _inside(found, which, *located).all():
        return None
    offsets, sizes = located
    ends = np.cumsum(sizes)
    places = ends - sizes
    data = memory.take(int(ends[-1]) if len(ends) else 0)
    return PackedValues(data, places, sizes) if _read(found, which, offsets, sizes, places, data) else None


def located(found: RowLocator, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The offset and size of each row in the shard's file; None if any is not to be found."""
    return _places([found], np.zeros(len(rows), np.int64), rows)


def sizes(found: RowLocator, rows: Rows) -> NDArray[np.int64] | None:
    """The stored bytes of each row, int64 [n]; None if any is not to be found, or not all in the file."""
    places = located(found, rows)
    if places is None or not _inside([found], np.zeros(len(rows), np.int64), *places).all():
        return None
    return places[1]


def spans(found: Sequence[RowLocator], which: NDArray[np.int64], rows: Rows, size: int) -> NDArray[np.int64] | None:
    """Where rows of a fixed field begin in their files, int64 [n]; None unless all stand there, `size` bytes each."""
    if found[0].kind == "rows":
        return None
    if found[0].kind == "file":
        offsets, sizes = _column(found, "base", which) + rows * found[0].stride, np.full(len(rows), size)
    else:
        places = _places(found, which, rows)
        if places is None or (places[1] != size).any():
            return None
        offsets, sizes = places
    return offsets if _inside(found, which, offsets, sizes).all() else None


def read_ahead(found: RowLocator, start: int, stop: int) -> None:
    """Asks the system for the file's bytes of rows start..stop-1, which may hold other fields in between."""
    if found.kind == "rows":
        return
    which, rows = np.zeros(2, np.int64), np.array([start, stop - 1])
    if found.kind == "file":
        offsets, sizes = found.base + rows * found.stride, np.full(2, found.stride)
    else:
        located = _places([found], which, rows)
        if located is None:
            return
        offsets, sizes = located
    if _inside([found], which, offsets, sizes).all() and offsets[0] <= offsets[1]:
        os.posix_fadvise(found.file, int(offsets[0]), int(offsets[1] + sizes[1] - offsets[0]), os.POSIX_FADV_WILLNEED)


def _column(found: Sequence[RowLocator], name: str, which: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([getattr(direct, name) for direct in found], np.int64)[which]


def _entries(found: Sequence[RowLocator], which: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    stride = found[0].stride if len(found) == 1 else _column(found, "stride", which)
    return _column(found, "address", which) + rows * stride


def _places(
    found: Sequence[RowLocator], which: NDArray[np.int64], rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Offsets in the files, and sizes; None if they are not to be found."""
    pairs = np.empty((len(rows), 2), np.int64)
    if found[0].kind == "keys":
        keys = np.empty((len(rows), 8 + len(found[0].key)), np.uint8)
        keys[:, :8] = (_column(found, "base", which) + rows).astype(">u8").view(np.uint8).reshape(-1, 8)
        keys[:, 8:] = np.frombuffer(found[0].key, np.uint8)
        maps, sizes = _column(found, "address", which), _column(found, "limit", which)
        return (pairs[:, 0], pairs[:, 1]) if native.find_lmdb_values(maps, sizes, keys, pairs) else None
    native.gather(_entries(found, which, rows), pairs.itemsize * 2, pairs)
    first, second = pairs[:, 0], pairs[:, 1]
    if found[0].kind == "places":
        return first, second
    return first + _column(found, "base", which), second - first


def _inside(
    found: Sequence[RowLocator], which: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.bool_]:
    limits = _column(found, "limit", which)
    inside: NDArray[np.bool_] = (offsets >= 0) & (sizes >= 0) & (offsets <= limits - sizes)
    return inside


def _read(
    found: Sequence[RowLocator],
    which: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    if not _inside(found, which, offsets, sizes).all():
        return False
    files = _column(found, "file", which).astype(np.int32)
    offsets, sizes, places = (np.ascontiguousarray(column, np.int64) for column in (offsets, sizes, places))
    return native.read(files, offsets, sizes, places, out)
