"""NumPy files: .npy, .npz, and directories of these. The samples are rows along the first axis, or whole .npz files.

The format is described at https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import Sort, find_files, order_hints, part_remarks, within_folders
from shardio.foreign.locations import scan_files
from shardio.foreign.names import bad_samples_at, printable
from shardio.foreign.string_array import StringArray
from shardio.source import Field, Sample, check_index, label_as_int64, local_path
from shardio.system.units import counted

from ._fields import (
    array_field,
    check_characters,
    check_same_rows,
    choose_fields,
    rename_remarks,
    sample_value,
    shape_of_all,
    shortened,
    unheld,
)
from ._files import file_size
from ._npy import NpyArray, NpyRows, is_npz, read_npy_header, read_npz, read_npz_headers
from ._source_base import ColumnSource, DataclassSource, rows_at_once

_UNKNOWN = Field("bytes")
_PICKLES = "holds Python objects, which are pickles and never loaded"

_Headers: TypeAlias = Mapping[str, NpyArray]
"""The arrays in a .npz, by name."""


def numpy(
    src: str | os.PathLike[str],
    *,
    fields: str | Mapping[str, str] | None = None,
    sort: Sort = "name",
    files: str | None = None,
) -> "Arrays | NpzFolder":
    """NumPy arrays: rows of a .npy, a .npz or a folder of .npy files; or a folder of .npz files of one sample.

    Each array becomes a field with its name in the .npz, or the name of its file in a directory; the array in a lone
    .npy file is called `array`, `scalar` or `text`, after what it holds. Numbers become scalars or arrays of one shape,
    strings text. Each member of a structured array becomes a field, `name.member`. All chosen arrays must have the same
    number of rows: the rows along their first axis are the samples. Arrays of a type that no field holds, such as dates
    and long doubles, and single values are left out, and named in a note.

    In a directory of .npz files, each file is one sample, and its arrays are whole values: as the DLIO benchmark writes
    them, `x` and `y` in each file for unet3d. The first file decides the fields, whose shape is fixed if all files
    agree. The field `key` is the name of the file.

    Files are memory-mapped, and so are the members of a .npz unless they are compressed: each process that reads a
    compressed member unpacks it to an unnamed temporary file in TMPDIR. Arrays of Python objects are not read: they are
    pickles.

    Unless you name a container, arrays and numbers go to HDF5, and small strings to LMDB: a tar would take at least a
    thousand bytes for each.

    Args:
        src: the file or the directory.
        fields: the arrays to take, with names for their fields, as in "image=x,label=y". Without it: all.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        files: a pattern for the names of the files to take from a directory, such as "train-*". Without it: all.

    Example:
        shardio convert numpy train.npz data/train --fields image=x_train,label=y_train
        shardio convert numpy train.npz data/images --as-image x_train --squeeze y_train
        shardio convert numpy features.npy data/features
        shardio convert numpy features.npy data/half --to hdf5 --dtype float16 --compress gzip
        shardio convert numpy unet3d/train data/train --fields volume=x,label=y --squeeze label

    Raises:
        SourceError: a file is missing or damaged, arrays differ in their number of rows, or no field holds one that is
            chosen.
        ConfigError: `fields` names an array that does not exist.
    """
    root = local_path(src).absolute()
    accepted = "*.npy or *.npz files"
    paths = find_files(
        within_folders(root, files), lambda name: name.lower().endswith((".npy", ".npz")), accepted, sort
    )
    samples = [path for path in paths if path.name.lower().endswith(".npz")]
    left_out = [] if files is not None else list(part_remarks(root, paths))
    if paths != [root] and len(samples) == len(paths):
        return _npz_folder(root, paths, fields, left_out)
    if paths != [root] and samples:
        left_out.append(f"left out {counted(len(samples), '.npz file')} beside the .npy files")
    if paths != [root]:
        paths = [path for path in paths if path not in samples]
        stored = {path.stem: read_npy_header(path) for path in paths}
    elif is_npz(root):
        stored = read_npz_headers(root)
    else:
        lone = read_npy_header(root)
        field = _field(lone.dtype, lone.shape[1:])
        stored = {field.kind if field else "array": lone}
    columns = {name: column for own, array in stored.items() for name, column in _columns(own, array)}
    if not columns:
        raise SourceError(f"{printable(root)} holds no arrays")
    lost = {} if fields is not None else {name: column.problem for name, column in columns.items() if column.problem}
    if len(lost) < len(columns):
        columns = {name: column for name, column in columns.items() if name not in lost}
        left_out += shortened([f"left out {name!r}: it {why}" for name, why in lost.items()], "arrays are left out")
    names = choose_fields(fields, columns, printable(root))
    chosen = {field: _chosen(field, columns[own]) for field, own in names.items()}
    check_same_rows({own: columns[own] for own in names.values()}, printable(root))
    return Arrays(chosen, (*left_out, *rename_remarks(fields, names)))


@final
@dataclass(frozen=True, slots=True)
class _Column:
    """An array, or the member of a structured array at the path `names`.

    Attributes:
        stored: the array in its file.
        names: the path of names to the member.
        dtype: the dtype of the elements.
        shape: the shape, `(n, ...)`.
        field: the field that holds the rows.
        problem: why the column is left out, unless it is chosen or the only one; empty if its rows can be samples.
    """

    stored: NpyArray
    names: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    field: Field
    problem: str

    @property
    def mean(self) -> int:
        """The bytes of one row; of strings, with their padding."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def __str__(self) -> str:
        return ".".join([str(self.stored), *self.names])


