"""Objects that a cache keeps as one file: one after the other, each beginning at a multiple of a piece.

So a store of a million small objects takes one file and one table of the cache, and not a million of them.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from ..format.pieces import PIECE, runs
from ..stores.base import ObjectInfo


class CombinedObjects(ABC):
    """Objects that are one file in a cache, by number, as an index names them.

    Attributes:
        sizes: their bytes, int64 [objects].
        begins: the first piece of each, and where the last one ends, int64 [objects + 1].
    """

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self.sizes, self.begins = sizes, first_pieces(sizes)

    @abstractmethod
    def name(self, number: int) -> str:
        """Return the name of an object in its store."""

    @abstractmethod
    def check(self, number: int, found: ObjectInfo | None) -> None:
        """Raise an error that names an object unless the store has the one that was indexed; None if it has none."""

    @property
    def size(self) -> int:
        """The bytes of the file in the cache, in whole pieces."""
        return int(self.begins[-1]) * PIECE

    def place(self, first: int, stop: int) -> tuple[int, int, int]:
        """Return the number of the object that adjacent pieces are of, and the bytes of it that they hold."""
        number = int(np.searchsorted(self.begins, first, "right")) - 1
        start = (first - int(self.begins[number])) * PIECE
        return number, start, min(start + (stop - first) * PIECE, int(self.sizes[number]))

    def runs(self, pieces: NDArray[np.int64], longest: int) -> list[tuple[int, int]]:
        """Return runs of adjacent pieces of one object each, as `format.pieces.runs` does."""
        number = np.searchsorted(self.begins, pieces, "right")
        parts = np.split(pieces, np.flatnonzero(np.diff(number)) + 1)
        return [run for part in parts for run in runs(part, longest)]


def first_pieces(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first piece of each of some objects in one file, and the piece after the last one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(-(-sizes // PIECE))])
