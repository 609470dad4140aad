"""Best fit decreasing: pieces of documents packed into rows of one length, many equal ones at a time.

The longest piece comes first, and goes into the row with the least room that holds it, or into a new row. Pieces of one
length are alike, and so are rows with the same pieces: what is done to all of them at once takes one step.

Source: Johnson 1973, "Near-optimal bin packing algorithms" (best fit decreasing).
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..system.types import Indices


@final
@dataclass(frozen=True, slots=True)
class _Alike:
    """Rows that follow each other and hold pieces of the same lengths: the first one, their number, their pieces."""

    first: int
    rows: int
    pieces: int


def best_fit(sizes: NDArray[np.int64], length: int) -> tuple[Indices, NDArray[np.int64]]:
    """Pack pieces into rows. Pieces of one length stay in their order.

    Args:
        sizes: the length of each piece, in [0, length], [n]; those of length 0 are in no row.
        length: the entries that a row has room for.

    Returns:
        The numbers of the pieces, row by row, those of a row from the longest to the shortest, int64 [n]; and the
        offset in them at which each row begins, and n, int64 [rows + 1].
    """
    counts = np.bincount(sizes, minlength=1)
    counts[0] = 0
    steps, rows = _steps(counts, length)
    firsts = np.zeros(rows + 1, np.int64)
    for found, each in steps:
        firsts[found.first + 1 : found.first + found.rows + 1] += each
    np.cumsum(firsts, out=firsts)
    # A sort of 16-bit numbers takes NumPy a tenth of the time that others do.
    longest_first = np.argsort((length - sizes).astype(np.min_scalar_type(length)), kind="stable")
    pieces, done = np.empty(firsts[-1], np.int64), 0
    for found, each in steps:
        begins = firsts[found.first : found.first + found.rows, None] + found.pieces
        count = found.rows * each
        pieces[begins + np.arange(each)] = longest_first[done : done + count].reshape(-1, each)
        done += count
    return pieces, firsts


def _steps(counts: NDArray[np.int64], length: int) -> tuple[list[tuple[_Alike, int]], int]:
    """Return the steps that pack some number of pieces of each length, the longest first, and the number of rows.

    A step puts equally many pieces of one length into each of some rows: these, as they are before, and that number.
    """
    steps: list[tuple[_Alike, int]] = []
    by_room: dict[int, list[_Alike]] = {}
    rooms, rows = 0, 0  # the bits of `rooms` are the rooms that any row has
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            if fitting := rooms >> size:
                room = size + (fitting & -fitting).bit_length() - 1
                found = by_room[room].pop()
                if not by_room[room]:
                    rooms ^= 1 << room
            else:
                room, found = length, _Alike(rows, -(-left // (length // size)), 0)
                rows += found.rows
            each = min(room // size, left)
            taken = min(found.rows, left // each)
            steps.append((_Alike(found.first, taken, found.pieces), each))
            left -= taken * each
            for room_left, alike in (
                (room, _Alike(found.first + taken, found.rows - taken, found.pieces)),
                (room - each * size, _Alike(found.first, taken, found.pieces + each)),
            ):
                if room_left and alike.rows:
                    rooms |= 1 << room_left
                    by_room.setdefault(room_left, []).append(alike)
    return steps, rows
