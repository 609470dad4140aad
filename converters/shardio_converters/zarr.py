"""Zarr stores of format 2 and 3: the samples are the rows of arrays along one of their axes.

The formats are described at https://zarr-specs.readthedocs.io. Arrays are found, and their numbers are read, without
zarr; it reads strings, values of varying length, and numbers in codecs that shardio does not know.
"""

import base64
import itertools
import lzma
import math
import os
import struct
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.containers.zarr_chunks import array_rows, check_understood
from shardio.containers.zarr_index import ENTRY, IndexedArray, ZarrIndex
from shardio.containers.zarr_metadata import ArrayLayout, Impossible, NotUnderstood, of_array, of_chunks, units_of_dates
from shardio.errors import BadSample, ConfigError, Message, Option, ShardCorrupt, SourceError
from shardio.foreign.files import Sort, part_remarks, within_folders
from shardio.foreign.names import Paths, printable, source_errors
from shardio.foreign.zarr import FoundArray, ZarrStore, find_stores, open_store
from shardio.format import cf
from shardio.format.limits import MAX_VALUE_BYTES
from shardio.format.unwritten import MissingChunks, Unwritten
from shardio.source import Field, ZarrIndexes, load_optional, local_path
from shardio.system.regular_files import check_regular
from shardio.system.units import counted

from ._fields import (
    array_field,
    check_characters,
    dtype_in_words,
    with_attributes,
)
from ._series import FileContents, SampleOf, SeriesOptions, SeriesSource, along, read_series, within
from ._source_base import ArrayColumn, ColumnReader, rows_at_once

