"""Files of any format, with an index beside each that says where every value is: tars, and what others wrote.

The index is a structured array in `.npy` format: see `_tar_index_dtype`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ShardCorrupt
from ..format.fields import Field
from ..system import npy
from ..system.types import Column, Rows
from ._files import Handle, RawFile, as_rows, check_request
from .base import check_out
from .row_locator import RowLocator, rows_of


def index_path(path: Path) -> Path:
    """The side index of the file at `path`: `shard-000000.tar` has `shard-000000.idx.npy`."""
    # Of other names nothing is taken away: the files of a set may differ only behind a dot.
    return path.with_name(path.name.removesuffix(".tar") + ".idx.npy")


def visible(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The fields that are not hidden columns."""
    return {name: field for name, field in fields.items() if not name.startswith("_")}


def index_dtype(fields: Mapping[str, Field]) -> np.dtype[Any]:
    """One row of the side index: `<field>.offset` and `<field>.size` of each field, then scalars and hidden columns.

    Raises:
        ConfigError: two columns would have one name.
    """
    columns: list[tuple[Any, ...]] = []
    for name in visible(fields):
        columns += [(f"{name}.offset", "<i8"), (f"{name}.size", "<i8")]
    for name in packed(fields):
        columns.append((name, fields[name].row_dtype, fields[name].row_shape))
    names = [column[0] for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"an index would have two columns called {twice[0]!r}: rename a field")
    return np.dtype(columns)


def packed(fields: Mapping[str, Field]) -> list[str]:
    """The fields whose values stand in the side index itself."""
    return [name for name, field in fields.items() if name.startswith("_") or field.kind == "scalar"]


@dataclass(frozen=True, slots=True)
class _Open:
    file: RawFile
    index: NDArray[Any]


@final
class IndexedReader:
    """See `base.Reader`; a value is one `pread` at the place that the memory-mapped index gives."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(_open, path, fields)

    def __len__(self) -> int:
        return len(self._handle.get().index)

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None) -> Column:
        """One field of many samples: see `base.Reader`."""
        opened = self._handle.get()
        rows, kind = check_request(rows, field, out, self._fields, len(opened.index), self._path)
        if field.startswith("_") or kind.kind == "scalar":
            out = check_out(out, len(rows), kind)
            out[...] = opened.index[field][rows]
            return out
        offsets, sizes = opened.index[f"{field}.offset"][rows], opened.index[f"{field}.size"][rows]
        if not kind.fixed:
            return opened.file.read_values(offsets, sizes, rows, field)
        wrong = np.flatnonzero(sizes != kind.row_bytes)
        if len(wrong):
            row, size = rows[wrong[0]], sizes[wrong[0]]
            raise ShardCorrupt(f"{self._path}, field {field!r}, row {row}: expected {kind.row_bytes} bytes, got {size}")
        out = check_out(out, len(rows), kind)
        opened.file.read_rows(offsets, as_rows(out, kind), rows, field)
        return out

    def direct(self, field: str) -> RowLocator | None:
        """See `base.Reader`."""
        opened = self._handle.get()
        index, stride = opened.index, opened.index.dtype.itemsize
        if field in (index.dtype.names or ()):
            return rows_of(index[field])
        places = index[f"{field}.offset"].ctypes.data
        if index[f"{field}.size"].ctypes.data != places + 8:
            return None
        return RowLocator("places", stride, places, opened.file.fd, limit=opened.file.size, owner=opened)

    def close(self) -> None:
        """Lets go of files."""
        self._handle.close()


@final
class IndexedContainer:
    """Files that others wrote, adopted in place. There is no writer: `shardio index` makes the index."""

    name = "indexed"
    suffix = ""

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> NoReturn:
        """ConfigError: others write these files."""
        raise ConfigError("container 'indexed' is for files that others wrote: see shardio index; it is not written")

    def reader(self, path: Path, fields: Mapping[str, Field]) -> IndexedReader:
        """The file at `path` and its index; ShardCorrupt if either is missing, cut short or damaged."""
        return IndexedReader(Path(path), fields)

    def described(self, path: Path) -> None:
        """Nothing: others wrote it."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """The file and its index."""
        return path, index_path(path)


def _open(path: Path, fields: Mapping[str, Field]) -> _Open:
    file = RawFile(path)
    place = index_path(path)
    try:
        mapped = npy.guarded(lambda: np.lib.format.open_memmap(place, mode="r", max_header_size=1 << 20))
    except FileNotFoundError as error:
        raise ShardCorrupt(f"{path}: its index {place.name} is missing") from error
    except (ValueError, EOFError) as error:
        raise ShardCorrupt(f"{place}: the index is cut short or damaged: {error}") from error
    index = np.asarray(mapped)
    expected = index_dtype(fields)
    for name in expected.names or ():
        if index.ndim != 1 or name not in (index.dtype.names or ()):
            raise ShardCorrupt(f"{place}: the index has no column {name!r}")
        if index.dtype[name] != expected[name]:
            raise ShardCorrupt(f"{place}, column {name!r}: expected {expected[name]}, got {index.dtype[name]}")
    for name in visible(fields) if len(index) else ():
        end = int(index[f"{name}.offset"][-1]) + int(index[f"{name}.size"][-1])
        if end > file.size:
            raise ShardCorrupt(f"{path}, field {name!r}, row {len(index) - 1}: ends at byte {end} of {file.size}")
    return _Open(file, index)
