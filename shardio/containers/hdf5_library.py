"""Access to HDF5 files through h5py: names within a file, and values that only libhdf5 can read."""

import contextlib
import importlib
import os
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependency, ShardCorrupt, ShardioError
from ..format.fields import Field
from ..system import helper_process, portable
from ..system.types import Rows
from . import files
from .chunked_rows import block_parts
from .extents import Blocks
from .field_reader import ChunkSpan, FieldReader
from .out_arrays import check_value_bytes

SERVICE = "shardio.containers.hdf5_service"
"""The module that the helper process runs."""

DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
"""The exceptions that h5py raises for unreadable data; MemoryError where it takes damage for a length."""

_MOST_LINKS = 16
_SMALLEST_SHARE = 16  # of the limit, for the values of a file in which many have failed


class Unreadable(Exception):
    """libhdf5 did not come to an end with a value.

    Attributes:
        number: the number of the value among those that were asked for.
    """

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(reason)
        self.number = number


@final
class LibraryFile:
    """A file whose values libhdf5 parses, in the helper process: damage can hold it for minutes, and then it is killed.

    A value that took too long or crashed is not tried again in this process, and halves the time for the next ones of
    its file. So one damaged sample costs little more than the limit, and a file full of them about twice as much.

    Args:
        path: the file.
        limit: seconds for each value; None for the limit of the thread that reads.

    Raises:
        ShardCorrupt: there is no such file.
    """

    def __init__(self, path: Path, limit: float | None = None) -> None:
        self.path = path
        status = files.status(path)
        # The helper process has a working directory and descriptors of its own.
        self._absolute = portable.path_for_others(os.path.abspath(path))
        self._limit = limit
        self._inode = status.st_dev, status.st_ino
        self._state = *self._inode, status.st_size, status.st_mtime_ns

    def call(self, function: str, keys: Sequence[Hashable], **arguments: Any) -> list[bytearray]:
        """Call a function of `hdf5_service` in the helper process; return its values, one for each of `keys`.

        Args:
            function: the function, as `module:function`; its first arguments are the file's path and inode.
            keys: names of the values, which identify those that took too long or crashed before.
            arguments: its other arguments.

        Raises:
            Unreadable: libhdf5 took too long or crashed.
            ShardioError, OSError, RuntimeError: raised by the function.
        """
        failed = _FAILED.get(self._state, {})
        for number, key in enumerate(keys):
            if key in failed:
                raise Unreadable(failed[key], number)
        limit = helper_process.current_limit() if self._limit is None else self._limit
        limit /= min(2 ** len(failed), _SMALLEST_SHARE)
        arguments |= {"path": self._absolute, "inode": self._inode}
        begun = time.monotonic()
        try:
            return helper_process.call(function, arguments, limit)
        except (ShardioError, OSError, RuntimeError) as error:
            # Damage may also end in an error, after nearly as long as it may take.
            if time.monotonic() - begun > limit / 4:
                _FAILED.setdefault(self._state, {})[keys[0] if len(keys) == 1 else len(failed)] = str(error)
            raise
        except helper_process.CallFailed as error:
            number = min(error.yielded, len(keys) - 1)
            crashed = isinstance(error, helper_process.HelperDied)
            reason = f"libhdf5 crashed: {error}" if crashed else f"timed out: libhdf5 took longer than {limit:.3g} s"
            _FAILED.setdefault(self._state, {})[keys[number]] = reason
            raise Unreadable(reason, number) from error


_FAILED: dict[tuple[int, ...], dict[Hashable, str]] = {}
"""By file, the values that took too long or crashed, and what to say of them."""


@dataclass(frozen=True, slots=True)
class LibraryRows(FieldReader):
    """A dataset of fixed rows, which h5py decodes and converts to the field's dtype. Each call reads a block once."""

    library: LibraryFile
    name: str
    field: Field
    block: int
    count: int

    @property
    def chunk_span(self) -> ChunkSpan | None:
        return ChunkSpan(self.block, self.block * self.field.row_bytes, False) if self.block > 1 else None

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        """Fill `out` with the rows, or with blocks of them, each of which h5py reads alone.

        Raises:
            ShardCorrupt: h5py cannot read them.
            BadSample: what libhdf5 decompresses for one row has more than `most` bytes.
        """
        if self.block > 1:
            place = f"{self.library.path}, field {self.name!r}, row {rows[0]}, its chunk"
            check_value_bytes(self.block * self.field.row_bytes, most, place)
        order, dtype = np.argsort(rows, kind="stable"), self.field.row_dtype
        if blocks is None:
            parts, windows = block_parts(rows[order], self.block), None
        else:
            begins = blocks.along(self.field.row_shape)[order]
            parts = [slice(place, place + 1) for place in range(len(rows))]
            windows = np.stack([begins, begins + out.shape[1:]], axis=2).tolist()
        groups = [rows[order[part]].tolist() for part in parts]
        keys = [(self.name, group[0]) for group in groups]
        read = _read(self.library, "rows", self.name, keys, groups=groups, dtype=dtype.str, windows=windows)
        for part, values in zip(parts, read, strict=True):
            out[order[part]] = np.frombuffer(values, dtype).reshape(-1, *out.shape[1:])


