"""The cache of a node: what processes that share it see, whatever happens to some of them."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _cache_user import OBJECTS, content, filled_store, objects, on_disk, opened, read
from _stores import Fill, in_folder, replace

from shardio.cache.cached_object import PRESENT
from shardio.cache.fetcher import RemoteFile
from shardio.cache.node_cache import NodeCache
from shardio.errors import ObjectChanged, StoreError
from shardio.format.pieces import PIECE, piece_count
from shardio.testing.stores import Faults, FaultyStore

USER = Path(__file__).with_name("_cache_user.py")


@pytest.mark.parametrize("pieces", [8, 40, 200])
def test_bytes_are_those_of_the_store(tmp_path: Path, pieces: int, fill: Fill) -> None:
    """Whatever the limit, readers get the object's bytes, and neither the count nor the disk is ever above it."""
    store, draw = fill(objects()), random.Random(pieces)
    fetcher, files = opened(tmp_path, pieces, store)
    for _ in range(150):
        name = draw.choice(list(files))
        first = draw.randrange(piece_count(OBJECTS[name]))
        stop = min(first + draw.randrange(1, 8), piece_count(OBJECTS[name]))
        expected = store.read(name, first * PIECE, stop * PIECE).data
        assert read(fetcher, files[name], first, stop)[: len(expected)] == expected
        assert fetcher.cache.used <= pieces * PIECE
        assert on_disk(tmp_path) <= pieces * PIECE
    if pieces == 200:  # all of it fits
        assert fetcher.counts.bytes <= sum(OBJECTS.values())


def test_what_is_held_stays(tmp_path: Path, fill: Fill) -> None:
    """A held piece is not dropped for others, by this process or another; what there is no room for is not held."""
    store = fill(objects())
    fetcher, files = opened(tmp_path, 20, store)
    other, theirs = opened(tmp_path, 20, store)
    hold = fetcher.fetch([(files["a"], np.arange(12))])
    for first in range(0, 48, 4):
        read(other, theirs["d"], first, first + 4)
    assert hold.present
    assert (files["a"].cached.table.state[:12] == PRESENT).all()
    assert other.prefetch([(theirs["b"], np.arange(9))], 0) is None  # 12 + 9 pieces are more than 20
    hold.release()
    held = other.prefetch([(theirs["b"], np.arange(9))], 0)
    assert held is not None


def test_each_piece_is_fetched_once(tmp_path: Path) -> None:
    """Processes that need the same pieces at once fetch each of them once among them."""
    with multiprocessing.get_context("fork").Pool(4) as users:
        fetched = users.starmap(fetch_all, [(tmp_path, number) for number in range(4)], 1)
    assert sum(fetched) == sum(OBJECTS.values())


def fetch_all(folder: Path, seed: int) -> int:
    """Fetch all objects; return the bytes that this process fetched."""
    fetcher, files = opened(folder, 1 << 14, FaultyStore(filled_store(), Faults(delay=0.05), seed))
    for name, file in files.items():
        fetcher.fetch([(file, np.arange(piece_count(OBJECTS[name])))]).release()
    return fetcher.counts.bytes


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_processes_that_are_killed(tmp_path: Path, kind: str) -> None:
    """kill -9 at any moment, of any of four processes: the others go on, no byte is wrong, and the limit holds."""
    limit, stored = 40 * PIECE, [] if kind == "memory" else [in_folder(tmp_path / "store", objects()).url]

    def start(number: int, rounds: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(USER), str(tmp_path), str(limit), str(number), str(rounds), *stored]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    draw = random.Random(0)
    users = [start(number, 0) for number in range(4)]
    try:
        time.sleep(1.5)
        for number in range(4, 12):
            time.sleep(draw.uniform(0.05, 0.4))
            place = draw.randrange(len(users))
            victim = users[place]
            assert victim.poll() is None, victim.stdout and victim.stdout.read()
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            users[place] = start(number, 0)
            assert on_disk(tmp_path) <= limit
    finally:
        for user in users:
            user.kill()
            user.communicate()
    last = start(99, 200)
    out, _ = last.communicate(timeout=60)
    assert (last.returncode, out) == (0, "")
    cache = NodeCache(tmp_path, limit)
    counted = sum(int(np.count_nonzero(np.asarray(one.table.state))) for one in cache.objects())
    assert cache.used == counted * PIECE <= limit
    assert on_disk(tmp_path) <= limit


@pytest.mark.parametrize("in_place", [False, True])
def test_an_object_that_was_replaced_is_an_error(tmp_path: Path, fill: Fill, in_place: bool) -> None:
    """Pieces of two versions of an object are never mixed: the second one is refused by name, in later runs too."""
    store = fill(objects())
    fetcher, files = opened(tmp_path, 40, store)
    read(fetcher, files["a"], 0, 3)
    if in_place and (path := Path(store.url) / "a").exists():
        path.write_bytes(content(77, OBJECTS["a"]))
    else:
        replace(store, "a", content(77, OBJECTS["a"]))
    for reader, theirs in ((fetcher, files), opened(tmp_path, 40, store)):
        with pytest.raises(ObjectChanged, match=f"{store.url}/?a"):
            read(reader, theirs["a"], 3, 6)
        assert read(reader, theirs["a"], 0, 3) == content(0, OBJECTS["a"])[: 3 * PIECE]


def test_an_object_that_was_written_again(tmp_path: Path, fill: Fill) -> None:
    """A file that was touched or copied back is read on if its checksums are the same; other bytes are refused."""
    store, whole = fill(objects()), content(0, OBJECTS["a"])
    expected = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]
    fetcher, files = opened(tmp_path, 40, store)
    checked = RemoteFile(store, "a", files["a"].cached, lambda number, data: data == expected[number])
    read(fetcher, checked, 0, 3)
    replace(store, "a", whole[:-1] + b"\0")  # whose last piece differs
    assert read(fetcher, checked, 3, 20) == whole[3 * PIECE : 20 * PIECE]
    with pytest.raises(StoreError, match=f"{store.url}/?a"):
        read(fetcher, checked, 30, 31)


def test_a_forked_process_has_holds_of_its_own(tmp_path: Path) -> None:
    """A forked child that holds and releases pieces leaves the parent's holds alone."""
    fetcher, files = opened(tmp_path, 20, filled_store())
    hold = fetcher.fetch([(files["a"], np.arange(10))])
    child = os.fork()
    if not child:
        code = 1
        try:
            hold.release()
            for first in range(0, 48, 4):
                read(fetcher, files["d"], first, first + 4)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert hold.present
    assert fetcher.cache.used <= 20 * PIECE
