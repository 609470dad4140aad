"""Chunked HDF5 datasets read without libhdf5: where each chunk is in the file, which rows it holds, and which are kept.

Source: HDF5 File Format Specification, "The Data Layout Message".
"""

import contextlib
import importlib
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import ShardCorrupt
from ..format.fields import Field
from ..native import chunks as compiled
from ..native.chunks import DATA, END, FILE, MASK, OFFSET, SIZE
from ..system.background import Departures
from ..system.forks import reset_in_children
from ..system.types import Rows
from ._hdf5_codecs import Bytes, Damaged, address
from ._hdf5_filters import FilterPipeline, pipeline_of
from .base import Blocks, Extent, check_value_bytes
from .field_reader import ChunkSpan, FieldReader
from .file_spans import NO_BYTES, FileSpans, of_blocks, touched
from .files import RawFile, as_rows
from .row_locator import within
from .runs import REQUESTED

_COPIED_BYTES = 4096
"""Parts of rows of at least this size are copied one by one, because fancy indexing makes a copy of its own first."""


_GROUP_BYTES, _GROUP = 8 << 20, 128
"""One call of compiled code decompresses at most so many chunks, and so many bytes of them, unless one has more."""

MOST_BYTES = 256 << 20
"""The bytes of chunks that a process keeps at most."""

_RARE = 4  # with four times as many bytes as are kept, a row in random order finds its chunk once in four times


