"""The `hdf5` container: standard HDF5 files, read at their datasets' places in the file without the library's lock.

A fixed field is one dataset `[n, *shape]`. Any other field is a group of `data` (uint8, all bytes end to end) and
`offsets` (int64, n+1). Files that others wrote may be chunked, filtered, big-endian or anything that h5py reads.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..system.types import Column, Rows
from ._files import Handle, RawFile, as_rows, check_request
from ._hdf5_foreign import found, index_names, index_path
from ._hdf5_library import LibraryFile, library_rows, library_values
from ._hdf5_writer import FIELDS, Hdf5Writer
from ._writing import check_options, read_description
from .base import check_out
from .hdf5_chunks import chunked_rows
from .row_locator import MAPPED_ROW, RowLocator, rows_of


class _Rows(Protocol):
    """A fixed field: fills `out` [n, *shape] with the checked rows."""

    def read(self, rows: Rows, out: NDArray[Any]) -> None: ...


class _Values(Protocol):
    """Any other field: the bytes of each of the checked rows."""

    def read(self, rows: Rows) -> list[bytes]: ...


@final
class Hdf5Reader:
    """See `base.Reader`; h5py is asked where things are when the shard is opened, and not again.

    Args:
        path: the file.
        fields: its fields.
        names: what their datasets are called, of a file that others wrote; without it the index beside it says so, if
            there is one.
    """

    def __init__(self, path: Path, fields: Mapping[str, Field], names: Mapping[str, str] | None = None) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(partial(_open, names=names), path, fields)

    def __len__(self) -> int:
        return self._handle.get().count

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None) -> Column:
        """One field of many samples: see `base.Reader`."""
        opened = self._handle.get()
        rows, kind = check_request(rows, field, out, self._fields, opened.count, self._path)
        part: Any = opened.parts[field]
        if not kind.fixed:
            values: list[bytes] = part.read(rows)
            return values
        out = check_out(out, len(rows), kind)
        if out.size:
            part.read(rows, out)
        return out

    def direct(self, field: str) -> RowLocator | None:
        """See `base.Reader`: None for what is chunked, filtered or of another byte order."""
        return self._handle.get().direct.get(field)

    def close(self) -> None:
        """Lets go of files."""
        self._handle.close()


@final
class Hdf5Container:
    """HDF5 files; the writer takes `compression=None | "gzip" | "lzf" | "zstd"`, which applies to fixed arrays."""

    name = "hdf5"
    suffix = ".h5"

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> Hdf5Writer:
        """An HDF5 file to be written at `path`."""
        check_options(options, ("compression",), self.name)
        return Hdf5Writer(Path(path), fields, first, **options)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> Hdf5Reader:
        """The HDF5 file at `path`; ShardCorrupt if it is missing, cut short, damaged or lacks a field."""
        return Hdf5Reader(Path(path), fields)

    def described(self, path: Path) -> Mapping[str, Field] | None:
        """The attribute that the writer left."""
        try:
            with importlib.import_module("h5py").File(path, "r") as file:
                text = file.attrs.get(FIELDS)
        except (OSError, RuntimeError) as error:
            raise ShardCorrupt(f"{path}: cut short or damaged: {error}") from error
        return None if text is None else read_description(text, path)

    def files(self, path: Path) -> tuple[Path, ...]:
        """The file itself, and its index if others wrote it."""
        index = index_path(path)
        return (path, index) if index.exists() else (path,)


@dataclass(frozen=True, slots=True)
class _PlainRows:
    """A contiguous dataset: row i is at `base + i * row bytes`."""

    file: RawFile
    name: str
    field: Field
    base: int
    mapped: NDArray[np.uint8] | None
    swapped: bool

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        target = as_rows(out, self.field)
        if self.mapped is not None:
            # mode="clip" writes straight into `out`, where "raise" goes through a copy; the rows are checked already.
            np.take(self.mapped, rows, axis=0, out=target, mode="clip")
        else:
            self.file.read_rows(self.base + rows * self.field.row_bytes, target, rows, self.name)
        if self.swapped:
            out.byteswap(inplace=True)

    def direct(self) -> RowLocator | None:
        if self.swapped or not self.field.row_bytes:
            return None
        if self.mapped is not None:
            return rows_of(self.mapped)
        size, file = self.field.row_bytes, self.file
        whole = file.map_within_budget()
        if whole is None:
            return RowLocator("file", size, file=file.fd, base=self.base, limit=file.size, owner=file)
        seen = np.zeros((file.size - self.base) // size, np.uint8)
        address, owner = whole.ctypes.data + self.base, (file, whole, seen)
        return RowLocator("file", size, address, file.fd, self.base, file.size, seen.ctypes.data, owner=owner)


@dataclass(frozen=True, slots=True)
class _PlainValues:
    """A group of contiguous `data`, at `base`, and `offsets` (int64, n+1)."""

    file: RawFile
    name: str
    base: int
    size: int
    offsets: NDArray[np.int64]

    def read(self, rows: Rows) -> list[bytes]:
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        wrong = np.flatnonzero((starts < 0) | (ends < starts) | (ends > self.size))
        if len(wrong):
            i = wrong[0]
            found = f"offsets {starts[i]} to {ends[i]} are not within {self.size} bytes"
            raise ShardCorrupt(f"{self.file.path}, field {self.name!r}, row {rows[i]}: {found}")
        return self.file.read_values(self.base + starts, ends - starts, rows, self.name)

    def direct(self) -> RowLocator:
        address, owner = self.offsets.ctypes.data, (self.offsets, self.file)
        return RowLocator("ends", 8, address, self.file.fd, self.base, self.base + self.size, owner=owner)


@dataclass(frozen=True, slots=True)
class _Open:
    count: int
    parts: Mapping[str, _Rows | _Values]
    direct: Mapping[str, RowLocator]


def _open(path: Path, fields: Mapping[str, Field], names: Mapping[str, str] | None = None) -> _Open:
    parts: dict[str, _Rows | _Values] = {}
    counts: dict[str, int] = {}
    index = index_path(path)
    if names is None and index.exists():
        names = index_names(index)
        _add(index, {name: field for name, field in fields.items() if name not in names}, {}, parts, counts)
        fields = {name: field for name, field in fields.items() if name in names}
    _add(path, fields, names or {}, parts, counts)
    if len(set(counts.values())) > 1:
        raise ShardCorrupt(f"{path}: fields differ in their number of samples: {counts}")
    direct = {n: part.direct() for n, part in parts.items() if isinstance(part, (_PlainRows, _PlainValues))}
    return _Open(next(iter(counts.values()), 0), parts, {name: d for name, d in direct.items() if d is not None})


def _add(
    path: Path,
    fields: Mapping[str, Field],
    names: Mapping[str, str],
    parts: dict[str, "_Rows | _Values"],
    counts: dict[str, int],
) -> None:
    """Adds the readers of a file's fields and their numbers of samples."""
    file, library = RawFile(path), LibraryFile(path)
    try:
        with importlib.import_module("h5py").File(path, "r") as opened:
            mapped = file.map()
            for name, field in fields.items():
                own = names.get(name, name)
                part = found(opened, own, path)
                if part is None:
                    raise ShardCorrupt(f"{path}: has no field {own!r}")
                if field.fixed:
                    parts[name], counts[name] = _fixed(part, file, mapped, library, own, field), len(part)
                else:
                    parts[name], counts[name] = _variable(part, file, mapped, library, own)
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's word, such as too many open files; libhdf5's own complaints have no number
        raise ShardCorrupt(f"{path}: cut short or damaged: {error}") from error


