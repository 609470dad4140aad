"""The `memory` container: shards that live in this process, for tests, examples and small data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..system.types import Column, Rows, Stored
from ._writing import Writer
from .base import Container
from .extents import Blocks
from .field_reader import ColumnRows
from .files import BaseReader
from .out_arrays import check_value_bytes
from .row_locator import MemoryRows, RowLocator


@dataclass(frozen=True, slots=True)
class _Shard:
    count: int
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return self.count


_SHARDS: dict[str, _Shard] = {}


@final
class MemoryWriter(Writer):
    """A `Writer` whose `close` registers the shard under its path, replacing any other shard there."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int, rows: int | None) -> None:
        super().__init__(path, fields, first, rows)
        self._values: dict[str, list[bytes]] = {name: [] for name in fields}

    def _add(self, sample: Stored, index: int) -> None:
        for name, values in self._values.items():
            values.append(bytes(sample[name]))

    def _finish(self) -> None:
        columns: dict[str, Column] = dict(self._values)
        for name, field in self._fields.items():
            if field.fixed:
                flat = np.frombuffer(b"".join(self._values[name]), field.row_dtype)
                columns[name] = flat.reshape(self._count, *field.row_shape)
        _SHARDS[_key(self._path)] = _Shard(self._count, columns)


def forget(path: Path) -> None:
    """Free the shard at `path`, if there is one."""
    _SHARDS.pop(_key(path), None)


@final
class MemoryReader(BaseReader[_Shard]):
    """A `Reader` that carries the shard's data along when it is pickled."""

    def _open(self) -> _Shard:
        if (shard := _SHARDS.get(_key(self._path))) is None:
            raise ShardCorrupt(f"{self._path}: there is no such shard in this process's memory")
        for name in self._fields:
            if name not in shard.columns:
                raise ShardCorrupt(f"{self._path}: has no field {name!r}")
        return shard

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def _read(self, shard: _Shard, rows: Rows, field: str, out: NDArray[Any], most: int, blocks: Blocks | None) -> None:
        ColumnRows(np.asarray(shard.columns[field])).read(rows, out, most, blocks)

    def _read_values(self, shard: _Shard, rows: Rows, field: str, most: int) -> list[bytes]:
        values = [bytes(shard.columns[field][row]) for row in rows.tolist()]
        check_value_bytes(max(map(len, values), default=0), most, f"{self._path}, field {field!r}")
        return values

    def locator(self, field: str) -> RowLocator | None:
        column = self._shard().columns[field]
        return None if isinstance(column, list) else MemoryRows.of(column)


@final
class MemoryContainer(Container):
    """Shards in a dictionary of this process, by path. There are no files, and nothing outlives the process."""

    name = "memory"
    suffix = ".memory"
    on_disk = False
    writer_type, reader_type = MemoryWriter, MemoryReader

    def files(self, path: Path) -> tuple[Path, ...]:
        return ()


def _key(path: Path) -> str:
    return str(path.absolute())
