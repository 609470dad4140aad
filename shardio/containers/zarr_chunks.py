"""The chunks of a Zarr array: which named chunk, or which part of a shard, each cell of its grid is."""

import contextlib
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.file_table import Table
from ..format.pieces import PIECE
from ..native.chunks import END, FILE, OFFSET, SIZE, TIME
from ..system.types import Rows
from . import _zarr_codecs, zarr_index
from .chunk_cache import CHUNKS
from .chunk_codecs import Bytes, Damaged
from .chunked_rows import ChunkedRows, Located, StoredChunks
from .extents import NO_BYTES, FileSpans
from .requested import REQUESTED
from .zarr_files import ChunkFiles, Found
from .zarr_metadata import ArrayLayout, Impossible

_RAW_ROW = 4096
"""Bytes; rows of chunks without codecs are read alone from this size on. Chunks of smaller ones are kept whole."""

_MOST_CHUNKS = 1 << 14  # of one row: 1 GiB in chunks of 64 KiB
_ABSENT = (1 << 64) - 1
_CHECKSUM_BYTES = 4


@final
@dataclass(frozen=True, slots=True)
class ZarrChunks(StoredChunks):
    """The chunks of an array; their cells have the samples' axis first.

    Attributes:
        files: where the named chunks are.
        layout: how the array is stored in its chunks.
        axes: the axes of the array in the order of a cell.
        entries: what the index knows of the chunks, of `ENTRY` [chunks]; None without an index: a chunk that is not
            there then holds the fill value, as Zarr defines.
        kept: the number by which `CHUNKS` knows the array.
        named: `layout.grid`, which takes a while to compute, and each chunk asks for.
        inner: the chunks of a shard along each axis of a cell; 1 each without shards.
    """

    files: ChunkFiles
    layout: ArrayLayout
    axes: tuple[int, ...]
    entries: Table | None
    kept: int
    named: tuple[int, ...]
    inner: tuple[int, ...]

    def has(self, cell: tuple[int, ...]) -> bool:
        return self.entries is None or self._entry(self._named(cell)) is not None

    def load(self, cell: tuple[int, ...], row: int, out: Bytes | None = None) -> Bytes | None:
        named = self._named(cell)
        with self._found(named, row) as found:
            if found is None:
                return None
            begin, size = found.begin, found.size
            if self.layout.shard is not None:
                inner = self._inner(named, cell, found)
                if inner is None:
                    return None
                begin, size = found.begin + inner[0], inner[1]
            buffers = self.pipeline.buffers(size)
            raw = buffers[0][:size]
            self._read(found, begin, raw)
            if found.deflated:
                raw = self._inflated(raw)
                buffers, size = self.pipeline.buffers(len(raw)), len(raw)
                buffers[0][:size] = raw
            if self.layout.shard is None:
                found.check(zlib.crc32(raw.data))
            try:
                return self.pipeline.undo(buffers, size, 0, out)
            except Damaged as error:
                raise Damaged(f"is damaged: {error}") from error

    @contextlib.contextmanager
    def located(self, cells: NDArray[np.int64]) -> Iterator[Located]:
        table = np.zeros((len(cells), END + 1), np.int64)
        table[:, SIZE] = -1
        places = self._places(cells)
        if self.files.folder >= 0 and self.entries is not None and self.layout.shard is None:
            # Compiled code opens the files, and compares them with what was indexed.
            entries, there = self._entries_of(places)
            table[:, FILE] = -1
            table[there, SIZE], table[there, TIME] = entries["size"], entries["state"]
            yield Located(table, [self.layout.key(place).encode() for place in places.tolist()], self.files.folder)
            return
        with contextlib.ExitStack() as opened:
            founds: dict[tuple[int, ...], Found | None] = {}
            for number, (place, cell) in enumerate(zip(map(tuple, places.tolist()), cells.tolist(), strict=True)):
                # What is wrong with a chunk, `load` says.
                with contextlib.suppress(Damaged, OSError, ShardCorrupt):
                    if place not in founds:
                        entry = self._entry(place)
                        founds[place] = found = self.files.find(self.layout.key(place), entry)
                        if found is not None and found.owned:
                            opened.callback(os.close, found.descriptor)
                    found = founds[place]
                    if found is None or found.deflated or (self.entries is not None and self._entry(place) is None):
                        continue
                    if self.layout.shard is None:
                        offset, size = 0, found.size if found.crc is None else -1
                    else:
                        offset, size = self._inner(place, tuple(cell), found) or (0, -1)
                    table[number, [FILE, OFFSET, SIZE]] = found.descriptor, found.begin + offset, size
            yield Located(table)

    def read_rows(self, rows: Rows, per_chunk: int, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        written = np.ones(len(rows), np.bool_)
        inner = (0,) * (len(self.axes) - 1)
        for block in np.unique(rows // per_chunk).tolist():
            places = np.flatnonzero(rows // per_chunk == block)
            with self._found(self._named((block, *inner)), int(rows[places[0]])) as found:
                if found is None:
                    written[places] = False
                    continue
                whole = None
                if found.deflated:
                    raw = np.empty(found.size, np.uint8)
                    self._read(found, found.begin, raw)
                    whole = self._inflated(raw)
                    found = found._replace(size=len(whole))
                if found.size != self.size:
                    raise Damaged(f"has {found.size} of {self.size} bytes")
                for place in places.tolist():
                    begin = int(rows[place]) % per_chunk * out.shape[1]
                    if whole is None:
                        self._read(found, found.begin + begin, out[place])
                    else:
                        out[place] = whole[begin : begin + out.shape[1]]
        return written

    def spans(self, numbers: NDArray[np.int64]) -> FileSpans | None:
        if self.files.folder >= 0 or self.entries is None:
            return None
        cells, entries = self._stored(numbers)
        if self.layout.shard is None:
            return entries["state"].copy(), zarr_index.stored_bytes(entries["size"])
        with self.located(cells) as (table, _, _):
            found = table[table[:, SIZE] >= 0]
        offsets, sizes = self.tables(numbers)
        return np.concatenate([offsets, found[:, OFFSET]]), np.concatenate([sizes, found[:, SIZE]])

    def tables(self, numbers: NDArray[np.int64]) -> FileSpans:
        shard = self.layout.shard
        if shard is None or self.files.folder >= 0 or self.entries is None:
            return NO_BYTES
        entries = np.unique(self._stored(numbers)[1])
        entries = entries[entries["size"] >= shard.index_bytes]
        begins = entries["size"] - shard.index_bytes if shard.at_end else 0
        return entries["state"] + begins, np.full(len(entries), shard.index_bytes)

    def _stored(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the cells [m, axes] of the chunks that exist, by their numbers in the flat grid, and what is known of
        the named chunk that each is in.
        """
        cells = np.stack(np.unravel_index(numbers, self.grid), axis=1)
        if self.entries is None:
            return cells[:0], np.empty(0, zarr_index.ENTRY)
        entries, there = self._entries_of(self._places(cells))
        return cells[there], entries

    def _places(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the store's grid of the named chunks that hold cells, int64 [n, axes]."""
        places = np.empty_like(cells)
        places[:, self.axes] = cells // self.inner
        return places

    def _named(self, cell: tuple[int, ...]) -> tuple[int, ...]:
        """Return the position in the store's grid of the named chunk that holds a cell."""
        place = [0] * len(cell)
        for number, axis, inner in zip(cell, self.axes, self.inner, strict=True):
            place[axis] = number // inner
        return tuple(place)

    def _entry(self, named: tuple[int, ...]) -> Any:
        """Return what the index knows of a named chunk; None if it was not there."""
        if self.entries is None or not len(self.entries):
            return None
        number = 0
        for place, size in zip(named, self.named, strict=True):
            number = number * size + place
        if number < len(self.entries) and (entry := self.entries[number])["number"] == number:
            return entry  # all chunks up to this one were there
        at = int(self.entries["number"].searchsorted(number))
        return self.entries[at] if at < len(self.entries) and self.entries[at]["number"] == number else None

    def _entries_of(self, places: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return what the index knows of named chunks, int64 [n, axes], and which of them it knows, bool [n]."""
        known = self.entries
        if known is None or not len(known):
            return np.empty(0, zarr_index.ENTRY), np.zeros(len(places), np.bool_)
        numbers = np.ravel_multi_index(tuple(places.T), self.named)
        at = np.minimum(numbers, len(known) - 1)
        if (known["number"].take(at) != numbers).any():  # not all chunks up to these were there
            at = np.minimum(known["number"].searchsorted(numbers), len(known) - 1)
        entries = known.take(at)
        there: NDArray[np.bool_] = entries["number"] == numbers
        return entries[there], there

    @contextlib.contextmanager
    def _found(self, named: tuple[int, ...], row: int) -> Iterator[Found | None]:
        """Open a named chunk; ShardCorrupt, which names it and a row, if it is not the one that was indexed."""
        key, entry = self.layout.key(named), self._entry(named)
        found = None
        try:
            found = self.files.find(key, entry)
            if found is None and entry is not None:
                raise Damaged("is missing")
            if found is not None and entry is None and self.entries is not None:
                raise Damaged("was written since the store was indexed, when there was none")
            yield found
        except Damaged as error:
            raise ShardCorrupt(f"{self.place}, field {self.name!r}, row {row}: the chunk {key} {error}") from error
        finally:
            if found is not None and found.owned:
                os.close(found.descriptor)

    def _read(self, found: Found, begin: int, out: Bytes) -> None:
        REQUESTED.add(len(out))
        done = 0
        while done < len(out):
            got = os.preadv(found.descriptor, [out.data[done:]], begin + done)
            if not got:
                raise Damaged(f"ends after {done} of {len(out)} bytes at {begin - found.begin}")
            done += got

    def _compare(self, found: Found) -> None:
        """Compare all of a shard, once while its index is kept, with the CRC-32 that a zip file states."""
        crc, part = 0, np.empty(PIECE, np.uint8)
        for begin in range(0, found.size, PIECE) if found.crc is not None else ():
            self._read(found, found.begin + begin, piece := part[: found.size - begin])
            crc = zlib.crc32(piece.data, crc)
        found.check(crc)

    def _inflated(self, data: Bytes) -> Bytes:
        """Return a deflated member of a zip; what it gives is as long as a chunk may be before it is decompressed."""
        most = self.pipeline.buffers(0)[0].nbytes
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = stream.decompress(data.data, most + 1)
        except zlib.error as error:
            raise Damaged(f"cannot be inflated: {error}") from error
        if not stream.eof or len(content) > most:
            raise Damaged(f"does not end within {most} bytes")
        return np.frombuffer(content, np.uint8)

    def inner_written(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in C order of the inner chunks that these shards have, ascending; of a damaged one all."""
        shard, shape = self.layout.shard, self.layout.shape
        if shard is None:
            return np.empty(0, np.int64)
        grid = tuple(-(-side // chunk) for side, chunk in zip(shape, self.layout.chunk, strict=True))
        found = [np.empty(0, np.int64)]
        for number in shards.tolist():
            named = tuple(map(int, np.unravel_index(number, self.named)))
            places = np.arange(math.prod(shard.grid))
            with contextlib.suppress(Damaged, OSError, ShardCorrupt), self._found(named, 0) as there:
                if there is not None:
                    table = np.ndarray((len(places), 2), "<u8", self._table(named, there))
                    places = places[(table != _ABSENT).any(axis=1)]
            cells = np.stack(np.unravel_index(places, shard.grid)) + np.multiply(named, shard.grid)[:, None]
            cells = cells[:, (cells < np.array(grid)[:, None]).all(axis=0)]
            found.append(np.ravel_multi_index(tuple(cells), grid))
        return np.sort(np.concatenate(found))

    def _inner(self, named: tuple[int, ...], cell: tuple[int, ...], found: Found) -> tuple[int, int] | None:
        """Return the offset in a shard, and the bytes, of an inner chunk; None if it was never written."""
        index, number = self._table(named, found), 0
        places = dict(zip(self.axes, cell, strict=True))
        for axis, size in enumerate(self.layout.shard.grid if self.layout.shard else ()):
            number = number * size + places[axis] % size
        offset, size = np.ndarray(2, "<u8", index, 16 * number).tolist()
        if offset == size == _ABSENT:
            return None
        if offset > found.size or size > found.size - offset:
            raise Damaged(f"has {found.size} bytes, and the index of the shard names {size} at {offset}")
        return offset, size

    def _table(self, named: tuple[int, ...], found: Found) -> Bytes:
        """Return the index of a shard: the offset and the bytes of each inner chunk."""
        shard = self.layout.shard
        if shard is None or found.deflated:
            raise Damaged("is a shard that is deflated: store the members of the zip as they are")

        def make() -> Bytes:
            size = shard.index_bytes
            self._compare(found)
            if found.size < size:
                raise Damaged(f"has {found.size} bytes, and its index alone {size}: it was cut short")
            data = np.empty(size, np.uint8)
            self._read(found, found.begin + (found.size - size if shard.at_end else 0), data)
            if not shard.has_checksum:
                return data
            content, stored = data[:-_CHECKSUM_BYTES], int.from_bytes(data[-_CHECKSUM_BYTES:].tobytes(), "little")
            if (actual := _zarr_codecs.crc32c(content)) != stored:
                raise Damaged(
                    f"is damaged: the index of the shard has the checksum {actual:08x}, and states {stored:08x}"
                )
            return content

        return CHUNKS.get(self.kept, ("index", named), make) if CHUNKS.holds(shard.index_bytes) else make()


def array_rows(files: ChunkFiles, name: str, layout: ArrayLayout, axis: int, entries: Table | None) -> ChunkedRows:
    """Return the reader of an array's rows along an axis; its field is that of the numbers as they are stored.

    Raises NotUnderstood for codecs that are not known, MissingDependency if their library is not installed.
    """
    axes = (axis, *(other for other in range(len(layout.shape)) if other != axis))
    shape, chunk = tuple(layout.shape[a] for a in axes[1:]), tuple(layout.chunk[a] for a in axes)
    grid = tuple(-(-layout.shape[a] // layout.chunk[a]) for a in axes)
    native = layout.dtype.newbyteorder("=")
    if (count := math.prod(grid[1:])) > _MOST_CHUNKS:
        raise Impossible(f"has rows in {count} chunks each, more than {_MOST_CHUNKS}")
    field = Field("array", dtype=native.name, shape=shape) if shape else Field("scalar", dtype=native.name)
    pipeline = _zarr_codecs.pipeline(layout.codecs, math.prod(layout.chunk) * layout.dtype.itemsize)
    kept = CHUNKS.number_of(files.owner, math.prod(layout.shape) * layout.dtype.itemsize)
    order = tuple(layout.order[a] for a in axes)
    inner = tuple(layout.shard.grid[a] if layout.shard else 1 for a in axes)
    in_order = order == (*range(len(order)),)
    summed = entries is not None and "crc" in (entries.dtype.names or ())  # which takes whole chunks
    is_raw = in_order and pipeline.size // chunk[0] >= _RAW_ROW and not (pipeline.filters or layout.shard or summed)
    chunks = ZarrChunks(
        files.place, name, grid, pipeline, is_raw, files, layout, axes, entries, kept, layout.grid, inner
    )
    count, fill = layout.shape[axis], layout.fill
    return ChunkedRows(chunks, name, field, chunk, layout.dtype, fill, kept, count, None if in_order else order)


def check_understood(layout: ArrayLayout) -> None:
    """Raise what `array_rows` raises for codecs."""
    _zarr_codecs.pipeline(layout.codecs, 1)
