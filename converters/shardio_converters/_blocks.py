"""Reading rows of large arrays in blocks, and files one open at a time."""

import math
import os
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, final

from shardio.errors import BadSample

_BLOCK = 1 << 20  # bytes per read: enough to outweigh the cost of a call, and no loss if the rest is not used
_BAND = 16 << 20  # the most bytes of adjacent chunks to read whole for one of their rows


def rows_at_once(row_bytes: int, chunks: tuple[int, ...] | None = None, shape: tuple[int, ...] = ()) -> int:
    """The number of rows to read at once: about a megabyte, in whole chunks unless adjacent chunks are too large.

    Args:
        row_bytes: the bytes of one row.
        chunks: the shape of the array's chunks, or None.
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
    """Rows of arrays or tables, read in blocks. The latest block of each is kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, Any]] = {}

    def row(self, name: str, row: int, count: int, step: int, read: Callable[[int, int], Any]) -> Any:
        """Row `row` of the array `name`, which has `count` rows; `read(start, stop)` reads blocks of `step` rows.

        Raises BadSample only if `read` does for this row alone: one damaged row must not spoil the others in its block.
        """
        low, block = self._kept.get(name, (0, ()))
        if not low <= row < low + len(block):
            self._kept.pop(name, None)  # frees its memory before the next block is read
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
    """An object with a method `close()`, such as a file."""

    def close(self) -> None: ...


_T = TypeVar("_T", bound=Closes)


@final
class OneOpenFile(Generic[_T]):
    """Numbered files, one of them open at a time. A forked child opens its own, and uses none that it inherited."""

    def __init__(self, opens: Callable[[int], _T]) -> None:
        self._opens = opens
        self._open: _T | None = None
        self._key = (0, -1)

    def get(self, number: int) -> _T:
        """Open file `number`, or return it if it is open; the one before is closed."""
        if self._open is None or self._key != (os.getpid(), number):
            if self._open is not None:
                self._open.close()
                self._open = None  # in case opening the next one fails
            self._open = self._opens(number)
            self._key = (os.getpid(), number)
        return self._open
