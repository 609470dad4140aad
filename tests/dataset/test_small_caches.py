"""Caches of a node that are smaller than a dataset."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _remote import opened

import shardio
from shardio.errors import CacheWarning
from shardio.testing.stores import MemoryStore


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """A dataset of 8 MB in a bucket."""
    with shardio.create(tmp_path / "d", fields={"x": ("uint8", (100_000,))}, shard_size="1MB") as writer:
        for number in range(80):
            writer.append({"x": np.full(100_000, number, np.uint8)})
    return MemoryStore({f"d/{path.name}": path.read_bytes() for path in (tmp_path / "d").iterdir()})


def test_a_window_that_the_cache_cannot_hold_is_told(store: MemoryStore, tmp_path: Path) -> None:
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
