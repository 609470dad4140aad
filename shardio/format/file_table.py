"""Tables in files: rows of one size, taken by their numbers, even if the file is cut short meanwhile.

Memory that maps a file ends the process (SIGBUS) once the file is shorter. So files of at most `READ_WHOLE` bytes are
read. Larger ones are mapped, so that the processes of a node share their pages, and only compiled code that catches the
fault reads the map (`native/guard.h`). Without the compiled part, each read is a `pread`.
"""

import io
import math
import mmap
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from .. import native
from ..errors import ShardioError
from ..native import rows as compiled
from ..system import npy
from ..system.regular_files import open_regular
from ..system.shared_memory import is_sharing

T = TypeVar("T")

READ_WHOLE = 16 << 20
_BLOCK = 1 << 20  # bytes that are read in one go
_NEAR = 1 << 16  # bytes; rows of the same ones are read together by pread


class OpenFile(Protocol):
    """An open file that tables are in.

    Attributes:
        path: its path, for errors.
        fd: its descriptor; -1 if it is only mapped.
        size: its bytes as it was opened.
        address: where the file is mapped, which only guarded compiled code reads.
        error: what a lost file raises.
    """

    @property
    def path(self) -> Path: ...
    @property
    def fd(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def error(self) -> type[ShardioError]: ...


def map_file(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Map a file into memory: uint8 [size], read-only. ValueError if it is empty or shorter."""
    return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)


@final
class naming_loss:  # faster than a generator
    """Raise the file's own error if it is lost while something reads from it, up to the offset `end`.

    What is beyond a file's end in its last page reads as zeros without a fault, so its size is compared afterwards.
    """

    __slots__ = ("_end", "_file")

    def __init__(self, file: OpenFile, end: int = 0) -> None:
        self._file, self._end = file, end

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None:
            # Nobody reads from where a descriptor stands, and its status would take ten times as long.
            if not self._end or self._file.fd < 0 or os.lseek(self._file.fd, 0, os.SEEK_END) >= self._end:
                return
        elif not isinstance(error, compiled.MappedFileLost | OSError):
            return
        raise self._file.error(f"{self._file.path}: cut short while it was open, or its storage failed") from error


@final
class FileTable:
    """Rows of one size in a file, [n] of a dtype, with the methods of a NumPy array that take them.

    Its rows are read when they are taken; `np.asarray` reads them all.

    Args:
        file: the file.
        dtype: the dtype of a row, which may be an array or a structure.
        count: the number of rows.
        start: the offset of the first row in the file.
        stride: bytes from one row to the next; None if rows are contiguous.

    Raises ValueError if the table is not within the file.
    """

    __slots__ = ("_count", "_file", "_start", "dtype", "stride")

    def __init__(
        self, file: OpenFile, dtype: np.dtype[Any], count: int, start: int = 0, stride: int | None = None
    ) -> None:
        self._file, self.dtype, self._count, self._start = file, dtype, count, start
        self.stride = dtype.itemsize if stride is None else stride
        if count and start + (count - 1) * self.stride + dtype.itemsize > file.size:
            raise ValueError(f"{count} rows of {self.stride} bytes at {start} are not within {file.size} bytes")

    def __len__(self) -> int:
        return self._count

    @property
    def shape(self) -> tuple[int, ...]:
        return self._count, *self.dtype.shape

    @property
    def address(self) -> int:
        """The address of the first row in memory, for compiled code that is guarded."""
        return self._file.address + self._start

    def __getitem__(self, which: Any) -> Any:
        """Return the column of a name as a table, rows that follow each other by a slice, or the row of a number."""
        if isinstance(which, str):
            dtype, offset = self.dtype.fields[which][:2]  # type: ignore[index]  # as with arrays
            return FileTable(self._file, dtype, self._count, self._start + offset, self.stride)
        if isinstance(which, slice):
            start, stop, _ = which.indices(self._count)
            return self._read(start, max(start, stop))
        number = operator.index(which)
        return self.take(np.array([number + self._count if number < 0 else number]))[0]

    def take(self, rows: NDArray[np.int64], axis: int = 0, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return rows, int64 of any shape, as a new array, or fill `out`; IndexError for one that there is not.

        Raises the file's error if the file has been cut short, or its storage fails.
        """
        out = np.empty(rows.shape, self.dtype) if out is None else out
        if not out.nbytes:
            return out
        if rows.min() < 0 or (last := int(rows.max())) >= self._count:
            raise IndexError(f"{self._file.path}: a row must be in [0, {self._count})")
        if not out.flags.c_contiguous:
            out[...] = self.take(rows)
            return out
        places = rows.reshape(-1) * self.stride
        with naming_loss(self._file, self._start + last * self.stride + self.dtype.itemsize):
            if native.library() is None and self._file.fd >= 0:
                self._pread(places + self._start, out)
            else:
                compiled.gather(places + self.address, self.dtype.itemsize, out)
        return out

    def searchsorted(self, values: Any) -> Any:
        """Return how many rows are below each of some values; the rows are ascending numbers."""
        wanted = np.asarray(values)
        low, high = np.zeros(wanted.shape, np.int64), np.full(wanted.shape, self._count)
        while (left := low < high).any():
            middle = (low + high) // 2
            below = left & (self.take(np.minimum(middle, self._count - 1)) < wanted)
            low, high = np.where(below, middle + 1, low), np.where(left & ~below, middle, high)
        return low

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        out, begin = np.empty(self._count, self.dtype), 0
        for part in parts(self):
            out[begin : begin + len(part)] = part
            begin += len(part)
        return out if dtype is None else out.astype(dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that starts here maps the file itself; anywhere else only the rows are of use.
        if is_sharing() and isinstance(self._file, TableFile) and self._file.is_at_path():
            return _reopened, (self._file.path, self._file.error, self._file.identity, *self._place)
        return np.asarray, (np.asarray(self),)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows from `start` to `stop` - 1."""
        if self.stride != self.dtype.itemsize:
            return self.take(np.arange(start, stop))
        out, place = np.empty(stop - start, self.dtype), start * self.stride
        with naming_loss(self._file):
            if self._file.fd >= 0:  # the map's pages would count as this process's memory
                _read_exactly(self._file.fd, _rows_of_bytes(out, 1)[0].data, self._start + place)
            else:
                compiled.gather(np.array([self.address + place]), out.nbytes, out)
        return out

    @property
    def _place(self) -> tuple[Any, ...]:
        return self.dtype, self._count, self._start, self.stride

    def _pread(self, offsets: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fill `out` with rows at these offsets of the file; MappedFileLost if it ends before."""
        size, target = self.dtype.itemsize, _rows_of_bytes(out, len(offsets))
        near = np.unique(offsets // _NEAR, return_inverse=True)[1]
        groups = int(near.max()) + 1
        if size > _NEAR // 4 or 2 * groups > len(offsets):
            for row, offset in zip(target, offsets.tolist(), strict=True):
                _read_exactly(self._file.fd, row.data, offset)
            return
        order = np.argsort(near, kind="stable")
        ends = np.cumsum(np.bincount(near)).tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            some = order[begin:end]
            first = int(offsets[some].min())
            block = np.empty(int(offsets[some].max()) + size - first, np.uint8)
            _read_exactly(self._file.fd, block.data, first)
            target[some] = np.lib.stride_tricks.sliding_window_view(block, size)[offsets[some] - first]


Table: TypeAlias = NDArray[Any] | FileTable
"""Rows in memory or in a file. Both have `len`, `take(rows, axis=0)`, `searchsorted`, `[number]`, `[start:stop]`, and
of structures `[name]`; `np.asarray` gives all rows."""


def parts(table: Table) -> Iterator[NDArray[Any]]:
    """Yield all rows of a table in consecutive parts of about a megabyte, as many as a multiple of 512."""
    row_bytes = table.dtype.itemsize * math.prod(table.shape[1:] if isinstance(table, np.ndarray) else ())
    step = max(512, _BLOCK // max(row_bytes, 1) // 512 * 512)
    for start in range(0, len(table), step):
        yield table[start : start + step]


def checksum_of(table: Table) -> str:
    """Return the XXH3-128 of a table's rows, as 32 hexadecimal digits."""
    state = xxhash.xxh3_128()
    for part in parts(table):
        state.update(np.ascontiguousarray(part).data)
    return state.hexdigest()


def read_by(function: Callable[[int], T], table: Table) -> T:
    """Return what guarded compiled code makes of the address of a table's rows; errors are those of `take`."""
    if isinstance(table, np.ndarray):
        return function(table.ctypes.data)
    with naming_loss(table._file, table._file.size):
        return function(table.address)


def _rows_of_bytes(array: NDArray[Any], count: int) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8).reshape(count, -1)


def _read_exactly(descriptor: int, target: memoryview, offset: int) -> None:
    done = 0
    while done < len(target):
        if not (got := os.preadv(descriptor, [target[done:]], offset + done)):
            raise compiled.MappedFileLost
        done += got


class NpyPlace(NamedTuple):
    """Where the rows of a `.npy` are in a file: `dtype` [rows], from `start` to `stop`."""

    dtype: np.dtype[Any]
    rows: int
    start: int
    stop: int


@final
class TableFile:
    """A file that is opened for the tables in it. It closes with the last of them.

    Args:
        descriptor: the open file, which is closed in the end.
        path: its path, for errors.
        error: what a lost file raises.
        whole: the most bytes of a file that is read at once; None for `READ_WHOLE`.
        keep_open: whether a mapped file stays open, so that a cut within its last page is noticed as well. Each open
            file takes a descriptor, and a process may have thousands.

    Raises `error` if the file is cut short meanwhile.
    """

    __slots__ = ("__weakref__", "_memory", "address", "content", "error", "fd", "identity", "owner", "path", "size")

    def __init__(
        self,
        descriptor: int,
        path: Path,
        error: type[ShardioError],
        whole: int | None = None,
        *,
        keep_open: bool = True,
    ) -> None:
        self.fd, self.path, self.error = descriptor, path, error
        closing = weakref.finalize(self, os.close, descriptor)
        status = os.fstat(descriptor)
        self.size, self.owner, self.identity = status.st_size, status.st_uid, _identity(status)
        self.address = 0
        self.content: NDArray[np.uint8] | None = None
        if self.size <= (READ_WHOLE if whole is None else whole):
            self.content = np.empty(self.size, np.uint8)
            with naming_loss(self):
                _read_exactly(descriptor, self.content.data, 0)
            self.content.flags.writeable = False
        else:
            try:
                self._memory = map_file(descriptor, self.size)
            except ValueError as lost:
                raise error(f"{path}: cut short while it was opened") from lost
            self.address = self._memory.ctypes.data
        if self.content is not None or not (keep_open or native.library() is None):
            closing()
            self.fd = -1

    def is_at_path(self) -> bool:
        """Return whether the path still leads to this file, as it was."""
        try:
            return _identity(os.stat(self.path)) == self.identity
        except OSError:
            return False

    def table(self, dtype: np.dtype[Any], count: int, start: int = 0) -> Table:
        """Return rows of a dtype, [count], which begin at an offset; ValueError if they are not within the file."""
        if self.content is None:
            return FileTable(self, dtype, count, start)
        return np.ndarray((count,), dtype, self.content.data, start)

    def bytes(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` on, up to `stop` or the file's end."""
        return b"".join(part.tobytes() for part in self.blocks(start, stop))

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes from `start` to `stop`, or to the file's end, in blocks."""
        stop = self.size if stop is None else min(stop, self.size)
        yield from parts(self.table(np.dtype(np.uint8), max(0, stop - start), start))

    def npy(self, begin: int = 0, most_header: int = 1 << 12) -> NpyPlace:
        """Return where the rows of the `.npy` are that begins at an offset, whose first axis is that of its rows.

        Raises ValueError for an array without rows, in Fortran's order or of Python objects, and for any damage.
        """
        header = npy.read_header(io.BytesIO(self.bytes(begin, begin + most_header)), most_header)
        if not header.shape or header.fortran or header.dtype.hasobject or begin + header.stop > self.size:
            raise ValueError(f"no rows that are within {self.size} bytes: {header.shape} of {header.dtype} at {begin}")
        count, *inner = header.shape
        row = np.dtype((header.dtype, tuple(inner))) if inner else header.dtype
        return NpyPlace(row, count, begin + header.start, begin + header.stop)


def _identity(status: os.stat_result) -> Sequence[int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reopened(path: Path, error: type[ShardioError], identity: Sequence[int], *place: Any) -> FileTable:
    file = TableFile(open_regular(path, os.O_RDONLY), path, error, -1)
    if file.identity != identity:
        raise error(f"{path}: was changed while it was open")
    return FileTable(file, *place)
