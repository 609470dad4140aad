"""Arrays in chunks, of HDF5 and of Zarr: which chunks rows are in, and how they are cut from these."""

import contextlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..format.fields import Field
from ..native import chunks as compiled
from ..native.chunks import DATA, END, SIZE
from ..system.types import Rows
from .chunk_cache import CHUNKS
from .chunk_codecs import Bytes, address
from .chunk_filters import FilterPipeline
from .extents import NO_BYTES, Blocks, Extent, FileSpans, of_blocks, touched
from .field_reader import ChunkSpan, FieldReader
from .out_arrays import as_rows, check_value_bytes
from .requested import REQUESTED

_COPIED_BYTES = 4096
"""Parts of rows of at least this size are copied one by one, because fancy indexing makes a copy of its own first."""


_GROUP_BYTES, _GROUP = 8 << 20, 128
"""One call of compiled code decompresses at most so many chunks, and so many bytes of them, unless one has more."""


class Located(NamedTuple):
    """Where compiled code finds chunks.

    Attributes:
        table: int64 [n, 7], whose columns FILE to TIME are those of `native.chunks.fill`; the others are 0. SIZE is -1
            for a chunk that only `StoredChunks.load` may find.
        names: the names of the chunks' files below `folder`, where FILE is -1.
        folder: a descriptor.
    """

    table: NDArray[np.int64]
    names: list[bytes] | None = None
    folder: int = -1