_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError, AttributeError, EOFError, ArithmeticError),
    *(MemoryError, SystemError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""The errors that zarr and its codecs raise for unreadable data: MemoryError where damage is taken for a length, and
SystemError where a codec in C fails in a way of which it does not tell Python."""

_MOST_CHUNKS = 1 << 14
"""The most chunks of one row: 1 GiB in chunks of 64 KiB. Each takes a while, also one that is missing."""
_MOST_NUMBERS = 1024  # in an attribute
_MEASURED = 20  # rows to read for their average size: each may lie in another chunk
_BYTES = Field("bytes")


def zarr(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    axis: str | None = None,
    decode_cf: bool = False,
    sort: Sort = "name",
    merge: bool = False,
    sample: SampleOf | None = None,
    files: str | None = None,
    missing_chunks: MissingChunks | None = None,
) -> "Zarr":
    """A Zarr array or group, of format 2 or 3: the rows along the first axis are the samples.

    Takes a directory or a zip file on a local disk, or several: a folder of them, or a pattern such as "months/*.zarr"
    (quote it), whose arrays must have the same names and rows; coordinates of other axes than the samples', arrays of
    one axis with its name, must be equal. A lone array becomes the field `array`; in a group,
    every array becomes a field: numbers become scalars or arrays, datetime64 seconds since 1970 (float64, NaN for NaT),
    strings text, raw values of fixed size bytes, and values of varying length bytes, or images if they begin like one.
    Arrays of pickled objects (unpickling can run any code), of durations and structures, in codecs that are not
    installed, and without rows are left out, as are links in a store; a note names them.

    Args:
        src: the directory or the zip file; a folder of stores, or a pattern.
        fields: the arrays to take, with names for their fields, as in "image=data/images,label". Without it: all
            arrays, which must have the same number of rows.
        axis: the axis that the samples are along, by its name in `dimension_names` or `_ARRAY_DIMENSIONS`, such as
            time; or by its number, from 0 on. It becomes the first one. Arrays that lack it are left out.
        decode_cf: apply the attributes of netCDF, as xarray does: scale_factor, add_offset, _FillValue, missing_value
            and _Unsigned; numbers outside of valid_min, valid_max or valid_range become NaN, and times seconds since
            1970, float64. Without it numbers stay as they are stored.
        sort: `natural` sorts stores by the numbers in their names, so that s_2 comes before s_10.
        merge: take stores of different arrays for the same rows: stores that hold the same arrays make a series, and
            the first store of each series is merged with those of the others, then the second, and so on. The
            coordinates that they share must be equal.
        sample: what a sample is. row: a row of the arrays. file: all arrays of a store, including single values. group:
            all arrays of one group, where neighbouring groups hold the same names, as in demo_0/actions and
            demo_1/actions; fields have the names within the group. By default, rows; a note says if the stores look
            otherwise.
        files: a pattern for the names of the stores to take from a directory, such as "train-*". Without it: all.
        missing_chunks: what to make of chunks that are not there. fill: their values are the fill value. refuse: an
            error. By default they are fill values, and a note says how many. It is a remark, which `strict`
            makes an error, where something speaks for a loss: an array has none of its chunks, no field has any from
            some row on, or chunks have names that the metadata do not give them; an array of such alone is refused.

    Example:
        shardio convert zarr train.zarr data/train --fields image=images,label=labels
        shardio convert zarr train.zarr.zip data/train
        shardio convert zarr era5.zarr data/era5 --fields t2m,time --decode-cf --to hdf5
        shardio convert zarr era5.zarr data/times --axis time --missing-chunks fill
        shardio convert zarr "wind/*.zarr" data/wind --merge --axis time --stack wind=u10,v10 --to hdf5
        shardio convert zarr train.zarr data/whole --sample file
        shardio convert zarr train.zarr data/half --to hdf5 --dtype float16 --compress gzip

    Raises:
        SourceError: a store is missing, damaged or holds no arrays, stores disagree, arrays differ in their number of
            rows, or no field holds their type; with `decode_cf`, a calendar or an attribute cannot be applied.
        ConfigError: `fields` names an array that does not exist.
    """
    src = within_folders(src, files)
    given = [os.fspath(one) for one in ([src] if isinstance(src, (str, os.PathLike)) else src)]
    roots = find_stores(given, sort) or [local_path(one).absolute() for one in given]
    sample = "row" if sample is None and axis is not None else sample
    called: Any = {"what": "stores", "columns": "arrays", "each": True, "compared": len(roots) > 1}
    options = SeriesOptions(fields, decode_cf, merge, sample=sample, sort=sort, **called)
    if options.whole and axis is not None:
        raise ConfigError("{axis} is that of rows: it does not go with {}", Option("sample", sample))
    found = read_series((_Contents(root, axis, options.whole) for root in roots), options, Zarr, missing_chunks)
    masked = [name for name, column in found.columns.items() if column.decoding and _masks_zeros(column)]
    told = "zeros of {} become NaN by {decode_cf:True}, as in xarray: Zarr's default fill_value 0 counts as _FillValue"
    hints = (
        *found.hints,
        *_pyramid_hints(found.columns),
        *([Message(told, ", ".join(map(repr, masked)))] if masked else []),
    )
    return replace(found, remarks=(*part_remarks(src, roots), *found.remarks), hints=hints).measured()


def _pyramid_hints(columns: Mapping[str, "_Column"]) -> tuple[str, ...]:
    """A hint if the arrays are 0, 1, 2, ... and smaller each, as OME-Zarr stores an image in several resolutions."""
    shapes = [columns[name].shape for name in map(str, range(len(columns))) if name in columns]
    if len(shapes) < 2 or len(shapes) < len(columns) or any(a <= b for a, b in itertools.pairwise(shapes)):
        return ()
    return (Message("the arrays look like one image in several resolutions; {fields:image=0} takes the finest"),)


@final
@dataclass(frozen=True, slots=True)
class _Column(ArrayColumn):
    """An array that can become a field.

    Attributes:
        attributes: its attributes of netCDF that say what its numbers mean, see `shardio.format.cf`; None for none.
        decoding: how its numbers are decoded; None if they are taken as they are stored.
        layout: how chunks store its numbers; None if zarr reads it.
        metadata: the JSON value that this follows from.
    """

    attributes: Mapping[str, Any] | None = None
    decoding: cf.Decoding | None = None
    layout: ArrayLayout | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def dates(self) -> bool:
        """Whether its numbers are those of datetime64, which are always decoded."""
        return units_of_dates(self.metadata or {}) is not None


@final
@dataclass(frozen=True, eq=False)
class Zarr(SeriesSource):
    """The rows of stores' arrays."""

    source = "zarr"

    @property
    def _decodes(self) -> bool:
        return any(column.decoding and not column.dates for column in self.columns.values())

    def _opens(self) -> Callable[[Path, Iterable[_Column]], "_Reader"]:
        return _Reader

    def _looked_at(self, column: _Column) -> tuple[int, int]:
        return 1 if self.groups else int(self.starts[1]), _MEASURED

    def _paths(self, number: int) -> tuple[Path, ...]:
        """Return a store, and those that are merged with it."""
        return (self.files[number], *(self.merged[number] if self.merged else ()))

    @property
    def adoption(self) -> ZarrIndexes:
        names = {name: column.path for name, column in self.columns.items()}
        if any(column.whole for column in self.columns.values()):
            rule = "{}: only rows of Zarr stores can be read in place, not samples that are {}s: convert it"
            raise SourceError(rule, printable(self.files[0]), self.changes["sample"])
        return ZarrIndexes(self.starts, names, self._index)

    def _index(self, number: int, *, listed: bool = True) -> ZarrIndex:
        arrays = dict[str, IndexedArray]()
        stores = [open_store(root) for root in self._paths(number)]
        for name, column in self.each[number].items():
            if column.layout is None or column.metadata is None:
                raise SourceError(
                    "{}: {!r} is not read in place, as it holds no numbers, or in codecs that shardio does not know; "
                    "choose others with {fields}, or convert it",
                    printable(stores[column.file].root),
                    column.path or "array",
                )
            packing = None if column.decoding is None else cf.to_json(column.attributes or {})
            entries = self._entries(stores[column.file], column) if listed else np.empty(0, ENTRY)
            arrays[name] = IndexedArray(column.path, column.metadata, column.axis, packing, entries, column.file)
        return ZarrIndex(arrays, zipped=stores[0].zipped, merged=tuple(store.zipped for store in stores[1:]))

    @cached_property
    def _listed(self) -> dict[tuple[Path, str], NDArray[Any]]:
        """The chunks of each array that was listed, kept: listing takes longer than all else of indexing."""
        return {}

    def _entries(self, store: ZarrStore, column: _Column) -> NDArray[Any]:
        key = store.root, column.path
        if key not in self._listed and column.layout is not None:
            self._listed[key] = store.entries(column.path, column.layout)
        return self._listed[key]

    def unwritten(self, *, tables: bool) -> Sequence[Unwritten]:
        return list(self._unwritten(tables))

    def _unwritten(self, tables: bool) -> Iterator[Unwritten]:
        before, stores = -1, list[ZarrStore]()
        for sample, columns in enumerate(self.each):
            number = bisect_right(self.starts, sample) - 1 if self.groups else sample
            if number != before:
                before, stores = number, [open_store(root) for root in self._paths(number)]
            for name, given in columns.items():
                column = within(self.groups[sample], given) if self.groups else given
                store, layout = stores[column.file], column.layout
                rows_in_store = column.shape[0] if layout is None or not column.whole else (*layout.shape, 1)[0]
                one = Unwritten(name, printable(store.root.name), rows_in_store, number)
                if layout is None:
                    yield one
                    continue
                there = store.there(column.path, layout) if tables else self._entries(store, column)["number"]
                found = of_chunks(one, layout, column.axis, there)
                if found.lacking:
                    found = replace(found, misnamed=_misnamed(store, column.path, layout))
                yield found
                if layout.shard is not None and tables:
                    entries = store.live_entries(column.path, layout)
                    rows: Any = array_rows(store.chunks(column.path), column.path, layout, column.axis, entries)
                    yield of_chunks(one, layout, column.axis, rows.chunks.inner_written(there), inner=True)


@final
class _Reader(ColumnReader):
    """An open store, with the latest block of each of its arrays."""

    def __init__(self, root: Path, columns: Iterable[_Column]) -> None:
        super().__init__(root)
        self._library: Any = None
        self._rows_of: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}
        self._store = open_store(root)
        try:
            for column in columns:
                if not column.whole:  # which is opened when it is read
                    self._add(column)
        except SourceError:
            self.close()
            raise

    def _add(self, column: _Column) -> None:
        if column.layout is None:
            self._arrays[column.path] = self.array(column.path)
            return
        entries = self._store.live_entries(column.path, column.layout)
        with source_errors(self._path, ShardCorrupt):
            files = self._store.chunks(column.path)
        self._rows_of[column.path] = array_rows(files, column.path, column.layout, column.axis, entries)

    def close(self) -> None:
        with suppress(AttributeError):  # a zip file is opened with its first array, and cannot be closed before that
            self._library.close()

    def array(self, path: str) -> Any:
        """Open the array at `path` with zarr; SourceError, in words that follow its name, if that fails."""
        self._library = self._library or _open(self._path)
        try:
            array = _zarr().open_array(store=self._library, path=path, mode="r")
            chunks = tuple(array.chunks)
        except _DAMAGE as error:
            raise SourceError(f"cannot be read: {_error_text(error)}") from error
        if any(size < 1 for size in chunks):
            raise SourceError(f"must have chunks of at least one element, it has {list(chunks)}")
        return array

    def _element(self, column: _Column, row: int, alone: bool) -> Any:
        if column.whole:
            self._rows_of.clear()  # of another group, mostly
            self._arrays.clear()
            self._add(column)
            return self._rows(column, 0, column.layout.shape[0] if column.layout else 0)
        return self._blocks.row(column.path, row, column.shape[0], self._step(column), partial(self._rows, column))

    def _step(self, column: _Column) -> int:
        if column.layout is not None:
            rows = self._rows_of[column.path]
            return rows_at_once(rows.field.row_bytes, rows.chunk, column.shape)
        array = self._arrays[column.path]
        if not column.field.fixed and not column.mean:
            return int(array.chunks[0])
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        return rows_at_once(max(row_bytes, column.mean), array.chunks, array.shape)

    def _rows(self, column: _Column, start: int, stop: int) -> NDArray[Any]:
        if column.layout is not None:
            reader = self._rows_of[column.path]
            rows = np.empty((stop - start, *reader.field.row_shape), reader.field.row_dtype)
            try:
                if rows.size:
                    reader.read(np.arange(start, stop), rows, MAX_VALUE_BYTES)
            except ShardCorrupt as error:
                raise BadSample(f"the chunk{str(error).partition(': the chunk')[2]}") from error
        else:
            try:
                rows = np.asarray(self._arrays[column.path][... if column.whole else slice(start, stop)])
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
    """Return the class `store`, zarr's LocalStore, which reads regular files alone: zarr would wait at a pipe."""

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


