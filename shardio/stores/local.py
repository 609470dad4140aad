"""A folder as a store."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from ..errors import ConfigError, ObjectChanged, ObjectNotFound, StoreError
from ..system import replacement
from ..system.types import Buffer
from .base import Condition, Content, ObjectInfo


@final
class LocalStore:
    """The files below a folder.

    The ETag of a file is made of its inode, size and time of change, as file servers make it. Conditions of `write`
    are checked before the file is replaced, so of two writers at once both may succeed; buckets let one succeed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()

    @property
    def url(self) -> str:
        return str(self._folder)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        path = self._path(name)
        try:
            with open(path, "rb") as file:
                info = _info(name, os.fstat(file.fileno()))
                if etag is not None and info.etag != etag:
                    raise ObjectChanged(f"{path}: has changed: its ETag is {info.etag}, not {etag}")
                file.seek(start)
                return Content(file.read(-1 if stop is None else max(0, stop - start)), start, info)
        except OSError as error:
            raise _as_store_error(error, path) from error

    def info(self, name: str) -> ObjectInfo:
        path = self._path(name)
        try:
            return _info(name, path.stat())
        except OSError as error:
            raise _as_store_error(error, path) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = self._path(prefix) if prefix else self._folder
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return iter([_info(path.relative_to(self._folder).as_posix(), path.stat()) for path in found])

    def write(self, name: str, data: Buffer, *, condition: Condition = None) -> ObjectInfo:
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            now = _info(name, path.stat()).etag if path.exists() else None
            if condition is not None and now != (None if condition == "new" else condition):
                raise ObjectChanged(f"{path}: " + ("exists" if condition == "new" else f"its ETag is not {condition}"))
            with replacement.replacing(path) as file:
                file.write(data)
        except OSError as error:
            raise _as_store_error(error, path) from error
        return self.info(name)

    def upload(self, name: str, path: Path) -> ObjectInfo:
        return self.write(name, path.read_bytes())

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                raise _as_store_error(error, self._path(name)) from error

    def renew(self) -> None:
        pass  # there are no credentials

    def _path(self, name: str) -> Path:
        if not name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
            raise ConfigError(f"the name of an object must be parts between single slashes, got {name!r}")
        return self._folder / name


def _info(name: str, status: os.stat_result) -> ObjectInfo:
    state = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    etag = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
    return ObjectInfo(name, status.st_size, etag, status.st_mtime)


def _as_store_error(error: OSError, path: Path) -> StoreError:
    if isinstance(error, StoreError):
        return error
    missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return ObjectNotFound(f"{path}: there is no such object") if missing else StoreError(f"{path}: {error}")
