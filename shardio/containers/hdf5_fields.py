"""Fields of an HDF5 file: where h5py says that their datasets are, and the readers for them there."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependency, ShardCorrupt, StoreError
from ..format.fields import Field
from ..format.file_table import FileTable
from ..system.types import Rows
from .extents import Blocks, Extent, FileSpans, Runs, of_blocks, of_runs
from .field_reader import DecodedRows, FieldReader, decoding_of
from .files import RawFile, open_hdf5
from .hdf5_chunks import chunked_rows
from .hdf5_index import Layout
from .hdf5_library import LibraryFile, library_rows, library_values, resolve
from .out_arrays import as_rows
from .row_locator import MAPPED_ROW, FileRows, MemoryRows, RowLocator, SpanTable, not_mapped, within
from .stacked_rows import with_variables


@final
@dataclass(frozen=True, slots=True)
class ContiguousRows(FieldReader):
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

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        if self.table is None:
            self.file.read_fixed(self.base + rows * self.field.row_bytes, out, rows, self.name, self.field, blocks)
        elif blocks is None:
            self.table.take(rows, out=as_rows(out, self.field))
        else:
            blocks.cut(self.table.take(rows).view(self.field.row_dtype).reshape(-1, *self.field.row_shape), out)
        if self.big_endian:
            out.byteswap(inplace=True)

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans:
        offsets, size = self.base + rows * self.field.row_bytes, self.field.row_bytes
        if isinstance(extent, Blocks):
            return of_blocks(offsets, self.field.row_shape, self.field.row_dtype.itemsize, extent)
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


@final
@dataclass(frozen=True, slots=True)
class ContiguousValues(FieldReader):
    """A group of contiguous `data`, `size` entries of `unit` bytes at `base`, and `offsets` (int64, n + 1)."""

    file: RawFile
    name: str
    base: int
    size: int
    offsets: FileTable
    unit: int
    ragged: bool

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def read_values(self, rows: Rows, most: int) -> list[bytes]:
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

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans:
        starts, ends = (self.offsets.take(place) for place in (rows, rows + 1))
        inside = within(starts, ends - starts, 0, self.size)  # reading says what is wrong with the others
        values = self.base + starts[inside] * self.unit, (ends - starts)[inside] * self.unit
        return of_runs(values, self.unit, extent[inside]) if isinstance(extent, Runs) else values

    def locator(self) -> RowLocator:
        limit = self.base + self.size * self.unit
        mapped = self.file.map_parts if self.ragged else not_mapped
        place = self.offsets.address, 8, self.file.fd, limit, self.file, self.base
        return SpanTable(*place, has_ends=True, unit=self.unit, map=mapped)


def open_fields(
    path: Path, fields: Mapping[str, Field], layout: Layout, stream: BinaryIO | None = None
) -> dict[str, FieldReader]:
    """Return the readers of a file's fields.

    Args:
        path: the file.
        fields: its fields, with the variables of stacks instead of the stacks.
        layout: where they are.
        stream: the file as it comes from a store; the tables that locate rows are read through it.

    Raises:
        ShardCorrupt: the file lacks a field, has another one, or is cut short or damaged.
        MissingDependency: a filter of a dataset is not installed.
    """
    file, library, readers = RawFile(path), LibraryFile(path), dict[str, FieldReader]()
    try:
        with open_hdf5(path, stream) as opened:
            for name, field in fields.items():
                dataset_name = layout.names.get(name, name)
                dataset = resolve(opened, dataset_name, path)
                if dataset is None:
                    raise ShardCorrupt(f"{path}: has no field {dataset_name!r}")
                if field.fixed:
                    if (packed := layout.packing.get(name)) is None or _shape(dataset) is None:
                        readers[name] = _open_rows(dataset, file, library, dataset_name, field)
                        continue
                    how = decoding_of(packed, np.dtype(dataset.dtype), field)
                    stored = replace(field, dtype=how.stored.name)
                    reader = _open_rows(dataset, file, library, dataset_name, stored)
                    readers[name] = DecodedRows(reader, stored, how)
                else:
                    data, offsets = (resolve(opened, f"{dataset_name}/{part}", path) for part in ("data", "offsets"))
                    readers[name] = _open_values(dataset, data, offsets, file, library, dataset_name, field)
                    if stream is not None and isinstance(readers[name], ContiguousValues):
                        offsets[...]  # which the reader finds in the file itself
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        if isinstance(error, StoreError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # an error of the system, such as too many open files; libhdf5's own have no number
        raise ShardCorrupt(f"{path}: cut short or damaged: {error}") from error
    return readers


def _open_rows(dataset: Any, file: RawFile, library: LibraryFile, name: str, field: Field) -> FieldReader:
    shape = _shape(dataset)
    if not shape or shape[1:] != field.row_shape:
        expected = ", ".join(map(str, ("n", *field.row_shape)))
        raise ShardCorrupt(f"{file.path}, field {name!r}: expected a dataset of shape ({expected}), got {shape}")
    if is_raw(dataset, field):
        if dataset.chunks is not None:
            if (chunked := chunked_rows(dataset, file, name, field)) is not None:
                return chunked
            return library_rows(dataset, library, name, field)
        base = data_offset(dataset, file, name)
        if base is not None:
            small = 0 < field.row_bytes <= MAPPED_ROW
            row = np.dtype((np.uint8, (field.row_bytes,)))
            table = FileTable(file, row, len(dataset), base) if small else None
            return ContiguousRows(file, name, field, base, len(dataset), table, dataset.dtype.byteorder == ">")
    return library_rows(dataset, library, name, field)


def _shape(node: Any) -> tuple[int, ...] | None:
    """Return the shape of a dataset; None for a group, nothing, or a dataset of no space."""
    return node.shape if isinstance(node, importlib.import_module("h5py").Dataset) else None


def _open_values(
    stored: Any,
    data: Any,
    offsets: Any,
    file: RawFile,
    library: LibraryFile,
    name: str,
    field: Field,
) -> FieldReader:
    """Return the reader of a dataset, or else of a group's `data` and `offsets`."""
    if _shape(stored) is not None and not field.ragged:
        return library_values([stored], library, name)
    dtype, entry_shape = (field.row_dtype, field.entry_shape) if field.ragged else (np.dtype(np.uint8), ())
    entries, bounds = _shape(data), _shape(offsets)
    if (
        not entries
        or not bounds
        or len(bounds) != 1
        or not bounds[0]
        or data.shape[1:] != entry_shape
        or data.dtype.newbyteorder("<") != dtype
        or offsets.dtype.kind not in "iu"
    ):
        expected = f"{dtype} [{', '.join(map(str, ('entries' if field.ragged else 'bytes', *entry_shape)))}]"
        raise ShardCorrupt(f"{file.path}, field {name!r}: expected data as {expected} and offsets as int64 [n + 1]")
    base, start = data_offset(data, file, name), data_offset(offsets, file, name)
    raw = data.dtype.byteorder != ">" and is_raw(data, field) if field.ragged else True
    if base is None or start is None or offsets.dtype != np.dtype("<i8") or not raw:
        return library_values([data, offsets], library, name)
    table, unit = FileTable(file, np.dtype("<i8"), len(offsets), start), field.entry_bytes if field.ragged else 1
    return ContiguousValues(file, name, base, len(data), table, unit, field.ragged)


def have_spans(file: BinaryIO, path: Path, fields: Mapping[str, Field], layout: Layout) -> bool:
    """Return whether readers of all fields can locate their rows in a file, and read all tables that they need for it.

    Args:
        file: the file as it comes from a store.
        path: the cache's file for it, of the same size.
        fields, layout: as those of `open_shard`; no file is merged.

    False also for a file that cannot be opened: opening it says why. Raises StoreError.
    """
    try:
        stored = with_variables(path, fields, layout.names)
        readers = open_fields(path, stored, layout, file)
    except StoreError:
        raise
    except (ShardCorrupt, MissingDependency, OSError, MemoryError):
        return False
    none = np.empty(0, np.int64)
    return all(reader.spans(none, None) is not None for reader in readers.values())


def is_raw(dataset: Any, field: Field) -> bool:
    """Return whether the bytes in the file are those of the field, but for the byte order."""
    h5py = importlib.import_module("h5py")
    same = dataset.dtype.newbyteorder("<") == field.row_dtype
    return same and bool(dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True))


def data_offset(dataset: Any, file: RawFile, name: str) -> int | None:
    """Return the offset in the file of a contiguous dataset's bytes; None unless all are in this file, in one piece."""
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
