"""Open datasets whose objects are in a store of the tests."""

from pathlib import Path

from shardio.cache.fetcher import Fetcher
from shardio.cache.node_cache import NodeCache
from shardio.dataset.dataset import Dataset
from shardio.dataset.remote_shards import RemoteShards
from shardio.format.fields import with_hidden
from shardio.format.manifest import Manifest
from shardio.output.remote_manifest import load_remote
from shardio.stores.base import Store
from shardio.stores.url import Url, as_url


def opened(
    store: Store,
    cache: Path | NodeCache,
    described: Manifest | None = None,
    requests: int = 1,
    limit: int = 1 << 26,
    name: str = "d",
) -> Dataset:
    """The dataset at s3://bucket/NAME in a store, whose manifest may be known, with a cache of `limit` bytes."""
    url = as_url(f"s3://bucket/{name}")
    assert isinstance(url, Url)
    cache = NodeCache(cache, limit) if isinstance(cache, Path) else cache
    fetcher = Fetcher(cache, requests)  # one at a time: the same ones fail each time
    described = described or load_remote(store, url, fetcher.cache.folder)
    return Dataset(described, url, RemoteShards(described, url, with_hidden(described.fields), store, fetcher))
