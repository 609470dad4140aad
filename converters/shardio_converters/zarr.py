"""Zarr stores of format 2 and 3: the samples are the rows of arrays along their first axis.

The formats are described at https://zarr-specs.readthedocs.io.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.names import printable
from shardio.format import cf
from shardio.source import Sample, check_index, label_as_int64, local_path

from ._blocks import BlockCache, OneOpenFile, rows_at_once
from ._fields import (
    check_characters,
    choose_fields,
    listed_shapes,
    measure,
    rename_remarks,
    sample_value,
    shortened,
    with_attributes,
)
from ._source_base import ColumnSource
from ._zarr_store import DAMAGE, Column, Store, columns, error_text

_MEASURED = 20  # rows to read for their average size: each may lie in another chunk


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
    found = columns(root)
    usual = {name: column for name, column in found.items() if column.shape}
    if not usual:
        raise SourceError(f"{printable(root)} holds no arrays with rows")
    names = choose_fields(fields, usual, printable(root))
    chosen: dict[str, Column] = {}
    not_applied: list[str] = []
    for field, name in names.items():
        if usual[name].problem:
            reason = f"{usual[name].problem}; choose others with fields"
            raise SourceError(f"{printable(root)}: {name!r} cannot be taken: {reason}")
        column, remark = _described(usual[name], f"{printable(root)}: {name!r}", decode_cf)
        not_applied += [remark] if remark else []
        chosen[field] = replace(column, field=label_as_int64(field, column.field))
    if len({column.shape[0] for column in chosen.values()}) > 1:
        shapes = listed_shapes({name: usual[name].shape for name in names.values()})
        raise SourceError(
            f"{printable(root)}: arrays differ in their number of rows; choose some with fields: {shapes}"
        )
    lost = [f"left out {name!r}: it has no rows" for name in found if name not in usual] if fields is None else []
    left_out, no_effect = shortened(lost, "arrays are left out"), shortened(not_applied, "arrays have such attributes")
    return Zarr(root, chosen, (*left_out, *rename_remarks(fields, names), *no_effect)).measured()


def _described(column: Column, place: str, decode_cf: bool) -> tuple[Column, str]:
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


@final
@dataclass(frozen=True, eq=False)
class Zarr(ColumnSource):
    """The rows of a store's arrays. It pickles as a path; each worker opens the store itself."""

    root: Path
    columns: Mapping[str, Column]
    remarks: tuple[str, ...] = ()
    metadata = {"source": "zarr"}

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

    def _measured(self, column: Column) -> Any:
        return measure(column, self._count, partial(self._readers.get(0).value, column), _MEASURED)


@final
class _Reader:
    """An open store, with the latest block of each of its arrays."""

    def __init__(self, root: Path, columns: Iterable[Column]) -> None:
        self._root = root
        self._blocks = BlockCache()
        self._store = Store(root)
        self._arrays: dict[str, Any] = {}
        self._decodings: dict[str, cf.Decoding | None] = {}
        try:
            for column in columns:
                self._arrays[column.path] = self._store.array(column.path)
                self._decodings[column.path] = column.decoding
        except SourceError:
            self._store.close()
            raise

    def close(self) -> None:
        self._store.close()

    def value(self, column: Column, row: int) -> Any:
        """Row `row` as a sample's value; BadSample names the row."""
        try:
            read = partial(self._read, column.path)
            element = self._blocks.row(column.path, row, column.shape[0], self._step(column), read)
            return sample_value(element, column.field)
        except BadSample as error:
            where = f"{printable(self._root)}, {column.path}" if column.path else printable(self._root)
            raise BadSample(f"{where}, row {row}: {error}") from error

    def fill(self, column: Column, out: NDArray[Any]) -> None:
        """Read all rows of a column of scalars into `out`; BadSample if they cannot be read."""
        step = self._step(column)
        for low in range(0, len(out), step):
            out[low : low + step] = self._read(column.path, low, min(low + step, len(out)))

    def _step(self, column: Column) -> int:
        array = self._arrays[column.path]
        if not column.field.fixed and not column.mean:
            return int(array.chunks[0])
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        return rows_at_once(max(row_bytes, column.mean), array.chunks, array.shape)

    def _read(self, path: str, start: int, stop: int) -> NDArray[Any]:
        try:
            rows = np.asarray(self._arrays[path][start:stop])
        except DAMAGE as error:
            raise BadSample(f"cannot be read, zarr says: {error_text(error)}") from error
        how = self._decodings[path]
        return check_characters(rows) if how is None else how.apply(rows)
