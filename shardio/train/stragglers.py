"""Slow ranks: with an allreduce in every step, all ranks are as slow as the slowest one, and which it is does not show.

What shows it are the times that a rank spends on its own: waiting for input, and computing. The others wait for it in
their communication.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

_WINDOWS = 3
_SHARE = 0.2  # of the step
_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The seconds that a rank spends on a step.

    Attributes:
        input: waiting for its batches.
        compute: from the beginning of the forward pass until its own gradients are there.
        communication: from then on until the gradients of all ranks are added.
    """

    input: float
    compute: float
    communication: float

    @property
    def own(self) -> float:
        """The seconds that the rank spends without waiting for others."""
        return self.input + self.compute


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: its number.
        host: the name of its host.
        cause: what it spends more time on than the others.
        excess: how much more than their median, in seconds per step, or per message to another node.
        step: what a step takes, in seconds.
    """

    rank: int
    host: str
    cause: Literal["input", "compute", "communication"]
    excess: float
    step: float

    def __str__(self) -> str:
        if self.cause == "communication":
            return (
                f"the network of rank {self.rank} on {self.host} is slow: 256 KiB to another node and back take "
                f"{1000 * self.excess:.0f} ms more than between the others (a step takes {1000 * self.step:.0f} ms)"
            )
        return (
            f"rank {self.rank} on {self.host} is slow: its {self.cause} takes {1000 * self.excess:.0f} ms per step "
            f"more than that of the others, which wait for it (a step takes {1000 * self.step:.0f} ms)"
        )


def slowest(times: Sequence[StepTimes], hosts: Sequence[str]) -> Straggler | None:
    """Return the rank that the others wait for, for at least a fifth of the step; None if there is none."""
    if len(times) < 2:
        return None
    rank = max(range(len(times)), key=lambda number: times[number].own)
    others = [own for number, own in enumerate(times) if number != rank]
    mine, step = times[rank], times[rank].own + times[rank].communication
    if mine.own - statistics.median(other.own for other in others) < max(_SHARE * step, _SECONDS):
        return None
    late = mine.input - statistics.median(other.input for other in others)
    long = mine.compute - statistics.median(other.compute for other in others)
    return Straggler(rank, hosts[rank], "input" if late > long else "compute", max(late, long), step)


def communication_bound(times: Sequence[StepTimes]) -> bool:
    """Whether all ranks, also the last one to be ready, spend most of the step on adding their gradients."""
    return all(rank.communication > max(rank.own, _SECONDS) for rank in times)


@final
class StragglerWatch:
    """Tells persistently slow ranks from chance: a straggler is one in three looks after one another.

    Args:
        hosts: the name of each rank's host.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._found: deque[Straggler | None] = deque(maxlen=_WINDOWS)
        self._reported: tuple[int, str] | None = None

    def look(self, times: Sequence[StepTimes]) -> Straggler | None:
        """Add what all ranks spent on a step; return the straggler if it was not known before."""
        self._found.append(slowest(times, self._hosts))
        now = self.straggler
        if now is None:
            if all(found is None for found in self._found):
                self._reported = None
            return None
        if self._reported == (now.rank, now.cause):
            return None
        self._reported = now.rank, now.cause
        return now

    @property
    def straggler(self) -> Straggler | None:
        """The rank that is slow now; None if there is none."""
        last = self._found[-1] if self._found else None
        same = [
            found for found in self._found if found and last and (found.rank, found.cause) == (last.rank, last.cause)
        ]
        return last if len(same) == _WINDOWS else None
