"""A cache with objects in a store; run as a program, it reads spans at random until it is killed, and checks bytes."""

import os
import random
import sys
from pathlib import Path

import numpy as np

from shardio.cache.fetcher import Fetcher, RemoteFile
from shardio.cache.node_cache import NodeCache
from shardio.format.pieces import PIECE, piece_count, pieces_of
from shardio.stores.base import Store
from shardio.stores.folder import FolderStore
from shardio.testing.stores import Faults, FaultyStore, MemoryStore

OBJECTS = {"a": 30 * PIECE + 5, "b": 17 * PIECE, "c": 1000, "d": 50 * PIECE - 1}
"""The sizes of the objects of the tests."""


def content(number: int, size: int) -> bytes:
    """The bytes of object `number`: no two pieces are alike, and none is zeros."""
    return np.random.default_rng(number).integers(1, 255, size, np.uint8).tobytes()


def objects() -> dict[str, bytes]:
    """OBJECTS with their bytes, the same in every process."""
    return {name: content(number, size) for number, (name, size) in enumerate(OBJECTS.items())}


def filled_store() -> MemoryStore:
    """A store with OBJECTS."""
    return MemoryStore(objects())


def opened(folder: Path, pieces: int, store: Store) -> tuple[Fetcher, dict[str, RemoteFile]]:
    """A cache of some pieces, and the objects in it."""
    fetcher = Fetcher(NodeCache(folder, pieces * PIECE), requests=4)
    files = {n: RemoteFile(store, n, fetcher.cache.object("group", n, size)) for n, size in OBJECTS.items()}
    return fetcher, files


def read(fetcher: Fetcher, file: RemoteFile, first: int, stop: int) -> bytes:
    """The bytes of some pieces, by way of the cache."""
    hold = fetcher.fetch([(file, np.arange(first, min(stop, piece_count(OBJECTS[file.name]))))])
    data = os.pread(file.cached.file, (stop - first) * PIECE, first * PIECE)
    hold.release()
    return data


def on_disk(folder: Path) -> int:
    """Bytes that the objects of a cache take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in (folder / "files").rglob("*") if path.is_file())


def use(folder: Path, limit: int, seed: int, rounds: int | None, files_in: Path | None) -> None:
    """Read from the store, which may be a folder, `rounds` times or for ever."""
    whole = filled_store()
    store = whole if files_in is None else FolderStore(files_in)
    fetcher, files = opened(folder, limit // PIECE, FaultyStore(store, Faults(delay=0.002), seed))
    cache = fetcher.cache
    draw, done = random.Random(seed), 0
    while rounds is None or done < rounds:
        name = draw.choice(list(files))
        file, size = files[name], OBJECTS[name]
        start = draw.randrange(size)
        length = min(draw.randrange(1, 6 * PIECE), size - start)
        pieces = pieces_of(np.array([start]), np.array([length]))
        ahead = (
            fetcher.prefetch([(file, (pieces + 3) % len(file.cached.table.state))], limit // 2)
            if draw.random() < 0.3
            else None
        )
        hold = fetcher.fetch([(file, pieces)])
        if os.pread(file.cached.file, length, start) != whole.read(name, start, start + length).data:
            print(f"{name}: bytes {start} to {start + length} are not those of the store", flush=True)
            os._exit(1)
        if cache.used > limit:
            print(f"{cache.used} bytes are used of {limit}", flush=True)
            os._exit(1)
        hold.release()
        if ahead is not None:
            ahead.release()
        done += 1


if __name__ == "__main__":
    where, most, number, times, *stored = sys.argv[1:]
    use(Path(where), int(most), int(number), int(times) or None, Path(stored[0]) if stored else None)
