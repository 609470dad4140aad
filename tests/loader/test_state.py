"""States go on: recorded ones, with other weights, and on a dataset that has grown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from _builders import png
from _datasets import load, numbers
from _jobs import Job
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.conversion.api import convert
from shardio.errors import StateMismatch, StateWarning
from shardio.order.permutation import derive

WORLDS = st.lists(st.integers(1, 3), min_size=4, max_size=4)
BATCHES = st.lists(st.integers(1, 5), min_size=4, max_size=4)


@given(ranks=WORLDS, batches=BATCHES, steps=st.lists(st.integers(1, 30), min_size=3, max_size=3), nested=st.booleans())
@settings(max_examples=10, deadline=None)
def test_other_weights_go_on(ranks: list[int], batches: list[int], steps: list[int], nested: bool) -> None:
    """70/20/10, then 50/50/0, then 10/10/80, by any ranks: no source repeats or leaves out a sample of its epochs."""
    sources = {"a": numbers(90), "b": numbers(31, 90), "c": numbers(17, 121)}
    if nested:
        inner = shardio.mix({"a": sources["a"], "b": sources["b"]}, [(0, {"a": 2, "b": 1}), (60, {"a": 1, "b": 3})])
        sources = {"inner": inner, "c": sources["c"], "weighted": numbers(40, 138).weighted(np.arange(40.0))}
    state, delivered = None, []
    for weights, *job, count in zip([(7, 2, 1), (5, 5, 0), (1, 1, 8)], ranks, batches, steps, strict=False):
        mixed = shardio.mix(sources, dict(zip(sources, weights, strict=True)), samples=300)
        running = Job(mixed, *job, state)
        state = running.run(count)
        delivered += running.samples
        assert sum(state["turns"]) == len(delivered) == 300 * state["epoch"] + state["position"]
        # The same weights go on with the same order, wherever they are resumed.
        again = Job(mixed, ranks[3], batches[3], state)
        again.run()
        expected = Job(mixed, 1, 1, state)
        expected.run()
        assert sorted(again.samples) == sorted(expected.samples)
    starts = np.cumsum([0, *(dataset.numbers for dataset in sources.values())])
    for source, dataset in enumerate(sources.values()):
        own = [n - starts[source] for n in delivered if starts[source] <= n < starts[source + 1]]
        assert len(own) == state["turns"][source]
        order = dataset.plan(derive(3, source), "global", 64, 16)  # by which the source goes on, epoch after epoch
        every = [order.at_epoch(epoch).lookup(np.arange(order.n))[0] for epoch in range(len(own) // order.n + 1)]
        expected = np.concatenate(every)
        assert sorted(own) == sorted(expected[: len(own)].tolist())


def test_weights_change_at_the_very_sample() -> None:
    """The new weights hold from the resumed position on, and `set_epoch` goes back to the time before it."""
    sources = {"a": numbers(100), "b": numbers(100, 100)}
    state = Job(shardio.mix(sources, {"a": 1, "b": 0}), 1, 7).run(3)
    changed = shardio.mix(sources, {"a": 0, "b": 1})
    job = Job(changed, 1, 7, state)
    later = job.run(2)
    assert min(job.samples) >= 100
    assert (later["turns"], later["since"]) == ([21, 14], 21)
    (loader,) = job.loaders
    loader.set_epoch(0)
    assert loader.state_dict() == load(changed, 7, seed=3).state_dict()
    loader.load_state_dict(later)
    loader.set_epoch(1)
    assert loader.state_dict()["turns"] == [21, 179]
    assert loader.state_dict()["since"] == 21


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_keeps_all_of_a_state(tmp_path: Path) -> None:
    """`dcp.load` asks for the names that a new Loader's state has: these are those of any state, with plain values."""
    sources = {"a": numbers(100), "b": numbers(100, 100)}
    changed = shardio.mix(sources, {"a": 0, "b": 1})
    resumed = Job(changed, 1, 7, Job(shardio.mix(sources, {"a": 1, "b": 0}), 1, 7).run(3))
    bucketed = Job(numbers(100), 1, 7, bucket_by="number")
    for job, other in ((resumed, Job(changed, 1, 7)), (bucketed, Job(numbers(100), 1, 7, bucket_by="number"))):
        state, (saved,), (new,) = job.run(2), job.loaders, other.loaders
        path = tmp_path / state["digest"]
        dcp.save({"loader": saved}, checkpoint_id=path)
        dcp.load({"loader": new}, checkpoint_id=path)
        assert new.state_dict() == saved.state_dict() == state
        torch.save(state, tmp_path / "state.pt")
        assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    with pytest.raises(StateMismatch, match=r"the state's buckets is '7 samples by number.*', this loader's is 'none'"):
        dcp.load({"loader": Job(numbers(100), 1, 7).loaders[0]}, checkpoint_id=path)


