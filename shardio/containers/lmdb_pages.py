"""The pages of an LMDB file: lookup of a key, and the location of every entry.

Sources: lmdb/libraries/liblmdb/mdb.c (MDB_page, MDB_node, MDB_meta, MDB_db: data version 1, 64 bits, little-endian).

The lmdb library would follow a damaged page out of its mapped memory, which ends the process; it lets a process open a
file only once, and does not give a value's offset in the file. So this reads the pages itself, and checks every place
that it goes to. `find` checks what `native/lmdb.c` does for many keys at once. Nothing is locked or written; nobody may
write to the file meanwhile, as with the library's own `MDB_NOLOCK`.
"""

import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Span: TypeAlias = tuple[int, int]
"""The offset of a value in the file, and its size in bytes."""

ENTRY_DTYPE = np.dtype([("key", "<i8"), ("key_size", "<u2"), ("offset", "<i8"), ("size", "<u4")])
"""The offset and the bytes of an entry's key and of its value in the file."""


class Tree(NamedTuple):
    """A database: the tree of its pages. `flags` say how its keys are sorted, and whether they have several values."""

    flags: int
    depth: int
    entries: int
    root: int

    @property
    def has_integers(self) -> bool:
        """Whether its keys are integers in native order (INTEGERKEY)."""
        return bool(self.flags & _INTEGERKEY)


_META = struct.Struct("<16xIIQQI48xHH24xQQQQ")
"""A meta page: magic, version, address, size, page size; then the main tree's flags, depth, entries and root; last
page, transaction."""
_TREE = struct.Struct("<4xHH24xQQ")
"""The record of a named database: flags, depth, entries and root."""
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_MAGIC_PLACE = 24  # in the format of LMDB 1.0
_HEADER, _NODE = 16, 8
_BRANCH, _LEAF, _OVERFLOWS = 1, 2, 4  # flags of pages
_BIG, _SUBDATA, _DUPDATA = 1, 2, 4  # flags of nodes
_DUPSORT, _INTEGERKEY = 4, 8  # flags of trees
_MOST_NAMED = 1 << 10
_NO_PAGE = 2**64 - 1
_DEEPEST = 32

_PAGE = struct.Struct("<Q2xHH2x")  # number, flags, end of the pointers
_OVERFLOW = struct.Struct("<Q2xHI")  # number, flags, count of pages
_ENTRY = struct.Struct("<HHHH")  # size or child page in three words, the third being a leaf's flags; key size


class DamagedPages(Exception):
    """The entries of a file cannot be located; the message says why, in words that follow the file's name."""


