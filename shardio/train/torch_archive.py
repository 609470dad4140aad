"""Archives of torch.save that end with a checksum over all that comes before it.

torch.save writes a zip archive. The checksum is the archive's comment, so that torch.load and any zip tool still read
the file:

    the archive, whose last two bytes state the length of the comment
    `shardio xxh3-128 `
    XXH3-128 over all bytes before these, as 32 hexadecimal digits
"""

import os
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, final

import torch
import xxhash

from ..errors import ConfigError, StateMismatch
from ..system import replacement
from ..system.regular_files import open_regular

_MARK = b"shardio xxh3-128 "
_DIGITS = 32
_BLOCK = 1 << 20


def save(path: Path, content: Any, *, previous: Path | None = None) -> None:
    """Replace the file at `path` atomically by an archive of `content`, whatever torch.save takes.

    Args:
        path: the file.
        content: the value to save.
        previous: the path that the old file is renamed to; None removes it.

    Raises OSError, which names `path`, if the file cannot be written; the old file then stays.
    """
    with replacement.replacing(path, previous=previous) as file:
        output = _Output(file)
        try:
            torch.save(content, output)  # type: ignore[arg-type]  # which only writes to it
        except RuntimeError as error:
            raise output.error or error  # noqa: B904  torch's own error only says that a write failed
        _seal(file)


def load(path: Path, device: torch.device) -> Any:
    """Return the content of the archive at `path`, with its tensors on `device`; no code in the file is run.

    Raises ConfigError if there is no such file, StateMismatch if it is damaged or holds what only code can restore.
    """
    if not path.exists():
        raise ConfigError("{resume} must be 'auto' or the path of a checkpoint; there is no file {}", path)
    try:
        with open(path, "rb", opener=open_regular) as file:
            if reason := _damage(file):
                raise StateMismatch(f"{path}: {reason}")
            _check_sizes(file)
            file.seek(0)
            return torch.load(file, map_location=device, weights_only=True)
    except OSError as error:
        raise StateMismatch(f"{path}: it cannot be read: {error.strerror or error}") from error
    except StateMismatch:
        raise
    except Exception as error:  # torch and zipfile raise many kinds for what is no archive of torch.save
        words = f"{error}".partition("\n")[0]
        raise StateMismatch(f"{path}: not a checkpoint that torch.load(weights_only=True) reads: {words}") from error


def damage(path: Path) -> str | None:
    """Return why the archive at `path` is not what `save` wrote, None if it is; this reads the file once."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return _damage(file)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


@final
class _Output:
    """A file for torch.save that keeps the first error of writing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


def _seal(file: BinaryIO) -> None:
    """Give a zip archive the comment that holds its checksum."""
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(_MARK) + _DIGITS) + _MARK)
    size = file.tell()
    file.seek(0)
    digits = _checksum(file, size)
    file.seek(size)
    file.write(digits)


def _damage(file: BinaryIO) -> str | None:
    size = os.fstat(file.fileno()).st_size
    start = size - _DIGITS - len(_MARK)
    file.seek(max(0, start))
    end = file.read()
    if start < 0 or not end.startswith(_MARK):
        return "it does not end with a checksum: it is cut short, or this version of shardio did not write it"
    expected = end[len(_MARK) :]
    file.seek(0)
    actual = _checksum(file, size - _DIGITS)
    return (
        None if actual == expected else f"its checksum {actual.decode()} is not {expected.decode('ascii', 'replace')}"
    )


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Return the checksum over the next `size` bytes of `file`, or as many as there are."""
    state, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK))
    while size > 0 and (read := file.readinto(block[: min(size, _BLOCK)])):  # type: ignore[attr-defined]
        state.update(block[:read])
        size -= read
    return state.hexdigest().encode()


def _check_sizes(file: BinaryIO) -> None:
    """Raise StateMismatch for members that unpack to more than the file holds: torch.save compresses nothing."""
    with zipfile.ZipFile(file) as archive:
        claimed = sum(member.file_size for member in archive.infolist())
    if claimed > (size := os.fstat(file.fileno()).st_size):
        raise StateMismatch(f"{file.name}: its members claim {claimed} bytes, the file has {size}")
