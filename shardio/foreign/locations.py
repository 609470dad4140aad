"""Locations of many records in many files, in 16 bytes per record; files open when they are needed."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, SourceError
from ..system.types import Indices
from .files import File

T = TypeVar("T")

LOST_END = "the rest of the file is lost"
"""The end of the reason why a sample is bad that stands for all that damage has lost at a file's end."""

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
        damage: why each file's records end early, None for a whole file; without it, all are whole. One more record,
            which cannot be located, then stands for all that are lost at the file's end.

    Attributes:
        paths: the files.
        starts: the number of each file's first record, followed by the number of records, int64 `[files + 1]`.
        offsets: the offset of each record in its file, int64 `[n]`.
        sizes: the bytes of each record, int64 `[n]`.
    """

    def __init__(
        self, paths: Sequence[Path], spans: Sequence[Spans], opener: Opener, damage: Sequence[str | None] = ()
    ) -> None:
        reasons = {file: reason for file, reason in enumerate(damage) if reason is not None}
        spans = [
            (np.append(at, 0), np.append(n, 0)) if file in reasons else (at, n) for file, (at, n) in enumerate(spans)
        ]
        self.paths = tuple(paths)
        self.starts = np.cumsum([0, *(len(offsets) for offsets, _ in spans)], dtype=np.int64)
        self.offsets = np.concatenate([offsets for offsets, _ in spans])
        self.sizes = np.concatenate([sizes for _, sizes in spans])
        self._damage = {int(self.starts[file + 1]) - 1: reason for file, reason in reasons.items()}
        self._opener = opener
        self._open: dict[int, File] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def locate(self, index: int) -> ValueLocation:
        """Locate record `index`, opening its file if necessary.

        Raises SourceError if that fails, BadSample if the record stands for those that damage has lost.
        """
        if index in self._damage:
            raise BadSample(self._damage[index])
        number = self._file_of(index)
        file = self._open.pop(number, None) or self._opener(self.paths[number])
        self._open[number] = file  # last: the most recently used
        if len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]
        return ValueLocation(file, index - int(self.starts[number]), int(self.offsets[index]), int(self.sizes[index]))

    def path_of(self, index: int) -> Path:
        return self.paths[self._file_of(index)]

    def _file_of(self, index: int) -> int:
        return bisect_right(self.starts, index) - 1

    def probes(self) -> Indices:
        """Return the numbers of the records that fields are inferred from: the first 100 and the last."""
        return np.unique(np.append(np.arange(min(100, len(self))), len(self) - 1))


def scan_files(paths: Sequence[T], work: Callable[[T], Any]) -> list[Any]:
    """Call `work` for each file in parallel; raise the first failure in the order of the files."""
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        return list(pool.map(work, paths))


def scan_damaged_files(
    paths: Sequence[Path], work: Callable[[Path, list[str]], T], on_error: str
) -> tuple[list[T], list[str | None]]:
    """Call `work(path, damage)` for each file as `scan_files` does, where `work` may find files whose ends are lost.

    Args:
        paths: the files.
        work: adds the reason to `damage` if the end of a file is lost.
        on_error: `"raise"`, or `"skip"` to take what precedes the damage.

    Returns:
        The results, and for each file the reason why its end is lost, or None.

    Raises ConfigError for another `on_error`, and with `"raise"` SourceError for a file whose end is lost.
    """
    if on_error not in ("raise", "skip"):
        raise ConfigError("{on_error} must be 'raise' or 'skip', got {!r}", on_error)

    def scanned(path: Path) -> tuple[T, str | None]:
        damage: list[str] = []
        result = work(path, damage)
        if damage and on_error == "raise":
            raise SourceError("{}; {on_error:skip} takes what precedes the damage", damage[0])
        return result, f"{damage[0]}; {LOST_END}" if damage else None

    found = scan_files(paths, scanned)
    return [result for result, _ in found], [reason for _, reason in found]
