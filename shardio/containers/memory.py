"""The `memory` container: shards that live in this process, for tests, examples and small data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Column, Rows, Stored
from ._files import check_request
from ._writing import check_options, check_sample, fixed_sizes
from .base import check_out, check_value_bytes
from .row_locator import MemoryRows, RowLocator


@dataclass(frozen=True, slots=True)
class _Shard:
    count: int
    columns: Mapping[str, Column]


_SHARDS: dict[str, _Shard] = {}


@final
class MemoryWriter:
    """A `Writer` whose `close` registers the shard under its path, replacing any other shard there."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int) -> None:
        self._path, self._fields, self._first = path, dict(fields), first
        self._row_bytes = fixed_sizes(fields)
        self._values: dict[str, list[bytes]] = {name: [] for name in fields}
        self._count = 0
        self._closed = False

    def append(self, sample: Stored) -> None:
        if self._closed:
            raise ValueError(f"{self._path}: the writer is closed")
        check_sample(sample, self._fields, self._row_bytes, self._first + self._count, self._path)
        for name, values in self._values.items():
            values.append(bytes(sample[name]))
        self._count += 1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
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
class MemoryReader:
    """A `Reader` that carries the shard's data along when it is pickled."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        if _key(path) not in _SHARDS:
            raise ShardCorrupt(f"{path}: there is no such shard in this process's memory")
        shard = _SHARDS[_key(path)]
        for name in fields:
            if name not in shard.columns:
                raise ShardCorrupt(f"{path}: has no field {name!r}")
        self._shard: _Shard | None = shard

    def __len__(self) -> int:
        return self._open_shard().count

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        shard = self._open_shard()
        rows, kind = check_request(rows, field, out, self._fields, shard.count, self._path)
        column = shard.columns[field]
        if isinstance(column, list):
            values = [column[row] for row in rows.tolist()]
            check_value_bytes(max(map(len, values), default=0), most, f"{self._path}, field {field!r}")
            return values
        out = check_out(out, len(rows), kind)
        out[...] = column[rows]
        return out

    def locator(self, field: str) -> RowLocator | None:
        column = self._open_shard().columns[field]
        return None if isinstance(column, list) else MemoryRows.of(column)

    def close(self) -> None:
        self._shard = None

    def _open_shard(self) -> _Shard:
        if (shard := self._shard) is None:
            raise ValueError(f"{self._path}: the reader is closed")
        return shard


@final
class MemoryContainer:
    """Shards in a dictionary of this process, by path. There are no files, and nothing outlives the process."""

    name = "memory"
    suffix = ".memory"
    index_suffix = ""
    on_disk = False
    options: Mapping[str, str] = MappingProxyType({})

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> MemoryWriter:
        check_options(options, self)
        return MemoryWriter(Path(path), fields, first)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> MemoryReader:
        return MemoryReader(Path(path), fields)

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return ()

    def touch(self, file: BinaryIO, fields: Mapping[str, Field], *, adopted: bool) -> bool:
        raise ShardCorrupt("memory: no store holds such shards")

    def read_fields(self, path: Path) -> None:
        return None  # in-memory shards need no self-description

    def files(self, path: Path) -> tuple[Path, ...]:
        return ()


def _key(path: Path) -> str:
    return str(path.absolute())
