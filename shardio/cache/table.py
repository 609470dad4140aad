"""The table of an object's pieces, which all processes of a node map: the state of each, and who needs it."""

import mmap
import os
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from .pieces import PIECE, piece_count

ABSENT, PRESENT = 0, 255
"""States of a piece; between them stands the number of the lease of the process that fetches it, plus 1."""

_HEADER = np.dtype([("size", "<i8"), ("taken", "<i8"), ("open_in", "<u8"), ("etag", "S200")])
_ALIGN = 64


@final
class PieceTable:
    """The pieces of one object, as columns that all processes map. Whoever changes them holds the cache's lock.

    Args:
        path: the table's file, which is made if there is none.
        size: the object's size in bytes; None for the size that the table was made with.

    Attributes:
        path: the file.
        size: the object's size in bytes.
        state: uint8 [pieces].
        used: uint32 [pieces]: when each piece was last given back, on the cache's own clock.
        holders: uint64 [pieces]: the leases of the processes that need the piece, as bits.
        open_in: uint64 [1]: the leases of the processes that have the object open, as bits.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if size is not None else 0) | os.O_CLOEXEC, 0o666)
        try:
            if (new := os.fstat(descriptor).st_size == 0) and size is not None:
                os.ftruncate(descriptor, _offsets(piece_count(size))[-1])
            mapped = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._header = np.frombuffer(mapped, _HEADER, 1)
        if new and size is not None:
            self._header["size"] = size
        self.size = int(self._header["size"][0])
        self.open_in = self._header["open_in"]
        count = piece_count(self.size)
        offsets = _offsets(count)
        if len(mapped) != offsets[-1]:
            raise ValueError(f"{path}: the table of a cache has {len(mapped)} bytes, not {offsets[-1]}")
        self.state = np.frombuffer(mapped, np.uint8, count, offsets[0])
        self.used = np.frombuffer(mapped, np.uint32, count, offsets[1])
        self.holders = np.frombuffer(mapped, np.uint64, count, offsets[2])

    @property
    def etag(self) -> str | None:
        """The ETag of the object that all pieces belong to; None as long as it is unknown."""
        return bytes(self._header["etag"][0]).decode() or None

    @etag.setter
    def etag(self, value: str) -> None:
        self._header["etag"] = value.encode()

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
    sizes = [_HEADER.itemsize, count, 4 * count, 8 * count]
    offsets: list[int] = np.cumsum([size + -size % _ALIGN for size in sizes]).tolist()
    return offsets
