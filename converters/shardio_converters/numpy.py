"""NumPy files: .npy, .npz, and directories of these. The samples are rows along the first axis, or whole .npz files.

The format is described at https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import Sort, find_files
from shardio.foreign.names import printable
from shardio.source import Field, Sample, check_index, label_as_int64, local_path

from ._fields import (
    array_field,
    check_characters,
    choose_fields,
    dtype_in_words,
    rename_remarks,
    sample_value,
    shortened,
)
from ._npy import NpyArray, is_npz, read_npy_header, read_npz_headers
from ._npz_folder import NpzFolder, npz_folder
from ._source_base import ColumnSource

_UNKNOWN = Field("bytes")


def numpy(
    src: str | os.PathLike[str], *, fields: str | Mapping[str, str] | None = None, sort: Sort = "name"
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
    compressed member unpacks it to an unnamed temporary file in TMPDIR. Arrays of Python objects are refused: they are
    pickles.

    Unless you name a container, arrays and numbers go to HDF5, and small strings to LMDB: a tar would take at least a
    thousand bytes for each.

    Args:
        src: the file or the directory.
        fields: the arrays to take, with names for their fields, as in "image=x,label=y". Without it: all.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.

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
    files = find_files(root, lambda name: name.lower().endswith((".npy", ".npz")), "*.npy or *.npz files", sort)
    samples = [path for path in files if path.name.lower().endswith(".npz")]
    if files != [root] and len(samples) == len(files):
        return npz_folder(root, files, fields)
    left_out = [f"left out {len(samples)} .npz files beside the .npy files"] if files != [root] and samples else []
    if files != [root]:
        files = [path for path in files if path not in samples]
        stored = {path.stem: read_npy_header(path) for path in files}
    elif is_npz(root):
        stored = read_npz_headers(root)
    else:
        lone = read_npy_header(root)
        field = _field(_Column(lone, (), lone.dtype, lone.shape))
        stored = {field.kind if field else "array": lone}
    columns = {name: column for own, array in stored.items() for name, column in _columns(own, array)}
    if not columns:
        raise SourceError(f"{printable(root)} holds no arrays")
    lost = {} if fields is not None else {name: why for name, column in columns.items() if (why := _unsuited(column))}
    if len(lost) < len(columns):
        columns = {name: column for name, column in columns.items() if name not in lost}
        left_out += shortened([f"left out {name!r}: it {why}" for name, why in lost.items()], "arrays are left out")
    names = choose_fields(fields, columns, printable(root))
    chosen = {field: _chosen(field, columns[own]) for field, own in names.items()}
    if len({column.shape[0] for column in chosen.values()}) > 1:
        listed = ", ".join(f"{name} {column.shape[0]}" for name, column in chosen.items())
        raise SourceError(f"arrays must have the same number of rows, they have {listed}; choose some with fields")
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
        field: the field that holds the rows, once the column is chosen.
    """

    stored: NpyArray
    names: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    field: Field = _UNKNOWN

    @property
    def mean(self) -> int:
        """The bytes of one row; of strings, with their padding."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@final
@dataclass(frozen=True, eq=False)
class Arrays(ColumnSource):
    """The rows of arrays, by field. It pickles as paths and offsets; each worker maps the files itself."""

    columns: Mapping[str, _Column]
    remarks: tuple[str, ...] = ()
    threads = True
    plain_values = True
    metadata = {"source": "numpy"}

    @property
    def _count(self) -> int:
        return next(iter(self.columns.values())).shape[0]

    @cached_property
    def _mapped(self) -> dict[NpyArray, NDArray[Any]]:
        return {}

    @cached_property
    def _views(self) -> dict[str, NDArray[Any]]:
        return {}

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        sample = {}
        for name, column in self.columns.items():
            try:
                (element,) = check_characters(self._values(name)[index : index + 1])
                sample[name] = sample_value(element, column.field)
            except (BadSample, ValueError) as error:
                raise BadSample(f"{_name(column)}, row {index}: {error}") from error
        return sample

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        out[:] = self._values(name)

    def _values(self, name: str) -> NDArray[Any]:
        if name not in self._views:
            column = self.columns[name]
            if column.stored not in self._mapped:  # members of a structured array share one
                self._mapped[column.stored] = column.stored.map()
            view = self._mapped[column.stored]
            for member in column.names:
                view = view[member]
            self._views[name] = view
        return self._views[name]


def _columns(name: str, stored: NpyArray) -> Iterator[tuple[str, _Column]]:
    def members(name: str, names: tuple[str, ...], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Any]:
        if dtype.subdtype:
            dtype, inner = dtype.subdtype
            shape += inner
        if not dtype.names or dtype.hasobject:
            yield name, _Column(stored, names, dtype, shape)
            return
        for own in dtype.names:
            yield from members(f"{name}.{own}", (*names, own), dtype[own], shape)

    return members(name, (), stored.dtype, stored.shape)


def _name(column: _Column) -> str:
    return ".".join([str(column.stored), *column.names])


def _field(column: _Column) -> Field | None:
    """The field that holds the rows of a column; None if there is none."""
    if column.dtype.kind in "SU":
        return Field("text") if len(column.shape) == 1 else None
    return array_field(column.dtype, column.shape[1:])


def _chosen(name: str, column: _Column) -> _Column:
    """The column as the field `name`; SourceError if no field holds its rows."""
    reason, field = _refusal(column), _field(column)
    if reason or field is None:
        raise SourceError(f"{_name(column)} {reason}; others can be chosen with fields")
    return replace(column, field=label_as_int64(name, field))


def _refusal(column: _Column) -> str:
    """The reason why the rows of a column cannot be samples; empty if they can."""
    if column.stored.dtype.hasobject:
        return "holds Python objects, which are pickles and never loaded"
    if column.shape and (not column.shape[0] or not column.mean):
        return f"holds no rows, or empty ones: {list(column.shape)} of {column.dtype}"
    return _unsuited(column)


def _unsuited(column: _Column) -> str:
    """The reason why a column is left out, unless it is chosen or the only one; empty if its rows can be samples."""
    if column.stored.dtype.hasobject:
        return ""  # refused in any case
    if column.dtype.kind in "Mm":
        return f"holds {column.dtype}, which no field holds; x.astype('int64') makes numbers of it"
    if not column.shape:
        return "is a single value, it has no rows"
    if not _field(column):
        return f"holds {list(column.shape)} of {dtype_in_words(column.dtype)}, which no field holds"
    return ""
