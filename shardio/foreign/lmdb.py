"""LMDB files: the location of every entry, and the Datum messages that Caffe keeps in them.

Sources: lmdb/libraries/liblmdb/mdb.c (MDB_page, MDB_node, MDB_meta, MDB_db: data version 1, 64 bits, little-endian);
src/caffe/proto/caffe.proto of https://github.com/BVLC/caffe.

This module parses the pages itself. LMDB would follow a damaged page out of its mapped memory and crash the process,
lets a process open a file only once, and does not give a value's offset in the file. Nothing is locked or written;
nobody may write to the file meanwhile, as with LMDB's own `MDB_NOLOCK`.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, SourceError
from ..system.local_path import local_path
from . import protobuf
from .files import File, unreadable
from .names import printable
from .protobuf import BYTES, FIXED32, VARINT, Record, Span

ENTRY_DTYPE = np.dtype([("key", "<i8"), ("key_size", "<u2"), ("offset", "<i8"), ("size", "<u4")])
"""The offset and the bytes of an entry's key and of its value in the file."""

SHARDIO_KEY_PREFIX = b"\xff" * 8 + b"_"
"""The prefix of the last keys in a shard of shardio."""

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, end of the pointers, start of the nodes
_META = struct.Struct("<IIQQ")  # magic, version, address, size of the map
_TREE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, counts of three kinds of pages, entries, root
_END = struct.Struct("<QQ")  # last page, transaction
_META_BYTES = _PAGE.size + _META.size + 2 * _TREE.size + _END.size
_BRANCH, _LEAF = 1, 2
_BIG, _SUBDATA, _DUPDATA = 1, 2, 4
_DUPSORT = 4
_NODE = 8
_NO_PAGE = 2**64 - 1
_DEEPEST = 32


class _Tree(NamedTuple):
    page_size: int
    flags: int
    depth: int
    entries: int
    root: int
    transaction: int


def open_lmdb(src: str | os.PathLike[str]) -> File:
    """Open the data file of an environment: `src` itself, or `data.mdb` in it; SourceError if that fails."""
    path = local_path(src).absolute()
    try:
        if path.is_dir():
            path /= "data.mdb"
        return File(path)
    except (OSError, ValueError) as error:
        wanted = "lmdb takes a directory that holds data.mdb, or a file"
        raise SourceError(
            f"{wanted}; {printable(path)} cannot be read: {getattr(error, 'strerror', 0) or error}"
        ) from error


def scan(file: File) -> NDArray[Any]:
    """Locate all entries, `[n]` of ENTRY_DTYPE, in the order of their keys, without reading values.

    Raises SourceError if the file is not an LMDB, is damaged or truncated, or has named databases or several values
    for a key.
    """
    found = bytearray()
    try:
        tree = _tree(file)
        for page, number in _leaves(file, tree):
            found += _entries(page, number, file.size).tobytes()
    except _Damaged as error:
        raise SourceError(f"{printable(file.path)}: {error}") from error
    except OSError as error:
        raise unreadable(file.path, error) from error
    places = np.frombuffer(found, ENTRY_DTYPE)
    if len(places) != tree.entries:
        raise SourceError(f"{printable(file.path)}: damaged: it has {tree.entries} entries, {len(places)} are found")
    return places


def read(file: File, offset: int, size: int) -> bytes:
    """Read a key or a value; BadSample if the file ends within it."""
    data = file.read(offset, size)
    if len(data) < size:
        raise BadSample(f"the file ends within it, after {len(data)} of {size} bytes")
    return data


class _Damaged(Exception):
    pass


def _tree(file: File) -> _Tree:
    """Return the root of the main database, from the newer of the two meta pages."""
    first = _meta(file, 0)
    if first is None:
        raise _Damaged("not an LMDB file, or written on a machine of another architecture")
    second = _meta(file, first.page_size)
    newest = second if second and second.transaction > first.transaction else first
    if newest.flags & _DUPSORT:
        raise _Damaged("it has several values for a key (DUPSORT); only one is supported")
    return newest


def _meta(file: File, at: int) -> _Tree | None:
    page = file.read(at, _META_BYTES)
    if len(page) < _META_BYTES:
        return None
    magic, version, _, _ = _META.unpack_from(page, _PAGE.size)
    trees = _PAGE.size + _META.size
    page_size = _TREE.unpack_from(page, trees)[0]
    if (magic, version) != (_MAGIC, _VERSION) or not 512 <= page_size <= 1 << 16 or page_size & (page_size - 1):
        return None
    _, flags, depth, _, _, _, entries, root = _TREE.unpack_from(page, trees + _TREE.size)
    return _Tree(page_size, flags, depth, entries, root, _END.unpack_from(page, trees + 2 * _TREE.size)[1])


def _leaves(file: File, tree: _Tree) -> Iterator[tuple[bytes, int]]:
    """Yield the leaf pages and their numbers, in the order of their keys."""
    if tree.root == _NO_PAGE:
        return
    if not 0 < tree.depth <= _DEEPEST:
        raise _Damaged(f"damaged: a tree of depth {tree.depth}")
    # A tree visits no page twice: counting the pages stops at the cycles of a damaged file.
    left = file.size // tree.page_size
    waiting = [(tree.root, 1)]
    while waiting:
        number, depth = waiting.pop()
        left -= 1
        page = file.read(number * tree.page_size, tree.page_size) if number < 1 << 40 else b""
        if len(page) < tree.page_size or left < 0:
            raise _Damaged(
                f"damaged or cut off: page {number} is not within its {file.size} bytes, or is referenced twice"
            )
        own, _, flags, lower, _ = _PAGE.unpack_from(page)
        kind = _LEAF if depth == tree.depth else _BRANCH
        if own != number or flags & (_BRANCH | _LEAF) != kind or not _PAGE.size <= lower <= tree.page_size:
            raise _Damaged(f"damaged: page {number} contradicts the pages above it")
        if kind == _LEAF:
            yield page, number
        else:
            waiting += [(child, depth + 1) for child in reversed(_children(page, number))]


