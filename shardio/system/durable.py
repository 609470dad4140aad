"""Files that are either complete or absent: written under a temporary name, fsynced, renamed."""

import os
from pathlib import Path

from .directory import Directory
from .os_errors import naming


def sync_file(path: Path) -> None:
    """Flush a file's content to stable storage (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries (new names, renames) to stable storage (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes) -> None:
    """Replace the file at `path` with `data` atomically: a reader sees the old file or the new one.

    If this fails, the old file stays and the temporary one is removed. A link at `path` is replaced, not followed.
    """
    Directory(path.parent).write(path.name, data)
