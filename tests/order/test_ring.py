"""Rows cut from a ring: in each epoch, each entry at most once, and fewer left out than a row has."""

from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardio.errors import ConfigError
from shardio.order.plan import Plan
from shardio.order.ring import RingPlan

SEEDS = st.integers(-(1 << 63), 1 << 63)
EPOCHS = st.integers(0, (1 << 63) - 1)
SHUFFLES = st.sampled_from(["global", "block", None])


def ring(entries: int, length: int, *plan: Any) -> RingPlan:
    """A ring of a plan of its rows."""
    return RingPlan(Plan(entries // length, *plan), entries, length)


@st.composite
def rings(draw: st.DrawFn) -> RingPlan:
    """Any ring with a row on it, in any epoch."""
    length = draw(st.integers(1, 40))
    entries = length + draw(st.integers(0, 300))
    block, window = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    return ring(entries, length, draw(SEEDS), draw(EPOCHS), draw(SHUFFLES), block, window)


@given(rings())
def test_an_epoch_holds_each_entry_at_most_once(plan: RingPlan) -> None:
    """The rows of an epoch share no entry and leave out fewer than a row has, which lie side by side."""
    places = plan.lookup(np.arange(plan.n))[0]
    held = ((places[:, None] + np.arange(plan.length)) % plan.entries).reshape(-1)
    assert len(np.unique(held)) == len(held) == plan.n * plan.length
    left = np.setdiff1d(np.arange(plan.entries), held)
    assert len(left) < plan.length
    inside = np.zeros(plan.entries, np.bool_)
    inside[left] = True
    assert (inside & ~np.roll(inside, 1)).sum() <= 1
    assert plan.at_epoch(plan.epoch) == plan


@given(rings(), st.tuples(st.integers(0, 399), st.integers(1, 400)))
def test_windows_hold_what_their_positions_deliver(plan: RingPlan, ends: tuple[int, int]) -> None:
    """The runs of the windows of some positions are the rows that these windows deliver, in the order of the ring."""
    start = min(ends[0], plan.n - 1)
    stop = max(start + 1, min(ends[1], plan.n))
    first, last = plan.windows(start, stop)
    told = [place for run in plan.runs(first, last + 1) for place in run]
    shuffle, block, window = plan.shuffling
    span = block * window
    if shuffle == "block":
        assert sorted(told) == sorted(plan.lookup(np.arange(first * span, min(plan.n, (last + 1) * span)))[0].tolist())
    else:
        assert (first, last, told) == (0, -1, [])


@given(rings(), st.integers(0, 400), st.integers(1, 16))
def test_a_bad_row_is_replaced_by_one_of_its_epoch(plan: RingPlan, position: int, attempt: int) -> None:
    """The replacement is a row that the epoch has, the same whenever one asks."""
    (place,), (key,) = (column.tolist() for column in plan.lookup(np.array([position % plan.n])))
    other, other_key = plan.replacement(place, key, attempt)
    assert other in plan.lookup(np.arange(plan.n))[0]
    assert (other, other_key) == plan.replacement(place, key, attempt)
    assert other_key < 0


def test_epochs_enter_the_ring_at_other_places() -> None:
    """Shuffled epochs begin anywhere on the ring, so that rows differ; stored order begins at the first entry."""
    entries, length = 10_000, 64
    firsts = {int(ring(entries, length, 3, epoch).lookup(np.arange(1))[0][0]) % length for epoch in range(200)}
    assert len(firsts) > length // 2
    for shuffle in ("global", "block"):
        offsets = {ring(entries, length, seed, 0, shuffle)._first for seed in range(200)}
        assert len(offsets) > 190
    for epoch in range(3):
        stored = ring(entries, length, 3, epoch, None).lookup(np.arange(3))[0]
        assert stored.tolist() == [0, length, 2 * length]


@pytest.mark.parametrize(("entries", "length"), [(7, 8), (0, 1), (8, 0), (1 << 62, 8)])
def test_a_ring_without_a_row_is_refused(entries: int, length: int) -> None:
    """A ring has at least one row, and fewer than 2^62 entries."""
    with pytest.raises(ConfigError, match=f"{entries} entries on a ring do not make 1 rows of {length}"):
        RingPlan(Plan(1), entries, length)


@pytest.mark.parametrize(
    ("shuffling", "recorded"),
    [
        (("global",), "6aa7e643558b7f56"),
        (("block", 8, 3), "c71c70b4232349b6"),
        ((None,), "d89472c2a7fc3edf"),
    ],
)
def test_recorded_orders(shuffling: Any, recorded: str) -> None:
    """The rows and keys of two epochs stay what they are: states of earlier releases resume."""
    rows = np.arange(142)
    found = np.stack([ring(1000, 7, 3, epoch, *shuffling).lookup(rows) for epoch in (0, 5)])
    assert xxhash.xxh3_64_hexdigest(found.astype("<i8").tobytes()) == recorded