@final
class _Contents(FileContents):
    """The arrays of a store; a store that is one array calls it `array`. Arrays without rows have no shape."""

    def __init__(self, root: Path, axis: str | None, whole: bool) -> None:
        store = open_store(root)
        arrays = store.arrays()
        if not arrays:
            icechunk = (root / "snapshots").is_dir() and (root / "refs").is_dir()
            advice = (
                ", but an Icechunk repository: write the snapshot that you want as a Zarr store" if icechunk else ""
            )
            raise SourceError(f"{printable(root)} holds no Zarr arrays{advice}")
        self.path = root
        with closing(_Reader(root, ())) as reader:
            found = {array.path or "array": _column(array, reader, whole) for array in arrays}
        stated_by_root = store.attributes()
        self.hints = _hints(root, stated_by_root)
        for name, axes in {} if whole else _axes_of_resolutions(stated_by_root).items():
            if name in found and not found[name].dimensions and len(axes) == len(found[name].shape):
                found[name] = replace(found[name], dimensions=axes)
        stated = {column.path: column.attributes or {} for column in found.values()}
        for bounds, times in cf.inherit_units(stated).items():
            attributes = cf.with_units_of(stated[bounds], stated[times])
            name = bounds or "array"
            found[name] = replace(found[name], attributes=attributes)
        self.stored = {
            column.path: column
            for column in found.values()
            if column.layout and column.dimensions and not column.problem and column.field.kind == "scalar"
        }
        self.columns = found if axis is None else {name: _along(column, axis) for name, column in found.items()}
        self.scales = {
            column.path: tuple(self._scale(column, name) for name in column.dimensions)
            for column in self.columns.values()
        }
        self.available = {name: column for name, column in self.columns.items() if column.shape}
        self.usual = {name: column for name, column in self.available.items() if not column.problem}
        lacks = "it has no rows" if axis is None else f"it has no axis {axis!r}"
        self.lost = dict.fromkeys(store.links, "it is a link, which is not followed")
        self.lost |= {name: one.problem or lacks for name, one in self.columns.items() if one.problem or not one.shape}

    def described(self, column: "_Column", decode_cf: bool) -> tuple["_Column", str]:
        if column.field.kind not in ("array", "scalar"):
            return column, ""
        attributes = column.attributes or {}
        decodes = decode_cf or column.dates
        if _masks_zeros(column) and not decodes:  # a fill value that nobody chose is no attribute to be applied
            attributes = {name: value for name, value in attributes.items() if name != "_FillValue"}
        field, remark = with_attributes(column.field, attributes, column.path or "array", decodes)
        how = cf.decoding(attributes, np.dtype(column.field.dtype)) if decodes else None
        return replace(column, field=field, decoding=None if how is None or how.idle else how), remark

    def opens(self, columns: Iterable["_Column"]) -> _Reader:
        return _Reader(self.path, columns)

    def _scale(self, column: "_Column", axis: str | None) -> str:
        """Return the path of the coordinate of an axis: the array of its name in the column's group."""
        path = "/".join([*column.path.split("/")[:-1], axis or ""])
        lone = self.stored.get(path)
        return path if axis and lone is not None and lone.dimensions == (axis,) else ""


