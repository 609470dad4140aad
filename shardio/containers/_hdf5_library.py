"""What only libhdf5 can read, read by h5py under its global lock: other filters, dtypes and layouts."""

import contextlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependency, ShardCorrupt
from ..format.fields import Field
from ..system.types import Rows


@final
class LibraryFile:
    """A file that h5py opens on first use, once in each process: what a forked child inherits it does not use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: dict[int, Any] = {}

    def get(self, name: str) -> Any:
        """The dataset or group called `name`."""
        process = os.getpid()
        if process not in self._opened:
            # Two threads may both open it; one result stays, and h5py's own lock orders all else.
            self._opened.setdefault(process, importlib.import_module("h5py").File(self.path, "r"))
        return self._opened[process][name]


@dataclass(frozen=True, slots=True)
class LibraryRows:
    """A dataset of fixed rows; h5py decodes, and converts to the field's dtype. Each block is read once per call."""

    library: LibraryFile
    name: str
    block: int

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        """Fills `out` [n, *shape] with the rows; ShardCorrupt if h5py cannot read them."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for part in block_parts(ordered, self.block):
            low, high = int(ordered[part.start]), int(ordered[part.stop - 1])
            try:
                values = self.library.get(self.name)[low : high + 1]
            except (OSError, RuntimeError) as error:
                raise _unreadable(self.library, self.name, low, error) from error
            out[order[part]] = values[ordered[part] - low]


@dataclass(frozen=True, slots=True)
class LibraryValues:
    """Values that differ in size: a dataset of strings or of variable-length uint8, or a group of data and offsets."""

    library: LibraryFile
    name: str

    def read(self, rows: Rows) -> list[bytes]:
        """The bytes of each row; ShardCorrupt if h5py cannot read them."""
        return [self._value(row) for row in rows.tolist()]

    def _value(self, row: int) -> bytes:
        try:
            found = self.library.get(self.name)
            if not hasattr(found, "shape"):
                start, end = (int(offset) for offset in found["offsets"][row : row + 2])
                if not 0 <= start <= end <= (size := len(found["data"])):
                    wrong = f"offsets {start} to {end} are not within {size} bytes"
                    raise ShardCorrupt(f"{self.library.path}, field {self.name!r}, row {row}: {wrong}")
                return bytes(found["data"][start:end].tobytes())
            value = found[row]
        except (OSError, RuntimeError) as error:
            raise _unreadable(self.library, self.name, row, error) from error
        return value.encode() if isinstance(value, str) else bytes(value)


def library_rows(dataset: Any, library: LibraryFile, name: str, field: Field) -> LibraryRows:
    """A reader of `dataset`; ShardCorrupt if its numbers do not fit the field, MissingDependency without its filter."""
    if dataset.dtype.kind not in "biufc" or not np.can_cast(dataset.dtype, field.row_dtype, "same_kind"):
        raise ShardCorrupt(f"{library.path}, field {name!r}: expected {field.dtype}, got {dataset.dtype}")
    _check_filters(dataset, library, name)
    return LibraryRows(library, name, dataset.chunks[0] if dataset.chunks else 1)


def library_values(found: Any, library: LibraryFile, name: str) -> LibraryValues:
    """A reader of a dataset, or a group of `data` and `offsets`; ShardCorrupt unless it holds bytes or text."""
    if not hasattr(found, "shape"):
        _check_filters(found["data"], library, name)
        _check_filters(found["offsets"], library, name)
        return LibraryValues(library, name)
    h5py = importlib.import_module("h5py")
    strings = h5py.check_string_dtype(found.dtype) is not None or h5py.check_vlen_dtype(found.dtype) == np.uint8
    if found.ndim != 1 or not (strings or found.dtype.kind == "V"):
        wrong = f"expected bytes or text [n], got {found.dtype} {found.shape}"
        raise ShardCorrupt(f"{library.path}, field {name!r}: {wrong}")
    _check_filters(found, library, name)
    return LibraryValues(library, name)


def block_parts(ordered: Rows, block: int) -> list[slice]:
    """The parts of ascending rows that lie in one block of `block` rows each."""
    breaks = (np.flatnonzero(np.diff(ordered // block)) + 1).tolist()
    return [slice(a, b) for a, b in zip([0, *breaks], [*breaks, len(ordered)], strict=True)]


def missing_filter(dataset: Any) -> str | None:
    """A filter that a dataset needs and that is not there, even with hdf5plugin, if that is; None if all are."""
    h5z = importlib.import_module("h5py").h5z
    properties = dataset.id.get_create_plist()
    for code, _, _, title in (properties.get_filter(i) for i in range(properties.get_nfilters())):
        if h5z.filter_avail(code):
            continue
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")
        if not h5z.filter_avail(code):
            return f"HDF5 filter {code} ({title.decode(errors='replace')})"
    return None


def _check_filters(dataset: Any, library: LibraryFile, name: str) -> None:
    if what := missing_filter(dataset):
        raise MissingDependency(f"{library.path}, field {name!r} needs {what}: pip install hdf5plugin")


def _unreadable(library: LibraryFile, name: str, row: int, error: Exception) -> ShardCorrupt:
    return ShardCorrupt(f"{library.path}, field {name!r}, row {row}: damaged, h5py says: {error}")
