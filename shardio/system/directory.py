"""A directory held open: what is written, renamed or removed in it stays in it, whatever its path leads to meanwhile.

Each call takes the name of one entry and follows no symbolic link, whether the link was there before or is put there
during the call.
"""

import contextlib
import errno
import os
import secrets
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, NoReturn, TypeAlias, final

from ..errors import ConfigError
from .os_errors import naming
from .portable import path_of

Kind: TypeAlias = Literal["file", "directory", "link", "other"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait for its other end
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_DEEPEST = 8
_MOST_BYTES = 1 << 30


@final
class Directory:
    """A directory held open, and closed when the last reference is dropped. Threads may share it.

    Args:
        path: the directory. This path may lead through symbolic links; nothing below it does.
        private: whether files and directories that are made in it, and below, are for this user alone (0600, 0700).

    Attributes:
        path: that path, for messages and for reading.

    All methods raise ConfigError for a name that is not that of one entry, and for a link that they would follow.
    """

    __slots__ = ("__weakref__", "_descriptor", "_private", "path")

    def __init__(self, path: str | os.PathLike[str], *, private: bool = False) -> None:
        self._hold(Path(path), os.open(path, _DIRECTORY), private)

    def _hold(self, path: Path, descriptor: int, private: bool) -> None:
        self.path, self._descriptor, self._private = path, descriptor, private
        weakref.finalize(self, os.close, descriptor).atexit = False  # threads may use it until the very end

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Directory belongs to its process: open its path again")

    def directory(self, name: str) -> "Directory":
        with self._entry(name):
            descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._descriptor)
        opened = object.__new__(Directory)
        opened._hold(self.path / name, descriptor, self._private)
        return opened

    def make(self, name: str, *, exist_ok: bool = False) -> "Directory":
        with self._entry(name):
            try:
                os.mkdir(name, 0o700 if self._private else 0o777, dir_fd=self._descriptor)
            except FileExistsError:
                if not exist_ok:
                    raise
        return self.directory(name)

    def status(self) -> os.stat_result:
        """Return the status of the directory that is held, whatever is at `path` now."""
        return os.fstat(self._descriptor)

    def close_to_others(self) -> None:
        """Let no other user into it."""
        with naming(self.path):
            os.fchmod(self._descriptor, 0o700)

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        # By a descriptor of its own: threads that list by the same one would share its position.
        try:
            descriptor = os.open(".", _DIRECTORY, dir_fd=self._descriptor)
            try:
                return sorted(os.listdir(descriptor))
            finally:
                os.close(descriptor)
        except OSError as error:
            error.filename = os.fspath(self.path)
            raise

    def kind(self, name: str) -> Kind | None:
        """Return what an entry is; None if there is none."""
        with self._entry(name):
            try:
                mode = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return None
        return _KINDS.get(stat.S_IFMT(mode), "other")

    def open(self, name: str, flags: int) -> int:
        """Open a regular file by the flags of `os.open`; return its descriptor, which the caller closes.

        Raises ConfigError for anything but a regular file; to write, also for one that has other names (hard links).
        """
        with self._entry(name):
            descriptor = os.open(name, flags | _FILE, 0o600 if self._private else 0o666, dir_fd=self._descriptor)
        status = os.fstat(descriptor)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if stat.S_ISREG(status.st_mode) and not (writes and status.st_nlink > 1):
            return descriptor
        os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{self.path / name}: not a regular file")
        raise ConfigError(f"{self.path / name}: has other names (hard links), and would change under them too")

    def read(self, name: str, most: int = _MOST_BYTES) -> bytes:
        """Return the content of a file; ConfigError if it has more than `most` bytes."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size > most or len(data := file.read(most + 1)) > most:
                raise ConfigError(f"{self.path / name}: has more than {most} bytes")
        return data

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield an empty file that replaces the entry `name`, durably and in one step, once the block is left.

        If this fails, the old entry stays. A link is replaced itself; what it leads to stays.
        """
        temporary = f".{name}.{secrets.token_hex(4)}.tmp"
        try:
            with (
                naming(self.path / name),
                os.fdopen(self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file,
            ):
                yield file
                file.flush()
                os.fsync(file.fileno())
            self.rename(temporary, self, name)
        except BaseException:
            self.unlink(temporary)
            raise
        self.sync()

    def write(self, name: str, data: bytes) -> None:
        """Replace the file `name` by `data`, as `replacing` does."""
        with self.replacing(name) as file:
            file.write(data)

    def rename(self, name: str, target: "Directory", new: str) -> None:
        """Move an entry to `target`, where it replaces the file or link called `new`; ConfigError for a directory."""
        _check(target.path, new)
        with self._entry(name):
            try:
                os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=target._descriptor)
            except IsADirectoryError as error:
                raise ConfigError(f"{target.path / new}: a directory where a file is to be written") from error
            except OSError as error:
                error.filename2 = str(target.path / new)
                raise

    def link(self, name: str, to: str | os.PathLike[str]) -> None:
        with self._entry(name):
            os.symlink(to, name, dir_fd=self._descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file or a link, if there is one; of a link, not what it leads to."""
        with self._entry(name), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove an entry, if there is one: a file, a link, or a directory with all that it holds."""
        self._remove(name, _DEEPEST)

    def _remove(self, name: str, depth: int) -> None:
        if self.kind(name) != "directory":
            self.unlink(name)
            return
        if not depth:
            raise ConfigError(f"{self.path / name}: deeper than any directory that shardio makes; remove it yourself")
        inside = self.directory(name)
        for entry in inside.names():
            inside._remove(entry, depth - 1)
        with self._entry(name):
            os.rmdir(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """Flush the entries (new names, renames) to stable storage (fsync)."""
        with naming(self.path):
            os.fsync(self._descriptor)

    def place(self, name: str = "") -> Path:
        """Return a path in this process to this directory or an entry, for libraries that open files by path.

        It leads to this directory whatever `path` leads to, see `path_of`, but a link called `name` is followed:
        create exclusively.
        """
        return Path(path_of(self._descriptor)) / name

    @contextlib.contextmanager
    def _entry(self, name: str) -> Iterator[None]:
        """Check the name of an entry; have an error of the system state the entry's path, and say if it is a link."""
        _check(self.path, name)
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and self.kind(name) == "link":
                raise ConfigError(
                    f"{self.path / name}: a symbolic link; nothing is written, locked or removed through one"
                ) from error
            error.filename = str(self.path / name)
            raise


def _check(path: Path, name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"{path}: {name!r} is not the name of an entry")
