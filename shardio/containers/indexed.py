"""The `indexed` container: files of any format, each with a side index that says where every value is.

`IndexedReader` reads tars as well.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ..format.file_table import FileTable
from ..system.types import Rows
from . import side_index
from .base import Container, OpenedShard
from .extents import FileSpans
from .files import RawFile, SpanReader, SpanShard
from .row_locator import MemoryRows, RowLocator, SpanTable, not_mapped


@dataclass(frozen=True, slots=True)
class _OpenShard(SpanShard):
    """An open file.

    Attributes:
        file: the file itself.
        index: its index.
        locators: where fields are, of those that were asked for.
    """

    file: RawFile
    index: FileTable
    locators: dict[str, RowLocator | None] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)


@final
class IndexedReader(SpanReader[_OpenShard]):
    """A `Reader` that takes each value's span from the side index, and reads it with one `pread`."""

    def _open(self) -> _OpenShard:
        file, index = RawFile(self._path), side_index.read(self._path, self._fields)
        return _OpenShard(file, index)

    def _column(self, shard: _OpenShard, field: str) -> FileTable | None:
        return shard.index[field] if field in (shard.index.dtype.names or ()) else None

    def _spans(self, shard: _OpenShard, rows: Rows, field: str) -> FileSpans:
        return shard.index[f"{field}.offset"].take(rows), shard.index[f"{field}.size"].take(rows)

    def locator(self, field: str) -> RowLocator | None:
        shard = self._shard()
        if field not in shard.locators:
            shard.locators[field] = self._locator(shard, field)
        return shard.locators[field]

    def _locator(self, shard: _OpenShard, field: str) -> RowLocator | None:
        index, owner = shard.index, (shard.file, shard.index)  # not the shard, which keeps the locator
        if (column := self._column(shard, field)) is not None:
            return MemoryRows.in_file(column)
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