def test_a_state_is_small() -> None:
    """The state of 32 sources with long names, whose weights were changed after billions of samples, takes 1 KB."""
    sources = {f"a corpus with a rather long name, number {n}": numbers(1, n) for n in range(32)}
    loader = load(shardio.mix(sources, dict.fromkeys(sources, 1), samples=10**10), seed=2**62)
    loader.set_epoch(9)
    other = load(shardio.mix(sources, dict(zip(sources, range(32), strict=True)), samples=10**10), seed=2**62)
    other.load_state_dict(loader.state_dict())
    batches = iter(other)
    for _ in range(2):
        next(batches)
    state = other.state_dict()
    assert state["since"] == 9 * 10**10
    assert len(json.dumps(state)) <= 1024


PLAIN = {
    "version": 3, "digest": "xxh3:bf33f87482b39771b0985ee9bfa8e56e", "samples": 40, "seed": 3,
    "shuffle": "global", "block": 0, "window": 0,
    "bucket_by": "", "bucket_lengths": "", "bucket_size": 0, "max_tokens": 0,
    "epoch": 1, "position": 12, "global_batch": 4, "sources": "", "turns": [], "since": 0, "roles": "{}",
}  # fmt: skip
"""A recorded state."""
MIXED = PLAIN | {
    "digest": "mix:ce58d8d0848a71d3167bdf68b755bcda",
    "sources": "mix:42d3cbf419d725339fad2ce9af640bcd",
    "turns": [41, 11],
}
PLAIN_LATER = [30, 31, 34, 29, 28, 35, 8, 21, 38, 0, 11, 16, 36, 2, 23, 20, 32, 4, 13, 37, 39, 6, 24, 25, 22, 10, 3, 5]
MIXED_LATER = [
    33, 27, 29, 30, 35, 2, 26, 19, 12, 13, 23, 28, 9, 11, 4, 32, 20, 14, 16, 31, 37, 3, 17, 25, 8, 29, 23, 36,
]  # fmt: skip


def two(**weights: float) -> Any:
    """The mixture of the recorded state, with other weights."""
    return shardio.mix({"a": numbers(30), "b": numbers(10, 30)}, {"a": 7, "b": 2} | weights)


@pytest.mark.parametrize(("data", "state", "later"), [(None, PLAIN, PLAIN_LATER), (two(), MIXED, MIXED_LATER)])
def test_recorded_states(data: Any, state: Any, later: list[int]) -> None:
    """States of earlier releases go on with the samples that their loaders would have delivered."""
    job = Job(data or numbers(40), 1, 4, state)
    assert job.loaders[0].state_dict() == state
    job.run()
    assert job.samples == later


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"shuffle": None}, {"shuffle": ""}),
        ({"shuffle": "block", "block": 4, "window": 2}, {"shuffle": "block", "block": 4, "window": 2}),
        ({"bucket_by": "number"}, {"bucket_by": "number", "bucket_size": 4, "global_batch": 1}),
        (
            {"bucket_by": "number", "batch_size": None, "max_tokens": 90},
            {"bucket_by": "number", "max_tokens": 90, "global_batch": 1},
        ),
    ],
)
def test_a_state_is_flat(options: dict[str, Any], expected: dict[str, Any]) -> None:
    """Any state has the same names, with numbers and strings that are no words of messages."""
    state = load(numbers(40), **{"batch_size": 4, "seed": 3} | options).state_dict()
    start = {"epoch": 0, "position": 0, "shuffle": "global"}
    assert state == PLAIN | start | expected


