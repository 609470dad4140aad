"""What tests look at in a cache."""

import os
from pathlib import Path

import numpy as np
from _cache_user import OBJECTS

from shardio.cache.fetcher import Fetcher, RemoteFile
from shardio.format.pieces import PIECE, piece_count


def read(fetcher: Fetcher, file: RemoteFile, first: int, stop: int) -> bytes:
    """The bytes of some pieces, by way of the cache."""
    hold = fetcher.fetch([(file, np.arange(first, min(stop, piece_count(OBJECTS[file.name]))))])
    data = os.pread(file.cached.file, (stop - first) * PIECE, first * PIECE)
    hold.release()
    return data


def on_disk(folder: Path) -> int:
    """Bytes that the objects of a cache take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in (folder / "files").rglob("*") if path.is_file())
