"""What every writer needs: samples checked before a byte is written, and files that no failure leaves open."""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, final

from ..errors import BadSample, ConfigError
from ..fields import Field
from ..types import Stored

BUFFER = 1 << 20


def check_sample(sample: Stored, fields: Mapping[str, Field], index: int, path: Path) -> None:
    """Raises ConfigError unless the fields are the shard's, BadSample if a fixed field has the wrong size."""
    if sample.keys() != fields.keys():
        missing, extra = fields.keys() - sample.keys(), sample.keys() - fields.keys()
        raise ConfigError(
            f"{path.name}, sample {index}: fields must be {', '.join(fields)}; "
            f"missing: {', '.join(sorted(missing)) or 'none'}, unknown: {', '.join(sorted(extra)) or 'none'}"
        )
    for name, field in fields.items():
        if field.fixed and (size := size_of(sample[name])) != field.row_bytes:
            wrong = f"expected {field.row_bytes} bytes, got {size}"
            raise BadSample(f"{path.name}, sample {index}, field {name!r}: {wrong}")


def check_options(options: Mapping[str, Any], known: tuple[str, ...], container: str) -> None:
    """Raises ConfigError for an option that the container does not have."""
    if unknown := sorted(set(options) - set(known)):
        has = f"the options {', '.join(known)}" if known else "no options"
        raise ConfigError(f"container {container!r} has {has}, got {', '.join(unknown)}")


def size_of(value: Any) -> int:
    """The bytes in a buffer; of a memoryview too, whose `len` counts elements."""
    return value.nbytes if isinstance(value, memoryview) else len(value)


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

    def spool(self, folder: Path, buffer: int = BUFFER) -> IO[bytes]:
        """A file without a name, on the file system of `folder`, that vanishes when it is closed."""
        file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=buffer)  # noqa: SIM115
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
