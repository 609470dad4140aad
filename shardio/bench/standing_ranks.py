"""Rank processes that stand ready: they take batches in turns, each of a part of a second, as often as they are asked.

All start once, which takes seconds. Each turn begins and ends a loop of its own, so no worker runs between turns.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

from ..loader.batch.host_batch import Batch
from ..order.world import World
from .config import BenchConfig
from .rank import await_arrival, build_loader, compute_until
from .rank_processes import START_LIMIT, Meeting, RankProcesses

WARMUP_STEPS = 4  # of each turn, before its clock starts


@dataclass(frozen=True, slots=True)
class Turn:
    """The steps that a rank did in a turn, after its first ones.

    Attributes:
        samples: the samples that it took.
        steps: the number of steps.
        seconds: the time for them.
        step_seconds: the time that each step computed for.
    """

    samples: int
    steps: int
    seconds: float
    step_seconds: float

    @property
    def samples_per_second(self) -> float:
        """The rate."""
        return self.samples / self.seconds

    @property
    def seconds_per_step(self) -> float:
        """The mean time of a step."""
        return self.seconds / self.steps

    @property
    def utilisation(self) -> float:
        """The share of the time in which the accelerator computed, the first steps of epochs included."""
        return min(1.0, self.step_seconds / self.seconds_per_step)


@final
class StandingRanks(RankProcesses):
    """The rank processes of one configuration, which end with the `with` block.

    Raises what `shardio.Loader` raises for the configuration.
    """

    def __init__(self, config: BenchConfig) -> None:
        build_loader(config, World(0, config.ranks, 0, config.ranks))  # finds wrong arguments in this process
        self._config = config
        super().__init__(config, _take_turns)

    def turn(self, seconds: float, step_seconds: float | None = None) -> list[Turn]:
        """Let the ranks take batches for so long; return what each did.

        Args:
            seconds: the time; a step that has begun is finished.
            step_seconds: the time that each step computes for; None takes the configuration's.
        """
        if step_seconds is None:
            step_seconds = 0.0 if self._config.accelerator is None else self._config.accelerator.step_seconds
        self.send((seconds, step_seconds))
        return self.answers(seconds)

    def rate(self, seconds: float) -> float:
        """Let the ranks take batches for so long; return the samples per second of all."""
        return sum(turn.samples_per_second for turn in self.turn(seconds))


def _take_turns(config: BenchConfig, rank: int, meeting: Meeting, pipe: "Connection[Any, Any]") -> None:
    """Take batches in turns, in a rank's own process, until it is ended."""
    taker = _Taker(config, rank, meeting)
    while True:
        pipe.send(taker.turn(*pipe.recv()))


@final
class _Taker:
    """Takes the batches of one rank, epoch after epoch."""

    def __init__(self, config: BenchConfig, rank: int, meeting: Meeting) -> None:
        self._rank, self._meeting = rank, meeting
        self._loader = build_loader(config, World(rank, config.ranks, rank, config.ranks))
        self._together = config.barrier and config.ranks > 1
        self._step = 0

    def turn(self, seconds: float, step_seconds: float) -> Turn:
        """Begin a loop, take a few batches, and then batches for so long."""
        batches = self._endless()
        try:
            for _ in range(WARMUP_STEPS):
                self._take(batches, step_seconds, None)
            begun, samples, steps = time.monotonic(), 0, 0
            last = False
            while not last:
                taken, last = self._take(batches, step_seconds, begun + seconds)
                samples += taken
                steps += 1
            return Turn(samples, steps, time.monotonic() - begun, step_seconds)
        finally:
            batches.close()

    def _take(
        self, batches: Generator[Batch, None, None], step_seconds: float, until: float | None
    ) -> tuple[int, bool]:
        """Take a batch and do a step; return its samples, and whether the turn is over for all ranks."""
        batch = next(batches)
        await_arrival(batch)
        compute_until(time.monotonic() + step_seconds)
        over = until is not None and time.monotonic() >= until
        if self._together:
            if over and self._rank == 0:
                self._meeting.stop_after.value = self._step
            self._meeting.barrier.wait(self._rank, START_LIMIT)
            over = until is not None and self._meeting.stop_after.value == self._step
        self._step += 1
        return len(batch["index"]), over

    def _endless(self) -> Generator[Batch, None, None]:
        while True:
            yield from self._loader
