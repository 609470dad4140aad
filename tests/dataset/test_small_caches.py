"""Caches of a node that are smaller than a dataset, because of their limit or of their disk."""

import multiprocessing
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import files, packed
from _remote import opened
from _small_disk import small_disk
from _stores import Fill
from _time_limit import wait_until

import shardio
from shardio.cache import fetcher
from shardio.cache.node_cache import NodeCache
from shardio.errors import CacheWarning
from shardio.format.pieces import PIECE
from shardio.stores.base import Content, Store
from shardio.views.readable import ReadableDataset


def objects(folder: Path, rows: Iterable[Mapping[str, Any]], shard_size: str, called: str = "d") -> dict[str, bytes]:
    """The objects of a dataset of some samples."""
    path = packed(folder / called, rows, shard_size=shard_size).path
    return {f"{called}/{name}": data for name, data in files(path).items()}


@pytest.fixture
def store(fill: Fill, tmp_path: Path) -> Store:
    """A dataset of 8 MB in a store."""
    return fill(objects(tmp_path, ({"x": np.full(100_000, number, np.uint8)} for number in range(80)), "1MB"))


def test_a_window_that_the_cache_cannot_hold_is_told(store: Store, tmp_path: Path) -> None:
    """A Loader warns, and names a smaller window and a size; one whose window fits does not, nor does another order."""
    dataset = opened(store, tmp_path / "cache", limit=4 << 20)
    given: dict[str, Any] = {"batch_size": 4, "world": shardio.World(), "threads": 1}
    told = r"holds 4\.2 MB, and a window of shuffle='block' takes 8\.\d MB.*smaller window.*at least 10\.\d MB"
    with pytest.warns(CacheWarning, match=told):
        loader = shardio.Loader(dataset, shuffle="block", block=16, window=8, **given)
    assert sorted(n for batch in loader for n in batch["index"].tolist()) == list(range(80))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardio.Loader(dataset, shuffle="block", block=4, window=4, **given)
        shardio.Loader(dataset, shuffle="global", **given)
        shardio.Loader(opened(store, tmp_path / "large"), shuffle="block", block=16, window=8, **given)


class Holding:
    """A store that answers reads of one object when the test lets it."""

    def __init__(self, store: Store, held: str) -> None:
        self._store, self._held, self.asked, self.go_on = store, held, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str, *span: int | None, etag: str | None = None) -> Content:
        if name.endswith(self._held):
            self.asked.set()
            assert self.go_on.wait(60)
        return self._store.read(name, *span, etag=etag)  # type: ignore[arg-type]  # as it was given


def read(dataset: ReadableDataset, *indices: int) -> Any:
    """The first numbers of some samples, whose pieces are fetched at once."""
    selection = dataset.selection(np.array(indices))
    with selection.fetch(["x"]):
        return selection.column("x")[:, 0].tolist()


