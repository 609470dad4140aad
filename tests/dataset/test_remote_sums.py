"""Pieces of shards in a store are compared with the checksums that were written with them."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import overwrite
from _datasets import CONTAINERS, files, packed
from _remote import opened
from _stores import Fill

import shardio
from shardio.dataset.dataset import Dataset
from shardio.errors import CacheError, ObjectNotFound, ShardCorrupt, StoreError
from shardio.format.pieces import PIECE
from shardio.stores.base import Content, Store
from shardio.testing.stores import Faults, FaultyStore

COUNT = 60


def value(number: int) -> bytes:
    """A value of sample `number`: random bytes."""
    return np.random.default_rng(number).bytes(9000 + 10 * number)


@pytest.fixture(params=CONTAINERS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, bytes]:
    """The objects of a dataset of three shards in a bucket."""
    rows = [{"blob": value(number), "label": number} for number in range(COUNT)]
    made = packed(tmp_path / "d", rows, container=request.param, shard_size="200KB")
    return {f"d/{name}": data for name, data in files(made.path).items()}


def check(dataset: Dataset) -> None:
    """Compare all samples with what was written."""
    got = dataset.read(range(COUNT))
    assert got["blob"] == [value(number) for number in range(COUNT)]
    assert got["label"].tolist() == list(range(COUNT))


class Corrupt:
    """A store that changes one byte of some objects when it is read, a number of times."""

    def __init__(self, store: Store, suffix: str, offset: int, times: int) -> None:
        self._store, self._suffix, self._offset, self.left = store, suffix, offset, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        content = self._store.read(name, start, stop, etag=etag)
        at = self._offset - start
        if self.left and name.endswith(self._suffix) and 0 <= at < len(content.data):
            self.left -= 1
            data = bytearray(content.data)
            data[at] ^= 1
            return Content(data, content.start, content.info)
        return content


def test_a_table_is_one_request_beside_the_index(objects: dict[str, bytes], fill: Fill, tmp_path: Path) -> None:
    """Samples are those that were written; the table of a shard is read once, and not again from a warm cache."""
    store = FaultyStore(fill(objects), Faults())
    dataset = opened(store, tmp_path / "cache")
    check(dataset)
    tables = [name for name, *_ in store.reads if name.endswith(".sums.idx.npy")]
    assert sorted(tables) == sorted(name for name in objects if name.endswith(".sums.idx.npy"))
    again = FaultyStore(fill(objects), Faults())
    check(opened(again, tmp_path / "cache"))
    assert {name for name, *_ in again.reads} == {"d/shardio.json"}


def test_corrupt_pieces_are_fetched_again(objects: dict[str, bytes], fill: Fill, tmp_path: Path) -> None:
    """With a tenth of all answers corrupt, of shards, indexes and tables alike, every sample is right."""
    good, faults = fill(objects), 0
    described = opened(good, tmp_path / "cache").manifest  # of which a reader knows no checksum beforehand
    for seed in range(4):
        store = FaultyStore(good, Faults(corrupt=0.1), seed)
        check(opened(store, tmp_path / f"{seed}", described))
        faults += store.count
    assert faults


@pytest.mark.parametrize("damaged", ["shard", "index", "table"])
def test_what_stays_corrupt_is_an_error(objects: dict[str, bytes], fill: Fill, damaged: str, tmp_path: Path) -> None:
    """Damage in a shard, its index or its table that no third try mends is an error that names object and bytes."""
    ends = {"shard": (".tar", ".h5", ".lmdb"), "index": "000001.idx.npy", "table": ".sums.idx.npy"}[damaged]
    name = next((name for name in objects if "000001" in name and name.endswith(ends)), None)
    if name is None:
        pytest.skip("this container has no index")  # only tars have one
    dataset = opened(Corrupt(fill(objects), name, 135, 1000), tmp_path / "cache")
    with pytest.raises(StoreError, match=rf"{name}: bytes 0 to \d+ are not those that were written.*3 times"):
        dataset.read(range(COUNT))
    check(opened(Corrupt(fill(objects), name, 135, 2), tmp_path / "second"))


def test_datasets_without_tables(objects: dict[str, bytes], fill: Fill, tmp_path: Path) -> None:
    """A manifest that names no tables, or those of pieces of another size, asks for none; unknown keys do no harm."""
    for number, piece_bytes in enumerate([None, 1 << 20]):
        told = json.loads(objects["d/shardio.json"])
        told.pop("piece_bytes")
        told["a key of later releases"] = 1
        if piece_bytes is not None:
            told["piece_bytes"] = piece_bytes
        store = FaultyStore(fill({**objects, "d/shardio.json": json.dumps(told).encode()}), Faults())
        check(opened(store, tmp_path / f"{number}"))
        assert not any("sums" in name for name, *_ in store.reads)


def test_tables_that_are_missing(objects: dict[str, bytes], fill: Fill, tmp_path: Path) -> None:
    """Where the store lacks the tables, samples are read without them; other missing objects are named."""
    left = {name: data for name, data in objects.items() if "sums" not in name}
    check(opened(fill(left), tmp_path / "cache", requests=8))
    gone = next(name for name in left if "000001" in name)
    with pytest.raises(ObjectNotFound, match=gone):
        check(opened(fill({n: data for n, data in left.items() if n != gone}), tmp_path / "other", requests=8))


@pytest.mark.parametrize("ends", [(".tar", ".h5", ".lmdb"), (".idx.npy",)])
def test_damage_on_the_disk_of_the_cache(
    objects: dict[str, bytes], fill: Fill, tmp_path: Path, ends: tuple[str, ...]
) -> None:
    """Pieces that the cache's disk damaged are fetched again once a sample is found to be damaged, and no others."""
    cache, store = tmp_path / "cache", FaultyStore(fill(objects), Faults())
    check(opened(store, cache))
    dataset = opened(store, cache)
    found = [path for path in (cache / "files").rglob("*") if path.name.endswith(ends) and "sums" not in path.name]
    if not found:
        pytest.skip("this container has no index")  # only tars have one
    at = min(found).read_bytes().index(value(3)[:64]) if ends != (".idx.npy",) else -8
    overwrite(min(found), at, b"\xff\x13\xff\xff\x13")
    options: dict[str, Any] = {"shuffle": None, "world": shardio.World(), "verify": True, "threads": 1}
    loader = shardio.Loader(dataset, 4, on_bad_sample="replace", **options)
    assert [blob for batch in loader for blob in batch["blob"]] == [value(number) for number in range(COUNT)]
    assert 0 < dataset.fetched.bytes <= 3 * PIECE


