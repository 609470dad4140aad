"""Ranks wait for each other at each step, and a rank that does not come is named."""

import copy
import random
import threading
import time

import pytest

from shardio.bench.rank_processes import Barrier
from shardio.errors import PipelineStalled

STEPS = 300


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_no_rank_is_a_step_ahead(ranks: int) -> None:
    """Whoever passes a barrier finds that all have come to it, however unequal they are."""
    barrier = Barrier(ranks)
    arrived = [0] * ranks
    early: list[tuple[int, int]] = []

    def run(rank: int, own: Barrier) -> None:
        pauses = random.Random(rank)
        for step in range(1, STEPS + 1):
            if pauses.random() < 0.1:
                time.sleep(0.001 * pauses.random())
            arrived[rank] = step
            own.wait(rank, 60.0)
            early.extend((rank, step) for others in arrived if others < step)

    # A process has a copy of its own, as each thread here.
    threads = [threading.Thread(target=run, args=(rank, copy.copy(barrier))) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert arrived == [STEPS] * ranks
    assert early == []


def test_a_rank_that_does_not_come() -> None:
    """The wait ends after its limit."""
    with pytest.raises(PipelineStalled, match=r"rank 1 has waited 0 s for the other ranks"):
        Barrier(3).wait(1, 0.01)
