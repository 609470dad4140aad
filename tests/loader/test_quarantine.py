"""Bad samples are raised, replaced or masked, and reported, and every rank takes the same number of steps."""

import contextlib
import gc
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import _datasets
import h5py
import numpy as np
import pytest
import torch
from _builders import jpeg, spoiled
from _cli import python
from _datasets import packed
from _jobs import Job, samples
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import World
from shardio.errors import BadSample, MapError, ShardCorrupt, TooManyBad
from shardio.loader.batch.rows import Rows
from shardio.testing import samples as kinds

CROP = [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip()]


@cache
def picture(number: int, broken: bool = False) -> bytes:
    whole = jpeg(20 + number % 3, 24, seed=number % 5)
    return spoiled(whole) if broken else whole


def photos(count: int, bad: set[int], shard_samples: int = 7) -> shardio.Dataset:
    rows = [{"image": picture(n, n in bad), "label": n + 1, "key": f"k{n}"} for n in range(count)]
    return shardio.from_samples(rows, shard_samples=shard_samples)


load = partial(_datasets.load, transforms=CROP, max_bad=1000, on_bad_sample="replace")


@given(
    n=st.integers(4, 50),
    shard_samples=st.integers(1, 20),
    world=st.integers(1, 3),
    batch=st.integers(1, 7),
    tail=st.sampled_from(["drop", "pad"]),
    action=st.sampled_from(["replace", "mask"]),
    bad=st.sets(st.integers(0, 49), max_size=12),
    seed=st.integers(0, 99),
    threads=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_every_rank_takes_its_steps_whatever_is_bad(
    n: int,
    shard_samples: int,
    world: int,
    batch: int,
    tail: str,
    action: str,
    bad: set[int],
    seed: int,
    threads: int,
) -> None:
    """Good samples are delivered unchanged, and bad ones are masked or replaced, and recorded."""
    bad = {index for index in bad if index < n}
    if len(bad) > n // 2 or (tail == "drop" and n < world * batch):
        return
    dirty, clean = photos(n, bad, shard_samples), photos(n, set(), shard_samples)
    for rank in range(world):
        options = {"world": World(rank, world), "tail": tail, "seed": seed}
        loader = load(dirty, batch, on_bad_sample=action, threads=threads, **options)
        expected = load(clean, batch, on_bad_sample="raise", threads=1, **options)
        records = []
        for got, want in zip(loader, expected, strict=True):
            counts = want.get("valid", torch.ones(batch, dtype=torch.bool))
            for row, index in enumerate(want["index"].tolist()):
                if index not in bad:
                    assert torch.equal(got["image"][row], want["image"][row])
                    assert got["index"][row] == index
                elif action == "mask":
                    records += [(index, None)] if counts[row] else []
                    assert got["index"][row] == index
                    assert not got["valid"][row]
                    assert not got["image"][row].any()
                    assert got["label"][row] == 0
                    assert got["key"][row] == ""
                else:
                    other = int(got["index"][row])
                    records += [(index, other)] if counts[row] else []
                    assert other not in bad
                    assert got["label"][row] == other + 1
                    assert got["key"][row] == f"k{other}"
            if action == "mask" or tail == "pad":
                masked = [action == "mask" and index in bad for index in want["index"].tolist()]
                assert torch.equal(got["valid"], counts & ~torch.tensor(masked))
        assert [(one.location.index, one.replaced_by) for one in loader.quarantine()] == records
        assert (loader.epoch, loader.state_dict()["position"]) == (1, 0)


@given(
    threads=st.integers(1, 3),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    bad=st.sets(st.integers(0, 29), min_size=1, max_size=8),
    stop=st.integers(1, 20),
)
@settings(max_examples=20, deadline=None)
def test_replacements_stay_the_same_on_resume(
    threads: int, worlds: tuple[int, int], sizes: tuple[int, int], bad: set[int], stop: int
) -> None:
    """Replacements depend on plan and seed only, not on world, batch size, threads or resume."""
    dataset = photos(30, bad)

    def delivered(job: Job) -> list[tuple[int, bytes]]:
        job.run()
        images = [image for batch in job.batches for image in batch["image"][batch["valid"]].numpy()]
        return [(index, image.tobytes()) for index, image in zip(job.samples, images, strict=True)]

    options: dict[str, Any] = {"transforms": CROP, "max_bad": 1000, "on_bad_sample": "replace"}
    whole, position = Job(dataset, worlds[0], sizes[0], **options), min(30, stop * worlds[0] * sizes[0])
    state = whole.loaders[0].state_dict() | {"position": position}
    second = Job(dataset, worlds[1], sizes[1], state, threads=threads, **options)
    if position < 30:
        assert delivered(second) == delivered(whole)[position:]


def test_a_replacement_is_transformed_anew() -> None:
    """A sample that replaces a bad one, and comes in its own place too, is not cropped the same way twice."""
    (batch,) = load(photos(12, {2, 5, 7}), 12, seed=3, transforms=[shardio.RandomCrop(8)])
    rows = [*zip(batch["index"].tolist(), map(torch.Tensor.tolist, batch["image"]), strict=True)]
    twice = [index for index, count in Counter(batch["index"].tolist()).items() if count > 1]
    assert twice
    for each in twice:
        images = [image for index, image in rows if index == each]
        assert all(image not in images[:number] for number, image in enumerate(images))


@pytest.mark.parametrize(
    ("container", "isolate"),
    [("tar", False), ("hdf5", False), ("lmdb", False), pytest.param("tar", True, marks=pytest.mark.slow)],
)
def test_what_was_damaged_on_disk_is_passed_over(tmp_path: Path, container: str, isolate: bool) -> None:
    """Images damaged on disk are reported with shard, row, key and reason, also in the file."""
    damage(tmp_path / "d", container, [5, 17], spoiled)
    report = tmp_path / "bad.jsonl"
    options: dict[str, Any] = {"shuffle": None, "isolate": isolate, "quarantine_file": report, "on_bad_sample": "mask"}
    dataset = shardio.open(tmp_path / "d")
    loader = load(dataset, 6, **options)
    valid = torch.cat([batch["valid"] for batch in loader])
    assert (~valid).nonzero().flatten().tolist() == [5, 17]
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    places = [dataset.locate(index) for index in (5, 17)]
    assert places[0].shard != places[1].shard
    for line, place in zip(lines, places, strict=True):
        assert (line["shard"], line["row"], line["index"]) == (place.shard, place.row, place.index)
        assert (line["key"], line["replaced_by"]) == (f"k{place.index}", None)
    assert all("field 'image'" in line["reason"] and line["epoch"] == line["rank"] == 0 for line in lines)
    assert [str(one.location.index) for one in loader.quarantine()] == ["5", "17"]


def another(image: bytes) -> bytes:
    """Another image with the same size in pixels, in no more bytes."""
    other = jpeg(40, 40, seed=77, quality=50)
    assert len(other) < len(image)
    return other.ljust(len(image), b"\0")


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_checksums_find_what_still_decodes(tmp_path: Path, container: str) -> None:
    """Only `verify=True` notices another valid image in a sample's place, whatever fields are loaded."""
    damage(tmp_path / "d", container, [5], another)
    dataset = shardio.open(tmp_path / "d")
    assert len(list(load(dataset, 6, on_bad_sample="raise"))) == 4
    for fields in (None, ["label"]):
        options: dict[str, Any] = {"verify": True, "fields": fields, "transforms": CROP if fields is None else None}
        with pytest.raises(
            ShardCorrupt, match=r"row 5 \(sample 5, key k5\): checksum [0-9a-f]{16} is not [0-9a-f]{16}"
        ):
            list(load(dataset, 6, on_bad_sample="raise", **options))
        loader = load(dataset, 6, **options)
        assert 5 not in torch.cat([batch["index"] for batch in loader]).tolist()
        assert [one.location.index for one in loader.quarantine()] == [5]
    assert "verify" in loader.stats().stage_seconds


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb", "memory"])
def test_checksums_of_every_kind_of_field(tmp_path: Path, container: str) -> None:
    """Intact values of every kind pass their checksums, empty ones too."""
    fields = {**kinds.FIELDS, "image": "image", "nothing": ("float32", (3, 0))}
    rows = [kinds.sample(n) | {"image": picture(n), "nothing": np.empty((3, 0), np.float32)} for n in range(20)]
    dataset = packed(tmp_path / "d", rows, fields, container=container, shard_size=20_000)
    crops = {"image": CROP, "thumb": [shardio.CenterCrop(8)], "tokens": [shardio.ToInt64()]}
    assert len(list(load(dataset, 5, verify=True, on_bad_sample="raise", transforms=crops))) == 4
    dataset.check(np.arange(0), {})


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
@pytest.mark.parametrize("how", ["missing", "empty", "cut"])
def test_a_lost_shard_is_passed_over(tmp_path: Path, container: str, how: str) -> None:
    """The samples of a missing, empty or truncated shard are bad, and all others are delivered."""
    order = {} if how == "empty" else {"shuffle": "block", "block": 4, "window": 2}
    damage(tmp_path / "d", container, [], bytes)
    path = tmp_path / "d" / shardio.open(tmp_path / "d").manifest.shards.names[1]
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if how == "empty" else path.stat().st_size // 3])
    dataset = shardio.open(tmp_path / "d")
    first, end = (int(start) for start in dataset.manifest.shards.starts[1:3])
    loader = load(dataset, 2, on_bad_sample="mask", **order)
    good = samples(loader)
    lost = {one.location.index for one in loader.quarantine()}
    assert sorted([*good, *lost]) == list(range(24))
    assert lost <= set(range(first, end))
    assert len(lost) == end - first or (how == "cut" and container == "tar")
    assert lost
    with pytest.raises(ShardCorrupt, match="shard-000001"):
        list(load(shardio.open(tmp_path / "d"), 6, on_bad_sample="raise"))


@pytest.mark.parametrize("action", ["raise", "mask"])
@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_json_that_is_nested_too_deeply(tmp_path: Path, container: str, action: Any) -> None:
    """A value that no JSON parser takes is a bad sample by name, whatever wrote it."""
    deep = "[" * 100_000 + "]" * 100_000
    fields = {"note": shardio.Field("json"), "label": shardio.Field("scalar", dtype="int64")}
    encode = shardio.Field.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardio.Field, "encode", lambda self, v: deep.encode() if v == "deep" else encode(self, v))
        rows = [{"note": "deep" if n == 5 else {"n": n}, "label": n} for n in range(12)]
        packed(tmp_path / "d", rows, fields, container=container, shard_size="1MB")
    options = {"transforms": None, "shuffle": None, "on_bad_sample": action, "max_bad": 2}
    loader = load(shardio.open(tmp_path / "d"), 4, **options)
    if action == "raise":
        with pytest.raises(ShardCorrupt, match=r"sample 5.*field 'note': not json: nested too deeply"):
            list(loader)
        return
    assert len(list(loader)) == 3
    (bad,) = loader.quarantine()
    assert bad.location.index == 5
    assert "nested too deeply" in bad.reason


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("action", ["replace", "mask"])
def test_a_bad_sample_keeps_no_memory(action: str) -> None:
    """The memory of loops that are left goes back without the garbage collector, whatever errors they met."""
    data = shardio.from_samples([{"x": np.full(100, n, np.float32)} for n in range(200)])

    def fails_once(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["index"] == 0:
            raise ValueError("bad")
        return {"x": sample["x"]}

    options = {"map": fails_once, "map_by": "sample", "on_bad_sample": action, "max_bad": 99, "shuffle": None}
    loader = shardio.Loader(data, 10, threads=2, prefetch=4, world=World(), **options)
    gc.collect()
    for epoch in range(4):
        loader.set_epoch(epoch)
        for _ in loader:
            break
    deadline = time.monotonic() + 5
    while (alive := [o for o in gc.get_objects() if type(o) is Rows]) and time.monotonic() < deadline:
        del alive
        time.sleep(0.05)
    assert not alive


def test_more_than_allowed_ends_the_loop() -> None:
    """More than `max_bad` bad samples, a count or a share rounded up, raise with count, samples and reasons."""
    dataset = photos(40, {3, 11, 30})
    options: dict[str, Any] = {"shuffle": None, "on_bad_sample": "mask"}
    assert len(list(load(dataset, 4, max_bad=3, **options))) == 10
    assert len(list(load(dataset, 4, max_bad=0.06, **options))) == 10  # 2.4, rounded up
    loader = load(dataset, 4, max_bad=2, **options)
    with pytest.raises(
        TooManyBad, match=r"rank 0, epoch 0: 3 bad samples, max_bad=2 allows 2 .* \(sample 30, key k30\)"
    ):
        list(loader)
    assert [one.location.index for one in loader.quarantine()] == [3, 11, 30]
    loader = load(dataset, 4, **options)
    with pytest.raises(TooManyBad, match=r"2 bad samples, max_bad=0.01 allows 1"):
        list(load(dataset, 4, max_bad=0.01, **options))
    assert len(list(loader)) == len(list(loader)) == 10  # each epoch has its own count
    assert len(loader.quarantine()) == 6


def test_where_nothing_is_good_the_loop_ends() -> None:
    """If no replacement exists, the error gives the reason of the bad sample itself."""
    with pytest.raises(
        BadSample, match=r"sample \d, key k\d\) is bad, and so are 16 samples in its place; its error: .*image"
    ):
        list(load(photos(8, set(range(8))), 4))


def fussy(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["label"] == 6:
        raise ValueError("six")
    return {"pixels": sample["image"].float(), "name": sample["key"], "twice": sample["label"] * 2, "any": None}


def fussy_batch(batch: dict[str, Any]) -> dict[str, Any]:
    if 6 in batch["label"].tolist():
        raise ValueError("six")
    return batch


def test_a_function_that_fails_on_a_sample() -> None:
    """With `map_by="sample"` a failing sample is bad; a function of batches raises, because the sample is unknown."""
    for action in ("mask", "replace"):
        loader = load(photos(12, set()), 4, map=fussy, map_by="sample", on_bad_sample=action, shuffle=None)
        batches = list(loader)
        assert len(batches) == 3
        (bad,) = loader.quarantine()
        assert (bad.location.index, bad.reason) == (5, "map function fussy, sample 5: ValueError: six")
        if action == "mask":
            assert not batches[1]["valid"][1]
            assert not batches[1]["pixels"][1].any()
            assert (batches[1]["twice"][1], batches[1]["name"][1]) == (0, "")
    with pytest.raises(MapError, match="six"):
        list(load(photos(12, set()), 4, map=fussy_batch, shuffle=None))


@pytest.mark.parametrize("action", ["mask", "replace"])
@pytest.mark.parametrize("broken", [set(), {9, 20}])
def test_good_samples_beside_bad_ones_are_made_once(broken: set[int], action: str) -> None:
    """Whatever is bad, and however many samples are made together, a function of samples sees each good one once."""
    seen: Counter[int] = Counter()

    def look(sample: dict[str, Any]) -> dict[str, Any]:
        seen[sample["index"]] += 1
        return fussy(sample)

    loader = load(photos(40, broken), 40, map=look, map_by="sample", on_bad_sample=action, shuffle=None, threads=1)
    (batch,) = loader
    assert {one.location.index for one in loader.quarantine()} == {5} | broken
    delivered = Counter(batch["index"].tolist())  # some stand in for bad ones
    for index in set(range(40)) - {5} - broken:
        assert seen[index] == delivered[index]


def test_lists_hold_empty_values_for_masked_samples() -> None:
    """In a list of images, a masked one has no pixels."""
    (batch,) = load(photos(6, {2}), 6, transforms=None, on_bad_sample="mask", shuffle=None)
    assert [tuple(image.shape) for image in batch["image"]][1:4] == [(21, 24, 3), (0, 0, 3), (20, 24, 3)]


def test_a_batch_that_is_masked_whole() -> None:
    """A batch of masked samples only has the keys and shapes that the function returns for another sample."""
    for size in (1, 2):
        loader = load(photos(12, {4, 5}), size, map=fussy, map_by="sample", on_bad_sample="mask", shuffle=None)
        batches = list(loader)
        assert len(batches) == 12 // size
        whole = batches[4 // size]
        assert not whole["valid"].any()
        assert whole["pixels"].shape == batches[0]["pixels"].shape
        assert not whole["pixels"].any()


def test_sizes_that_are_damaged(tmp_path: Path) -> None:
    """A stored size that is not the image's own, which is used to choose crops, makes a bad sample."""
    damage(tmp_path / "d", "hdf5", [], bytes)
    with h5py.File(tmp_path / "d" / "shard-000000.h5", "r+") as file:
        file["_shape.image"][3] = (4000, 40)
    loader = load(shardio.open(tmp_path / "d"), 6, on_bad_sample="mask", shuffle=None)
    assert not next(iter(loader))["valid"][3]
    assert "the image is 40 x 40 pixels, 4000 x 40 were stored" in loader.quarantine()[0].reason


def test_an_index_that_is_damaged(tmp_path: Path) -> None:
    """A damaged byte in the header of a tar's index raises ShardCorrupt or changes nothing."""
    damage(tmp_path / "d", "tar", [], bytes)
    (index,) = (tmp_path / "d").glob("shard-000000.idx.npy")
    whole = index.read_bytes()
    for place in range(whole.index(b"\n")):
        index.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        with contextlib.suppress(ShardCorrupt):
            shardio.open(tmp_path / "d").read([0], ["label"])


@pytest.mark.long
@pytest.mark.slow
def test_pages_of_an_lmdb_that_are_damaged(tmp_path: Path) -> None:
    """Damaged pages of an LMDB file make only their samples bad, and no pointer is followed out of the file."""
    damage(tmp_path / "d", "lmdb", [], bytes)
    path = tmp_path / "d" / "shard-000000.lmdb"
    code = """
import pathlib, shardio
path = pathlib.Path("d/shard-000000.lmdb")
whole = path.read_bytes()
for page in range(2, min(len(whole) // 4096, 8)):
    start = 4096 * page
    path.write_bytes(whole[: start + 16] + b"\\xf0\\xff" * 20 + whole[start + 56 :])
    loader = shardio.Loader("d", 6, on_bad_sample="mask", max_bad=100, world=shardio.World(), threads=2)
    print(page, sum(int(batch["valid"].sum()) for batch in loader), flush=True)
"""
    done = python("-c", code, cwd=tmp_path)
    assert len(done.stdout.splitlines()) == min(path.stat().st_size // 4096, 8) - 2


def test_a_file_for_each_rank(tmp_path: Path) -> None:
    """Each rank writes its own report file, because ranks may be on different machines."""
    for rank in range(2):
        list(load(photos(20, {2, 3}), 5, world=World(rank, 2), quarantine_file=tmp_path / "bad.jsonl", tail="pad"))
    lines = [json.loads(line) for path in sorted(tmp_path.iterdir()) for line in path.read_text().splitlines()]
    assert {path.name for path in tmp_path.iterdir()} <= {"bad-00000.jsonl", "bad-00001.jsonl"}
    assert sorted(line["index"] for line in lines) == [2, 3]


def test_this_process_in_trouble_is_no_bad_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, or a bug, is raised whatever the policy for bad samples."""
    dataset = photos(12, set())
    for error in (OSError(24, "Too many open files"), ZeroDivisionError("a bug")):

        def fail(*_: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(shardio.Dataset, "selection", fail)
            with pytest.raises(type(error)):
                list(load(dataset, 4))


def damage(path: Path, container: str, rows: list[int], change: Callable[[bytes], bytes]) -> None:
    """A dataset of three shards on disk whose images in `rows` are changed in place."""
    fields = {"image": "image", "label": "int64", "key": "text"}
    # Noise makes the bytes of each file unique.
    photos = [{"image": jpeg(40, 40, seed=n, quality=95), "label": n, "key": f"k{n}"} for n in range(24)]
    packed(path, photos, fields, container=container, shard_size=15_000)
    stored = shardio.open(path).read(rows, ["image"])["image"] if rows else []
    for file in path.glob("shard-*"):
        data = file.read_bytes()
        for image in map(bytes, stored):
            data = data.replace(image, change(image))
        if data != file.read_bytes():
            file.write_bytes(data)
