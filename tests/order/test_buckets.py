"""Buckets: each sample in one batch, no batch over its tokens, equal steps and elastic resume, little padding."""

import pickle
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardio.order import buckets
from shardio.order.buckets import BucketRule, Buckets
from shardio.order.mixed_plan import MixedPlan, Source
from shardio.order.plan import Order, Plan, Schedule, Shuffle, Tail
from shardio.order.weighted import SamplePoints, WeightedPlan, distance_bits
from shardio.order.world import World

LENGTHS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60), st.just(64)), min_size=1, max_size=300)
RULES = st.one_of(
    st.builds(lambda size, window: BucketRule("x", size, None, window), st.integers(1, 40), st.integers(1, 200)),
    st.builds(lambda tokens: BucketRule("x", None, tokens), st.integers(64, 500)),
    st.builds(lambda tokens, window: BucketRule("x", None, tokens, window), st.integers(64, 500), st.integers(1, 200)),
)
WORLDS = st.integers(1, 9)
SEEDS = st.integers(0, 2**63)
ORDERS = st.sampled_from(["global", "block", None])
TAILS = st.sampled_from(["drop", "pad"])


def plan(n: int, seed: int = 0, epoch: int = 0, shuffle: Shuffle = "global") -> Plan:
    return Plan(n, seed, epoch, shuffle, block=3, window=5)


def batches(order: Buckets) -> list[NDArray[np.int64]]:
    """The samples of each batch of the epoch."""
    return [order.lookup(np.array([place]))[0] for place in range(order.n)]


def deliver(order: Buckets, world: int, tail: Tail, start: int = 0, steps: int | None = None) -> list[list[int]]:
    """The batches that all ranks take in some steps, in global order, without those that pad; check them."""
    schedules = [Schedule(order.n, World(rank, world), 1, tail, start, unit="batch") for rank in range(world)]
    assert len({len(schedule) for schedule in schedules}) == 1
    taken = []
    for step in range(len(schedules[0]) if steps is None else steps):
        for schedule in schedules:
            part = schedule.part(order, step)
            assert len(part.indices) == len(part.valid) == part.ends[-1] > 0
            assert part.valid.all() or (tail == "pad" and not part.valid.any())
            taken += [part.indices.tolist()] if part.valid.all() else []
    return taken


