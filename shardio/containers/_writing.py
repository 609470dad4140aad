"""The base of all writers: checks before anything is written, and files that no failure leaves open."""

import contextlib
import json
import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.checksums import FileSums, rows_of
from ..format.fields import Field, as_fields, fields_to_json
from ..format.pieces import PIECE
from ..system import forks, strict_json
from ..system.types import Buffer, Stored

Columns: TypeAlias = Mapping[str, NDArray[Any] | Sequence[Buffer]]
"""n samples in stored form: of each field an array [n, ...] whose rows are the stored bytes, or these bytes of each."""

BUFFER = 1 << 20
"""Bytes of a file's buffer. Each flush releases the GIL, which threads that write shards contend for: few are best."""


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


def size_of(value: Any) -> int:
    """Return the bytes in a buffer, which may be a memoryview, whose `len` counts elements."""
    return value.nbytes if isinstance(value, memoryview) else len(value)


class Writer(ABC):
    """Writes one shard, to a temporary path that the caller renames; a base of all kinds of writers.

    It leaves no file open when it is closed or dropped.

    Attributes:
        begun: the checksums of the first blocks of the finished shard, which need not be read for them again.
    """

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int, rows: int | None) -> None:
        self._path, self._fields, self._first, self._rows = path, dict(fields), first, rows
        self._sizes = {name: field.row_bytes for name, field in fields.items() if field.fixed}
        self._units = {name: field.entry_bytes for name, field in fields.items() if field.ragged}
        self._count, self._intact, self._closed = 0, True, False
        self.begun = FileSums(PIECE)
        self._files: list[IO[bytes]] = []
        self._users: list[Callable[[], object]] = []  # what closes those that use the files, called before
        weakref.finalize(self, _close_all, self._users, self._files)
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Leave the files to the parent: both share their offsets, so what is buffered here would be written twice."""
        self._intact = False
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for file in self._files:
            os.dup2(nothing, file.fileno(), inheritable=False)
        os.close(nothing)

    def append(self, sample: Stored) -> None:
        """Add one sample: the stored bytes of every field, with hidden columns.

        Raises:
            ConfigError: its fields are not the shard's.
            BadSample: a fixed field has another size, a ragged field holds parts of entries, or this container cannot
                hold a value; nothing was written.
        """
        self._append(sample, 1)

    def extend(self, columns: Columns) -> None:
        """Add n samples by column, as `append` adds them one by one.

        Raises ConfigError as `append`, and for a value that this container cannot hold: the shard is then lost.
        """
        self._check(len(next(iter(columns.values()))))
        rows = (rows_of(column) if isinstance(column, np.ndarray) else column for column in columns.values())
        try:
            for values in zip(*rows, strict=True):
                self._append(dict(zip(columns, values, strict=True)), 1)
        except BadSample as error:
            self._intact = False  # samples before this one were written
            raise ConfigError(f"{error}") from error

    def _append(self, sample: Stored, count: int) -> None:
        """Add samples: one, or `count` whose fields are all fixed, and then their values are end to end."""
        self._check(count)
        index, fields = self._first + self._count, self._fields
        if sample.keys() != fields.keys():
            missing, extra = fields.keys() - sample.keys(), sample.keys() - fields.keys()
            raise ConfigError(
                f"{self._path.name}, sample {index}: fields must be {', '.join(fields)}; "
                f"missing: {', '.join(sorted(missing)) or 'none'}, unknown: {', '.join(sorted(extra)) or 'none'}"
            )
        for name, expected in self._sizes.items():
            if (size := size_of(sample[name])) != expected * count:
                raise BadSample(
                    f"{self._path.name}, sample {index}, field {name!r}: expected {expected * count} bytes, got {size}"
                )
        for name, unit in self._units.items():
            if (size := size_of(sample[name])) % unit:
                raise BadSample(
                    f"{self._path.name}, sample {index}, field {name!r}: expected entries of {unit} bytes, got {size}"
                )
        try:
            self._add(sample, index)
        except BadSample:
            raise
        except BaseException:
            self._intact = False  # half a sample may have been written, which is not to pass for a shard
            raise
        self._count += count

    def _check(self, count: int) -> None:
        if self._closed or not self._intact:
            raise ValueError(f"{self._path}: the writer is closed, or an earlier append failed")
        if self._rows is not None and self._count + count > self._rows:
            raise ValueError(f"{self._path}: expected {self._rows} samples, got {self._count + count} or more")

    def close(self) -> None:
        """Finish the shard: its files are complete and on stable storage (fsync) when this returns."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._intact and self._rows not in (None, self._count):
                raise ValueError(f"{self._path}: expected {self._rows} samples, got {self._count}")
            if self._intact:
                self._finish()
        finally:
            _close_all(self._users, self._files)

    @abstractmethod
    def _add(self, sample: Stored, index: int) -> None:
        """Write a sample; raise BadSample before anything is written."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the shard's files, on stable storage."""

    def _create(self, path: Path) -> IO[bytes]:
        """Create an empty file that replaces the file or link at `path`; its descriptor is readable."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        file = os.fdopen(descriptor, "wb", buffering=BUFFER)
        self._files.append(file)
        return file

    def _spool(self) -> IO[bytes]:
        """Create a file without a name in the shard's folder; it vanishes when it is closed."""
        file: IO[bytes] = tempfile.TemporaryFile(dir=self._path.parent, buffering=BUFFER)  # noqa: SIM115
        self._files.append(file)
        return file

    def _sync(self) -> None:
        """Flush all files to stable storage."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())


def _close_all(users: list[Callable[[], object]], files: list[IO[bytes]]) -> None:
    while users:
        users.pop()()
    while files:
        # Closing flushes, so what made a write fail (a full disk) fails again: it was reported then.
        with contextlib.suppress(OSError):
            files.pop().close()