def _masks_zeros(column: "_Column") -> bool:
    """Whether xarray takes the fill value of an array of format 2 for missing values, which is 0, zarr's default."""
    metadata, fill = column.metadata or {}, (column.attributes or {}).get("_FillValue")
    return metadata.get("zarr_format") == 2 and fill is not None and fill == metadata.get("fill_value") == 0


def _axes_of_resolutions(attributes: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the axes of the arrays that OME-Zarr calls resolutions of an image, by path."""
    found: dict[str, tuple[str, ...]] = {}
    with suppress(TypeError, LookupError, AttributeError):
        for image in attributes.get("ome", attributes).get("multiscales", ()):
            axes = tuple(str(axis["name"] if isinstance(axis, dict) else axis) for axis in image["axes"])
            found |= {str(level["path"]): axes for level in image["datasets"]}
    return found


def _hints(root: Path, attributes: Mapping[str, Any]) -> list[str]:
    """Return a hint on the dates without data that anemoi's stores name."""
    missing = attributes.get("missing_dates")
    if not isinstance(missing, list) or not missing:
        return []
    told = "{}: its attribute missing_dates names {} without data, which are samples; the first is {}"
    return [told.format(printable(root), counted(len(missing), "date"), printable(str(missing[0])[:80]))]


def _misnamed(store: ZarrStore, path: str, layout: ArrayLayout) -> str:
    """Return a chunk of an array under a name that other metadata would give it; "" if there is none."""
    for other in layout.otherwise_named():
        if len(found := store.entries(path, other)):
            return other.key(list(map(int, np.unravel_index(int(found["number"][0]), layout.grid))))
    return ""


def _column(found: FoundArray, reader: _Reader, whole: bool) -> _Column:
    """Return the column of an array; one with a problem if it cannot be taken, whatever its metadata states."""
    try:
        return _sound_column(found, reader, (1,) if whole else ())
    except (Impossible, SourceError) as error:
        return _Column(found.path, (0,), problem=str(error))


def _sound_column(found: FoundArray, reader: _Reader, lead: tuple[int, ...]) -> _Column:
    """Return the column of an array; `lead` goes before its shape, if it is one row."""
    codecs = set().union(*map(_codecs, found.metadata))
    if "pickle" in codecs:  # not opened: zarr may unpickle the fill value for that alone
        raise SourceError("pickled objects may run code")
    try:
        layout = of_array(found.metadata[0])
        check_understood(layout)
    except Impossible:
        raise
    except NotUnderstood:
        layout = None
    if layout is not None:
        _check_formats(layout, found)
    if layout is None or (lead and not layout.shape):
        return _column_of_zarr(reader.array(found.path), found, codecs, lead)
    axes, shape = _dimensions(found, len(layout.shape), lead), (*lead, *layout.shape)
    column = _Column(found.path, shape, layout=layout, metadata=found.metadata[0], dimensions=axes, whole=bool(lead))
    return _of_numbers(column, layout.dtype, (*lead, *layout.chunk), layout.fill, found)


def _dimensions(found: FoundArray, count: int, lead: tuple[int, ...]) -> tuple[str | None, ...]:
    """Return the names of an array's axes, None for `lead`; () if it has none."""
    names = found.metadata[0].get("dimension_names") or found.attributes.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list) or len(names) != count:
        return ()
    return (*(None for _ in lead), *(name if isinstance(name, str) else None for name in names))


