"""How datasets at URLs are reached."""

from pathlib import Path

import pytest
from _time_limit import within

import shardio
from shardio.bench.config import BenchConfig
from shardio.dataset.opening import as_dataset
from shardio.dataset.store_access import StoreAccess, without_secrets
from shardio.stores import open_store
from shardio.stores.url import Url, as_url
from shardio.train.config import TrainConfig

SECRET = "wJalrXUtnFEMI"
OPTIONS = {"secret_access_key": SECRET, "region": "eu-west-1"}


def test_no_key_is_shown() -> None:
    """The values of store options are in no `repr`, and in no plain form of a configuration."""
    bench = BenchConfig("s3://bucket/d", store_options=OPTIONS)
    train = TrainConfig(train="s3://bucket/d", output="run", store_options=OPTIONS)
    for shown in (StoreAccess(store_options=OPTIONS), bench, train, train.to_dict()):
        assert SECRET not in repr(shown)
    assert train.to_dict()["store_options"] == dict.fromkeys(OPTIONS, "...")
    plain = {"a": {"store_options": OPTIONS}, "b": [{"store_options": OPTIONS}], "store_options": None, "n": 1}
    hidden = dict.fromkeys(OPTIONS, "...")
    expected = {"a": {"store_options": hidden}, "b": [{"store_options": hidden}], "store_options": None, "n": 1}
    assert without_secrets(plain) == expected


ENDPOINTS = [
    ("endpoint", "10.0.0.1:9000"),  # without its scheme, the usual slip
    ("endpoint_url", "nonsense"),
    ("AWS_ENDPOINT", "http://"),
    ("aws_endpoint_url", "ftp://host"),
    ("endpoint", "http://host name"),
    ("endpoint", "http://host:99999"),
    ("endpoint", "http://[::1"),
    ("endpoint", f"http://user:{SECRET}@host"),
    ("$AWS_ENDPOINT_URL", ""),
]


@pytest.mark.parametrize(("name", "value"), ENDPOINTS, ids=[value for _, value in ENDPOINTS])
def test_endpoints_that_are_no_urls(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that is no URL of a server is refused by name, whether an option or the environment gives it."""
    options = {"access_key_id": "key", "secret_access_key": SECRET}
    if name.startswith("$"):
        monkeypatch.setenv(name[1:], value)
    else:
        options[name] = value
    with within(20), pytest.raises(shardio.ConfigError, match="must be the URL of a server, such as http") as found:
        open_store(Url("s3://bucket", ""), options).info("d/shardio.json")
    assert name in str(found.value)
    assert SECRET not in str(found.value)


def test_arguments_go_where_they_mean_something(tmp_path: Path) -> None:
    """A cache goes to URLs and paths, options of a store and a size alone to URLs; for nothing they are refused."""
    url = as_url("s3://bucket/d")
    cached = StoreAccess.of("local", url, cache="c", cache_size="1GB")
    assert cached == StoreAccess("c", "1GB")
    assert all(map(cached.goes_by_cache, ("s3://bucket/d", url, Path("local"))))
    assert not cached.goes_by_cache(3)
    size = StoreAccess.of("local", url, cache_size="1GB", store_options=OPTIONS)
    assert size.goes_by_cache(url)
    assert not size.goes_by_cache("local")
    assert StoreAccess.of(3) == StoreAccess()
    with pytest.raises(shardio.ConfigError, match="cache goes with the path or URL of a dataset, got int"):
        StoreAccess.of(3, cache="c", cache_size="1GB")
    with pytest.raises(shardio.ConfigError, match="store_options goes with the URL of a dataset, got 'local', int"):
        StoreAccess.of("local", 3, cache="c", store_options=OPTIONS)
    with pytest.raises(shardio.ConfigError, match="cache_size goes with cache or the URL of a dataset, got 'local'"):
        StoreAccess.of("local", cache_size="1GB")
    # A path among others takes neither.
    shardio.convert(shardio.from_samples([{"n": 1}]), tmp_path / "local")
    assert not as_dataset(tmp_path / "local", size).in_store