def test_a_cache_whose_files_are_removed(objects: dict[str, bytes], fill: Fill, tmp_path: Path) -> None:
    """Files that somebody removes from the cache in use are no bad samples: the error names them, and what to do."""
    dataset = opened(fill(objects), tmp_path / "cache")
    dataset.read([0])
    shutil.rmtree(tmp_path / "cache" / "files")
    dataset.shards.close()
    with pytest.raises(CacheError, match=r"cache/files/.* was removed while the cache .*: open the dataset anew"):
        check(dataset)


@pytest.mark.parametrize("on_bad_sample", ["raise", "replace"])
@pytest.mark.parametrize("place", ["shard", "index"])
def test_without_tables_damaged_samples_are_fetched_again(
    objects: dict[str, bytes], fill: Fill, tmp_path: Path, place: str, on_bad_sample: Any
) -> None:
    """The samples' own checksums tell that the cache has other bytes than the store, which puts them right."""
    without = {name: data for name, data in objects.items() if "sums" not in name}
    ends = {"shard": (".tar", ".h5", ".lmdb"), "index": (".idx.npy",)}[place]
    if not any(name.endswith(ends) for name in without):
        pytest.skip("this container has no index")  # only tars have one
    damaged = next(name for name in sorted(without) if name.endswith(ends))
    if place == "shard":
        offset = without[damaged].index(value(3)[:64])
    else:
        index = np.load(io.BytesIO(without[damaged]))
        last = len(without[damaged]) - index.dtype.itemsize
        offset = last + index.dtype.fields["blob.size"][1]
    options: dict[str, Any] = {"shuffle": None, "world": shardio.World(), "verify": True, "threads": 1}

    def loaded(times: int, cache: str) -> list[bytes]:
        store = Corrupt(fill(without), damaged, offset, times)
        dataset = opened(store, tmp_path / cache)
        loader = shardio.Loader(dataset, 4, on_bad_sample=on_bad_sample, **options)
        return [blob for _ in range(2) for batch in loader for blob in batch["blob"]]

    assert loaded(1, "once") == [value(number) for number in range(COUNT)] * 2
    if on_bad_sample == "raise":
        with pytest.raises(ShardCorrupt):
            loaded(1 << 30, "always")
    else:
        got = loaded(1 << 30, "always")
        assert sum(blob == value(number % COUNT) for number, blob in enumerate(got)) == 2 * (COUNT - 1)
