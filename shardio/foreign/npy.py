"""Arrays in .npy and .npz files: where their numbers are, so that they can be memory-mapped.

The format is described at https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import io
import math
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from ..system.npy import guarded
from .names import shown

_ZIP = (b"PK\3\4", b"PK\5\6")  # with members, and without
_LOCAL = struct.Struct("<4s22xHH")  # a member's own header: its mark, and the bytes of name and extra that follow
_CHUNK = 1 << 20
_DAMAGE = (
    *(OSError, EOFError, ValueError, struct.error),  # what is read is not what it should be
    *(zipfile.BadZipFile, zlib.error, LZMAError, NotImplementedError, RuntimeError),  # or cannot be unpacked
)


@final
@dataclass(frozen=True, slots=True)
class NpyArray:
    """An array in a file.

    Attributes:
        path: the file.
        member: the array's name in a .npz; empty for a .npy.
        packed: whether it is compressed.
        start: where its numbers begin in the file, or in the unpacked member.
        dtype, shape, fortran: what its header says.
    """

    path: Path
    member: str
    packed: bool
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    def __str__(self) -> str:
        return f"{shown(self.path)}{f', {self.member}' if self.member else ''}"

    @property
    def stop(self) -> int:
        """Where its numbers end."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def map(self) -> NDArray[Any]:
        """The array, memory-mapped. SourceError if the file has become too short, or cannot be unpacked."""
        with _damage_told(self), self._open() as file:
            if (size := os.fstat(file.fileno()).st_size) < self.stop:
                raise SourceError(f"{self} must reach to byte {self.stop}, there are {size} bytes")
            order = "F" if self.fortran else "C"
            # As a plain array: a memmap's own bookkeeping makes each row of it slow. NumPy's stubs know no file objects
            # that are open for reading only.
            return np.memmap(file, self.dtype, "r", self.start, self.shape, order).view(np.ndarray)  # type: ignore[call-overload, no-any-return]

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if not self.packed:
            with self.path.open("rb") as file:
                yield file
            return
        with tempfile.TemporaryFile() as file:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as member:
                shutil.copyfileobj(member, file, _CHUNK)
            file.flush()
            yield file


def is_npz(path: Path) -> bool:
    """Whether a file begins like a zip archive."""
    try:
        with path.open("rb") as file:
            return file.read(4) in _ZIP
    except OSError as error:
        raise SourceError(f"{shown(path)} cannot be read: {error.strerror}") from error


def of_npy(path: Path) -> NpyArray:
    """The array in a .npy. SourceError unless the file is as long as its header says."""
    with _damage_told(shown(path)), path.open("rb") as file:
        found = NpyArray(path, "", False, *_header(file))
        size = os.fstat(file.fileno()).st_size
    if size != found.stop and not found.dtype.hasobject:
        raise SourceError(f"{found} must hold {found.stop} bytes, it holds {size}")
    return found


def of_npz(path: Path) -> dict[str, NpyArray]:
    """The arrays in a .npz by name; members that are none are left alone. SourceError unless they are whole."""
    found = {}
    with _damage_told(shown(path)), zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with _damage_told(f"{shown(path)}, {info.filename}"), archive.open(info) as member:
                start, dtype, shape, fortran = _header(member)
            packed = info.compress_type != zipfile.ZIP_STORED
            before = 0 if packed else _start(file, info)
            array = NpyArray(path, info.filename, packed, before + start, dtype, shape, fortran)
            if array.stop != before + info.file_size and not array.dtype.hasobject:
                raise SourceError(f"{array} must hold {array.stop - before} bytes, it holds {info.file_size}")
            found[info.filename.removesuffix(".npy")] = array
    return found


def _start(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in the file. The archive's directory doesn't say how long its own header is."""
    file.seek(info.header_offset)
    _, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    return info.header_offset + _LOCAL.size + int(name) + int(extra)


def _header(file: IO[bytes]) -> tuple[int, np.dtype[Any], tuple[int, ...], bool]:
    """Where the numbers begin, their type, the shape, and whether it is in Fortran order; ValueError if damaged."""

    def read() -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        file.seek(0)
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (3, 0):  # UTF-8, where version 2 has Latin-1; in ASCII with escapes they are the same
            (length,) = struct.unpack("<I", file.read(4))
            text = file.read(length).decode().encode("ascii", "backslashreplace")
            return np.lib.format.read_array_header_2_0(io.BytesIO(struct.pack("<I", len(text)) + text))
        return np.lib.format.read_array_header_2_0(file)

    shape, fortran, dtype = guarded(read)
    if any(size < 0 for size in shape):
        raise ValueError(f"its header is damaged: shape {shape}")
    return file.tell(), dtype, shape, fortran


@contextmanager
def _damage_told(place: object) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise SourceError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
