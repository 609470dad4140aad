"""The index next to an HDF5 file or a Zarr store that is read in place: `NAME.idx.npy`.

```text
arrays in NumPy's .npy, one after the other, each from a multiple of 64 bytes on:
  JSON, uint8       at most 1 MiB: the container, where the fields are, and the names of the tables that follow
  tables            of HDF5, scalars and hidden columns; of Zarr, what is known of the chunks of each array as well
  checksum, uint8   16 bytes, XXH3-128 of all that stands before
```

The rows of the table `_rows`, int64 [samples], are those rows of the arrays that are samples; without it, all are. An
index is replaced as a whole, so that one that is cut, damaged or put together of two has another checksum.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
import xxhash

from ..errors import ConfigError, ShardCorrupt
from ..format.fields import Field
from ..format.file_table import Table, TableFile, parts
from ..format.requires import check_requires
from ..system import npy, strict_json
from ..system.directory import Directory
from ..system.types import Buffer
from .field_reader import ColumnRows, FieldReader
from .files import open_tables
from .side_index import SUFFIX

T = TypeVar("T")

ROWS = "_rows"

_FORMAT, _VERSION = "shardio array index", 1
_MOST_JSON = 1 << 20
_ALIGN = 64
_BYTE = np.dtype(np.uint8)
_SUM_BYTES = 16
_SUM_HEADER = npy.header_of(_BYTE, (_SUM_BYTES,))


def path_of(shard: Path) -> Path:
    """Return the path of the index of a file or store: that of `era5.zarr` is `era5.zarr.idx.npy`."""
    return shard.with_name(shard.name + SUFFIX)


def write(
    directory: Directory, shard: str, container: str, described: Mapping[str, Any], tables: Mapping[str, Table]
) -> None:
    """Write the index of a file or store, or replace it, atomically.

    Args:
        directory: the directory of the file, or of a link to it.
        shard: the file's name there.
        container: its container.
        described: JSON values that say where its fields are.
        tables: the tables by name, [rows, ...] each.

    Raises ConfigError if these JSON values take more than 1 MiB.
    """
    name = path_of(Path(shard)).name
    head = {
        "format": _FORMAT, "version": _VERSION, "requires": [],
        "container": container, "described": described, "tables": [*tables],
    }  # fmt: skip
    text = json.dumps(head).encode()
    if len(text) > _MOST_JSON:
        raise ConfigError(
            f"{directory.path / name}: an index describes fields in at most {_MOST_JSON} bytes, and these take "
            f"{len(text)}: take fewer fields"
        )
    with directory.replacing(name) as file:
        write_tables(file, text, tables.values())


def write_tables(file: IO[bytes], text: bytes, tables: Iterable[Table]) -> None:
    """Write a JSON text and tables to an empty file, and behind them the checksum of all."""
    state = xxhash.xxh3_128()

    def put(data: Buffer) -> None:
        state.update(data)
        file.write(data)

    for table in (np.frombuffer(text, _BYTE), *tables):
        put(npy.header_of(table.dtype.base, table.shape))
        for part in parts(table):
            put(np.ascontiguousarray(part).reshape(-1).view(_BYTE).data)
        put(bytes(-file.tell() % _ALIGN))
    put(_SUM_HEADER)
    file.write(state.digest())


def read(shard: Path, container: str, described: type[T], *, mapped: bool = False) -> tuple[T, dict[str, Table]]:
    """Read the index of the file or store at `shard`: what describes it, and its tables by name.

    Args:
        shard: the path of the file or store.
        container: its container.
        described: the type of what describes it.
        mapped: whether all tables stay in the file, as tables in memory, which the processes of a node share. Otherwise
            those of small indexes are arrays.

    Raises ShardCorrupt if the index is missing, cut short or damaged, or has a feature that is not known here.
    """
    path = path_of(shard)
    with _naming_damage(path):
        file = open_tables(path, 0, keep_open=False) if mapped else open_tables(path)
        head = _head_of(file)
        if head.container != container:
            raise ValueError(f"it is that of a file of the container {head.container!r}")
        found = msgspec.convert(head.described, described)
        tables = read_tables(file, head.tables)
    if ROWS in tables:
        table_of(shard, tables, ROWS, np.dtype(np.int64))
    return found, tables


def is_index(shard: Path) -> bool:
    """Return whether shardio wrote the file where the index of a file or store belongs."""
    path = path_of(shard)
    try:
        with _naming_damage(path):
            _head_of(open_tables(path))
    except ShardCorrupt:
        return False
    return True


def table_of(
    shard: Path, tables: Mapping[str, Table], name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()
) -> Table:
    """Return a table of the index of a file or store; ShardCorrupt unless there is one of `dtype` [n, *row_shape]."""
    table = tables.get(name)
    if table is None or (table.dtype.base, table.shape[1:]) != (dtype, row_shape):
        got = "none" if table is None else f"{table.dtype.base} {list(table.shape)}"
        raise ShardCorrupt(f"{path_of(shard)}: the table {name!r} must be {dtype} {['n', *row_shape]}, got {got}")
    return table


def columns_of(shard: Path, tables: Mapping[str, Table], fields: Mapping[str, Field]) -> dict[str, FieldReader]:
    """Return the readers of fields that the index of a file or store holds itself; see `table_of`."""
    return {
        name: ColumnRows(table_of(shard, tables, name, field.row_dtype, field.row_shape))
        for name, field in fields.items()
    }


class _Head(msgspec.Struct):
    """The JSON value of an index, without its format and version."""

    container: str
    described: dict[str, Any]
    tables: list[str]


@contextlib.contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, msgspec.MsgspecError) as error:
        raise ShardCorrupt(f"{path}: the index is cut short or damaged: {error}") from error


def _head_of(file: TableFile) -> _Head:
    head = read_json(file)
    if (head["format"], head["version"]) != (_FORMAT, _VERSION):
        raise ValueError("it is of another format or version")
    check_requires(head["requires"], file.path, ShardCorrupt)
    return msgspec.convert(head, _Head)


def read_json(file: TableFile) -> Any:
    """Compare what `write_tables` wrote with its checksum, and return its JSON value; ValueError for anything else."""
    end = file.size - _SUM_BYTES
    state = xxhash.xxh3_128()
    for block in file.blocks(0, end):
        state.update(block.data)
    if end < 0 or file.bytes(end, file.size) != state.digest():
        raise ValueError("it has another checksum than it states")
    place = file.npy()
    if place.dtype != _BYTE or place.rows > _MOST_JSON:
        raise ValueError(f"it begins with {place.rows} of {place.dtype}, not with at most {_MOST_JSON} bytes of JSON")
    return strict_json.parse(file.bytes(place.start, place.stop), nan=True)


def read_tables(file: TableFile, names: Sequence[str]) -> dict[str, Table]:
    """Return the tables that `write_tables` wrote, by the names that they are given; ValueError for other tables."""
    found = dict[str, Table]()
    begin = _aligned(file.npy().stop)
    for name in names:
        dtype, rows, start, stop = file.npy(begin)
        found[name], begin = file.table(dtype, rows, start), _aligned(stop)
    if len(found) < len(names) or begin != file.size - _SUM_BYTES - len(_SUM_HEADER):
        raise ValueError("it has other tables than it describes")
    return found


def _aligned(offset: int) -> int:
    return offset + -offset % _ALIGN