def _check_formats(layout: ArrayLayout, found: FoundArray) -> None:
    """Raise SourceError if an array has metadata of both formats that look for its chunks elsewhere."""
    place = [0] * len(layout.shape)
    for metadata in found.metadata[1:]:
        with suppress(NotUnderstood):
            other = of_array(metadata)
            if (layout.shape, layout.chunk, layout.key(place)) == (other.shape, other.chunk, other.key(place)):
                continue
        raise SourceError(
            "has metadata of format 2 and of format 3, which differ in its shape or its chunks: remove those that are "
            "not the array's"
        )


def _column_of_zarr(array: Any, found: FoundArray, codecs: set[str], lead: tuple[int, ...]) -> _Column:
    """Return the column of an array that zarr reads."""
    shape, dtype, axes = (*lead, *array.shape), array.dtype, _dimensions(found, array.ndim, lead)
    column, rows = _Column(found.path, shape, dimensions=axes, whole=bool(lead)), shape[1:]
    if dtype.kind in "TUS" or "vlen-utf8" in codecs:
        return replace(column, field=Field("json" if rows else "text"))
    if not rows and ((dtype.kind == "V" and dtype.names is None) or "vlen-bytes" in codecs):
        return column
    return _of_numbers(column, dtype, (*lead, *array.chunks), array.fill_value, found)


