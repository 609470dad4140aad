"""The cache of a node where the machine, the disk or the process fails it."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from threading import Thread, Timer

import numpy as np
import pytest
from _cache_user import OBJECTS, content, filled_store, objects, on_disk, opened, read
from _small_disk import small_disk
from _stores import Fill
from _time_limit import wait_until, within

from shardio.cache import eviction, node_cache
from shardio.cache.fetcher import Fetcher, RemoteFile
from shardio.cache.location import open_cache
from shardio.cache.node_cache import NodeCache
from shardio.errors import CacheError, CacheWarning, ConfigError, StoreUnavailable
from shardio.format.pieces import PIECE
from shardio.stores.base import Content, Store
from shardio.system import holes
from shardio.testing.stores import Faults, FaultyStore, MemoryStore


def other_process(folder: Path, script: str, pieces: int) -> subprocess.Popen[bytes]:
    """A process that opens the cache with room for some pieces, and runs more code."""
    code = "import os, signal, sys, time\nimport numpy as np\nfrom pathlib import Path\n"
    code += "from shardio.cache.node_cache import NodeCache\n"
    code += f"cache = NodeCache(Path(sys.argv[1]), {pieces * PIECE})\n"
    return subprocess.Popen([sys.executable, "-c", code + script, folder], stdin=PIPE, stdout=PIPE)


class BlockingStore:
    """Passes reads on when the test lets it."""

    url = "memory://"

    def __init__(self, store: MemoryStore) -> None:
        self._store, self.go_on, self.asked = store, threading.Event(), threading.Event()

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        self.asked.set()
        assert self.go_on.wait(30)
        return self._store.read(name, start, stop, etag=etag)


def test_a_failure_of_a_thread_that_fetches_is_raised(tmp_path: Path) -> None:
    """Whatever exception a fetch ends with, who waits for it gets it; it holds no room, and the next try works."""

    class Odd(BlockingStore):
        def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
            raise RecursionError("odd")

    store = filled_store()
    failing: list[tuple[Store, type[Exception], str]] = [
        (Odd(store), RecursionError, "odd"),
        (FaultyStore(store, Faults(refused=1.0)), StoreUnavailable, "503"),
    ]
    for faulty, error, words in failing:
        fetcher, files = opened(tmp_path, 40, faulty)
        for _ in range(10):  # more than it has threads
            with pytest.raises(error, match=words):
                fetcher.fetch([(files["a"], np.arange(10))])
        wait_until(lambda fetcher=fetcher: fetcher.cache.used == 0)  # type: ignore[misc]
    good, theirs = opened(tmp_path, 40, store)
    assert read(good, theirs["a"], 0, 10) == store.read("a", 0, 10 * PIECE).data


def test_a_full_disk(tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full below the limit, the cache uses less, warns once, and goes on with right bytes."""
    store, room = fill(objects()), 12 * PIECE
    fetcher, files = opened(tmp_path, 40, store)
    write = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if on_disk(tmp_path) + len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    starts = (0, 4, 8, 12, 16, 20, 24, 0, 8)
    with pytest.warns(CacheWarning, match="the disk is full") as told:
        came = [read(fetcher, files["a"], start, start + 4) for start in starts]
    assert came == [store.read("a", start * PIECE, (start + 4) * PIECE).data for start in starts]
    assert len(told) == 1
    assert on_disk(tmp_path) <= room
    assert fetcher.cache.most < 40 * PIECE


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
def test_a_disk_that_fails(tmp_path: Path, fill: Fill, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes no pieces or tables any more, read-only or broken, is an error that names it."""
    store = fill(objects())
    fetcher, files = opened(tmp_path, 40, store)

    def failing(*given: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def use() -> bytes:
        fetcher.cache.object("group", "new", PIECE)
        return read(fetcher, files["a"], 0, 2)

    words = f"{tmp_path}: cannot hold a cache: Read-only file system: give a folder"
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(CacheError, match=words):
            use()
    assert use() == store.read("a", 0, 2 * PIECE).data


def test_a_full_disk_that_others_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache has nothing to drop, a full disk is an error in words, and not a wait without end."""
    monkeypatch.setattr("shardio.cache.fetcher.FULL_SECONDS", 0.1)
    fetcher, files = opened(tmp_path, 40, filled_store())

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.warns(CacheWarning), pytest.raises(CacheError, match="the disk is full"):
        read(fetcher, files["a"], 0, 2)


def test_a_full_disk_that_has_room_again(tmp_path: Path, fill: Fill) -> None:
    """Where another program has filled the disk, a reader waits for room, goes on, and the limit rises again."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        fetcher, files = opened(disk / "cache", 100, fill(objects()))
        read(fetcher, files["d"], 0, 2)
        other = disk / "other"
        with open(other, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        Timer(0.3, other.unlink).start()
        with pytest.warns(CacheWarning, match="the disk is full"):
            assert read(fetcher, files["a"], 0, 20) == content(0, OBJECTS["a"])[: 20 * PIECE]
        assert fetcher.cache.most >= 20 * PIECE


def test_a_full_disk_has_no_room_for_a_table(tmp_path: Path) -> None:
    """An object whose table of pieces has no room is an error in words; pieces that may be dropped make the room."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        cache = NodeCache(disk / "cache", 1 << 30)
        fetcher, store = Fetcher(cache), MemoryStore({"a": content(0, 40 * PIECE)})
        file = RemoteFile(store, "a", cache.object("group", "a", 40 * PIECE))
        hold = fetcher.fetch([(file, np.arange(40))])
        with open(disk / "other", "wb", buffering=0) as other, suppress(OSError):
            while True:
                other.write(bytes(4096))
        with pytest.raises(CacheError, match=rf"{disk}/cache: the disk is full.*folder on another disk"):
            cache.object("group", "b", 1 << 30)
        hold.release()
        with pytest.warns(CacheWarning, match="the disk is full"):
            assert cache.object("group", "b", 1 << 30).table.size == 1 << 30


def test_what_is_kept_while_there_is_room(tmp_path: Path) -> None:
    """Pieces that stay while there is room go when another reader needs it, but not while somebody reads them."""
    fetcher, files = opened(tmp_path, 50, filled_store())
    assert fetcher.cache.keep_while_room(files["a"].cached) is None
    read(fetcher, files["a"], 0, 31)
    kept = fetcher.cache.keep_while_room(files["a"].cached)
    reading = kept.hold
    call = Thread(target=read, args=(fetcher, files["d"], 0, 40))
    call.start()
    wait_until(lambda: kept.hold is None)
    assert reading.present
    call.join(0.2)
    assert call.is_alive()
    del reading
    call.join(30)
    assert not call.is_alive()


def test_the_size_that_was_given_last_holds(tmp_path: Path) -> None:
    """A cache_size that was too small does not bind later openings of the process, and the same cache is used."""
    small = open_cache(tmp_path, "1MB")
    with pytest.raises(CacheError, match=r"give a cache_size of at least 6\.6 MB"):
        opened_in(small, filled_store())
    assert small.used == 0
    larger = open_cache(tmp_path, "10MB")
    opened_in(larger, filled_store())
    assert larger.most == 10_000_000
    assert open_cache(tmp_path, None) is open_cache(tmp_path, "10MB") is larger


def opened_in(cache: NodeCache, store: MemoryStore) -> None:
    """Read an object of 3.3 MB at once."""
    fetcher = Fetcher(cache)
    file = RemoteFile(store, "d", cache.object("group", "d", OBJECTS["d"]))
    fetcher.fetch([(file, np.arange(50))]).release()


def test_a_limit_that_another_process_gave(tmp_path: Path) -> None:
    """Where the limit of another process is too small, the error says so, and does not ask for a larger one here."""
    with other_process(tmp_path, "print('open', flush=True)\nsys.stdin.read()", 16) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(CacheError, match=r"another process gave a smaller cache_size than the 10\.0 MB"):
            opened_in(open_cache(tmp_path, "10MB"), filled_store())
        other.communicate()


@pytest.mark.parametrize(
    ("part", "words"),
    [(".", "was removed"), ("tables", "tables/group was removed"), ("files", None)],  # None: it is fetched again
)
def test_a_folder_that_is_removed(tmp_path: Path, part: str, words: str | None) -> None:
    """A cache removed while it is in use is an error in words; opened again in the same process, it is made anew."""
    place, store = tmp_path / "cache", filled_store()
    fetcher = Fetcher(open_cache(place, "10MB"))
    file = RemoteFile(store, "a", fetcher.cache.object("group", "a", OBJECTS["a"]))
    hold = fetcher.fetch([(file, np.arange(10))])
    shutil.rmtree(place / part)
    hold.release()
    if words is not None:
        with pytest.raises(CacheError, match=f"{words} while the cache in {place} was in use: open the dataset anew"):
            fetcher.cache.object("group", "b", OBJECTS["b"])
    del fetcher, file, hold
    later = Fetcher(open_cache(place, "10MB"))
    file = RemoteFile(store, "a", later.cache.object("group", "a", OBJECTS["a"]))
    assert read(later, file, 5, 15) == content(0, OBJECTS["a"])[5 * PIECE : 15 * PIECE]
    assert later.cache.used == (place / "files/group/a").stat().st_blocks * 512 == later.counts.bytes


@pytest.mark.slow
def test_a_stopped_process_that_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening waits for a process that has the cache's lock for a limited time, and then names it; later it works."""
    monkeypatch.setattr(node_cache, "LOCK_SECONDS", 0.5)
    script = (
        "with cache._changing():\n    print('locked', flush=True)\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "print('unlocked', flush=True)"
    )
    with other_process(tmp_path, script, 16) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            with (
                within(30),
                pytest.raises(CacheError, match=rf"process {other.pid} has kept the cache locked for .* s"),
            ):
                NodeCache(tmp_path, 1 << 20)
        finally:
            other.send_signal(signal.SIGCONT)
        assert other.stdout.readline() == b"unlocked\n"
        assert NodeCache(tmp_path, 1 << 20).used == 0


def test_sizes_and_folders_that_are_none(tmp_path: Path) -> None:
    """What can be no cache's size or folder is refused in words."""
    for size, words in (
        (1 << 63, r"cache_size must be less than 2\^63 bytes, got 9223372036854775808"),  # no int64
        ("9e9TB", "cache_size must be a size such as"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_cache(tmp_path, size)
    with pytest.raises(ConfigError, match="must have no NUL byte in its name"):
        open_cache(f"{tmp_path}/a\0b", "1MB")


def test_pieces_of_an_earlier_boot(tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the machine was started anew a piece is fetched again, unless its checksum says that it is there."""
    store = fill(objects())
    fetcher, files = opened(tmp_path, 40, store)
    whole = bytes(store.read("a").data)
    read(fetcher, files["a"], 0, 20)
    os.pwrite(files["a"].cached.file, bytes(PIECE), 7 * PIECE)  # a piece that was not written back
    monkeypatch.setattr(node_cache.portable, "boot", lambda: b"another")
    counting = FaultyStore(store, Faults())
    later, theirs = opened(tmp_path, 40, counting)
    assert read(later, theirs["a"], 5, 9) == whole[5 * PIECE : 9 * PIECE]
    assert later.counts.bytes == 4 * PIECE
    expected = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]
    checked = RemoteFile(counting, "a", theirs["a"].cached, lambda number, data: data == expected[number])
    assert read(later, checked, 9, 20) == whole[9 * PIECE : 20 * PIECE]
    assert later.counts.bytes == 4 * PIECE  # nothing more
    assert later.cache.used == 20 * PIECE
    unknown = RemoteFile(counting, "a", theirs["a"].cached, lambda number, data: None)
    assert read(later, unknown, 0, 2) == whole[: 2 * PIECE]
    assert later.counts.bytes == 6 * PIECE


def test_a_table_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and files that a crash of the machine left empty or cut are made anew."""
    store = filled_store()
    fetcher, files = opened(tmp_path, 100, store)
    for name in ("a", "b", "d"):
        read(fetcher, files[name], 0, 5)
    os.truncate(tmp_path / "tables/group/a", 0)
    os.truncate(tmp_path / "tables/group/b", 100)
    os.truncate(tmp_path / "files/group/d", 0)
    monkeypatch.setattr(node_cache.portable, "boot", lambda: b"another")
    later, theirs = opened(tmp_path, 100, store)
    for name in ("a", "b", "d"):
        assert read(later, theirs[name], 0, 5) == store.read(name, 0, 5 * PIECE).data
    assert later.cache.used == 15 * PIECE


@pytest.mark.slow
def test_a_smaller_limit(tmp_path: Path) -> None:
    """A process with a smaller limit makes the cache smaller as it joins; when it ends, the others' limit holds."""
    fetcher, files = opened(tmp_path, 60, filled_store())
    read(fetcher, files["d"], 0, 50)
    with other_process(tmp_path, "print(cache.used)", 20) as other:
        assert int(other.communicate()[0]) <= 20 * PIECE
    assert on_disk(tmp_path) <= 20 * PIECE
    time.sleep(0.6)  # as long as a look at who lives is good for
    read(fetcher, files["d"], 0, 50)
    assert fetcher.cache.used >= 50 * PIECE


@pytest.mark.slow
def test_an_interrupt_in_the_main_thread(tmp_path: Path) -> None:
    """Ctrl-C while the main thread waits for a piece leaves no lock taken, and nothing held or half-fetched."""
    store = BlockingStore(filled_store())
    fetcher, files = opened(tmp_path, 12, store)
    threading.Thread(target=lambda: (store.asked.wait(), time.sleep(0.1), os.kill(os.getpid(), signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        fetcher.fetch([(files["a"], np.arange(10))])
    store.go_on.set()
    wait_until(lambda: fetcher.prefetch([(files["d"], np.arange(12))], 0) is not None)  # needs the room of all of them
    other = NodeCache(tmp_path, 12 * PIECE)
    assert other.used == 12 * PIECE


@pytest.mark.slow
def test_a_child_keeps_no_lease_of_a_dead_parent(tmp_path: Path) -> None:
    """Pieces that a killed process held are free, although a child that it forked lives on."""
    script = (
        "hold, claims = cache.hold([(cache.object('group', 'a', 20 << 16), np.arange(20))])\n"
        "child = os.fork()\n"
        "if not child:\n    os.close(1)\n    time.sleep(60)\n    os._exit(0)\n"
        "print(child, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with other_process(tmp_path, script, 20) as other:
        child = int(other.stdout.readline())
    try:
        cache = NodeCache(tmp_path, 20 * PIECE)
        wanted = [(cache.object("group", "b", 20 * PIECE), np.arange(20))]
        wait_until(lambda: cache.hold(wanted) is not None)  # the child lets go of the lease once it runs
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("wrong", ["is a file", "cannot free parts of files"])
def test_a_folder_that_cannot_hold_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """A folder that cannot hold a cache is an error that names it, `cache=` and the folder in memory, which can."""
    place = tmp_path / "file" / "cache"
    if wrong == "is a file":
        (tmp_path / "file").write_bytes(b"")
    else:
        monkeypatch.setattr(holes, "are_possible", lambda folder: False)
    with pytest.raises(CacheError, match=rf"{place}: cannot hold a cache: .*cache=.*/dev/shm"):
        open_cache(place, "1MB")
    monkeypatch.undo()
    with TemporaryDirectory(dir="/dev/shm") as memory:
        assert open_cache(memory, "1MB").folder == Path(memory)


def test_many_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a cache has more objects than it looks at for what to drop, room is found all the same."""
    monkeypatch.setattr(eviction, "MOST_LOOKED_AT", 3)
    store = MemoryStore({f"{n}": bytes([n + 1]) * PIECE for n in range(40)})
    fetcher = Fetcher(NodeCache(tmp_path, 10 * PIECE))
    for n in [*range(40), *range(40)]:
        file = RemoteFile(store, f"{n}", fetcher.cache.object("group", f"{n}", PIECE))
        hold = fetcher.fetch([(file, np.arange(1))])
        assert os.pread(file.cached.file, PIECE, 0) == bytes([n + 1]) * PIECE
        assert on_disk(tmp_path) <= 10 * PIECE
        hold.release()
