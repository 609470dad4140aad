"""Files of NetCDF's classic formats (CDF-1, CDF-2 and CDF-5), which are no HDF5 files: their variables as columns.

NumPy reads their numbers where the header says they are, so that what a file lacks is missing: netCDF's own library
reads zeros for data that was cut off. The format is described at
https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import File
from shardio.foreign.names import printable, source_errors
from shardio.format import cf
from shardio.source import Field

from ._fields import array_field, unheld
from ._hdf5_columns import Column
from ._source_base import ColumnReader, rows_at_once

_TYPES = dict(enumerate(("i1", "S1", ">i2", ">i4", ">f4", ">f8", "u1", ">u2", ">u4", ">i8", ">u8"), 1))
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12  # the tags of lists
_HEADER = 64 << 20  # the most bytes of a header
_MOST_AXES = 1024  # of a variable, as netCDF has it


@final
@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable of a file.

    Attributes:
        dtype: the dtype of its numbers as they are stored.
        shape: its shape, `(n, ...)`; () for a single value.
        begin: the offset of its first row.
        stride: the bytes from one row to the next: those of a row, or of a record of all variables.
        attributes: those that say what its numbers mean.
        axes: the names of its dimensions.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    stride: int
    attributes: Mapping[str, Any]
    axes: tuple[str, ...]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, file: File, start: int, stop: int) -> NDArray[Any]:
        """Read rows `start` to `stop`; BadSample if the file ends before."""
        shape, size = (stop - start, *self.shape[1:]), self.row_bytes
        if self.stride == size or stop == start + 1:
            data = file.read_exactly(self.begin + start * self.stride, (stop - start) * size)
        else:
            data = b"".join(file.read_exactly(self.begin + row * self.stride, size) for row in range(start, stop))
        return np.frombuffer(data, self.dtype).reshape(shape)


def classic_columns(path: Path, whole: bool) -> tuple[dict[str, Column], dict[str, dict[str, Any]]]:
    """Return the columns of a file by name, and the attributes of each, as `Contents` has them of an HDF5 file."""
    with source_errors(path):
        variables = _read_header(File(path), path)
    own = {name for name, variable in variables.items() if variable.axes == (name,)}
    columns = {}
    for name, variable in variables.items():
        scales = tuple(axis if axis in own else "" for axis in variable.axes)
        column = Column(name, variable.shape, dimensions=scales)
        if whole:
            column = replace(column, shape=(1, *variable.shape), dimensions=("", *scales), whole=True)
        columns[name] = _with_field(column, variable.dtype)
    return columns, {name: dict(variable.attributes) for name, variable in variables.items()}


@final
class ClassicReader(ColumnReader):
    """An open file, with the latest block of each variable that is read; as `Reader` of HDF5 files.

    Raises SourceError if the file cannot be opened, or lacks a variable.
    """

    def __init__(self, path: Path, columns: Iterable[Column]) -> None:
        super().__init__(path)
        self._decodings: dict[str, cf.Decoding] = {}
        with source_errors(path, KeyError):
            self._file = File(path)
            self._variables = _read_header(self._file, path)
            for column in columns:
                attributes = self._variables[column.path].attributes
                if column.units_from:
                    attributes = cf.with_units_of(attributes, self._variables[column.units_from].attributes)
                if column.decoded:
                    dtype = self._variables[column.path].dtype.newbyteorder("=")
                    if not (how := cf.decoding(attributes, dtype)).idle:
                        self._decodings[column.path] = how

    def close(self) -> None:
        self._file.close()

    def _element(self, column: Column, row: int, alone: bool) -> Any:
        variable = self._variables[column.path]
        if column.whole:
            rows = self._rows(column, 0, variable.shape[0] if variable.shape else 1)
            element = rows if variable.shape else rows[0]
        else:
            step = 1 if alone else self._step(column)
            element = self._blocks.row(column.path, row, variable.shape[0], step, partial(self._rows, column))
        return element.tobytes().rstrip(b"\0 ") if column.field.kind == "text" else element

    def _step(self, column: Column) -> int:
        return rows_at_once(self._variables[column.path].row_bytes)

    def _rows(self, column: Column, start: int, stop: int) -> NDArray[Any]:
        rows = self._variables[column.path].rows(self._file, start, stop)
        return self._decodings[column.path].apply(rows) if column.path in self._decodings else rows


def _with_field(column: Column, dtype: np.dtype[Any]) -> Column:
    if not column.shape:
        return replace(column, problem="it has no rows")
    if dtype.kind == "S" and len(column.shape) <= 2:
        return replace(column, field=Field("text"))
    field = array_field(dtype, column.shape[1:])
    return replace(column, field=field) if field else replace(column, problem=f"it {unheld(dtype, column.shape)}")


def _read_header(file: File, path: Path) -> dict[str, _Variable]:
    """Return the variables of a file, by name; SourceError if the header is damaged."""
    try:
        return _Header(file).variables()
    except (BadSample, ValueError, LookupError, UnicodeError) as error:
        raise SourceError(f"{printable(path)} cannot be read as NetCDF: its header is damaged: {error}") from error


@final
class _Header:
    """The header of a file, read from its beginning to its end."""

    def __init__(self, file: File) -> None:
        self._size = file.size
        self._data = memoryview(file.read(0, min(file.size, _HEADER)))
        self._at = 4
        version = self._data[3]
        self._wide = version == 5  # counts of 8 bytes
        self._offset_bytes = 4 if version == 1 else 8

    def variables(self) -> dict[str, _Variable]:
        records = self._count(streaming=True)
        dimensions = [(self._name(), self._count()) for _ in self._list(_DIMENSIONS)]
        for _ in self._attributes():
            pass
        found = {}
        for _ in self._list(_VARIABLES):
            name = self._name()
            if (count := self._count()) > _MOST_AXES:
                raise ValueError(f"it has a list of {count}, at most {_MOST_AXES} are allowed")
            named = [dimensions[self._count()] for _ in range(count)]
            attributes, dtype = dict(self._attributes()), np.dtype(_TYPES[self._number(4)])
            self._count()  # the size, which the shape tells: that of a large variable does not fit
            axes, lengths = tuple(axis for axis, _ in named), [length for _, length in named]
            found[name] = axes, lengths, attributes, dtype, self._number(self._offset_bytes)
        return self._placed(found, records)

    def _placed(self, found: Mapping[str, Any], records: int) -> dict[str, _Variable]:
        """The variables with their rows; an axis of length 0 is that of the records, one after the other of all."""
        recorded = {name for name, (_, lengths, *_) in found.items() if lengths and lengths[0] == 0}
        sizes = {name: math.prod(one[1:]) * dtype.itemsize for name, (_, one, _, dtype, _) in found.items()}
        # Each is padded to 4 bytes, unless it is alone.
        padded = [size if len(recorded) == 1 else -(-size // 4) * 4 for name, size in sizes.items() if name in recorded]
        record = sum(padded)
        if records < 0 and record:  # not told: the writer was streaming
            records = (self._size - min(found[name][-1] for name in recorded)) // record
        variables = {}
        for name, (axes, lengths, attributes, dtype, begin) in found.items():
            shape = (records, *lengths[1:]) if name in recorded else tuple(lengths)
            if math.prod(shape[1:]) * dtype.itemsize > self._size or (shape and shape[0] > self._size):
                raise ValueError(f"{name!r} is {list(shape)} of {dtype}, in a file of {self._size} bytes")
            stride = record if name in recorded else sizes[name]
            variables[name] = _Variable(dtype, shape, begin, stride, attributes, axes)
        return variables

    def _take(self, size: int) -> memoryview:
        if size > len(self._data) - self._at:
            raise ValueError(f"it ends after {len(self._data)} bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _count(self, *, streaming: bool = False) -> int:
        size = 8 if self._wide else 4
        number = self._number(size)
        return -1 if streaming and number == (1 << 8 * size) - 1 else number

    def _padded(self, size: int) -> memoryview:
        return self._take(-(-size // 4) * 4)[:size]

    def _name(self) -> str:
        return str(self._padded(self._count()), "utf-8")

    def _list(self, tag: int) -> range:
        found, count = self._number(4), self._count()
        if found not in (tag, 0) or (found == 0 and count):
            raise ValueError(f"expected a list of kind {tag} at byte {self._at}, got {found}")
        return range(count)

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Read a list of attributes; yield those that say what numbers mean."""
        for _ in self._list(_ATTRIBUTES):
            name, dtype = self._name(), np.dtype(_TYPES[self._number(4)])
            data = self._padded(self._count() * dtype.itemsize)
            if name not in (*cf.ATTRIBUTES, "bounds") or not len(data):
                continue
            if dtype.kind == "S":
                yield name, bytes(data).decode(errors="replace").rstrip("\0")
                continue
            values = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
            yield name, values[0] if len(values) == 1 else values
