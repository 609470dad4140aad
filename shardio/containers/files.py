"""Opening and reading the files of datasets: by position, from many threads, without a lock.

Every reader of a container opens its files here, and nowhere else. Errors name the value.
"""

import contextlib
import errno
import importlib
import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.file_table import FileTable, TableFile, map_file, naming_loss
from ..format.limits import MAX_VALUE_BYTES
from ..native import rows as compiled
from ..system import allocation
from ..system.regular_files import FOLDER, check_regular, open_below, open_regular
from ..system.types import Column, Rows
from . import located_rows
from .extents import NO_BYTES, Blocks, Extent, FileSpans, Runs, of_blocks, of_runs
from .field_reader import ColumnRows
from .out_arrays import as_rows, check_blocks, check_out, check_value_bytes
from .requested import REQUESTED
from .row_locator import NOT_MAPPED, FileMap, RowLocator, within

T = TypeVar("T", bound=Sized)

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NOT_REGULAR = (errno.EISDIR, errno.EINVAL, errno.ENXIO)


def status(path: Path) -> os.stat_result:
    """Return the status of a file; ShardCorrupt unless there is a regular file."""
    with _named(path):
        return check_regular(path)


def open_raw(path: Path) -> int:
    """Open a file for `pread`; return its descriptor. ShardCorrupt unless there is a regular file."""
    with _named(path):
        return open_regular(path, os.O_RDONLY)


def open_hdf5(path: Path, file: BinaryIO | None = None) -> Any:
    """Open an h5py.File, which is read through an open `file` if that is given; OSError if libhdf5 refuses it."""
    status(path)
    return importlib.import_module("h5py").File(file or path, "r")


def open_tables(path: Path, whole: int | None = None, *, keep_open: bool = True) -> TableFile:
    """Open a file for the tables in it, see `TableFile`; ShardCorrupt unless there is a regular file."""
    return TableFile(open_raw(path), path, ShardCorrupt, whole, keep_open=keep_open)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_FILE:
            target = f"; it is a link to {os.path.realpath(path)}" if os.path.islink(path) else ""
            raise ShardCorrupt(f"{path}: there is no such file{target}") from error
        if error.errno in _NOT_REGULAR:
            raise ShardCorrupt(f"{path}: is not a regular file") from error
        raise


