"""The `indexed` container: files of any format, with a side index beside each that says where every value is.

`IndexedReader` reads tars as well.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Column, Rows
from . import side_index
from .base import Container, check_out
from .files import BaseReader, RawFile, as_rows, check_request, take_mapped
from .row_locator import NOT_MAPPED, FileMap, MemoryRows, RowLocator, SpanTable


@dataclass(frozen=True, slots=True)
class _OpenShard:
    """An open file.

    Attributes:
        file: the file itself.
        index: its index.
        map: the file in memory, if any field is ragged.
        locators: where fields are, of those that were asked for.
    """

    file: RawFile
    index: NDArray[Any]
    map: FileMap
    locators: dict[str, RowLocator | None] = dataclasses.field(default_factory=dict)


@final
class IndexedReader(BaseReader[_OpenShard]):
    """A `Reader` that takes each value's span from the memory-mapped side index, and reads it with one `pread`."""

    def _open(self) -> _OpenShard:
        file, index = RawFile(self._path), side_index.read(self._path, self._fields)
        ragged = any(field.ragged for field in self._fields.values())
        return _OpenShard(file, index, file.map_parts() if ragged else NOT_MAPPED)

    def __len__(self) -> int:
        return len(self._shard().index)

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        shard = self._shard()
        rows, kind = check_request(rows, field, out, self._fields, len(shard.index), self._path)
        path = side_index.path_of(self._path)
        if field.startswith("_") or kind.kind == "scalar":
            out = check_out(out, len(rows), kind)
            return take_mapped(shard.index[field], rows, path, out)
        offsets, sizes = (take_mapped(shard.index[f"{field}.{part}"], rows, path) for part in ("offset", "size"))
        if not kind.fixed:
            return shard.file.read_values(offsets, sizes, rows, field, most)
        absent = (sizes == 0) & kind.optional
        wrong = np.flatnonzero((sizes != kind.row_bytes) & ~absent)
        if len(wrong):
            row, size = rows[wrong[0]], sizes[wrong[0]]
            raise ShardCorrupt(f"{self._path}, field {field!r}, row {row}: expected {kind.row_bytes} bytes, got {size}")
        out = check_out(out, len(rows), kind)
        if absent.any():
            out[absent] = 0
            for row in np.flatnonzero(~absent).tolist():
                one = slice(row, row + 1)
                shard.file.read_rows(offsets[one], as_rows(out[one], kind), rows[one], field)
            return out
        shard.file.read_rows(offsets, as_rows(out, kind), rows, field)
        return out

    def locator(self, field: str) -> RowLocator | None:
        shard = self._shard()
        if field not in shard.locators:
            shard.locators[field] = self._locator(shard, field)
        return shard.locators[field]

    def _locator(self, shard: _OpenShard, field: str) -> RowLocator | None:
        index, owner = shard.index, (shard.file, shard.index)  # not the shard, which keeps the locator
        if field in (index.dtype.names or ()):
            return MemoryRows.of(index[field])
        spans = index[f"{field}.offset"].ctypes.data
        if index[f"{field}.size"].ctypes.data != spans + 8:
            return None
        mapped = shard.map if self._fields[field].ragged else NOT_MAPPED
        return SpanTable(spans, index.dtype.itemsize, shard.file.fd, shard.file.size, owner, map=mapped)


class IndexedContainer(Container):
    """Files that other programs wrote, read in place. It has no writer: `shardio index` writes the side indexes."""

    name = "indexed"
    index_suffix = side_index.SUFFIX
    reader_type = IndexedReader

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (side_index.path_of(Path(name)).name,)

    def touch(
        self,
        file: BinaryIO,
        fetch: Callable[[Sequence[int]], None],
        path: Path,
        fields: Mapping[str, Field],
        *,
        adopted: bool,
    ) -> bool:
        return True  # the index says all

    def files(self, path: Path) -> tuple[Path, ...]:
        return path, side_index.path_of(path)
