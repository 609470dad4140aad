"""The workers of a loader: threads or processes, how many of them, and how far ahead of the consumer."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

from ...order.plan import Order, Schedule
from ...system.timing import StageClock
from ..batch.host_batch import BatchResult
from ..batch.job import epoch_jobs, job_size
from ..batch.memory import BatchMemory
from ..batch.spec import BatchSpec
from .pipeline import Pipeline
from .process_workers import WorkerProcesses
from .tuning import Setting, Tuner, Window

MOST_PREFETCH = 32  # batches
PREFETCH_BYTES = 1 << 30


@final
@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Who makes the batches.

    Attributes:
        threads: threads of this rank, or processes with `isolate`.
        prefetch: batches made ahead; None settles it by measuring.
        tune_threads: whether fewer threads may be tried.
        isolate: processes instead of threads.
        pin: whether to page-lock the memory of batches.
        held: how many batches are still read after they have been handed over.
        timeout: seconds to wait for a batch.
        name: names the threads, and the loader in messages.
    """

    threads: int
    prefetch: int | None
    tune_threads: bool
    isolate: bool
    pin: bool
    held: int
    timeout: float
    name: str


class BatchPipeline(Protocol):
    """Batches in order, some at a time: a `Pipeline` of threads or a `ProcessPipeline`.

    Attributes:
        waited: seconds that the consumer has waited.
        idle: seconds that workers have waited for room or for tasks, added up.
    """

    waited: float

    @property
    def idle(self) -> float: ...

    def __next__(self) -> list[BatchResult]: ...

    @property
    def ready(self) -> bool:
        """Whether the next batches are there, so that asking for them takes no time."""

    def resize(self, threads: int, depth: int) -> None:
        """Let `threads` of the workers work on at most `depth` jobs at once."""

    def close(self) -> None:
        """End the epoch; may be called twice."""


@final
class Workers:
    """The workers of one loader. The setting that they have found outlives its epochs.

    Args:
        spec: the batches to make.
        build_spec: builds the same specification in a process of its own; used with `isolate`.
        options: see `WorkerOptions`.
    """

    def __init__(self, spec: BatchSpec, build_spec: Callable[[], BatchSpec], options: WorkerOptions) -> None:
        self.threads = options.threads
        self._spec, self._build_spec, self._options = spec, build_spec, options
        self._size = size = job_size(spec, options.threads)
        self._memory = BatchMemory(spec.array_layout(spec.batch_size * size.batches), pin=options.pin)
        self._processes: WorkerProcesses | None = None
        fitting = PREFETCH_BYTES * size.batches // max(1, self._memory.size)
        batches_of_tasks = -(-options.threads * size.task_samples // spec.batch_size)  # a task for each thread
        prefetch = options.prefetch or max(2, batches_of_tasks, size.batches)
        self._tuner = Tuner(
            Setting(options.threads, prefetch),
            most_prefetch=max(prefetch, min(MOST_PREFETCH * size.batches, fitting)),
            threads=options.tune_threads and not options.isolate,
            prefetch=options.prefetch is None and not options.isolate,
        )

    @property
    def setting(self) -> Setting:
        """The current number of workers and prefetched batches."""
        return self._tuner.setting

    def begin(self, plan: Order, schedule: Schedule, clock: StageClock) -> BatchPipeline:
        """Start on an epoch."""
        options = self._options
        if options.isolate:
            if self._processes is None or not self._processes.usable:
                self._processes = WorkerProcesses(
                    self._build_spec,
                    count=options.threads,
                    buffers=2 + max(1, -(-self.setting.prefetch // options.threads)),
                    timeout=options.timeout,
                    name=options.name,
                )
            return self._processes.begin(plan, schedule, clock)
        jobs = epoch_jobs(self._spec, self._size, self._memory, plan, schedule, clock)
        pipeline = Pipeline(
            jobs, threads=options.threads, depth=self._depth, timeout=options.timeout, name=options.name
        )
        self._apply(pipeline)
        return pipeline

    def record(self, pipeline: BatchPipeline, window: Window) -> None:
        """Record the duration of one step, and change the setting if that helps."""
        before = self.setting
        if self._tuner.record(window) != before:
            self._apply(pipeline)

    def _apply(self, pipeline: BatchPipeline) -> None:
        self._memory.keep(self._depth + 2 + self._options.held)
        pipeline.resize(self.setting.threads, self._depth)

    @property
    def _depth(self) -> int:
        """How many jobs may be open at once."""
        return 1 + -(-self.setting.prefetch // self._size.batches)


@final
class StepTimer:
    """Measures the duration of each step. The first step of an epoch is a start, and tells nothing of those to come."""

    def __init__(self, workers: Workers, pipeline: BatchPipeline) -> None:
        self._workers, self._pipeline = workers, pipeline
        self._last: tuple[float, float, float] | None = None

    def step(self) -> None:
        """Record that a batch has come."""
        now = time.monotonic(), self._pipeline.waited, self._pipeline.idle
        if self._last is not None:
            seconds, waited, idle = (new - old for new, old in zip(now, self._last, strict=True))
            self._workers.record(self._pipeline, Window(seconds, 1, waited, idle))
        self._last = now
