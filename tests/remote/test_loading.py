"""Datasets in a real S3 server, loaded through the cache of the node."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _bucket import opened, uploaded
from _builders import jpeg
from _clips import LENGTHS, check, video, videos, whole
from _datasets import load, packed, tensor
from _detection import FIELDS, TRAIN, delivered
from _detection import sample as detection_sample
from _s3 import S3Server

import shardio
from shardio import Loader, World


def sample(number: int) -> dict[str, Any]:
    """A sample of every kind of field that reads differently: values, arrays of one shape, scalars, text."""
    volume = np.random.default_rng(number).integers(0, 1 << 15, (24, 64), np.int16)
    return {"image": jpeg(40 + number % 7, 48), "volume": volume, "label": number, "key": "x" * (number % 5)}


@pytest.mark.parametrize(
    ("container", "options"), [("tar", {}), ("hdf5", {}), ("hdf5", {"compression": "gzip"}), ("lmdb", {})]
)
def test_a_dataset_in_a_bucket_is_the_local_one(
    container: str, options: dict[str, Any], s3: S3Server, tmp_path: Path
) -> None:
    """The same samples, and the same batches in the same order; from the second epoch on nothing is fetched."""
    local = packed(tmp_path / "d", map(sample, range(300)), container=container, shard_size="300KB", **options)
    url = uploaded(s3, tmp_path / "d", f"s3://loading/{container}{len(options)}")
    remote = opened(s3, url, tmp_path / "cache", "1GB")
    assert (remote.digest, len(remote), remote.fields) == (local.digest, len(local), local.fields)
    remote.check(np.arange(300), {})
    assert remote[7]["key"] == local[7]["key"]
    for shuffle in ("global", "block"):
        order: dict[str, Any] = {"shuffle": shuffle, "block": 8, "window": 4, "tail": "pad"}
        order["transforms"] = {"image": [shardio.Resize((32, 32))]}
        ours, theirs = load(remote, 16, **order), load(local, 16, **order)
        for _ in range(2):
            for mine, wanted in zip(ours, theirs, strict=True):
                for field, values in wanted.items():
                    np.testing.assert_equal(np.asarray(mine[field]), np.asarray(values))
        assert ours.stats().fetched.requests == 0  # in the second epoch
    stored = sum(path.stat().st_size for path in (tmp_path / "d").iterdir())
    assert 0 < remote.fetched.bytes <= stored
    assert theirs.stats(all_epochs=True).fetched.bytes == 0


@pytest.fixture(scope="module")
def large(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 25 MB in a bucket: 200 arrays of 128 KB."""
    folder = tmp_path_factory.mktemp("large") / "arrays"
    packed(folder, [tensor(number, shape=(1 << 16,), dtype="int16") for number in range(200)], shard_size="1MB")
    return uploaded(s3, folder, "s3://large/arrays")


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_a_cache_smaller_than_the_data(isolate: bool, large: str, s3: S3Server, tmp_path: Path) -> None:
    """With room for a third of the data each epoch still delivers each sample once, and the limit holds."""
    loader = load(opened(s3, large, tmp_path, "9MB"), isolate=isolate, verify=True)
    for _ in range(2):
        indices = []
        for batch in loader:
            indices += batch["index"].tolist()
            assert (batch["array"][:, 77] == batch["index"]).all()
        assert sorted(indices) == list(range(200))
        taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "files").rglob("*") if path.is_file())
        assert taken <= 9_000_000


FEW_FILES = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
import numpy as np, shardio
dataset = shardio.open(sys.argv[1], cache=sys.argv[2], cache_size="1GB", store_options=json.loads(sys.argv[3]))
assert len(dataset.manifest.shards) > 20
for indices in np.array_split(np.random.default_rng(0).permutation(200), 40):
    assert (dataset.read(indices)["array"][:, 3] == indices).all()
