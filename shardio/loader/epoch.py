"""One running epoch: it takes batches from the workers, sends them to the device, and delivers them in order."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from ..errors import EngineWarning, PipelineClosed
from ..order.plan import Order, Schedule
from ..system import background
from ..system.at_exit import close_at_exit
from .agreement import LOOKS, Agreement
from .batch.as_numpy import To, with_arrays
from .batch.first_batch import FirstBatch
from .batch.host_batch import Batch
from .batch.quarantine import Quarantine
from .device.feed import feed_of
from .device.prefetcher import DevicePrefetcher
from .state import EpochProgress
from .stats import Meter
from .workers.workers import Workers


@final
class EpochIterator(Iterator[Batch]):
    """Iterates over the rest of one epoch. Closing the iterator, or dropping it, ends the epoch's threads.

    An interrupt may strike anywhere in `__next__`. The batch counts as delivered only if `__next__` returns it.

    It does nothing before `begin`.

    Args:
        workers: make the batches.
        prefetcher: brings the batches to their device. Another epoch may use it once this one is closed.
        quarantine: counts the bad samples.
        first_batch: looks at the first batch.
        agreement: compares the ranks before the first batches.
        source_names: the sources of a mixture, whose samples are counted separately; () for a single dataset.
        to: whether batches are delivered with tensors or arrays.
    """

    def __init__(
        self,
        *,
        workers: Workers,
        prefetcher: DevicePrefetcher,
        quarantine: Quarantine,
        first_batch: FirstBatch,
        agreement: Agreement,
        source_names: Sequence[str],
        to: To,
    ) -> None:
        self._to: To = to
        self._workers, self._prefetcher, self._quarantine = workers, prefetcher, quarantine
        self._first_batch, self._agreement, self._source_names = first_batch, agreement, source_names

    def begin(self, plan: Order, schedule: Schedule, progress: EpochProgress) -> RunningEpoch:
        """Start the workers on an epoch; one that has `delivered_nothing` may be closed, and another one begin.

        Args:
            plan: the order of the samples.
            schedule: the steps that cut the order into batches.
            progress: moves past each step when its batch is delivered.

        Returns:
            What must end with the epoch.
        """
        self._schedule, self._progress = schedule, progress
        self._quarantine.begin(schedule.samples(plan))
        self._step = 0
        self._running = RunningEpoch(self._workers, self._prefetcher, plan, schedule, progress, self._source_names)
        background.call_when_gone(self, self._running.close)
        progress.follow(self)
        return self._running

    @property
    def delivered_nothing(self) -> bool:
        """Whether the epoch runs in this process, and its first batch has not been asked for."""
        return self._step == 0 and self._running.waits_for_a_consumer

    @property
    def is_over(self) -> bool:
        """Whether the epoch is closed: it has ended or failed, or was replaced."""
        return self._progress.closed

    def __next__(self) -> Batch:
        if self._step == len(self._schedule) and self._running.why_closed is None:
            self.close()
            raise StopIteration
        self._running.check()
        before = self._progress.reached
        # An error ends the loop, but it is no reason to deliver the batches before it again.
        if_failed = before if self._step == 0 or before.if_dropped is None else replace(before, if_dropped=None)
        try:
            if self._step < LOOKS:
                self._agreement.look(self._step)
            batch = self._next_batch()
            after = before.after(self._schedule, self._step)
            self._running.is_complete = self._step + 1 == len(self._schedule)
            # No function is called from here on, so no interrupt comes between the move and the return.
            self._step += 1
            self._progress.reached = after
            return batch
        except BaseException as error:
            self._running.is_complete = False
            self._progress.reached = if_failed  # a tracing debugger runs code, and an interrupt, at any line
            self.close()
            if isinstance(error, PipelineClosed):
                self._running.check()  # says why
            raise

    def _next_batch(self) -> Batch:
        running, meter = self._running, self._running.meter
        meter.begin_wait()
        if running.ahead is not None:
            running.ahead.delivered(self._step)
        running.taking_thread = threading.get_ident()
        try:
            batch = running.feed.take()
            if isinstance(batch.result, Exception):
                raise batch.result
            self._quarantine.add(batch.result.bad_samples)  # TooManyBad, or OSError if the report cannot be written
        finally:
            running.taking_thread = None
            waited = meter.end_wait()
        result, on_device = batch.result, min(waited, batch.device_seconds)
        meter.on_device += on_device
        meter.count(len(result.batch["index"]), result.stored_bytes, batch.sources)
        self._workers.record_step(running.pipeline, min(waited - on_device, batch.host_seconds))
        self._first_batch.look(result.batch)
        for warning in result.warnings:
            warnings.warn(warning, EngineWarning, stacklevel=3)
        return with_arrays(result.batch) if self._to == "numpy" else result.batch

    def close(self, why: str | None = None) -> None:
        """End the epoch's threads; may be called twice. `why` is the message of the PipelineClosed that follows."""
        self._running.why_closed = why or self._running.why_closed
        self._running.close()


