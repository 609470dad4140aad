"""A process that uses a cache until it is killed: it reads spans at random, and checks every byte."""

import os
import random
import sys
from pathlib import Path

import numpy as np

from shardio.cache.fetcher import Fetcher, RemoteFile
from shardio.cache.node_cache import NodeCache
from shardio.format.pieces import PIECE, pieces_of
from shardio.stores.local import LocalStore
from shardio.testing.stores import Faults, FaultyStore


def content(number: int, size: int) -> bytes:
    """The bytes of object `number`: no two pieces are alike, and none is zeros."""
    return np.random.default_rng(number).integers(1, 255, size, np.uint8).tobytes()


def use(folder: Path, limit: int, objects: dict[str, int], seed: int, rounds: int | None) -> None:
    """Read from the store beside the cache, `rounds` times or for ever."""
    store = FaultyStore(LocalStore(folder / "store"), Faults(delay=0.002), seed)
    cache = NodeCache(folder / "cache", limit)
    fetcher = Fetcher(cache, requests=4)
    data = {name: content(number, size) for number, (name, size) in enumerate(objects.items())}
    files = {name: RemoteFile(store, name, cache.object("group", name, size)) for name, size in objects.items()}
    draw, done = random.Random(seed), 0
    while rounds is None or done < rounds:
        name = draw.choice(list(files))
        file, size = files[name], objects[name]
        start = draw.randrange(size)
        length = min(draw.randrange(1, 6 * PIECE), size - start)
        pieces = pieces_of(np.array([start]), np.array([length]))
        ahead = (
            fetcher.ask([(file, (pieces + 3) % len(file.cached.table.state))], limit // 2)
            if draw.random() < 0.3
            else None
        )
        hold = fetcher.bring([(file, pieces)])
        if os.pread(file.cached.file, length, start) != data[name][start : start + length]:
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
    where, most, sizes, number, times = sys.argv[1:]
    named = {part.split("=")[0]: int(part.split("=")[1]) for part in sizes.split(",")}
    use(Path(where), int(most), named, int(number), int(times) or None)
