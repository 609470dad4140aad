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
from .extents import NO_BYTES, Extent, FileSpans
from .files import RawFile, SpanReader, SpanShard
from .row_locator import MemoryRows, RowLocator, SpanTable, not_mapped


@dataclass(frozen=True, slots=True)
class _OpenShard(SpanShard):
    """An open file.

    Attributes:
        file: the file itself.
        index: its index.
        second: the second array of the index, if it has one.
        locators: where fields are, of those that were asked for.
    """

    file: RawFile
    index: FileTable
    second: side_index.SecondArray | None
    locators: dict[str, RowLocator | None] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)


@final
class IndexedReader(SpanReader[_OpenShard]):
    """A `Reader` that takes each value's span from the side index, and reads it with one `pread`."""

    def _open(self) -> _OpenShard:
        file, index = RawFile(self._path), side_index.read(self._path, self._fields)
        return _OpenShard(file, index, side_index.second_array(self._path, self._fields))

    def _column(self, shard: _OpenShard, field: str) -> FileTable | None:
        return shard.index[field] if field in (shard.index.dtype.names or ()) else None

    def _spans(self, shard: _OpenShard, rows: Rows, field: str) -> FileSpans:
        begin = 0 if (second := self._second(shard, field)) is None else second.begin
        return shard.index[f"{field}.offset"].take(rows) + begin, shard.index[f"{field}.size"].take(rows)

    def _file(self, shard: _OpenShard, field: str) -> RawFile:
        return shard.file if (second := self._second(shard, field)) is None else second.file

    def _second(self, shard: _OpenShard, field: str) -> side_index.SecondArray | None:
        """Return the second array of the index if that has a field's values."""
        return shard.second if field.startswith("_") and not self._fields[field].fixed else None

    def spans(self, rows: Rows, field: str, extent: Extent | None = None) -> FileSpans | None:
        # The index is in no need of fetching: it was read whole.
        return super().spans(rows, field, extent) if self._second(self._shard(), field) is None else NO_BYTES

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
        kind, file, begin, end = self._fields[field], shard.file, 0, shard.file.size
        if (second := self._second(shard, field)) is not None:
            file, begin, end = second.file, second.begin, second.end
        mapped = file.map_parts if kind.ragged or kind.fixed else not_mapped
        return SpanTable(spans, index.dtype.itemsize, file.fd, end, (owner, file), begin, map=mapped)


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
