"""What every writer needs: samples checked before a byte is written, and files that no failure leaves open."""

import contextlib
import errno
import json
import os
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, final

from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import Field, as_fields, fields_to_json
from ..system.types import Stored

BUFFER = 1 << 20
_LARGE = 64 << 10  # bytes from which on a buffer is written at once, and not copied
# What file systems, old kernels and sandboxes say that cannot do it. Then sendfile is tried, whose errors count.
_NO_COPIES = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)
_MOST_PARTS = 1000  # that one call of the system takes, less some


def fixed_sizes(fields: Mapping[str, Field]) -> dict[str, int]:
    """The stored bytes of each fixed field."""
    return {name: field.row_bytes for name, field in fields.items() if field.fixed}


def check_sample(sample: Stored, fields: Mapping[str, Field], sizes: Mapping[str, int], index: int, path: Path) -> None:
    """Raises ConfigError unless the fields are the shard's, BadSample if a fixed field has not its size in `sizes`."""
    if sample.keys() != fields.keys():
        missing, extra = fields.keys() - sample.keys(), sample.keys() - fields.keys()
        raise ConfigError(
            f"{path.name}, sample {index}: fields must be {', '.join(fields)}; "
            f"missing: {', '.join(sorted(missing)) or 'none'}, unknown: {', '.join(sorted(extra)) or 'none'}"
        )
    for name, expected in sizes.items():
        if (size := size_of(sample[name])) != expected:
            wrong = f"expected {expected} bytes, got {size}"
            raise BadSample(f"{path.name}, sample {index}, field {name!r}: {wrong}")


def describe(fields: Mapping[str, Field]) -> str:
    """The fields of a shard as JSON text, less hidden columns: a shard says by itself what it holds."""
    visible = {name: field for name, field in fields.items() if not name.startswith("_")}
    return json.dumps(fields_to_json(visible), separators=(",", ":"))


def read_description(text: str | bytes, path: Path) -> dict[str, Field]:
    """What `describe` wrote in the shard at `path`; ShardCorrupt if it is anything else."""
    try:
        return as_fields(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise ShardCorrupt(f"{path}: what it says of its fields is damaged: {error}") from error


def check_options(options: Mapping[str, Any], known: tuple[str, ...], container: str) -> None:
    """Raises ConfigError for an option that the container does not have."""
    if unknown := sorted(set(options) - set(known)):
        has = f"the options {', '.join(known)}" if known else "no options"
        raise ConfigError(f"container {container!r} has {has}, got {', '.join(unknown)}")


def size_of(value: Any) -> int:
    """The bytes in a buffer; of a memoryview too, whose `len` counts elements."""
    return value.nbytes if isinstance(value, memoryview) else len(value)


@final
class Stream:
    """A file that is written from front to back. What is written is not copied but gathered, and goes out in few calls.

    The system takes it without the interpreter's lock, so threads write shards side by side.
    """

    __slots__ = ("_buffer", "_file", "_parts", "_size", "position")

    def __init__(self, file: IO[bytes], buffer: int = BUFFER) -> None:
        self._file, self._buffer = file, buffer
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self.position = 0

    def write(self, *parts: Any) -> None:
        """Adds buffers at the end."""
        added, now = 0, False
        for part in parts:
            if type(part) is not bytes:  # it may be changed before it is written
                now |= size_of(part) >= _LARGE
                part = memoryview(part).cast("B") if size_of(part) >= _LARGE else bytes(part)
            self._parts.append(part)
            added += len(part)
        self._size += added
        self.position += added
        if now or self._size >= self._buffer or len(self._parts) > _MOST_PARTS:
            self.flush()

    def flush(self) -> None:
        """Hands what was gathered to the system."""
        left, size, self._parts, self._size = self._parts, self._size, [], 0
        while size:
            done = os.writev(self._file.fileno(), left[:_MOST_PARTS])
            size -= done
            while size and done >= len(left[0]):  # the system took less than all
                done -= len(left.pop(0))
            if size and done:
                left[0] = left[0][done:]

    def whole(self) -> IO[bytes]:
        """The file with all that was written, to be read from its beginning."""
        self.flush()
        self._file.seek(0)
        return self._file

    def move(self, target: IO[bytes], offset: int) -> None:
        """Copies all that was written into `target`, from `offset` on; the system does it, by reference if it can."""
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


@final
class OutputFiles:
    """The files that one writer writes: synced together, closed together, and closed when the writer is dropped."""

    def __init__(self) -> None:
        self._open: list[IO[bytes]] = []
        weakref.finalize(self, _close_all, self._open)

    def create(self, path: Path) -> IO[bytes]:
        """An empty file at `path`."""
        file = open(path, "wb", buffering=BUFFER)  # noqa: SIM115
        self._open.append(file)
        return file

    def spool(self, folder: Path) -> IO[bytes]:
        """A file without a name, on the file system of `folder`, that vanishes when it is closed."""
        file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=BUFFER)  # noqa: SIM115
        self._open.append(file)
        return file

    def sync(self) -> None:
        """Asks for everything written to be on stable storage."""
        for file in self._open:
            file.flush()
            os.fsync(file.fileno())

    def drop(self) -> None:
        """Closes all; what could not be written any more is lost without a word."""
        _close_all(self._open)


def _close_all(files: list[IO[bytes]]) -> None:
    while files:
        # Closing flushes, and what made the write fail (a full disk) makes this fail too: that was reported once.
        with contextlib.suppress(OSError):
            files.pop().close()