@final
@dataclass(frozen=True, eq=False)
class Arrays(ColumnSource):
    """The rows of arrays, by field. It pickles as paths and offsets; each worker maps the files itself."""

    columns: Mapping[str, _Column]
    remarks: tuple[str, ...] = ()
    source = "numpy"
    threads = True
    plain_values = True

    @property
    def _count(self) -> int:
        return next(iter(self.columns.values())).shape[0]

    @cached_property
    def _opened(self) -> dict[NpyArray, NpyRows]:
        """The arrays that are open; members of a structured array share one."""
        return {}

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        sample = {}
        for name, column in self.columns.items():
            try:
                (element,) = check_characters(self._values(column, index, index + 1))
                sample[name] = sample_value(element, column.field)
            except (BadSample, ValueError) as error:
                raise BadSample(f"{column}, row {index}: {error}") from error
        return sample

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        column = self.columns[name]
        step = rows_at_once(column.stored.row_bytes)
        for start in range(0, len(out), step):
            out[start : start + step] = self._values(column, start, start + step)

    def _values(self, column: _Column, start: int, stop: int) -> NDArray[Any]:
        if column.stored not in self._opened:
            self._opened[column.stored] = column.stored.open()
        values = self._opened[column.stored][start:stop]
        for member in column.names:
            values = values[member]
        return values


def _columns(name: str, stored: NpyArray) -> Iterator[tuple[str, _Column]]:
    def members(name: str, names: tuple[str, ...], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Any]:
        if dtype.subdtype:
            dtype, inner = dtype.subdtype
            shape += inner
        if not dtype.names or dtype.hasobject:
            field = _field(dtype, shape[1:])
            problem = "" if field else unheld(dtype, shape)
            problem = problem if shape else "is a single value, it has no rows"
            pickled = stored.dtype.hasobject  # refused in any case
            yield name, _Column(stored, names, dtype, shape, field or _UNKNOWN, "" if pickled else problem)
            return
        for own in dtype.names:
            yield from members(f"{name}.{own}", (*names, own), dtype[own], shape)

    return members(name, (), stored.dtype, stored.shape)


