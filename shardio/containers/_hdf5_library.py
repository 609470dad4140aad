"""Access to HDF5 files through h5py, under its global lock: links, and what only libhdf5 can read."""

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
from . import store

_MOST_LINKS = 16


@final
class LibraryFile:
    """A file that h5py opens on first use, once per process: a forked child does not use what it inherits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: dict[int, Any] = {}

    def get(self, name: str) -> Any:
        """Return the dataset or group called `name`."""
        process = os.getpid()
        if process not in self._opened:
            # Two threads may both open it; one result stays, and h5py's own lock orders everything else.
            self._opened.setdefault(process, store.open_hdf5(self.path))
        return self._opened[process][name]


@dataclass(frozen=True, slots=True)
class LibraryRows:
    """A dataset of fixed rows, which h5py decodes and converts to the field's dtype. Each call reads a block once."""

    library: LibraryFile
    name: str
    block: int

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        """Fill `out` [n, *shape] with the rows; ShardCorrupt if h5py cannot read them."""
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
        """Return the bytes of each row; ShardCorrupt if h5py cannot read them."""
        return [self._value(row) for row in rows.tolist()]

    def _value(self, row: int) -> bytes:
        try:
            stored = self.library.get(self.name)
            if not hasattr(stored, "shape"):
                start, end = (int(offset) for offset in stored["offsets"][row : row + 2])
                if not 0 <= start <= end <= (size := len(stored["data"])):
                    raise ShardCorrupt(
                        f"{self.library.path}, field {self.name!r}, row {row}: "
                        f"offsets {start} to {end} are not within {size} bytes"
                    )
                return bytes(stored["data"][start:end].tobytes())
            value = stored[row]
        except (OSError, RuntimeError) as error:
            raise _unreadable(self.library, self.name, row, error) from error
        return value.encode() if isinstance(value, str) else bytes(value)


def library_rows(dataset: Any, library: LibraryFile, name: str, field: Field) -> LibraryRows:
    """Return a reader of a fixed field.

    Raises:
        ShardCorrupt: the dataset's dtype does not fit the field.
        MissingDependency: a filter of the dataset is not installed.
    """
    if dataset.dtype.kind not in "biufc" or not np.can_cast(dataset.dtype, field.row_dtype, "same_kind"):
        raise ShardCorrupt(f"{library.path}, field {name!r}: expected {field.dtype}, got {dataset.dtype}")
    _check_filters(dataset, library, name)
    return LibraryRows(library, name, dataset.chunks[0] if dataset.chunks else 1)


def library_values(stored: Any, library: LibraryFile, name: str) -> LibraryValues:
    """Return a reader of values that differ in size.

    Args:
        stored: an h5py dataset, or a group of `data` and `offsets`.
        library: its file.
        name: its path in the file.

    Raises:
        ShardCorrupt: it does not hold bytes or text.
        MissingDependency: one of its filters is not installed.
    """
    if not hasattr(stored, "shape"):
        _check_filters(stored["data"], library, name)
        _check_filters(stored["offsets"], library, name)
        return LibraryValues(library, name)
    h5py = importlib.import_module("h5py")
    strings = h5py.check_string_dtype(stored.dtype) is not None or h5py.check_vlen_dtype(stored.dtype) == np.uint8
    if stored.ndim != 1 or not (strings or stored.dtype.kind == "V"):
        raise ShardCorrupt(
            f"{library.path}, field {name!r}: expected bytes or text [n], got {stored.dtype} {stored.shape}"
        )
    _check_filters(stored, library, name)
    return LibraryValues(library, name)


def resolve(group: Any, name: str, path: Path) -> Any:
    """Return the dataset or group called `name`, a path within an HDF5 file; None if there is none.

    A shard may come from anywhere, so it must not choose other files to read: links out of it are refused.

    Raises:
        ShardCorrupt: the name leads to another file, or through too many links.
    """
    h5py = importlib.import_module("h5py")
    for _ in range(_MOST_LINKS):
        node, rest = group, [part for part in name.split("/") if part]
        while rest:
            link = node.get(rest[0], getlink=True) if hasattr(node, "keys") and rest[0] in node else None
            if isinstance(link, h5py.ExternalLink):
                raise ShardCorrupt(
                    f"{path}, field {name!r}: a link to another file, {link.filename!r}, is not followed"
                )
            if isinstance(link, h5py.SoftLink):
                target = link.path if link.path.startswith("/") else f"{node.name}/{link.path}"
                name = "/".join([target, *rest[1:]])
                break
            if link is None:
                return None
            node = node[rest.pop(0)]
        else:
            if hasattr(node, "shape") and (node.is_virtual or node.external):
                raise ShardCorrupt(f"{path}, field {name!r}: its data are in other files, which are not read")
            return node
    raise ShardCorrupt(f"{path}, field {name!r}: more than {_MOST_LINKS} links in a row")


def block_parts(ordered: Rows, block: int) -> list[slice]:
    """Return the parts of ascending rows that are in one block of `block` rows each."""
    breaks = (np.flatnonzero(np.diff(ordered // block)) + 1).tolist()
    return [slice(start, stop) for start, stop in zip([0, *breaks], [*breaks, len(ordered)], strict=True)]


def missing_filter(dataset: Any) -> str | None:
    """Return a filter that a dataset needs and that neither h5py nor hdf5plugin has; None if all are available."""
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
    if missing := missing_filter(dataset):
        raise MissingDependency(f"{library.path}, field {name!r} needs {missing}: pip install hdf5plugin")


def _unreadable(library: LibraryFile, name: str, row: int, error: Exception) -> ShardCorrupt:
    return ShardCorrupt(f"{library.path}, field {name!r}, row {row}: damaged, h5py says: {error}")
