"""Datasets in a bucket behind a network that fails."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import remote_soak
from _cli import python
from _faulty_proxy import Script, proxy, proxy_process
from _s3 import S3Server

from shardio.errors import StoreUnavailable
from shardio.stores import open_store
from shardio.stores.stream import read_unharmed
from shardio.stores.url import Url

SOAK = Path(remote_soak.__file__)


def bucket(s3: S3Server, name: str, data: bytes) -> None:
    """Make a bucket with one object, `data`."""
    s3.make_bucket(name)
    open_store(Url(f"s3://{name}", ""), s3.options).write("data", data)


@pytest.mark.long
def test_a_store_that_is_gone_for_a_while(s3: S3Server) -> None:
    """Requests wait for a store that refuses every connection for some seconds, and then have their answers."""
    data = np.random.default_rng(1).bytes(100_000)
    bucket(s3, "gone", data)
    with proxy(s3.endpoint, Script(gone=0.4, gone_seconds=0.5), seed=3) as between:
        store = open_store(Url("s3://gone", ""), s3.options | {"endpoint": between.url()})
        for _ in range(4):
            assert bytes(store.read("data", 10, 90_000).data) == data[10:90_000]
        assert between.counts()["gone"]
        assert store.retries


def test_what_has_no_checksum_is_read_unharmed(s3: S3Server) -> None:
    """A manifest that is damaged on the way is read again; one that never comes whole is an error."""
    data = np.random.default_rng(2).bytes(5_000)
    bucket(s3, "unharmed", data)
    with proxy(s3.endpoint, Script(corrupt=0.5), seed=5) as between:
        store = open_store(Url("s3://unharmed", ""), s3.options | {"endpoint": between.url()})
        for _ in range(10):
            assert read_unharmed(store, "data") == data
        assert between.counts()["corrupt"]
        between.set(corrupt=1.0)
        with pytest.raises(StoreUnavailable, match="damaged on the way"):
            read_unharmed(store, "data")


EXIT = """
import json, sys, time
import numpy as np
from pathlib import Path
from shardio.cache.fetcher import Fetcher, RemoteFile
from shardio.cache.node_cache import NodeCache
from shardio.format.pieces import PIECE
from shardio.stores import open_store
from shardio.stores.url import as_url
from shardio.system import background
fetcher = Fetcher(NodeCache(Path(sys.argv[2]), 1 << 30))
file = RemoteFile(
    open_store(as_url("s3://exits"), json.loads(sys.argv[1])), "data", fetcher.cache.object("group", "data", 16 << 20)
)
background.start(lambda: fetcher.fetch([(file, np.arange((16 << 20) // PIECE))]), "reader")
hold = fetcher.prefetch([(file, np.arange(3))], 0)
time.sleep(float(sys.argv[3]))
print("the end", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.1, 0.4])
def test_the_interpreter_ends_while_pieces_are_fetched(s3: S3Server, tmp_path: Path, wait: float) -> None:
    """A process that ends in the middle of fetches ends with its own exit code, and with no word of them."""
    bucket(s3, "exits", os.urandom(16 << 20))
    with proxy_process(s3.endpoint, Script(bandwidth=4e6, latency=0.02)) as between:
        options = json.dumps(s3.options | {"endpoint": between.url()})
        done = python("-c", EXIT, options, tmp_path, wait)
    assert (done.stdout, done.stderr) == ("the end\n", "")


@pytest.mark.attack
def test_a_short_soak() -> None:
    """`remote_soak.py` kills ranks while the network fails; no sample is lost, repeated or wrong; the limit holds."""
    found = json.loads(python(SOAK, "--faults", "300", "--epochs", "1", "--seed", "2", timeout=600).stdout)
    assert found["lost"] == found["repeated"] == found["wrong"] == 0
    assert found["faults"] >= 300
    assert found["kills"] >= 1
