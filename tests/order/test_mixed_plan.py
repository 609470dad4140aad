"""Mixtures' orders: stages and resumes with other weights, exact in every window; sources with orders of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardio.errors import ConfigError
from shardio.order.mixed_plan import MixedPlan, Source, whole_stages
from shardio.order.permutation import derive
from shardio.order.plan import Order, Plan

SIZES = (7, 40, 3)
WEIGHTS = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any).map(tuple)
STAGES = st.lists(st.tuples(st.integers(1, 150), WEIGHTS), max_size=4, unique_by=lambda stage: stage[0])
SHUFFLES = st.sampled_from(["global", "block", None])


@dataclass(frozen=True)
class Repeated(Plan):
    """An order that takes each number three times an epoch, with keys of 64 bits, as one of a weighted view may."""

    def lookup(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return numbers below a third of n."""
        found, _ = Plan.lookup(self, positions)
        return found % (self.n // 3), found * np.int64(0x4F3A_59CB_1D02_7711)


def mixture(stages: Any, *, seed: int = 5, sources: Sequence[Source] | None = None, **given: Any) -> MixedPlan:
    """The order of a mixture of three plans, unless `sources` says other ones."""
    shuffle = given.setdefault("shuffle", "global")
    plans = [Plan(size, derive(seed, number), 0, shuffle, 4, 2) for number, size in enumerate(SIZES)]
    sources = sources or [Source(plan, plan.n) for plan in plans]
    return MixedPlan(**{"n": 60, "sources": tuple(sources), "stages": tuple(stages), "seed": seed} | given)


def positions(order: Order, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers and keys at positions that count from epoch 0 on."""
    every = [
        order.at_epoch(epoch).lookup(np.arange(max(0, start - epoch * order.n), min(order.n, stop - epoch * order.n)))
        for epoch in range(start // order.n, -(-stop // order.n))
    ]
    numbers, keys = zip(*every, strict=True) if every else ([np.arange(0)], [np.arange(0)])
    return np.concatenate(numbers), np.concatenate(keys)


def of_sources(numbers: NDArray[np.int64]) -> list[list[int]]:
    """What each of the three sources gave."""
    starts = np.cumsum([0, *SIZES])
    sources = np.searchsorted(starts, numbers, "right") - 1
    return [(numbers[sources == source] - starts[source]).tolist() for source in range(3)]


def assert_continued(plan: MixedPlan, delivered: list[list[int]]) -> None:
    """Assert that each source gave its own epochs, one after the other, without a gap or a repeat."""
    for source, found in zip(plan.sources, delivered, strict=True):
        assert found == positions(source.order, 0, len(found))[0].tolist()


@pytest.mark.parametrize(
    ("n", "sizes", "weights", "seed", "shuffling", "recorded"),
    [
        (500, (300, 5, 41), (7, 2, 1), 3, ("global",), "746c7b24f83ffe27"),
        (500, (300, 5, 41), (7, 2, 1), 3, ("block", 8, 2), "a0f2dc9795cfa87f"),
        (500, (300, 5, 41), (7, 2, 1), 3, (None,), "8855852edb1b98ba"),
        (1000, (1,), (1,), 0, ("global",), "62afcd48ec8c3c5f"),
        (3000, (50, 2000, 7, 90), (1000, 3000, 1, 95), 2**60, ("global",), "8b3856e781c80150"),
    ],
)
def test_recorded_orders(n: int, sizes: Any, weights: Any, seed: int, shuffling: Any, recorded: str) -> None:
    """The numbers and keys of three epochs stay as they were, so that old states go on with them."""
    sources = tuple(Source(Plan(s, derive(seed, k), 0, *shuffling), s) for k, s in enumerate(sizes))
    plan, found = MixedPlan(n, sources, ((0, weights),), seed, 0, shuffling[0]), xxhash.xxh3_64()
    for epoch in range(3):
        for column in plan.at_epoch(epoch).lookup(np.arange(n)):
            found.update(column.tobytes())
    assert found.hexdigest() == recorded


@given(first=WEIGHTS, later=STAGES, seed=st.integers(0, 2**40), shuffle=SHUFFLES)
@settings(max_examples=60, deadline=None)
def test_stages_begin_with_a_window(first: Any, later: Any, seed: int, shuffle: Any) -> None:
    """Each window has the weights of the last stage that has come, exactly, and sources go on through all of them."""
    stages = [(0, first), *sorted(later)]
    plan = mixture(stages, seed=seed, shuffle=shuffle)
    numbers, _ = positions(plan, 0, 240)
    start = 0
    while start < len(numbers):
        weights = [weights for position, weights in stages if position <= start][-1]
        window = numbers[start : start + sum(weights)]
        if len(window) == sum(weights):
            assert tuple(map(len, of_sources(window))) == weights
        start += sum(weights)
    assert_continued(plan, of_sources(numbers))
    some = np.random.default_rng(0).integers(0, 60, 20)  # single positions, in any order
    assert plan.at_epoch(2).lookup(some)[0].tolist() == numbers[120 + some].tolist()
    assert plan.turns(150) == tuple(map(len, of_sources(numbers[:150])))


@pytest.mark.long
@given(
    resumes=st.lists(st.tuples(WEIGHTS, STAGES, st.integers(0, 70)), min_size=2, max_size=4),
    seed=st.integers(0, 2**40),
    shuffle=SHUFFLES,
)
@settings(max_examples=60, deadline=None)
def test_other_weights_go_on_where_the_sources_stood(resumes: Any, seed: int, shuffle: Any) -> None:
    """Weights that change at any position begin right there, and no source repeats or leaves out a sample."""
    at, turns, taken = 0, (0, 0, 0), [np.arange(0)]
    for first, later, count in resumes:
        plan = mixture([(0, first), *sorted(later)], seed=seed, shuffle=shuffle).resumed(at, at, turns)
        taken.append(positions(plan, at, at + count)[0])
        weights = [weights for position, weights in plan.stages if position <= at][-1]
        if count >= sum(weights):
            assert tuple(map(len, of_sources(taken[-1][: sum(weights)]))) == weights
        again = mixture(plan.stages, seed=seed, shuffle=shuffle).resumed(at, at + count, plan.turns(at + count))
        assert positions(again, at, at + 200)[0].tolist() == positions(plan, at, at + 200)[0].tolist()
        at, turns = at + count, plan.turns(at + count)
        assert sum(turns) == at
    assert_continued(plan, of_sources(np.concatenate(taken)))


def test_keys_differ_between_occurrences() -> None:
    """A number that comes again has another key, whatever keys the sources' orders have, mixtures' too."""
    sources = [Source(Repeated(21, 1), 7), Source(Plan(5, 2), 5), Source(Repeated(3, 3), 1)]
    inner = mixture([(0, (3, 2, 1)), (30, (1, 0, 2))], sources=sources, n=19)
    outer = mixture([(0, (2, 1))], sources=[Source(inner, 13), Source(Repeated(21, 4), 7)], n=400)
    for plan in (inner, outer):
        numbers, keys = positions(plan, 0, 1200)
        assert np.bincount(numbers).min() > 1
        assert len({*zip(numbers.tolist(), keys.tolist(), strict=True)}) == 1200
    number, key = int(numbers[7]), int(keys[7])
    for attempt in range(1, 40):
        other, other_key = outer.replacement(number, key, attempt)
        assert (other < 7, other < 12, other < 13) == (number < 7, number < 12, number < 13)
        assert other_key not in keys


def test_a_source_of_weight_0_never_comes() -> None:
    """A weight of 0 leaves a source out while it holds."""
    plan = mixture([(0, (1, 0, 2)), (90, (0, 1, 0))])
    assert list(map(len, of_sources(positions(plan, 0, 90)[0]))) == [30, 0, 60]
    assert list(map(len, of_sources(positions(plan, 90, 180)[0]))) == [0, 90, 0]


def test_many_stages() -> None:
    """Ten thousand stages of their own weights change lookups by microseconds, not by a search through all of them."""
    stages = [(100 * number, (1 + number % 7, 1 + number % 5, number % 3)) for number in range(10_000)]
    plan = mixture(stages, n=10**6)
    numbers = plan.lookup(np.arange(999_000, 10**6))[0]
    assert sum(plan.turns(10**6)) == 10**6
    assert len(numbers) == 1000
    assert replace(plan, epoch=3).turns(123_456) == plan.turns(123_456)


@pytest.mark.parametrize(
    ("turns", "since"),
    [
        ((10, 10, 11), 0),  # more than the position
        ((28, 1, 1), 0),  # not by the weights
        ((10, 10, 10), 31),  # changed later
    ],
)
def test_turns_that_cannot_be(turns: tuple[int, ...], since: int) -> None:
    """Turns that do not belong to a position are refused."""
    with pytest.raises(ConfigError, match=r"its sources cannot have come to \[.*\] at sample 30"):
        mixture([(0, (1, 1, 1))]).resumed(since, 30, turns)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], r"a dict by source, as in {'a': ..., 'b': ...}, or a list of stages, as in \[\(0, {.*got \[\]"),
        ([1, 2], r"got \[1, 2\]"),
        ([(0, 1)], "got "),
        ("ab", "got 'ab'"),
        ([(1, {"a": 1, "b": 1})], "the first stage of weights must begin at 0, got 1"),
        ([(0, {"a": 1, "b": 1}), (0, {"a": 1, "b": 2})], "at ascending numbers of samples, got 0 after 0"),
        ([(0, {"a": 1, "b": 1}), (1.5, {"a": 1, "b": 2})], "at ascending numbers of samples, got 1.5 after 0"),
        ([(-1, {"a": 1, "b": 1})], "at ascending numbers of samples, got -1"),
        ([(0, {"a": 1, "b": 1}), (2**62, {"a": 1, "b": 2})], "got 4611686018427387904 after 0"),
        ([(0, {"a": 1, "b": 1}), (9, {"a": 1})], "weights from 9 on must name the sources a, b, got a"),
    ],
)
def test_stages_that_are_refused(weights: Any, message: str) -> None:
    """Stages must begin at 0, ascend, and name all sources."""
    with pytest.raises(ConfigError, match=message):
        whole_stages(weights, ["a", "b"])
