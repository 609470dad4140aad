"""An object in a cache: its file, and the table of its pieces, which all processes of a node map."""

import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import CacheError
from ..format.pieces import PIECE, piece_count, runs
from ..system import holes, portable
from ..system.directory import Directory
from . import leases

ABSENT, SUSPECT, PRESENT = 0, 254, 255
"""States of a piece: not there, perhaps there, since the machine was started anew after it was fetched, and there.
Between them stands the number of the lease of the process that fetches it, plus 1."""

Pieces: TypeAlias = NDArray[np.int64]
_LONGEST_ETAG = 400
_HEADER = np.dtype(
    [("size", "<i8"), ("taken", "<i8"), ("open_in", "<u8", leases.WORDS), ("suspect", "<i8"), ("etag_size", "<i8"),
     ("etag", f"S{_LONGEST_ETAG}")]
)  # fmt: skip
_ALIGN = 64
_UNFINISHED = "unfinished"


@final
class PieceTable:
    """The pieces of one object, as columns that all processes map. Whoever changes them holds the cache's lock.

    Args:
        folder: the folder of the table's file.
        name: the file.

    Attributes:
        path: the file, for messages.
        size: the object's size in bytes.
        state: uint8 [pieces].
        used: uint32 [pieces]: when each piece was last given back, on the cache's own clock.
        holders: uint64 [pieces, WORDS]: the leases of the processes that need the piece, as bits.
        expected_by: uint64 [pieces, WORDS]: the leases of those that hold it ahead, because they expect to need it.
        open_in: uint64 [WORDS]: the leases of the processes that have the object open, as bits.

    Raises:
        ValueError: the file is not the table of an object.
    """

    def __init__(self, folder: Directory, name: str) -> None:
        self.path = path = folder.path / name
        descriptor = folder.open(name, os.O_RDWR)
        try:
            length = os.fstat(descriptor).st_size
            if length < _HEADER.itemsize:
                raise ValueError(f"{path}: the table of a cache has {length} bytes")
            mapped = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        self._header = np.frombuffer(mapped, _HEADER, 1)
        self.size = int(self._header["size"][0])
        count = piece_count(self.size)
        offsets = _offsets(count) if 0 <= self.size <= length * PIECE else [-1]
        if length != offsets[-1]:
            raise ValueError(f"{path}: the table of a cache has {length} bytes, not {offsets[-1]}")
        self.open_in = self._header["open_in"][0]
        self.state = np.frombuffer(mapped, np.uint8, count, offsets[0])
        self.used = np.frombuffer(mapped, np.uint32, count, offsets[1])
        bits = (np.frombuffer(mapped, np.uint64, count * leases.WORDS, offset) for offset in offsets[2:4])
        self.holders, self.expected_by = (column.reshape(count, leases.WORDS) for column in bits)

    @staticmethod
    def make(folder: Directory, name: str, above: Directory, size: int) -> None:
        """Make the table of an object of `size` bytes, by way of a file `above`: a killed process leaves none or all.

        Its space is taken at once, because the process ends where a full disk has no room for a page of a mapped file.
        """
        above.unlink(_UNFINISHED)
        descriptor = above.open(_UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            portable.allocate(descriptor, _offsets(piece_count(size))[-1])
            os.pwrite(descriptor, size.to_bytes(8, "little"), 0)
        finally:
            os.close(descriptor)
        above.rename(_UNFINISHED, folder, name)

    @property
    def etag(self) -> str | None:
        """The ETag of the object that all pieces belong to; None as long as it is unknown."""
        size = int(self._header["etag_size"][0])
        return bytes(self._header["etag"][0])[:size].decode(errors="replace") or None

    @etag.setter
    def etag(self, value: str) -> None:
        data = value.encode()
        if len(data) > _LONGEST_ETAG:
            raise CacheError(f"{self.path}: an ETag may have {_LONGEST_ETAG} bytes, got {len(data)}: {value[:80]}...")
        self._header["etag_size"] = 0
        self._header["etag"] = data
        self._header["etag_size"] = len(data)  # last: whoever is killed in between has set none

    @property
    def suspect(self) -> bool:
        """Whether pieces of an earlier boot of the machine may be in the file."""
        return bool(self._header["suspect"][0])

    def mark_suspect(self) -> None:
        """Mark all pieces as unverified, because the machine may have stopped before they were written."""
        self._header["suspect"] |= int(self.taken > 0)
        self.state[self.state != ABSENT] = SUSPECT
        self.holders[:] = 0
        self.expected_by[:] = 0
        self.open_in[:] = 0

    @property
    def taken(self) -> int:
        """The number of pieces that are present or being fetched."""
        return int(self._header["taken"][0])

    @property
    def complete(self) -> bool:
        """Whether every piece is present."""
        return self.taken == len(self.state) and bool((self.state == PRESENT).all())

    def set_state(self, pieces: NDArray[np.int64], state: int) -> int:
        """Change the state of pieces; return by how many bytes that changes what the object takes."""
        before = int(np.count_nonzero(self.state[pieces]))
        self.state[pieces] = state
        change = (len(pieces) if state else 0) - before
        self._header["taken"] += change
        return change * PIECE

    def recount(self) -> int:
        """Count the pieces that are not absent anew, after a process was killed; return their bytes."""
        self._header["taken"] = np.count_nonzero(self.state)
        return self.taken * PIECE


def _offsets(count: int) -> list[int]:
    """Return where the columns of `count` pieces begin, then where the file ends."""
    sizes = [_HEADER.itemsize, count, 4 * count, *2 * [8 * leases.WORDS * count]]
    offsets: list[int] = np.cumsum([size + -size % _ALIGN for size in sizes]).tolist()
    return offsets


@final
class CachedObject:
    """An object whose pieces the cache holds.

    Args:
        folder: the folder of its file.
        path: a path to that file.
        table: the states of the pieces.

    Attributes:
        path: the file that has the present pieces in their places, and zeros elsewhere. It is as large as the object.
        table: the states of the pieces.
        file: the file's descriptor.
        was_lost: whether the file was not there, or not as large as the object.
    """

    def __init__(self, folder: Directory, path: Path, table: PieceTable) -> None:
        self.path, self.table = path, table
        self.file = folder.open(path.name, os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, self.file)
        self.was_lost = os.fstat(self.file).st_size != table.size
        if self.was_lost:
            os.ftruncate(self.file, 0)
            os.ftruncate(self.file, table.size)

    @property
    def is_gone(self) -> bool:
        """Whether somebody removed the file."""
        return os.fstat(self.file).st_nlink == 0

    @property
    def on_disk(self) -> int:
        """The bytes of the pieces that the disk has; those that are being written count in part."""
        there = int(np.count_nonzero(self.table.state >= SUSPECT)) * PIECE
        return max(there, os.fstat(self.file).st_blocks * 512)  # a compressed file takes fewer, one being written more

    def drop(self, pieces: Pieces) -> int:
        """Make pieces absent; return the bytes that this frees."""
        freed = -self.table.set_state(pieces, ABSENT)
        for first, stop in runs(pieces, len(self.table.state)):
            holes.punch(self.file, first * PIECE, (stop - first) * PIECE)
        return freed


Parts: TypeAlias = Sequence[tuple[CachedObject, Pieces]]
"""Pieces of objects: each object once, with ascending numbers."""
