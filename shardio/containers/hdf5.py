"""The `hdf5` container: standard HDF5 files, read where their datasets are in the file, without libhdf5's lock.

A fixed field is one dataset `[n, *shape]`. Any other field is a group of `data`, all values end to end, and `offsets`
(int64, n + 1): a ragged field's data is `[entries, *entry_shape]`, and its offsets are counted in entries; the others'
is uint8, in bytes. Files that others wrote may be chunked, filtered, big-endian or anything that h5py reads.
"""

import importlib
import json
import os
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt, SourceError, StoreError
from ..format import cf
from ..format.fields import Field, fields_to_json
from ..format.file_table import FileTable, Table
from ..format.limits import MAX_VALUE_BYTES
from ..format.pieces import piece_count
from ..system import allocation
from ..system.types import Column, Rows
from . import hdf5_index
from ._hdf5_writer import Hdf5Writer
from ._writing import parse_fields
from .base import Blocks, Container, Entries, Extent, OpenedShard, check_out, cut_rows
from .file_spans import NO_BYTES, FileSpans, of_blocks, of_entries
from .files import BaseReader, RawFile, as_rows, check_request, open_hdf5, open_hdf5_stream
from .hdf5_chunks import ChunkedRows, ChunkSpan, chunk_table, chunked_rows
from .hdf5_index import Layout
from .hdf5_library import SERVICE, LibraryFile, LibraryRows, Unreadable, library_rows, library_values, resolve
from .joined import joined_files, joined_name
from .row_locator import MAPPED_ROW, FileRows, MemoryRows, RowLocator, SpanTable, StackedLocators, not_mapped, within
from .stacked_rows import StackedRows, stack_readers, stacks_among, with_variables

_MOST_ROUNDS = 256
"""Times that opening an adopted file may ask for more pieces; if it takes more, the file comes whole."""

ROW_NUMBERS = Field("scalar", dtype="int64")
"""The field of an index's `ROWS`, which an index may lack."""


@dataclass(frozen=True, slots=True)
class OpenShard:
    """An open file.

    Attributes:
        count: its number of samples.
        readers: by field, an object whose `read` fills an array [n, *shape] with rows of a fixed field (`rows, out,
            most`), or returns the bytes of each row of any other (`rows, most`); the rows are within the shard. Those
            of fixed fields also have `read_blocks` (`rows, blocks, out, most`), which fills an array with blocks, and
            all have `spans` (`rows, extent`), see `Reader.spans`.
        locators: where rows are, of the fields for which that says all.
        beside: the fields that the index beside the file holds.
    """

    count: int
    readers: Mapping[str, Any]
    locators: Mapping[str, RowLocator]
    beside: frozenset[str] = frozenset()


class RowsReader(BaseReader[OpenShard], ABC):
    """A base of readers that read each field by an object of its own."""

    def __len__(self) -> int:
        return self._shard().count

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        shard = self._shard()
        rows, kind = check_request(rows, field, out, self._fields, shard.count, self._path)
        reader = shard.readers[field]
        if not kind.fixed:
            values: list[bytes] = reader.read(rows, most)
            return values
        out = check_out(out, len(rows), kind)
        if out.size:
            reader.read(rows, out, most)
        return out

    def read_blocks(
        self, rows: Rows, field: str, blocks: Blocks, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES
    ) -> NDArray[Any]:
        rows, _, out = self._check_blocks(rows, field, blocks, out)
        if out.size:
            self._shard().readers[field].read_blocks(rows, blocks, out, most)
        return out

    def locator(self, field: str) -> RowLocator | None:
        # None for datasets that are chunked, filtered or of another byte order.
        return self._shard().locators.get(field)

    def spans(self, rows: Rows, field: str, extent: Extent | None = None) -> FileSpans | None:
        shard = self._shard()
        if field in shard.beside:
            return NO_BYTES
        found: FileSpans | None = shard.readers[field].spans(rows, extent)
        return found

    def chunk_spans(self) -> Mapping[str, ChunkSpan]:
        """Return the chunk that reading one row decompresses, for each field whose chunks hold several rows."""
        spans = {name: _span(reader) for name, reader in self._shard().readers.items()}
        return {name: span for name, span in spans.items() if span is not None}


