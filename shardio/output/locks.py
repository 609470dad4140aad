"""Locks of the processes that write to a folder; each one ends with its process, however that ends."""

import errno
import os
import socket
import time
import warnings
import weakref
from typing import final

from ..errors import ConfigError
from ..system.directory import Directory
from ..system.file_locks import try_lock

LOCK = "lock"
"""The file in a journal that its first rank locks."""

_MOST_HOLDER = 1000  # bytes
_LOOK_SECONDS = 0.5
"""For how long a lock may be taken by those who look whether it is held."""


@final
class Lock:
    """An exclusive lock on a file, which ends with its process, however that ends.

    Args:
        directory: the directory of the file.
        name: the file, which is created if needed.
        what: what holds the lock, for the message.

    Raises ConfigError, which names the holder, if another process holds the lock.
    """

    def __init__(self, directory: Directory, name: str, what: str) -> None:
        self._file = os.fdopen(directory.open(name, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        if (taken := _take(self._file.fileno())) is False:
            text = first_line(self._file.read(_MOST_HOLDER))
            other = text.decode(errors="replace").strip() or "another process"
            self._file.close()
            raise ConfigError(f"{directory.path.parent}: {what} is already running here: {other}")
        if taken is None:
            warnings.warn(
                f"{directory.path / name}: this file system has no locks; "
                "nothing prevents two conversions from running at once",
                stacklevel=2,
            )
        self.write(holder())

    def write(self, line: str) -> None:
        """Replace the file's first line. The file is never empty again, however this process ends."""
        self._file.seek(0)
        self._file.write(line.encode() + b"\n")
        self._file.truncate()

    def release(self) -> None:
        self._file.close()


def first_line(text: bytes) -> bytes:
    """Return what the holder of a lock wrote last; the end of an older, longer line may follow."""
    return text.partition(b"\n")[0]


def holder() -> str:
    """Return a string that names this process as the holder of a lock."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def is_held(directory: Directory, name: str) -> bool | None:
    """Return whether a process holds the lock `name`; None without this file, or on a file system without locks."""
    try:
        return _is_locked(directory.open(name, os.O_RDONLY))
    except FileNotFoundError:
        return None


@final
class FolderLock:
    """A lock on a folder itself, which leaves no file in it. On a file system without locks it does nothing."""

    def __init__(self, folder: Directory) -> None:
        descriptor = _open_folder(folder)
        self._close = weakref.finalize(self, os.close, descriptor)
        if _take(descriptor) is False:
            self._close()
            raise BlockingIOError(errno.EAGAIN, "another process has locked the folder", str(folder.path))

    def release(self) -> None:
        """Release the lock; you may call it twice."""
        self._close()


def is_folder_held(folder: Directory) -> bool:
    """Return whether a process holds a `FolderLock`; False on a file system without locks."""
    return bool(_is_locked(_open_folder(folder)))


def _take(descriptor: int) -> bool | None:
    """Take a lock, see `try_lock`; wait a little for those who only look whether it is held."""
    deadline = time.monotonic() + _LOOK_SECONDS
    while (taken := try_lock(descriptor)) is False and time.monotonic() < deadline:
        time.sleep(0.01)
    return taken


def _open_folder(folder: Directory) -> int:
    return os.open(folder.place(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_locked(descriptor: int) -> bool | None:
    """Return whether a file is locked, None on a file system without locks; close its descriptor."""
    try:
        free = try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)
    return None if free is None else not free
