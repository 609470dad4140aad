"""Windows: samples that are several neighbouring rows of a dataset, cut from sequences that never run into each other.

A sequence is rows that follow each other in the dataset: those of one source file, of one value of a column, or all. A
coordinate may end it as well, where its step is another one. Each sequence has windows from its own first row on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..cache.node_cache import Hold
from ..containers.extents import NO_BLOCKS, Blocks, Extent, Several, each_extent
from ..containers.out_arrays import check_blocks, check_out
from ..containers.packed_values import Scratch
from ..errors import ConfigError
from ..format import coordinates
from ..format.fields import CHECKSUM, Field, content_columns, describe, present_column
from ..format.limits import MAX_VALUE_BYTES
from ..system.rules import Range, check_fields
from ..system.types import Buffer, Column, Indices
from .columns import in_parts
from .index_map import IndexMap, of_runs
from .readable import ReadableDataset, SelectedSamples

FILE, ALL = "file", "dataset"
"""What ends a sequence, if it is no column: the end of a source file, or nothing."""

_Rows: TypeAlias = Annotated[int, Range(1, 1 << 31)]  # whose products fit in 64 bits
_MOST_STEPS = 1 << 20  # of a coordinate, of which the median is taken
_NO_FILES = (
    "{within:file} needs to know the source files of samples, which only data that `shardio index` adopted tells, and "
    "{} has no field 'file' either: give {within:dataset}, or the name of a column that changes where a sequence ends"
)


@final
@dataclass(frozen=True, slots=True)
class Starts:
    """The choice of the first row of each window.

    Attributes:
        length: the rows of a window.
        stride: the rows from the start of a window to the start of the next one.
        step: the rows from one row of a window to the next one.
        within: `file`, `dataset` or the name of a column: what ends a sequence.
        contiguous: the coordinate at whose gaps sequences end, too, with its step; None for none.
    """

    length: _Rows
    stride: _Rows
    step: _Rows
    within: str
    contiguous: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.within, str):
            raise ConfigError(f"within must be {FILE!r}, {ALL!r} or the name of a field, got {self.within!r}")

    @property
    def span(self) -> int:
        """The rows of the dataset from the first to the last one of a window."""
        return (self.length - 1) * self.step + 1

    def rows(self, starts: Indices) -> Indices:
        """Return the rows, int64 [n, length], of the windows that start at some rows, int64 [n]."""
        return starts[:, None] + self.step * np.arange(self.length)

    def index_map(self, base: ReadableDataset) -> IndexMap:
        ends = _Ends(base, self.within, self.contiguous)

        def beginnings(numbers: Indices) -> Indices:
            pairs = np.arange(max(int(numbers[0]) - 1, 0), int(numbers[-1]) + 1)
            return pairs[1:][ends(pairs)]

        trivial = self.within == ALL and self.contiguous is None
        found = () if trivial else in_parts(beginnings, len(base))
        firsts = np.concatenate([np.zeros(1, np.int64), *found])
        room = np.diff(firsts, append=len(base)) - self.span
        return of_runs(firsts, np.maximum(room // self.stride + 1, 0), self.stride)

    def description(self) -> dict[str, Any]:
        contiguous = None if self.contiguous is None else list(self.contiguous)
        return {
            "windows": [self.length, self.stride, self.step],
            "within": self.within,
            "contiguous": contiguous,
        }

    def in_earlier(self, chosen: IndexMap, samples: int) -> int | None:
        return chosen.leading(max(samples - self.span + 1, 0))


def usual_step(base: ReadableDataset, within: str, name: str) -> float:
    """Return the median of a coordinate's steps from row to row within sequences, in six digits.

    A million of them are enough, evenly spaced. 0 if no sequence has two rows; ConfigError for a field that is no
    coordinate, for numbers too coarse to tell a step from a gap, and for those that mostly repeat.
    """
    _check_coordinate(base, name)
    ends, every = _Ends(base, within, None), -(-len(base) // _MOST_STEPS)

    def steps(numbers: Indices) -> tuple[NDArray[np.float64], float]:
        values, present = ends.read(name, numbers)
        found = _steps(values, present)[~ends(numbers)]
        return found[np.isfinite(found)][::every], coordinates.resolution(values[present])

    parts = list(in_parts(steps, len(base)))
    found = np.concatenate([np.empty(0), *(part for part, _ in parts)])
    usual, apart = coordinates.usual_step(found), max((apart for _, apart in parts), default=0.0)
    if coordinates.is_too_coarse(found, apart):
        raise ConfigError(
            f"contiguous: {name!r} of {base.path} is {base.field(name).dtype}, whose numbers are up to {apart:.6g} "
            f"apart, too coarse to tell steps of {usual:.6g} from gaps: store it as float64 or whole numbers"
        )
    if len(found) and not usual:
        raise ConfigError(f"contiguous: {name!r} of {base.path} is the same in most neighbouring rows: it has no step")
    return usual


def _steps(values: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the steps between neighbouring values of a coordinate; NaN where a row lacks the value."""
    exact = np.int64 if values.dtype.kind in "iub" else np.float64
    steps: NDArray[np.float64] = np.diff(values.astype(exact)).astype(np.float64)
    steps[~(present[1:] & present[:-1])] = np.nan
    return steps


