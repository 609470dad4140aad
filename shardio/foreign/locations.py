"""The places of many records in many files, 16 bytes each, and the files opened as they are needed."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..system.types import Indices
from .files import File

_THREADS = 16  # scans wait for the disk more than they work
_OPEN = 8  # files kept open: a compressed one has its unpacked bytes on the disk for as long

Opener: TypeAlias = Callable[[Path], File]
"""A module's function, so that it pickles by name; raises SourceError."""

Spans: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Where records begin in their file, and how many bytes they have, both int64 [n]."""


class ValueLocation(NamedTuple):
    """A record's open file, its number in that, where it begins and how many bytes it has."""

    file: File
    row: int
    offset: int
    size: int


@final
class ValueLocations:
    """Records by number, in the order of the files and within each as they lie. Pickled, it carries no open files.

    Attributes:
        paths: the files.
        starts: the first record's number of each file, and behind them the number of all, int64 [files + 1].
        offsets: where each record begins in its file, int64 [n].
        sizes: its bytes, int64 [n].
    """

    def __init__(self, paths: Sequence[Path], found: Sequence[Spans], opener: Opener) -> None:
        self.paths = tuple(paths)
        self.starts = np.cumsum([0, *(len(offsets) for offsets, _ in found)], dtype=np.int64)
        self.offsets = np.concatenate([offsets for offsets, _ in found])
        self.sizes = np.concatenate([sizes for _, sizes in found])
        self._opener = opener
        self._open: dict[int, File] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def locate(self, index: int) -> ValueLocation:
        """Where record `index` is. Raises SourceError if its file cannot be opened."""
        number = bisect_right(self.starts, index) - 1
        file = self._open.pop(number, None) or self._opener(self.paths[number])
        self._open[number] = file  # the last one used stands last
        if len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]
        return ValueLocation(file, index - int(self.starts[number]), int(self.offsets[index]), int(self.sizes[index]))

    def probes(self) -> Indices:
        """The numbers of the first 100 records and of the last one: by them it is known what fields there are."""
        return np.unique(np.append(np.arange(min(100, len(self))), len(self) - 1))


class LocatedSource:
    """What sources of records in files share: see `shardio.source.Adoptable`."""

    threads = True
    container = "indexed"

    def __init__(self, places: ValueLocations) -> None:
        self._places = places

    @property
    def files(self) -> Sequence[Path]:
        """The files."""
        return self._places.paths

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first record's number of each file, and the number of all, `[files + 1]`."""
        return self._places.starts

    def sizes(self) -> NDArray[np.int64]:
        """The bytes that each record has in its file, `[n]`."""
        return self._places.sizes


def scan(paths: Sequence[Path], work: Callable[[Path], Any]) -> list[Any]:
    """`work` of each file, many at once; the first failure, in the order of the files, is raised."""
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        return list(pool.map(work, paths))
