"""A dataset on a real file system that is slow and fails, read by way of a cache; needs root, to mount it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from _datasets import load, packed

import shardio
from benchmarks._slow_fs import NoMount, SlowFolder, slow_folder
from shardio import stores
from shardio.errors import StoreUnavailable

pytestmark = pytest.mark.cluster
COUNT = 60


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowFolder]:
    """A dataset of 6 MB behind 2 ms and 100 MB/s."""
    rows = ({"x": np.full(100_000, number, np.uint8), "n": number} for number in range(COUNT))
    packed(tmp_path / "d", rows, shard_size="1MB")
    try:
        with slow_folder(tmp_path / "d", 2.0, 100.0, tmp_path / "work") as mounted:
            yield mounted
    except NoMount as error:
        pytest.skip(str(error))


def test_epochs_and_what_they_read(slow: SlowFolder, tmp_path: Path) -> None:
    """The first epoch reads each byte about once, in few reads and opens; later ones, and later runs, read no shard."""
    stored = sum(path.stat().st_size for path in (tmp_path / "d").iterdir())
    for run in range(2):
        dataset = shardio.open(slow.path, cache=tmp_path / "cache", cache_size="1GB")
        loader = load(dataset, 6, shuffle="block", block=4, window=3, verify=True)
        for _ in range(2):
            assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(COUNT))
        assert dataset.fetched.bytes == (0 if run else stored - (tmp_path / "d" / "shardio.json").stat().st_size)
        dataset.close()
    assert slow.bytes <= 1.1 * stored
    assert slow.opens <= 2 * len(os.listdir(tmp_path / "d")) + 2


def test_a_server_that_fails_for_a_while(slow: SlowFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO is tried again, and is an error in words if it stays; what the cache has is read on meanwhile."""
    monkeypatch.setattr(stores, "FOLDER_SECONDS", 0.5)
    dataset = shardio.open(slow.path, cache=tmp_path / "cache", cache_size="1GB")
    assert dataset.selection(np.arange(5)).column("n").tolist() == [0, 1, 2, 3, 4]
    slow.fail(errno.EIO)
    assert dataset.selection(np.arange(5)).column("n").tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(StoreUnavailable, match=rf"{slow.path}/shard-.*Input/output error \(tried \d+ times"):
        dataset.selection(np.arange(40, 50)).column("x")
    slow.fail(0)
    assert (dataset.selection(np.arange(40, 50)).column("x")[:, 9] == np.arange(40, 50)).all()