def _check_coordinate(base: ReadableDataset, name: str) -> None:
    field = base.field(name)
    if field.kind != "scalar" or field.row_dtype.kind not in "iufb":
        raise ConfigError(f"contiguous must be a scalar of real numbers, {name!r} is {describe(field)}")


@final
class _Ends:
    """Tells where a sequence ends between two rows."""

    def __init__(self, base: ReadableDataset, within: str, contiguous: tuple[str, float] | None) -> None:
        self._base, self._contiguous = base, contiguous
        if contiguous is not None:
            _check_coordinate(base, contiguous[0])
        self._by_file = within == FILE and base.adopted
        if within == FILE and not self._by_file and FILE not in base.fields:
            raise ConfigError(_NO_FILES, base.path)
        self._column = None if within == ALL or self._by_file else within
        if self._column is not None and (field := base.field(within)).kind not in ("scalar", "text"):
            raise ConfigError(
                f"within must be {FILE!r}, {ALL!r} or a field that is a scalar or text, {within!r} is {describe(field)}"
            )

    def __call__(self, numbers: Indices) -> NDArray[np.bool_]:
        """Return whether a sequence ends between neighbours in `numbers`, int64 [n]; bool [n - 1]."""
        ends = np.zeros(len(numbers) - 1, np.bool_)
        if self._by_file:
            files = self._base.shard_numbers(numbers)
            ends |= files[1:] != files[:-1]
        if (name := self._column) is not None:
            values, present = self.read(name, numbers)
            ends |= present[1:] != present[:-1]
            if isinstance(values, np.ndarray):
                ends |= values[1:] != values[:-1]
            else:
                texts = [bytes(value) for value in values]
                ends |= np.fromiter(map(bytes.__ne__, texts[1:], texts), np.bool_, len(ends))
        if self._contiguous is not None:
            name, usual = self._contiguous
            ends |= ~(np.abs(_steps(*self.read(name, numbers)) - usual) < abs(usual) / 2)
        return ends

    def read(self, name: str, numbers: Indices) -> tuple[Any, NDArray[np.bool_]]:
        """Return the stored values of a field, and which rows have one."""
        field, selection = self._base.field(name), self._base.selection(numbers)
        column = present_column(name)
        with selection.fetch([name, *([column] if field.optional else [])]):
            present = selection.column(column) if field.optional else np.ones(len(numbers), np.bool_)
            return selection.stored(name), present


def windowed(fields: Mapping[str, Field], length: int, path: object) -> dict[str, Field]:
    """Return the fields of windows: arrays with an axis of `length` rows before their own.

    ConfigError if no field has values of one size, or if samples are windows already.
    """
    if any(field.window for field in fields.values()):
        raise ConfigError(f"{path}: its samples are windows already, and windows are made of rows")
    found = {
        name: Field(
            "array",
            field.row_dtype.name,
            (length, *field.row_shape),
            optional=field.optional,
            attributes=field.attributes,
            window=True,
        )
        for name, field in fields.items()
        if field.fixed
    }
    if not found:
        listed = ", ".join(f"{name} ({describe(field)})" for name, field in fields.items())
        raise ConfigError(f"{path}: windows need a field whose values have one size; there are {listed}")
    return found