def _fixed(
    dataset: Any, file: RawFile, mapped: NDArray[np.uint8], library: LibraryFile, name: str, field: Field
) -> _Rows:
    shape = getattr(dataset, "shape", None)
    if not shape or shape[1:] != field.row_shape:
        expected = ", ".join(map(str, ("n", *field.row_shape)))
        raise ShardCorrupt(f"{file.path}, field {name!r}: expected a dataset of shape ({expected}), got {shape}")
    if _is_raw(dataset, field):
        if dataset.chunks is not None:
            return chunked_rows(dataset, file, name, field) or library_rows(dataset, library, name, field)
        base = _place(dataset, file, name)
        if base is not None:
            small = 0 < field.row_bytes <= MAPPED_ROW
            end = base + len(dataset) * field.row_bytes
            view = mapped[base:end].reshape(-1, field.row_bytes) if small else None
            return _PlainRows(file, name, field, base, view, dataset.dtype.byteorder == ">")
    return library_rows(dataset, library, name, field)


def _variable(
    group: Any, file: RawFile, mapped: NDArray[np.uint8], library: LibraryFile, name: str
) -> tuple[_Values, int]:
    if hasattr(group, "shape"):
        return library_values(group, library, name), len(group)
    data, offsets = group["data"], group["offsets"]
    numbers = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 0
    if not numbers or data.ndim != 1 or data.dtype != np.uint8:
        raise ShardCorrupt(f"{file.path}, field {name!r}: expected data as uint8 [bytes] and offsets as int64 [n + 1]")
    base, start = _place(data, file, name), _place(offsets, file, name)
    if base is None or start is None or offsets.dtype != np.dtype("<i8"):
        return library_values(group, library, name), len(offsets) - 1
    view = mapped[start : start + 8 * len(offsets)].view("<i8")
    return _PlainValues(file, name, base, data.size, view), len(offsets) - 1


def _is_raw(dataset: Any, field: Field) -> bool:
    """Whether the bytes in the file are the field's, but for their order."""
    h5py = importlib.import_module("h5py")
    same = dataset.dtype.newbyteorder("<") == field.row_dtype
    return same and bool(dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True))


def _place(dataset: Any, file: RawFile, name: str) -> int | None:
    """Where a contiguous dataset's bytes begin; None if they are not all in this file, in one piece."""
    h5d = importlib.import_module("h5py").h5d
    properties = dataset.id.get_create_plist()
    if properties.get_layout() != h5d.CONTIGUOUS or properties.get_external_count():
        return None
    base = dataset.id.get_offset()
    size = dataset.size * dataset.id.get_type().get_size()
    if base is None:
        return None if size else 0
    if base + size > file.size:
        raise ShardCorrupt(f"{file.path}, field {name!r}: ends at byte {base + size} of {file.size}")
    return int(base)
