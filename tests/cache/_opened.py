"""Objects in a store, and a cache that has them open."""

import os
from pathlib import Path

import numpy as np
from _cache_user import content

from shardio.cache.fetcher import Fetcher, RemoteFile
from shardio.cache.node_cache import NodeCache
from shardio.format.pieces import PIECE, piece_count
from shardio.stores.base import Store
from shardio.testing.stores import MemoryStore

OBJECTS = {"a": 30 * PIECE + 5, "b": 17 * PIECE, "c": 1000, "d": 50 * PIECE - 1}


def filled_store() -> MemoryStore:
    """A store with OBJECTS."""
    return MemoryStore({name: content(number, size) for number, (name, size) in enumerate(OBJECTS.items())})


def opened(folder: Path, pieces: int, store: Store) -> tuple[Fetcher, dict[str, RemoteFile]]:
    """A cache of some pieces, and the objects in it."""
    fetcher = Fetcher(NodeCache(folder, pieces * PIECE), requests=4)
    files = {n: RemoteFile(store, n, fetcher.cache.object("group", n, size)) for n, size in OBJECTS.items()}
    return fetcher, files


def read(fetcher: Fetcher, file: RemoteFile, first: int, stop: int) -> bytes:
    """The bytes of some pieces, by way of the cache."""
    hold = fetcher.bring([(file, np.arange(first, min(stop, piece_count(OBJECTS[file.name]))))])
    data = os.pread(file.cached.file, (stop - first) * PIECE, first * PIECE)
    hold.release()
    return data


def on_disk(folder: Path) -> int:
    """Bytes that the objects of a cache take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in (folder / "files").rglob("*") if path.is_file())