@final
class WindowSelection:
    """Windows to read, in a fixed order: each row is read once, however many of the windows hold it.

    Args:
        base: the dataset that has the rows.
        fields: the fields of windows.
        rows: the rows of each window, int64 [n, length].
        max_value_bytes: the most bytes of one value, see `Limits`.
    """

    def __init__(
        self, base: ReadableDataset, fields: Mapping[str, Field], rows: Indices, max_value_bytes: int = MAX_VALUE_BYTES
    ) -> None:
        self._base, self._fields, self._rows, self._most = base, fields, rows, max_value_bytes
        distinct, places = np.unique(rows, return_inverse=True)
        self._overlap = len(distinct) < rows.size
        self._places = places.reshape(-1)
        self._distinct = distinct if self._overlap else rows.reshape(-1)

    @cached_property
    def _selection(self) -> SelectedSamples:
        return self._base.selection(self._distinct, self._most)

    def locate(self, names: Iterable[str]) -> None:
        if not self._overlap:  # parts have other distinct rows
            self._selection.locate(self._with_checked(names))

    def __getitem__(self, part: slice) -> WindowSelection:
        if self._overlap:
            return WindowSelection(self._base, self._fields, self._rows[part], self._most)
        found, length = copy.copy(self), self._rows.shape[1]
        start, stop, _ = part.indices(len(self._rows))
        found._rows, found._selection = self._rows[part], self._selection[start * length : stop * length]
        return found

    def fetch(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> AbstractContextManager[None]:
        selection, own = self._of_rows(blocks)
        return selection.fetch(self._with_checked(names), own)

    def prefetch(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> list[Hold] | None:
        selection, own = self._of_rows(blocks)
        return selection.prefetch(self._with_checked(names), own)

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a field as an array [n, length, *shape]; or the hidden column that says which windows have all of it."""
        field = self._fields.get(name)
        if field is None:
            there = self._selection.column(name)
            there = there[self._places] if self._overlap else there
            return np.all(there.reshape(self._rows.shape), axis=1, out=out)
        array = check_out(out, len(self._rows), field)
        rows = array.reshape(self._rows.size, *field.row_shape[1:])
        if self._overlap:
            np.take(self._selection.column(name), self._places, axis=0, out=rows, mode="clip")  # "raise" takes a copy
        else:
            self._selection.column(name, rows)
        if field.optional:
            array[~self.column(present_column(name))] = 0
        return array

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a block of each window, which may be one of its rows, too, if it has as many axes as a window."""
        field = self._fields[name]
        array = check_blocks(blocks, out, len(self._rows), field)
        rows, axes = self._rows, len(field.row_shape) - 1
        first, size = np.zeros(len(rows), np.int64), rows.shape[1]
        if len(blocks.size) > axes:
            first, size = blocks.begins[:, 0], blocks.size[0]
            rows = np.take_along_axis(rows, first[:, None] + np.arange(size), axis=1)
        begins, lengths = blocks.begins[:, -axes:], blocks.size[-axes:]
        # Windows that share a row have blocks of their own of it.
        plain = rows is self._rows and not self._overlap
        selection = self._selection if plain else self._base.selection(rows.reshape(-1), self._most)
        target = array.reshape(rows.size, *array.shape[2:])
        if axes:
            selection.blocks(name, Blocks(np.repeat(begins, size, axis=0), lengths), target)
        else:
            selection.column(name, target)
        if field.optional:
            array[~self.column(present_column(name))] = 0
        return array

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        raise ConfigError(f"all values of field {name!r} have one size; read it with column()")

    def parts(
        self,
        name: str,
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        out: NDArray[Any] | None = None,
        scratch: Scratch | None = None,
    ) -> NDArray[Any]:
        raise ConfigError(f"all values of field {name!r} have one size, so that it has no parts")

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        return self.column(name, out)

    def sizes(self, name: str) -> NDArray[np.int64]:
        return np.full(len(self._rows), self._fields[name].row_bytes, np.int64)

    def _of_rows(self, blocks: Mapping[str, Extent]) -> tuple[SelectedSamples, dict[str, Extent]]:
        """Return a selection of rows and the blocks of each: rows come repeatedly where windows share them.

        A block of fewer rows than a window has is one of all of them here.
        """
        own: dict[str, Extent] = {}
        for name, each in blocks.items():
            axes = len(self._fields[name].row_shape) - 1
            of_rows = [self._blocks_of_rows(one, axes) for one in each_extent(each) if isinstance(one, Blocks) and axes]
            if of_rows:
                own[name] = Several(tuple(of_rows)) if isinstance(each, Several) else of_rows[0]
        every = own and self._overlap
        return self._base.selection(self._rows.reshape(-1), self._most) if every else self._selection, own

    def _blocks_of_rows(self, blocks: Blocks, axes: int) -> Blocks:
        begins = np.repeat(blocks.begins[:, -axes:], self._rows.shape[1], axis=0)
        return Blocks(begins, blocks.size[-axes:])

    def _with_checked(self, names: Iterable[str]) -> list[str]:
        """Return names, and with the checksums also the fields of the rows that windows leave out."""
        listed = list(names)
        return [*listed, *set(content_columns(self._base.fields)).difference(listed)] if CHECKSUM in listed else listed


def rows_to_check(
    rows: Indices, fields: Mapping[str, Field], stored: Mapping[str, Column | Sequence[Buffer]]
) -> tuple[Indices, dict[str, Column]]:
    """Return the distinct rows of windows, int64 [m], and of the fields that were read, the stored values of these."""
    distinct, places = np.unique(rows, return_index=True)
    # Where a window lacks an optional value it has zeros, even for the rows that have theirs.
    known = {n: np.asarray(column) for n, column in stored.items() if not fields[n].optional}
    return distinct, {n: c.reshape(rows.size, *c.shape[2:])[places] for n, c in known.items()}