@dataclass(frozen=True, slots=True)
class LibraryValues(FieldReader):
    """Values that differ in size: a dataset of strings or of variable-length uint8, or a group of data and offsets."""

    library: LibraryFile
    name: str
    count: int

    def read_values(self, rows: Rows, most: int) -> list[bytes]:
        """Return the bytes of each row.

        Raises:
            ShardCorrupt: h5py cannot read them.
            BadSample: a value, or a chunk that holds parts of it, has more than `most` bytes.
        """
        wanted = rows.tolist()
        keys = [(self.name, row) for row in wanted]
        return list(map(bytes, _read(self.library, "values", self.name, keys, rows=wanted, most=most)))


def _read(
    library: LibraryFile, function: str, name: str, keys: Sequence[tuple[str, int]], **arguments: Any
) -> list[bytearray]:
    """Call a function of the service; ShardCorrupt, with the row, for a value that h5py cannot read."""
    try:
        return library.call(f"{SERVICE}:{function}", keys, name=name, **arguments)
    except Unreadable as error:
        raise ShardCorrupt(f"{library.path}, field {name!r}, row {keys[error.number][1]}: {error}") from error


def library_rows(dataset: Any, library: LibraryFile, name: str, field: Field) -> LibraryRows:
    """Return a reader of a fixed field.

    Raises:
        ShardCorrupt: the dataset's dtype does not fit the field.
        MissingDependency: a filter of the dataset is not installed.
    """
    if dataset.dtype.kind not in "biufc" or not np.can_cast(dataset.dtype, field.row_dtype, "same_kind"):
        raise ShardCorrupt(f"{library.path}, field {name!r}: expected {field.dtype}, got {dataset.dtype}")
    check_filters(dataset, library.path, name)
    return LibraryRows(library, name, field, dataset.chunks[0] if dataset.chunks else 1, len(dataset))


def library_values(parts: Sequence[Any], library: LibraryFile, name: str) -> LibraryValues:
    """Return a reader of values that differ in size.

    Args:
        parts: an h5py dataset of values, or the `data` and `offsets` of a group.
        library: the file.
        name: the path in the file of the dataset or group.

    Raises:
        ShardCorrupt: it does not hold bytes or text.
        MissingDependency: one of its filters is not installed.
    """
    if len(parts) == 1:
        h5py, (stored,) = importlib.import_module("h5py"), parts
        strings = h5py.check_string_dtype(stored.dtype) is not None or h5py.check_vlen_dtype(stored.dtype) == np.uint8
        if stored.ndim != 1 or not (strings or stored.dtype.kind == "V"):
            raise ShardCorrupt(
                f"{library.path}, field {name!r}: expected bytes or text [n], got {stored.dtype} {stored.shape}"
            )
    for part in parts:
        check_filters(part, library.path, name)
    return LibraryValues(library, name, len(parts[-1]) - (len(parts) > 1))


def resolve(file: Any, name: str, path: Path) -> Any:
    """Return the dataset or group at `name` in an open HDF5 file; None if there is none.

    A shard may come from anywhere, so it must not choose other files to read. libhdf5 follows links as soon as it is
    asked for a name, even whether it exists. So this takes one step at a time: it follows hard links, replaces
    soft links by what they name, and refuses all others. It also refuses datasets whose bytes are not in the file.

    Raises:
        ShardCorrupt: the name leads to another file, or through too many links.
    """
    h5py = importlib.import_module("h5py")
    place = f"{path}, field {name!r}"
    for _ in range(_MOST_LINKS):
        node, parts = file["/"], [part for part in name.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            links, raw = node.id.links if isinstance(node, h5py.Group) else None, os.fsencode(part)
            if links is None or not links.exists(raw):
                return None
            kind = links.get_info(raw).type
            if kind == h5py.h5l.TYPE_SOFT:
                target = os.fsdecode(links.get_val(raw))
                before = [] if target.startswith("/") else parts[:number]
                name = "/".join([*before, target, *parts[number + 1 :]])
                break
            if kind != h5py.h5l.TYPE_HARD:
                other = f", {os.fsdecode(links.get_val(raw)[0])!r}," if kind == h5py.h5l.TYPE_EXTERNAL else ""
                raise ShardCorrupt(f"{place}: a link to another file{other} is not followed")
            node = node[part]
        else:
            # Before anything asks for its shape, for which libhdf5 may open the sources of a virtual dataset.
            if isinstance(node, h5py.Dataset) and node.external:
                raise ShardCorrupt(f"{place}: its data are in other files, which are not read")
            if isinstance(node, h5py.Dataset) and node.is_virtual:
                raise ShardCorrupt(f"{place}: a virtual dataset, whose data are elsewhere, is not read")
            return node
    raise ShardCorrupt(f"{place}: more than {_MOST_LINKS} links in a row")


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


def check_filters(dataset: Any, path: Path, name: str) -> None:
    """Raise MissingDependency if a dataset needs a filter that is not installed."""
    if missing := missing_filter(dataset):
        raise MissingDependency(f"{path}, field {name!r} needs {missing}: pip install hdf5plugin")
