"""A cache that many processes share: each has a lease, of which there are 1,024."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from _cache_user import filled_store, opened, read

from shardio.cache import leases
from shardio.cache.cached_object import PRESENT
from shardio.cache.node_cache import NodeCache
from shardio.errors import CacheError
from shardio.format.pieces import PIECE
from shardio.system.directory import Directory


def take_leases(folder: Path, count: int) -> list[leases.Lease]:
    """Take the next `count` leases of a cache, as other processes would that hold nothing."""
    directory = Directory(folder / "leases")
    taken = [lease for _ in range(count) if (lease := leases.take(directory)) is not None]
    assert len(taken) == count
    return taken


@pytest.mark.long
@pytest.mark.slow
def test_more_than_128_processes(tmp_path: Path) -> None:
    """8 ranks with 16 isolated workers each, and one process more, share a cache; each holds what it needs."""
    cache = NodeCache(tmp_path, 200 * PIECE)
    cache.object("group", "shared", 136 * PIECE)
    children, (held, tell), (end, keep) = [], os.pipe(), os.pipe()
    try:
        for number in range(136):
            children.append(os.fork())
            if not children[-1]:
                try:
                    os.close(keep)
                    mine = NodeCache(tmp_path, 200 * PIECE)
                    found = mine.hold([(mine.object("group", "shared", 136 * PIECE), np.array([number]))])
                    os.write(tell, b"+" if found is not None else b"-")
                    os.read(end, 1)
                finally:
                    os._exit(0)
        assert read_all(held, 136) == b"+" * 136
        assert cache.used == 136 * PIECE
        assert cache.hold([(cache.object("group", "few", 65 * PIECE), np.arange(65))]) is None  # 136 + 65 > 200
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for descriptor in (held, tell, end, keep):
            os.close(descriptor)
    assert cache.hold([(cache.object("group", "other", 200 * PIECE), np.arange(200))]) is not None  # all of them died


def read_all(descriptor: int, count: int) -> bytes:
    """Read `count` bytes from a pipe."""
    data = b""
    while len(data) < count and (more := os.read(descriptor, count)):
        data += more
    return data


@pytest.mark.parametrize("before", [63, 64, 300])
def test_leases_of_every_word(tmp_path: Path, before: int) -> None:
    """A process with any lease holds pieces that the others don't evict, expected ones last, until it lets go."""
    store = filled_store()
    first, theirs = opened(tmp_path, 20, store)
    others = take_leases(tmp_path, before)
    late, files = opened(tmp_path, 20, store)
    hold = late.fetch([(files["a"], np.arange(8))])
    ahead = late.prefetch([(files["a"], np.arange(10, 14))], 0)
    assert ahead is not None
    for start in range(0, 48, 4):
        read(first, theirs["d"], start, start + 4)
    assert (files["a"].cached.table.state[:8] == PRESENT).all()
    assert (files["a"].cached.table.state[10:14] == PRESENT).all()
    assert first.prefetch([(theirs["b"], np.arange(9))], 0) is None  # 8 + 4 + 9 pieces are more than 20
    hold.release()
    ahead.release()
    assert first.prefetch([(theirs["b"], np.arange(17))], 0) is not None
    for lease in others:
        lease.end()


def test_a_dead_process_with_a_high_lease_holds_nothing(tmp_path: Path) -> None:
    """Pieces that a killed process held or was fetching are free, whatever its lease."""
    cache = NodeCache(tmp_path, 20 * PIECE)
    others = take_leases(tmp_path, 500)
    child = os.fork()
    if not child:
        try:
            mine = NodeCache(tmp_path, 20 * PIECE)
            mine.hold([(mine.object("group", "a", 20 * PIECE), np.arange(20))])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert cache.used == 20 * PIECE
    for lease in others:
        lease.end()
    assert cache.hold([(cache.object("group", "b", 20 * PIECE), np.arange(20))]) is not None


@pytest.mark.long
def test_more_processes_than_leases(tmp_path: Path) -> None:
    """Process 1,025 gets an error that names the folder and the limit; it gets a place once another one ends."""
    first = NodeCache(tmp_path, PIECE)
    others = take_leases(tmp_path, 1023)
    with pytest.raises(CacheError, match=rf"{tmp_path}: 1024 processes use this cache already"):
        NodeCache(tmp_path, PIECE)
    others[700].end()
    assert NodeCache(tmp_path, PIECE).used == first.used == 0
    for lease in others:
        lease.end()


def test_a_cache_of_another_version(tmp_path: Path) -> None:
    """A cache that another version made is an error that names it and says what to do."""
    NodeCache(tmp_path, PIECE)
    state = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes((1).to_bytes(8, "little") + state[8:4096])
    with pytest.raises(CacheError, match=rf"{tmp_path}: another version of shardio made this cache: remove it"):
        NodeCache(tmp_path, PIECE)


def test_a_table_takes_space_for_the_processes_that_there_are(tmp_path: Path) -> None:
    """Up to 64 processes, the table of an object takes less than 1/2,500 of its size."""
    cache = NodeCache(tmp_path, PIECE)
    cache.object("group", "large", 100_000 * PIECE)
    table = tmp_path / "tables/group/large"
    assert table.stat().st_blocks * 512 < 100_000 * PIECE / 2500
