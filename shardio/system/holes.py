"""Holes in files: parts that take no space on the disk, and read as zeros."""

import ctypes
import errno
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def punch(descriptor: int, start: int, size: int) -> None:
    """Give the blocks of part of a file back to the file system; the part reads as zeros from then on."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def are_possible(folder: Path) -> bool:
    """Return whether the file system of a folder can punch holes; raise OSError if the folder takes no file."""
    try:
        descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _UNSUPPORTED:  # such as NFS
            return False
        raise
    try:
        os.ftruncate(descriptor, 1)  # takes no space, which a full disk would not have
        punch(descriptor, 0, 1)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    finally:
        os.close(descriptor)
    return True
