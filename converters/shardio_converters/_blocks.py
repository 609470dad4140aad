"""Rows of large arrays read in blocks, and files of which one is open at a time."""

import math
import os
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample

_BLOCK = 1 << 20  # bytes read at once: enough to make a call's own cost small, few enough to throw away
_BAND = 16 << 20  # bytes of chunks side by side that are still read whole for one of their rows


def rows_at_once(row_bytes: int, chunks: tuple[int, ...] | None = None, shape: tuple[int, ...] = ()) -> int:
    """How many rows are read at once: about a megabyte, and whole chunks unless a row of them is too much.

    Args:
        row_bytes: the bytes of one row.
        chunks: the shape of the array's chunks, None if it has none.
        shape: the array's shape.
    """
    row_bytes = max(1, row_bytes)
    if not chunks:
        return max(1, _BLOCK // row_bytes)
    beside = math.prod(-(-size // chunk) for size, chunk in zip(shape[1:], chunks[1:], strict=True))
    band = chunks[0] * row_bytes
    if band > _BAND and beside > 1:
        return max(1, _BAND // row_bytes)
    return chunks[0] * max(1, _BLOCK // band)


@final
class BlockCache:
    """Rows of arrays, read in blocks; the last block of each array is kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, NDArray[Any]]] = {}

    def row(self, name: str, row: int, count: int, step: int, read: Callable[[int, int], NDArray[Any]]) -> Any:
        """Row `row` of the array `name`, which has `count` rows and is read by `read(start, stop)`, `step` at once.

        Raises BadSample if `read` does for the row alone: damage in a block must not spoil its other rows.
        """
        low, block = self._kept.get(name, (0, np.empty(0)))
        if not low <= row < low + len(block):
            self._kept.pop(name, None)  # never two blocks at a time
            low = row // step * step
            try:
                block = read(low, min(low + step, count))
            except BadSample:
                if step == 1:
                    raise
                return read(row, row + 1)[0]
            self._kept[name] = low, block
        return block[row - low]


class Closes(Protocol):
    """What can be closed, such as a file."""

    def close(self) -> None:
        """Lets go of it."""


_T = TypeVar("_T", bound=Closes)


@final
class OneOpenFile(Generic[_T]):
    """Numbered files of which one is open at a time, in each process anew: a fork's child uses nothing inherited."""

    def __init__(self, opens: Callable[[int], _T]) -> None:
        self._opens = opens
        self._open: _T | None = None
        self._key = (0, -1)

    def get(self, number: int) -> _T:
        """File `number`; the one before is closed."""
        if self._open is None or self._key != (os.getpid(), number):
            if self._open is not None:
                self._open.close()
                self._open = None  # in case the next one does not open
            self._open = self._opens(number)
            self._key = (os.getpid(), number)
        return self._open
