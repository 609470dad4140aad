"""Datasets in a real S3 server, loaded through the cache of the node."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _bucket import uploaded
from _builders import jpeg
from _s3 import S3Server

import shardio

COUNT = 300
CONTAINERS = {
    "tar": {},
    "hdf5": {},
    "hdf5, compressed": {"compression": "gzip"},
    "lmdb": {},
}


def sample(number: int) -> dict[str, Any]:
    """A sample of every kind of field that reads differently: values, arrays of one shape, scalars, text."""
    draw = np.random.default_rng(number)
    return {
        "image": jpeg(40 + number % 7, 48),
        "volume": draw.integers(0, 1 << 15, (24, 64), np.int16),
        "label": number % 10,
        "key": f"sample {number} " + "x" * (number % 5),
    }


@pytest.fixture(scope="module")
def places(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, str]]:
    """For each container, a local dataset and the same in a bucket."""
    found = {}
    for name, options in CONTAINERS.items():
        folder = tmp_path_factory.mktemp("written") / name.replace(", ", "-")
        fields = {"image": "image", "volume": ("int16", (24, 64)), "label": "int64", "key": "text"}
        container = name.partition(",")[0]
        with shardio.create(folder, container=container, fields=fields, shard_size="300KB", **options) as writer:
            for number in range(COUNT):
                writer.append(sample(number))
        found[name] = folder, uploaded(s3, folder, f"s3://loading/{folder.name}")
    return found


def opened(url: str, s3: S3Server, cache: Path, size: str = "1GB") -> shardio.Dataset:
    """The dataset at a URL."""
    return shardio.open(url, cache=cache, cache_size=size, store_options=s3.options)


@pytest.mark.parametrize("name", CONTAINERS)
def test_samples_are_those_of_the_local_dataset(
    name: str, places: Mapping[str, tuple[Path, str]], s3: S3Server, tmp_path: Path
) -> None:
    """Whatever the container and its compression, each sample read from the bucket is the local one."""
    local, remote = shardio.open(places[name][0]), opened(places[name][1], s3, tmp_path)
    assert (remote.digest, len(remote), remote.fields) == (local.digest, len(local), local.fields)
    order = np.random.default_rng(0).permutation(COUNT)
    for indices in np.array_split(order, 7):
        ours, theirs = remote.read(indices), local.read(indices)
        for field in local.fields:
            np.testing.assert_equal(ours[field], theirs[field])
    remote.check(np.arange(COUNT), {})
    assert remote[7]["key"] == local[7]["key"]


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_epochs_are_those_of_the_local_dataset(
    name: str, shuffle: Any, places: Mapping[str, tuple[Path, str]], s3: S3Server, tmp_path: Path
) -> None:
    """The same batches in the same order, and from the second epoch on nothing is fetched."""
    remote = opened(places[name][1], s3, tmp_path)
    arguments: dict[str, Any] = {
        "batch_size": 16,
        "shuffle": shuffle,
        "block": 8,
        "window": 4,
        "world": shardio.World(),
        "tail": "pad",
        "transforms": {"image": [shardio.Resize((32, 32))]},
    }
    ours, theirs = shardio.Loader(remote, **arguments), shardio.Loader(places[name][0], **arguments)
    for _ in range(2):
        for mine, local in zip(ours, theirs, strict=True):
            for field, values in local.items():
                np.testing.assert_equal(np.asarray(mine[field]), np.asarray(values))
    stored = sum(path.stat().st_size for path in places[name][0].iterdir())
    assert 0 < ours.stats(all_epochs=True).fetched.bytes <= remote.fetched.bytes <= stored
    assert ours.stats().fetched.requests == 0  # in the second epoch
    assert theirs.stats(all_epochs=True).fetched.bytes == 0


@pytest.fixture(scope="module")
def large(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 25 MB in a bucket: 200 arrays of 128 KB."""
    folder = tmp_path_factory.mktemp("large") / "arrays"
    with shardio.create(folder, container="tar", fields={"x": ("int16", (1 << 16,))}, shard_size="1MB") as writer:
        for number in range(200):
            writer.append({"x": np.full(1 << 16, number, np.int16)})
    return uploaded(s3, folder, "s3://large/arrays")


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_a_cache_smaller_than_the_data(isolate: bool, large: str, s3: S3Server, tmp_path: Path) -> None:
    """With room for a third of the data each epoch still delivers each sample once, and the limit holds."""
    loader = shardio.Loader(
        opened(large, s3, tmp_path, "9MB"), 8, world=shardio.World(), threads=2, isolate=isolate, verify=True
    )
    for _ in range(2):
        indices = []
        for batch in loader:
            indices += batch["index"].tolist()
            assert (batch["x"][:, 77] == batch["index"]).all()
        assert sorted(indices) == list(range(200))
        taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "files").rglob("*") if path.is_file())
        assert taken <= 9_000_000


