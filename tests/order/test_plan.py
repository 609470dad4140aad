"""The plan: each sample exactly once, equal steps and elastic resume, for any N, world, batch size, seed and tail."""

from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardio.errors import ConfigError
from shardio.order.plan import Assign, Plan, Schedule, Shuffle, Tail
from shardio.order.world import World

SIZES = st.integers(1, 400)
WORLDS = st.integers(1, 9)
BATCHES = st.integers(1, 40)
SEEDS = st.integers(0, 2**63)
EPOCHS = st.integers(0, 1000)
TAILS = st.sampled_from(["drop", "pad"])
ORDERS = st.sampled_from(["global", "block", None])


def deliver(
    plan: Plan, world: int, batch: int, tail: Tail, start: int = 0, steps: int | None = None, assign: Assign = "rank"
) -> list[int]:
    """The valid samples that all ranks take in some steps, in global order; check that steps are equal."""
    schedules = [Schedule(plan.n, World(rank, world), batch, tail, start, assign) for rank in range(world)]
    assert len({len(schedule) for schedule in schedules}) == 1
    taken = []
    for step in range(len(schedules[0]) if steps is None else steps):
        for schedule in schedules:
            part = schedule.part(plan, step)
            assert len(part.indices) == len(part.valid) == batch
            assert part.indices.min() >= 0
            assert part.indices.max() < plan.n
            taken += part.indices[part.valid].tolist()
    return taken


