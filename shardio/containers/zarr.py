"""The `zarr` container: Zarr stores of other programs, of format 2 and 3, read in place chunk by chunk.

The fields are arrays of numbers, whose rows along one axis are the samples. The index beside a link to the store says
how each lies in its chunks, and which chunks there were when it was made: so a chunk that is lost, or was written
anew, is damage, and not the fill value or other numbers.
"""

import contextlib
import errno
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from ..cache.joined import JoinedObjects, first_pieces
from ..errors import ShardCorrupt, SourceError
from ..format import cf
from ..format.fields import CHECKSUM, Field
from ..format.file_table import Table, parts
from ..format.pieces import PIECE
from ..native.chunks import END, FILE, OFFSET, SIZE, TIME
from ..stores.base import ObjectInfo, Store
from ..stores.folder import modified_ns
from ..stores.url import Url
from ..system import strict_json
from ..system.types import Rows
from . import _zarr_codecs, zarr_index
from ._hdf5_codecs import Bytes, Damaged
from ._hdf5_filters import FilterPipeline
from .array_shard import ArrayReader, ArrayShard
from .base import Container, OpenedShard
from .field_reader import ColumnRows, DecodedRows, FieldReader, decoding_of
from .file_spans import NO_BYTES, FileSpans
from .files import RawFile, RawFolder
from .hdf5_chunks import CHUNKS, ChunkedRows, Located
from .joined import joined_files, joined_name
from .runs import REQUESTED
from .stacked_rows import stacks_among, with_variables
from .zarr_index import IndexedArray, ZarrIndex
from .zarr_metadata import ArrayLayout, Impossible, NotUnderstood, of_array

_RAW_ROW = 4096
"""Bytes; rows of chunks without codecs are read alone from this size on. Chunks of smaller ones are kept whole."""

_MOST_CHUNKS = 1 << 14  # of one row: 1 GiB in chunks of 64 KiB
_CHANGED = "was written anew since it was indexed"
_ABSENT = (1 << 64) - 1
_CHECKSUM_BYTES = 4
_NO_LINK = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)


class Found(NamedTuple):
    """The bytes of a named chunk: in an open file, from an offset on.

    Attributes:
        descriptor, begin, size: the file, the offset and the number of bytes.
        owned: whether whoever reads them closes the file.
        deflated: whether a zip file has compressed them.
        crc: the CRC-32 that a zip file states of the content; None if nobody knows one.
    """

    descriptor: int
    begin: int
    size: int
    owned: bool = False
    deflated: bool = False
    crc: int | None = None

    def check(self, crc: int) -> None:
        """Raise Damaged if the content has another CRC-32 than the zip file states."""
        if self.crc is not None and crc != self.crc:
            raise Damaged(f"is damaged: its CRC-32 {crc:08x} is not {self.crc:08x}")


class ChunkFiles(Protocol):
    """Where the named chunks of one array are.

    Attributes:
        place: the store, for messages.
        owner: kept as long as the chunks may be read; the cache of chunks forgets them when it is gone.
    """

    place: str
    owner: Any

    def find(self, key: str, entry: Any) -> Found | None:
        """Return the bytes of a chunk; None if there is none of this name.

        `entry` is what the index knows of it, None without an index. Raises Damaged if it is another one than that.
        """


@final
class FolderChunks:
    """Chunks that are files of a folder: see `ChunkFiles`."""

    def __init__(self, root: Path, path: str) -> None:
        self.place, self.owner = str(root), RawFolder(root, path)

    def metadata(self, name: str) -> Any:
        """Return the JSON value of a file of metadata; None if there is none."""
        if (opened := self.owner.opened(name)) is None:
            return None
        descriptor, status = opened
        with os.fdopen(descriptor, "rb") as file:
            strict_json.check_size(status.st_size)
            try:
                return strict_json.parse(file.read(), foreign=True, nan=True)
            except ValueError:
                return None

    def find(self, key: str, entry: Any) -> Found | None:
        try:
            opened = self.owner.opened(key)
        except OSError as error:
            told = (
                "is behind a link, which could lead anywhere" if error.errno in _NO_LINK else f"cannot be read: {error}"
            )
            raise Damaged(told) from error
        if opened is None:
            return None
        descriptor, status = opened
        if entry is not None and (status.st_size, status.st_mtime_ns) != (entry["size"], entry["state"]):
            os.close(descriptor)
            raise Damaged(
                f"was written anew since it was indexed: it has {status.st_size} bytes, and had {entry['size']}"
            )
        return Found(descriptor, 0, status.st_size, owned=True)