def test_a_cache_that_is_too_small_says_so(large: str, s3: S3Server, tmp_path: Path) -> None:
    """Where not even what is read at once has room, the first batch is an error that names a size that works."""
    loader = shardio.Loader(opened(large, s3, tmp_path, "1MB"), 32, world=shardio.World())
    with pytest.raises(shardio.CacheError, match="give a cache_size of at least"):
        next(iter(loader))


RANK = """
import json, sys, numpy as np, shardio
rank, size, url, cache, options, state = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:7]
dataset = shardio.open(url, cache=cache, cache_size="1GB", store_options=json.loads(options))
loader = shardio.Loader(dataset, 5, world=shardio.World(rank, size, rank, size), shuffle="block", block=8, window=4)
if state != "null":
    loader.load_state_dict(json.loads(state))
taken = []
for step, batch in enumerate(loader):
    taken += batch["index"].tolist()
    if state == "null" and step == 4:
        break
print(json.dumps({"taken": taken, "state": loader.state_dict(), "bytes": dataset.fetched.bytes}))
"""


@pytest.mark.long
def test_ranks_that_share_a_cache(places: Mapping[str, tuple[Path, str]], s3: S3Server, tmp_path: Path) -> None:
    """Four ranks take each sample once, over a stop and a resume with two, and fetch each byte about once in all."""
    folder, url = places["tar"]

    def run(size: int, state: str) -> list[dict[str, Any]]:
        command = [url, str(tmp_path / "cache"), json.dumps(s3.options), state]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(size), *command], stdout=subprocess.PIPE, text=True
            )
            for rank in range(size)
        ]
        return [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]

    before = run(4, "null")
    after = run(2, json.dumps(before[0]["state"]))
    taken = [index for rank in before + after for index in rank["taken"]]
    assert sorted(taken) == list(range(COUNT))
    stored = sum(path.stat().st_size for path in folder.iterdir())
    assert sum(rank["bytes"] for rank in before + after) <= 1.05 * stored


def test_mixtures_of_local_and_remote_datasets(
    places: Mapping[str, tuple[Path, str]], s3: S3Server, tmp_path: Path
) -> None:
    """A mixture takes some of its sources from a store and others from disk."""
    mixed = shardio.mix({"near": shardio.open(places["tar"][0]), "far": opened(places["hdf5"][1], s3, tmp_path)})
    loader = shardio.Loader(mixed, 20, world=shardio.World(), fields=["volume", "label"], tail="pad")
    seen: dict[int, list[int]] = {0: [], 1: []}
    for batch in loader:
        for source, index in zip(batch["source"].tolist(), batch["index"].tolist(), strict=True):
            seen[source].append(index % COUNT)
    assert {len(set(found)) for found in seen.values()} == {COUNT}


FEW_FILES = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
import numpy as np, shardio
dataset = shardio.open(sys.argv[1], cache=sys.argv[2], cache_size="1GB", store_options=json.loads(sys.argv[3]))
assert len(dataset.manifest.shards) > 20
for indices in np.array_split(np.random.default_rng(0).permutation(200), 40):
    assert (dataset.read(indices)["x"][:, 3] == indices).all()
"""


@pytest.mark.slow
def test_more_shards_than_may_be_open(large: str, s3: S3Server, tmp_path: Path) -> None:
    """With few descriptors, shards are closed and opened again as needed, and what they hold in the cache with them."""
    command = [sys.executable, "-c", FEW_FILES, str(large), str(tmp_path), json.dumps(s3.options)]
    subprocess.run(command, check=True, timeout=120)