@given(n=SIZES, world=WORLDS, batch=BATCHES, seed=SEEDS, epoch=EPOCHS, tail=TAILS, shuffle=ORDERS)
def test_exactly_once(n: int, world: int, batch: int, seed: int, epoch: int, tail: Tail, shuffle: Shuffle) -> None:
    """Ranks deliver each sample once, less a dropped tail, in one order, whatever the world and the batch size."""
    plan = Plan(n, seed, epoch, shuffle)
    taken, order = deliver(plan, world, batch, tail), plan.indices(0, n).tolist()
    assert sorted(order) == list(range(n))
    assert taken == order[: n if tail == "pad" else n // (world * batch) * world * batch]


@given(n=SIZES, seed=SEEDS, worlds=st.tuples(WORLDS, WORLDS), batches=st.tuples(BATCHES, BATCHES), data=st.data())
def test_elastic_resume(
    n: int, seed: int, worlds: tuple[int, int], batches: tuple[int, int], data: st.DataObject
) -> None:
    """Stopped after any step and resumed with another world and batch size, an epoch is delivered in its order."""
    plan = Plan(n, seed, 3)
    first = Schedule(n, World(0, worlds[0]), batches[0], "pad")
    stop = data.draw(st.integers(0, len(first)))
    position = first.position_after(stop - 1) if stop else 0
    before = deliver(plan, worlds[0], batches[0], "pad", steps=stop)
    after = deliver(plan, worlds[1], batches[1], "pad", start=position)
    assert before + after == plan.indices(0, n).tolist()


@given(
    n=SIZES,
    world=WORLDS,
    batch=BATCHES,
    seed=SEEDS,
    shuffle=ORDERS,
    tail=TAILS,
    stop=st.integers(0, 20),
    then=st.tuples(WORLDS, BATCHES, st.sampled_from(["rank", "node"])),
)
def test_ranks_that_take_neighbors_share_the_same_global_batches(
    n: int,
    world: int,
    batch: int,
    seed: int,
    shuffle: Shuffle,
    tail: Tail,
    stop: int,
    then: tuple[int, int, Assign],
) -> None:
    """With assign="node" each step has the samples that it has without, exactly once; a resume may choose otherwise."""
    plan = Plan(n, seed, 0, shuffle)
    schedule = Schedule(n, World(0, world), batch, tail)
    for step in range(min(len(schedule), 5)):
        start = schedule.position_after(step - 1) if step else 0
        by_node, by_rank = (deliver(plan, world, batch, tail, start, 1, assign) for assign in ("node", "rank"))
        assert sorted(by_node) == sorted(by_rank)
    steps = min(stop, len(schedule))
    taken = deliver(plan, world, batch, "pad", 0, steps, "node")
    position = schedule.position_after(steps - 1) if steps else 0
    taken += deliver(plan, then[0], then[1], "pad", position, None, then[2])
    assert sorted(taken) == list(range(n))


def test_neighbors_stay_on_one_node() -> None:
    """With assign="node", blocks and a large global batch, nearly every block is read by one node alone."""
    plan, world, per_node, batch = Plan(100_000, 3, 0, "block", 50, 16), 16, 4, 250
    read: list[set[int]] = []
    for assign in ("rank", "node"):
        nodes: list[set[int]] = [set() for _ in range(world // per_node)]
        for rank in range(world):
            schedule = Schedule(plan.n, World(rank, world), batch, "drop", 0, assign)
            nodes[rank // per_node] |= set((schedule.part(plan, 0, len(schedule)).indices // 50).tolist())
        read.append({sum(len(node) for node in nodes)})
    by_rank, by_node = (found.pop() for found in read)
    assert by_node <= 1.2 * 2000  # of 2,000 blocks
    assert by_rank > 1.5 * 2000


def test_samples_of_a_rank_keep_their_order() -> None:
    """With assign="node" a rank's samples come in the order of their positions, not of storage, as mixing needs it."""
    plan, schedule = Plan(1000, 0, 0, "global"), Schedule(1000, World(1, 4), 50, "drop", 0, "node")
    place = {index: position for position, index in enumerate(plan.indices(0, 1000).tolist())}
    for step in range(3):
        places = [place[index] for index in schedule.part(plan, step).indices.tolist()]
        assert places == sorted(places)
    both = schedule.part(plan, 0, 2).indices.tolist()
    assert both == schedule.part(plan, 0).indices.tolist() + schedule.part(plan, 1).indices.tolist()


def test_padding_repeats_the_beginning() -> None:
    """Padding is the beginning of the epoch, marked as not valid."""
    plan = Plan(5, seed=1)
    part = Schedule(5, World(1, 2), 3, "pad").part(plan, 0)
    assert part.valid.tolist() == [True, True, False]
    assert part.indices.tolist() == [*plan.indices(3, 5).tolist(), *plan.indices(0, 1).tolist()]


def test_epochs_and_seeds_differ() -> None:
    """Another epoch or seed gives another order."""
    orders = {tuple(Plan(50, seed, epoch).indices(0, 50).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_a_billion_samples_take_no_memory_to_plan() -> None:
    """A plan of 10^12 samples answers for any position."""
    found = Plan(10**12, seed=1).indices(10**12 - 256, 10**12)
    assert len(np.unique(found)) == 256


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan(0), "at least one sample"),  # no samples
        (lambda: Plan(5, epoch=-1), r"epoch must be in \[0, 2\^63\), got -1"),  # epochs count from 0
        (lambda: Plan(5, shuffle="blok"), "got 'blok'"),  # type: ignore[arg-type]  # a typing slip
        (lambda: Plan(5).indices(0, 6), r"in \[0, 5\], got 0 to 6"),  # past the end
        (lambda: Plan(5).indices(3, 2), "got 3 to 2"),  # backwards
        (lambda: Schedule(5, World(), 0), "batch_size must be at least 1, got 0"),  # an empty batch
        (lambda: Schedule(5, World(), 1, "keep"), "got 'keep'"),  # type: ignore[arg-type]  # no such tail
        (lambda: Schedule(5, World(), 1, start=6), r"in \[0, 5\], got 6"),  # a position past the end
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


BLOCK_SIZES, WINDOWS = st.integers(1, 30), st.integers(1, 9)


@given(n=SIZES, block=BLOCK_SIZES, window=WINDOWS, seed=SEEDS, epoch=EPOCHS)
def test_block_order_is_a_permutation_of_blocks(n: int, block: int, window: int, seed: int, epoch: int) -> None:
    """Each sample comes once, and a window holds as many runs of neighbours as blocks fit in it."""
    order = Plan(n, seed, epoch, "block", block, window).indices(0, n)
    assert sorted(order.tolist()) == list(range(n))
    span = block * window
    for start in range(0, n, span):
        inside = np.zeros(n, np.bool_)
        inside[order[start : start + span]] = True
        runs = int((inside & ~np.roll(inside, 1)).sum())  # the first sample follows the last one
        assert runs <= window


@given(n=SIZES, block=BLOCK_SIZES, window=WINDOWS, seed=SEEDS, ends=st.tuples(st.integers(0, 399), st.integers(1, 400)))
def test_windows_hold_what_their_positions_deliver(
    n: int, block: int, window: int, seed: int, ends: tuple[int, int]
) -> None:
    """The runs of the windows of some positions hold the samples at these positions, and no others."""
    plan = Plan(n, seed, 0, "block", block, window)
    start, stop = min(ends[0], n - 1), min(max(ends[1], ends[0] + 1), n)
    stop = max(stop, start + 1)
    first, last = plan.windows(start, stop)
    told = [sample for run in plan.runs(first, last + 1) for sample in run]
    span = block * window
    assert sorted(told) == sorted(plan.indices(first * span, min(n, (last + 1) * span)).tolist())
    assert set(plan.indices(start, stop).tolist()) <= set(told)
    assert Plan(n, seed).runs(*Plan(n, seed).windows(0, n)) == []


def test_the_last_block_moves() -> None:
    """A dropped tail leaves out other samples in each epoch."""
    dropped = [set(Plan(103, 0, epoch, "block", 10, 3).indices(100, 103).tolist()) for epoch in range(30)]
    assert len(set.union(*dropped)) > 40


@pytest.mark.parametrize("wrong", [{"block": 0}, {"window": 0}, {"block": 1.5}])
def test_blocks_that_are_none_are_refused(wrong: dict[str, int]) -> None:
    """Block and window must be positive integers."""
    with pytest.raises(ConfigError, match="must be an integer of at least 1"):
        Plan(10, shuffle="block", **wrong)


@pytest.mark.parametrize(
    ("shuffling", "recorded"),
    [
        (("global",), "94c0b3637663d96b"),
        (("block", 8, 3), "01ebc6cadd88768d"),
        (("block", 64, 16), "b7dfed75a143fcc2"),
        ((None,), "88e799f761ed9afa"),
    ],
)
def test_recorded_orders(shuffling: Any, recorded: str) -> None:
    """The samples and keys of an epoch stay what they are: states of earlier releases resume."""
    found = np.stack([Plan(1000, seed, epoch, *shuffling).lookup(np.arange(1000)) for seed, epoch in ((3, 5), (-1, 0))])
    assert xxhash.xxh3_64_hexdigest(found.astype("<i8").tobytes()) == recorded
