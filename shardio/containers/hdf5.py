"""The `hdf5` container: standard HDF5 files, read where their datasets are in the file, without libhdf5's lock.

A fixed field is one dataset `[n, *shape]`. Any other field is a group of `data`, all values end to end, and `offsets`
(int64, n + 1): a ragged field's data is `[entries, *entry_shape]`, and its offsets are counted in entries; the others'
is uint8, in bytes. Files that others wrote may be chunked, filtered, big-endian or anything that h5py reads.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from ..errors import ShardCorrupt
from ..format.fields import Field, fields_to_json
from ..format.file_table import Table
from ..format.pieces import piece_count
from . import array_index, hdf5_index
from ._hdf5_writer import Hdf5Writer
from ._writing import parse_fields
from .array_shard import ArrayReader, ArrayShard
from .base import Container, OpenedShard
from .field_reader import FieldReader
from .hdf5_fields import have_spans, open_fields
from .hdf5_index import Layout
from .hdf5_library import SERVICE, LibraryFile, Unreadable
from .merged import merged_files, merged_name
from .stacked_rows import with_variables

_MOST_ROUNDS = 256
"""Times that opening an adopted file may ask for more pieces; if it takes more, the file comes whole."""


@final
class Hdf5Reader(ArrayReader):
    """A `Reader` that uses h5py only when it opens the shard, to find out where the datasets are.

    Args:
        path: the file.
        fields: its fields.
        layout: where the fields are, of a file that others wrote. Without it, the index next to the file says so,
            if there is one.
        merged: with `layout`, the files that are merged with this one; otherwise they are next to it.
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, Field],
        layout: Layout | None = None,
        merged: Sequence[Path] = (),
    ) -> None:
        self._layout, self._merged = layout, tuple(merged)
        super().__init__(path, fields)

    def _open(self) -> ArrayShard:
        layout, merged, columns, inside = self._layout, self._merged, None, self._fields
        if layout is None:
            if not array_index.path_of(self._path).exists():
                return open_shard(self._path, self._fields, Layout({}))
            layout, columns = hdf5_index.read(self._path)
            merged, inside = merged_files(self._path), layout.in_file(self._fields)
        # Another program wrote the file, and damage in it may hold libhdf5: the helper process opens it first.
        described = {"fields": fields_to_json(inside), "layout": asdict(layout), "merged": list(map(str, merged))}
        _in_helper(self._path, "open_adopted", **described)
        return open_shard(self._path, self._fields, layout, merged, columns)


@final
class Hdf5Container(Container):
    """HDF5 files."""

    name = "hdf5"
    suffix = ".h5"
    options = MappingProxyType(
        {"compression": "for arrays of one shape: gzip, lzf, zstd (read by h5py with hdf5plugin) or none"}
    )
    writer_type, reader_type = Hdf5Writer, Hdf5Reader

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return (array_index.path_of(Path(name)).name,) if adopted else ()

    def touch(self, shard: OpenedShard) -> bool:
        return _touch_adopted(shard) if shard.adopted else have_spans(shard.file, shard.path, shard.fields, Layout({}))

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        if array_index.path_of(path).exists():
            return None  # another program wrote the file
        text = _in_helper(path, "fields_text")
        return None if text is None else parse_fields(text, path)

    def files(self, path: Path) -> tuple[Path, ...]:
        index = array_index.path_of(path)
        return (path, *merged_files(path), index) if index.exists() else (path,)


def _touch_adopted(shard: OpenedShard) -> bool:
    """Do as `Hdf5Container.touch`: the helper process reads the cache's file, and says which pieces that lacks."""
    known, size = set[int](), shard.file.seek(0, os.SEEK_END)
    try:
        layout, _ = hdf5_index.read(shard.path)
    except ShardCorrupt:
        return False  # opening the file itself says what is wrong with it
    if layout.files:
        return False
    described = {"fields": fields_to_json(layout.in_file(shard.fields)), "layout": asdict(layout)}
    for _ in range(_MOST_ROUNDS):
        try:
            found = _in_helper(shard.path, "touch", **described, pieces=sorted(known))
        except ShardCorrupt:
            return False
        by_spans, missing = json.loads(found or "[false, []]")
        if not missing:
            return bool(by_spans)
        known.update(missing)
        if len(known) > piece_count(size) // 4:
            return False
        shard.fetch(missing)
    return False


def _in_helper(path: Path, function: str, **arguments: Any) -> str | None:
    """Return the text that a function of the service yields for the file at `path`; None if it yields nothing."""
    try:
        values = LibraryFile(path).call(f"{SERVICE}:{function}", ["opening"], **arguments)
    except Unreadable as error:
        raise ShardCorrupt(f"{path}: cannot be opened: {error}") from error
    try:
        return values[0].decode() if values else None
    except UnicodeDecodeError as error:
        raise ShardCorrupt(f"{path}: cannot be opened: its description is not UTF-8: {error}") from error


def open_shard(
    path: Path,
    fields: Mapping[str, Field],
    layout: Layout,
    merged: Sequence[Path] = (),
    columns: Mapping[str, Table] | None = None,
) -> ArrayShard:
    """Open a shard.

    Args:
        path: the file.
        fields: its fields.
        layout: where they are, unless they are datasets of their own names.
        merged: the files that are merged with this one.
        columns: what the index next to the file holds: the fields that are not in the layout, and rows left out; None
            if all fields are in files.
    """
    inside = fields if columns is None else layout.in_file(fields)
    others = {name: field for name, field in fields.items() if name not in inside}
    stored = with_variables(path, inside, layout.names)
    readers: dict[str, FieldReader] = {}
    for number, place in enumerate((path, *merged)):
        there = {name: field for name, field in stored.items() if layout.files.get(name, 0) == number}
        readers |= open_fields(place, there, layout) if there else {}
    if lost := sorted(stored.keys() - readers.keys()):
        number = layout.files[lost[0]]
        place = path.with_name(merged_name(path.name, number))
        raise ShardCorrupt(f"{place}: there is no such file, which is to have {layout.names.get(lost[0])!r}")
    return ArrayShard.of(path, inside, layout.names, readers, columns or {}, others)
