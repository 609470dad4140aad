"""Datasets behind plain HTTP servers."""

import shutil
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from _datasets import packed, tensor
from _file_server import Manners, file_server
from _s3 import S3Server

import shardio
from shardio.errors import ObjectChanged, StoreError

SAMPLES = 200


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 200 arrays."""
    place = tmp_path_factory.mktemp("http") / "photos"
    packed(place, [tensor(n, shape=(625,)) for n in range(SAMPLES)], shard_size="300KB")
    return place


def check(url: str, cache: Path) -> None:
    """Load an epoch, and compare it."""
    loader = shardio.Loader(shardio.open(url, cache=cache, cache_size="50MB"), 16, tail="pad", verify=True)
    found = Counter[int]()
    for batch in loader:
        for place in np.flatnonzero(np.asarray(batch["valid"])).tolist():
            index = int(batch["index"][place])
            found[index] += 1
            assert int(batch["label"][place]) == index
            assert (batch["array"][place] == index).all()
    assert found == Counter(range(SAMPLES))


@pytest.mark.parametrize("etags", ["strong", "weak", "none"])
def test_a_server_that_knows_ranges(dataset: Path, tmp_path: Path, etags: Literal["strong", "weak", "none"]) -> None:
    """A file server that knows ranges is enough, whatever ETags it gives."""
    with file_server(dataset.parent, Manners(etags=etags)) as url:
        check(f"{url}/photos", tmp_path / "cache")


def test_the_filer(dataset: Path, tmp_path: Path, s3: S3Server) -> None:
    """SeaweedFS's file server is one, too."""
    s3.make_bucket("filer")
    for path in dataset.iterdir():
        url = f"{s3.filer}/buckets/filer/{path.name}"
        urllib.request.urlopen(urllib.request.Request(url, path.read_bytes(), method="PUT"), timeout=10).close()
    check(f"{s3.filer}/buckets/filer", tmp_path / "cache")


def test_a_server_that_ignores_ranges(dataset: Path, tmp_path: Path) -> None:
    """A server that answers with whole files is refused in words that name the server and the reason."""
    with file_server(dataset.parent, Manners(ranges=False)) as url:
        loader = shardio.Loader(shardio.open(f"{url}/photos", cache=tmp_path / "cache", cache_size="50MB"), 16)
        with pytest.raises(StoreError, match=rf"{url}/photos/shard-.*the server knows no ranges"):
            next(iter(loader))


@pytest.mark.parametrize("etags", ["strong", "weak"])
def test_a_file_that_is_replaced(dataset: Path, tmp_path: Path, etags: Literal["strong", "weak"]) -> None:
    """A file that is replaced while it is read is an error that names it, and not mixed data."""
    shutil.copytree(dataset, tmp_path / "photos")
    with file_server(tmp_path, Manners(etags=etags)) as url:
        opened = shardio.open(f"{url}/photos", cache=tmp_path / "cache", cache_size="50MB")
        opened.read(0)
        shard = sorted((tmp_path / "photos").glob("shard-*.tar"))[0]
        shard.write_bytes(bytes(shard.stat().st_size))
        with pytest.raises(ObjectChanged, match=shard.name):
            opened.read(40)
