"""Files that are replaced whole, and temporary folders: what killed processes leave of both is known to be abandoned.

The process that uses a temporary file or folder holds a lock on it, which ends with the process.
"""

import contextlib
import os
import re
import secrets
import shutil
import tempfile
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
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        with (
            naming(path),
            contextlib.suppress(FileNotFoundError, PermissionError),
            _opened(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC) as descriptor,
        ):
            if (free := try_lock(descriptor)) is None:
                free = time.time() - os.fstat(descriptor).st_mtime > _ABANDONED_SECONDS
            if free:
                os.unlink(path)  # while it is locked: see `_is_held`


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make an empty folder for the `with` block, whose name begins with `prefix`, and remove it at the end."""
    path, descriptor = _make_folder(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned_folders(prefix: str) -> None:
    """Remove the folders that killed processes of this user left; on a file system without locks, none."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Another process may remove it first, and what another user wrote is left to that user.
        with contextlib.suppress(OSError), _opened(path, _FOLDER) as descriptor:
            if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)  # while it is locked: see `_is_held`


def _create_temporary(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        file = os.fdopen(descriptor, "w+b")
        try:
            if _is_held(descriptor):
                return temporary, file
        except OSError:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        file.close()


def _make_folder(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned already
            descriptor = os.open(path, _FOLDER)
            try:
                held = _is_held(descriptor)
            except OSError:  # without locks nobody takes it for abandoned
                held = True
            if held:
                return path, descriptor
            os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    """Lock a new file or folder; return whether nobody took it for abandoned before it was locked."""
    return try_lock(descriptor) is not False and os.fstat(descriptor).st_nlink > 0


@contextmanager
def _opened(path: str | Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
