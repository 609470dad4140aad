"""Caches of a node that are smaller than a dataset, because of their limit or of their disk."""

import multiprocessing
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
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
from shardio.cache.node_cache import NodeCache
from shardio.errors import CacheWarning
from shardio.stores.base import Content, Store


def objects(folder: Path, rows: Iterable[Mapping[str, Any]], shard_size: str) -> dict[str, bytes]:
    """The objects of a dataset of some samples."""
    path = packed(folder / "d", rows, shard_size=shard_size).path
    return {f"d/{name}": data for name, data in files(path).items()}


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


def test_who_waits_for_a_shard_keeps_no_other(store: Store, tmp_path: Path) -> None:
    """A cache that becomes smaller has room for others while a reader waits, whatever shards it had kept whole."""
    holding: Any = Holding(store, "shard-000003.tar")
    dataset = opened(holding, tmp_path / "cache", limit=10 << 20, requests=4)
    assert (dataset.read(range(20))["x"][:, 0] == range(20)).all()
    dataset.read(range(20))  # keeps these shards
    waiting = threading.Thread(target=dataset.read, args=([1, 35],))
    waiting.start()
    assert holding.asked.wait(30)
    NodeCache(tmp_path / "cache", 1_400_000)  # as another process would
    assert (dataset.read(range(50, 58))["x"][:, 0] == range(50, 58)).all()
    holding.go_on.set()
    waiting.join(30)
    assert not waiting.is_alive()


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
