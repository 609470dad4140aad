"""Building blocks of writers: checks before anything is written, and files that no failure leaves open."""

import contextlib
import errno
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, final

from ..errors import BadSample, ConfigError, Option, ShardCorrupt
from ..format.fields import Field, as_fields, fields_to_json
from ..system import strict_json
from ..system.types import Stored
from .base import Container

BUFFER = 1 << 20  # bytes
_LARGE = 64 << 10  # bytes; larger buffers are written at once instead of copied
# Errors of file systems, old kernels and sandboxes without copy_file_range; sendfile is tried then.
_NO_COPIES = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)
_MOST_PARTS = 1000  # buffers per system call; the system's limit is a little higher


def fixed_sizes(fields: Mapping[str, Field]) -> dict[str, int]:
    """Return the stored bytes of each fixed field."""
    return {name: field.row_bytes for name, field in fields.items() if field.fixed}


def check_sample(sample: Stored, fields: Mapping[str, Field], sizes: Mapping[str, int], index: int, path: Path) -> None:
    """Check the fields of a sample, and the sizes of those that are in `sizes`.

    Raises:
        ConfigError: the sample's fields are not the shard's.
        BadSample: a fixed field has another size.
    """
    if sample.keys() != fields.keys():
        missing, extra = fields.keys() - sample.keys(), sample.keys() - fields.keys()
        raise ConfigError(
            f"{path.name}, sample {index}: fields must be {', '.join(fields)}; "
            f"missing: {', '.join(sorted(missing)) or 'none'}, unknown: {', '.join(sorted(extra)) or 'none'}"
        )
    for name, expected in sizes.items():
        if (size := size_of(sample[name])) != expected:
            raise BadSample(f"{path.name}, sample {index}, field {name!r}: expected {expected} bytes, got {size}")


def fields_text(fields: Mapping[str, Field]) -> str:
    """Return the fields of a shard without hidden columns as JSON, so that the shard describes itself."""
    visible = {name: field for name, field in fields.items() if not name.startswith("_")}
    return json.dumps(fields_to_json(visible), separators=(",", ":"))


def parse_fields(text: str | bytes, path: Path) -> dict[str, Field]:
    """Parse what `fields_text` returned from the shard at `path`; ShardCorrupt if it is anything else."""
    try:
        return as_fields(strict_json.parse(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise ShardCorrupt(f"{path}: its description of its fields is damaged: {error}") from error


def check_options(options: Mapping[str, Any], container: Container) -> None:
    """Raise ConfigError for an option that the container's writer does not have."""
    if unknown := sorted(set(options) - set(container.options)):
        has = f"the options {', '.join(container.options)}" if container.options else "no options"
        raise ConfigError("container {!r} has {}, got {}", container.name, has, Option(unknown[0]))


def size_of(value: Any) -> int:
    """Return the bytes in a buffer, which may be a memoryview, whose `len` counts elements."""
    return value.nbytes if isinstance(value, memoryview) else len(value)


@final
class Stream:
    """A file that is written from front to back. Buffers are collected and written in few calls, mostly without copies.

    The writes release the GIL, so threads write shards in parallel.
    """

    __slots__ = ("_buffer", "_file", "_parts", "_size", "position")

    def __init__(self, file: IO[bytes], buffer: int = BUFFER) -> None:
        self._file, self._buffer = file, buffer
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self.position = 0

    def write(self, *parts: Any) -> None:
        """Append buffers."""
        added, flush = 0, False
        for part in parts:
            if type(part) is not bytes:  # the caller may change it before it is written
                flush |= size_of(part) >= _LARGE
                part = memoryview(part).cast("B") if size_of(part) >= _LARGE else bytes(part)
            self._parts.append(part)
            added += len(part)
        self._size += added
        self.position += added
        if flush or self._size >= self._buffer or len(self._parts) > _MOST_PARTS:
            self.flush()

    def flush(self) -> None:
        """Write the buffers that were collected."""
        left, size, self._parts, self._size = self._parts, self._size, [], 0
        while size:
            done = os.writev(self._file.fileno(), left[:_MOST_PARTS])
            size -= done
            while size and done >= len(left[0]):  # a partial write
                done -= len(left.pop(0))
            if size and done:
                left[0] = left[0][done:]

    def reopen(self) -> IO[bytes]:
        """Flush, and return the file at its beginning, for reading."""
        self.flush()
        self._file.seek(0)
        return self._file

    def copy_to(self, target: IO[bytes], offset: int) -> None:
        """Copy everything to `offset` of `target` within the kernel, by reference where the file system can."""
        self.flush()
        source, done, copy = self._file.fileno(), 0, True
        while done < self.position:
            left = self.position - done
            try:
                if copy:
                    done += os.copy_file_range(source, target.fileno(), left, done, offset + done)
                else:
                    os.lseek(target.fileno(), offset + done, os.SEEK_SET)
                    done += os.sendfile(target.fileno(), source, done, left)
            except OSError as error:
                if not copy or error.errno not in _NO_COPIES:
                    raise
                copy = False


def create(path: Path) -> int:
    """Create an empty file in the place of the file or link at `path`; return its descriptor, to read and write."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


@final
class OutputFiles:
    """The files of one writer, which are synced and closed together, and closed when the writer is dropped."""

    def __init__(self) -> None:
        self._open: list[IO[bytes]] = []
        self._users: list[Callable[[], object]] = []
        weakref.finalize(self, _close_all, self._users, self._open)

    def create(self, path: Path) -> IO[bytes]:
        """Create an empty file at `path`, in the place of what is there."""
        file = os.fdopen(create(path), "wb", buffering=BUFFER)
        self._open.append(file)
        return file

    def spool(self, folder: Path) -> IO[bytes]:
        """Create a file without a name on the file system of `folder`; it vanishes when it is closed."""
        file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=BUFFER)  # noqa: SIM115
        self._open.append(file)
        return file

    def close_first(self, close: Callable[[], object]) -> None:
        """Call `close`, of something that uses one of the files, before the files are closed."""
        self._users.append(close)

    def sync(self) -> None:
        """Flush all files to stable storage."""
        for file in self._open:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close all files and ignore what cannot be written any more; call `sync` first if the content counts."""
        _close_all(self._users, self._open)


def _close_all(users: list[Callable[[], object]], files: list[IO[bytes]]) -> None:
    while users:
        users.pop()()
    while files:
        # Closing flushes, so what made a write fail (a full disk) fails again: it was reported then.
        with contextlib.suppress(OSError):
            files.pop().close()
