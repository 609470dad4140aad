"""Lookup of keys in the pages of an LMDB file, in Python: check by check what `native/lmdb.c` does with many keys.

LMDB itself follows a damaged page out of its memory, which ends the process.
"""

import os
import struct
from typing import TypeAlias, final

from ._files import RawFile

Span: TypeAlias = tuple[int, int]
"""The offset of a value in the file, and its size in bytes."""

_META = struct.Struct("<16xIIQQI48xHH32xQQQ")
"""A meta page: magic, version, address, size, page size; then the main tree's flags, depth and root; last page,
transaction."""
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEADER, _NODE = 16, 8
_BRANCH, _LEAF, _OVERFLOWS = 1, 2, 4
_BIG = 1
_DEEPEST = 32

_PAGE = struct.Struct("<Q2xHH2x")  # number, flags, end of the pointers
_OVERFLOW = struct.Struct("<Q2xHI")  # number, flags, count of pages
_ENTRY = struct.Struct("<HHHH")  # size or child page in three words, of which the third is a leaf's flags; key size


@final
class Pages:
    """The pages of an LMDB file, of which nothing is trusted.

    Attributes:
        known: whether this is an LMDB file with a plain main tree.
        extent: the bytes that the file must have, by its own account.
    """

    def __init__(self, file: RawFile) -> None:
        self._file = file
        self._page_size = self._root = self._count = self.extent = 0
        self.known = False
        newest = -1
        for place in range(2):
            meta = os.pread(file.fd, _META.size, place * self._page_size)
            if len(meta) < _META.size:
                return
            magic, version, _, _, page_size, flags, _, root, last, transaction = _META.unpack(meta)
            valid = 512 <= page_size <= 65536 and not page_size & (page_size - 1)
            if (magic, version) != (_MAGIC, _VERSION) or not valid or self._page_size not in (0, page_size):
                return
            self._page_size = page_size
            if transaction > newest:
                newest, plain, self._root, self.extent = transaction, flags == 0, root, (last + 1) * page_size
        self.known = plain
        self._count = file.size // self._page_size

    def find(self, key: bytes) -> Span | None:
        """Return the offset and the size in bytes of a key's value; None if it is missing, or a page is damaged."""
        number = self._root
        for _ in range(_DEEPEST):
            if number >= self._count:
                return None
            page = os.pread(self._file.fd, self._page_size, number * self._page_size)
            if len(page) < self._page_size:
                return None
            own, flags, lower = _PAGE.unpack_from(page)
            kind = flags & (_BRANCH | _LEAF | _OVERFLOWS)
            if own != number or kind not in (_BRANCH, _LEAF) or not _HEADER <= lower <= len(page):
                return None
            chosen = self._chosen(page, kind, lower, key)
            if chosen is None:
                return None
            low, middle, high, key_size = _ENTRY.unpack_from(page, chosen)
            if kind == _LEAF:
                return self._value(page, number, chosen + _NODE + key_size, low | middle << 16, high)
            number = low | middle << 16 | high << 32
        return None

    def _chosen(self, page: bytes, kind: int, lower: int, key: bytes) -> int | None:
        """Return the place of the node to take in a page; None if there is none, or a node is not within the page."""
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

    def _value(self, page: bytes, number: int, start: int, size: int, flags: int) -> Span | None:
        if not flags & _BIG:
            return (number * len(page) + start, size) if not flags and start + size <= len(page) else None
        if start + 8 > len(page):
            return None
        first = int.from_bytes(page[start : start + 8], "little")
        if first >= self._count:
            return None
        header = os.pread(self._file.fd, _OVERFLOW.size, first * len(page))
        if len(header) < _OVERFLOW.size:
            return None
        own, kind, count = _OVERFLOW.unpack(header)
        if own != first or not kind & _OVERFLOWS or count > self._count - first:
            return None
        return (first * len(page) + _HEADER, size) if _HEADER + size <= count * len(page) else None