def test_turns_of_other_sources() -> None:
    """With strict=False as many sources go on where they stood; other turns are of no use."""
    loader, other = load(two(b=7), 4, seed=3), MIXED | {"sources": "mix:0"}
    with pytest.raises(StateMismatch, match="the state's digest is 'mix:ce58"):
        loader.load_state_dict(other)
    with pytest.warns(StateWarning, match="each source goes on where it stood, so if only the weights have changed"):
        loader.load_state_dict(other, strict=False)
    assert (loader.state_dict()["turns"], loader.state_dict()["since"]) == ([41, 11], 52)
    for state, data in (
        (other | {"turns": []}, two(b=7)),
        (other | {"turns": [41, 11, 0]}, two(b=7)),
        (MIXED, numbers(40)),
    ):
        with pytest.warns(StateWarning, match="may deliver samples twice or not at all$"):
            load(data, 4, seed=3).load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turns": [41, 12]}, r"its sources cannot have come to \[41, 12\] at sample 52"),
        ({"turns": [52, 0]}, "cannot have come to"),
        ({"turns": [41, 11, 0]}, "cannot have come to"),
        ({"turns": []}, "cannot have come to"),
        ({"turns": [41, -11]}, r"turns must be integers, got \[41, -11\]"),
        ({"turns": [41, True]}, "turns must be integers"),
        ({"turns": {"a": 41}}, "turns must be a list, got"),
        ({"since": -1}, "since must be a position, got -1"),
        ({"since": 53}, "cannot have come to"),
        ({"since": 2**62}, "cannot have come to"),
        ({"sources": 3}, "sources must be a string, got 3"),
    ],
)
def test_states_that_are_none(changes: dict[str, Any], message: str) -> None:
    """Turns that no loader saves are refused, whether or not the weights are the same."""
    loader = load(two(), 4, seed=3)
    loader.load_state_dict(MIXED)
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict(MIXED | changes)
    assert loader.state_dict()["turns"] == [41, 11]


def segmented(role: Any) -> shardio.Dataset:
    """The same images, as masks or as grey ones."""
    field = shardio.Field("image", role=role, channels=1)
    return shardio.from_samples([{"seg": png(8, 8, 1, seed=n)} for n in range(40)], {"seg": field})


def test_another_role_of_a_field_is_told() -> None:
    """Data of one digest resume in another role with a warning that names both, and only fields that both deliver."""
    masks, images = segmented("mask"), segmented(None)
    assert masks.digest == images.digest
    loader = load(masks, 4, fields={"a": "seg", "b": "seg"})
    for _, _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    assert json.loads(state["roles"]) == {"a": "mask", "b": "mask"}
    for strict in (True, False):
        other = load(images, 4, fields={"a": "seg", "c": "seg"})
        with pytest.warns(StateWarning, match="role of field 'a' is 'mask', this loader's is None") as told:
            other.load_state_dict(state, strict=strict)
        assert len(told) == 1
        assert other.state_dict() == state | {"roles": "{}"}
    load(masks, 4, fields={"a": "seg"}).load_state_dict(state)
    load(masks, 4).load_state_dict(other.state_dict())  # which doesn't say how the field was delivered


