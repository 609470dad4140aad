"""The index of a Zarr store that is read in place: `NAME.idx.zarr`, beside the link to the store.

```text
arrays in NumPy's .npy, one after the other, each from a multiple of 64 bytes on:
  JSON, uint8     of each field: its array, the array's metadata, which axis the samples are along, how it is decoded;
                  of a stack `x` of each variable, as `x/0`, `x/1` and so on
  for each field  its chunks, structured [chunks]: their number in the grid, bytes, and state; none that is missing
  _checksum       uint64 [samples], unless the samples were not read
  _rows           int64 [samples], if rows are left out: those that are the samples
```

A chunk's state is when its file was changed, in ns; in a zip its offset; in a bucket a hash of its ETag.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash

from ..errors import ShardCorrupt
from ..format.fields import CHECKSUM
from ..format.file_table import Table, TableFile, parts
from ..stores.base import ObjectInfo
from ..system import npy, strict_json
from ..system.directory import Directory
from .files import open_tables

SUFFIX = ".idx.zarr"
ROWS = "_rows"
ENTRY = np.dtype([("number", "<i8"), ("size", "<i8"), ("state", "<i8")])
"""An entry of the index, 24 bytes per chunk. A deflated member of a zip has a size of -1 minus its bytes."""

SUMMED_ENTRY = np.dtype([*ENTRY.descr, ("crc", "<i8")])
"""An entry of a chunk in a zip file, with the CRC-32 that is compared while the index is made."""

_FORMAT, _VERSION = "shardio zarr index", 1
_MOST_JSON = 1 << 28
_ALIGN = 64


@final
@dataclass(frozen=True, slots=True)
class IndexedArray:
    """An array that is a field.

    Attributes:
        path: its path in the store, `a/b`; "" if it is the store.
        metadata: the JSON value of its `.zarray` or `zarr.json`.
        axis: the axis that the samples are along.
        packing: the attributes by which its numbers are decoded, as `format.cf.to_json` gives them; None for none.
        chunks: what is known of its chunks, of `ENTRY` or `SUMMED_ENTRY` [chunks], their numbers ascending.
        file: the number, from 1, of the joined store that it is in; 0 for the store itself.
    """

    path: str
    metadata: Mapping[str, Any]
    axis: int
    packing: Mapping[str, Any] | None
    chunks: Table
    file: int = 0


@final
@dataclass(frozen=True, slots=True)
class ZarrIndex:
    """The index of a store.

    Attributes:
        arrays: the arrays by field; of a stack those of its variables, `x/0`, `x/1` and so on.
        columns: `CHECKSUM` and `ROWS`, if there are such columns.
        zipped: the size and the time of a zip file; None for a folder.
        objects: whether the chunks are objects of a bucket.
        joined: the same of each store that is joined to this one.
    """

    arrays: Mapping[str, IndexedArray]
    columns: Mapping[str, Table] = field(default_factory=dict)
    zipped: tuple[int, int] | None = None
    objects: bool = False
    joined: tuple[tuple[int, int] | None, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the content of the index."""
        keys = "path", "metadata", "axis", "packing", "file"
        described = {name: {key: getattr(one, key) for key in keys} for name, one in self.arrays.items()}
        head = {
            "format": _FORMAT, "version": _VERSION, "arrays": described, "columns": [*self.columns],
            "zipped": self.zipped, "objects": self.objects, "joined": self.joined,
            "checksum": _checksum(self._parts()),
        }  # fmt: skip
        stream = io.BytesIO()
        for array in (np.frombuffer(json.dumps(head).encode(), np.uint8), *map(np.asarray, self._parts())):
            stream.write(npy.header_of(array.dtype, array.shape))
            stream.write(array.tobytes())
            stream.write(bytes(-stream.tell() % _ALIGN))
        return stream.getvalue()

    def _parts(self) -> Sequence[Table]:
        return *(_stored(one.chunks) for one in self.arrays.values()), *self.columns.values()


def _stored(chunks: Table) -> Table:
    if chunks.dtype == ENTRY:
        return chunks
    stored = np.empty(len(chunks), ENTRY)
    for name in ENTRY.names or ():
        stored[name] = chunks[name]
    return stored


