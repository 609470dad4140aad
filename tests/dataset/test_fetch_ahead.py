"""The loader asks stores for coming samples, in the order in which it will need them."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.dataset.fetch_ahead import FetchAhead
from shardio.order.world import World
from shardio.plan import Plan, Schedule


class Request:
    """Pieces that are on their way until `present` is set."""

    bytes = 1 << 16
    present = False

    def release(self) -> None:
        pass


class Recorder:
    """A dataset in a store that notes what is asked of it."""

    def __init__(self, *requests: Request) -> None:
        self.asked: list[NDArray[np.int64]] = []
        self._requests = list(requests)

    def selection(self, indices: NDArray[np.int64]) -> "Recorder":
        self.asked.append(indices)
        return self

    def prefetch(self, fields: Iterable[str], blocks: Any = None) -> list[Any]:
        return self._requests


def first_asked(world: World, shuffle: Any = "block") -> NDArray[np.int64]:
    """The samples that are asked for first, with 2 windows of 64 samples for each node and step."""
    dataset: Any = Recorder()
    plan = Plan(4096, shuffle=shuffle, block=16, window=4)
    ahead = FetchAhead(dataset, ["image"], plan, Schedule(4096, world, 32))
    ahead.close()
    asked: NDArray[np.int64] = dataset.asked[0]
    return asked


def test_the_ranks_of_a_node_ask_for_the_same_long_runs() -> None:
    """With block shuffle on several nodes, each rank of a node asks for all blocks that its node takes at a step."""
    asked = [first_asked(World(rank, 8, rank % 4, 4)) for rank in range(8)]
    for rank in range(8):
        np.testing.assert_array_equal(asked[rank], asked[rank // 4 * 4])
    assert len(asked[0]) == len(asked[4]) == 128
    assert not set(asked[0].tolist()) & set(asked[4].tolist())
    assert np.count_nonzero(np.diff(asked[0]) != 1) < 128 // 16


def test_a_rank_asks_for_its_own_samples_where_its_neighbours_are_elsewhere() -> None:
    """With ranks laid cyclically on the nodes, or a global shuffle, a rank asks for its own samples."""
    assert len(first_asked(World(1, 8, 0, 4))) == 32
    assert len(first_asked(World(1, 8, 1, 4), "global")) == 32


def test_nothing_else_is_asked_for_until_the_first_is_there() -> None:
    """The first request has been made when the epoch begins, so that no reader comes first; later ones wait for it."""
    request = Request()
    dataset: Any = Recorder(request)
    ahead = FetchAhead(dataset, ["image"], Plan(4096), Schedule(4096, World(), 32))
    assert len(dataset.asked) == 1
    ahead.delivered(0)
    time.sleep(0.1)
    assert len(dataset.asked) == 1
    request.present = True
    deadline = time.monotonic() + 10
    while len(dataset.asked) == 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(dataset.asked) > 1
    ahead.close()
