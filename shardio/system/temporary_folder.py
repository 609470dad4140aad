"""Temporary folders that are known to be abandoned once their process is gone, however it ended.

The process that uses such a folder holds a lock on it, which ends with the process.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .file_locks import try_lock


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make an empty folder for the `with` block, whose name begins with `prefix`, and remove it at the end."""
    path, descriptor = _make_locked(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned_folders(prefix: str) -> None:
    """Remove the folders that killed processes of this user left; on a file system without locks, none."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Another process may remove it first, and what another user wrote is left to that user.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)  # while it is locked: see `_make_locked`
            finally:
                os.close(descriptor)


def _make_locked(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # taken for abandoned already
            continue
        # Without locks nobody takes it for abandoned; else it may be, or was before it was locked.
        if try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)