@final
class Pages:
    """The pages of an LMDB file; nothing in them is trusted.

    Args:
        descriptor: the open file.
        size: its bytes.

    Attributes:
        known: whether this is an LMDB file.
        plain: whether its main tree has one value for each key, in the order of their bytes.
        extent: the bytes that the file must have, by its own account.
        tree: the database that is read: the main one, until another one is set.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size
        self._page_size = self._count = self.extent = 0
        self.tree = Tree(0, 0, 0, _NO_PAGE)
        self.known = self.plain = False
        newest = -1
        for place in range(2):
            meta = os.pread(descriptor, _META.size, place * self._page_size)
            if len(meta) < _META.size:
                return
            magic, version, _, _, page_size, flags, depth, entries, root, last, transaction = _META.unpack(meta)
            valid = 512 <= page_size <= 65536 and not page_size & (page_size - 1)
            if (magic, version) != (_MAGIC, _VERSION) or not valid or self._page_size not in (0, page_size):
                return
            self._page_size = page_size
            if transaction > newest:
                newest, self.extent = transaction, (last + 1) * page_size
                self.tree = Tree(flags, depth, entries, root)
        self.known, self.plain = True, self.tree.flags == 0
        self._count = size // self._page_size

    def find(self, key: bytes) -> Span | None:
        """Return the offset and the size in bytes of a key's value; None if it is missing, or a page is damaged."""
        number = self.tree.root
        for _ in range(_DEEPEST):
            page = self._page(number)
            kind, lower = (0, 0) if page is None else _form(page, number)
            if page is None or kind not in (_BRANCH, _LEAF):
                return None
            chosen = _chosen(page, kind, lower, key)
            if chosen is None:
                return None
            low, middle, high, key_size = _ENTRY.unpack_from(page, chosen)
            if kind == _LEAF:
                return self._value(page, number, chosen + _NODE + key_size, low | middle << 16, high)
            number = low | middle << 16 | high << 32
        return None

    def scan(self) -> NDArray[Any]:
        """Locate all entries, `[n]` of ENTRY_DTYPE, in the order of their keys, without reading values.

        Raises DamagedPages if the file is not an LMDB, is damaged or cut off, or has named databases or several values
        for a key.
        """
        if not self.known:
            raise DamagedPages(self._unknown())
        if self.tree.flags & _DUPSORT:
            raise DamagedPages("it has several values for a key (DUPSORT): copy it to a database with a key for each")
        found = bytearray()
        for page, number in self._leaves():
            found += self._entries_in(page, number).tobytes()
        places = np.frombuffer(found, ENTRY_DTYPE)
        if len(places) != self.tree.entries:
            raise DamagedPages(f"damaged: it has {self.tree.entries} entries, {len(places)} are found")
        return places

    def named(self) -> dict[str, Tree]:
        """Return the databases that the main one names, if it does nothing else."""
        if not self.known or not 0 < self.tree.entries <= _MOST_NAMED:
            return {}
        found: dict[str, Tree] = {}
        for page, number in self._leaves():
            starts, (low, _, flags, key_sizes) = _nodes(page, number)
            for start, size, kind, key_size in zip(*(x.tolist() for x in (starts, low, flags, key_sizes)), strict=True):
                at = start + _NODE + key_size
                if kind != _SUBDATA or size != _TREE.size or at + size > len(page):
                    return {}
                name = page[start + _NODE : at].decode("utf-8", "backslashreplace")
                found[name] = Tree(*_TREE.unpack_from(page, at))
        return found

    def _unknown(self) -> str:
        magic = os.pread(self._descriptor, 4, _MAGIC_PLACE)
        if magic == _MAGIC.to_bytes(4, "little"):
            return (
                "written in the format of LMDB 1.0, and shardio reads that of 0.9: copy it with py-lmdb 3, from "
                "lmdb.open(..., lib_version=1) to lmdb.open(..., lib_version=0)"
            )
        return "not an LMDB file, or written on a machine of another architecture"

    def _page(self, number: int) -> bytes | None:
        """Read a page; None unless it is within the file."""
        if number >= self._count:
            return None
        page = os.pread(self._descriptor, self._page_size, number * self._page_size)
        return page if len(page) == self._page_size else None

    def _value(self, page: bytes, number: int, start: int, size: int, flags: int) -> Span | None:
        if not flags & _BIG:
            return (number * len(page) + start, size) if not flags and start + size <= len(page) else None
        if start + 8 > len(page):
            return None
        first = int.from_bytes(page[start : start + 8], "little")
        if first >= self._count:
            return None
        header = os.pread(self._descriptor, _OVERFLOW.size, first * len(page))
        if len(header) < _OVERFLOW.size:
            return None
        own, kind, count = _OVERFLOW.unpack(header)
        if own != first or not kind & _OVERFLOWS or count > self._count - first:
            return None
        return (first * len(page) + _HEADER, size) if _HEADER + size <= count * len(page) else None

    def _leaves(self) -> Iterator[tuple[bytes, int]]:
        """Yield the leaf pages and their numbers, in the order of their keys."""
        if self.tree.root == _NO_PAGE:
            return
        if not 0 < self.tree.depth <= _DEEPEST:
            raise DamagedPages(f"damaged: a tree of depth {self.tree.depth}")
        left = self._count  # a tree visits no page twice: counting them stops at the cycles of a damaged file
        waiting = [(self.tree.root, 1)]
        while waiting:
            number, depth = waiting.pop()
            left -= 1
            page = self._page(number)
            if page is None or left < 0:
                where = f"page {number} is not within its {self._size} bytes, or is referenced twice"
                raise DamagedPages(f"damaged or cut off: {where}")
            kind, _ = _form(page, number)
            if kind != (_LEAF if depth == self.tree.depth else _BRANCH):
                raise DamagedPages(f"damaged: page {number} contradicts the pages above it")
            if kind == _LEAF:
                yield page, number
            else:
                _, (low, middle, high, _) = _nodes(page, number)
                children = (low | middle << 16 | high << 32).tolist()
                waiting += [(child, depth + 1) for child in reversed(children)]

    def _entries_in(self, page: bytes, number: int) -> NDArray[Any]:
        """Locate the entries of a leaf page, `[n]` of ENTRY_DTYPE."""
        starts, (low, high, flags, key_sizes) = _nodes(page, number)
        if np.any(flags & (_SUBDATA | _DUPDATA)):
            raise DamagedPages("it holds named databases beside values, or several values for a key")
        sizes, values = low | high << 16, starts + _NODE + key_sizes
        big = flags & _BIG != 0
        if np.any(values + np.where(big, 8, sizes) > len(page)):
            raise DamagedPages(f"damaged: an entry of page {number} is not within it")
        offsets = number * len(page) + values
        if big.any():
            stored = np.frombuffer(page, np.uint8)[values[big, None] + np.arange(8)]
            first = np.minimum(stored.copy().view("<u8").reshape(-1), self._count).astype(np.int64)
            offsets[big] = first * len(page) + _HEADER
        if np.any(offsets + sizes > self._size):
            where = f"a value of page {number} is not within the file's {self._size} bytes"
            raise DamagedPages(f"damaged or cut off: {where}")
        found = np.empty(len(starts), ENTRY_DTYPE)
        found["key"], found["key_size"] = number * len(page) + starts + _NODE, key_sizes
        found["offset"], found["size"] = offsets, sizes
        return found


