"""Pieces: parts of a file, of one size, that have checksums of their own and that a cache fetches and evicts."""

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 16
"""Bytes of a piece; the last one of an object may be shorter."""


def piece_count(size: int) -> int:
    """Return the number of pieces of an object of `size` bytes."""
    return -(-size // PIECE)


def pieces_of(offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the pieces that hold any byte of the spans, ascending, each once.

    Args:
        offsets, sizes: the spans in bytes, int64 [n], within the object.
    """
    some = sizes > 0
    first, last = offsets[some] // PIECE, (offsets[some] + sizes[some] - 1) // PIECE
    counts = last - first + 1
    ends = np.cumsum(counts)
    if not len(ends):
        return np.empty(0, np.int64)
    every = np.repeat(first - (ends - counts), counts) + np.arange(ends[-1])
    return np.unique(every)


def runs(numbers: NDArray[np.int64], longest: int = 1 << 62) -> list[tuple[int, int]]:
    """Return runs of adjacent numbers, such as those of pieces, as (first, stop).

    Args:
        numbers: the numbers, ascending, each once.
        longest: the most numbers of a run.
    """
    found: list[tuple[int, int]] = []
    breaks = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist() if len(numbers) else []
    for start, stop in zip([0, *breaks], [*breaks, len(numbers)], strict=True):
        if stop > start:
            first, last = int(numbers[start]), int(numbers[stop - 1]) + 1
            found += [(begin, min(begin + longest, last)) for begin in range(first, last, longest)]
    return found


def widened_up_to(pieces: NDArray[np.int64], largest: int, count: int, factor: float) -> NDArray[np.int64]:
    """Return the pieces of the largest units, of `largest` pieces or a half, a quarter ... of them, that do not make
    more than `factor` times as many pieces; fewer and longer requests fetch them.
    """
    unit = largest
    while unit > 1:
        wider = (np.unique(pieces // unit)[:, None] * unit + np.arange(unit)).reshape(-1)
        wider = wider[wider < count]
        if len(wider) <= factor * len(pieces):
            return wider
        unit //= 2
    return pieces
