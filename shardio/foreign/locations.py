"""Locations of many records in many files, in 16 bytes per record; files open when they are needed."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..system.types import Indices
from .files import File

_THREADS = 16  # scans mostly wait for the disk
_OPEN = 8  # files kept open: a compressed one occupies the disk unpacked for as long

Opener: TypeAlias = Callable[[Path], File]
"""Open a file or raise SourceError; a module-level function, so that it pickles by name."""

Spans: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The offset of each record in its file, and its bytes; both int64 `[n]`."""


class ValueLocation(NamedTuple):
    """A record's open file, its number in that file, its offset, and its size in bytes."""

    file: File
    row: int
    offset: int
    size: int


@final
class ValueLocations:
    """Locates records by number, which counts file by file. Pickling leaves out open files.

    Args:
        paths: the files.
        spans: the spans of each file's records.
        opener: opens one of the files.

    Attributes:
        paths: the files.
        starts: the number of each file's first record, followed by the number of records, int64 `[files + 1]`.
        offsets: the offset of each record in its file, int64 `[n]`.
        sizes: the bytes of each record, int64 `[n]`.
    """

    def __init__(self, paths: Sequence[Path], spans: Sequence[Spans], opener: Opener) -> None:
        self.paths = tuple(paths)
        self.starts = np.cumsum([0, *(len(offsets) for offsets, _ in spans)], dtype=np.int64)
        self.offsets = np.concatenate([offsets for offsets, _ in spans])
        self.sizes = np.concatenate([sizes for _, sizes in spans])
        self._opener = opener
        self._open: dict[int, File] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def locate(self, index: int) -> ValueLocation:
        """Locate record `index`, opening its file if necessary; SourceError if that fails."""
        number = bisect_right(self.starts, index) - 1
        file = self._open.pop(number, None) or self._opener(self.paths[number])
        self._open[number] = file  # last: the most recently used
        if len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]
        return ValueLocation(file, index - int(self.starts[number]), int(self.offsets[index]), int(self.sizes[index]))

    def probes(self) -> Indices:
        """Return the numbers of the records from which fields are inferred: the first 100 and the last."""
        return np.unique(np.append(np.arange(min(100, len(self))), len(self) - 1))


class LocatedSource:
    """The base of sources whose samples are records in files: an `shardio.source.Adoptable` except for the fields."""

    threads = True
    container = "indexed"

    def __init__(self, places: ValueLocations) -> None:
        self._places = places

    @property
    def files(self) -> Sequence[Path]:
        return self._places.paths

    @property
    def starts(self) -> NDArray[np.int64]:
        return self._places.starts

    def sizes(self) -> NDArray[np.int64]:
        """Return the size in bytes of each record, `[n]`."""
        return self._places.sizes


def scan_files(paths: Sequence[Path], work: Callable[[Path], Any]) -> list[Any]:
    """Call `work` for each file, in parallel; raise the first failure in the order of the files."""
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        return list(pool.map(work, paths))