def _form(page: bytes, number: int) -> tuple[int, int]:
    """Return the kind of a page and the end of its pointers; (0, 0) if it is damaged, or not page `number`."""
    own, flags, lower = _PAGE.unpack_from(page)
    sound = own == number and _HEADER <= lower <= len(page)
    return (flags & (_BRANCH | _LEAF | _OVERFLOWS), lower) if sound else (0, 0)


def _chosen(page: bytes, kind: int, lower: int, key: bytes) -> int | None:
    """Return the offset of the node to take in a page; None if there is none, or a node is not within the page."""
    # The first node of a branch has no key and precedes all.
    low, high, exact = int(kind == _BRANCH), (lower - _HEADER) // 2, -1
    while low < high:
        middle = (low + high) // 2
        at = int.from_bytes(page[_HEADER + 2 * middle : _HEADER + 2 * middle + 2], "little")
        if at + _NODE > len(page):
            return None
        end = at + _NODE + int.from_bytes(page[at + 6 : at + 8], "little")
        if end > len(page):
            return None
        found = page[at + _NODE : end]
        if found == key:
            exact = middle
        if found <= key:
            low = middle + 1
        else:
            high = middle
    chosen = exact if kind == _LEAF else low - 1
    if chosen < 0 or _HEADER + 2 * chosen + 2 > lower:
        return None
    at = int.from_bytes(page[_HEADER + 2 * chosen : _HEADER + 2 * chosen + 2], "little")
    return at if at + _NODE <= len(page) else None


def _nodes(page: bytes, number: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the offset of each node in a page, and the four 16-bit numbers at its beginning."""
    lower = _PAGE.unpack_from(page)[2]
    starts = np.frombuffer(page, "<u2", (lower - _HEADER) // 2, _HEADER).astype(np.int64)
    if np.any((starts + _NODE > len(page)) | (starts & 1 != 0)):
        raise DamagedPages(f"damaged: a node of page {number} is not within it")
    words = np.frombuffer(page, "<u2").astype(np.int64)
    return starts, [words[starts // 2 + place] for place in range(4)]
