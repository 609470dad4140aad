"""Base classes of sources, and how they read large arrays: in blocks of rows, and one file open at a time."""

import contextlib
import dataclasses
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.locations import ValueLocations
from shardio.foreign.names import printable
from shardio.source import Field, Source

from ._fields import sample_value

_T = TypeVar("_T")
_BYTES = Field("bytes")
_BLOCK = 1 << 20  # bytes per read: enough to outweigh the cost of a call, and no loss if the rest is not used
_BAND = 16 << 20  # the most bytes of adjacent chunks to read whole for one of their rows


class DataclassSource(Source):
    """A dataclass that pickles without what it caches, and without `remarks` and `hints`, which workers do not need.

    Attributes:
        source: the converter's name.
        classes: if there is such an attribute, the class names, or what the metadata holds of them.
    """

    source: str

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name, and the class names where they are known."""
        classes = getattr(self, "classes", ())
        if classes and not isinstance(classes, Mapping):
            classes = {"classes": list(classes)}
        return {"source": self.source, **dict(classes)}

    def __getstate__(self) -> dict[str, Any]:
        fields: Any = self
        kept = [field.name for field in dataclasses.fields(fields) if field.name not in ("remarks", "hints")]
        return {name: getattr(self, name) for name in kept}


@dataclass(frozen=True, eq=False)
class LocatedSource(DataclassSource):
    """The base of sources whose samples are records in files.

    Attributes:
        places: where the records are.
    """

    places: ValueLocations
    threads = True

    @property
    def files(self) -> Sequence[Path]:  # type: ignore[override]  # a property for a declared attribute
        return self.places.paths

    def sizes(self) -> NDArray[np.int64]:
        return self.places.sizes


class ColumnSource(DataclassSource, ABC):
    """A dataclass whose samples are rows of columns.

    Attributes:
        columns: the columns to read, by field. Each has a `field`, and the `mean` bytes of a row, 0 until it is known.
    """

    columns: Mapping[str, Any]

    @property
    @abstractmethod
    def _count(self) -> int:
        """The number of samples."""

    def _measured(self, column: Any) -> Any:
        """A column with the kind and the average size of its values, see `measure`; as it is, where none varies."""
        return column

    @abstractmethod
    def _fill(self, name: str, out: NDArray[Any]) -> None:
        """Read all values of the scalar field `name` into `out`; BadSample if one cannot be read."""

    @property
    def fields(self) -> Mapping[str, Field]:
        return {name: column.field for name, column in self.columns.items()}

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of each sample, `[n]`: exact for numbers, an average over some rows for what varies."""
        try:
            return np.full(self._count, sum(column.mean for column in self.columns.values()), np.int64)
        except (MemoryError, ValueError, OverflowError) as error:
            raise SourceError(f"the source claims {self._count} rows, which are too many") from error

    def column(self, name: str) -> NDArray[Any] | None:
        """See `Source.column`: any scalar of rows. None for nulls or damage: reading row by row finds the row."""
        column = self.columns.get(name)
        if column is None or column.field.kind != "scalar" or getattr(column, "whole", False):
            return None
        values = np.empty(self._count, column.field.row_dtype)
        try:
            self._fill(name, values)
        except BadSample:
            return None
        return values

    def measured(self) -> Self:
        """This source with the kinds and average sizes of columns that vary from row to row, from reading some rows."""
        source: Any = self
        found: Self = dataclasses.replace(source, columns={n: self._measured(c) for n, c in self.columns.items()})
        return found


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """An array of a file or a store whose rows can become a field.

    Attributes:
        path: its path in the file.
        shape: its shape, `(n, ...)`.
        field: the field that holds its rows.
        problem: why it cannot be a field; empty if it can.
        mean: the average bytes of a row; 0 where that is not known yet.
        dimensions: the names of its axes, that of the samples first; () if it has none.
        axis: the axis of the array that the samples are along, which is the first one of `shape`.
        file: the number, from 1, of the merged file that it is in; 0 for the file itself.
        whole: whether the array is one row: a sample is a file or a group, and the shape begins with an axis of 1.
    """

    path: str
    shape: tuple[int, ...]
    field: Field = _BYTES
    problem: str = ""
    mean: int = 0
    dimensions: tuple[str | None, ...] = ()
    axis: int = 0
    file: int = 0
    whole: bool = False

    def form(self) -> tuple[Any, ...]:
        """Return the attributes that a field's columns share in all files, other than kind, dtype and shape."""
        return ()


def first_axis(axes: tuple[_T, ...], axis: int) -> tuple[_T, ...]:
    """Return what is known of each axis of an array, with one of them moved to the front."""
    return (*axes[axis : axis + 1], *axes[:axis], *axes[axis + 1 :])


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


@final
class OneOpenFile(Generic[_T]):
    """Numbered files with a method `close`, one open at a time. A forked child uses none that it inherited."""

    def __init__(self, opens: Callable[[int], _T]) -> None:
        self._opens = opens
        self._open: Any = None
        self._key = (0, -1)

    def get(self, number: int) -> _T:
        """Open file `number`, or return it if it is open; the one before is closed."""
        if self._open is None or self._key != (os.getpid(), number):
            if self._open is not None:
                self._open.close()
                self._open = None  # in case opening the next one fails
            self._open = self._opens(number)
            self._key = (os.getpid(), number)
        found: _T = self._open
        return found


class ColumnReader(ABC):
    """An open file of columns, with the latest block of each.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._blocks = path, BlockCache()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _element(self, column: Any, row: int, alone: bool) -> Any:
        """Row `row` of a column as it is read; BadSample if that fails."""

    @abstractmethod
    def _step(self, column: Any) -> int:
        """Return the number of rows to read at once."""

    @abstractmethod
    def _rows(self, column: Any, start: int, stop: int) -> NDArray[Any]:
        """Rows that follow each other; BadSample if they cannot be read."""

    def value(self, column: Any, row: int, *, alone: bool = False) -> Any:
        """Row `row` as a sample's value; BadSample names the row. `alone` reads only this row instead of its block."""
        try:
            return sample_value(self._element(column, row, alone), column.field)
        except (BadSample, LookupError, TypeError) as error:  # TypeError: an empty value instead of numbers
            where = ", ".join(filter(None, (printable(self._path), column.path)))
            raise BadSample(f"{where}, row {row}: {error}") from error

    def fill(self, column: Any, out: NDArray[Any]) -> None:
        """Read all rows of a column of scalars into `out`; BadSample if they cannot be read."""
        step = self._step(column)
        for low in range(0, len(out), step):
            out[low : low + step] = self._rows(column, low, min(low + step, len(out)))


@final
class MergedReaders:
    """The open readers of a file and of those that are merged with it.

    Args:
        paths: the file, then the others.
        columns: the columns to read; `file` of each is the number of its file.
        opens: returns a reader of columns of a file; SourceError if that fails.
    """

    def __init__(
        self, paths: Sequence[Path], columns: Collection[Any], opens: Callable[[Path, list[Any]], ColumnReader]
    ) -> None:
        with contextlib.ExitStack() as opened:
            self._readers = [
                opened.enter_context(contextlib.closing(opens(path, [one for one in columns if one.file == number])))
                for number, path in enumerate(paths)
            ]
            self.close = opened.pop_all().close

    def of(self, column: Any) -> Any:
        """Return the reader of a column."""
        return self._readers[column.file]