@pytest.mark.parametrize("roles", ["mask", "[]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_roles_that_are_none(roles: str) -> None:
    """A text that is no object of JSON is refused."""
    loader = load(segmented("mask"), 4)
    with pytest.raises(StateMismatch, match="the state's roles must be an object of JSON, got"):
        loader.load_state_dict(loader.state_dict() | {"roles": roles})


@given(
    small=st.integers(5, 40),
    more=st.integers(1, 30),
    ranks=WORLDS,
    batches=BATCHES,
    steps=st.lists(st.integers(1, 20), min_size=2, max_size=2),
    shuffle=st.sampled_from(["global", "block", None]),
    tail=st.sampled_from(["pad", "drop"]),
)
@settings(max_examples=40, deadline=None)
def test_a_dataset_that_has_grown(
    small: int, more: int, ranks: list[int], batches: list[int], steps: list[int], shuffle: Any, tail: Any
) -> None:
    """The epoch ends with the samples that it began with, by any ranks, on either dataset; the next one has all."""
    before, after = numbers(small), numbers(small + more)
    options = {"shuffle": shuffle, "block": 3, "window": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardio.Dataset, "earlier", property(lambda d: {before.digest: small} if len(d) > small else {}))
        job = Job(before, ranks[0], batches[0], **options)
        state, delivered = job.run(steps[0]), job.samples
        if state["epoch"] == 0:
            job = Job(after, ranks[1], batches[1], state, **options)
            state, delivered = job.run(steps[1]), delivered + job.samples
        if state["epoch"] == 0:
            assert (state["digest"], state["samples"]) == (before.digest, small)
            ends = []
            for data in (before, after):
                job = Job(data, ranks[2], batches[2], state, **options)
                ends.append(job.run())
                assert sorted(delivered + job.samples) == list(range(small))
            loader, size = load(after, batches[3], tail=tail, seed=3, **options), batches[3]
            loader.load_state_dict(state)
            for count, told in ((small, len(loader)), (small - state["position"], loader.steps_left)):
                assert told == (count // size if tail == "drop" else -(-count // size))
            state = ends[more % 2]
        job = Job(after, ranks[3], batches[3], state, **options)
        job.run()
        assert sorted(job.samples) == list(range(small + more))


class Numbers:
    """A source of consecutive numbers."""

    def __init__(self, first: int, stop: int) -> None:
        self._numbers = range(first, stop)
        self.fields, self.metadata = {"number": shardio.Field("scalar", dtype="int64")}, dict[str, Any]()

    def sizes(self) -> np.ndarray:
        return np.full(len(self._numbers), 8)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": self._numbers[index]}


@pytest.mark.parametrize("condition", [None, "number >= 0"])
def test_a_dataset_that_was_appended_to(tmp_path: Path, condition: str | None) -> None:
    """A dataset, and a view of it, ends the epoch with what was there before `append`, and then has all."""

    def data() -> Any:
        opened = shardio.open(tmp_path / "data")
        return opened if condition is None else opened.where(condition)

    convert(Numbers(0, 30), tmp_path / "data", container="tar")
    job = Job(data(), 1, 4)
    state = job.run(3)
    convert(Numbers(30, 50), tmp_path / "data", append=True)
    later = Job(data(), 2, 3, state)
    later.run()
    assert sorted(job.samples + later.samples) == list(range(30))
    later.batches.clear()
    later.run()
    assert sorted(later.samples) == list(range(50))


def test_growth_that_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a smaller dataset is refused by another seed, and where samples are drawn by weight."""
    before, after = numbers(20), numbers(30)
    monkeypatch.setattr(shardio.Dataset, "earlier", property(lambda d: {before.digest: 20} if len(d) > 20 else {}))
    state = Job(before, 1, 4).run(3)
    with pytest.raises(StateMismatch, match=r"^the state's seed is 3, this loader's is 4"):
        load(after, 4, seed=4).load_state_dict(state)
    with pytest.raises(StateMismatch, match="the state's digest is"):
        load(after, 4, seed=3).load_state_dict(state | {"samples": 21})
    with pytest.raises(StateMismatch, match="not a position in an epoch of 20: epoch 0, position 21"):
        load(after, 4, seed=3).load_state_dict(state | {"position": 21})
    drawn = [shardio.mix({"a": data}, {"a": 1}, samples=20) for data in (before, after)]
    with pytest.raises(StateMismatch, match="the state's digest is 'mix:"):
        load(drawn[1], 4, seed=3).load_state_dict(Job(drawn[0], 1, 4).run(3))
