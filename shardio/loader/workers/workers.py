"""What makes a loader's batches: threads or processes, how many of them, and how far ahead of the consumer."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias, final

from ...order.plan import Order, Schedule
from ...system.timing import StageClock
from ..batch.batches import Collator
from ..batch.host_batch import BatchResult
from ..batch.job import BatchJob
from ..batch.spec import BatchSpec
from .pipeline import Pipeline
from .process_workers import ProcessSteps, WorkerProcesses
from .tuning import Setting, Tuner, Window

Steps: TypeAlias = Pipeline[list[BatchResult]] | ProcessSteps
"""Batches in order, some at a time."""

MOST_PREFETCH = 32  # batches
PREFETCH_BYTES = 1 << 30


@final
class Workers:
    """The workers of one loader; what they have settled on outlives its epochs.

    Args:
        make: gives a collator, for `threads` workers that share it and page-locked memory, or not, `pin`.
        batch_size: samples of a batch.
        threads: of this rank; processes with `isolate`.
        prefetch: batches made ahead; None is settled by measuring.
        settle: whether fewer threads may be tried.
        isolate: processes instead of threads.
        pin: page-lock the memory of batches.
        held: batches whose memory is still read when they have been handed over.
        timeout: seconds to wait for a batch.
        name: of the threads, and in messages.
    """

    def __init__(
        self,
        make: Callable[..., Collator],
        batch_size: int,
        *,
        threads: int,
        prefetch: int | None,
        settle: bool,
        isolate: bool,
        pin: bool,
        held: int,
        timeout: float,
        name: str,
    ) -> None:
        self.threads = threads
        self._collator = make(threads=threads, pin=pin)
        self._held = held
        self._make = partial(make, threads=1, pin=False, single=True)
        self._timeout, self._name = timeout, name
        self._isolate = isolate
        self._producers: WorkerProcesses | None = None
        most = PREFETCH_BYTES * self._collator.steps // max(1, self._collator.job_bytes)
        ahead = prefetch or max(2, -(-threads * self._collator.making.task_samples // batch_size), self._collator.steps)
        self._tuner = Tuner(
            Setting(threads, ahead),
            most_prefetch=max(ahead, min(MOST_PREFETCH * self._collator.steps, most)),
            threads=settle and not isolate,
            prefetch=prefetch is None and not isolate,
        )

    @property
    def making(self) -> BatchSpec:
        """What is the same for all batches."""
        return self._collator.making

    @property
    def setting(self) -> Setting:
        """How many work, and how many batches are made ahead, at present."""
        return self._tuner.setting

    def begin(self, plan: Order, schedule: Schedule, clock: StageClock) -> Steps:
        """Starts on an epoch."""
        setting = self.setting
        if self._isolate:
            if self._producers is None or not self._producers.usable:
                slots = 2 + max(1, -(-setting.prefetch // self.threads))
                self._producers = WorkerProcesses(
                    self._make, count=self.threads, slots=slots, timeout=self._timeout, name=self._name
                )
            return self._producers.begin(plan, schedule, clock)
        jobs = _jobs(self._collator, plan, schedule, clock)
        steps = Pipeline(jobs, threads=self.threads, depth=self._depth, timeout=self._timeout, name=self._name)
        self._apply(steps)
        return steps

    def note(self, steps: Steps, window: Window) -> None:
        """Takes in what a step took, and changes the setting if that helps."""
        before = self.setting
        if self._tuner.note(window) != before:
            self._apply(steps)

    def _apply(self, steps: Steps) -> None:
        self._collator.keep(self._depth + 2 + self._held)
        steps.resize(self.setting.threads, self._depth)

    @property
    def _depth(self) -> int:
        """Jobs that may be open at once."""
        return 1 + -(-self.setting.prefetch // self._collator.steps)


@final
class StepTimer:
    """Measures what each step takes. The first one is a start, and tells nothing of those to come."""

    def __init__(self, workers: Workers, steps: Steps) -> None:
        self._workers, self._steps = workers, steps
        self._last: tuple[float, float, float] | None = None

    def step(self) -> None:
        """Called when a batch has come."""
        now = time.monotonic(), self._steps.waited, self._steps.idle
        if self._last is not None:
            seconds, waited, idle = (new - old for new, old in zip(now, self._last, strict=True))
            self._workers.note(self._steps, Window(seconds, 1, waited, idle))
        self._last = now


def _jobs(collator: Collator, plan: Order, schedule: Schedule, clock: StageClock) -> Iterator[BatchJob]:
    asked = -1  # the last window that storage was asked for
    for step in range(0, len(schedule), collator.steps):
        steps = min(collator.steps, len(schedule) - step)
        first, last = plan.windows(*schedule.positions(step, steps))
        if last > asked:
            # One window more than is needed now, so that storage works on it in the meantime.
            for run in plan.runs(max(first, asked + 1), last + 2):
                collator.making.dataset.read_ahead(*run, collator.making.fields)
            asked = last + 1
        yield collator.job(plan, schedule.part(plan, step, steps), schedule.tail == "pad", clock)
