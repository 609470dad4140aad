"""The `zarr` container: Zarr stores of other programs, of format 2 and 3, read in place chunk by chunk.

The fields are arrays of numbers, whose rows along one axis are the samples. The index next to a link to the
store says how each is stored in its chunks, and which chunks there were when it was made: so a chunk that is lost, or
was written anew, is damage, and not the fill value or other numbers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from ..cache.combined import CombinedObjects
from ..errors import ShardCorrupt, SourceError
from ..format import cf
from ..format.fields import CHECKSUM, Field
from ..stores.base import Store
from ..stores.url import Url
from . import array_index, zarr_index
from .array_shard import ArrayReader, ArrayShard
from .base import Container, OpenedShard
from .chunked_rows import ChunkedRows
from .field_reader import DecodedRows, FieldReader, decoding_of
from .files import RawFile
from .merged import merged_files, merged_name
from .stacked_rows import with_variables
from .zarr_chunks import array_rows
from .zarr_files import FolderChunks, PackedChunks
from .zarr_index import ZarrIndex
from .zarr_metadata import NotUnderstood, of_array
from .zarr_objects import ChunkObjects, changes_in_folder, changes_in_store, in_one_file


def _field_rows(rows: ChunkedRows, field: Field, packing: Mapping[str, Any] | None) -> FieldReader:
    """Return the reader of a field: of an array's rows, decoded by `packing`, or as other numbers.

    Raises ValueError if the field is of other values than these.
    """
    stored = rows.field.row_dtype
    if field.row_shape != rows.field.row_shape:
        raise ValueError(f"expected rows of {field.row_shape}, the array has {rows.field.row_shape}")
    if packing is not None:
        return DecodedRows(rows, rows.field, decoding_of(packing, stored, field))
    if field.row_dtype == stored:
        return rows
    return DecodedRows(rows, rows.field, replace(cf.decoding({}, stored), scaled=field.row_dtype))


@final
class ZarrReader(ArrayReader):
    """A `Reader` of the store at `path`, which is a link to it or the store itself.

    Args:
        path: the store.
        fields: its fields.
        index: the content of the index next to it.
        merged: with `index`, the stores that are merged with this one; otherwise they are next to it.
        in_cache: whether the path is the file of a cache that has the objects of the store, see `ChunkObjects`.
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, Field],
        index: ZarrIndex | None = None,
        merged: Sequence[Path] = (),
        *,
        in_cache: bool = False,
    ) -> None:
        self._index, self._merged, self._in_cache = index, tuple(merged), in_cache
        super().__init__(path, fields)

    def _open(self) -> ArrayShard:
        index = self._index or zarr_index.read(self._path)
        merged = self._merged if self._index else _merged(self._path, index)
        if self._in_cache:
            stores: list[tuple[Path, RawFile | None]] = [(self._path, RawFile(self._path))]
            index = in_one_file(index)
            if index.merged:
                raise ShardCorrupt(f"{self._path}: stores that are merged are read from a folder, not from a cache")
        elif index.objects:
            raise ShardCorrupt(f"{self._path}: was indexed in a bucket, and is on a disk: index it anew here")
        else:
            states = zip((self._path, *merged), (index.zipped, *index.merged), strict=True)
            stores = [(place, _opened_zip(place, state)) for place, state in states]
        fields = {name: field for name, field in self._fields.items() if name != CHECKSUM}
        others = {name: field for name, field in self._fields.items() if name == CHECKSUM}
        stored = with_variables(self._path, fields, index.arrays)
        readers = {name: self._open_field(name, field, index, stores) for name, field in stored.items()}
        return ArrayShard.of(self._path, fields, index.arrays, readers, index.columns, others)

    def _open_field(
        self, name: str, field: Field, index: ZarrIndex, stores: Sequence[tuple[Path, RawFile | None]]
    ) -> FieldReader:
        if (array := index.arrays.get(name)) is None:
            raise ShardCorrupt(f"{self._path}: its index has no field {name!r}")
        root, packed = stores[array.file]
        try:
            layout = of_array(array.metadata)
            if not 0 <= array.axis < len(layout.shape):
                raise NotUnderstood(f"has no axis {array.axis}")
            files = FolderChunks(root, array.path) if packed is None else PackedChunks(packed)
            rows = array_rows(files, array.path, layout, array.axis, array.chunks)
            return _field_rows(rows, field, array.packing)
        except (ValueError, TypeError, AttributeError, SourceError) as error:
            raise ShardCorrupt(f"{self._path}, field {name!r}: {error}") from error


def _merged(path: Path, index: ZarrIndex) -> list[Path]:
    """Return the paths of the links to the stores that are merged with the one at `path`."""
    return [path.with_name(merged_name(path.name, number)) for number in range(1, len(index.merged) + 1)]


def _opened_zip(path: Path, state: tuple[int, int] | None) -> RawFile | None:
    """Open a zip file; None for a folder. ShardCorrupt unless it has the size and the time that were indexed."""
    if state is None:
        return None
    file = RawFile(path)
    now = os.fstat(file.fd)
    if (now.st_size, now.st_mtime_ns) != state:
        raise ShardCorrupt(f"{path}: was written anew since it was indexed: it has {now.st_size} bytes, had {state[0]}")
    return file


class ZarrContainer(Container):
    """Zarr stores. It has no writer: `shardio index` writes the indexes."""

    name = "zarr"
    read_where_it_lies = True
    reader_type = ZarrReader

    def files(self, path: Path) -> tuple[Path, ...]:
        return (array_index.path_of(path),)  # the store may have any number of files

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (array_index.path_of(Path(name)).name,)

    def combined(self, path: Path, url: Url) -> CombinedObjects:
        return ChunkObjects(url, zarr_index.read(path))

    def touch(self, shard: OpenedShard) -> bool:
        return True  # opening it reads nothing but its index

    def cached_reader(self, path: Path, fields: Mapping[str, Field]) -> ZarrReader:
        return ZarrReader(path, fields, in_cache=True)

    def links(self, path: Path) -> tuple[Path, ...]:
        return merged_files(path)

    def check(self, path: Path) -> None:
        index = zarr_index.read(path)
        places = [*zip((path, *_merged(path, index)), (index.zipped, *index.merged), strict=True)]
        for place, state in places:
            _opened_zip(place, state)
        wrong = list[str]()
        for array in index.arrays.values():
            place, state = places[array.file]
            wrong += changes_in_folder(place, array) if state is None else ()
        _raise_first(path.name, wrong)

    def check_in_store(self, path: Path, url: Url, store: Store) -> None:
        _raise_first(url.name, changes_in_store(url, zarr_index.read(path), store))


def _raise_first(place: str, wrong: list[str]) -> None:
    """Raise ShardCorrupt for the first of what is wrong with a store, if anything is."""
    if wrong:
        more = f", and {len(wrong) - 1} more chunks" if len(wrong) > 1 else ""
        raise ShardCorrupt(f"{place}: {wrong[0]}{more}")
