"""Windows: their rows, read once where several windows hold them, along an axis of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..containers.extents import NO_BLOCKS, Blocks, Extent, Several, each_extent
from ..containers.out_arrays import check_blocks, check_out
from ..errors import ConfigError
from ..format.fields import CHECKSUM, Field, content_columns, describe, present_column
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Indices
from .derived import Grouped
from .index_map import IndexMap
from .readable import ReadableDataset, SelectedSamples, Stored, StoredPart, as_indices
from .window_starts import Starts


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
class WindowSelection(SelectedSamples):
    """Windows to read, in a fixed order: each row is read once, however many of the windows hold it.

    Args:
        base: the dataset that has the rows.
        field: returns a field or hidden column of windows.
        rows: the rows of each window, int64 [n, length].
        max_value_bytes: the most bytes of one value, see `Limits`.
    """

    def __init__(
        self, base: ReadableDataset, field: Callable[[str], Field], rows: Indices, max_value_bytes: int
    ) -> None:
        self._base, self._field, self._rows, self._most = base, field, rows, max_value_bytes
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
            return WindowSelection(self._base, self._field, self._rows[part], self._most)
        found, length = copy.copy(self), self._rows.shape[1]
        start, stop, _ = part.indices(len(self._rows))
        found._rows, found._selection = self._rows[part], self._selection[start * length : stop * length]
        return found

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        selection, own = self._of_rows(blocks)
        return selection.stored_parts(self._with_checked(names), own)

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a field as an array [n, length, *shape]; or the hidden column that says which windows have all of it."""
        field = self._field(name)
        if not field.window:
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
        """Read a block of each window; a block of as many axes as a window also cuts its rows."""
        field = self._field(name)
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

    def sizes(self, name: str) -> NDArray[np.int64]:
        return np.full(len(self._rows), self._field(name).row_bytes, np.int64)

    def _of_rows(self, blocks: Mapping[str, Extent]) -> tuple[SelectedSamples, dict[str, Extent]]:
        """Return a selection of rows and the blocks of each: rows come repeatedly where windows share them.

        A block of fewer rows than a window has is one of all of them here.
        """
        own: dict[str, Extent] = {}
        for name, each in blocks.items():
            axes = len(self._field(name).row_shape) - 1
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


class WindowRows(Grouped[IndexMap]):
    """Windows of a dataset: each sample is several neighbouring rows of it.

    Attributes:
        base: the dataset that has the rows.
        choice: the first row of each window, and which rows follow it.
        path: the path of the dataset at the bottom.
    """

    choice: Starts
    word = "window"

    def __init__(self, base: ReadableDataset, choice: Starts) -> None:
        super().__init__(base, choice, windowed(base.fields, choice.length, base.path))

    def _in_base(self, indices: Indices) -> Indices:
        """Return the first row of each window."""
        return self._decided()(indices)

    def _rows(self, indices: Indices) -> Indices:
        """Return the rows of windows, int64 [n, length]."""
        return self.choice.rows(self._in_base(indices))

    def members(self, indices: Indices) -> Indices:
        return np.unique(self._rows(indices))

    def known_members(self, indices: Indices, stored: Stored) -> Stored:
        rows = self._rows(indices)
        places = np.unique(rows, return_index=True)[1]
        # Where a window lacks an optional value it has zeros, even for the rows that have theirs.
        known = {n: np.asarray(column) for n, column in stored.items() if not self._fields[n].optional}
        return {n: c.reshape(rows.size, *c.shape[2:])[places] for n, c in known.items()}

    def __len__(self) -> int:
        return len(self._decided())

    @property
    def shard_means(self) -> NDArray[np.float64]:
        return super().shard_means * self.choice.length

    def __repr__(self) -> str:
        left_out = ", ".join(name for name in self.base.fields if name not in self._fields)
        without = f" without {left_out}, whose values differ in size" if left_out else ""
        return f"<Windows {self._told()}: {len(self)} of {self.base!r}{without}>"

    def field(self, name: str) -> Field:
        if (found := self._fields.get(name)) is not None:
            return found
        stored = self.base.field(name)
        if name in map(present_column, self._fields):
            return stored
        raise ConfigError(f"{self.path}: windows leave out {name!r}, whose values differ in size: {describe(stored)}")

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the numbers, int64 [n, length], that the rows of windows have in the dataset at the bottom."""
        rows = self._rows(self._checked(as_indices(indices)))
        return self.base.origin(rows.reshape(-1)).reshape(rows.shape)

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate windows, as `Dataset.selection` does; rows that several of them hold are read once."""
        return WindowSelection(self.base, self.field, self._rows(self._checked(indices)), max_value_bytes)

    def warn_of_small_cache(self, window: int) -> None:
        rows = min(window, len(self)) * min(self.choice.stride, self.choice.length)
        self.base.warn_of_small_cache(min(rows, len(self.base)))
