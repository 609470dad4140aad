"""Zarr stores on a local disk: the arrays in them, found without running any code that a store could bring."""

import base64
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from shardio.errors import SourceError
from shardio.foreign.names import printable
from shardio.format import cf
from shardio.source import Field, load_optional
from shardio.system import strict_json
from shardio.system.regular_files import check_regular, open_regular

from ._fields import array_field, dtype_in_words
from ._files import parse_json, source_errors

DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError, AttributeError, EOFError, ArithmeticError),
    *(MemoryError, SystemError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""The errors that zarr and its codecs raise for unreadable data: MemoryError where damage is taken for a length, and
SystemError where a codec in C fails in a way of which it does not tell Python."""

_METADATA = ("zarr.json", ".zarray")
_MOST_CHUNKS = 1 << 14
"""The most chunks of one row: 1 GiB in chunks of 64 KiB. Zarr takes a while for each, also for one that is missing."""
_MOST_NUMBERS = 1024  # in an attribute
_BYTES = Field("bytes")


@final
@dataclass(frozen=True, slots=True)
class Column:
    """An array that can become a field.

    Attributes:
        path: its path in the store.
        shape: its shape, `(n, ...)`.
        field: the field that holds its rows.
        problem: why it cannot be a field; empty if it can.
        mean: the average bytes of a row; 0 where that is not known yet.
        attributes: its attributes of netCDF that say what its numbers mean, see `shardio.format.cf`; None for none.
        decoding: how its numbers are decoded; None if they are taken as they are stored.
    """

    path: str
    shape: tuple[int, ...]
    field: Field = _BYTES
    problem: str = ""
    mean: int = 0
    attributes: Mapping[str, Any] | None = None
    decoding: cf.Decoding | None = None


@final
class Store:
    """An open store, a directory or a zip file; SourceError if it cannot be opened."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._zarr = load_optional("zarr", purpose="the converter 'zarr'", extra="zarr")
        stores = self._zarr.storage
        with source_errors(root, *DAMAGE):
            if root.is_dir():
                self._store = _checked(stores.LocalStore)(root, read_only=True)
            else:
                check_regular(root)
                self._store = stores.ZipStore(str(root), mode="r")

    def array(self, path: str) -> Any:
        """Open the array at `path`; SourceError if zarr rejects its metadata."""
        place = f"{printable(self._root)}: the array {path!r}"
        try:
            array = self._zarr.open_array(store=self._store, path=path, mode="r")
            chunks = tuple(array.chunks)
        except DAMAGE as error:
            raise SourceError(f"{place} cannot be read: {error_text(error)}") from error
        if any(size < 1 for size in chunks):
            raise SourceError(f"{place} must have chunks of at least one element, it has {list(chunks)}")
        return array

    def close(self) -> None:
        with suppress(AttributeError):  # a zip file is opened with its first array, and cannot be closed before that
            self._store.close()


def error_text(error: Exception) -> str:
    """Zarr's error in words, with the file if it is about one."""
    return str(error) if getattr(error, "filename", None) else repr(error)


def _checked(store: Any) -> Any:
    """The class `store`, zarr's LocalStore, which reads regular files alone: zarr would wait at a pipe."""

    class Checked(store):  # type: ignore[misc]  # zarr has no types, so its class is Any
        async def get(self, key: str, *args: Any, **options: Any) -> Any:
            _check(self.root / key)
            return await super().get(key, *args, **options)

        def get_sync(self, key: str, *args: Any, **options: Any) -> Any:
            _check(self.root / key)
            return super().get_sync(key, *args, **options)

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> Any:
            ranges = list(key_ranges)
            for key, _ in ranges:
                _check(self.root / key)
            return await super().get_partial_values(prototype, ranges)

    return Checked


def _check(path: Path) -> None:
    """Raise OSError for what is there and is neither a regular file nor a folder, which is no value."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        check_regular(path)


def columns(root: Path) -> dict[str, Column]:
    """All arrays of a store, by path; an array that is the whole store is called `array`."""
    codecs: dict[str, set[str]] = {}
    for path, metadata in _find(root):  # a folder may hold the metadata of both formats
        codecs[path] = codecs.get(path, set()) | _codecs(metadata)
    if not codecs:
        raise SourceError(f"{printable(root)} holds no Zarr arrays")
    store = Store(root)
    found: dict[str, Column] = {}
    try:
        for path in sorted(codecs):
            if "pickle" in codecs[path]:  # not opened: zarr may unpickle the fill value for that alone
                found[path or "array"] = Column(path, (0,), problem="pickled objects may run code")
            else:
                found[path or "array"] = _column(store.array(path), path, codecs[path])
    finally:
        store.close()
    stated = {column.path: column.attributes or {} for column in found.values()}
    for bounds, times in cf.inherit_units(stated).items():
        attributes = cf.with_units_of(stated[bounds], stated[times])
        found[bounds] = replace(found[bounds], attributes=attributes)
    return found


def _column(array: Any, path: str, codecs: set[str]) -> Column:
    shape, dtype = tuple(array.shape), array.dtype
    column, rows = Column(path, shape), shape[1:]
    if dtype.kind in "TUS" or "vlen-decode_utf8" in codecs:
        return replace(column, field=Field("json" if rows else "text"))
    if not rows and ((dtype.kind == "V" and dtype.names is None) or "vlen-bytes" in codecs):
        return column
    field = array_field(dtype, rows)
    if not field:
        return replace(column, problem=f"no field holds {list(rows)} of {dtype_in_words(dtype)}")
    count = math.prod(-(-side // chunk) for side, chunk in zip(rows, array.chunks[1:], strict=True))
    if count > _MOST_CHUNKS:
        return replace(column, problem=f"a row lies in {count} chunks, more than {_MOST_CHUNKS}")
    try:
        return replace(column, field=field, attributes=_attributes(array))
    except DAMAGE as error:
        raise SourceError(f"the attributes of the array {path!r} cannot be read: {error_text(error)}") from error


def _attributes(array: Any) -> dict[str, Any]:
    """The attributes of netCDF of a zarr array, where xarray keeps them."""
    attributes = dict(array.attrs)
    found = {name: _value(attributes[name]) for name in (*cf.ATTRIBUTES, "bounds") if name in attributes}
    if getattr(getattr(array, "metadata", None), "zarr_format", 2) == 2:
        # Without the dimensions of netCDF, a fill value says what missing chunks hold and nothing more.
        if "_ARRAY_DIMENSIONS" in attributes and array.fill_value is not None:
            found["_FillValue"] = np.dtype(array.dtype.newbyteorder("=")).type(array.fill_value)
    elif isinstance(fill := found.get("_FillValue"), str) and array.dtype.kind == "f":
        (found["_FillValue"],) = struct.unpack("<d", base64.b64decode(fill, validate=True))
    return found


def _value(value: Any) -> Any:
    """A JSON value that is text, a number or a list of numbers; of anything else a description, which is no number."""
    plain = isinstance(value, str | int | float)
    if isinstance(value, list) and len(value) <= _MOST_NUMBERS:
        plain = all(isinstance(part, int | float) for part in value)
    return value if plain else str(value)[:80]


def _codecs(metadata: Mapping[str, Any]) -> set[str]:
    """The names of an array's codecs, including nested ones."""
    names: set[str] = set()
    waiting = [metadata.get(key) for key in ("filters", "compressor", "codecs")]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            names |= {part[key].removeprefix("numcodecs.") for key in ("id", "name") if isinstance(part.get(key), str)}
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return names


def _find(root: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and metadata of every array in the store, without zarr, which may run code to read them."""
    with source_errors(root, *DAMAGE):
        if root.is_dir():
            yield from _find_in_folder(root, "", frozenset())
            return
        with open(root, "rb", opener=open_regular) as whole, zipfile.ZipFile(whole) as file:
            for name in file.namelist():
                folder, _, base = name.rpartition("/")
                if base in _METADATA:
                    strict_json.check_size(file.getinfo(name).file_size)
                    yield from _array_metadata(file.read(name), folder, f"{printable(root)}, {name}")


def _find_in_folder(folder: Path, path: str, above: frozenset[int]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    inode = folder.stat().st_ino
    known = [folder / name for name in _METADATA if (folder / name).exists()]
    if inode in above or not (known or (folder / ".zgroup").exists()):  # in above: a link to a folder that contains it
        return
    arrays = [array for file in known for array in _array_metadata(strict_json.read_bytes(file), path, printable(file))]
    yield from arrays
    if not arrays:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        for name in names:
            yield from _find_in_folder(folder / name, f"{path}/{name}".lstrip("/"), above | {inode})


def _array_metadata(data: bytes, path: str, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and metadata of an array; nothing for a group."""
    try:
        metadata = parse_json(data)
    except ValueError as error:
        raise SourceError(f"{place}: not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise SourceError(f"{place} is not Zarr metadata")
    if metadata.get("node_type") != "group":
        yield path, metadata
