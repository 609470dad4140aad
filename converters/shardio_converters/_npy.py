"""Arrays in .npy and .npz files: headers are read, and numbers as they are asked for.

The format is described at https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import math
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import SourceError
from shardio.foreign.names import printable, source_errors
from shardio.format.file_table import Table, TableFile
from shardio.system.npy import read_array, read_header
from shardio.system.regular_files import open_regular

_ZIP = (b"PK\3\4", b"PK\5\6")  # with members, and without
_LOCAL = struct.Struct("<4s22xHH")  # a member's own header: its mark, and the bytes of name and extra that follow
_CHUNK = 1 << 20
_DAMAGE = (
    *(EOFError, ValueError, struct.error),  # malformed content
    *(zipfile.BadZipFile, zlib.error, LZMAError, NotImplementedError, RuntimeError),  # content that cannot be unpacked
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class NpyArray:
    """An array in a file, by its header.

    Attributes:
        path: the file.
        member: the array's name in a .npz; empty for a .npy.
        compressed: whether the member is compressed.
        start: the offset of its numbers in the file, or in the member once it is unpacked.
        dtype, shape, fortran: as the header states them; `fortran` is whether columns are contiguous.
    """

    path: Path
    member: str
    compressed: bool
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    def __str__(self) -> str:
        return f"{printable(self.path)}{f', {self.member}' if self.member else ''}"

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def open(self) -> "NpyRows":
        """Open the array for its rows, a compressed one in an unnamed temporary file.

        Raises SourceError if the file has become too short or cannot be unpacked.
        """
        with source_errors(self, *_DAMAGE), self._open() as file:
            opened = TableFile(os.dup(file.fileno()), self.path, SourceError)
        if opened.size < self.stop:
            raise SourceError(f"{self} must reach to byte {self.stop}, there are {opened.size} bytes")
        count, *inner = self.shape
        if self.fortran:
            return NpyRows(opened.table(self.dtype, math.prod(self.shape), self.start), self.shape)
        return NpyRows(opened.table(np.dtype((self.dtype, tuple(inner))), count, self.start), None)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if not self.compressed:
            with open(self.path, "rb", opener=open_regular) as file:
                yield file
            return
        with tempfile.TemporaryFile() as file:
            with _archive(self.path) as (_, archive), archive.open(self.member) as member:
                shutil.copyfileobj(member, file, _CHUNK)
            file.flush()
            yield file


@final
@dataclass(frozen=True, slots=True, eq=False)
class NpyRows:
    """The rows of an open array.

    Attributes:
        table: the rows, or the elements if columns are contiguous.
        columns: the shape of such an array; None for any other one.
    """

    table: Table
    columns: tuple[int, ...] | None

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return rows that follow each other, [n, ...]."""
        if self.columns is None:
            found: NDArray[Any] = self.table[rows]
            return found
        count, *inner = self.columns
        places = count * np.arange(math.prod(inner)).reshape(inner, order="F")
        start, stop, _ = rows.indices(count)
        return self.table.take(np.add.outer(np.arange(start, stop), places))


@contextmanager
def _archive(path: Path) -> Iterator[tuple[IO[bytes], zipfile.ZipFile]]:
    """A file and the zip archive in it, open; errors in the context are SourceErrors."""
    with (
        source_errors(path, *_DAMAGE),
        open(path, "rb", opener=open_regular) as file,
        zipfile.ZipFile(file) as archive,
    ):
        yield file, archive


def is_npz(path: Path) -> bool:
    """Return whether a file begins like a zip archive, as .npz files do."""
    with source_errors(path), open(path, "rb", opener=open_regular) as file:
        return file.read(4) in _ZIP


def read_npy_header(path: Path) -> NpyArray:
    """Read the header of a .npy; SourceError unless the file has the size that the header implies."""
    with source_errors(path, *_DAMAGE), open(path, "rb", opener=open_regular) as file:
        array = NpyArray(path, "", False, *read_header(file)[:4])
        size = os.fstat(file.fileno()).st_size
    if size != array.stop and not array.dtype.hasobject:
        raise SourceError(f"{array} must hold {array.stop} bytes, it holds {size}")
    return array


def read_npz_headers(path: Path) -> dict[str, NpyArray]:
    """Read the headers of the arrays in a .npz, by name; SourceError unless they are complete.

    Members that are not arrays are ignored.
    """
    found = {}
    with _archive(path) as (file, archive):
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with source_errors(f"{printable(path)}, {info.filename}", *_DAMAGE), archive.open(info) as member:
                header = read_header(member)
            compressed = info.compress_type != zipfile.ZIP_STORED
            before = 0 if compressed else _start(file, info)
            array = NpyArray(path, info.filename, compressed, before + header.start, *header[1:4])
            if array.stop != before + info.file_size and not array.dtype.hasobject:
                raise SourceError(f"{array} must hold {array.stop - before} bytes, it holds {info.file_size}")
            found[info.filename.removesuffix(".npy")] = array
    return found


def read_npz(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read arrays of a .npz whole, and compare their checksums; those that it lacks are left out.

    Raises SourceError for what cannot be read, and arrays of Python objects.
    """
    found = {}
    with _archive(path) as (_, archive):
        members = set(archive.namelist())
        for name in names:
            if (member := f"{name}.npy") in members:
                with source_errors(f"{printable(path)}, {member}", *_DAMAGE):
                    found[name] = read_array(archive.read(member))
    return found


def _start(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Return the offset of a member's bytes in the file: after its local header, which alone states its own length."""
    file.seek(info.header_offset)
    _, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    return info.header_offset + _LOCAL.size + int(name) + int(extra)
