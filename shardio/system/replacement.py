"""Files that are replaced whole, by way of temporary files that are known to be abandoned once their process is gone.

The process that writes a temporary file holds a lock on it, which ends with the process.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .directory import Directory
from .file_locks import try_lock
from .os_errors import naming

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]+\.tmp")
_ABANDONED_SECONDS = 24 * 3600
"""Age after which a temporary file counts as abandoned where there are no locks: its writer changes it all the time."""


@contextmanager
def replacing(path: Path, *, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Give the `with` block a file to write and read, which replaces the one at `path` atomically at its end.

    A reader sees the old file or the new one. If this fails, the old file stays and the temporary one is removed. A
    process that is killed leaves its temporary file; `remove_abandoned` removes it.

    Args:
        path: the file to replace.
        previous: the path that the old file, which must exist, is renamed to first; None removes it. For a moment there
            is no file at `path`.
    """
    temporary, file = _create_temporary(path)
    try:
        with naming(path), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if previous is not None:
                os.replace(path, previous)
            os.replace(temporary, path)  # before the file is closed, which ends its lock
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    Directory(path.parent).sync()


def remove_abandoned(folder: Path, names: Container[str]) -> None:
    """Remove the temporary files that killed processes left in `folder`, of files with the given names.

    A process that writes one holds a lock on it, on whatever host it is. On a file system without locks, a file that
    has not changed for a day is removed.
    """
    with os.scandir(folder) as entries:
        found = [
            entry.path
            for entry in entries
            if (match := _TEMPORARY.fullmatch(entry.name))
            and match["name"] in names
            and entry.is_file(follow_symlinks=False)
        ]
    for path in found:
        # Another process may remove it first, and what another user wrote is left to that user.
        with naming(path), contextlib.suppress(FileNotFoundError, PermissionError):
            _remove_if_abandoned(path)


def _create_temporary(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        file = os.fdopen(descriptor, "w+b")
        # Else it is taken for abandoned, or was removed before it was locked.
        if try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return temporary, file
        file.close()


def _remove_if_abandoned(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if (free := try_lock(descriptor)) is None:
            free = time.time() - os.fstat(descriptor).st_mtime > _ABANDONED_SECONDS
        if free:
            os.unlink(path)  # while it is locked: see `_create_temporary`
    finally:
        os.close(descriptor)