@final
class Hdf5Reader(RowsReader):
    """A `Reader` that uses h5py only when it opens the shard, to find out where the datasets are.

    Args:
        path: the file.
        fields: its fields.
        layout: where the fields are, of a file that others wrote. Without it, the index beside the file says so, if
            there is one.
        joined: with `layout`, the files that are joined to this one; else they are beside it.
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, Field],
        layout: Layout | None = None,
        joined: Sequence[Path] = (),
    ) -> None:
        self._layout, self._joined = layout, tuple(joined)
        super().__init__(path, fields)

    def _open(self) -> OpenShard:
        given, joined = self._layout, self._joined
        if given is None:
            if not hdf5_index.path_of(self._path).exists():
                return open_shard(self._path, self._fields, Layout({}))
            joined = joined_files(self._path)
        # Another program wrote the file, and damage in it may hold libhdf5: the helper process opens it first.
        described = {
            "fields": fields_to_json(self._fields),
            "layout": None if given is None else asdict(given),
            "joined": list(map(str, joined)),
        }
        layout = Layout(**json.loads(_in_helper(self._path, "open_adopted", **described) or '{"names": {}}'))
        return open_shard(self._path, self._fields, layout, joined, indexed=given is None)


@final
class Hdf5Container(Container):
    """HDF5 files."""

    name = "hdf5"
    suffix = ".h5"
    index_suffix = hdf5_index.SUFFIX
    options = MappingProxyType(
        {"compression": "for arrays of one shape: gzip, lzf, zstd (read by h5py with hdf5plugin) or none"}
    )
    writer_type, reader_type = Hdf5Writer, Hdf5Reader

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (hdf5_index.path_of(Path(name)).name,) if adopted else ()

    def touch(self, shard: OpenedShard) -> bool:
        if shard.adopted:
            return _touch_adopted(shard)
        try:
            return have_spans(shard.file, shard.path, shard.fields, Layout({}))
        except (OSError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
            if isinstance(error, StoreError):
                raise
            return False  # opening the file itself says what is wrong with it

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        if hdf5_index.path_of(path).exists():
            return None  # another program wrote the file
        text = _in_helper(path, "fields_text")
        return None if text is None else parse_fields(text, path)

    def files(self, path: Path) -> tuple[Path, ...]:
        index = hdf5_index.path_of(path)
        return (path, *joined_files(path), index) if index.exists() else (path,)


@dataclass(frozen=True, slots=True)
class _ContiguousRows:
    """A contiguous dataset: row i is at `base + i * row bytes`.

    Attributes:
        count: the number of rows.
        table: small rows, [n] of their bytes; None for larger ones.
        big_endian: whether the bytes of each element must be swapped.
    """

    file: RawFile
    name: str
    field: Field
    base: int
    count: int
    table: FileTable | None
    big_endian: bool

    def read(self, rows: Rows, out: NDArray[Any], most: int) -> None:
        target = as_rows(out, self.field)
        if self.table is not None:
            self.table.take(rows, out=target)
        else:
            self.file.read_rows(self.base + rows * self.field.row_bytes, target, rows, self.name)
        if self.big_endian:
            out.byteswap(inplace=True)

    def read_blocks(self, rows: Rows, blocks: Blocks, out: NDArray[Any], most: int) -> None:
        if self.table is not None:
            cut_rows(lambda some, whole: self.read(some, whole, most), rows, blocks, self.field, out)
            return
        self.file.read_blocks(self.base + rows * self.field.row_bytes, rows, blocks, out, self.name, self.field)
        if self.big_endian:
            out.byteswap(inplace=True)

    def spans(self, rows: Rows, blocks: Blocks | None) -> FileSpans:
        offsets, size = self.base + rows * self.field.row_bytes, self.field.row_bytes
        if blocks is not None:
            return of_blocks(offsets, self.field.row_shape, self.field.row_dtype.itemsize, blocks)
        return offsets, np.full(len(rows), size)

    def locator(self) -> RowLocator | None:
        if self.big_endian or not self.field.row_bytes:
            return None
        if self.table is not None:
            return MemoryRows.in_file(self.table, self.base)
        size, file = self.field.row_bytes, self.file
        limit, mapped = self.base + self.count * size, file.map_parts()
        if not mapped.populated:
            return FileRows(file.fd, self.base, size, limit, file, file.map_parts)
        populated = np.zeros(self.count, np.uint8)
        address = mapped.address + self.base
        owner = (file, populated)
        return FileRows(file.fd, self.base, size, limit, owner, file.map_parts, address, populated.ctypes.data)


@dataclass(frozen=True, slots=True)
class _ContiguousValues:
    """A group of contiguous `data`, `size` entries of `unit` bytes at `base`, and `offsets` (int64, n + 1)."""

    file: RawFile
    name: str
    base: int
    size: int
    offsets: FileTable
    unit: int
    ragged: bool

    def read(self, rows: Rows, most: int) -> list[bytes]:
        starts, ends = (self.offsets.take(place) for place in (rows, rows + 1))
        wrong = np.flatnonzero(~within(starts, ends - starts, 0, self.size))
        if len(wrong):
            i = wrong[0]
            raise ShardCorrupt(
                f"{self.file.path}, field {self.name!r}, row {rows[i]}: "
                f"offsets {starts[i]} to {ends[i]} are not within {self.size} entries"
            )
        sizes = (ends - starts) * self.unit
        return self.file.read_values(self.base + starts * self.unit, sizes, rows, self.name, most)

    def spans(self, rows: Rows, entries: Entries | None) -> FileSpans:
        starts, ends = (self.offsets.take(place) for place in (rows, rows + 1))
        inside = within(starts, ends - starts, 0, self.size)  # reading says what is wrong with the others
        values = self.base + starts[inside] * self.unit, (ends - starts)[inside] * self.unit
        return values if entries is None else of_entries(values, self.unit, entries[inside])

    def locator(self) -> RowLocator:
        limit = self.base + self.size * self.unit
        mapped = self.file.map_parts if self.ragged else not_mapped
        place = self.offsets.address, 8, self.file.fd, limit, self.file, self.base
        return SpanTable(*place, has_ends=True, unit=self.unit, map=mapped)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """A dataset whose numbers are decoded by attributes of netCDF. No locator reads them: they are not in the file."""

    reader: Any
    field: Field  # of the stored numbers
    decoding: cf.Decoding

    def tables(self, rows: Rows, blocks: Blocks | None) -> FileSpans:
        found: FileSpans = self.reader.tables(rows, blocks)
        return found

    def spans(self, rows: Rows, blocks: Blocks | None) -> FileSpans | None:
        found: FileSpans | None = self.reader.spans(rows, blocks)
        return found

    def read(self, rows: Rows, out: NDArray[Any], most: int) -> None:
        same = self.field.row_dtype == out.dtype
        numbers = out if same else allocation.empty((len(rows), *self.field.row_shape), self.field.row_dtype)
        self.reader.read(rows, numbers, most)
        self.decoding.apply(numbers, out)

    def read_blocks(self, rows: Rows, blocks: Blocks, out: NDArray[Any], most: int) -> None:
        same = self.field.row_dtype == out.dtype
        numbers = out if same else allocation.empty(out.shape, self.field.row_dtype)
        self.reader.read_blocks(rows, blocks, numbers, most)
        self.decoding.apply(numbers, out)


@dataclass(frozen=True, slots=True)
class SomeRows:
    """The rows of a file that its index takes for samples: sample i is row `taken[i]`."""

    reader: Any
    taken: Table

    def tables(self, rows: Rows, extent: Extent | None) -> FileSpans:
        found: FileSpans = self.reader.tables(self.taken.take(rows), extent)
        return found

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans | None:
        found: FileSpans | None = self.reader.spans(self.taken.take(rows), extent)
        return found

    def read(self, rows: Rows, *arguments: Any) -> Any:
        return self.reader.read(self.taken.take(rows), *arguments)

    def read_blocks(self, rows: Rows, blocks: Blocks, out: NDArray[Any], most: int) -> None:
        self.reader.read_blocks(self.taken.take(rows), blocks, out, most)


def _touch_adopted(shard: OpenedShard) -> bool:
    """Do as `Hdf5Container.touch`: the helper process reads the cache's file, and says which pieces that lacks."""
    known, size = set[int](), shard.file.seek(0, os.SEEK_END)
    for _ in range(_MOST_ROUNDS):
        described = {"fields": fields_to_json(shard.fields), "pieces": sorted(known)}
        try:
            by_spans, missing = json.loads(_in_helper(shard.path, "touch", **described) or "[false, []]")
        except ShardCorrupt:
            return False  # opening the file itself says what is wrong with it
        if not missing:
            return bool(by_spans)
        known.update(missing)
        if len(known) > piece_count(size) // 4:
            return False
        shard.fetch(missing)
    return False