@final
class RunningEpoch:
    """The parts of an epoch that must be ended: when its iterator is closed or dropped, or when a newer loop begins.

    Args:
        workers, prefetcher, source_names: see `EpochIterator`.
        plan, schedule, progress: see `EpochIterator.begin`.

    Attributes:
        meter: measures the epoch.
        ahead: fetches what the epoch will read; None if the dataset is local.
        pipeline: yields the batches as workers make them.
        feed: takes them from there, and brings them to their device.
        taking_thread: the thread that is inside `EpochIterator.__next__`.
        why_closed: the reason, if the epoch was closed before its end on purpose.
        is_complete: whether all batches have been delivered.
    """

    def __init__(
        self,
        workers: Workers,
        prefetcher: DevicePrefetcher,
        plan: Order,
        schedule: Schedule,
        progress: EpochProgress,
        source_names: Sequence[str],
    ) -> None:
        self._workers, self._progress = workers, progress
        self.meter = Meter(source_names, workers.fetched)
        self.ahead = workers.fetch_ahead(plan, schedule)
        self.pipeline, self.meter.clock = workers.begin(plan, schedule)
        self.feed = feed_of(self.pipeline, prefetcher, len(schedule), count_sources=bool(source_names))
        self.taking_thread: int | None = None
        self.why_closed: str | None = None
        self.is_complete = self._ended = False
        self._process = os.getpid()
        self._closing = threading.Lock()
        close_at_exit(self)  # closes the engines too

    @property
    def waits_for_a_consumer(self) -> bool:
        """Whether the epoch runs in this process, and no thread is inside `EpochIterator.__next__`."""
        return not self._progress.closed and self._process == os.getpid() and self.taking_thread is None

    def check(self) -> None:
        """Raise PipelineClosed if the epoch is closed, or another process has begun it."""
        if self._process != os.getpid():
            raise PipelineClosed("begun before this process was forked")
        if self._progress.closed:
            raise PipelineClosed(self.why_closed or "closed, or a newer loop over the same loader has begun")

    def close(self) -> None:
        """End the threads, and drop the batches in flight. An interrupted call is completed by the next one."""
        if self._ended:  # batches in the prefetcher may be a later epoch's
            return
        self._progress.closed = True
        self.meter.end()
        if self._process != os.getpid():  # forked: the threads and the batches in flight are the parent's
            self.feed.prefetcher.forget(self.feed)
            self._ended = True
            return
        with self._closing:
            if self._ended:
                return
            try:
                if not self.is_complete:
                    self.feed.close()
            finally:
                if self.ahead is not None:
                    self.ahead.close()
                self._workers.end_loop(self.pipeline, complete=self.is_complete)
            self._ended = True

    def at_exit(self) -> None:
        """Close the epoch; if a thread is inside `__next__`, leave it the batches in flight."""
        if self.taking_thread in (None, threading.get_ident()):
            self.close()
        else:
            self._progress.closed = True
            self.meter.end()
            self.feed.stop()
