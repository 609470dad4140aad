"""The `indexed` container: files of any format, with a side index beside each that says where every value is.

`IndexedReader` reads tars as well.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.file_table import FileTable
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Column, Rows
from . import side_index
from .base import Container, OpenedShard
from .files import BaseReader, RawFile, check_request
from .out_arrays import as_rows, check_out
from .row_locator import MemoryRows, RowLocator, SpanTable, not_mapped


@dataclass(frozen=True, slots=True)
class _OpenShard:
    """An open file.

    Attributes:
        file: the file itself.
        index: its index.
        locators: where fields are, of those that were asked for.
    """

    file: RawFile
    index: FileTable
    locators: dict[str, RowLocator | None] = dataclasses.field(default_factory=dict)


@final
class IndexedReader(BaseReader[_OpenShard]):
    """A `Reader` that takes each value's span from the side index, and reads it with one `pread`."""

    def _open(self) -> _OpenShard:
        file, index = RawFile(self._path), side_index.read(self._path, self._fields)
        return _OpenShard(file, index)

    def __len__(self) -> int:
        return len(self._shard().index)

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        shard = self._shard()
        rows, kind = check_request(rows, field, out, self._fields, len(shard.index), self._path)
        if field.startswith("_") or kind.kind == "scalar":
            out = check_out(out, len(rows), kind)
            column: NDArray[Any] = shard.index[field].take(rows, out=out)
            return column
        if not kind.fixed:
            return shard.file.read_values(*self._spans(rows, field), rows, field, most)
        file, offsets, there = self._file_and_offsets(rows, field)
        out = check_out(out, len(rows), kind)
        if not there.all():
            out[~there] = 0
            for row in np.flatnonzero(there).tolist():
                one = slice(row, row + 1)
                file.read_rows(offsets[one], as_rows(out[one], kind), rows[one], field)
            return out
        file.read_rows(offsets, as_rows(out, kind), rows, field)
        return out

    def _spans(self, rows: Rows, field: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset and the size of each value, int64 [n] each."""
        index = self._shard().index
        return index[f"{field}.offset"].take(rows), index[f"{field}.size"].take(rows)

    def _file_and_offsets(self, rows: Rows, field: str) -> tuple[RawFile, NDArray[np.int64], NDArray[np.bool_]]:
        kind = self._fields[field]
        offsets, sizes = self._spans(rows, field)
        there = (sizes != 0) | (not kind.optional)
        wrong = np.flatnonzero((sizes != kind.row_bytes) & there)
        if len(wrong):
            row, size = rows[wrong[0]], sizes[wrong[0]]
            raise ShardCorrupt(f"{self._path}, field {field!r}, row {row}: expected {kind.row_bytes} bytes, got {size}")
        return self._shard().file, offsets, there

    def locator(self, field: str) -> RowLocator | None:
        shard = self._shard()
        if field not in shard.locators:
            shard.locators[field] = self._locator(shard, field)
        return shard.locators[field]

    def _locator(self, shard: _OpenShard, field: str) -> RowLocator | None:
        index, owner = shard.index, (shard.file, shard.index)  # not the shard, which keeps the locator
        if field in (index.dtype.names or ()):
            return MemoryRows.in_file(index[field])
        spans = index[f"{field}.offset"].address
        if index[f"{field}.size"].address != spans + 8:
            return None
        kind, file = self._fields[field], shard.file
        mapped = file.map_parts if kind.ragged or kind.fixed else not_mapped
        return SpanTable(spans, index.dtype.itemsize, file.fd, file.size, owner, map=mapped)


class IndexedContainer(Container):
    """Files that other programs wrote, read in place. It has no writer: `shardio index` writes the side indexes."""

    name = "indexed"
    reader_type = IndexedReader

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (side_index.path_of(Path(name)).name,)

    def touch(self, shard: OpenedShard) -> bool:
        return True  # the index says all

    def files(self, path: Path) -> tuple[Path, ...]:
        return path, side_index.path_of(path)