def stored_bytes(sizes: Any) -> Any:
    """Return the bytes that chunks take, by the sizes of their entries."""
    return np.where(sizes < 0, -1 - sizes, sizes)


def state_of(found: ObjectInfo) -> int:
    """Return the state of an object, by its ETag without what a bucket's listings leave out of it; 0 without one."""
    etag = (found.etag or "").removeprefix("W/").strip('"')
    return xxhash.xxh3_64_intdigest(etag.encode()) - (1 << 63) if etag else 0


def path_of(shard: Path) -> Path:
    """Return the path of a store's index: that of `era5.zarr` is `era5.idx.zarr`."""
    return shard.with_name(shard.name.removesuffix(".zarr") + SUFFIX)


def write(directory: Directory, shard: str, index: ZarrIndex) -> None:
    """Write the index of a store, or replace it, atomically.

    Args:
        directory: the directory of the store, or of a link to it.
        shard: the store's name there.
        index: the index.
    """
    directory.write(path_of(Path(shard)).name, index.to_bytes())


def read(shard: Path) -> ZarrIndex:
    """Read the index of the store at `shard`, of a large one what is asked for; ShardCorrupt if it is damaged."""
    path = path_of(shard)
    file = open_tables(path)
    try:
        return _checked(file)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ShardCorrupt(f"{path}: the index is cut short or damaged: {error}") from error


def _checked(file: TableFile) -> ZarrIndex:
    first, begins = _array(file, 0, np.dtype(np.uint8))
    if len(first) > _MOST_JSON:
        raise ValueError(f"its description has {len(first)} bytes")
    head = strict_json.parse(np.asarray(first).tobytes())
    if (head["format"], head["version"]) != (_FORMAT, _VERSION):
        raise ValueError("it is of another format or version")
    arrays: dict[str, IndexedArray] = {}
    columns: dict[str, Table] = {}
    for name, one in head["arrays"].items():
        chunks, begins = _array(file, begins, ENTRY)
        number, joined = one.get("file", 0), head.get("joined", [])  # neither in older indexes
        numbers_are = type(one["axis"]) is type(number) is int and 0 <= number <= len(joined)
        if not isinstance(one["path"], str) or not isinstance(one["metadata"], dict) or not numbers_are:
            raise ValueError(f"the field {name!r} is not described")
        if not _ascend(chunks):
            raise ValueError(f"the chunks of the field {name!r} are not in order")
        arrays[name] = IndexedArray(one["path"], one["metadata"], one["axis"], one["packing"], chunks, number)
    for name in head["columns"]:
        columns[name], begins = _array(file, begins, {CHECKSUM: np.dtype("<u8"), ROWS: np.dtype("<i8")}[name])
    joined = tuple(map(_state, head.get("joined", [])))
    index = ZarrIndex(arrays, columns, _state(head["zipped"]), bool(head.get("objects", False)), joined)
    if head["checksum"] != _checksum(index._parts()):
        raise ValueError("its tables have another checksum than it states")
    return index


def _state(zipped: Any) -> tuple[int, int] | None:
    if zipped is None:
        return None
    size, time = zipped
    return int(size), int(time)


def _ascend(chunks: Table) -> bool:
    """Return whether the numbers of chunks are ascending, from 0 on."""
    last = -1
    for part in parts(chunks):
        numbers = np.concatenate([[last], part["number"]])
        if not (numbers[1:] > numbers[:-1]).all():
            return False
        last = int(numbers[-1])
    return True


def _array(file: TableFile, begin: int, dtype: np.dtype[Any]) -> tuple[Table, int]:
    """Return an array [n] of a file, and where the next one begins."""
    found, count, start, stop = file.npy(begin)
    if found != dtype:
        raise ValueError(f"no array of {dtype} at byte {begin}")
    return file.table(dtype, count, start), stop + -stop % _ALIGN


def _checksum(tables: Sequence[Table]) -> str:
    state = xxhash.xxh3_128()
    for table in tables:
        for part in parts(table):
            state.update(np.ascontiguousarray(part).view(np.uint8).data)
        state.update(b"%d;" % len(table))
    return state.hexdigest()
