"""Holes in files: parts that take no space on the disk, and read as zeros."""

import ctypes
import errno
import fcntl
import os
import struct
import sys
import tempfile
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_F_PUNCHHOLE = 99  # macOS
_ALIGNED = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def punch(descriptor: int, start: int, size: int) -> None:
    """Give the blocks of part of a file back to the file system; the part reads as zeros from then on."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, _F_PUNCHHOLE, struct.pack("=IIqq", 0, 0, start, size))
        return
    if not hasattr(_libc, "fallocate"):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    span = ctypes.c_int64(start), ctypes.c_int64(size)
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, *span):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def are_possible(folder: Path) -> bool:
    """Return whether the file system of a folder can punch holes; raise OSError if the folder takes no file."""
    try:
        descriptor = _unnamed(folder)
        try:
            os.ftruncate(descriptor, _ALIGNED)  # takes no space, which a full disk would not have
            punch(descriptor, 0, _ALIGNED)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _UNSUPPORTED:  # such as NFS
            return False
        raise
    return True


def _unnamed(folder: Path) -> int:
    """Open a new file without a name in a folder."""
    if hasattr(os, "O_TMPFILE"):
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())
