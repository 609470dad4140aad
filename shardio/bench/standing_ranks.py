"""Rank processes that stay ready: they take batches in turns of less than a second, as often as they are asked to.

All start once, which takes seconds. Each turn begins and ends a loop of its own, so no worker runs between turns.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

from ..loader.batch.host_batch import Batch
from ..loader.loader import Loader
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
        """The fraction of time that the accelerator computed, the first steps of epochs included."""
        return min(1.0, self.step_seconds / self.seconds_per_step)


@final
class StandingRanks(RankProcesses):
    """The rank processes of one configuration; they end with the `with` block.

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
    loader = build_loader(config, World(rank, config.ranks, rank, config.ranks))
    together = config.barrier and config.ranks > 1
    numbers = itertools.count()

    def take(batches: Iterator[Batch], step_seconds: float, until: float = math.inf) -> tuple[int, bool]:
        """Take a batch and do a step; return its samples, and whether the turn is over for all ranks."""
        batch, number = next(batches), next(numbers)
        await_arrival(batch)
        compute_until(time.monotonic() + step_seconds)
        over = time.monotonic() >= until
        if together:
            if over and rank == 0:
                meeting.stop_after.value = number
            meeting.barrier.wait(rank, START_LIMIT)
            over = meeting.stop_after.value == number
        return len(batch["index"]), over

    while True:
        seconds, step_seconds = pipe.recv()
        with contextlib.closing(_endless(loader)) as batches:
            for _ in range(WARMUP_STEPS):
                take(batches, step_seconds)
            begun, samples, steps, over = time.monotonic(), 0, 0, False
            while not over:
                taken, over = take(batches, step_seconds, begun + seconds)
                samples, steps = samples + taken, steps + 1
            turn = Turn(samples, steps, time.monotonic() - begun, step_seconds)
        pipe.send(turn)


def _endless(loader: Loader) -> Generator[Batch, None, None]:
    while True:
        yield from loader
