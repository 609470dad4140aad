"""Files read by position: many threads, no shared cursor, no lock, and a clear word when a file ends early."""

import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..system.types import Rows
from .base import check_rows

T = TypeVar("T")


@final
class RawFile:
    """One file open for `pread`. The descriptor closes when the last user lets go, so never under a running read.

    Raises:
        ShardCorrupt: there is no such file.
    """

    __slots__ = ("__weakref__", "fd", "path", "size")

    def __init__(self, path: Path) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ShardCorrupt(f"{path}: there is no such file") from error
        weakref.finalize(self, os.close, self.fd)
        self.path = path
        self.size = os.fstat(self.fd).st_size

    def map(self) -> NDArray[np.uint8]:
        """All bytes of the file, read-only, as uint8 [size]."""
        return np.frombuffer(mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ), np.uint8)

    def map_within_budget(self) -> NDArray[np.uint8] | None:
        """As `map`, for large rows, whose pages then count as this process's memory; None once that is a quarter of the
        machine's."""
        global _mapped
        budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        if _mapped + self.size > budget:
            return None
        whole = self.map()
        _mapped += self.size
        weakref.finalize(whole, _forget_mapped, self.size)
        return whole

    def read_values(self, offsets: NDArray[np.int64], sizes: NDArray[np.int64], rows: Rows, field: str) -> list[bytes]:
        """The `sizes[i]` bytes at `offsets[i]`, for each i; `rows` and `field` name the value in an error."""
        wrong = np.flatnonzero((sizes < 0) | (offsets < 0) | (offsets > self.size - sizes))
        if len(wrong):
            i = wrong[0]
            raise self._cut_short(field, rows[i], offsets[i], sizes[i])
        lengths = sizes.tolist()
        values = list(map(os.pread, repeat(self.fd), lengths, offsets.tolist()))
        if list(map(len, values)) != lengths:
            # One call gives at most 2 GiB, and a file may have been cut since it was opened.
            for i, length in enumerate(lengths):
                if len(values[i]) < length:
                    whole = np.empty((1, length), np.uint8)
                    self.read_rows(offsets[i : i + 1], whole, rows[i : i + 1], field)
                    values[i] = whole.tobytes()
        return values

    def read_rows(self, offsets: NDArray[np.int64], out: NDArray[np.uint8], rows: Rows, field: str) -> None:
        """Fills `out` [n, row bytes], C-contiguous, with the row at each of `offsets`; neighbours share one call."""
        count, row_bytes = out.shape
        if not out.size:
            return
        target = out.reshape(-1).data
        breaks = (np.flatnonzero(np.diff(offsets) != row_bytes) + 1).tolist()
        for start, stop in zip([0, *breaks], [*breaks, count], strict=True):
            done, end, offset = start * row_bytes, stop * row_bytes, int(offsets[start])
            if offset < 0:
                raise self._cut_short(field, rows[start], offset, row_bytes)
            while done < end:
                got = os.preadv(self.fd, [target[done:end]], offset)
                if not got:
                    i = done // row_bytes
                    raise self._cut_short(field, rows[i], offsets[i], row_bytes)
                done, offset = done + got, offset + got

    def _cut_short(self, field: str, row: Any, offset: Any, size: Any) -> ShardCorrupt:
        now = os.fstat(self.fd).st_size
        return ShardCorrupt(
            f"{self.path}, field {field!r}, row {row}: {size} bytes at {offset} are not within the file's {now} bytes"
        )


_mapped = 0  # bytes, by map_within_budget; approximate where threads open files at once


def _forget_mapped(size: int) -> None:
    global _mapped
    _mapped -= size


@final
class Handle(Generic[T]):
    """What a reader holds open: opened by `opener`, and opened again after unpickling, or after a fork if asked to.

    Args:
        opener: a module's function `(path, fields)`, so that it pickles by name.
        path: the shard.
        fields: its fields, hidden columns too.
        per_process: whether a forked child must open its own.
    """

    def __init__(
        self,
        opener: Callable[[Path, Mapping[str, Field]], T],
        path: Path,
        fields: Mapping[str, Field],
        *,
        per_process: bool = False,
    ) -> None:
        self._how = (opener, path, dict(fields), per_process)
        self._closed = False
        self._opened: tuple[int, T] | None = (os.getpid(), opener(path, fields))

    def get(self) -> T:
        """The open thing; ValueError after `close`."""
        # A local name, so that a `close` in another thread can't take it away under a read.
        opened = self._opened
        opener, path, fields, per_process = self._how
        if self._closed:
            raise ValueError(f"{path}: the reader is closed")
        if opened is None or (per_process and opened[0] != os.getpid()):
            opened = self._opened = (os.getpid(), opener(path, fields))
        return opened[1]

    def close(self) -> None:
        """Lets go; a read that is under way in another thread still finishes."""
        self._closed, self._opened = True, None

    def __getstate__(self) -> tuple[Any, ...]:
        return self._how

    def __setstate__(self, how: tuple[Any, ...]) -> None:
        self._how, self._closed, self._opened = how, False, None


def check_request(
    rows: Rows, name: str, out: NDArray[Any] | None, fields: Mapping[str, Field], count: int, path: Path
) -> tuple[Rows, Field]:
    """The rows as an int64 array and the field, both checked: see `Reader.read` for what is raised."""
    if name not in fields:
        raise KeyError(f"{path}: no field {name!r}; there are {', '.join(fields)}")
    field = fields[name]
    if out is not None and not field.fixed:
        raise ValueError(f"{path}: out is for fixed fields, and {name!r} ({field.kind}) differs in size")
    rows = np.ascontiguousarray(rows, np.int64)
    check_rows(rows, count, path)
    return rows, field


def as_rows(out: NDArray[Any], field: Field) -> NDArray[np.uint8]:
    """The bytes of `out` (C-contiguous, `[n, *shape]`) as uint8 [n, row bytes], without a copy."""
    return out.reshape(-1).view(np.uint8).reshape(len(out), field.row_bytes)
