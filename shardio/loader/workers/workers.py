"""The workers of a loader: threads or processes, with the number of workers and of prefetched batches."""

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...cache.fetcher import FetchCounts
from ...containers.extents import Extent
from ...dataset.fetch_ahead import FetchAhead
from ...errors import ConfigError, Option
from ...order.plan import Order, Schedule
from ...system import cpus
from ...system.rules import check_switches, time_limit
from ...system.timing import StageClock
from ...transforms.random_generator import RandomKeys
from ...views.readable import SelectedSamples
from ..batch.extents import extents
from ..batch.host_batch import BatchResult
from ..batch.job import MOST_AHEAD, EpochWork, epoch_jobs, job_size, open_jobs
from ..batch.memory import BatchMemory
from ..batch.spec import BatchSpec
from .pipeline import Pipeline
from .process_workers import ProcessPipeline, WorkerProcesses
from .tuning import Setting, Tuner, Window

MOST_PREFETCH = 32  # batches
THREADS_PER_READER = 4  # of an engine for whole batches, whose threads the readers of its files come on top of
LEAST_READERS = 2  # one waits for storage while another one reads


BatchPipeline: TypeAlias = Pipeline[list[BatchResult]] | ProcessPipeline
"""Yields batches in order, one or several at a time, from threads or from processes."""