@pytest.mark.parametrize("of", ["one dataset", "two views"])
def test_who_waits_for_a_shard_keeps_no_other(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """A cache that becomes smaller has room for others while a reader waits, whatever shards it had kept whole."""
    monkeypatch.setattr(fetcher, "PATIENCE", 20.0)
    holding: Any = Holding(store, "shard-000003.tar")
    dataset = opened(holding, tmp_path / "cache", limit=10 << 20, requests=4)
    assert (dataset.read(range(20))["x"][:, 0] == range(20)).all()
    dataset.read(range(20))  # keeps these shards
    view = dataset if of == "one dataset" else shardio.concat({"kept": dataset[:30], "other": dataset[30:]})
    waiting = threading.Thread(target=read, args=(view, 1, 35))
    waiting.start()
    assert holding.asked.wait(30)
    smaller = NodeCache(tmp_path / "cache", 2_300_000)  # as another process would
    assert (dataset.read(range(50, 58))["x"][:, 0] == range(50, 58)).all()
    assert smaller.most == 2_300_000
    holding.go_on.set()
    waiting.join(30)
    assert not waiting.is_alive()


class Meeting:
    """A store whose first read of each shard waits until another shard is read as well, or for a second."""

    def __init__(self, store: Store) -> None:
        self._store, self._asked = store, dict[str, threading.Event]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def meet(self, *shards: str) -> None:
        """Begin to have the first reads of these shards wait for each other."""
        self._asked = {shard: threading.Event() for shard in shards}

    def read(self, name: str, *span: int | None, etag: str | None = None) -> Content:
        if name in self._asked and not self._asked[name].is_set():
            self._asked[name].set()
            for other in self._asked.values():
                other.wait(1)
        return self._store.read(name, *span, etag=etag)  # type: ignore[arg-type]  # as it was given


def two_datasets(fill: Fill, tmp_path: Path, caches: int) -> tuple[Any, Any, Any]:
    """A store, and two datasets of ten samples in it, with one cache or two that hold two samples together."""
    rows = [{"x": np.full(20 * PIECE, number, np.uint8)} for number in range(20)]
    stored = [objects(tmp_path, part, "50MB", name) for name, part in (("a", rows[:10]), ("b", rows[10:]))]
    store: Any = Meeting(fill(stored[0] | stored[1]))
    room = 2 * (22 + 2) * PIECE // caches  # a sample touches up to 22 pieces; an index and checksums take one each
    places = [NodeCache(tmp_path / f"cache {number}", room) for number in range(caches)]
    return store, *(opened(store, places[n % caches], requests=8, name=name) for n, name in enumerate("ab"))


@pytest.mark.parametrize("caches", [1, 2])
def test_readers_of_two_datasets_never_wait_for_each_other(
    fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: int
) -> None:
    """Where two samples fit, threads that read a sample of each of two datasets go on, in whatever order they read."""
    monkeypatch.setattr(fetcher, "PATIENCE", 20.0)
    store, a, b = two_datasets(fill, tmp_path, caches)
    forward, back = shardio.concat({"a": a, "b": b}), shardio.concat({"b": b, "a": a})
    assert read(forward, 0, 10) == [0, 10]  # opens the shards
    store.meet("a/shard-000000.tar", "b/shard-000000.tar")

    def read_all(view: ReadableDataset, first: int) -> None:
        for number in range(1, 10):
            assert read(view, number, 19 - number) == [first + number, (first + 19 - number) % 20]

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(read_all, forward, 0), threads.submit(read_all, back, 10)]:
            done.result()


@pytest.mark.parametrize("caches", [1, 2])
def test_readers_of_joins_never_wait_for_each_other(
    fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: int
) -> None:
    """Where two samples fit, two threads read a join and the one that joins the other way round, and both go on."""
    monkeypatch.setattr(fetcher, "PATIENCE", 20.0)
    store, a, b = two_datasets(fill, tmp_path, caches)
    forward, back = a.join(b, fields={"y": "x"}), b.join(a, fields={"y": "x"})

    def read_both(view: ReadableDataset, number: int) -> list[int]:
        selection = view.selection(np.array([number]))
        with selection.fetch(["x", "y"]):
            return [int(selection.column(name)[0, 0]) for name in ("x", "y")]

    assert read_both(forward, 0) == [0, 10]  # opens the shards
    store.meet("a/shard-000000.tar", "b/shard-000000.tar")

    def read_all(view: ReadableDataset, first: int) -> None:
        for number in range(1, 10):
            assert read_both(view, number) == [first + number, 10 - first + number]

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(read_all, forward, 0), threads.submit(read_all, back, 10)]:
            done.result()
    loaded = list(shardio.Loader(forward, 1, world=shardio.World(), threads=2, shuffle=None))
    assert [(int(one["x"][0, 0]), int(one["y"][0, 0])) for one in loaded] == [(n, n + 10) for n in range(10)]


