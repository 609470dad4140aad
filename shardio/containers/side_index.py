"""The side index of a shard: `NAME.idx.npy`, one structured array with a row per sample, in `.npy` format.

It says where each value is in the file next to it, and holds scalars and hidden columns itself. Hidden columns whose
values differ in size, the tables of videos, stand end to end in a second array behind the first, uint8, in `.npy`
format too. Tars have an index, and so do files that others wrote. This module alone knows its layout.
"""

import os
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ShardCorrupt
from ..format.fields import Field
from ..format.file_table import FileTable
from ..system import npy
from ..system.directory import Directory
from ..system.types import Buffer, Stored
from . import files

SUFFIX = ".idx.npy"
CONTAINERS = ("tar", "indexed")
"""The containers whose shards have one."""
_LARGEST_HEADER = 1 << 20  # bytes


def path_of(shard: Path) -> Path:
    """Return the path of a shard's side index: `shard-000000.tar` has `shard-000000.idx.npy`."""
    # Only `.tar` is dropped: adopted files may differ only in what follows a dot.
    return shard.with_name(shard.name.removesuffix(".tar") + SUFFIX)


def located(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields for which the index has an offset and a size: all but the hidden columns."""
    return {name: field for name, field in fields.items() if not name.startswith("_")}


def held(fields: Mapping[str, Field]) -> list[str]:
    """Return the names of the fields whose values its rows hold: scalars and hidden columns of one size."""
    return [name for name, field in fields.items() if field.fixed and (name.startswith("_") or field.kind == "scalar")]


def behind(fields: Mapping[str, Field]) -> list[str]:
    """Return the names of the hidden columns whose values stand in the second array."""
    return [name for name, field in fields.items() if name.startswith("_") and not field.fixed]


def dtype_of(fields: Mapping[str, Field]) -> np.dtype[Any]:
    """Return the dtype of a row: `<field>.offset` and `<field>.size` of each located field, then the held columns.

    Those of columns in the second array come between them, and count from that array's first byte.

    Args:
        fields: the shard's fields, with hidden columns.

    Raises:
        ConfigError: two columns would have the same name.
    """
    columns: list[tuple[Any, ...]] = []
    for name in (*located(fields), *behind(fields)):
        columns += [(f"{name}.offset", "<i8"), (f"{name}.size", "<i8")]
    for name in held(fields):
        columns.append((name, fields[name].row_dtype, fields[name].row_shape))
    names = [column[0] for column in columns]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"an index would have two columns called {duplicates[0]!r}: rename a field")
    return np.dtype(columns)


def size_of(fields: Mapping[str, Field], count: int) -> int | None:
    """Return the bytes of the index of a shard of `count` samples; None if it has a second array."""
    if behind(fields):
        return None
    dtype = dtype_of(fields)
    return len(npy.header_of(dtype, (count,))) + count * dtype.itemsize


def fill(row: NDArray[Any], sample: Stored, second: bytearray) -> None:
    """Set the held values of a row [1] of an index from a sample in stored form; add to the second array."""
    for name in (name for name in row.dtype.names or () if name in sample):
        dtype = row.dtype[name]
        row[name] = np.frombuffer(sample[name], dtype.base).reshape(dtype.shape)
    for name in _behind(row.dtype):
        row[f"{name}.offset"], row[f"{name}.size"] = len(second), len(sample[name])
        second += sample[name]


def _behind(dtype: np.dtype[Any]) -> list[str]:
    """Return what `behind` does, of the fields that an index has."""
    ends = (name.removesuffix(".offset") for name in dtype.names or () if name.startswith("_"))
    return [name for name in ends if f"{name}.size" in (dtype.names or ())]


@final
class SideIndexWriter:
    """Writes a side index row by row, so that memory stays bounded.

    Args:
        file: an empty file; the caller syncs and closes it.
        fields: the shard's fields, with hidden columns.
        spool: makes a file for the second array, if there is one.
    """

    def __init__(self, file: IO[bytes], fields: Mapping[str, Field], spool: Callable[[], IO[bytes]]) -> None:
        self._file, self._dtype = file, dtype_of(fields)
        self._held, self._behind = held(fields), behind(fields)
        self._locations = struct.Struct(f"<{2 * len((*located(fields), *self._behind))}q")
        self._second, self._bytes = [spool()] if self._behind else [], 0
        self._file.write(npy.header_of(self._dtype, (0,)))

    def append(self, locations: Sequence[int], sample: Stored) -> None:
        """Add a row: the offset and size of each located field in turn, and the sample that has the held values."""
        more = list[int]()
        for name in self._behind:
            size = self._second[0].write(sample[name])
            more += self._bytes, size
            self._bytes += size
        self._file.write(self._locations.pack(*locations, *more))
        for name in self._held:
            self._file.write(sample[name])

    def finish(self, count: int) -> None:
        """Rewrite the header for `count` rows, and put the second array behind them."""
        for file in self._second:
            self._file.write(npy.header_of(np.dtype(np.uint8), (self._bytes,)))
            file.seek(0)
            shutil.copyfileobj(file, self._file)
        self._file.seek(0)
        self._file.write(npy.header_of(self._dtype, (count,)))


def write(directory: Directory, shard: str, index: NDArray[Any], second: Buffer = b"") -> None:
    """Write the side index of a shard, or replace it, atomically.

    Args:
        directory: the shard's directory.
        shard: the shard's name.
        index: a structured array [samples] of `dtype_of` the shard's fields.
        second: the second array, if its fields have one.
    """
    parts: list[Buffer] = [npy.header_of(index.dtype, (len(index),)), index.tobytes()]
    if _behind(index.dtype):
        parts += npy.header_of(np.dtype(np.uint8), (len(second),)), second
    directory.write(path_of(Path(shard)).name, b"".join(parts))


@final
@dataclass(frozen=True, slots=True)
class SecondArray:
    """The second array of an index: from `begin` to `end` in its file."""

    file: files.RawFile
    begin: int
    end: int

    def read(self) -> bytes:
        """Return all its bytes."""
        size = self.end - self.begin
        return self.file.read_values(np.array([self.begin]), np.array([size]), np.zeros(1, np.int64), "_", size)[0]


def second_array(shard: Path, fields: Mapping[str, Field]) -> SecondArray | None:
    """Return the second array of a shard's side index; None if its fields have none.

    Raises ShardCorrupt if it is missing or damaged.
    """
    if not behind(fields):
        return None
    path = path_of(shard)
    tables = files.open_tables(path, 0)
    try:
        first = tables.npy(most_header=_LARGEST_HEADER)
        second = tables.npy(first.stop)
        if second.dtype != np.uint8:
            raise ValueError(f"the second array is of {second.dtype}")
    except ValueError as error:
        raise ShardCorrupt(f"{path}: the index is cut short or damaged: {error}") from error
    return SecondArray(files.RawFile(path), second.start, second.stop)


def load(shard: Path) -> FileTable:
    """Open the side index of the shard at `shard`, whatever its columns.

    Its rows stay in the file, which the processes of a node share: a dataset has any number of such indexes.

    Raises:
        ShardCorrupt: the index is missing, cut short or damaged.
    """
    path = path_of(shard)
    if not os.path.lexists(path):
        raise ShardCorrupt(f"{shard}: its index {path.name} is missing")
    file = files.open_tables(path, 0, keep_open=False)
    try:
        return FileTable(file, *file.npy(most_header=_LARGEST_HEADER)[:3])
    except ValueError as error:
        raise ShardCorrupt(f"{path}: the index is cut short or damaged: {error}") from error


def read(shard: Path, fields: Mapping[str, Field]) -> FileTable:
    """Open the side index of the shard at `shard`, and check its columns.

    Whether the shard holds all that the index names is checked where values are read: of a shard that was cut short,
    the samples before the cut are whole.

    Args:
        shard: the shard's path.
        fields: the shard's fields, with hidden columns; the index may have further columns.

    Raises:
        ShardCorrupt: the index is missing, damaged or of other fields.
    """
    index, path = load(shard), path_of(shard)
    expected = dtype_of(fields)
    for name in expected.names or ():
        if name not in (index.dtype.names or ()):
            raise ShardCorrupt(f"{path}: the index has no column {name!r}")
        if index.dtype[name] != expected[name]:
            raise ShardCorrupt(f"{path}, column {name!r}: expected {expected[name]}, got {index.dtype[name]}")
    return index