def have_spans(file: BinaryIO, path: Path, fields: Mapping[str, Field], layout: Layout) -> bool:
    """Return whether readers of all fields know where their rows are in a file, and read all that tells them.

    Args:
        file: the file.
        path, fields, layout: as those of `open_shard`; no file is joined.

    Raises what h5py raises for a file that it cannot read.
    """
    size = file.seek(0, os.SEEK_END)
    with open_hdf5_stream(file) as opened:
        for name, field in with_variables(path, fields, stacks_among(fields, layout.names)).items():
            dataset_name, stored = layout.names.get(name, name), field
            if (packed := layout.packing.get(name)) is not None:
                stored, _ = _stored(packed, field, resolve(opened, dataset_name, path))
            if not _has_spans(opened, dataset_name, stored, size):
                return False
    return True


def _in_helper(path: Path, function: str, **arguments: Any) -> str | None:
    """Return the text that a function of the service yields for the file at `path`; None if it yields nothing."""
    try:
        values = LibraryFile(path).call(f"{SERVICE}:{function}", ["opening"], **arguments)
    except Unreadable as error:
        raise ShardCorrupt(f"{path}: cannot be opened: {error}") from error
    try:
        return values[0].decode() if values else None
    except UnicodeDecodeError as error:
        raise ShardCorrupt(f"{path}: cannot be opened: its description is not UTF-8: {error}") from error