SAMPLES, SAMPLE = 384, 100_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The objects of a dataset of 38 MB: nearly four times what the small disks of these tests hold."""
    rows = ({"x": values(number), "n": number} for number in range(SAMPLES))
    return objects(tmp_path_factory.mktemp("large"), rows, "2MB")


def values(number: int) -> np.ndarray:
    """The array of a sample: no two are alike."""
    return np.random.default_rng(number).integers(0, 255, SAMPLE, np.uint8)


def fetching() -> set[threading.Thread]:
    """The threads that fetch."""
    return {one for one in threading.enumerate() if one.name.startswith("shardio fetch")}


def epochs_of(
    store: Store, cache: Path, limit: int, shuffle: str, world: shardio.World, count: int
) -> list[tuple[list[int], int]]:
    """The samples of some epochs of a rank, checked by their bytes, and the most bytes that the cache's disk had."""
    dataset, before = opened(store, cache, limit=limit, requests=32), fetching()
    loader = shardio.Loader(dataset, 8, shuffle=shuffle, world=world, threads=2, timeout=60)
    epochs = []
    for _ in range(count):
        numbers, most = list[int](), 0
        for batch in loader:
            assert all(np.array_equal(x, values(n)) for x, n in zip(batch["x"], batch["n"].tolist(), strict=True))
            numbers += batch["n"].tolist()
            usage = os.statvfs(cache)
            most = max(most, (usage.f_blocks - usage.f_bfree) * usage.f_frsize)
        epochs.append((numbers, most))
    wait_until(lambda: fetching() <= before)
    return epochs


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*window of shuffle='block'")
@pytest.mark.parametrize(
    ("limit", "shuffle", "fill"),
    [
        (15_000_000, "global", "folder"),
        (15_000_000, "block", "memory"),
        (50_000_000, "block", "folder"),
        (250_000_000, "global", "memory"),
    ],
    indirect=["fill"],
)
def test_a_disk_that_holds_less_than_the_limit(
    large: dict[str, bytes], fill: Fill, tmp_path: Path, limit: int, shuffle: str
) -> None:
    """On a disk of 10 MB every epoch is complete, whatever cache_size says, and the cache uses what the disk holds."""
    told = "disk/cache: the disk is full: the cache makes do with 1.* MB in place of"
    with small_disk(tmp_path / "disk", "10m") as disk, pytest.warns(CacheWarning, match=told):
        epochs = epochs_of(fill(large), disk / "cache", limit, shuffle, shardio.World(), 3)
    assert [sorted(numbers) for numbers, _ in epochs] == 3 * [list(range(SAMPLES))]
    assert min(most for _, most in epochs) > 6_000_000  # what is fetched ahead leaves a quarter of the room


@pytest.mark.long
@pytest.mark.slow
def test_ranks_on_a_disk_that_another_program_fills(large: dict[str, bytes], fill: Fill, tmp_path: Path) -> None:
    """Ranks that share a cache take each sample once per epoch, although another program takes half of the disk."""
    context = multiprocessing.get_context("fork")
    with small_disk(tmp_path / "disk", "20m") as disk, context.Pool(3) as ranks:
        given = [(fill(large), disk / "cache", 1 << 30, "block", shardio.World(n, 3, n, 3), 3) for n in range(3)]
        found = ranks.starmap_async(quiet_epochs_of, given, 1)
        wait_until(lambda: os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize < 2 << 20)
        with open(disk / "other", "wb", buffering=0) as file:
            while file.tell() < 8 << 20 and not found.ready():
                with suppress(OSError):
                    file.write(bytes(1 << 16))
        epochs = found.get(120)
    for epoch in zip(*epochs, strict=True):
        assert sorted(number for numbers, _ in epoch for number in numbers) == list(range(SAMPLES))


def quiet_epochs_of(*given: Any) -> list[tuple[list[int], int]]:
    """What `epochs_of` returns, without its warnings."""
    warnings.simplefilter("ignore")
    return epochs_of(*given)
