"""Samples that replace bad ones: others of the epoch, with random keys that no sample of the epoch has."""

import numpy as np
import pytest

from shardio.order.buckets import BucketRule, Buckets
from shardio.order.mixed_plan import MixedPlan, Source
from shardio.order.plan import Order, Plan
from shardio.order.ring import RingPlan
from shardio.order.weighted import SamplePoints, WeightedPlan, distance_bits

N = 60
POINTS = SamplePoints(np.cumsum(np.full(N, (N << distance_bits(N)) // N + np.arange(N) % 2)))
WEIGHTED = WeightedPlan(Plan(N, 3), POINTS)
SOURCES = tuple(Source(order, order.n) for order in (Plan(40, 4), WEIGHTED))
ORDERS: dict[str, Order] = {
    "global": Plan(N, 3),
    "block": Plan(N, 3, 0, "block", 4, 3),
    "stored": Plan(N, 3, 0, None),
    "ring": RingPlan(Plan(N, 3), N * 7 + 3, 7),
    "weighted": WEIGHTED,
    "independent": WeightedPlan(Plan(N, 3), POINTS, independent=True),
    "mixture": MixedPlan(N, SOURCES, ((0, (2, 1)),), 3),
    "nested": MixedPlan(N, (Source(MixedPlan(50, SOURCES, ((0, (1, 1)),), 3), 100), SOURCES[0]), ((0, (2, 1)),), 3),
    "buckets": Buckets(Plan(N, 3), np.arange(N) % 13, BucketRule("x", 6)),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_no_sample_is_delivered_twice_alike(order: Order) -> None:
    """In 1,000 epochs with bad samples no two deliveries have the same index and random key."""
    bad = {0, 3, 9, 20, 21, 22, 63, 98}
    epochs, replaced = 30 if isinstance(order, Buckets) else 1000, 0  # buckets draw 64 samples for each bad one
    for epoch in range(epochs):
        plan = order.at_epoch(epoch)
        seen = set[tuple[int, int]]()
        for index, key in np.stack(plan.lookup(np.arange(plan.n)), axis=1).tolist():
            found, attempt = (index, key), 0
            while found[0] in bad:
                attempt += 1
                found = plan.replacement(index, key, attempt)
            replaced += attempt > 0
            assert found not in seen
            seen.add(found)
        assert len(seen) == N
    assert replaced > epochs


def test_the_key_is_that_of_the_bad_sample_and_the_attempt() -> None:
    """Whatever the order, seed and epoch, the key is a function of these two; and it is a recorded one."""
    keys = [{order.at_epoch(2).replacement(0, 5, n)[1] for order in ORDERS.values()} for n in (1, 2)]
    assert keys == [{-4918443196719215564}, {-4488894737815031811}]
