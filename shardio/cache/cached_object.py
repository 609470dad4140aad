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

ABSENT, SUSPECT, PRESENT = 0, 65_534, 65_535
"""States of a piece: not there, perhaps there, since the machine was started anew after it was fetched, and there.
Between them stands the number of the lease of the process that fetches it, plus 1."""

Pieces: TypeAlias = NDArray[np.int64]
_LONGEST_ETAG = 400
_HEADER = np.dtype(
    [("size", "<i8"), ("words", "<i8"), ("taken", "<i8"), ("open_in", "<u8", leases.WORDS), ("suspect", "<i8"),
     ("etag_size", "<i8"), ("etag", f"S{_LONGEST_ETAG}")]
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
        state: uint16 [pieces].
        used: uint32 [pieces]: when each piece was last given back, on the cache's own clock.
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
        if not 1 <= self.words <= leases.WORDS:
            raise ValueError(f"{path}: the table of a cache has {self.words} words of leases")
        self.state = np.frombuffer(mapped, np.uint16, count, offsets[0])
        self.used = np.frombuffer(mapped, np.uint32, count, offsets[1])
        bits = np.frombuffer(mapped, np.uint64, leases.WORDS * 2 * count, offsets[2])
        self._bits = bits.reshape(leases.WORDS, 2, count)

    @staticmethod
    def make(folder: Directory, name: str, above: Directory, size: int) -> None:
        """Make the table of an object of `size` bytes, by way of a file `above`: a killed process leaves none or all.

        Its space is taken at once, because the process ends where a full disk has no room for a page of a mapped file.
        Of the leases only the first word has its space: few nodes run more than 64 processes, see `add_words`.
        """
        above.unlink(_UNFINISHED)
        descriptor = above.open(_UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            count = piece_count(size)
            portable.allocate(descriptor, _taken(count, 1))
            os.ftruncate(descriptor, _offsets(count)[-1])
            os.pwrite(descriptor, np.array([size, 1], "<i8").tobytes(), 0)
        finally:
            os.close(descriptor)
        above.rename(_UNFINISHED, folder, name)

    @property
    def words(self) -> int:
        """The words of leases, 64 in each, that have space in the file: the leases of the others hold no piece."""
        return int(self._header["words"][0])

    def add_words(self, folder: Directory, words: int) -> None:
        """Take the space for as many words of leases in the table's file, in `folder`."""
        descriptor = folder.open(self.path.name, os.O_RDWR)
        try:
            portable.allocate(descriptor, _taken(len(self.state), words))
        finally:
            os.close(descriptor)
        self._header["words"] = words

    def bits(self, *, ahead: bool) -> NDArray[np.uint64]:
        """Return the leases of processes that need, or only expect, each piece, as bits: uint64 [words, pieces]."""
        return self._bits[: self.words, int(ahead)]

    def held(self, pieces: Pieces, by: NDArray[np.uint64], *, ahead: bool) -> NDArray[np.bool_]:
        """Return which of the pieces the processes of some leases need, or only expect to: bool [pieces]."""
        bits, held = self.bits(ahead=ahead), np.zeros(len(pieces), np.bool_)
        for word in np.flatnonzero(by[: len(bits)]):
            held |= (bits[word, pieces] & by[word]) != 0
        return held

    def keep_only(self, alive: NDArray[np.uint64]) -> None:
        """Forget the leases that are not among `alive`, uint64 [WORDS]."""
        self.open_in &= alive
        if self.taken:
            self._bits[: self.words] &= alive[: self.words, None, None]

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
        self._bits[: self.words] = 0
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
    sizes = [_HEADER.itemsize, 2 * count, 4 * count, _word_bytes(count) * leases.WORDS]
    offsets: list[int] = np.cumsum([size + -size % _ALIGN for size in sizes]).tolist()
    return offsets


def _word_bytes(count: int) -> int:
    """Return the bytes that 64 leases take: a bit for each piece that is needed, and one where it is expected to be."""
    return 2 * 8 * count


def _taken(count: int, words: int) -> int:
    """Return the bytes of a table's file that have space on the disk."""
    return _offsets(count)[2] + words * _word_bytes(count)


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
