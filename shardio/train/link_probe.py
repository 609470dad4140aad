"""Which node has a slow network: a question that an allreduce, which all nodes end together, does not answer."""

import time
from collections.abc import Sequence
from statistics import median

import torch
import torch.distributed as dist

_BYTES = 1 << 18
_TRIPS = 3


def ring_seconds(leaders: Sequence[int], rank: int, group: dist.ProcessGroup) -> list[float]:
    """Return the seconds that 256 KiB take from each leader to the next one and back, at best of three.

    Neighbours are asked in pairs, so that no link serves two of them at a time.

    Args:
        leaders: one rank of each node, two nodes at least.
        rank: the number of this rank.
        group: the ranks, all of which must call this.
    """
    count, seconds = len(leaders), torch.zeros(len(leaders), dtype=torch.float64)
    pairs = [(number, (number + 1) % count) for number in range(count if count > 2 else 1)]
    odd = pairs.pop() if count % 2 else None  # the last one shares a node with the first
    data = torch.zeros(_BYTES, dtype=torch.uint8)
    for together in (pairs[0::2], pairs[1::2], [] if odd is None else [odd]):
        dist.barrier(group=group)
        for first, second in together:
            if rank == leaders[first]:
                seconds[first] = min(_trip(data, leaders[second], group, begins=True) for _ in range(_TRIPS))
            elif rank == leaders[second]:
                for _ in range(_TRIPS):
                    _trip(data, leaders[first], group, begins=False)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return seconds.tolist()


def _trip(data: torch.Tensor, other: int, group: dist.ProcessGroup, *, begins: bool) -> float:
    begun = time.perf_counter()
    for sends in (begins, not begins):
        if sends:
            dist.send(data, other, group=group)
        else:
            dist.recv(data, other, group=group)
    return time.perf_counter() - begun


def slow_node(ring: Sequence[float]) -> tuple[int, float] | None:
    """Return the number of the node both of whose links are slow, and its excess in seconds; None if there is none.

    Args:
        ring: the seconds from each node to the next one, as `ring_seconds` gives them.
    """
    if len(ring) < 3:
        return None  # both ends of the only link look the same
    both = [min(ring[number - 1], ring[number]) for number in range(len(ring))]
    worst = max(range(len(ring)), key=lambda number: both[number])
    usual = median(value for number, value in enumerate(ring) if number not in (worst, (worst - 1) % len(ring)))
    return (worst, both[worst] - usual) if both[worst] > 3 * usual else None