@given(lengths=LENGTHS, rule=RULES, seed=SEEDS, epoch=st.integers(0, 99), shuffle=ORDERS, world=WORLDS, tail=TAILS)
def test_exactly_once(
    lengths: list[int], rule: BucketRule, seed: int, epoch: int, shuffle: Shuffle, world: int, tail: Tail
) -> None:
    """Ranks deliver each sample once in equal steps, less the batches that `drop` leaves out; none is too large."""
    order = Buckets(plan(len(lengths), seed, epoch, shuffle), np.array(lengths, np.uint8), rule)
    every = [batch.tolist() for batch in batches(order)]
    assert sorted(np.concatenate(every).tolist()) == list(range(len(lengths)))
    assert deliver(order, world, tail) == every[: order.n if tail == "pad" else order.n // world * world]
    for batch in every:
        assert len(batch) <= order.largest
        if rule.max_tokens is None:
            assert len(batch) <= rule.batch_size
        else:
            assert len(batch) * max(lengths[number] for number in batch) <= rule.max_tokens
    if rule.max_tokens is None:
        assert sum(len(batch) < rule.batch_size for batch in every) <= 1


@given(lengths=LENGTHS, rule=RULES, seed=SEEDS, worlds=st.tuples(WORLDS, WORLDS), data=st.data())
def test_elastic_resume(
    lengths: list[int], rule: BucketRule, seed: int, worlds: tuple[int, int], data: st.DataObject
) -> None:
    """Stopped after any step and resumed by another world, an epoch is delivered in its order, batch by batch."""
    order = Buckets(plan(len(lengths), seed, 3), np.array(lengths, np.uint8), rule)
    first = Schedule(order.n, World(0, worlds[0]), 1, "pad")
    stop = data.draw(st.integers(0, len(first)))
    position = first.position_after(stop - 1) if stop else 0
    before = deliver(order, worlds[0], "pad", steps=stop)
    after = deliver(order, worlds[1], "pad", start=position)
    assert before + after == [batch.tolist() for batch in batches(order)]


@given(lengths=LENGTHS, rule=RULES, seed=SEEDS, shuffle=ORDERS, world=WORLDS, tail=TAILS, steps=st.integers(1, 5))
def test_steps_together_are_the_steps_one_by_one(
    lengths: list[int], rule: BucketRule, seed: int, shuffle: Shuffle, world: int, tail: Tail, steps: int
) -> None:
    """Several steps at once are cut where their batches end, with the same samples and keys."""
    order = Buckets(plan(len(lengths), seed, 0, shuffle), np.array(lengths, np.uint8), rule)
    for rank in range(world):
        schedule = Schedule(order.n, World(rank, world), 1, tail)
        singles = [schedule.part(order, step) for step in range(len(schedule))]
        assert schedule.samples(order) == sum(len(single.indices) for single in singles)
        for first in range(0, len(schedule) - steps, steps):
            part, apart = schedule.part(order, first, steps), singles[first : first + steps]
            assert part.ends.tolist() == np.cumsum([len(single.indices) for single in apart]).tolist()
            for name in ("indices", "rng_keys", "valid"):
                expected = np.concatenate([getattr(single, name) for single in apart])
                assert getattr(part, name).tolist() == expected.tolist()


def mixed(seed: int) -> Order:
    sources = tuple(Source(Plan(n, seed + n), n) for n in (40, 25, 100))
    return MixedPlan(200, sources, ((0, (2, 1, 1)), (90, (1, 3, 0))), seed)


def weighted(seed: int) -> Order:
    ends = np.cumsum(np.full(165, 200 << distance_bits(200)) // 165 + np.arange(165) % 7)
    return WeightedPlan(Plan(200, seed), SamplePoints(ends))


@pytest.mark.parametrize("make", [mixed, weighted])
@given(seed=SEEDS, rule=RULES, epoch=st.integers(0, 20))
@settings(max_examples=20)
def test_orders_that_draw_for_themselves(make: Any, seed: int, rule: BucketRule, epoch: int) -> None:
    """Buckets of a mixture or of weighted samples hold what its epoch holds, with the same random keys."""
    samples = make(seed % 1000).at_epoch(epoch)
    order = Buckets(make(seed % 1000), np.arange(165) % 60, rule).at_epoch(epoch)
    expected = np.stack(samples.lookup(np.arange(samples.n)), axis=1)
    found = np.stack(order.lookup(np.arange(order.n)), axis=1)
    assert sorted(found.tolist()) == sorted(expected.tolist())


def padded_share(lengths: NDArray[np.int64], every: list[NDArray[np.int64]]) -> float:
    return float(1 - lengths.sum() / sum(len(batch) * lengths[batch].max() for batch in every))


LOGNORMAL = np.clip(np.random.default_rng(5).lognormal(5.5, 0.8, 60_000), 1, 4096).astype(np.int64)


@pytest.mark.parametrize(("rule", "most"), [(BucketRule("x", 32), 0.03), (BucketRule("x", None, 16384), 0.02)])
def test_little_is_padded(rule: BucketRule, most: float) -> None:
    """Of lengths as those of texts, three quarters of a random batch are padding, and hardly anything of a bucket."""
    order = Buckets(Plan(len(LOGNORMAL)), LOGNORMAL.astype(np.uint16), rule)
    random = np.array_split(Plan(len(LOGNORMAL)).indices(0, len(LOGNORMAL)), len(LOGNORMAL) // 32)
    assert padded_share(LOGNORMAL, random) > 0.7
    assert padded_share(LOGNORMAL, batches(order)) < most


def test_lengths_come_in_random_order() -> None:
    """Over the epoch batches of all lengths mix: neighbours do not correlate, and no hundredth is long or short."""
    order = Buckets(Plan(len(LOGNORMAL), 1), LOGNORMAL, BucketRule("x", 32))
    longest = np.array([LOGNORMAL[batch].max() for batch in batches(order)], np.float64)
    logs = np.log(longest)
    assert abs(np.corrcoef(logs[:-1], logs[1:])[0, 1]) < 4 / np.sqrt(len(logs))
    parts = np.array([part.mean() for part in np.array_split(logs, 100)])
    assert np.abs(parts - logs.mean()).max() < 4.5 * logs.std() / np.sqrt(len(logs) / 100)


def test_samples_meet_others_in_each_epoch() -> None:
    """Batches, and their order, differ by epoch and seed; few samples that shared a batch share the next epoch's."""
    lengths = np.arange(20_000)[::-1]  # no two alike, which leaves least to chance
    orders = [Buckets(Plan(20_000, seed, epoch), lengths, BucketRule("x", 32)) for seed in (1, 2) for epoch in (0, 1)]
    assert len({lengths[order.lookup(np.arange(order.n))[0]].tobytes() for order in orders}) == 4
    number = np.empty(20_000, np.int64)
    for place, batch in enumerate(batches(orders[1])):
        number[batch] = place
    meet = [np.sum(number[batch][:, None] == number[batch]) - len(batch) for batch in batches(orders[0])]
    assert sum(meet) / (20_000 * 31) < 0.25


def test_the_stored_order_keeps_its_windows() -> None:
    """Without shuffling, windows come one after the other, and the longest samples of each come first."""
    lengths = np.random.default_rng(2).integers(0, 50, 1000)
    order = Buckets(Plan(1000, shuffle=None), lengths, BucketRule("x", None, 300, 100))
    found = order.lookup(np.arange(order.n))[0]
    for first in range(0, 1000, 100):
        window = found[first : first + 100]
        assert sorted(window.tolist()) == list(range(first, first + 100))
        assert np.all(np.diff(lengths[window]) <= 0)


@given(lengths=LENGTHS, rule=RULES, seed=SEEDS, ends=st.tuples(st.integers(0, 299), st.integers(1, 300)))
def test_windows_hold_what_their_batches_deliver(
    lengths: list[int], rule: BucketRule, seed: int, ends: tuple[int, int]
) -> None:
    """The runs of the shuffling windows of some batches hold their samples."""
    order = Buckets(plan(len(lengths), seed, 0, "block"), np.array(lengths), rule)
    start = min(ends[0], order.n - 1)
    stop = min(max(ends[1], start + 1), order.n)
    first, last = order.windows(start, stop)
    told = {sample for run in order.runs(first, last + 1) for sample in run}
    assert set(order.lookup(np.arange(start, stop))[0].tolist()) <= told
    assert Buckets(plan(len(lengths)), np.array(lengths), rule).windows(0, 1) == (0, -1)


@given(lengths=LENGTHS, seed=SEEDS, attempt=st.integers(1, 17))
def test_a_replacement_is_no_longer(lengths: list[int], seed: int, attempt: int) -> None:
    """A sample in place of a bad one is no longer than it, so that the batch keeps within its tokens."""
    order = Buckets(plan(len(lengths), seed), np.array(lengths), BucketRule("x", None, 64))
    median = int(np.argsort(lengths)[len(lengths) // 2])
    assert lengths[order.replacement(median, median, attempt)[0]] <= lengths[median]


def test_the_batches_of_an_epoch_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made when they are asked for, kept with their order, and go along to other processes."""
    made = []
    make = buckets._made
    monkeypatch.setattr(buckets, "_made", lambda *of: [make(*of), made.append(of)][0])
    order = Buckets(Plan(1000), np.arange(1000), BucketRule("x", None, 4000))
    later = order.at_epoch(7)
    assert not made
    assert len(later.lookup(np.arange(later.n))[0]) == len(later.lookup(np.arange(later.n))[0]) == 1000
    copy = pickle.loads(pickle.dumps(later))  # noqa: S301  # our own
    assert copy == later
    assert copy.lookup(np.arange(9))[0].tolist() == later.lookup(np.arange(9))[0].tolist()
    assert len(made) == 1
    assert copy.at_epoch(7).ends.tolist() == later.ends.tolist()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (BucketRule("text", 32), "32 samples by text"),
        (BucketRule("text", None, 4096, 1024), "up to 4096 tokens by text"),
        (
            BucketRule("text", 2, lengths="max=60,min=48,multiple=32"),
            "2 samples by text up to 60 padded to 48 in multiples of 32",
        ),
        (BucketRule("text", 2, lengths="max=8||multiple=4"), "2 samples by text up to 8 or whole or in multiples of 4"),
    ],
)
def test_a_rule_in_words(rule: BucketRule, words: str) -> None:
    """A rule has words for messages, which a state doesn't hold."""
    assert str(rule.bucketing) == words
    assert all(isinstance(value, str | int) for value in rule.bucketing)


@pytest.mark.parametrize(
    ("rule", "digest"),
    [
        (BucketRule("x", 7), "76c892624d8b2939"),
        (BucketRule("x", None, 500), "a04f3e7c7b89058a"),
        (BucketRule("x", None, 500, 64), "2cba84aa3b1362e8"),
    ],
)
def test_recorded_batches(rule: BucketRule, digest: str) -> None:
    """The batches of an epoch stay what they are: states of earlier releases resume."""
    order = Buckets(Plan(1000, 3, 5), np.arange(1000) % 97, rule)
    found = np.concatenate([order.ends, order.lookup(np.arange(order.n))[0]])
    assert xxhash.xxh3_64_hexdigest(found.astype("<i8").tobytes()) == digest