def _field(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field | None:
    """Return the field of values of this dtype and shape; None if there is none."""
    if dtype.kind in "SU":
        return None if shape else Field("text")
    return array_field(dtype, shape)


def _chosen(name: str, column: _Column) -> _Column:
    """Return the column as the field `name`; SourceError if no field holds its rows."""
    reason = column.problem
    if column.stored.dtype.hasobject:
        reason = _PICKLES
    elif column.shape and not (column.shape[0] and column.mean):
        reason = f"holds no rows, or empty ones: {list(column.shape)} of {column.dtype}"
    if reason:
        raise SourceError(f"{column} {reason}; others can be chosen with fields")
    return replace(column, field=label_as_int64(name, column.field))


def _npz_folder(
    root: Path, paths: Sequence[Path], fields: str | Mapping[str, str] | None, parts: Sequence[str]
) -> "NpzFolder":
    """Return the files at `paths` as samples, whose fields are chosen by `fields` among the arrays of the first."""
    scanned = scan_files(paths, _try_headers)
    headers = {path: found for path, found in zip(paths, scanned, strict=True) if not isinstance(found, SourceError)}
    if not headers:
        raise scanned[0]
    first = next(iter(headers.values()))
    if not first:
        raise SourceError(f"{printable(paths[0])} holds no arrays")
    held = {name for name, array in first.items() if array.dtype.hasobject or _field(array.dtype, array.shape)}
    refused = [] if fields is not None else [name for name in first if name not in held]
    names = choose_fields(fields, [name for name in first if name not in refused] or first, printable(root))
    chosen = {}
    for name, own in names.items():
        chosen[name] = label_as_int64(name, _field_of_all([found[own] for found in headers.values() if own in found]))
    lost = [f"left out {name!r}: it {unheld(first[name].dtype, first[name].shape)}" for name in refused]
    missing = []
    for own in names.values():
        if lacking := [path for path, found in headers.items() if own not in found]:
            named = f"{lacking[0]}, ..." if len(lacking) > 1 else lacking[0]
            missing.append(f"bad samples, as they lack {own!r}: {counted(len(lacking), 'file')}, {printable(named)}")
    remarks = (
        *parts,
        *shortened(lost + ([] if fields is not None else _left_out(headers)), "arrays are left out"),
        *rename_remarks(fields, names),
        *shortened(missing, "arrays are missing in some files"),
    )
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    below = StringArray(str(path.relative_to(folder)) for path in paths)
    return NpzFolder(folder, below, names, chosen, remarks, order_hints(paths))


@final
@dataclass(frozen=True, eq=False)
class NpzFolder(DataclassSource):
    """The .npz files in a folder, one of them a sample, as the DLIO benchmark writes them for its model unet3d.

    Attributes:
        root: the folder.
        paths: the files' paths below it.
        names: the array of each field.
        arrays: the fields of the arrays.
    """

    root: Path
    paths: StringArray
    names: Mapping[str, str]
    arrays: Mapping[str, Field]
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "numpy"
    threads = True
    plain_values = True

    @property
    def fields(self) -> Mapping[str, Field]:
        """A field for each array, and `key`, the name of the file, unless an array has this name."""
        return {"key": Field("text")} | dict(self.arrays)

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of each file, `[n]`; 0 for one that is missing."""
        return np.array(scan_files([self.root / path for path in self.paths], file_size), np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.paths))
        path = self.root / self.paths[index]
        try:
            found = read_npz(path, self.names.values())
        except SourceError as error:
            raise BadSample(str(error)) from error
        sample: dict[str, Any] = {"key": printable(self.paths[index])}
        for name, own in self.names.items():
            if own not in found:
                raise BadSample(f"{printable(path)}: it has no array {own!r}")
            with bad_samples_at(f"{printable(path)}, {own}"):
                sample[name] = _value(found[own], self.arrays[name])
        return sample


def _try_headers(path: Path) -> _Headers | SourceError:
    try:
        return read_npz_headers(path)
    except SourceError as error:  # reported as a bad sample when the conversion reaches it
        return error


def _field_of_all(arrays: Sequence[NpyArray]) -> Field:
    """Return the field for an array that several files have, with the type of the first; see `shape_of_all`."""
    first, shape = arrays[0], shape_of_all(array.shape for array in arrays)
    if first.dtype.hasobject:
        raise SourceError(f"{first} {_PICKLES}")
    found = _field(first.dtype, first.shape)
    if found is None or (found.kind == "text" and shape != first.shape):
        raise SourceError(f"{first} {unheld(first.dtype, first.shape)}; others can be chosen with fields")
    return found if shape == first.shape else Field("array", dtype=found.dtype, shape=shape)


def _left_out(headers: dict[Path, _Headers]) -> list[str]:
    """Return a remark for each array that the first file lacks and another has."""
    first = next(iter(headers.values()))
    where = {name: path for path, found in reversed(headers.items()) for name in found if name not in first}
    reason = "which the first file lacks"
    return [f"left out {name!r}, {reason}: {printable(path)} is the first that has it" for name, path in where.items()]


def _value(array: NDArray[Any], field: Field) -> Any:
    """Return an array as the value of a field; BadSample if it is another kind of value."""
    if (array.dtype.kind in "SU") != (field.kind == "text") or (field.kind in ("text", "scalar") and array.shape):
        raise BadSample(f"expected {field.kind}, got {list(array.shape)} of {array.dtype}")
    if field.kind == "text":
        (element,) = check_characters(array.reshape(1))
        return sample_value(element, field)
    return array.item() if field.kind == "scalar" else array.astype(array.dtype.newbyteorder("="), copy=False)