def _nodes(page: bytes, number: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the offset of each node in a page, and the four 16-bit numbers at its beginning."""
    lower = _PAGE.unpack_from(page)[3]
    starts = np.frombuffer(page, "<u2", (lower - _PAGE.size) // 2, _PAGE.size).astype(np.int64)
    if np.any((starts + _NODE > len(page)) | (starts & 1 != 0)):
        raise _Damaged(f"damaged: a node of page {number} is not within it")
    words = np.frombuffer(page, "<u2").astype(np.int64)
    return starts, [words[starts // 2 + place] for place in range(4)]


def _children(page: bytes, number: int) -> list[int]:
    _, (low, middle, high, _) = _nodes(page, number)
    children: list[int] = (low | middle << 16 | high << 32).tolist()
    return children


def _entries(page: bytes, number: int, file_size: int) -> NDArray[Any]:
    """Locate the entries of a leaf page, `[n]` of ENTRY_DTYPE."""
    starts, (low, high, flags, key_sizes) = _nodes(page, number)
    if np.any(flags & (_SUBDATA | _DUPDATA)):
        raise _Damaged("it holds named databases, or several values for a key; only a plain database is supported")
    sizes, values = low | high << 16, starts + _NODE + key_sizes
    big = flags & _BIG != 0
    if np.any(values + np.where(big, 8, sizes) > len(page)):
        raise _Damaged(f"damaged: an entry of page {number} is not within it")
    offsets = number * len(page) + values
    if big.any():
        stored = np.frombuffer(page, np.uint8)[values[big, None] + np.arange(8)]
        overflow = stored.copy().view("<u8").reshape(-1)
        if np.any(overflow > file_size // len(page)):
            raise _Damaged(f"damaged or cut off: a value of page {number} is not within the file's {file_size} bytes")
        offsets[big] = overflow.astype(np.int64) * len(page) + _PAGE.size
    if np.any(offsets + sizes > file_size):
        raise _Damaged(f"damaged or cut off: a value of page {number} is not within the file's {file_size} bytes")
    found = np.empty(len(starts), ENTRY_DTYPE)
    found["key"], found["key_size"] = number * len(page) + starts + _NODE, key_sizes
    found["offset"], found["size"] = offsets, sizes
    return found


@final
@dataclass(frozen=True, slots=True)
class Datum:
    """A Datum, Caffe's message for one image.

    Attributes:
        shape: (channels, height, width) as the message states them.
        label: the label; 0 if the message has none, as in Caffe.
        encoded: whether `data` is an image file.
        data: the span of the `data` bytes in the record, or None.
        floats: the spans of the float values in the record, which may replace `data`.
    """

    shape: tuple[int, int, int]
    label: int
    encoded: bool
    data: Span | None
    floats: tuple[Span, ...]

    @property
    def span(self) -> Span | None:
        """The span of the image's bytes or float values in the record; None unless they are contiguous."""
        if self.data is not None and self.data[1]:
            return self.data
        return self.floats[0] if len(self.floats) == 1 else None

    def bytes_of(self, record: bytes) -> bytes:
        """Return the `data` bytes; b"" if there are none."""
        start, size = self.data or (0, 0)
        return record[start : start + size]

    def array(self, record: bytes) -> NDArray[Any]:
        """Return the values, uint8 or float32 `[channels, height, width]`; BadSample if they do not fill that shape."""
        if self.data is not None and self.data[1]:
            values: NDArray[Any] = np.frombuffer(record, np.uint8, self.data[1], self.data[0])
        else:
            try:
                values = protobuf.floats(protobuf.joined(record, self.floats))
            except ValueError as error:
                raise BadSample(f"its float_data is damaged: {error}") from error
        channels, height, width = self.shape
        if min(self.shape) < 1 or channels * height * width != len(values):
            raise BadSample(f"a Datum of {channels} x {height} x {width} holds {len(values)} values")
        return values.reshape(self.shape)


def parse_datum(record: bytes) -> Datum:
    """Parse a Datum; BadSample if it is damaged.

    Field numbers: channels 1, height 2, width 3, data 4, label 5, float_data 6, encoded 7.
    """
    numbers = dict.fromkeys((1, 2, 3, 5, 7), 0)
    data: Span | None = None
    floats: list[Span] = []
    try:
        for part in protobuf.records(record):
            match part:
                case Record(number=1 | 2 | 3 | 5 | 7 as number, wire=wire) if wire == VARINT:
                    numbers[number] = protobuf.int32(record, part)
                case Record(number=4, wire=wire) if wire == BYTES:
                    data = part.span
                case Record(number=6, wire=wire) if wire in (BYTES, FIXED32):
                    floats.append(part.span)
    except ValueError as error:
        raise BadSample(f"not a Datum: {error}") from error
    shape = (numbers[1], numbers[2], numbers[3])
    return Datum(shape, numbers[5], bool(numbers[7]), data, tuple(floats))
