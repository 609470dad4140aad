"""Calls of Linux that other systems, such as macOS, lack, with what takes their place there.

CPUs have theirs in `cpus.py`, child processes in `processes.py` and holes in files in `holes.py`.
"""

import ctypes
import errno
import fcntl
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

O_PATH: int = getattr(os, "O_PATH", os.O_RDONLY)
"""Opens a folder for what is below it, which needs no permission to list it; elsewhere it needs that."""

EREMOTEIO: int = getattr(errno, "EREMOTEIO", errno.EIO)

_FADVICE = {"random": "POSIX_FADV_RANDOM", "willneed": "POSIX_FADV_WILLNEED", "dontneed": "POSIX_FADV_DONTNEED"}
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COPY = 1 << 20

# Errors of file systems, old kernels and sandboxes without copy_file_range.
_NO_COPIES = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)


def advise(descriptor: int, start: int, size: int, advice: Literal["random", "willneed", "dontneed"]) -> None:
    """Tell the kernel how a part of a file is going to be read; elsewhere do nothing."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, getattr(os, _FADVICE[advice]))


def allocate(descriptor: int, size: int) -> None:
    """Make a file `size` bytes long at least, and take their space on the disk; elsewhere only that of new bytes."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    end = os.fstat(descriptor).st_size
    while end < size:
        end += os.pwrite(descriptor, bytes(min(_COPY, size - end)), end)


def anonymous_file(name: str) -> int:
    """Return a new file without a name, in memory; elsewhere in the folder for temporary files.

    Args:
        name: what tools that list open files call it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def path_of(descriptor: int) -> str:
    """Return a path in this process to an open file or folder, for libraries that open files by path.

    It leads there wherever the file is moved. On macOS it is the name that the file has at this moment.
    """
    f_getpath = getattr(fcntl, "F_GETPATH", None)
    if f_getpath is None:
        return f"/proc/self/fd/{descriptor}"
    return os.fsdecode(fcntl.fcntl(descriptor, f_getpath, bytes(1024)).rstrip(b"\0"))


def path_for_others(path: str) -> str:
    """Return a path that leads other processes of this user to what `path`, such as one of `path_of`, is here."""
    inside = path.removeprefix("/proc/self/")
    return path if inside == path else f"/proc/{os.getpid()}/{inside}"


def copy_file(source: int, size: int, target: int, offset: int) -> None:
    """Copy the first `size` bytes of a file to `offset` of another: by reference where the file system can do that."""
    done = 0
    while done < size:
        try:
            copied = os.copy_file_range(source, target, size - done, done, offset + done)
        except (OSError, AttributeError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_COPIES:
                raise
            copied = os.pwrite(target, os.pread(source, min(_COPY, size - done), done), offset + done)
        if not copied:
            raise OSError(errno.EIO, f"the file to copy ends after {done} of {size} bytes")
        done += copied


@cache
def boot() -> bytes:
    """Return what names this start of the machine; empty if the system does not say."""
    try:
        return _BOOT.read_bytes().strip()[:36]
    except OSError:
        name, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        try:
            failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", name, ctypes.byref(size), None, 0)
        except AttributeError:  # neither Linux nor a BSD
            return b""
        return b"" if failed else name.value[:36]
