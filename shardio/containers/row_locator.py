"""Locators: where the rows of one field of one shard are, in a file or in memory, as compiled code reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..format.file_table import FileTable

MAPPED_ROW = 4096
"""Rows of up to this many bytes are copied from a memory map; for larger ones a system call is faster than page
faults."""


def within(
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64] | int,
    begin: NDArray[np.int64] | int,
    end: NDArray[np.int64] | int,
) -> NDArray[np.bool_]:
    """Return which spans are within `begin` to `end`, bool [n]; a damaged file may hold any int64.

    This is the one check of where values are: every reader, compiled or not, asks it before it touches a byte.

    Args:
        offsets: where each span begins, int64 [n].
        sizes: bytes, int64 [n], or one number for all; so are the others.
        begin, end: the bounds of the data, from 0 on.
    """
    # The sum of an offset and a size may not fit into int64; the difference of a bound and a size from 0 on does.
    inside: NDArray[np.bool_] = (sizes >= 0) & (offsets >= begin) & (offsets <= end - sizes)
    return inside


@final
@dataclass(frozen=True, slots=True)
class FileMap:
    """A file in memory, for parts of it.

    Attributes:
        address: the address of its first byte.
        most: the most bytes that are copied from there in one go; a system call reads what has more.
        populated: the address of one byte per `native.GROUP` bytes, 1 once their pages are mapped; 0 if `most` is too
            small for it to matter.
        owner: keeps the memory alive.
    """

    address: int
    most: int
    populated: int
    owner: object


NOT_MAPPED = FileMap(0, 0, 0, None)


def not_mapped() -> FileMap:
    """Return what stands for a file that is not in memory."""
    return NOT_MAPPED


@final
@dataclass(frozen=True, slots=True)
class MemoryRows:
    """Rows of one size in memory.

    Attributes:
        address: the address of row 0.
        stride: bytes from one row to the next.
        owner: keeps the memory alive.
        base: the offset of row 0 in the shard's file, if that is what is mapped; None for other memory.
    """

    address: int
    stride: int
    owner: object
    base: int | None = None

    @classmethod
    def of(cls, array: NDArray[Any]) -> "MemoryRows":
        """Return the locator of the rows of an array `[n, ...]`, each of which is contiguous."""
        return cls(array.ctypes.data, array.strides[0] if len(array) else 0, array)

    @classmethod
    def in_file(cls, table: FileTable, base: int | None = None) -> "MemoryRows":
        """Return the locator of the rows of a table in a mapped file."""
        return cls(table.address, table.stride, table, base)


@final
@dataclass(frozen=True, slots=True)
class FileRows:
    """Large rows of one size in a file, which may be mapped into memory as well.

    Attributes:
        file: the descriptor of the file.
        base: the offset of row 0 in the file.
        stride: bytes from one row to the next.
        limit: the offset that no row reaches beyond.
        owner: keeps the file open, and the memory alive.
        map: returns the file in memory, for parts of rows.
        address: the address of row 0 in memory; 0 if the file is not mapped.
        populated: the address of one byte per row, 1 once the row's pages are mapped; 0 if the file is not mapped.
    """

    file: int
    base: int
    stride: int
    limit: int
    owner: object
    map: Callable[[], FileMap]
    address: int = 0
    populated: int = 0


@final
@dataclass(frozen=True, slots=True)
class SpanTable:
    """Values in a file, with a table of their spans in memory.

    Attributes:
        address: the address of the first entry, two int64: a value's offset in the file, and its size or end.
        stride: bytes from one entry to the next.
        file: the descriptor of the file.
        limit: the offset that no value reaches beyond.
        owner: keeps the file open, and the memory alive.
        base: the offset that offsets and ends are counted from.
        has_ends: whether entries hold ends instead of sizes, as where values follow each other and share their offsets.
        unit: the bytes that offsets, sizes and ends count.
        map: returns the file in memory, for parts of values.
    """

    address: int
    stride: int
    file: int
    limit: int
    owner: object
    base: int = 0
    has_ends: bool = False
    unit: int = 1
    map: Callable[[], FileMap] = not_mapped


@final
@dataclass(frozen=True, slots=True)
class LmdbKeys:
    """Values of an LMDB file that is mapped into memory, looked up by key.

    Attributes:
        address: the address of the file in memory.
        file: the descriptor of the file.
        first: the index of row 0: a key is `first + row` as big-endian uint64, then `suffix`.
        limit: the file's size in bytes.
        suffix: the end of each key.
        owner: keeps the file open, and the memory alive.
        map: returns the file in memory, for parts of values.
    """

    address: int
    file: int
    first: int
    limit: int
    suffix: bytes
    owner: object
    map: Callable[[], FileMap] = not_mapped


@final
@dataclass(frozen=True, slots=True)
class StackedLocators:
    """Rows of a stack, each of which is one row of every variable, end to end.

    Attributes:
        variables: the locator of each variable, all of one kind.
    """

    variables: "tuple[RowLocator, ...]"


RowLocator: TypeAlias = MemoryRows | FileRows | SpanTable | LmdbKeys | StackedLocators
"""The location of the rows of one field of one shard; the kind depends on how the file stores them."""
