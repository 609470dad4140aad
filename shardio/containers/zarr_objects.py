"""Zarr stores compared with their indexes, chunk by chunk, on a disk and in a bucket; and their chunks as objects."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..cache.combined import CombinedObjects, first_pieces
from ..errors import ShardCorrupt
from ..format.file_table import parts
from ..format.pieces import PIECE
from ..stores.base import ObjectInfo, Store
from ..stores.folder import modified_ns
from ..stores.url import Url
from ..system import strict_json
from . import zarr_index
from .chunk_codecs import Damaged
from .zarr_files import FolderChunks
from .zarr_index import IndexedArray, ZarrIndex
from .zarr_metadata import of_array

_CHANGED = "was written anew since it was indexed"


@final
class ChunkObjects(CombinedObjects):
    """The chunks of a store as objects, in the order of its index; of a zip file that one file.

    Args:
        url: the store, in its bucket or folder.
        index: its index.

    Raises ShardCorrupt for an index of chunks elsewhere.
    """

    def __init__(self, url: Url, index: ZarrIndex) -> None:
        self._url, self._index = url, index
        if index.objects != url.is_remote:
            where = ("a bucket", "on a disk") if index.objects else ("a folder", "in a bucket")
            raise ShardCorrupt(f"{url}: was indexed in {where[0]}, and is {where[1]}: index it anew here")
        self._arrays = [(array.path, of_array(array.metadata), array.chunks) for array in index.arrays.values()]
        for _, _, chunks in self._arrays:
            if index.zipped is None and len(chunks) and int(np.asarray(chunks["size"]).min()) < 0:
                raise ShardCorrupt(f"{url}: its index names chunks of fewer than 0 bytes")
        self._ends = np.cumsum([len(chunks) for _, _, chunks in self._arrays])
        super().__init__(_object_sizes(index))

    def name(self, number: int) -> str:
        path, key, _ = self._chunk(number)
        return "/".join(part for part in (self._url.path, path, key) if part)

    def check(self, number: int, found: ObjectInfo | None) -> None:
        path, key, (size, state) = self._chunk(number)
        told = f"field {path!r}: the chunk {key}" if key else "it"
        if found is None:
            raise ShardCorrupt(f"{self._url}, {told} is missing")
        if (found.size, zarr_index.state_of(found) if self._index.objects else modified_ns(found)) != (size, state):
            raise ShardCorrupt(
                f"{self._url}, {told} {_CHANGED}: it has {found.size} bytes"
                + (f", and had {size}" if size != found.size else ", as before")
            )

    def _chunk(self, number: int) -> tuple[str, str, tuple[int, int]]:
        """Return the array and the key of an object, its size and its state; of a zip file, no names."""
        if self._index.zipped is not None:
            return "", "", self._index.zipped
        place = int(np.searchsorted(self._ends, number, "right"))
        path, layout, chunks = self._arrays[place]
        entry = chunks[number - int(self._ends[place]) + len(chunks)]
        key = layout.key(list(map(int, np.unravel_index(int(entry["number"]), layout.grid))))
        return path, key, (int(entry["size"]), int(entry["state"]))


def _object_sizes(index: ZarrIndex) -> NDArray[np.int64]:
    if index.zipped is not None:
        return np.array([index.zipped[0]])
    return np.concatenate(
        [np.empty(0, np.int64), *(np.asarray(array.chunks["size"]) for array in index.arrays.values())]
    )


def in_one_file(index: ZarrIndex) -> ZarrIndex:
    """Return an index of chunks that are where a cache has them, see `CombinedObjects`."""
    if index.zipped is not None:
        return index
    offsets, arrays, begin = PIECE * first_pieces(_object_sizes(index)), dict[str, IndexedArray](), 0
    for name, array in index.arrays.items():
        chunks = np.array(array.chunks)
        chunks["state"] = offsets[begin : begin + len(chunks)]
        arrays[name], begin = replace(array, chunks=chunks), begin + len(chunks)
    return replace(index, arrays=arrays)


def _metadata_of(array: IndexedArray) -> str:
    """Return the name of the file of an array's metadata."""
    return ".zarray" if array.metadata.get("zarr_format") == 2 else "zarr.json"


def changes_in_folder(root: Path, array: IndexedArray) -> Iterator[str]:
    """Yield what has changed of an array in a folder since it was indexed, without reading its chunks."""
    files, layout = FolderChunks(root, array.path), of_array(array.metadata)
    name = array.path or "array"
    yield from _metadata_changes(array, files.metadata(_metadata_of(array)))
    for entry in chain.from_iterable(parts(array.chunks)):
        key = layout.key(list(map(int, np.unravel_index(int(entry["number"]), layout.grid))))
        try:
            found = files.find(key, entry)
        except Damaged as error:
            yield f"field {name!r}: the chunk {key} {error}"
            continue
        if found is None:
            yield f"field {name!r}: the chunk {key} is missing"
        else:
            os.close(found.descriptor)


def changes_in_store(url: Url, index: ZarrIndex, store: Store) -> list[str]:
    """Return what has changed of a store in a bucket since it was indexed, by its metadata and a listing."""
    objects, listed = ChunkObjects(url, index), {info.name: info for info in store.list(url.path)}
    wrong = list[str]()
    for array in index.arrays.values():
        wrong += _metadata_changes(array, _stored_metadata(url, array, store, listed))
    for number in range(len(objects.sizes)):
        try:
            objects.check(number, listed.pop(objects.name(number), None))
        except ShardCorrupt as error:
            wrong.append(str(error).removeprefix(f"{url}, "))
    return [*wrong, *_new_chunks(url, index, listed)]


def _metadata_changes(array: IndexedArray, metadata: Any) -> Iterator[str]:
    if json.dumps(metadata, sort_keys=True) != json.dumps(array.metadata, sort_keys=True):
        yield f"field {array.path or 'array'!r}: its metadata are not those that were indexed"


def _stored_metadata(url: Url, array: IndexedArray, store: Store, listed: Mapping[str, ObjectInfo]) -> Any:
    """Return the JSON value of an array's metadata in a bucket; None if there is none."""
    name = _metadata_of(array)
    place = (url / array.path / name if array.path else url / name).path
    try:
        strict_json.check_size(listed[place].size)
        return strict_json.parse(bytes(store.read(place).data), foreign=True, nan=True)
    except (KeyError, ValueError):
        return None


def _new_chunks(url: Url, index: ZarrIndex, listed: Mapping[str, ObjectInfo]) -> Iterator[str]:
    """Yield the chunks that a bucket has, and that there were not when it was indexed."""
    layouts = {f"{(url / array.path if array.path else url).path}/": array for array in index.arrays.values()}
    for prefix, array in layouts.items():
        layout = of_array(array.metadata)
        for name in listed:
            if name.startswith(prefix) and layout.number(key := name.removeprefix(prefix)) is not None:
                yield f"field {array.path!r}: the chunk {key} was written since the store was indexed"
