"""Opening only what is a regular file: a pipe or a device could block forever."""

import errno
import os
import stat
from collections.abc import Sequence

from .portable import O_PATH

FOLDER = O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file by the flags of `os.open`; return its descriptor. An `opener` for the built-in `open`.

    Raises OSError, which names the path, for a directory and for what is not a regular file.
    """
    # O_NONBLOCK, which means nothing to regular files: a pipe would wait for its other end.
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_below(folder: int, names: Sequence[str], flags: int) -> int:
    """Open what is some levels below an open folder, by the flags of `os.open`, and follow no link on the way."""
    opened = os.open(".", FOLDER, dir_fd=folder)
    for level, name in enumerate(names, 1):
        try:
            if name in ("", ".", ".."):
                raise OSError(errno.EINVAL, "not the name of a file or a folder", name)
            inner = os.open(name, (flags if level == len(names) else FOLDER) | os.O_NOFOLLOW, dir_fd=opened)
        finally:
            os.close(opened)
        opened = inner
    return opened


def check_regular(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a file that a library is going to open by its path; raise what `open_regular` does."""
    status = os.stat(path)
    _check(status.st_mode, path)
    return status


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
