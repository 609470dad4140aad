"""Crops that are drawn for boxes, and what they leave of these, are the same however an epoch is delivered."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import _jobs
import numpy as np
import pytest
from _datasets import packed
from _detection import FIELDS, TRAIN, delivered, sample
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import Loader, Ragged, World

NUMBERED = FIELDS | {"number": "int64"}


def numbered(first: int, stop: int) -> shardio.Dataset:
    """Samples that hold their number, in memory."""
    return shardio.from_samples([sample(n) | {"number": n} for n in range(first, stop)], NUMBERED, shard_samples=7)


DATA, OTHER = numbered(0, 60), numbered(100, 125)
VIEWS = {
    "dataset": DATA,
    "condition": DATA.where("number < 20 or number in (25, 26, 58)"),
    "shuffled part": DATA.select(np.random.default_rng(1).permutation(60)[:33]),
    "slice of a part": DATA.select(np.random.default_rng(2).permutation(60))[5:50:2],
    "joined": shardio.concat({"one": DATA[:20], "other": OTHER}),
    "mixed": shardio.mix({"one": DATA, "other": OTHER}, {"one": 1, "other": 2}),
    "weighted": DATA.weighted(1 + np.arange(60) % 3),
}
LISTS: dict[str, list[Any]] = {
    "crop": TRAIN,
    "detection": [
        shardio.RandomZoomOut(fill=3),
        shardio.RandomIoUCrop(),
        shardio.RandomVerticalFlip(),
        shardio.SanitizeBoundingBoxes(4, 20, 0.2),
        shardio.ScaleJitter(48, (0.5, 1.5)),
        shardio.RandomCrop(32, padding=40),
    ],
    "padded": [*TRAIN[:3], shardio.RandomShortestSize([24, 32, 40], max_size=64), shardio.PadImages(64)],
}


@pytest.mark.long
@given(
    view=st.sampled_from([*VIEWS]),
    transforms=st.sampled_from([*LISTS]),
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    ranks=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    steps=st.lists(st.integers(0, 8), min_size=2, max_size=2),
    more=st.fixed_dictionaries(
        {
            "shuffle": st.sampled_from(["global", "block", None]),
            "threads": st.integers(1, 3),
            "prefetch": st.integers(1, 4),
            "verify": st.booleans(),
        }
    ),
)
@settings(max_examples=40, deadline=None)
def test_any_ranks_deliver_and_resume_the_same(
    view: str, transforms: str, sizes: list[int], ranks: list[int], steps: list[int], more: dict[str, Any]
) -> None:
    """Stopped and resumed anywhere, by other ranks with other batches, samples have the crops and boxes of one rank."""
    data, shuffle = VIEWS[view], more["shuffle"]
    options: dict[str, Any] = {"transforms": {"image": LISTS[transforms], "boxes": [Ragged()]}, "geometry": True}
    options["fields"] = [*FIELDS]  # a Job takes the number of a sample for its index
    whole = _jobs.Job(data, 1, 16, **options, shuffle=shuffle, block=4, window=3)
    whole.run()
    state, found = None, Counter[tuple[int, ...]]()
    for size, own, count in zip(ranks, sizes, [*steps, None], strict=True):
        if state is None or state["epoch"] == 0:
            job = _jobs.Job(data, size, own, state=state, **options, block=4, window=3, **more)
            state = job.run(count)
            found += delivered(job.batches)
    assert found == delivered(whole.batches)
    assert found.total() == len(data)


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_containers_and_processes_make_no_difference(container: str, tmp_path: Path) -> None:
    """Processes make what threads make, from files of any container, over two epochs and from a state."""
    data = packed(tmp_path / "d", map(sample, range(60)), FIELDS, container=container, shard_size="40KB")
    assert len(data.manifest.shards) > 2
    options: dict[str, Any] = {"transforms": {"image": TRAIN, "boxes": [Ragged()]}, "geometry": True, "seed": 5}
    options |= {"tail": "pad", "fields": [*FIELDS]}
    for more in ({"threads": 2}, {"threads": 2, "isolate": True}, {"threads": 1, "verify": True}):
        found = Counter[tuple[int, ...]]()
        stopped = Loader(data, 4, world=World(), **options, **more)
        loops = iter(stopped)
        found += delivered(islice(loops, 6))
        state = json.loads(json.dumps(stopped.state_dict()))
        del loops
        for rank in range(2):
            loader = Loader(data, 6, world=World(rank, 2), **options, **more)
            loader.load_state_dict(state)
            for _ in range(2):
                found += delivered(loader)
        reference = Loader(DATA, 12, world=World(), **options)
        wanted = delivered(reference) + delivered(reference)
        assert found == wanted


def test_other_seeds_and_epochs_crop_elsewhere() -> None:
    """Draws depend on the seed and the epoch; boxes that differ change the crop of their own sample alone."""
    options: dict[str, Any] = {"transforms": {"image": TRAIN, "boxes": [Ragged()]}, "geometry": True}
    options["fields"] = [*FIELDS]
    loader = Loader(DATA, 12, **options)
    first, second, other = delivered(loader), delivered(loader), delivered(Loader(DATA, 12, **options, seed=1))
    assert (first & second).total() < 40 > (first & other).total()
    samples = [sample(number) for number in range(60)]
    samples[7]["boxes"] = samples[7]["boxes"][:, [1, 0, 3, 2]].clip(0, 60)
    changed = delivered(Loader(shardio.from_samples(samples, FIELDS), 12, **options))
    assert (first - changed).total() == (changed - first).total() == 1
