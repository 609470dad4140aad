"""Datasets on a slow file system, read by way of the cache of the node: what they give is what their files give."""

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import overwrite
from _datasets import CONTAINERS, load, packed, photo
from _hdf5_files import write_hdf5
from typer.testing import CliRunner

import shardio
from shardio.cli import app
from shardio.errors import CacheError, ObjectChanged, ObjectNotFound, StoreError
from shardio.loader.torch_dataset import TorchDataset

COUNT = 60


def sample(number: int) -> dict[str, Any]:
    """A photo with a label and a vector."""
    return photo(number, classes=3) | {"vector": np.full(9000, number, np.float32)}


@pytest.fixture(scope="module", params=CONTAINERS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three shards or more, which tests only read."""
    path: Path = tmp_path_factory.mktemp("slow") / "d"
    packed(path, map(sample, range(COUNT)), container=request.param, shard_size="800KB")
    return path


def cached(place: Path, cache: Path, size: str = "1GB") -> shardio.Dataset:
    """The dataset at a path by way of a cache."""
    return shardio.open(place, cache=cache, cache_size=size)


def same(one: Any, other: Any) -> None:
    """Compare the batches of two loaders, their images by their numbers."""
    for mine, theirs in zip(one, other, strict=True):
        assert list(mine) == list(theirs)
        for name in theirs.keys() - {"image"}:
            np.testing.assert_equal(np.asarray(mine[name]), np.asarray(theirs[name]))


def test_what_comes_is_what_the_files_hold(place: Path, tmp_path: Path) -> None:
    """A Loader, views and mixtures give what they give without a cache; then nothing of the shards is read any more."""
    options: dict[str, Any] = {"shuffle": "block", "block": 4, "window": 3, "seed": 3, "fields": ["vector", "label"]}
    given: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": "1GB"}
    same(load(str(place), 8, **options, **given), load(place, 8, **options))
    far, near = cached(place, tmp_path / "cache"), shardio.open(place)
    assert (far.digest, far.path, far.in_store, near.in_store) == (near.digest, near.path, True, False)
    same(load(far.where("label == 1"), 4, verify=True), load(near.where("label == 1"), 4))
    mixed = shardio.mix({"a": place, "b": place}, {"a": 1, "b": 2}, **given)
    same(load(mixed, 8), load(shardio.mix({"a": place, "b": place}, {"a": 1, "b": 2}), 8))
    assert TorchDataset(place, fields=["label"], **given)[4]["label"].item() == 1
    assert not shardio.verify(place, deep=True, **given).problems


def test_what_is_there_is_not_read_again(place: Path, tmp_path: Path) -> None:
    """Once all pieces are there, later runs need nothing but the manifest of the slow file system."""
    shutil.copytree(place, tmp_path / "d")
    loader = load(cached(tmp_path / "d", tmp_path / "cache"), 6, verify=True)
    for _ in loader:
        pass
    for path in (tmp_path / "d").iterdir():
        if path.name != "shardio.json":
            path.unlink()
    same(load(cached(tmp_path / "d", tmp_path / "cache"), 8), load(place, 8))
    shutil.rmtree(tmp_path / "d")  # the file system is gone, and the run goes on
    assert sorted(n for batch in loader for n in batch["vector"][:, 0].tolist()) == list(range(COUNT))


def test_another_dataset_in_its_place(tmp_path: Path) -> None:
    """A dataset that replaces another one, with files of the same names and sizes, gets no piece of it."""
    for first in (0, 100):
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        rows = ({"x": np.full(9000, number, np.int32)} for number in range(first, first + COUNT))
        packed(tmp_path / "d", rows, shard_size="800KB")
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / "d")
        for place in (tmp_path / "d", tmp_path / "link"):
            far = cached(place, tmp_path / "cache").selection(np.arange(COUNT)).column("x")
            assert (far == np.arange(first, first + COUNT)[:, None]).all()


def test_no_cache_unless_it_is_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$SHARDIO_CACHE, which is where URLs are cached, changes nothing for paths; a size alone is refused."""
    monkeypatch.setenv("SHARDIO_CACHE", str(tmp_path / "cache"))
    assert not shardio.open(place).in_store
    assert not (tmp_path / "cache").exists()
    with pytest.raises(shardio.ConfigError, match="cache_size goes with cache"):
        shardio.open(place, cache_size="1GB")


def test_a_cache_that_is_too_small_or_unwritable(place: Path, tmp_path: Path) -> None:
    """With room for a part each epoch is whole; a folder that can hold no cache is an error in words."""
    if place.joinpath("shard-000000.lmdb").exists():
        pytest.skip("an LMDB is fetched whole, so a cache for a part of it cannot hold one")
    for _ in range(2):
        loader = load(cached(place, tmp_path / "small", "1.2MB"), 4, fields=["vector"])
        assert sorted(n for batch in loader for n in batch["vector"][:, 5].tolist()) == list(range(COUNT))
        taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "small/files").rglob("*") if path.is_file())
        assert taken <= 1_200_000
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="cannot hold a cache"):
        cached(place, tmp_path / "file" / "cache")