def _span(reader: Any) -> ChunkSpan | None:
    """Return the chunk that reading one row decompresses; of a stack, all of them."""
    if isinstance(reader, (DecodedRows, SomeRows)):
        return _span(reader.reader)
    if not isinstance(reader, StackedRows):
        return reader.span if isinstance(reader, (ChunkedRows, LibraryRows)) else None
    spans = [span for variable in reader.variables if (span := _span(variable)) is not None]
    if not spans:
        return None
    return ChunkSpan(max(s.rows for s in spans), sum(s.size for s in spans), all(s.kept for s in spans))


def open_shard(
    path: Path, fields: Mapping[str, Field], layout: Layout, joined: Sequence[Path] = (), *, indexed: bool = False
) -> OpenShard:
    """Open a shard.

    Args:
        path: the file.
        fields: its fields.
        layout: where they are, unless they are datasets of their own names.
        joined: the files that are joined to this one.
        indexed: whether the index beside the file holds the fields that are not in the layout.
    """
    readers: dict[str, Any] = {}
    counts: dict[str, int] = {}
    in_file: dict[str, int] = {}
    taken: NDArray[np.int64] | None = None
    stacks = stacks_among(fields, layout.names)
    if indexed:
        others = {name: field for name, field in fields.items() if name not in layout.names and name not in stacks}
        table, none = hdf5_index.path_of(path), Layout({})
        _open_fields(table, {**others, hdf5_index.ROWS: ROW_NUMBERS}, none, readers, counts)
        if (reader := readers.pop(hdf5_index.ROWS, None)) is not None:
            taken = np.empty(counts[hdf5_index.ROWS], np.int64)  # the count stays, to be compared with the others
            reader.read(np.arange(len(taken)), taken, MAX_VALUE_BYTES)
        fields = {name: field for name, field in fields.items() if name not in others}
    stored = with_variables(path, fields, stacks)
    beside = frozenset(readers)
    for number, place in enumerate((path, *joined)):
        there = {name: field for name, field in stored.items() if layout.files.get(name, 0) == number}
        if there:
            _open_fields(place, there, layout, readers, in_file)
    if lost := sorted(stored.keys() - in_file.keys()):
        number = layout.files[lost[0]]
        place = path.with_name(joined_name(path.name, number))
        raise ShardCorrupt(f"{place}: there is no such file, which is to have {layout.names[lost[0]]!r}")
    if taken is not None:
        for name, count in in_file.items():
            if len(taken) and not 0 <= taken.min() <= taken.max() < count:
                raise ShardCorrupt(f"{path}, field {name!r}: has {count} rows, and its index names others")
            readers[name], in_file[name] = SomeRows(readers[name], taken), len(taken)
    counts |= in_file
    if len(set(counts.values())) > 1:
        raise ShardCorrupt(f"{path}: fields differ in their number of samples: {counts}")
    stack_readers(readers, fields, stacks)
    locators = {name: locator for name, reader in readers.items() if (locator := _locator(reader)) is not None}
    return OpenShard(next(iter(counts.values()), 0), readers, locators, beside)


