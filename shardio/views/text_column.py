"""Columns of strings: compared and searched in place, without an object for each value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..containers.packed_values import PackedValues
from ..system.types import Buffer

_WIDTHS = (8, 4, 2, 1)
_BYTES_AT_ONCE = 1 << 22


@final
class TextColumn:
    """The strings of `n` samples, end to end.

    Strings compare as their UTF-8 does, where no character is part of another.

    Args:
        data: the strings in UTF-8, uint8, contiguous.
        starts: where each begins in `data`, int64 [n], ascending.
        sizes: the bytes of each, int64 [n].
    """

    def __init__(self, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self._data, self._starts, self._sizes = data, starts, sizes

    @classmethod
    def of(cls, values: Sequence[Buffer]) -> TextColumn:
        """Return the column of stored values: no copy of `PackedValues`, one of any others."""
        if isinstance(values, PackedValues):
            return cls(values.data, values.offsets, values.sizes)
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), np.cumsum(sizes) - sizes, sizes)

    def where(self, mask: NDArray[np.bool_]) -> TextColumn:
        """Return the strings of some samples."""
        return TextColumn(self._data, self._starts[mask], self._sizes[mask])

    def begin_with_one_of(self, prefixes: Iterable[str], *, whole: bool = False) -> NDArray[np.bool_]:
        """Return which strings begin with one of these, or with `whole` are one of these, bool [n]."""
        found = np.zeros(len(self._sizes), np.bool_)
        for prefix in map(str.encode, prefixes):
            long_enough = self._sizes == len(prefix) if whole else self._sizes >= len(prefix)
            found[self._begins(np.flatnonzero(long_enough), prefix)] = True
        return found

    def contain(self, part: bytes) -> NDArray[np.bool_]:
        """Return which strings contain `part`, bool [n]."""
        found = np.full(len(self._sizes), not part)
        if not part or not len(found):
            return found
        (_, word), *others = _words(part)
        view = self._view(word.dtype)
        last = len(self._data) - len(part)
        for first in range(0, last + 1, _BYTES_AT_ONCE):
            places = np.flatnonzero(view[first : min(first + _BYTES_AT_ONCE, last + 1)] == word) + first
            for offset, other in others:
                places = places[self._view(other.dtype)[places + offset] == other]
            rows = np.searchsorted(self._starts, places, "right") - 1
            within = (rows >= 0) & (places + len(part) <= self._starts[rows] + self._sizes[rows])
            found[rows[within]] = True
        return found

    def _begins(self, rows: NDArray[np.int64], text: bytes) -> NDArray[np.int64]:
        """Return which of some rows begin with a string; all must be long enough."""
        for offset, word in _words(text):
            rows = rows[self._view(word.dtype)[self._starts[rows] + offset] == word]
        return rows

    def _view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the numbers that begin at each byte."""
        count = max(0, len(self._data) - dtype.itemsize + 1)
        return np.ndarray((count,), dtype, self._data, strides=(1,))


def _words(text: bytes) -> list[tuple[int, Any]]:
    """Return a string as a few numbers, each with its offset: 13 bytes are a uint64, a uint32 and a uint8."""
    found, offset = [], 0
    for width in _WIDTHS:
        while len(text) - offset >= width:
            found.append((offset, np.frombuffer(text, f"<u{width}", 1, offset)[0]))
            offset += width
    return found
