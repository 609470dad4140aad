"""The description of a Zarr store in the index next to it, or next to a link to it: see `array_index`.

For each array there is a table of its chunks, of `ENTRY` [chunks]: none that is missing. A chunk's state is when its
file was changed, in ns; in a zip its offset; in a bucket a hash of its ETag. Other tables are `_checksum`, uint64
[samples], unless the samples were not read, and `array_index.ROWS`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np
import xxhash

from ..errors import ShardCorrupt
from ..format.file_table import Table, parts
from ..stores.base import ObjectInfo
from ..system.directory import Directory
from . import array_index
from .zarr_metadata import of_array

_CONTAINER = "zarr"
_NO_PARTS = frozenset(("", ".", ".."))

ENTRY = np.dtype([("number", "<i8"), ("size", "<i8"), ("state", "<i8")])
"""An entry of the index, 24 bytes per chunk. A deflated member of a zip has a size of -1 minus its bytes."""

SUMMED_ENTRY = np.dtype([*ENTRY.descr, ("crc", "<i8")])
"""An entry of a chunk in a zip file, with the CRC-32 that is compared while the index is made."""


@final
@dataclass(frozen=True, slots=True)
class IndexedArray:
    """An array that is a field.

    Attributes:
        path: its path in the store, `a/b`; "" if it is the store.
        metadata: the JSON value of its `.zarray` or `zarr.json`.
        axis: the axis that the samples are along.
        packing: the attributes that say how to decode its numbers, as `format.cf.to_json` gives them; None for none.
        chunks: what is known of its chunks, of `ENTRY` or `SUMMED_ENTRY` [chunks], their numbers ascending.
        file: the number, from 1, of the merged store that it is in; 0 for the store itself.
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
        columns: `CHECKSUM` and `array_index.ROWS`, if there are such columns.
        zipped: the size and the time of a zip file; None for a folder.
        objects: whether the chunks are objects of a bucket.
        merged: the same of each store that is merged with this one.
    """

    arrays: Mapping[str, IndexedArray]
    columns: Mapping[str, Table] = field(default_factory=dict)
    zipped: tuple[int, int] | None = None
    objects: bool = False
    merged: tuple[tuple[int, int] | None, ...] = ()


class _Array(msgspec.Struct):
    """The JSON values of an `IndexedArray`."""

    path: str
    metadata: dict[str, Any]
    axis: int
    packing: dict[str, Any] | None
    file: int


class _Described(msgspec.Struct):
    """The JSON values of a `ZarrIndex`."""

    arrays: dict[str, _Array]
    zipped: tuple[int, int] | None
    objects: bool
    merged: tuple[tuple[int, int] | None, ...] = msgspec.field(name="joined")


def _stored(chunks: Table) -> Table:
    return chunks if chunks.dtype == ENTRY else np.asarray(chunks)[list(ENTRY.names or ())].astype(ENTRY)


def stored_bytes(sizes: Any) -> Any:
    """Return the bytes that chunks take, by the sizes of their entries."""
    return np.where(sizes < 0, -1 - sizes, sizes)


def state_of(found: ObjectInfo) -> int:
    """Return the state of an object, by its ETag without what a bucket's listings leave out of it; 0 without one."""
    etag = (found.etag or "").removeprefix("W/").strip('"')
    return xxhash.xxh3_64_intdigest(etag.encode()) - (1 << 63) if etag else 0


def write(directory: Directory, shard: str, index: ZarrIndex) -> None:
    """Write the index of a store, as `array_index.write` does.

    Args:
        directory, shard: as those of `array_index.write`.
        index: the index.
    """
    arrays = {name: {key: getattr(one, key) for key in _Array.__struct_fields__} for name, one in index.arrays.items()}
    described = {"arrays": arrays, "zipped": index.zipped, "objects": index.objects, "joined": index.merged}
    tables = {name: _stored(one.chunks) for name, one in index.arrays.items()}
    array_index.write(directory, shard, _CONTAINER, described, {**tables, **index.columns})


def read(shard: Path) -> ZarrIndex:
    """Read the index of the store at `shard`, of a large one what is asked for; ShardCorrupt if it is damaged."""
    found, tables = array_index.read(shard, _CONTAINER, _Described)
    arrays = dict[str, IndexedArray]()
    for name, one in found.arrays.items():
        chunks = array_index.table_of(shard, tables, name, ENTRY)
        try:
            _check(one, chunks, len(found.merged))
        except ValueError as error:
            raise ShardCorrupt(f"{array_index.path_of(shard)}, field {name!r}: {error}") from error
        arrays[name] = IndexedArray(one.path, one.metadata, one.axis, one.packing, chunks, one.file)
    columns = {name: table for name, table in tables.items() if name not in arrays}
    return ZarrIndex(arrays, columns, found.zipped, found.objects, found.merged)


def _check(array: _Array, chunks: Table, merged: int) -> None:
    """Raise ValueError for an array that no store of some merged ones has, and chunks that it can't have."""
    if (array.path and not _NO_PARTS.isdisjoint(array.path.split("/"))) or "\0" in array.path:
        raise ValueError(f"{array.path!r} is no path of an array")
    if not 0 <= array.file <= merged:
        raise ValueError(f"there is no store {array.file}, {merged} are merged")
    last = -1
    for part in parts(chunks):
        numbers = np.concatenate([[last], part["number"]])
        if not (numbers[1:] > numbers[:-1]).all():
            raise ValueError("its chunks are not in order")
        last = int(numbers[-1])
    if last >= (count := math.prod(of_array(array.metadata).grid)):
        raise ValueError(f"has {count} chunks, and the index names one of number {last}")
