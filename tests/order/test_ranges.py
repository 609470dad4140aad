"""Ranges of an order: batches cut from the beginning of each, with the samples and random keys of the order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio.errors import ConfigError
from shardio.order.buckets import BucketRule, Buckets
from shardio.order.plan import Plan, Schedule
from shardio.order.ranges import Ranges
from shardio.order.world import World

N = 50
RANGES = st.lists(
    st.integers(0, N - 1).flatmap(lambda start: st.builds(range, st.just(start), st.integers(start + 1, N))), min_size=1
)


@given(RANGES, st.integers(1, 12), st.integers(1, 5))
def test_batches_are_those_of_each_range(ranges: list[range], batch_size: int, steps: int) -> None:
    """However many batches are asked for at once, each holds the next positions of one range, keys included."""
    plan = Plan(N, seed=3, shuffle="global")
    expected = [part[at : at + batch_size] for part in ranges for at in range(0, len(part), batch_size)]
    order = Ranges(plan, ranges, batch_size)
    schedule = Schedule(order.n, World(), 1, unit="batch")
    assert len(schedule) == len(expected)
    for first in range(0, len(expected), steps):
        asked = expected[first : first + steps]
        part = schedule.part(order, first, len(asked))
        assert part.ends is not None
        assert np.diff(part.ends, prepend=0).tolist() == [len(each) for each in asked]
        indices, keys = plan.lookup(np.concatenate([np.arange(each.start, each.stop) for each in asked]))
        assert (part.indices.tolist(), part.rng_keys.tolist()) == (indices.tolist(), keys.tolist())
        assert part.valid.all()


def test_no_epoch_follows() -> None:
    """Ranges are of one epoch, so that workers make nothing ahead; and of samples, not of batches."""
    order = Ranges(Plan(N), [range(N)], 4)
    assert (order.replacement_index(3, 3, 1), order.epoch) == (Plan(N).replacement_index(3, 3, 1), 0)
    with pytest.raises(ConfigError, match="of one epoch"):
        order.at_epoch(1)
    with pytest.raises(ConfigError, match="batches of any length"):
        Ranges(Buckets(Plan(N), np.arange(N), BucketRule("length", 4)), [range(4)], 2)
