"""Rows of one length made of documents: cut from all of them end to end, or packed with whole ones.

A document is the value of a ragged field. `views/documents.py` and `views/packed_table.py` decide which pieces of
documents a row has, as `views/row_choice.py` asks for; this module reads them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..containers.extents import NO_BLOCKS, Blocks, Extent, Runs
from ..containers.out_arrays import check_blocks, check_out, part_memory
from ..containers.packed_values import Scratch
from ..errors import BadSample, ConfigError
from ..format.fields import CHECKSUM, Field, content_columns, length_column
from ..format.limits import MAX_VALUE_BYTES
from ..order.plan import Order, Shuffle
from ..order.ring import RingPlan
from ..system.types import Buffer, Indices
from .derived import Grouped
from .documents import Pieces
from .readable import ReadableDataset, SelectedSamples, StoredPart, as_indices
from .row_choice import Cut, RowChoice, RowLayout, row_fields

_memory = threading.local()  # of what is read before it is converted: fresh pages cost more than the copy


@final
class RowSelection(SelectedSamples):
    """Rows to read, in a fixed order.

    Args:
        base: the dataset that has the documents.
        choice: how these make rows.
        field: returns a field or hidden column of rows.
        pieces: the pieces of documents in the rows.
        count: the number of rows.
        max_value_bytes: the most bytes of one value, see `Limits`.
    """

    def __init__(
        self,
        base: ReadableDataset,
        choice: RowChoice,
        field: Callable[[str], Field],
        pieces: Pieces,
        count: int,
        max_value_bytes: int,
    ) -> None:
        self._base, self._choice, self._field = base, choice, field
        self._pieces, self._count = pieces, count
        self._selection: SelectedSamples = base.selection(pieces.documents, max_value_bytes)

    def locate(self, names: Iterable[str]) -> None:
        self._selection.locate(self._stored(names)[0])

    def __getitem__(self, part: slice) -> RowSelection:
        start, stop, _ = part.indices(self._count)
        found, cut = copy.copy(self), slice(*np.searchsorted(self._pieces.rows, (start, stop)).tolist())
        pieces = Pieces(*(column[cut] for column in self._pieces))
        found._pieces = pieces._replace(rows=pieces.rows - start)
        found._count, found._selection = stop - start, self._selection[cut]
        return found

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        return self._selection.stored_parts(*self._stored(names))

    def _stored(self, names: Iterable[str]) -> tuple[list[str], Mapping[str, Extent]]:
        """Return the fields of documents that reading fields of rows needs, and which entries of them.

        With their checksums, these are all.
        """
        asked, name = {*names}, self._choice.field
        if CHECKSUM in asked:
            return [CHECKSUM, *content_columns(self._base.fields)], NO_BLOCKS
        entries = {name: Runs(self._pieces.begins, self._pieces.ends)}
        return ([name, length_column(name)], entries) if name in asked else ([], NO_BLOCKS)

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        of, pieces = self._choice.field, self._pieces
        array, sizes = check_out(out, self._count, self._field(name)), pieces.sizes
        if name == of:
            return self._entries(array)
        if name == f"{of}_length":
            array[...] = pieces.lengths(self._count)
            return array
        if name == length_column(f"{of}_cu_seqlens"):
            array[...] = np.bincount(self._segments()[0], minlength=self._count)
            return array
        if name == f"{of}_position":
            first = np.repeat(np.cumsum(sizes) - sizes, sizes)
            return self._fill(array, np.arange(len(first)) - first, 0)
        within = np.arange(len(sizes)) - np.searchsorted(pieces.rows, pieces.rows)
        return self._fill(array, np.repeat(within, sizes), -1)

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read rows, and return a block of each."""
        return blocks.cut(self.column(name), check_blocks(blocks, out, self._count, self._field(name)))

    def _fill(self, array: NDArray[Any], values: NDArray[Any], padding: float) -> NDArray[Any]:
        """Put values, row by row, where documents are, and padding behind them."""
        lengths, length, first, done = self._pieces.lengths(self._count), array.shape[1], 0, 0
        # The full rows between two that aren't are copied in one go.
        for row in (*np.flatnonzero(lengths < length).tolist(), len(array)):
            start = done + (row - first) * length
            array[first:row] = values[done:start].reshape(row - first, *array.shape[1:])
            if row < len(array):
                done = start + int(lengths[row])
                array[row, : done - start], array[row, done - start :] = values[start:done], padding
            first = row + 1
        return array

    def _entries(self, array: NDArray[Any]) -> NDArray[Any]:
        pieces, stored = self._pieces, self._base.field(self._choice.field)
        entries = array.reshape(-1, *stored.entry_shape)
        if stored.row_dtype == array.dtype and int(pieces.sizes.sum()) == len(entries):
            self._read(entries, stored)
            return array
        if (memory := getattr(_memory, "scratch", None)) is None:
            memory = _memory.scratch = Scratch()
        values = part_memory(None, int(pieces.sizes.sum()), stored, memory)
        self._read(values, stored)
        return self._fill(array, values, self._choice.value)

    def _read(self, out: NDArray[Any], stored: Field) -> None:
        """Read all pieces end to end; BadSample names the position of a token that the vocabulary lacks."""
        pieces = self._pieces
        self._selection.parts(self._choice.field, Runs(pieces.begins, pieces.ends), out)
        known = stored.vocabulary
        if known is None or not len(out) or 0 <= out.min() <= out.max() < known:
            return
        wrong = (out < 0) | (out >= known)
        token, value = int(np.argmax(wrong.reshape(len(out), -1).any(axis=1))), out[wrong][0]
        ends = np.cumsum(pieces.sizes)
        piece = int(np.searchsorted(ends, token, "right"))
        place = int(pieces.ends[piece]) - int(ends[piece]) + token
        document = self._base.path / f"{self._base.locate(int(pieces.documents[piece]))}"
        raise BadSample(
            f"{document}, field {self._choice.field!r}: token {value} at place {place} is not in the "
            f"vocabulary, which has {known} tokens"
        )

    def _segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the size of each segment, row by row: pieces of documents, and last the padding."""
        rows, sizes = self._pieces.rows, self._pieces.sizes
        padding = self._choice.length - self._pieces.lengths(self._count)
        padded = np.flatnonzero(padding)
        if not len(padded):
            return rows, sizes
        places = np.searchsorted(rows, padded, "right")
        return np.insert(rows, places, padded), np.insert(sizes, places, padding[padded])

    def parts(
        self, name: str, runs: Runs, out: NDArray[Any] | None = None, scratch: Scratch | None = None
    ) -> NDArray[Any]:
        field = self._field(name)
        if not field.ragged:
            return super().parts(name, runs)  # raises
        rows, sizes = self._segments()
        firsts = runs.repeated(np.searchsorted(rows, np.arange(self._count))) + runs.begins
        counts = runs.ends - runs.begins
        array = part_memory(out, int(counts.sum()), field, scratch)
        array[...] = sizes[np.arange(len(array)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)]
        return array

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        field = self._field(name)
        if not field.ragged:
            return super().values(name)  # raises
        rows, sizes = self._segments()
        ends = np.cumsum(np.bincount(rows, minlength=self._count))
        return [part.tobytes() for part in np.split(sizes.astype(field.row_dtype), ends[:-1])][: self._count]

    def sizes(self, name: str) -> NDArray[np.int64]:
        if (field := self._field(name)).ragged:
            return np.bincount(self._segments()[0], minlength=self._count) * field.entry_bytes
        return np.full(self._count, field.row_bytes, np.int64)


class DocumentRows(Grouped[RowLayout]):
    """Rows of one length, made of documents.

    Attributes:
        base: the dataset that has the documents.
        choice: how they make rows.
        path: the path of the dataset at the bottom.
    """

    choice: RowChoice
    word = "row"

    def __init__(self, base: ReadableDataset, choice: RowChoice) -> None:
        super().__init__(base, choice, row_fields(choice, base))
        self.orders_itself = isinstance(choice, Cut)  # each epoch cuts rows anew

    def _in_base(self, indices: Indices) -> Indices:
        """Return the first document of each row."""
        pieces = self._decided().pieces(indices)
        return pieces.documents[np.searchsorted(pieces.rows, np.arange(len(indices)))]

    def members(self, indices: Indices) -> Indices:
        return np.unique(self._decided().pieces(indices).documents)

    def __len__(self) -> int:
        return len(self._decided())

    @property
    def numbers(self) -> int:
        """The number of rows that have numbers: of cut ones, as many as there are entries."""
        return self._decided().numbers

    @property
    def padding(self) -> float:
        """The share of the entries of all rows that are padding."""
        return self._decided().padding

    def field(self, name: str) -> Field:
        if (found := self._fields.get(name)) is not None:
            return found
        if name in (length_column(own) for own, field in self._fields.items() if field.ragged):
            return Field("scalar", "int64")
        raise ConfigError(f"{self.path}: rows of documents have no field {name!r}; there are {', '.join(self._fields)}")

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the rows in epoch 0."""
        rows = super().plan(seed, shuffle, block, window)
        return RingPlan(rows, self.numbers, self.choice.length) if self.orders_itself else rows

    def __repr__(self) -> str:
        padding = " an epoch" if self.orders_itself else f", {self.padding:.2%} padding"
        return f"<SequenceRows {self._told()}: {len(self)}{padding} of {self.base!r}>"

    # A row may have documents of several sources, so only its `index` identifies it.
    id_columns, sample_ids = ReadableDataset.id_columns, ReadableDataset.sample_ids

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the number, in the dataset at the bottom, of each entry's document: int64 [n, length], -1 in padding.

        Raises IndexError for a number outside.
        """
        rows = self._checked(as_indices(indices))
        pieces, found = self._decided().pieces(rows), np.full((len(rows), self.choice.length), -1)
        within = np.arange(self.choice.length) < pieces.lengths(len(rows))[:, None]
        found[within] = np.repeat(self.base.origin(pieces.documents), pieces.sizes)
        return found

    @property
    def shard_means(self) -> NDArray[np.float64]:
        return np.full_like(super().shard_means, self._fields[self.choice.field].row_bytes)

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate the pieces of documents in rows, as `Dataset.selection` does."""
        pieces = self._decided().pieces(self._checked(indices))
        return RowSelection(self.base, self.choice, self.field, pieces, len(indices), max_value_bytes)

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for the documents of cut rows. Those of packed rows are far apart: asking would take longer."""
        if self.orders_itself:
            super().read_ahead(run, [self.choice.field])

    def warn_of_small_cache(self, window: int) -> None:
        self.base.warn_of_small_cache(-(-len(self.base) * window // max(len(self), 1)))
