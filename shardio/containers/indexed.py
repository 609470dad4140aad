"""The `indexed` container: files of any format, with a side index beside each that says where every value is.

`IndexedReader` reads tars as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Column, Rows
from . import side_index
from ._files import Handle, RawFile, as_rows, check_request, take_mapped
from .base import check_out
from .row_locator import MemoryRows, RowLocator, SpanTable


@dataclass(frozen=True, slots=True)
class _OpenShard:
    file: RawFile
    index: NDArray[Any]


@final
class IndexedReader:
    """A `Reader` that takes each value's span from the memory-mapped side index, and reads it with one `pread`."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(_open, path, fields)

    def __len__(self) -> int:
        return len(self._handle.get().index)

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        shard = self._handle.get()
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
        shard = self._handle.get()
        index = shard.index
        if field in (index.dtype.names or ()):
            return MemoryRows.of(index[field])
        spans = index[f"{field}.offset"].ctypes.data
        if index[f"{field}.size"].ctypes.data != spans + 8:
            return None
        return SpanTable(spans, index.dtype.itemsize, shard.file.fd, shard.file.size, shard)

    def close(self) -> None:
        self._handle.close()


@final
class IndexedContainer:
    """Files that other programs wrote, read in place. It has no writer: `shardio index` writes the side indexes."""

    name = "indexed"
    suffix = ""
    index_suffix = side_index.SUFFIX
    on_disk = True
    options: Mapping[str, str] = MappingProxyType({})

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> NoReturn:
        raise ConfigError(f"container {self.name!r} only reads files that other programs wrote: see shardio index")

    def reader(self, path: Path, fields: Mapping[str, Field]) -> IndexedReader:
        return IndexedReader(Path(path), fields)

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (side_index.path_of(Path(name)).name,)

    def touch(self, file: BinaryIO, fields: Mapping[str, Field], *, adopted: bool) -> bool:
        return True  # the index says all

    def read_fields(self, path: Path) -> None:
        return None

    def files(self, path: Path) -> tuple[Path, ...]:
        return path, side_index.path_of(path)


def _open(path: Path, fields: Mapping[str, Field]) -> _OpenShard:
    file = RawFile(path)
    return _OpenShard(file, side_index.read(path, fields))