def _of_numbers(column: _Column, dtype: np.dtype[Any], chunks: Sequence[int], fill: Any, found: FoundArray) -> _Column:
    rows = column.shape[1:]
    field = array_field(dtype, rows)
    if not field:
        return replace(column, problem=f"no field holds {list(rows)} of {dtype_in_words(dtype)}")
    count = math.prod(-(-side // chunk) for side, chunk in zip(rows, chunks[1:], strict=True))
    if count > _MOST_CHUNKS:
        return replace(column, problem=f"a row lies in {count} chunks, more than {_MOST_CHUNKS}")
    try:
        return replace(column, field=field, attributes=_attributes(found, dtype, fill))
    except _DAMAGE as error:
        text = _error_text(error)
        raise SourceError(f"its attributes cannot be read: {text}") from error


def _along(column: _Column, axis: str) -> _Column:
    """Return a column whose samples are along another axis; one without a shape if the array has no such axis."""
    fixed = "" if column.layout else "zarr reads it, and only along its first axis"
    return along(column, axis, fixed) or replace(column, shape=())


def _attributes(found: FoundArray, dtype: np.dtype[Any], fill: Any) -> dict[str, Any]:
    """Return the attributes of netCDF of an array, where xarray keeps them."""
    if units := units_of_dates(found.metadata[0]):
        return {"units": units}
    given = found.attributes
    attributes = {name: _value(given[name]) for name in (*cf.ATTRIBUTES, "bounds") if name in given}
    if found.metadata[0].get("zarr_format", 2) == 2:
        # Without the dimensions of netCDF, a fill value says what missing chunks hold and nothing more.
        if "_ARRAY_DIMENSIONS" in given and found.metadata[0].get("fill_value") is not None:
            attributes["_FillValue"] = np.dtype(dtype.newbyteorder("=")).type(fill)
    elif isinstance(stated := attributes.get("_FillValue"), str) and dtype.kind == "f":
        (attributes["_FillValue"],) = struct.unpack("<d", base64.b64decode(stated, validate=True))
    return attributes


def _value(value: Any) -> Any:
    """A JSON value that is text, a number or a list of numbers; of anything else a description, which is no number."""
    plain = isinstance(value, str | int | float)
    if isinstance(value, list) and len(value) <= _MOST_NUMBERS:
        plain = all(isinstance(part, int | float) for part in value)
    return value if plain else str(value)[:80]


def _codecs(metadata: Mapping[str, Any]) -> set[str]:
    """Return the names of an array's codecs, including nested ones."""
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
