"""One running epoch: it takes batches from the workers, sends them to the device, and delivers them in order."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import PipelineClosed
from ..order.plan import Order, Schedule
from ..system.at_exit import close_at_exit
from .batch.host_batch import BatchResult, HostBatch
from .batch.remake import read_on_host, remake_images
from .batch.types import Batch
from .device.prefetcher import DevicePrefetcher, HostWork
from .quarantine import Quarantine
from .state import EpochProgress
from .stats import Meter
from .workers.workers import StepTimer, Workers


@final
class EpochIterator(Iterator[Batch]):
    """Iterates over the rest of one epoch. Closing the iterator, or dropping it, ends the epoch's threads.

    Args:
        plan: the order of the samples.
        schedule: the steps that cut the order into batches.
        workers: make the batches.
        prefetcher: brings the batches to their device. Another epoch may use it once this one is closed.
        quarantine: counts the bad samples.
        progress: advances past each step when its batch is delivered.
        source_names: the sources of a mixture, whose samples are counted separately; () for a single dataset.
    """

    def __init__(
        self,
        plan: Order,
        schedule: Schedule,
        *,
        workers: Workers,
        prefetcher: DevicePrefetcher,
        quarantine: Quarantine,
        progress: EpochProgress,
        source_names: Sequence[str],
    ) -> None:
        self.meter = Meter(source_names)
        self._schedule, self._prefetcher, self._quarantine = schedule, prefetcher, quarantine
        self._progress, self._count_sources, self._threads = progress, bool(source_names), workers.threads
        self._step = self._sent = 0
        self._host_batches: deque[BatchResult] = deque()
        self._sources: deque[NDArray[np.int64] | None] = deque()
        self._closed, self._process = False, os.getpid()
        self._taking_thread: int | None = None  # the thread that is inside `__next__`
        self._pipeline = workers.begin(plan, schedule, self.meter.clock)
        self._timer = StepTimer(workers, self._pipeline)
        close_at_exit(self)  # closes the engines too

    def __next__(self) -> Batch:
        if self._step == len(self._schedule):
            self.close()
            raise StopIteration
        if self._closed or self._process != os.getpid():
            raise PipelineClosed(
                "begun before this process was forked"
                if self._process != os.getpid()
                else "closed, or a newer loop over the same loader has begun"
            )
        begun = time.monotonic()
        self._taking_thread = threading.get_ident()
        try:
            self._send()
            received = time.monotonic()
            result = self._receive()
            self.meter.on_device += (time.monotonic() - received) * bool(self._prefetcher.ahead)
            if isinstance(result, Exception):
                raise result
            self._quarantine.add(result.bad_samples)  # raises TooManyBad, or OSError if the report cannot be written
        except BaseException:
            self.close()
            raise
        finally:
            self._taking_thread = None
            self.meter.waited += time.monotonic() - begun
        self.meter.count(len(result.batch["index"]), result.stored_bytes, self._sources.popleft())
        self._progress.advance(self._schedule, self._step)
        self._step += 1
        self._timer.step()
        return result.batch

    def _send(self) -> None:
        """Send the next batch to the device, and the batches after it that are ready."""
        while len(self._prefetcher) <= self._prefetcher.ahead and self._sent < len(self._schedule):
            if not self._host_batches:
                if len(self._prefetcher) and not self._pipeline.ready:
                    return
                try:
                    self._host_batches.extend(next(self._pipeline))
                except Exception as error:
                    if not len(self._prefetcher):
                        raise
                    self._host_batches.append(error)  # raised in its batch's turn
            self._sent += 1
            result = self._host_batches.popleft()
            # Taken now, while the batch is still on the host.
            counted = self._count_sources and isinstance(result, HostBatch)
            self._sources.append(result.batch["source"].numpy() if counted and isinstance(result, HostBatch) else None)
            begun = time.monotonic()
            self._prefetcher.send(result)
            self.meter.on_device += (time.monotonic() - begun) * bool(self._prefetcher.ahead)

    def _receive(self) -> BatchResult:
        """Receive the oldest batch from the device; the host makes the parts that the device refused."""
        received = self._prefetcher.receive()
        if not isinstance(received, HostWork):
            return received
        if received.error is not None:
            result = read_on_host(received.batch, received.error)
        else:
            result = remake_images(received.batch, received.refused, self._threads)
        return self._prefetcher.complete(received, result)

    def close(self) -> None:
        """End the epoch's threads; may be called twice."""
        if self._closed:  # batches in the prefetcher may be a later epoch's; and as the interpreter ends, `os` is gone
            return
        self._closed = True
        self.meter.end()
        if self._process != os.getpid():  # forked: the threads and the batches in flight are the parent's
            self._prefetcher.forget()
            return
        self._host_batches.clear()
        try:
            self._prefetcher.clear()
        finally:
            self._pipeline.close()

    def at_exit(self) -> None:
        """Close the epoch; if a thread is inside `__next__`, leave it the batches in flight."""
        if self._taking_thread in (None, threading.get_ident()):
            self.close()
        else:
            self._closed = True
            self._pipeline.close()

    def __del__(self) -> None:
        if hasattr(self, "_pipeline"):  # it does not if __init__ failed
            self.close()