class _Slot:
    """The place of a chunk, which one thread fills while others wait."""

    __slots__ = ("chunk", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chunk: Bytes | None = None


class Claimed(NamedTuple):
    """Chunks of a `ChunkCache` for one caller.

    Attributes:
        chunks: the bytes of each chunk; None if it is not kept.
        made: by the places there of those that the caller makes, what it has made: None before, and if that fails.
            Those that are neither kept nor here another thread makes.
    """

    chunks: list[Bytes | None]
    made: dict[int, Bytes | None]


@final
class ChunkCache:
    """Keeps the chunks that were used last, up to `most` bytes. Any number of threads may use it at once.

    A chunk of more than half of `most` is not kept: it would drive out all others.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._numbers = count()
        self._gone: Departures[int] = Departures()
        self._sizes: dict[int, int] = {}
        self._known = 0
        self.reset_in_child()
        reset_in_children(self)

    def reset_in_child(self) -> None:
        """Forget all chunks; another thread of the parent may have held the locks."""
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[int, Hashable], _Slot] = OrderedDict()
        self.used = 0

    def holds(self, size: int, rows: int = 2) -> bool:
        """Return whether chunks of `size` bytes, which hold parts of so many rows, are kept.

        Those of one row are not if all owners together have many times what is kept: rows in random order find so few
        that keeping costs more.
        """
        if size > self.most // 2 or rows > 1:
            return size <= self.most // 2
        with self._lock:
            self._forget(set(self._gone.collect()))
            return self._known <= _RARE * self.most

    def number_of(self, owner: object, size: int) -> int:
        """Return a number for an owner of chunks, `size` bytes in all, which are forgotten once it is gone."""
        number = next(self._numbers)
        with self._lock:
            self._sizes[number] = size
            self._known += size
        self._gone.watch(owner, number)
        return number

    def get(self, owner: int, key: Hashable, make: Callable[[], Bytes]) -> Bytes:
        """Return a chunk of an owner; `make` makes it unless it is kept. Nobody may change it.

        Threads that ask for the same chunk meanwhile wait for it. Raises what `make` raises.
        """
        name = owner, key
        with self._lock:
            self._forget(set(self._gone.collect()))
            slot = self._slots.setdefault(name, _Slot())
            self._slots.move_to_end(name)
        with slot.lock:
            if (chunk := slot.chunk) is None:
                try:
                    chunk = make()
                finally:
                    self._settle([(name, slot, chunk)])
            return chunk

    @contextlib.contextmanager
    def claimed(self, owner: int, keys: Sequence[Hashable]) -> Iterator["Claimed"]:
        """Find chunks of an owner, different ones, and let the caller make those that nobody has or makes.

        Other threads that ask for these wait until the block ends, within which the caller asks for no other chunks.
        """
        names = [(owner, key) for key in keys]
        with self._lock:
            self._forget(set(self._gone.collect()))
            slots = []
            for name in names:
                if (slot := self._slots.get(name)) is None:
                    slot = self._slots[name] = _Slot()  # at the end
                else:
                    self._slots.move_to_end(name)
                slots.append(slot)
        found, mine = Claimed([slot.chunk for slot in slots], {}), []
        try:
            for number, slot in enumerate(slots):
                if found.chunks[number] is None and slot.lock.acquire(blocking=False):
                    mine.append(number)
                    if slot.chunk is None:
                        found.made[number] = None
                    else:  # it was made meanwhile
                        found.chunks[number] = slot.chunk
            yield found
        finally:
            self._settle([(names[number], slots[number], chunk) for number, chunk in found.made.items()])
            for number in mine:
                slots[number].lock.release()

    def _settle(self, made: Sequence[tuple[tuple[int, Hashable], _Slot, Bytes | None]]) -> None:
        """Keep and count new chunks, and drop those used longest ago; drop the slots for which there are none."""
        with self._lock:
            for name, slot, chunk in made:
                slot.chunk = chunk
                if self._slots.get(name) is not slot:
                    continue  # so many came after it that it was dropped already
                if chunk is None:
                    del self._slots[name]
                else:
                    self.used += len(chunk)
            while self.used > self.most:
                _, dropped = self._slots.popitem(last=False)
                self.used -= 0 if dropped.chunk is None else len(dropped.chunk)

    def _forget(self, owners: set[int]) -> None:
        self._known -= sum(self._sizes.pop(owner, 0) for owner in owners)
        for name in [name for name in self._slots if name[0] in owners] if owners else ():
            dropped = self._slots.pop(name)
            self.used -= 0 if dropped.chunk is None else len(dropped.chunk)


CHUNKS = ChunkCache(MOST_BYTES)
"""The chunks of this process."""


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


class StoredChunks(Protocol):
    """The chunks of a dataset, by their places in its grid, as a file or a store holds them."""

    @property
    def pipeline(self) -> FilterPipeline:
        """The filters."""

    @property
    def place(self) -> str:
        """The file or the store, for messages."""

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""

    @property
    def size(self) -> int:
        """The bytes of a chunk once it is decompressed."""

    @property
    def is_raw(self) -> bool:
        """Whether chunks are stored as they are, so that `read_rows` reads some rows of one."""

    def has(self, cell: tuple[int, ...]) -> bool:
        """Return whether a chunk may have been written; its rows are the fill value otherwise."""

    def spans(self, numbers: NDArray[np.int64]) -> FileSpans | None:
        """Return where chunks, by their places in the flat grid, are in the one file that has all; None without one."""

    def tables(self, numbers: NDArray[np.int64]) -> FileSpans:
        """Return the bytes of that file that `spans` itself reads: tables of which chunks are where."""

    def load(self, cell: tuple[int, ...], row: int, out: Bytes | None = None) -> Bytes | None:
        """Return a chunk's bytes once it is decompressed, in `out` if it is given; None if it was never written.

        The next call in this thread reuses the memory. Raises ShardCorrupt, which names `row`, for a damaged chunk.
        """

    def located(self, cells: NDArray[np.int64]) -> contextlib.AbstractContextManager[Located]:
        """Find chunks, int64 [n, axes]; the descriptors are open within the block."""

    def read_rows(self, rows: Rows, per_chunk: int, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Fill `out` [n, row bytes] with rows of raw chunks of `per_chunk` whole rows; return which ones were written.

        The others are left as they are.
        """


@dataclass(frozen=True, slots=True)
class FileChunks:
    """The chunks of an HDF5 dataset, see `StoredChunks`.

    Attributes:
        file: the file.
        name: the dataset's path in the file.
        pipeline: the filters.
        offsets: of each chunk in the file, int64 [chunks along each axis]; -1 if it was never written.
        sizes: the bytes of each chunk in the file, of the same shape.
        masks: a bit for each filter that was skipped for the chunk, of the same shape.
    """

    file: RawFile
    name: str
    pipeline: FilterPipeline
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    masks: NDArray[np.int64]

    @property
    def place(self) -> str:
        return str(self.file.path)

    @property
    def grid(self) -> tuple[int, ...]:
        return self.offsets.shape

    @property
    def size(self) -> int:
        return self.pipeline.size

    @property
    def is_raw(self) -> bool:
        return not self.pipeline.filters

    def has(self, cell: tuple[int, ...]) -> bool:
        return bool(self.offsets[cell] >= 0)

    def load(self, cell: tuple[int, ...], row: int, out: Bytes | None = None) -> Bytes | None:
        if (offset := int(self.offsets[cell])) < 0:
            return None
        size = int(self.sizes[cell])
        buffers = self.pipeline.buffers(size)
        raw = buffers[0][:size]
        REQUESTED.add(size)
        # `read_rows` continues after a partial read, and raises where the file ends.
        if os.preadv(self.file.fd, [raw.data], offset) != size:
            self.file.read_rows(np.array([offset]), raw.reshape(1, -1), np.array([row]), self.name)
        try:
            return self.pipeline.undo(buffers, size, int(self.masks[cell]), out)
        except Damaged as error:
            raise ShardCorrupt(
                f"{self.file.path}, field {self.name!r}, row {row}: the chunk at byte {offset} is damaged: {error}"
            ) from error

    @contextlib.contextmanager
    def located(self, cells: NDArray[np.int64]) -> Iterator[Located]:
        places = tuple(cells.T)
        table = np.zeros((len(cells), END + 1), np.int64)
        table[:, FILE], table[:, OFFSET] = self.file.fd, self.offsets[places]
        table[:, SIZE] = np.where(table[:, OFFSET] < 0, -1, self.sizes[places])
        table[:, MASK] = self.masks[places]
        yield Located(table)

    def read_rows(self, rows: Rows, per_chunk: int, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        offsets = self.row_offsets(rows, per_chunk, out.shape[1])
        written: NDArray[np.bool_] = offsets >= 0
        if written.all():
            self.file.read_rows(offsets, out, rows, self.name)
        else:
            target = np.empty((int(written.sum()), out.shape[1]), np.uint8)
            self.file.read_rows(offsets[written], target, rows[written], self.name)
            out[written] = target
        return written

    def row_offsets(self, rows: Rows, per_chunk: int, row_bytes: int) -> NDArray[np.int64]:
        """Return where rows of raw chunks of whole rows are in the file, int64 [n]; -1 if they were never written."""
        chunks = self.offsets.reshape(-1)[rows // per_chunk]
        return np.where(chunks < 0, -1, chunks + rows % per_chunk * row_bytes)

    def tables(self, numbers: NDArray[np.int64]) -> FileSpans:
        return NO_BYTES

    def spans(self, numbers: NDArray[np.int64]) -> FileSpans:
        """Return where chunks are in the file, by their places in the flat grid; of those that were written."""
        offsets, sizes = self.offsets.reshape(-1)[numbers], self.sizes.reshape(-1)[numbers]
        return offsets[offsets >= 0], sizes[offsets >= 0]


@dataclass(frozen=True, slots=True)
class ChunkedRows(FieldReader):
    """A chunked dataset `[n, *shape]`, read chunk by chunk, each chunk once per call.

    Chunks of which a call needs some rows only are kept for the next calls.

    Attributes:
        chunks: the chunks as they are stored.
        name: the dataset's name, for messages.
        field: the field that it is read as.
        chunk: a chunk's shape, samples first; chunks at the edges are padded to it.
        stored: the element type as it is stored, of either byte order.
        fill: the value of chunks that were never written.
        kept: the number by which `CHUNKS` knows the dataset.
        count: the number of rows.
        order: for each axis of `chunk`, its place in a stored chunk; None if the axes are stored in this order.
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

    def __len__(self) -> int:
        return self.count

    @property
    def chunk_span(self) -> ChunkSpan | None:
        if self.chunk[0] == 1 or (self.chunk[1:] == self.field.row_shape and self.chunks.is_raw):
            return None
        size = math.prod(self.chunks.grid[1:]) * self.chunks.size
        return ChunkSpan(self.chunk[0], size, CHUNKS.holds(self.chunks.size))

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans | None:
        blocks = extent if isinstance(extent, Blocks) else None
        chunks, shape = self.chunks, self.field.row_shape
        if not isinstance(chunks, FileChunks) or self.chunk[1:] != shape or not chunks.is_raw:
            return chunks.spans(touched(rows, self.chunk, chunks.grid, blocks))
        offsets = chunks.row_offsets(rows, self.chunk[0], self.field.row_bytes)
        there = offsets >= 0
        if blocks is not None:
            return of_blocks(offsets[there], shape, self.stored.itemsize, blocks[there])
        return offsets[there], np.full(int(there.sum()), self.field.row_bytes)

    def tables(self, rows: Rows, extent: Extent | None) -> FileSpans:
        blocks = extent if isinstance(extent, Blocks) else None
        return self.chunks.tables(touched(rows, self.chunk, self.chunks.grid, blocks))

    def read(self, rows: Rows, out: NDArray[Any], most: int) -> None:
        """Fill `out` [n, *shape] with the rows.

        Raises:
            ShardCorrupt: a chunk is cut short or damaged.
            BadSample: chunks have more than `most` bytes once decompressed.
        """
        whole_rows = self.chunk[1:] == self.field.row_shape
        if whole_rows and self.chunks.is_raw:
            written = self.chunks.read_rows(rows, self.chunk[0], as_rows(out, self.field))
            if self.stored.byteorder == ">":
                out.byteswap(inplace=True)
            out[~written] = self.fill
            return
        place = f"{self.chunks.place}, field {self.name!r}, row {rows[0]}, its chunk"
        check_value_bytes(self.chunks.size, most, place)
        if self.chunk[0] == 1 or self.field.row_bytes >= _COPIED_BYTES:
            begins = np.zeros((len(rows), len(self.chunk)), np.int64)
            begins[:, 0] = rows
            self._read_parts(rows, begins, out)
            return
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for part in block_parts(ordered, self.chunk[0]):
            self._read_block(ordered[part], order[part], out)

    def read_blocks(self, rows: Rows, blocks: Blocks, out: NDArray[Any], most: int) -> None:
        """Fill `out` with blocks of the rows, and read only the chunks that they touch; raise what `read` raises."""
        begins = np.column_stack([rows, blocks.along(self.field.row_shape)])
        if self.chunks.is_raw and isinstance(self.chunks, FileChunks):
            self._read_raw_blocks(self.chunks, rows, begins, out)
            return
        check_value_bytes(self.chunks.size, most, f"{self.chunks.place}, field {self.name!r}, row {rows[0]}, its chunk")
        self._read_parts(rows, begins, out)

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
        """Return the chunks that hold parts of blocks, int64 [m, axes], in order, and of which blocks, int64 [m]."""
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

    def _read_raw_blocks(self, file: FileChunks, rows: Rows, begins: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read the runs of blocks that lie in one chunk each."""
        *outer, last = (1, *out.shape[1:])
        strides = np.cumprod([out.itemsize, *self.chunk[:0:-1]])[::-1]
        grid = np.cumprod([1, *file.offsets.shape[:0:-1]])[::-1]
        cells, within = (np.zeros((len(rows), *(1 for _ in outer)), np.int64) for _ in range(2))
        for axis, size in enumerate(outer):
            places = begins[:, axis, None] + np.arange(size)
            places = places.reshape(len(rows), *(size if axis == each else 1 for each in range(len(outer))))
            cells = cells + places // self.chunk[axis] * grid[axis]
            within = within + places % self.chunk[axis] * strides[axis]
        # Along the last axis, a run ends where its chunk does.
        chunks = begins[:, -1, None] // self.chunk[-1] + np.arange((last - 2) // self.chunk[-1] + 2)
        starts = np.maximum(chunks * self.chunk[-1], begins[:, -1, None])
        stops = np.minimum((chunks + 1) * self.chunk[-1], begins[:, -1, None] + last)
        shape = (len(rows), *(1 for _ in outer), -1)
        chunks, starts, sizes = (each.reshape(shape) for each in (chunks, starts, np.maximum(stops - starts, 0)))
        cells = cells[..., None] + np.minimum(chunks, file.offsets.shape[-1] - 1)
        offsets = file.offsets.reshape(-1)[cells]
        written = offsets >= 0
        if not written.all():
            out[...] = self.fill if self.stored.byteorder != ">" else self.fill.byteswap()
        offsets = offsets + within[..., None] + (starts - chunks * self.chunk[-1]) * out.itemsize
        lines = np.arange(math.prod(outer[1:]) * len(rows)).reshape(*within.shape, 1) * last
        targets = (lines + starts - begins[:, -1].reshape(shape)) * out.itemsize
        kept = np.broadcast_to(written & (sizes > 0), offsets.shape)
        columns = (offsets, sizes * out.itemsize, targets, rows.reshape(shape))
        spans = (np.broadcast_to(each, offsets.shape)[kept] for each in columns)
        starts, sizes, targets, of = spans
        file.file.read_runs(starts, sizes, targets, out.reshape(-1).view(np.uint8), of, self.name)
        if self.stored.byteorder == ">":
            out.byteswap(inplace=True)

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


class ChunkTable(NamedTuple):
    """Where the chunks of a dataset are, as attributes of `FileChunks`."""

    pipeline: FilterPipeline
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    masks: NDArray[np.int64]


def chunk_table(dataset: Any, file_size: int) -> ChunkTable | None:
    """Return where the chunks of an h5py dataset are, in a file of so many bytes.

    None if only libhdf5 can undo its filters, or if most chunks were never written: a table of all, which a header of a
    few bytes may claim any number of, is no longer than the file.
    """
    pipeline = pipeline_of(dataset, math.prod(dataset.chunks) * dataset.dtype.itemsize)
    grid = tuple(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if pipeline is None or math.prod(grid) > file_size:
        return None
    offsets, sizes, masks = (np.full(grid, empty, np.int64) for empty in (-1, 0, 0))
    # libhdf5 before 1.14.4 counts from the end of the user block: https://github.com/HDFGroup/hdf5/issues/3003
    version = importlib.import_module("h5py").version.hdf5_version_tuple
    begin = dataset.file.userblock_size if version < (1, 14, 4) else 0

    def add(info: Any) -> None:
        cell = tuple(start // size for start, size in zip(info.chunk_offset, dataset.chunks, strict=True))
        offsets[cell], sizes[cell], masks[cell] = begin + info.byte_offset, info.size, info.filter_mask

    if dataset.size:
        dataset.id.chunk_iter(add)
    return ChunkTable(pipeline, offsets, sizes, masks)


def chunked_rows(dataset: Any, file: RawFile, name: str, field: Field) -> ChunkedRows | None:
    """Return a reader of an h5py dataset's chunks; None if there is no table of them, see `chunk_table`."""
    if (table := chunk_table(dataset, file.size)) is None:
        return None
    pipeline, offsets, sizes, _ = table
    written = offsets >= 0
    for cell in np.argwhere(written & ~within(offsets, sizes, 0, file.size))[:1].tolist():
        offset, size = int(offsets[*cell]), int(sizes[*cell])
        raise ShardCorrupt(f"{file.path}, field {name!r}: ends at byte {offset + size} of {file.size}")
    if not pipeline.filters and (short := sizes[written & (sizes < pipeline.size)]).size:
        raise ShardCorrupt(f"{file.path}, field {name!r}: a chunk has {short[0]} of {pipeline.size} bytes")
    fill = np.asarray(dataset.fillvalue, field.row_dtype)
    chunks = FileChunks(file, name, *table)
    kept = CHUNKS.number_of(file, math.prod(chunks.grid) * pipeline.size)
    return ChunkedRows(chunks, name, field, dataset.chunks, dataset.dtype, fill, kept, len(dataset))


def block_parts(ordered: Rows, block: int) -> list[slice]:
    """Return the parts of ascending rows that are in one block of `block` rows each."""
    breaks = (np.flatnonzero(np.diff(ordered // block)) + 1).tolist()
    return [slice(start, stop) for start, stop in zip([0, *breaks], [*breaks, len(ordered)], strict=True)]
