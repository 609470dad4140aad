"""How much of the arrays in files was never written, or is lost: the fill value is read instead."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

MissingChunks: TypeAlias = Literal["fill", "refuse"]


@final
@dataclass(frozen=True, slots=True)
class Unwritten:
    """How many chunks of one array in a file are not there.

    Attributes:
        name: the field, or the path of the array.
        file: the name of the file.
        rows: the number of its rows.
        number: the number of the file; files that are merged have the same.
        tail: the first of the last rows that have no chunk; -1 if the last row has one, or if that is not known.
        lacking: how many chunks are not there.
        count: how many there should be.
        first: the first one that is not there.
        fill: the value that is read instead.
        misnamed: a chunk that is there under a name that the metadata do not give it; "" for none.
        what: what is counted.
    """

    name: str
    file: str
    rows: int
    number: int = 0
    tail: int = -1
    lacking: int = 0
    count: int = 0
    first: str = ""
    fill: str = ""
    misnamed: str = ""
    what: str = "chunks"

    def of_grid(
        self,
        there: NDArray[np.int64],
        grid: Sequence[int],
        key: Callable[[Sequence[int]], str],
        axis: int = 0,
        step: int = 1,
    ) -> "Unwritten":
        """Return this with the counts of a grid of chunks.

        Args:
            there: the numbers in C order of the chunks that are there, ascending, `[chunks]`.
            grid: the number of chunks along each axis.
            key: returns the name of a chunk, by its place in the grid.
            axis: the axis of the rows.
            step: the rows of a chunk.
        """
        count = math.prod(grid)
        if len(there) == count:
            return replace(self, count=count)
        differ = np.flatnonzero(there != np.arange(len(there)))
        first = int(differ[0]) if len(differ) else len(there)
        end = step * (1 + int(np.unravel_index(there, grid)[axis].max())) if len(there) else 0
        return replace(
            self,
            tail=end if end < self.rows else -1,
            lacking=count - len(there),
            count=count,
            first=key([int(place) for place in np.unravel_index(first, grid)]),
        )
