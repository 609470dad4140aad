"""The manifest of a dataset in a store, whose table of shards lies in the cache."""

from collections.abc import Callable
from pathlib import Path

import pytest
from _datasets import in_store, tensors

from shardio.errors import ManifestError
from shardio.format import manifest
from shardio.output.remote_manifest import load_remote
from shardio.stores.url import Url
from shardio.testing.stores import MemoryStore

URL = Url("s3://bucket", "d")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A dataset of five shards, which are in a table of their own."""
    monkeypatch.setattr(manifest, "MOST_INLINE", 3)
    return in_store(tensors(50, tmp_path / "d", shard_size=1000).path)


def replace(path: Path, data: bytes) -> None:
    """Write a file anew: the old one is mapped."""
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"X" + data[1:],
    ],
)
def test_a_damaged_table_in_the_cache(store: MemoryStore, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """A table that is damaged in the cache is fetched again; only one that is damaged in the store is an error."""
    cache = tmp_path / "cache"
    names = list(load_remote(store, URL, cache).shards.names)
    (table,) = cache.rglob(manifest.TABLE_NAME)
    whole = table.read_bytes()
    replace(table, damage(whole))
    assert list(load_remote(store, URL, cache).shards.names) == names
    assert table.read_bytes() == whole
    store.write(f"d/{manifest.TABLE_NAME}", damage(whole))
    load_remote(store, URL, cache)  # that of the cache is whole
    replace(table, damage(whole))
    with pytest.raises(ManifestError, match=f"s3://bucket/d/{manifest.FILE_NAME}.*{manifest.TABLE_NAME}"):
        load_remote(store, URL, cache)