@pytest.mark.parametrize("change", ["replaced", "in place", "gone"])
def test_files_that_change(tmp_path: Path, change: str) -> None:
    """A shard that changes while it is cached is named, never mixed with what was there; other shards are read on."""
    packed(tmp_path / "d", map(sample, range(COUNT)), shard_size="800KB")
    dataset = cached(tmp_path / "d", tmp_path / "cache")
    dataset.selection(np.arange(3)).column("vector")
    shard = tmp_path / "d" / "shard-000000.tar"
    data = bytes(len(shard.read_bytes()))
    if change != "in place":
        shard.unlink()
    if change != "gone":
        shard.write_bytes(data)
    for one in (dataset, cached(tmp_path / "d", tmp_path / "cache")):
        with pytest.raises((ObjectChanged, ObjectNotFound), match=r"/d/shard-000000\.tar"):
            one.selection(np.arange(12, 16)).column("vector")
        assert (one.selection(np.arange(3)).column("vector")[:, 0] == range(3)).all()
        assert (one.selection(np.arange(50, 60)).column("vector")[:, 0] == range(50, 60)).all()


def test_a_touched_dataset_and_a_damaged_one(tmp_path: Path) -> None:
    """Files that were touched, against a purge, are read on; a byte that changed is named, whatever its file's time."""
    packed(tmp_path / "d", map(sample, range(COUNT)), shard_size="800KB")
    dataset = cached(tmp_path / "d", tmp_path / "cache")
    dataset.selection(np.arange(3)).column("vector")
    shard = tmp_path / "d" / "shard-000000.tar"
    os.utime(shard)
    assert (dataset.selection(np.arange(12)).column("vector")[:, 0] == range(12)).all()
    shard = tmp_path / "d" / "shard-000001.tar"
    before = shard.stat()
    overwrite(shard, before.st_size // 2, b"\xff\x00\xff")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StoreError, match=r"/d/shard-000001.tar: bytes \d+ to \d+ are not those that were written"):
        dataset.selection(np.arange(COUNT)).column("vector")


def test_adopted_files(tmp_path: Path) -> None:
    """Files that were adopted where they lie, by links, compressed or not, give by way of the cache what they hold."""
    for number, values in enumerate(np.random.default_rng(0).integers(0, 99, (2, 40, 6, 8)).astype(np.float32)):
        stored = {"data": values, "chunks": (4, 6, 8), "compression": "gzip"}
        write_hdf5(tmp_path / "months" / f"{number}.h5", plain=values, packed=stored)
    shardio.index(tmp_path / "months", tmp_path / "d")
    far, near = cached(tmp_path / "d", tmp_path / "cache"), shardio.open(tmp_path / "d")
    same(load(far, 8, verify=True), load(near, 8))
    assert far.fetched.bytes


def test_commands(place: Path, tmp_path: Path) -> None:
    """`stats`, `verify` and `reshard` with `--cache` say of a path what they say without it."""
    options = ["--cache", str(tmp_path / "cache"), "--cache-size", "64MB"]
    for line in ("stats {} --json -", "verify {} --deep --json -"):
        told = [CliRunner().invoke(app, shlex.split(line.format(place)) + more) for more in (options, [])]
        assert [one.exit_code for one in told] == [0, 0], told[0].output
        assert json.loads(told[0].stdout) == json.loads(told[1].stdout), line
    done = CliRunner().invoke(app, ["reshard", str(place), str(tmp_path / "r"), "--to", "hdf5", *options])
    assert done.exit_code == 0, done.output
    assert shardio.open(tmp_path / "r").digest == shardio.open(place).digest
    done = CliRunner().invoke(app, ["bench", str(place), "--storage", *options])
    assert "--storage reads local files without a cache" in f"{done.exception}"
