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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Pieces in rows.

    Attributes:
        pieces: the numbers of the pieces, row by row, those of a row from the longest to the shortest; int64 [n].
        firsts: the place in `pieces` at which each row begins, and n; int64 [rows + 1].
    """

    pieces: Indices
    firsts: NDArray[np.int64]


def best_fit(sizes: NDArray[np.int64], length: int) -> Packing:
    """Pack pieces into rows. Of equally long ones, the first piece comes first.

    Args:
        sizes: the length of each piece, in [0, length], [n]; those of length 0 are in no row.
        length: the entries that a row has room for.
    """
    counts = np.bincount(sizes, minlength=1)
    counts[0] = 0
    firsts, rows, each, before = _steps(counts, length)
    moved = rows * each
    step = np.repeat(np.arange(len(moved)), moved)
    piece = np.arange(len(step)) - (np.cumsum(moved) - moved)[step]
    row, place = np.divmod(piece, each[step])
    row += firsts[step]
    place += before[step]
    begins = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=1 if len(row) else 0))))
    # A sort of 16-bit numbers takes NumPy a tenth of the time that others do.
    keys = (length - sizes).astype(np.min_scalar_type(length))
    pieces = np.empty(len(row), np.int64)
    pieces[begins[row] + place] = np.argsort(keys, kind="stable")[: len(row)]
    return Packing(pieces, begins)


def _steps(counts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the steps that pack some number of pieces of each length, int64 [4, steps], the longest pieces first.

    A step puts equally many pieces into each of some rows that follow each other: the first row, the number of rows,
    the pieces for each, and how many each has already.
    """
    steps: list[tuple[int, int, int, int]] = []
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
            if taken < found.rows:
                rest = _Alike(found.first + taken, found.rows - taken, found.pieces)
                rooms |= 1 << room
                by_room.setdefault(room, []).append(rest)
            steps.append((found.first, taken, each, found.pieces))
            left -= taken * each
            if room := room - each * size:
                rooms |= 1 << room
                by_room.setdefault(room, []).append(_Alike(found.first, taken, found.pieces + each))
    return np.array(steps, np.int64).reshape(-1, 4).T