@final
class RawFile:
    """A file open for `pread`. Its descriptor closes with the last reference, so never during a read.

    Raises:
        ShardCorrupt: there is no such file.
    """

    __slots__ = ("__weakref__", "_memory", "_parts", "fd", "path", "size")
    error = ShardCorrupt

    def __init__(self, path: Path) -> None:
        self.fd = open_raw(path)
        weakref.finalize(self, os.close, self.fd)
        self.path = path
        self.size = os.fstat(self.fd).st_size
        self._parts: FileMap | None = None
        self._memory: NDArray[np.uint8] | None = None

    @property
    def address(self) -> int:
        """Where the whole file is mapped into memory, for guarded compiled code alone."""
        if self._memory is None:
            self._memory = self._map()
        return self._memory.ctypes.data

    def _map(self) -> NDArray[np.uint8]:
        try:
            return map_file(self.fd, self.size)
        except ValueError as error:
            raise ShardCorrupt(f"{self.path}: empty, or cut short while it was opened") from error

    def map_parts(self) -> FileMap:
        """Return the whole file in memory, for parts of it: small ones only, if its pages would be beyond the budget.

        That is a quarter of the machine's memory, as pages of large parts count as this process's memory. The file is
        mapped once; of two threads that do it, one's map is dropped.
        """
        if self._parts is None:
            self._parts = self._map_parts()
        return self._parts

    def _map_parts(self) -> FileMap:
        global _mapped
        if not self.size:
            return NOT_MAPPED
        mapped = self._map()
        if _mapped + self.size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4:
            return FileMap(mapped.ctypes.data, compiled.SMALL, 0, mapped)
        _mapped += self.size
        weakref.finalize(mapped, _forget_mapped, self.size)
        populated = np.zeros(self.size // compiled.GROUP + 1, np.uint8)
        return FileMap(mapped.ctypes.data, self.size, populated.ctypes.data, (mapped, populated))

    def read_values(
        self, offsets: NDArray[np.int64], sizes: NDArray[np.int64], rows: Rows, field: str, most: int
    ) -> list[bytes]:
        """Return the `sizes[i]` bytes at `offsets[i]` for each i; errors name `rows[i]` and `field`.

        Raises:
            ShardCorrupt: a value is not within the file.
            BadSample: a value has more than `most` bytes.
        """
        wrong = np.flatnonzero(~within(offsets, sizes, 0, self.size))
        if len(wrong):
            i = wrong[0]
            raise self._cut_short(field, rows[i], offsets[i], sizes[i])
        for i in np.flatnonzero(sizes > most)[:1].tolist():
            check_value_bytes(int(sizes[i]), most, f"{self.path}, field {field!r}, row {rows[i]}")
        lengths = sizes.tolist()
        values = list(map(os.pread, repeat(self.fd), lengths, offsets.tolist()))
        if list(map(len, values)) != lengths:
            # One call returns at most 2 GiB, and the file may have been cut since it was opened.
            for i, length in enumerate(lengths):
                if len(values[i]) < length:
                    whole = np.empty((1, length), np.uint8)
                    self.read_rows(offsets[i : i + 1], whole, rows[i : i + 1], field)
                    values[i] = whole.tobytes()
        return values

    def read_rows(self, offsets: NDArray[np.int64], out: NDArray[np.uint8], rows: Rows, field: str) -> None:
        """Fill `out` [n, row bytes] with the row at each of `offsets`; adjacent rows share one call.

        Each row of `out` is contiguous; where they do not follow each other, as in a stack, each takes a call.
        """
        count, row_bytes = out.shape
        if not out.size:
            return
        if not out.flags.c_contiguous:
            for i in range(count):
                self.read_rows(offsets[i : i + 1], out[i : i + 1], rows[i : i + 1], field)
            return
        for i in np.flatnonzero(~within(offsets, row_bytes, 0, self.size))[:1].tolist():
            raise self._cut_short(field, rows[i], offsets[i], row_bytes)
        REQUESTED.add(out.size)
        target = out.reshape(-1).data
        breaks = (np.flatnonzero(np.diff(offsets) != row_bytes) + 1).tolist()
        for start, stop in zip([0, *breaks], [*breaks, count], strict=True):
            done, end, offset = start * row_bytes, stop * row_bytes, int(offsets[start])
            while done < end:
                got = os.preadv(self.fd, [target[done:end]], offset)
                if not got:
                    i = done // row_bytes
                    raise self._cut_short(field, rows[i], offsets[i], row_bytes)
                done, offset = done + got, offset + got

    def read_runs(
        self,
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[np.uint8],
        rows: Rows,
        field: str,
    ) -> None:
        """Read `sizes[i]` bytes at `offsets[i]` into `out[places[i]:]`, uint8; errors are those of `read_rows`."""
        if native.library() is not None and within(offsets, sizes, 0, self.size).all():
            files, mapped = np.array([self.fd], np.int32), self.map_parts()
            maps, most, seen = np.array([[mapped.address], [mapped.most], [mapped.populated]], np.int64)
            which = np.zeros(len(offsets), np.int64)
            compiled.read_ahead(which, files, seen, offsets, sizes)
            with naming_loss(self):
                if compiled.read(which, files, maps, most, seen, offsets, sizes, places, out):
                    REQUESTED.add(int(sizes.sum()))
                    return
        for number, (place, size) in enumerate(zip(places.tolist(), sizes.tolist(), strict=True)):
            one = slice(number, number + 1)
            self.read_rows(offsets[one], out[place : place + size].reshape(1, -1), rows[one], field)

    def read_fixed(
        self,
        offsets: NDArray[np.int64],
        out: NDArray[Any],
        rows: Rows,
        name: str,
        field: Field,
        blocks: Blocks | None,
    ) -> None:
        """Fill `out` with rows of a fixed field, or blocks of them, which begin at `offsets`, int64 [n].

        For blocks `out` is C-contiguous.
        """
        if blocks is None:
            self.read_rows(offsets, as_rows(out, field), rows, name)
            return
        runs = blocks.runs(field)
        starts, target = (offsets[:, None] + runs.offsets).reshape(-1), out.reshape(-1).view(np.uint8)
        places, of = np.arange(0, len(target), runs.size), np.repeat(rows, runs.offsets.shape[1])
        self.read_runs(starts, np.full(len(starts), runs.size), places, target, of, name)

    def _cut_short(self, field: str, row: Any, offset: Any, size: Any) -> ShardCorrupt:
        now = os.fstat(self.fd).st_size
        return ShardCorrupt(
            f"{self.path}, field {field!r}, row {row}: {size} bytes at {offset} are not within the file's {now} bytes"
        )


@final
class RawFolder:
    """A folder, below which files are opened by their names. It closes with the last reference.

    No link is followed below `path`, which may be one.

    Args:
        path: the folder to begin at.
        below: the path of the folder from there on, `a/b`; "" for that folder itself.

    Raises:
        ShardCorrupt: there is no such folder.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, below: str = "") -> None:
        self.path = path / below
        try:
            root = os.open(path, FOLDER)
            try:
                self.fd = open_below(root, [part for part in below.split("/") if part], FOLDER)
            finally:
                os.close(root)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise ShardCorrupt(f"{self.path}: there is no such folder") from error
            raise
        weakref.finalize(self, os.close, self.fd)

    def opened(self, name: str) -> tuple[int, os.stat_result] | None:
        """Open a regular file, `a/b/c`, for reading; return its descriptor and state, None if there is no such file.

        Raises OSError for what is not a regular file, or is behind a link.
        """
        if (descriptor := self._descriptor_of(name)) is None:
            return None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", f"{self.path / name}")
        return descriptor, status

    def _descriptor_of(self, name: str) -> int | None:
        names = name.split("/")
        if native.library() is not None and _NO_NAMES.isdisjoint(names) and "\0" not in name:
            descriptor = compiled.open_below(self.fd, os.fsencode(name))
            if descriptor >= 0:
                return descriptor
        # Folder by folder, where this cannot be done in one call, or for the error.
        with contextlib.suppress(FileNotFoundError):
            return open_below(self.fd, names, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None


_NO_NAMES = frozenset(("", ".", ".."))


_mapped = 0  # bytes, within the budget of `map_parts`; approximate where threads open files at once


def _forget_mapped(size: int) -> None:
    global _mapped
    _mapped -= size


class BaseReader(ABC, Generic[T]):
    """Reads one shard; the base of all readers.

    Any number of threads may call `read` at once. A reader survives fork and pickling: it opens its shard again.

    Args:
        path: the shard.
        fields: its fields, with hidden columns.
    """

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._closed = False
        self._opened: T | None = self._open()

    @abstractmethod
    def _open(self) -> T:
        """Open the shard."""

    def spans(self, rows: Rows, field: str, extent: Extent | None = None) -> FileSpans | None:
        """Return the bytes of the shard's own file that reading a field of some rows, or an extent of each, takes.

        Returns:
            Their offsets and sizes, int64 [m] each, in any order; None if reading may take any bytes of the file.
        """
        # Only native lookups know the parts of the file.
        locator, kind = self.locator(field), self._fields[field]
        if locator is None or native.library() is None:
            return None
        found = located_rows.file_spans(locator, rows, kind.row_bytes if kind.fixed else 0)
        if found is None:
            return NO_BYTES  # reading says what is wrong
        if isinstance(extent, Runs):
            return of_runs(found, kind.entry_bytes, extent)
        if isinstance(extent, Blocks):
            there = found[1] == kind.row_bytes
            return of_blocks(found[0][there], kind.row_shape, kind.row_dtype.itemsize, extent[there])
        return found

    def tables(self, rows: Rows, field: str, extent: Extent | None = None) -> FileSpans:
        """Return the bytes of the file that `spans` and reading both read first: tables of where the rest is.

        Returns their offsets and sizes, as `spans` does.
        """
        return NO_BYTES

    @abstractmethod
    def locator(self, field: str) -> RowLocator | None:
        """Return a locator of the field's rows, to read rows of many shards in one call; None if only `read` can."""

    def _shard(self) -> T:
        # A local variable, so that a `close` in another thread cannot end it during a read.
        opened = self._opened
        if self._closed:
            raise ValueError(f"{self._path}: the reader is closed")
        if opened is None:
            opened = self._opened = self._open()
        return opened

    def __len__(self) -> int:
        """The number of samples in the shard."""
        return len(self._shard())

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        """Read one field of many samples.

        Args:
            rows: the samples' numbers in the shard, int64 [n], in any order, repeats allowed.
            field: a field or a hidden column.
            out: for a fixed field, the array to fill: C-contiguous `[n, *shape]` of the field's dtype.
            most: the most bytes of a value of any other field, and of what is decompressed for a value.

        Returns:
            For a fixed field `out`, or an array like it; for any other field a list with the bytes of each sample. The
            samples are in the order of `rows`.

        Raises:
            IndexError: a row is outside the shard.
            KeyError: there is no such field.
            BadSample: a value claims more than `most` bytes; no memory is taken for it.
            ShardCorrupt: the file is cut short or damaged.
        """
        shard = self._shard()
        rows, kind = self._checked(shard, rows, field)
        if kind.fixed:
            out = check_out(out, len(rows), kind)
            if out.size:
                self._read(shard, rows, field, out, most, None)
            return out
        if out is not None:
            told = f"out is only for fixed fields; the values of {field!r} ({kind.kind}) differ in size"
            raise ValueError(f"{self._path}: {told}")
        return self._read_values(shard, rows, field, most)

    def read_blocks(
        self, rows: Rows, field: str, blocks: Blocks, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES
    ) -> NDArray[Any]:
        """Read a block of each of many samples' values of a fixed field: what `read` returns, cut.

        Args:
            rows, field, most: as those of `read`.
            blocks: the blocks, one for each of `rows`.
            out: the array to fill: C-contiguous `[n, *blocks.shape(row shape)]` of the field's dtype.

        Returns `out`, or an array like it. Raises what `read` raises, and ValueError for blocks that are not in rows.
        """
        shard = self._shard()
        rows, kind = self._checked(shard, rows, field)
        if not kind.fixed:
            raise ValueError(f"{self._path}: the values of {field!r} ({kind.kind}) differ in size: no blocks of them")
        out = check_blocks(blocks, out, len(rows), kind)
        if out.size:
            self._read(shard, rows, field, out, most, blocks)
        return out

    @abstractmethod
    def _read(self, shard: T, rows: Rows, field: str, out: NDArray[Any], most: int, blocks: Blocks | None) -> None:
        """Fill `out` with rows of a fixed field, or with a block of each, as `read` and `read_blocks` do."""

    @abstractmethod
    def _read_values(self, shard: T, rows: Rows, field: str, most: int) -> list[bytes]:
        """Return the bytes of each row of any other field, as `read` does."""

    def _checked(self, shard: T, rows: Rows, name: str) -> tuple[Rows, Field]:
        """Return rows as an int64 array, and the field; raise the errors of `read` for what isn't there."""
        if name not in self._fields:
            raise KeyError(f"{self._path}: no field {name!r}; there are {', '.join(self._fields)}")
        rows, count = np.ascontiguousarray(rows, np.int64), len(shard)
        if len(outside := rows[(rows < 0) | (rows >= count)]):
            raise IndexError(f"{self._path}: row must be in [0, {count}), got {outside[0]}")
        return rows, self._fields[name]

    def close(self) -> None:
        """Drop the open shard; a read in another thread still finishes. You may call it twice."""
        self._closed, self._opened = True, None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_closed": False, "_opened": None}


class SpanShard(ABC):
    """An open shard whose values are in one file, but for those of columns that are tables."""

    file: RawFile

    @abstractmethod
    def __len__(self) -> int: ...


S = TypeVar("S", bound=SpanShard)


class SpanReader(BaseReader[S]):
    """A base of readers that know the span of each value in a file."""

    @abstractmethod
    def _column(self, shard: S, field: str) -> FileTable | None:
        """Return the table that is a column; None if its values are at spans."""

    @abstractmethod
    def _spans(self, shard: S, rows: Rows, field: str) -> FileSpans:
        """Return the offset and the size of each value, int64 [n] each."""

    def _read(self, shard: S, rows: Rows, field: str, out: NDArray[Any], most: int, blocks: Blocks | None) -> None:
        if (column := self._column(shard, field)) is not None:
            ColumnRows(column).read(rows, out, most, blocks)
            return
        kind, (offsets, sizes) = self._fields[field], self._spans(shard, rows, field)
        there = (sizes != 0) | (not kind.optional)  # what a sample lacks is no bytes, and reads as zeros
        for i in np.flatnonzero((sizes != kind.row_bytes) & there)[:1].tolist():
            place = f"{self._path}, field {field!r}, row {rows[i]}"
            raise ShardCorrupt(f"{place}: expected {kind.row_bytes} bytes, got {sizes[i]}")
        if there.all():
            shard.file.read_fixed(offsets, out, rows, field, kind, blocks)
            return
        out[...], part = 0, allocation.empty((int(there.sum()), *out.shape[1:]), out.dtype)
        own = None if blocks is None else blocks[there]
        shard.file.read_fixed(offsets[there], part, rows[there], field, kind, own)
        out[there] = part

    def _read_values(self, shard: S, rows: Rows, field: str, most: int) -> list[bytes]:
        return self._file(shard, field).read_values(*self._spans(shard, rows, field), rows, field, most)

    def _file(self, shard: S, field: str) -> RawFile:
        """Return the file that has the values of a field that differ in size."""
        return shard.file
