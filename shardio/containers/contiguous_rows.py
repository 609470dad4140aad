"""Contiguous arrays in a file, and values of several sizes end to end with a table of their offsets."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.file_table import FileTable
from ..system.types import Rows
from .extents import Blocks, Entries, Extent, FileSpans, of_blocks, of_entries
from .field_reader import FieldReader
from .files import RawFile
from .out_arrays import as_rows
from .row_locator import FileRows, MemoryRows, RowLocator, SpanTable, not_mapped, within


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

    def __len__(self) -> int:
        return self.count

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
        return of_entries(values, self.unit, extent[inside]) if isinstance(extent, Entries) else values

    def locator(self) -> RowLocator:
        limit = self.base + self.size * self.unit
        mapped = self.file.map_parts if self.ragged else not_mapped
        place = self.offsets.address, 8, self.file.fd, limit, self.file, self.base
        return SpanTable(*place, has_ends=True, unit=self.unit, map=mapped)