@final
@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of workers, which `shardio.Loader` explains.

    Raises ConfigError unless `threads` and `prefetch` are at least 1 or `"auto"`, and `timeout` is above 0.
    """

    threads: int | Literal["auto"] = "auto"
    prefetch: int | Literal["auto"] = "auto"
    isolate: bool = False
    timeout: float = 300.0

    def __post_init__(self) -> None:
        check_switches(isolate=self.isolate)
        time_limit(self.timeout, "timeout")
        for name in ("threads", "prefetch"):
            if (value := getattr(self, name)) == "auto":
                continue
            try:
                count = operator.index(value)
            except TypeError:
                count = 0
            if count < 1:
                raise ConfigError("{} must be 'auto' or an integer of at least 1, got {!r}", Option(name), value)
            object.__setattr__(self, name, count)

    def count(self, local_size: int) -> int:
        """Return the number of workers of one of `local_size` ranks on this node; of `"auto"` the most."""
        return cpus.share(local_size) if self.threads == "auto" else self.threads


@final
class Workers:
    """The workers of one loader. The tuned setting carries over from epoch to epoch.

    Args:
        spec: the batches to make.
        build_spec: builds the same specification in a worker process; used with `isolate`.
        options: the tuner may try other numbers of threads and of batches made ahead where these are `"auto"`.
        batch_size: samples per batch, on average.
        threads: the number of threads of this rank, or of processes with `isolate`. An engine for whole batches has as
            many of its own, and few workers here read its files; the tuner may always try more of these.
        pin: whether to page-lock the memory of batches.
        held: the number of batches whose memory the prefetcher may still use after they left the pipeline.
        name: the name of the loader, in the names of threads and in messages.
    """

    def __init__(
        self,
        spec: BatchSpec,
        build_spec: Callable[[], BatchSpec],
        options: WorkerOptions,
        *,
        batch_size: int,
        threads: int,
        pin: bool,
        held: int,
        name: str,
    ) -> None:
        self._threads = most_threads = threads
        if spec.has_batch_engine:
            threads = min(threads, max(LEAST_READERS, threads // THREADS_PER_READER))
            self._threads = threads if options.isolate else most_threads
        self._spec, self._build_spec = spec, build_spec
        self._isolate, self._held, self._timeout, self._name = options.isolate, held, options.timeout, name
        prefetch = None if options.prefetch == "auto" else options.prefetch
        self._size = size = job_size(spec, batch_size, threads, prefetch=prefetch)
        self._memory = BatchMemory(spec.array_layout(batch_size * size.batches), pin=pin)
        self._processes: WorkerProcesses | None = None
        # The next epoch is read and decoded ahead of its loop, but nothing of the user's runs ahead.
        self._goes_on = spec.options.map_function is None and spec.stacks_images
        self._resting: Pipeline[list[BatchResult]] | None = None  # what the loop before has left
        most_in_memory = MOST_AHEAD * size.batches // max(1, self._memory.size)
        busy_batches = -(-threads * size.task_samples // batch_size)  # they hold a task for each thread
        first = prefetch or max(2, busy_batches, size.batches)
        self._tuner = Tuner(
            Setting(threads, first),
            most_threads=most_threads,
            most_prefetch=max(first, min(MOST_PREFETCH * size.batches, most_in_memory)),
            threads=(options.threads == "auto" or spec.has_batch_engine) and not options.isolate,
            prefetch=prefetch is None and not options.isolate,
        )

    @property
    def setting(self) -> Setting:
        return self._tuner.setting

    def begin(self, plan: Order, schedule: Schedule) -> tuple[BatchPipeline, StageClock]:
        """Start the workers on an epoch, or have them go on with it; return its batches, and what clocks its stages."""
        self._last_step: tuple[tuple[float, float] | None, int] = (None, self._memory.filled_first)
        if self._isolate:
            if self._processes is None or not self._processes.usable:
                self._processes = WorkerProcesses(
                    self._build_spec,
                    count=self._threads,
                    buffers=2 + max(1, -(-self.setting.prefetch // self._threads)),
                    timeout=self._timeout,
                    name=self._name,
                )
            clock = StageClock()
            return self._processes.begin(plan, schedule, clock), clock
        pipeline = self._go_on(plan, schedule)
        if pipeline is None:
            dataset = self._spec.dataset
            fetched = partial(getattr, dataset, "fetched") if dataset.in_store else FetchCounts
            self._epoch = EpochWork(plan, schedule, fetched if self._goes_on else None)
            jobs = epoch_jobs(self._spec, self._size, self._memory, self._epoch)
            pipeline = Pipeline(jobs, threads=self._threads, depth=self._depth, timeout=self._timeout, name=self._name)
        self._apply(pipeline)
        return pipeline, self._epoch.clock

    def _go_on(self, plan: Order, schedule: Schedule) -> Pipeline[list[BatchResult]] | None:
        """Return the pipeline of the loop before if this is the next epoch; otherwise drop what it has made."""
        pipeline, self._resting = self._resting, None
        if pipeline is None:
            return None
        following = self._epoch.follow()
        if following is not None and (following.order, following.schedule) == (plan, schedule):
            following.has_loop = True
            if pipeline.go_on():
                self._epoch = following
                return pipeline
        pipeline.close()
        return None

    def fetched(self) -> FetchCounts:
        """Return how much this process has fetched from stores until now."""
        return self._spec.dataset.fetched

    def fetch_ahead(self, plan: Order, schedule: Schedule) -> FetchAhead | None:
        """Begin to fetch what an epoch will read; None if the dataset is local."""
        spec = self._spec
        if not spec.dataset.in_store:
            return None

        def parts(selection: SelectedSamples, keys: NDArray[np.int64]) -> Mapping[str, Extent]:
            return extents(spec, selection, RandomKeys(plan.seed, plan.epoch, keys))

        return FetchAhead(spec.dataset, spec.columns, plan, schedule, parts if spec.reads_parts else None)

    def end_loop(self, pipeline: BatchPipeline, *, complete: bool) -> None:
        """End the work on a loop's batches; after a complete epoch, keep what is made of the next one.

        Take the memory of batches back as they are dropped, because no batch is made any more.
        """
        if complete and self._goes_on and isinstance(pipeline, Pipeline):
            pipeline.rest()
            self._resting = pipeline
        else:
            pipeline.close()
        self._memory.end_loop()

    def record_step(self, pipeline: BatchPipeline, waited: float) -> None:
        """Measure the step that a delivered batch completes, and apply the setting that the tuner chooses.

        The consumer has `waited` so many seconds for the workers.

        Steps that would mislead the tuner do not count: an epoch's first step, as it includes the start of the workers,
        and steps whose job filled new memory. Its first use is slow, and if a wait for that made the tuner prefetch
        more batches, these would need more new memory.
        """
        now = time.monotonic(), pipeline.idle
        (last, filled), self._last_step = self._last_step, (now, self._memory.filled_first)
        if last is None:
            self._prepare_memory()  # not before the first batch, which would come later
        elif filled == self._memory.filled_first:
            seconds, idle = (new - old for new, old in zip(now, last, strict=True))
            before = self.setting
            if self._tuner.record(Window(seconds, 1, waited, idle)) != before:
                self._apply(pipeline)
                self._prepare_memory()

    def _prepare_memory(self) -> None:
        """Make the memory in the background that batches will need soon: those at work, and two with the consumer."""
        if not self._isolate:
            self._memory.prepare(self._depth + 2)

    def _apply(self, pipeline: BatchPipeline) -> None:
        self._memory.keep(self._depth + 2 + self._held)
        pipeline.resize(self.setting.threads, self._depth)

    @property
    def _depth(self) -> int:
        """The number of jobs that may be open at once."""
        return open_jobs(self.setting.prefetch, self._size.batches)