@final
class PackedChunks:
    """Chunks in one file: members of a zip, or objects that a cache keeps as one: see `ChunkFiles`.

    What is known of a chunk says where it is; its `state` is an offset.
    """

    def __init__(self, file: RawFile) -> None:
        self.place, self.owner = str(file.path), file

    def find(self, key: str, entry: Any) -> Found | None:
        if entry is None:
            return None
        deflated, size = bool(entry["size"] < 0), int(zarr_index.stored_bytes(entry["size"]))
        if not 0 <= int(entry["state"]) <= self.owner.size - size:
            raise Damaged(f"is not within the {self.owner.size} bytes of the file")
        crc = int(entry["crc"]) if "crc" in entry.dtype.names else None
        return Found(self.owner.fd, int(entry["state"]), size, deflated=deflated, crc=crc)


@final
@dataclass(frozen=True, slots=True)
class ZarrChunks:
    """The chunks of an array, see `StoredChunks`; their cells have the samples' axis first.

    Attributes:
        files: where the named chunks are.
        name: the array's path in the store.
        layout: how the array lies in its chunks.
        axes: the axes of the array in the order of a cell.
        pipeline: the codecs.
        entries: what the index knows of the chunks, of `ENTRY` [chunks]; None without an index: a chunk that is not
            there then holds the fill value, as Zarr defines.
        kept: the number by which `CHUNKS` knows the array.
        named: `layout.grid`, which takes a while to compute, and each chunk asks for.
    """

    files: ChunkFiles
    name: str
    layout: ArrayLayout
    axes: tuple[int, ...]
    pipeline: FilterPipeline
    entries: Table | None
    kept: int
    named: tuple[int, ...]

    @property
    def place(self) -> str:
        return self.files.place

    @property
    def grid(self) -> tuple[int, ...]:
        shape, chunk = self.layout.shape, self.layout.chunk
        return tuple(-(-shape[axis] // chunk[axis]) for axis in self.axes)

    @property
    def size(self) -> int:
        return self.pipeline.size

    @property
    def is_raw(self) -> bool:
        layout, row = self.layout, self.pipeline.size // self.layout.chunk[self.axes[0]]
        in_order = all(layout.order[axis] == place for place, axis in enumerate(self.axes))
        summed = self.entries is not None and "crc" in (self.entries.dtype.names or ())  # which takes whole chunks
        return not (self.pipeline.filters or layout.shard or summed) and in_order and row >= _RAW_ROW

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
        if isinstance(self.files, FolderChunks) and self.entries is not None and self.layout.shard is None:
            # Compiled code opens the files, and compares them with what was indexed.
            entries, there = self._entries_of(places)
            table[:, FILE] = -1
            table[there, SIZE], table[there, TIME] = entries["size"], entries["state"]
            yield Located(table, [self.layout.key(place).encode() for place in places.tolist()], self.files.owner.fd)
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
        if not isinstance(self.files, PackedChunks) or self.entries is None:
            return None
        cells, entries = self._stored(numbers)
        if self.layout.shard is None:
            return entries["state"].copy(), zarr_index.stored_bytes(entries["size"])
        found = []
        for cell in map(tuple, cells.tolist()):
            named = self._named(cell)
            with contextlib.suppress(ShardCorrupt), self._found(named, 0) as shard:  # reading says what is wrong
                if shard is not None and (inner := self._inner(named, cell, shard)) is not None:
                    found.append((shard.begin + inner[0], inner[1]))
        offsets, sizes = np.array(found, np.int64).reshape(-1, 2).T
        tables = self.tables(numbers)
        return np.concatenate([tables[0], offsets]), np.concatenate([tables[1], sizes])

    def tables(self, numbers: NDArray[np.int64]) -> FileSpans:
        shard = self.layout.shard
        if shard is None or not isinstance(self.files, PackedChunks) or self.entries is None:
            return NO_BYTES
        entries = np.unique(self._stored(numbers)[1])
        entries = entries[entries["size"] >= shard.index_bytes]
        begins = entries["size"] - shard.index_bytes if shard.at_end else 0
        return entries["state"] + begins, np.full(len(entries), shard.index_bytes)

    def _stored(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the cells [m, axes] of those chunks, by their places in the flat grid, that there are, and what is
        known of the named chunk that each is in.
        """
        cells = np.stack(np.unravel_index(numbers, self.grid), axis=1)
        if self.entries is None:
            return cells[:0], np.empty(0, zarr_index.ENTRY)
        entries, there = self._entries_of(self._places(cells))
        return cells[there], entries

    def _places(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places in the store's grid of the named chunks that hold cells, int64 [n, axes]."""
        place = np.empty_like(cells)
        for column, axis in enumerate(self.axes):
            place[:, axis] = cells[:, column] // (self.layout.shard.grid[axis] if self.layout.shard else 1)
        return place

    def _named(self, cell: tuple[int, ...]) -> tuple[int, ...]:
        """Return the place in the store's grid of the named chunk that holds a cell."""
        place = [0] * len(cell)
        for number, axis in zip(cell, self.axes, strict=True):
            place[axis] = number // (self.layout.shard.grid[axis] if self.layout.shard else 1)
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
        """Return what the index knows of named chunks, int64 [n, axes], and of which of them it does, bool [n]."""
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
    native = layout.dtype.newbyteorder("=")
    if (count := math.prod(-(-side // per) for side, per in zip(shape, chunk[1:], strict=True))) > _MOST_CHUNKS:
        raise Impossible(f"has rows in {count} chunks each, more than {_MOST_CHUNKS}")
    field = Field("array", dtype=native.name, shape=shape) if shape else Field("scalar", dtype=native.name)
    pipeline = _zarr_codecs.pipeline(layout.codecs, math.prod(layout.chunk) * layout.dtype.itemsize)
    kept = CHUNKS.number_of(files.owner, math.prod(layout.shape) * layout.dtype.itemsize)
    order = tuple(layout.order[a] for a in axes)
    chunks = ZarrChunks(files, name, layout, axes, pipeline, entries, kept, layout.grid)
    in_order = order == (*range(len(order)),)
    count, fill = layout.shape[axis], layout.fill
    return ChunkedRows(chunks, name, field, chunk, layout.dtype, fill, kept, count, None if in_order else order)


def _field_rows(rows: ChunkedRows, field: Field, packing: Mapping[str, Any] | None) -> FieldReader:
    """Return the reader of a field: of an array's rows, decoded by `packing`, or as other numbers.

    Raises ValueError if the field is of other values than these.
    """
    stored = rows.field.row_dtype
    if field.row_shape != rows.field.row_shape:
        raise ValueError(f"expected rows of {field.row_shape}, the array has {rows.field.row_shape}")
    if packing is not None:
        return DecodedRows(rows, rows.field, decoding_of(packing, stored, field))
    if field.row_dtype == stored:
        return rows
    return DecodedRows(rows, rows.field, replace(cf.decoding({}, stored), scaled=field.row_dtype))


def check_understood(layout: ArrayLayout) -> None:
    """Raise what `array_rows` raises for codecs."""
    _zarr_codecs.pipeline(layout.codecs, 1)


@final
class ZarrReader(ArrayReader):
    """A `Reader` of the store at `path`, which is a link to it or the store itself.

    Args:
        path: the store.
        fields: its fields.
        index: what else the index beside it says.
        joined: with `index`, the stores that are joined to this one; else they are beside it.
        in_cache: whether the path is the file of a cache that has the objects of the store, see `ChunkObjects`.
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, Field],
        index: ZarrIndex | None = None,
        joined: Sequence[Path] = (),
        *,
        in_cache: bool = False,
    ) -> None:
        self._index, self._joined, self._in_cache = index, tuple(joined), in_cache
        super().__init__(path, fields)

    def _open(self) -> ArrayShard:
        index = self._index or zarr_index.read(self._path)
        joined = self._joined if self._index else _joined(self._path, index)
        if self._in_cache:
            stores: list[tuple[Path, RawFile | None]] = [(self._path, RawFile(self._path))]
            index = _in_one_file(index)
            if index.joined:
                raise ShardCorrupt(f"{self._path}: stores that are joined are read from a folder, not from a cache")
        elif index.objects:
            raise ShardCorrupt(f"{self._path}: was indexed in a bucket, and is on a disk: index it anew here")
        else:
            states = zip((self._path, *joined), (index.zipped, *index.joined), strict=True)
            stores = [(place, _opened_zip(place, state)) for place, state in states]
        fields = {name: field for name, field in self._fields.items() if name != CHECKSUM}
        beside: dict[str, FieldReader] = {}
        if CHECKSUM in self._fields:
            if (column := index.columns.get(CHECKSUM)) is None:
                raise ShardCorrupt(f"{self._path}: its index has no checksums of samples")
            beside[CHECKSUM] = ColumnRows(column)
        stacks = stacks_among(fields, index.arrays)
        stored = with_variables(self._path, fields, stacks)
        readers = {name: self._open_field(name, field, index, stores) for name, field in stored.items()}
        return ArrayShard.of(self._path, fields, stacks, readers, beside, index.columns.get(zarr_index.ROWS))

    def _open_field(
        self, name: str, field: Field, index: ZarrIndex, stores: Sequence[tuple[Path, RawFile | None]]
    ) -> FieldReader:
        if (array := index.arrays.get(name)) is None:
            raise ShardCorrupt(f"{self._path}: its index has no field {name!r}")
        root, packed = stores[array.file]
        try:
            layout = of_array(array.metadata)
            if not 0 <= array.axis < len(layout.shape):
                raise NotUnderstood(f"has no axis {array.axis}")
            files = FolderChunks(root, array.path) if packed is None else PackedChunks(packed)
            rows = array_rows(files, array.path, layout, array.axis, array.chunks)
            return _field_rows(rows, field, array.packing)
        except (ValueError, TypeError, AttributeError, SourceError) as error:
            raise ShardCorrupt(f"{self._path}, field {name!r}: {error}") from error


@final
class ChunkObjects:
    """The chunks of a store as objects, in the order of its index; of a zip file that one file: see `Objects`.

    Args:
        url: the store, in its bucket or folder.
        index: its index.

    Raises ShardCorrupt for an index of chunks elsewhere.
    """

    def __init__(self, url: Url, index: ZarrIndex) -> None:
        self._url, self._index = url, index
        if index.objects != url.is_remote:
            where = ("a bucket", "on a disk") if index.objects else ("a folder", "in a bucket")
            raise ShardCorrupt(f"{url}: was indexed in {where[0]}, and is {where[1]}: index it anew here")
        self._arrays = [(array.path, of_array(array.metadata), array.chunks) for array in index.arrays.values()]
        for path, _, chunks in self._arrays:
            if (path and not _NO_PARTS.isdisjoint(path.split("/"))) or "\0" in path:
                raise ShardCorrupt(f"{url}: its index names an array {path!r}")
            if index.zipped is None and len(chunks) and int(np.asarray(chunks["size"]).min()) < 0:
                raise ShardCorrupt(f"{url}: its index names chunks of fewer than 0 bytes")
        self._ends = np.cumsum([len(chunks) for _, _, chunks in self._arrays])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each object."""
        return _object_sizes(self._index)

    def name(self, number: int) -> str:
        path, key, _ = self._chunk(number)
        return "/".join(part for part in (self._url.path, path, key) if part)

    def check(self, number: int, found: ObjectInfo | None) -> None:
        path, key, (size, state) = self._chunk(number)
        told = f"field {path!r}: the chunk {key}" if key else "it"
        if found is None:
            raise ShardCorrupt(f"{self._url}, {told} is missing")
        if (found.size, zarr_index.state_of(found) if self._index.objects else modified_ns(found)) != (size, state):
            raise ShardCorrupt(
                f"{self._url}, {told} {_CHANGED}: it has {found.size} bytes"
                + (f", and had {size}" if size != found.size else ", as before")
            )

    def _chunk(self, number: int) -> tuple[str, str, tuple[int, int]]:
        """Return the array and the key of an object, its size and its state; of a zip file, no names."""
        if self._index.zipped is not None:
            return "", "", self._index.zipped
        place = int(np.searchsorted(self._ends, number, "right"))
        path, layout, chunks = self._arrays[place]
        entry = chunks[number - int(self._ends[place]) + len(chunks)]
        key = layout.key(list(map(int, np.unravel_index(int(entry["number"]), layout.grid))))
        return path, key, (int(entry["size"]), int(entry["state"]))


_NO_PARTS = frozenset(("", ".", ".."))


def _object_sizes(index: ZarrIndex) -> NDArray[np.int64]:
    if index.zipped is not None:
        return np.array([index.zipped[0]])
    return np.concatenate(
        [np.empty(0, np.int64), *(np.asarray(array.chunks["size"]) for array in index.arrays.values())]
    )


def _in_one_file(index: ZarrIndex) -> ZarrIndex:
    """Return an index of chunks that are where a cache has them, see `JoinedObjects`."""
    if index.zipped is not None:
        return index
    offsets, arrays, begin = PIECE * first_pieces(_object_sizes(index)), dict[str, IndexedArray](), 0
    for name, array in index.arrays.items():
        chunks = np.array(array.chunks)
        chunks["state"] = offsets[begin : begin + len(chunks)]
        arrays[name], begin = replace(array, chunks=chunks), begin + len(chunks)
    return replace(index, arrays=arrays)


def _metadata_of(array: IndexedArray) -> str:
    """Return the name of the file of an array's metadata."""
    return ".zarray" if array.metadata.get("zarr_format") == 2 else "zarr.json"


def _changes(root: Path, array: IndexedArray) -> Iterator[str]:
    """Yield what has changed of an array in a folder since it was indexed, without reading its chunks."""
    files, layout = FolderChunks(root, array.path), of_array(array.metadata)
    name = array.path or "array"
    metadata = files.metadata(_metadata_of(array))
    if json.dumps(metadata, sort_keys=True) != json.dumps(array.metadata, sort_keys=True):
        yield f"field {name!r}: its metadata are not those that were indexed"
    for entry in chain.from_iterable(parts(array.chunks)):
        key = layout.key(list(map(int, np.unravel_index(int(entry["number"]), layout.grid))))
        try:
            found = files.find(key, entry)
        except Damaged as error:
            yield f"field {name!r}: the chunk {key} {error}"
            continue
        if found is None:
            yield f"field {name!r}: the chunk {key} is missing"
        else:
            os.close(found.descriptor)


def _joined(path: Path, index: ZarrIndex) -> list[Path]:
    """Return the paths of the links to the stores that are joined to the one at `path`."""
    return [path.with_name(joined_name(path.name, number)) for number in range(1, len(index.joined) + 1)]


def _opened_zip(path: Path, state: tuple[int, int] | None) -> RawFile | None:
    """Open a zip file; None for a folder. ShardCorrupt unless it has the size and the time that were indexed."""
    if state is None:
        return None
    file = RawFile(path)
    now = os.fstat(file.fd)
    if (now.st_size, now.st_mtime_ns) != state:
        raise ShardCorrupt(f"{path}: was written anew since it was indexed: it has {now.st_size} bytes, had {state[0]}")
    return file


class ZarrContainer(Container):
    """Zarr stores. It has no writer: `shardio index` writes the indexes."""

    name = "zarr"
    index_suffix = zarr_index.SUFFIX
    read_where_it_lies = True
    reader_type = ZarrReader

    def files(self, path: Path) -> tuple[Path, ...]:
        return (zarr_index.path_of(path),)  # the store may have any number of files

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (zarr_index.path_of(Path(name)).name,)

    def joined(self, path: Path, url: Url) -> JoinedObjects:
        objects = ChunkObjects(url, zarr_index.read(path))
        return JoinedObjects.of(objects, objects.sizes)

    def touch(self, shard: OpenedShard) -> bool:
        return True  # opening it reads nothing but its index

    def cached_reader(self, path: Path, fields: Mapping[str, Field]) -> ZarrReader:
        return ZarrReader(path, fields, in_cache=True)

    def links(self, path: Path) -> tuple[Path, ...]:
        return joined_files(path)

    def check(self, path: Path) -> None:
        index = zarr_index.read(path)
        places = [*zip((path, *_joined(path, index)), (index.zipped, *index.joined), strict=True)]
        for place, state in places:
            _opened_zip(place, state)
        folders = [(places[array.file], array) for array in index.arrays.values()]
        _raise_first(
            path.name, [told for (place, state), array in folders if state is None for told in _changes(place, array)]
        )

    def check_in_store(self, path: Path, url: Url, store: Store) -> None:
        index = zarr_index.read(path)
        objects, listed = ChunkObjects(url, index), {info.name: info for info in store.list(url.path)}
        wrong = [told for array in index.arrays.values() for told in _metadata_changes(url, array, store, listed)]
        for number in range(len(objects.sizes)):
            try:
                objects.check(number, listed.pop(objects.name(number), None))
            except ShardCorrupt as error:
                wrong.append(str(error).removeprefix(f"{url}, "))
        _raise_first(url.name, [*wrong, *_new_chunks(url, index, listed)])


def _metadata_changes(url: Url, array: IndexedArray, store: Store, listed: Mapping[str, ObjectInfo]) -> Iterator[str]:
    name = _metadata_of(array)
    place = (url / array.path / name if array.path else url / name).path
    try:
        strict_json.check_size(listed[place].size)
        metadata = strict_json.parse(bytes(store.read(place).data), foreign=True, nan=True)
    except (KeyError, ValueError):
        metadata = None
    if json.dumps(metadata, sort_keys=True) != json.dumps(array.metadata, sort_keys=True):
        yield f"field {array.path or 'array'!r}: its metadata are not those that were indexed"


def _new_chunks(url: Url, index: ZarrIndex, listed: Mapping[str, ObjectInfo]) -> Iterator[str]:
    """Yield the chunks that a bucket has, and that there were not when it was indexed."""
    layouts = {f"{(url / array.path if array.path else url).path}/": array for array in index.arrays.values()}
    for prefix, array in layouts.items():
        layout = of_array(array.metadata)
        for name in listed:
            if name.startswith(prefix) and layout.number(key := name.removeprefix(prefix)) is not None:
                yield f"field {array.path!r}: the chunk {key} was written since the store was indexed"


def _raise_first(place: str, wrong: list[str]) -> None:
    """Raise ShardCorrupt for the first of what is wrong with a store, if anything is."""
    if wrong:
        more = f", and {len(wrong) - 1} more chunks" if len(wrong) > 1 else ""
        raise ShardCorrupt(f"{place}: {wrong[0]}{more}")
