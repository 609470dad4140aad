"""Keys of a dataset in a bucket: read once, and found through an index in the node's cache."""

from pathlib import Path

import pytest
from _datasets import in_store, packed
from _remote import opened

from shardio.views import kept_table


def test_a_dataset_in_a_bucket_has_its_index_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call reads the keys there, and the next process the index."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("SHARDIO_CACHE", str(cache))
    monkeypatch.setattr(kept_table, "FEW", 0)
    packed(tmp_path / "d", [{"key": f"k{number}"} for number in range(40)])
    store = in_store(tmp_path / "d")
    assert opened(store, cache).find(["k3", "x", "k39"]).tolist() == [3, -1, 39]
    (index,) = cache.glob("kept/shardio.keys-*.bin")
    again = opened(store, cache)
    before = again.fetched.bytes, index.stat().st_mtime_ns
    assert again.find(["x", "y"]).tolist() == [-1, -1]
    assert (again.fetched.bytes, index.stat().st_mtime_ns) == before