def _locator(reader: Any) -> RowLocator | None:
    if isinstance(reader, StackedRows):
        found = [locator for variable in reader.variables if (locator := _locator(variable)) is not None]
        return StackedLocators(tuple(found)) if len(found) == len(reader.variables) else None
    return reader.locator() if isinstance(reader, (_ContiguousRows, _ContiguousValues)) else None


def _open_fields(
    path: Path,
    fields: Mapping[str, Field],
    layout: Layout,
    readers: dict[str, Any],
    counts: dict[str, int],
) -> None:
    """Add the readers of a file's fields to `readers`, and their numbers of samples to `counts`."""
    file, library = RawFile(path), LibraryFile(path)
    try:
        with open_hdf5(path) as opened:
            for name, field in fields.items():
                dataset_name = layout.names.get(name, name)
                dataset = resolve(opened, dataset_name, path)
                if dataset is None and name == hdf5_index.ROWS:
                    continue  # no row is left out
                if dataset is None:
                    raise ShardCorrupt(f"{path}: has no field {dataset_name!r}")
                if field.fixed:
                    packed = layout.packing.get(name)
                    stored, how = (field, None) if packed is None else _stored(packed, field, dataset)
                    reader = _open_rows(dataset, file, library, dataset_name, stored)
                    readers[name] = reader if how is None else DecodedRows(reader, stored, how)
                    counts[name] = len(dataset)
                else:
                    data, offsets = (resolve(opened, f"{dataset_name}/{part}", path) for part in ("data", "offsets"))
                    found = _open_values(dataset, data, offsets, file, library, dataset_name, field)
                    readers[name], counts[name] = found
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system, such as too many open files; libhdf5's own have no number
        raise ShardCorrupt(f"{path}: cut short or damaged: {error}") from error


def _stored(packing: Mapping[str, Any], field: Field, dataset: Any) -> tuple[Field, cf.Decoding]:
    """Return the field of a dataset's numbers as they are stored, and how they become those of `field`.

    Raises ValueError if attributes give others, TypeError for what is no packing or no dataset.
    """
    try:
        how = cf.decoding(cf.from_json(packing), np.dtype(dataset.dtype))
    except (SourceError, AttributeError) as error:
        raise ValueError(f"the index has no attributes of netCDF, {error}") from error
    if how.dtype != field.row_dtype:
        raise ValueError(f"expected {field.dtype}, its attributes give {how.dtype}")
    return replace(field, dtype=how.stored.name), how


