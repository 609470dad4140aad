"""Files of a folder on a slow file system, as objects that are only read: a cache of the node keeps their pieces."""

import errno
import os
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np

from ..errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreError, StoreUnavailable
from ..system import forks, portable, processes
from ..system.file_systems import file_system
from ..system.regular_files import FOLDER, open_below
from .base import Content, ObjectInfo

MOST_OPEN = 256
"""Files that are held open, as opening one asks the servers of a parallel file system; fewer if the process may not."""

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait for its other end
_PASSING = frozenset(
    (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.ENFILE, errno.EMFILE,
     errno.ENOTCONN, errno.ESHUTDOWN, portable.EREMOTEIO, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED,
     errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH)
)  # fmt: skip
"""The error numbers of servers that are away for a while, and of a machine that is short of something."""


@final
class _File:
    """A file held open, and closed when the last reader drops it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.descriptor = _opened_below(folder, name)
        weakref.finalize(self, _close, self.descriptor)
        portable.advise(self.descriptor, 0, 0, "random")  # what is asked for is all that is needed

    @property
    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)


def _close(descriptor: int) -> None:
    """Close a file, which an unmounted or lost file system answers with an error, and closes all the same."""
    with suppress(OSError):
        os.close(descriptor)


def _opened_below(folder: Path, name: str) -> int:
    """Open a file of a folder; its first part may be a link, and none below that is followed."""
    first, *inner = name.split("/")
    if not inner:
        return os.open(folder / first, _OPEN)
    opened = os.open(folder / first, FOLDER)
    try:
        return open_below(opened, inner, _OPEN)
    finally:
        os.close(opened)


def modified_ns(found: ObjectInfo) -> int:
    """Return when a file of a `FolderStore` was modified, in ns."""
    return int((found.etag or "").partition("-")[0], 16)


@final
class FolderStore:
    """The files of a folder. As for every dataset in a folder, they may be links to others.

    A file `a/b` is one of a folder `a`, which may be a link; below that no link is followed.

    The ETag of a file is its size, its time of modification, and its inode where the file system keeps that: those of
    FUSE may number their files anew when they are mounted.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._most = max(4, min(MOST_OPEN, processes.allow_open_files(8 * MOST_OPEN) // 8))
        self._keeps_inodes: dict[int, bool] = {}  # by device
        self._files: OrderedDict[str, _File] = OrderedDict()  # the one used last at the end
        self.reset_in_child()
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Have a lock of this process: a thread of the parent may have held the other one."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["FolderStore"], tuple[Path]]:
        return FolderStore, (self._folder,)

    @property
    def url(self) -> str:
        return str(self._folder)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        with self._naming(name, f"bytes {start} to {'the end' if stop is None else stop - 1}"):
            file = self._opened(name)
            found = self._info(name, file.status)
            if etag is not None and found.etag != etag:
                raise ObjectChanged(f"{self._folder / name}: was changed: its ETag is {found.etag}, not {etag}")
            end = found.size if stop is None else min(stop, found.size)
            data, got = np.empty(max(0, end - start), np.uint8).data, 0
            while got < len(data) and (more := os.preadv(file.descriptor, [data[got:]], start + got)):
                got += more
            if self._info(name, file.status) != found:
                raise ObjectChanged(f"{self._folder / name}: was changed while it was read")
        return Content(data[:got], start, found)

    def info(self, name: str) -> ObjectInfo:
        with self._naming(name, "size"):
            return self._info(name, os.stat(self._folder / name))

    def write(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to change the folder."""
        raise StoreError(f"{self._folder}: a folder whose files a cache keeps is only read")

    list = upload = delete = write

    def renew(self) -> None:
        """Have each file opened anew: who may read it is asked when it is opened."""
        with self._lock:
            self._files.clear()

    def _opened(self, name: str) -> _File:
        """Return an open file, another one if `name` leads to another one by now."""
        path = self._folder / name
        now = os.stat(path)
        if not stat.S_ISREG(now.st_mode):
            raise StoreError(f"{path}: not a regular file")
        with self._lock:
            file = self._files.pop(name, None)
        if file is None or not os.path.samestat(file.status, now):
            file = _File(self._folder, name)
        with self._lock:
            self._files[name] = file
            while len(self._files) > self._most:
                self._files.popitem(last=False)
        return file

    def _info(self, name: str, found: os.stat_result) -> ObjectInfo:
        device = found.st_dev
        if device not in self._keeps_inodes:
            self._keeps_inodes[device] = not file_system(self._folder / name).type.startswith("fuse")
        inode = f"-{found.st_ino:x}" if self._keeps_inodes[device] else ""
        return ObjectInfo(name, found.st_size, f"{found.st_mtime_ns:x}-{found.st_size:x}{inode}", found.st_mtime)

    @contextmanager
    def _naming(self, name: str, what: str) -> Iterator[None]:
        """Turn errors of the system into those of `Store`."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            with self._lock:
                self._files.pop(name, None)
            path = self._folder / name
            leads = f"; it is a link to {os.path.realpath(path)}" if path.is_symlink() else ""
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise ObjectNotFound(f"{path}: there is no such file{leads}") from error
            text = f"{path}: {what}: {error.strerror or error}{leads}"
            if error.errno in (errno.EACCES, errno.EPERM):
                raise AccessDenied(text) from error
            raise (StoreUnavailable if error.errno in _PASSING else StoreError)(text) from error