"""


@pytest.mark.slow
def test_more_shards_than_may_be_open(large: str, s3: S3Server, tmp_path: Path) -> None:
    """With few descriptors, shards are closed and opened again as needed, and what they hold in the cache with them."""
    command = [sys.executable, "-c", FEW_FILES, str(large), str(tmp_path), json.dumps(s3.options)]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.parametrize("isolate", [False, True])
def test_boxes_in_a_bucket_are_the_local_ones(isolate: bool, s3: S3Server, tmp_path: Path) -> None:
    """Crops are drawn for boxes that are fetched, on two ranks that go on from one; also if boxes aren't delivered."""
    local = packed(tmp_path / "d", map(detection_sample, range(60)), FIELDS, shard_size="40KB")
    url = uploaded(s3, tmp_path / "d", f"s3://loading/boxes{isolate:d}")
    options: dict[str, Any] = {"transforms": {"image": TRAIN, "labels": [shardio.Ragged()]}, "geometry": True}
    options["tail"] = "pad"
    remote = opened(s3, url, tmp_path / "cache")
    first = Loader(remote, 4, world=World(), isolate=isolate, **options)
    found, state = delivered(islice(first, 5)), first.state_dict()
    for rank in range(2):
        second = Loader(remote, 3, world=World(rank, 2), isolate=isolate, **options)
        second.load_state_dict(state)
        found += delivered(second)
    assert found == delivered(Loader(local, 20, world=World(), **options))
    apart, fewer = opened(s3, url, tmp_path / "other"), {**options, "fields": ["image", "labels"]}
    for one, other in zip(*(Loader(each, 20, world=World(), **fewer) for each in (apart, local)), strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_clips_in_a_bucket_are_the_local_ones(container: str, s3: S3Server, tmp_path: Path) -> None:
    """Frames that a view or a transform chooses, on two ranks that go on from one; and then from the cache alone."""
    local = videos(tmp_path / "d", container=container, count=20)
    url = uploaded(s3, tmp_path / "d", f"s3://loading/clips{container}")
    clips = shardio.RandomClip(4, stride=3), shardio.RandomClip(3, stride_seconds=0.1, short="pad")
    cut = [shardio.CenterCrop((48, 64))]
    for number, transforms in enumerate([cut, *([clip, *cut] for clip in clips)]):
        remote = opened(s3, url, tmp_path / f"cache{number}")
        data = [each if number else each.clips("video", 4, every=10) for each in (remote, local)]
        options: dict[str, Any] = {"transforms": {"video": transforms}, "tail": "pad", "threads": 2}
        first, whole = Loader(data[0], 4, world=World(), **options), Loader(data[1], 40, world=World(), **options)
        found, wanted = [*islice(first, 2)], [*whole]
        for rank in range(2):
            second = Loader(data[0], 3, world=World(rank, 2), **options)
            second.load_state_dict(first.state_dict())
            found += [*second]
        shown = [
            {(index, *pixels.numpy().tobytes()) for batch in batches for index, pixels in _rows(batch)}
            for batches in (found, wanted)
        ]
        assert shown[0] == shown[1]
        for batch in found:
            check(batch, lambda index, data=data: int(data[1].origin([index])[0]))
        assert remote.fetched.bytes > 0
        again = Loader(data[0], 4, world=World(), **options)
        assert [*again]
        assert again.stats().fetched.requests == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("isolate", "verify"), [(False, True), (True, False)])
def test_damaged_clips_in_a_bucket(isolate: bool, verify: bool, s3: S3Server, tmp_path: Path) -> None:
    """Through a cache smaller than the data, what is damaged is a bad sample, and all others have their own frames."""
    videos(tmp_path / "d", count=120, shard_samples=12)
    damaged = set[int]()
    for path in (tmp_path / "d").glob("*.tar"):
        content, number = bytearray(path.read_bytes()), 12 * int(path.stem[-6:]) + 2
        begin = content.index(video(number % len(LENGTHS))) + len(video(number % len(LENGTHS))) // 3
        content[begin : begin + 400] = bytes(range(200, 240)) * 10
        path.write_bytes(content)
        damaged.add(number)
    remote = opened(s3, uploaded(s3, tmp_path / "d", f"s3://loading/damaged{isolate:d}"), tmp_path, "3MB")
    options: dict[str, Any] = {"transforms": {"video": [shardio.UniformFrames(8)]}, "threads": 3, "isolate": isolate}
    loader = load(remote, 8, on_bad_sample="mask", max_bad=120, verify=verify, **options)
    for _ in range(2):
        good = [row for batch in loader for row in _rows(batch)]
        bad = {record.location.index for record in loader.quarantine()}
        assert bad > damaged  # and those that have bytes in the same pieces
        assert sorted(index for index, _ in good) == sorted({*range(120)} - bad)
        for index, pixels in good:
            frames, _ = whole(index % len(LENGTHS))
            assert all((frames == frame).all(axis=(1, 2, 3)).any() for frame in pixels.numpy())


def _rows(batch: dict[str, Any]) -> list[tuple[int, Any]]:
    there = batch["valid"].tolist() if "valid" in batch else [True] * len(batch["index"])
    return [(i, v) for i, v, valid in zip(batch["index"].tolist(), batch["video"], there, strict=True) if valid]