def _open_rows(dataset: Any, file: RawFile, library: LibraryFile, name: str, field: Field) -> Any:
    shape = getattr(dataset, "shape", None)
    if not shape or shape[1:] != field.row_shape:
        expected = ", ".join(map(str, ("n", *field.row_shape)))
        raise ShardCorrupt(f"{file.path}, field {name!r}: expected a dataset of shape ({expected}), got {shape}")
    if is_raw(dataset, field):
        if dataset.chunks is not None:
            return chunked_rows(dataset, file, name, field) or library_rows(dataset, library, name, field)
        base = data_offset(dataset, file, name)
        if base is not None:
            small = 0 < field.row_bytes <= MAPPED_ROW
            row = np.dtype((np.uint8, (field.row_bytes,)))
            table = FileTable(file, row, len(dataset), base) if small else None
            return _ContiguousRows(file, name, field, base, len(dataset), table, dataset.dtype.byteorder == ">")
    return library_rows(dataset, library, name, field)


def _open_values(
    stored: Any,
    data: Any,
    offsets: Any,
    file: RawFile,
    library: LibraryFile,
    name: str,
    field: Field,
) -> tuple[Any, int]:
    """Return the reader of a dataset, or else of a group's `data` and `offsets`, and the number of samples."""
    if hasattr(stored, "shape") and not field.ragged:
        return library_values([stored], library, name), len(stored)
    dtype, entry_shape = (field.row_dtype, field.entry_shape) if field.ragged else (np.dtype(np.uint8), ())
    whole = getattr(data, "ndim", 0) >= 1 and getattr(offsets, "ndim", 0) == 1 and len(offsets) > 0
    if (
        not whole
        or data.shape[1:] != entry_shape
        or data.dtype.newbyteorder("<") != dtype
        or offsets.dtype.kind not in "iu"
    ):
        expected = f"{dtype} [{', '.join(map(str, ('entries' if field.ragged else 'bytes', *entry_shape)))}]"
        raise ShardCorrupt(f"{file.path}, field {name!r}: expected data as {expected} and offsets as int64 [n + 1]")
    base, start = data_offset(data, file, name), data_offset(offsets, file, name)
    raw = data.dtype.byteorder != ">" and is_raw(data, field) if field.ragged else True
    if base is None or start is None or offsets.dtype != np.dtype("<i8") or not raw:
        return library_values([data, offsets], library, name), len(offsets) - 1
    table, unit = FileTable(file, np.dtype("<i8"), len(offsets), start), field.entry_bytes if field.ragged else 1
    return _ContiguousValues(file, name, base, len(data), table, unit, field.ragged), len(offsets) - 1


def _has_spans(opened: Any, name: str, field: Field, size: int) -> bool:
    """Return whether a reader of a field knows where its rows are in a file of `size` bytes.

    Reads what tells it that: the table of chunks, and the offsets of values that differ in size.
    """
    parts = [name] if field.fixed else [f"{name}/data", f"{name}/offsets"]
    datasets = [resolve(opened, part, Path(name)) for part in parts]
    if field.fixed and getattr(datasets[0], "chunks", None) is not None:
        return is_raw(datasets[0], field) and chunk_table(datasets[0], size) is not None
    if any(getattr(dataset, "chunks", ()) is not None for dataset in datasets):
        return False
    if not field.fixed:
        datasets[1][...]
    return not (field.fixed or field.ragged) or is_raw(datasets[0], field)


def is_raw(dataset: Any, field: Field) -> bool:
    """Return whether the bytes in the file are those of the field, but for the byte order."""
    h5py = importlib.import_module("h5py")
    same = dataset.dtype.newbyteorder("<") == field.row_dtype
    return same and bool(dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True))


def data_offset(dataset: Any, file: RawFile, name: str) -> int | None:
    """The offset in the file of a contiguous dataset's bytes; None unless all are in this file, in one piece."""
    h5d = importlib.import_module("h5py").h5d
    properties = dataset.id.get_create_plist()
    if properties.get_layout() != h5d.CONTIGUOUS or properties.get_external_count():
        return None
    base = dataset.id.get_offset()
    size = dataset.size * dataset.id.get_type().get_size()
    if base is None:
        return None if size else 0
    if base + size > file.size:
        raise ShardCorrupt(f"{file.path}, field {name!r}: ends at byte {base + size} of {file.size}")
    return int(base)
