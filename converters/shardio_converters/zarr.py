"""Zarr stores of format 2 and 3: the samples are the rows of arrays along their first axis.

The formats are described at https://zarr-specs.readthedocs.io. Arrays are found without zarr, and so without running
any code that a store could bring.
"""

import base64
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.names import printable
from shardio.format import cf
from shardio.source import Field, Sample, check_index, label_as_int64, load_optional, local_path
from shardio.system import strict_json
from shardio.system.regular_files import check_regular, open_regular

from ._fields import (
    array_field,
    check_characters,
    check_same_rows,
    choose_fields,
    dtype_in_words,
    measure,
    rename_remarks,
    sample_value,
    shortened,
    with_attributes,
)
from ._files import parse_json, source_errors
from ._source_base import BlockCache, ColumnSource, OneOpenFile, rows_at_once

_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError, AttributeError, EOFError, ArithmeticError),
    *(MemoryError, SystemError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""The errors that zarr and its codecs raise for unreadable data: MemoryError where damage is taken for a length, and
SystemError where a codec in C fails in a way of which it does not tell Python."""

_METADATA = ("zarr.json", ".zarray")
_MOST_CHUNKS = 1 << 14
"""The most chunks of one row: 1 GiB in chunks of 64 KiB. Zarr takes a while for each, also for one that is missing."""
_MOST_NUMBERS = 1024  # in an attribute
_MEASURED = 20  # rows to read for their average size: each may lie in another chunk
_BYTES = Field("bytes")


def zarr(
    src: str | os.PathLike[str], *, fields: str | Mapping[str, str] | None = None, decode_cf: bool = False
) -> "Zarr":
    """A Zarr array or group, of format 2 or 3: the rows along the first axis are the samples.

    Takes a directory or a zip file on a local disk. A lone array becomes the field `array`; in a group, every array
    becomes a field: numbers become scalars or arrays, strings text, raw values of fixed size bytes, and values of
    varying length bytes, or images if they begin like one. Missing chunks hold the fill value, as Zarr defines. Arrays
    of pickled objects are refused, because unpickling can run any code; so are datetimes and structures. Arrays without
    rows are left out, and named in a note.

    Args:
        src: the directory or the zip file.
        fields: the arrays to take, with names for their fields, as in "image=data/images,label". Without it: all
            arrays, which must have the same number of rows.
        decode_cf: apply the attributes of netCDF, as xarray does: scale_factor, add_offset, _FillValue, missing_value
            and _Unsigned; numbers outside of valid_min, valid_max or valid_range become NaN, and times seconds since
            1970, float64. Without it numbers stay as they are stored.

    Example:
        shardio convert zarr train.zarr data/train --fields image=images,label=labels
        shardio convert zarr train.zarr.zip data/train
        shardio convert zarr era5.zarr data/era5 --fields t2m,time --decode-cf --to hdf5
        shardio convert zarr train.zarr data/half --to hdf5 --dtype float16 --compress gzip

    Raises:
        SourceError: the store is missing, damaged or holds no arrays, arrays differ in their number of rows, or no
            field holds their type; with `decode_cf`, a calendar or an attribute from which no values follow.
        ConfigError: `fields` names an array that does not exist.
    """
    root = local_path(src).absolute()
    found = _columns(root)
    usual = {name: column for name, column in found.items() if column.shape}
    if not usual:
        raise SourceError(f"{printable(root)} holds no arrays with rows")
    names = choose_fields(fields, usual, printable(root))
    chosen: dict[str, _Column] = {}
    not_applied: list[str] = []
    for field, name in names.items():
        if usual[name].problem:
            reason = f"{usual[name].problem}; choose others with fields"
            raise SourceError(f"{printable(root)}: {name!r} cannot be taken: {reason}")
        column, remark = _described(usual[name], f"{printable(root)}: {name!r}", decode_cf)
        not_applied += [remark] if remark else []
        chosen[field] = replace(column, field=label_as_int64(field, column.field))
    check_same_rows({name: usual[name] for name in names.values()}, printable(root))
    lost = [f"left out {name!r}: it has no rows" for name in found if name not in usual] if fields is None else []
    left_out, no_effect = shortened(lost, "arrays are left out"), shortened(not_applied, "arrays have such attributes")
    return Zarr(root, chosen, (*left_out, *rename_remarks(fields, names), *no_effect)).measured()


@final
@dataclass(frozen=True, slots=True)
class _Column:
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
@dataclass(frozen=True, eq=False)
class Zarr(ColumnSource):
    """The rows of a store's arrays. It pickles as a path; each worker opens the store itself."""

    root: Path
    columns: Mapping[str, _Column]
    remarks: tuple[str, ...] = ()
    source = "zarr"

    @property
    def _count(self) -> int:
        return next(iter(self.columns.values())).shape[0]

    @cached_property
    def _readers(self) -> "OneOpenFile[_Reader]":
        root, columns = self.root, tuple(self.columns.values())  # a closure over self would keep the store open
        return OneOpenFile(lambda number: _Reader(root, columns))

    @property
    def changes(self) -> Mapping[str, Any]:
        """The options that change the samples, as JSON values for the conversion's plan, which `--resume` compares."""
        return {"decode_cf": True} if any(column.decoding for column in self.columns.values()) else {}

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        reader = self._readers.get(0)
        return {name: reader.value(column, index) for name, column in self.columns.items()}

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        self._readers.get(0).fill(self.columns[name], out)

    def _measured(self, column: _Column) -> Any:
        return measure(column, self._count, partial(self._readers.get(0).value, column), _MEASURED)


@final
class _Reader:
    """An open store, with the latest block of each of its arrays."""

    def __init__(self, root: Path, columns: Iterable[_Column]) -> None:
        self._root = root
        self._blocks = BlockCache()
        self._store = _open(root)
        try:
            self._arrays = {column.path: self.array(column.path) for column in columns}
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        with suppress(AttributeError):  # a zip file is opened with its first array, and cannot be closed before that
            self._store.close()

    def array(self, path: str) -> Any:
        """Open the array at `path`; SourceError if zarr rejects its metadata."""
        place = f"{printable(self._root)}: the array {path!r}"
        try:
            array = _zarr().open_array(store=self._store, path=path, mode="r")
            chunks = tuple(array.chunks)
        except _DAMAGE as error:
            raise SourceError(f"{place} cannot be read: {_error_text(error)}") from error
        if any(size < 1 for size in chunks):
            raise SourceError(f"{place} must have chunks of at least one element, it has {list(chunks)}")
        return array

    def value(self, column: _Column, row: int) -> Any:
        """Row `row` as a sample's value; BadSample names the row."""
        try:
            read = partial(self._read, column)
            element = self._blocks.row(column.path, row, column.shape[0], self._step(column), read)
            return sample_value(element, column.field)
        except BadSample as error:
            where = f"{printable(self._root)}, {column.path}" if column.path else printable(self._root)
            raise BadSample(f"{where}, row {row}: {error}") from error

    def fill(self, column: _Column, out: NDArray[Any]) -> None:
        """Read all rows of a column of scalars into `out`; BadSample if they cannot be read."""
        step = self._step(column)
        for low in range(0, len(out), step):
            out[low : low + step] = self._read(column, low, min(low + step, len(out)))

    def _step(self, column: _Column) -> int:
        array = self._arrays[column.path]
        if not column.field.fixed and not column.mean:
            return int(array.chunks[0])
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        return rows_at_once(max(row_bytes, column.mean), array.chunks, array.shape)

    def _read(self, column: _Column, start: int, stop: int) -> NDArray[Any]:
        try:
            rows = np.asarray(self._arrays[column.path][start:stop])
        except _DAMAGE as error:
            raise BadSample(f"cannot be read, zarr says: {_error_text(error)}") from error
        return check_characters(rows) if column.decoding is None else column.decoding.apply(rows)


def _zarr() -> Any:
    return load_optional("zarr", purpose="the converter 'zarr'", extra="zarr")


def _open(root: Path) -> Any:
    """Open a store of zarr, a directory or a zip file; SourceError if that fails."""
    stores = _zarr().storage
    with source_errors(root, *_DAMAGE):
        if root.is_dir():
            return _checked(stores.LocalStore)(root, read_only=True)
        check_regular(root)
        return stores.ZipStore(str(root), mode="r")


def _error_text(error: Exception) -> str:
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


def _columns(root: Path) -> dict[str, _Column]:
    """All arrays of a store, by path; an array that is the whole store is called `array`."""
    codecs: dict[str, set[str]] = {}
    for path, metadata in _find(root):  # a folder may hold the metadata of both formats
        codecs[path] = codecs.get(path, set()) | _codecs(metadata)
    if not codecs:
        raise SourceError(f"{printable(root)} holds no Zarr arrays")
    found: dict[str, _Column] = {}
    with closing(_Reader(root, ())) as reader:
        for path in sorted(codecs):
            if "pickle" in codecs[path]:  # not opened: zarr may unpickle the fill value for that alone
                found[path or "array"] = _Column(path, (0,), problem="pickled objects may run code")
            else:
                found[path or "array"] = _column(reader.array(path), path, codecs[path])
    stated = {column.path: column.attributes or {} for column in found.values()}
    for bounds, times in cf.inherit_units(stated).items():
        attributes = cf.with_units_of(stated[bounds], stated[times])
        found[bounds] = replace(found[bounds], attributes=attributes)
    return found


def _column(array: Any, path: str, codecs: set[str]) -> _Column:
    shape, dtype = tuple(array.shape), array.dtype
    column, rows = _Column(path, shape), shape[1:]
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
    except _DAMAGE as error:
        raise SourceError(f"the attributes of the array {path!r} cannot be read: {_error_text(error)}") from error


def _described(column: _Column, place: str, decode_cf: bool) -> tuple[_Column, str]:
    """A column with what its field states of its values, and a remark on attributes that have no effect, or ""."""
    if column.field.kind not in ("array", "scalar"):
        return column, ""
    attributes = column.attributes or {}
    try:
        field, remark = with_attributes(column.field, attributes, column.path or "array", decode_cf)
    except SourceError as error:
        raise SourceError(f"{place} cannot be decoded: {error}; choose others with fields") from error
    how = cf.decoding(attributes, np.dtype(column.field.dtype)) if decode_cf else None
    return replace(column, field=field, decoding=None if how is None or how.idle else how), remark


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
    with source_errors(root, *_DAMAGE):
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
