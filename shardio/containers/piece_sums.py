"""The checksums of the pieces of a shard's files: the optional `NAME.sums.idx.npy` next to the shard.

A cache fetches files in pieces of `PIECE` bytes, and compares each one with its checksum before anyone sees it. The
table is an array in `.npy` format: XXH3-64 of each piece of the shard, then of each piece of its index. In it stand
checksums of the table itself: the last 8 bytes of each `PIECE` bytes of it, and its own last 8, are XXH3-64 over the
shard's checksum in the manifest, the number of these bytes and what stands before. So the table of another shard, or of
an older state of this one, is never taken for the right one. This module alone knows the layout.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.checksums import FileSums
from ..format.pieces import PIECE, piece_count
from ..system import npy
from ..system.types import Buffer
from . import files

SUFFIX = ".sums.idx.npy"
_DTYPE = np.dtype([("xxh3_64", "<u8")])
_ENTRY = _DTYPE.itemsize
_HEADER = len(npy.header_of(_DTYPE, (0,)))
_PAYLOAD = PIECE - _ENTRY
"""Bytes of a block of the table without its own checksum."""


def path_of(shard: Path) -> Path:
    """Return the path of a shard's table: `shard-000000.tar` has `shard-000000.tar.sums.idx.npy`."""
    # The whole name counts: adopted files may differ only in what follows a dot. It ends like an index, so that no
    # release takes it for a file of others in the same folder.
    return shard.with_name(shard.name + SUFFIX)


def of_files(paths: Iterable[Path], begun: FileSums | None = None) -> tuple[int, str, bytes]:
    """Read the files of a shard once.

    Args:
        paths: the shard, then its index.
        begun: the checksums of what need not be read: the first blocks of the shard.

    Returns:
        Their total size in bytes and their checksum, as the manifest has them, and the content of the shard's table.
    """
    sums = begun or FileSums(PIECE)
    sums.add_files(paths)
    checksum = sums.whole.hexdigest()
    return sums.size, checksum, to_bytes(np.array(sums.pieces, np.uint64), checksum)


def to_bytes(sums: NDArray[np.uint64], checksum: str) -> bytes:
    """Return the content of a table.

    Args:
        sums: the checksums of the pieces of all files of a shard, uint64 [pieces].
        checksum: the shard's checksum in the manifest.
    """
    blocks = -(-(_HEADER + _ENTRY * len(sums)) // _PAYLOAD)
    data = npy.header_of(_DTYPE, (len(sums) + blocks,)) + np.asarray(sums, "<u8").tobytes()
    parts = [data[begin : begin + _PAYLOAD] for begin in range(0, len(data), _PAYLOAD)]
    return b"".join(part + _own_checksum(checksum, number, part) for number, part in enumerate(parts))


def size_of(sizes: Iterable[int]) -> int:
    """Return the bytes of the table of files of these sizes."""
    data = _HEADER + _ENTRY * sum(map(piece_count, sizes))
    return data + _ENTRY * -(-data // _PAYLOAD)


def offset_of(entry: int) -> int:
    """Return where the 8 bytes of a checksum begin in a table; they are little-endian.

    Args:
        entry: the number of the piece among those of all files of the shard, one after the other.
    """
    begin = _HEADER + _ENTRY * entry
    return begin + _ENTRY * (begin // _PAYLOAD)


def is_block_whole(checksum: str, number: int, block: Buffer) -> bool:
    """Return whether a piece of a table is what was written.

    Args:
        checksum: the checksum in the manifest of the shard that the table belongs to.
        number: the number of the piece.
        block: its bytes.
    """
    data = memoryview(block)
    return bytes(data[-_ENTRY:]) == _own_checksum(checksum, number, data[:-_ENTRY])


def is_whole(checksum: str, table: Buffer) -> bool:
    """Return whether all of a table is what was written; see `is_block_whole`."""
    data = memoryview(table)
    blocks = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
    return bool(blocks) and all(is_block_whole(checksum, number, block) for number, block in enumerate(blocks))


def load(shard: Path, most: int) -> bytes | None:
    """Return the first `most` bytes of the table next to a shard; None if there is none."""
    try:
        descriptor = files.open_raw(path_of(shard))
    except ShardCorrupt:
        return None
    try:
        return os.pread(descriptor, most, 0)
    finally:
        os.close(descriptor)


def matches(shard: Path, table: bytes) -> bool:
    """Return whether the table next to a shard is there and has exactly this content."""
    return load(shard, len(table) + 1) == table


def looks_like_one(shard: Path) -> bool:
    """Return whether the file at the path of a shard's table begins as a table does, so that it may be replaced."""
    found, begin = load(shard, _HEADER) or b"", npy.header_of(_DTYPE, (0,))
    return found.partition(b"'shape'")[0] == begin.partition(b"'shape'")[0]


def _own_checksum(checksum: str, number: int, part: Buffer) -> bytes:
    state = xxhash.xxh3_64(f"{checksum}:{number}:".encode())
    state.update(part)
    return state.intdigest().to_bytes(_ENTRY, "little")
