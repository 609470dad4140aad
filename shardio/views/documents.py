"""Documents end to end: the lengths of a ragged field's values, and the pieces of these that make rows."""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..system.types import Indices
from .columns import value_lengths
from .readable import ReadableDataset


class Pieces(NamedTuple):
    """Pieces of documents, row by row: entries `begins[i]` to `ends[i]`, not included, are in row `rows[i]`.

    Attributes:
        documents: the document of each piece, int64 [k].
        begins, ends: its entries in the document, int64 [k]; no piece is empty.
        rows: the row that it is in, counted from 0, ascending, int64 [k].
    """

    documents: Indices
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of entries of each piece, int64 [k]."""
        return self.ends - self.begins

    def lengths(self, count: int) -> NDArray[np.int64]:
        """Return how many entries each of `count` rows has, int64 [count]."""
        before = np.concatenate(([0], np.cumsum(self.sizes)))
        found: NDArray[np.int64] = np.diff(before[np.searchsorted(self.rows, np.arange(count + 1))])
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """All documents end to end, and then the first one again; a row's number is the place at which it begins.

    Args:
        starts: the place on the ring at which each document begins, and the number of places; int64 [documents + 1].
        length: the entries of a row.
    """

    starts: NDArray[np.int64]
    length: int

    def __len__(self) -> int:
        """Return the number of rows in an epoch."""
        return int(self.starts[-1]) // self.length

    @property
    def numbers(self) -> int:
        """The number of places on the ring, at each of which a row may begin."""
        return int(self.starts[-1]) if len(self) else 0

    @property
    def padding(self) -> float:
        """The share of all rows' entries that are padding."""
        return 0.0

    def pieces(self, numbers: Indices) -> Pieces:
        """Return the pieces in some rows."""
        # Documents count on where the ring begins again; of those that begin at one place only the last has entries.
        total, count = max(int(self.starts[-1]), 1), len(self.starts) - 1
        last = numbers + self.length - 1
        around = last // total
        first_documents = np.searchsorted(self.starts, numbers, "right") - 1
        counts = np.searchsorted(self.starts, last - around * total, "right") + around * count - first_documents
        rows = np.repeat(np.arange(len(numbers)), counts)
        documents = np.arange(len(rows)) + np.repeat(first_documents - (np.cumsum(counts) - counts), counts)
        begun = documents // max(count, 1)
        documents -= begun * count
        starts = self.starts[documents] + begun * total
        begins = np.maximum(numbers[rows] - starts, 0)
        ends = np.minimum(last[rows] + 1 - starts, self.starts[documents + 1] - self.starts[documents])
        pieces = Pieces(documents, begins, ends, rows)
        return pieces if (there := ends > begins).all() else Pieces(*(column[there] for column in pieces))


def ring(base: ReadableDataset, name: str, length: int) -> Ring:
    """Return the ring of all documents of a dataset, whose lengths are read."""
    starts = np.zeros(len(base) + 1, np.int64)
    place = 0
    for lengths in value_lengths(base, name):
        np.cumsum(lengths, out=starts[place + 1 : place + 1 + len(lengths)])
        starts[place + 1 : place + 1 + len(lengths)] += starts[place]
        place += len(lengths)
    return Ring(starts, length)