@dataclass(frozen=True, slots=True)
class StoredChunks(ABC):
    """The chunks of an array, by their positions in its grid, as a file or a store holds them.

    Attributes:
        place: the file or the store, for messages.
        name: the array's path there.
        grid: the number of chunks along each axis.
        pipeline: the filters.
        is_raw: whether chunks are stored as they are, so that `read_rows` reads some rows of one.
    """

    place: str
    name: str
    grid: tuple[int, ...]
    pipeline: FilterPipeline
    is_raw: bool

    @property
    def size(self) -> int:
        """The bytes of a chunk once it is decompressed."""
        return self.pipeline.size

    @abstractmethod
    def has(self, cell: tuple[int, ...]) -> bool:
        """Return whether a chunk may have been written; its rows are the fill value otherwise."""

    @abstractmethod
    def spans(self, numbers: NDArray[np.int64]) -> FileSpans | None:
        """Return where chunks, by their numbers in the flat grid, are in the one file that has all; None without it."""

    def tables(self, numbers: NDArray[np.int64]) -> FileSpans:
        """Return the bytes of that file that `spans` itself reads: tables of which chunks are where."""
        return NO_BYTES

    def row_offsets(self, rows: Rows, per_chunk: int, row_bytes: int) -> NDArray[np.int64] | None:
        """Return where rows of raw chunks of `per_chunk` whole rows are in the one file that has all, int64 [n].

        -1 for rows that were never written; None unless there is such a file.
        """
        return None

    @abstractmethod
    def load(self, cell: tuple[int, ...], row: int, out: Bytes | None = None) -> Bytes | None:
        """Return a chunk's bytes once it is decompressed, in `out` if it is given; None if it was never written.

        The next call in this thread reuses the memory. Raises ShardCorrupt, which names `row`, for a damaged chunk.
        """

    @abstractmethod
    def located(self, cells: NDArray[np.int64]) -> contextlib.AbstractContextManager[Located]:
        """Find chunks, int64 [n, axes]; the descriptors are open within the block."""

    @abstractmethod
    def read_rows(self, rows: Rows, per_chunk: int, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Fill `out` [n, row bytes] with rows of raw chunks of `per_chunk` whole rows; return which ones were written.

        The others are left as they are.
        """

    def read_raw_blocks(
        self, rows: Rows, begins: NDArray[np.int64], chunk: tuple[int, ...], fill: Any, out: NDArray[Any]
    ) -> bool:
        """Fill `out` with blocks of rows of raw chunks by their runs in a file; return False if that is not possible.

        Args:
            rows: the rows, for messages.
            begins: where the blocks begin, int64 [n, axes].
            chunk: the shape of a chunk.
            fill: the value of chunks that were never written, in the byte order in which others are stored.
            out: the array to fill.
        """
        return False


@final
@dataclass(frozen=True, slots=True)
class ChunkedRows(FieldReader):
    """A chunked dataset `[n, *shape]`, read chunk by chunk, each chunk once per call.

    Chunks are kept for the next calls if a call needs only some of their rows.

    Attributes:
        chunks: the chunks as they are stored.
        name: the dataset's name, for messages.
        field: the field that it is read as.
        chunk: a chunk's shape, samples first; chunks at the edges are padded to it.
        stored: the element type as it is stored, of either byte order.
        fill: the value of chunks that were never written.
        kept: the number by which `CHUNKS` knows the dataset.
        count: the number of rows.
        order: for each axis of `chunk`, its position in a stored chunk; None if the axes are stored in this order.
    """

    chunks: StoredChunks
    name: str
    field: Field
    chunk: tuple[int, ...]
    stored: np.dtype[Any]
    fill: Any
    kept: int
    count: int
    order: tuple[int, ...] | None = None

    @property
    def chunk_span(self) -> ChunkSpan | None:
        if self.chunk[0] == 1 or (self.chunk[1:] == self.field.row_shape and self.chunks.is_raw):
            return None
        size = math.prod(self.chunks.grid[1:]) * self.chunks.size
        return ChunkSpan(self.chunk[0], size, CHUNKS.holds(self.chunks.size))

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans | None:
        blocks = extent if isinstance(extent, Blocks) else None
        chunks, shape = self.chunks, self.field.row_shape
        is_raw = self.chunk[1:] == shape and chunks.is_raw
        offsets = chunks.row_offsets(rows, self.chunk[0], self.field.row_bytes) if is_raw else None
        if offsets is None:
            return chunks.spans(touched(rows, self.chunk, chunks.grid, blocks))
        there = offsets >= 0
        if blocks is not None:
            return of_blocks(offsets[there], shape, self.stored.itemsize, blocks[there])
        return offsets[there], np.full(int(there.sum()), self.field.row_bytes)

    def tables(self, rows: Rows, extent: Extent | None) -> FileSpans:
        blocks = extent if isinstance(extent, Blocks) else None
        return self.chunks.tables(touched(rows, self.chunk, self.chunks.grid, blocks))

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        """Fill `out` with the rows, or with blocks of them, and read only the chunks that these touch.

        Raises:
            ShardCorrupt: a chunk is cut short or damaged.
            BadSample: chunks have more than `most` bytes once decompressed.
        """
        swapped = self.stored.byteorder == ">"
        if blocks is None and self.chunk[1:] == self.field.row_shape and self.chunks.is_raw:
            written = self.chunks.read_rows(rows, self.chunk[0], as_rows(out, self.field))
            if swapped:
                out.byteswap(inplace=True)
            out[~written] = self.fill
            return
        begins = np.zeros((len(rows), len(self.chunk)), np.int64)
        begins[:, 0], begins[:, 1:] = rows, 0 if blocks is None else blocks.along(self.field.row_shape)
        fill = self.fill.byteswap() if swapped else self.fill
        if blocks is not None and self.chunks.read_raw_blocks(rows, begins, self.chunk, fill, out):
            if swapped:
                out.byteswap(inplace=True)
            return
        check_value_bytes(self.chunks.size, most, f"{self.chunks.place}, field {self.name!r}, row {rows[0]}, its chunk")
        if blocks is not None or self.chunk[0] == 1 or self.field.row_bytes >= _COPIED_BYTES:
            self._read_parts(rows, begins, out)
            return
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for part in block_parts(ordered, self.chunk[0]):
            self._read_block(ordered[part], order[part], out)

    def _read_parts(self, rows: Rows, begins: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fill `out` with blocks of the rows that begin at `begins` [n, axes], from chunks that are decompressed."""
        ends = begins + np.array([1, *out.shape[1:]])
        numbers, cells = self._touched(begins, ends)
        firsts = cells * self.chunk
        starts, stops = np.maximum(begins[numbers], firsts), np.minimum(ends[numbers], firsts + self.chunk)
        changes = np.flatnonzero(np.diff(cells, axis=0, prepend=-1).any(axis=1))
        used = np.add.reduceat((stops - starts).prod(axis=1), changes)
        # Of a chunk at an edge, not all is within the dataset.
        extents = np.array([self.chunks.grid[0] * self.chunk[0], *self.field.row_shape])
        whole = used >= np.minimum(self.chunk, extents - firsts[changes]).prod(axis=1)
        ends_of = np.append(changes[1:], len(numbers))
        if self._is_compiled(out):
            strides = np.array([self._strides(), out.strides])
            parts = np.empty((len(numbers), 2 + len(self.chunk)), np.int64)
            parts[:, 0] = (starts - firsts) @ strides[0]
            parts[:, 1] = numbers * out.strides[0] + (starts - begins[numbers])[:, 1:] @ strides[1, 1:]
            parts[:, 2:] = stops - starts
            step = max(1, min(_GROUP, _GROUP_BYTES // max(self.chunks.size, 1)))
            for at in range(0, len(changes), step):
                some = slice(at, at + step)
                first, end = int(changes[at]), int(ends_of[some][-1])
                cut = compiled.Cut(strides, out.itemsize, self.stored.byteorder == ">", parts[first:end])
                of_rows = rows[numbers[changes[some]]]
                self._fill(cells[changes[some]], whole[some], ends_of[some] - first, of_rows, cut, out)
            return
        to = [(starts - begins[numbers])[:, 1:].tolist(), (stops - begins[numbers])[:, 1:].tolist()]
        of = [each.tolist() for each in (starts - firsts, stops - firsts)]
        pieces = list(zip(numbers.tolist(), *to, *of, strict=True))
        bounds = zip(changes.tolist(), ends_of.tolist(), whole.tolist(), cells[changes].tolist(), strict=True)
        for first, end, of_one_use, cell in bounds:
            read = self.chunks.load if of_one_use else self._kept_chunk
            data = read(tuple(cell), int(rows[pieces[first][0]]))
            values = None if data is None else self._values(data)
            for number, low, high, (row, *start), (_, *stop) in pieces[first:end]:
                part = self.fill if values is None else values[(row, *map(slice, start, stop))]
                out[(number, *map(slice, low, high))] = part

    def _touched(
        self, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunks that hold parts of blocks, int64 [m, axes], in order, and their blocks, int64 [m]."""
        first = begins // self.chunk
        spans = (ends - 1) // self.chunk - first + 1
        counts = spans.prod(axis=1)
        numbers = np.repeat(np.arange(len(begins)), counts)
        rest = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        cells = np.empty((len(numbers), begins.shape[1]), np.int64)
        for axis in range(begins.shape[1])[::-1]:
            rest, place = np.divmod(rest, spans[numbers, axis])
            cells[:, axis] = first[numbers, axis] + place
        order = np.lexsort(cells.T[::-1])
        return numbers[order], cells[order]

    def _read_block(self, rows: Rows, order: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read the rows of the chunks along one block of rows into `out[order]`."""
        block = int(rows[0]) // self.chunk[0]
        within = rows - block * self.chunk[0]
        whole = len(rows) >= self.chunk[0]
        for cell in np.ndindex(*self.chunks.grid[1:]):
            starts = [i * size for i, size in zip(cell, self.chunk[1:], strict=True)]
            ends = [min(s + c, n) for s, c, n in zip(starts, self.chunk[1:], self.field.row_shape, strict=True)]
            window: tuple[Any, ...] = tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))
            used: tuple[Any, ...] = tuple(slice(0, end - start) for start, end in zip(starts, ends, strict=True))
            read = self.chunks.load if whole else self._kept_chunk
            data = read((block, *cell), int(rows[0]))
            if data is None:
                out[(order, *window)] = self.fill
                continue
            values = self._values(data)
            if values.nbytes < _COPIED_BYTES * len(values):
                out[(order, *window)] = values[(within, *used)]
            else:
                for target, row in zip(order.tolist(), within.tolist(), strict=True):
                    out[(target, *window)] = values[(row, *used)]

    def _is_compiled(self, out: NDArray[Any]) -> bool:
        """Return whether compiled code reads parts of the chunks into `out`."""
        known = self.chunks.pipeline.steps is not None and self.stored.itemsize in compiled.ITEMS
        same = self.stored.newbyteorder("=") == out.dtype and out.flags.c_contiguous
        return known and same and self.stored.kind != "c" and native.library() is not None

    def _strides(self) -> NDArray[np.int64]:
        """Return the strides of a chunk, samples first, in bytes."""
        strides = self.stored.itemsize * np.cumprod([1, *self._stored_shape()[:0:-1]])[::-1]
        return strides if self.order is None else strides[[*self.order]]

    def _fill(
        self,
        cells: NDArray[np.int64],
        whole: NDArray[np.bool_],
        ends: NDArray[np.int64],
        rows: Rows,
        cut: compiled.Cut,
        out: NDArray[Any],
    ) -> None:
        """Fill parts of `out` from chunks by compiled code; those that it does not get, `load` gets, or says why.

        Args:
            cells: the chunks, int64 [k, axes].
            whole: which of them are used whole and so are not kept.
            ends: where the parts of each end, int64 [k].
            rows: a row of each, for messages.
            cut: the parts.
            out: the result.
        """
        with self.chunks.located(cells) as (table, names, folder):
            table[:, END] = ends
            table[table[:, SIZE] > self.chunks.pipeline.largest(), SIZE] = -1  # of any size, which `load` checks
            found = table[:, SIZE] >= 0
            kept = ~whole & found & CHUNKS.holds(self.chunks.size, self.chunk[0])
            places = np.flatnonzero(kept)
            with CHUNKS.claimed(self.kept, list(map(tuple, cells[places].tolist()))) as (chunks, made):
                new = {number: np.empty(self.chunks.size, np.uint8) for number in made}
                there = [new.get(number, chunk) for number, chunk in enumerate(chunks)]
                table[places, DATA] = [0 if chunk is None else address(chunk) for chunk in there]
                table[np.delete(places, list(made)), SIZE] = -1
                REQUESTED.add(int(table[table[:, SIZE] > 0, SIZE].sum()))
                failed = self.chunks.pipeline.fill(table, names, folder, cut, out)
                made.update((number, chunk) for number, chunk in new.items() if not failed[places[number]])
            if not failed.any():
                return
            table[:, SIZE], table[:, DATA] = -1, 0
            held: list[Bytes] = []
            for place in np.flatnonzero(failed).tolist():
                cell, row = tuple(cells[place].tolist()), int(rows[place])
                if whole[place] or not self._is_kept(cell):
                    held.append(self._own_chunk(cell, row))
                else:
                    held.append(CHUNKS.get(self.kept, cell, partial(self._own_chunk, cell, row)))
                table[place, DATA] = address(held[-1])
            self.chunks.pipeline.fill(table, names, folder, cut, out)

    def _values(self, data: Bytes) -> NDArray[Any]:
        """Return a chunk's elements, samples first."""
        values = data.view(self.stored).reshape(self._stored_shape())
        return values if self.order is None else values.transpose(self.order)

    def _stored_shape(self) -> tuple[int, ...]:
        order = self.order or range(len(self.chunk))
        return tuple(self.chunk[axis] for _, axis in sorted(zip(order, range(len(self.chunk)), strict=True)))

    def _kept_chunk(self, cell: tuple[int, ...], row: int) -> Bytes | None:
        """Return a chunk's bytes, which others may use as well, as `StoredChunks.load` does, and keep them."""
        if not self._is_kept(cell):
            return self.chunks.load(cell, row)
        return CHUNKS.get(self.kept, cell, partial(self._own_chunk, cell, row))

    def _is_kept(self, cell: tuple[int, ...]) -> bool:
        return CHUNKS.holds(self.chunks.size, self.chunk[0]) and self.chunks.has(cell)

    def _own_chunk(self, cell: tuple[int, ...], row: int) -> Bytes:
        """Return a chunk's bytes in memory of their own; raise what `StoredChunks.load` raises."""
        chunk = np.empty(self.chunks.size, np.uint8)
        if self.chunks.load(cell, row, chunk) is None:
            chunk.view(self.stored)[:] = self.fill
        return chunk


def block_parts(ordered: Rows, block: int) -> list[slice]:
    """Return the parts of ascending rows that are in one block of `block` rows each."""
    breaks = (np.flatnonzero(np.diff(ordered // block)) + 1).tolist()
    return [slice(start, stop) for start, stop in zip([0, *breaks], [*breaks, len(ordered)], strict=True)]
