"""One epoch under way: batches come from the workers, go to the device, and are handed over one after the other."""

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
from .state import Progress
from .stats import Meter
from .workers.workers import StepTimer, Workers


@final
class EpochIterator(Iterator[Batch]):
    """The rest of one epoch. Closing the iterator, or dropping it, ends the epoch's threads.

    Args:
        plan, schedule: which samples come in which steps.
        workers: make the batches.
        prefetcher: brings them to their device. Once this epoch is closed, another one may use it.
        quarantine: counts bad samples.
        progress: moved past each step once its batch is handed over.
        source_names: the sources of a mixture, whose samples are counted apart; () for a single dataset.
    """

    def __init__(
        self,
        plan: Order,
        schedule: Schedule,
        *,
        workers: Workers,
        prefetcher: DevicePrefetcher,
        quarantine: Quarantine,
        progress: Progress,
        source_names: Sequence[str],
    ) -> None:
        self.meter = Meter(source_names)
        self._schedule, self._prefetcher, self._quarantine = schedule, prefetcher, quarantine
        self._progress, self._count_sources, self._threads = progress, bool(source_names), workers.threads
        self._step = self._sent = 0
        self._made: deque[BatchResult] = deque()
        self._sources: deque[NDArray[np.int64] | None] = deque()
        self._closed, self._process = False, os.getpid()
        self._taking_thread: int | None = None  # the thread that is in `__next__`
        self._pipeline = workers.begin(plan, schedule, self.meter.clock)
        self._timer = StepTimer(workers, self._pipeline)
        close_at_exit(self)  # with its engines

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
            made = self._receive()
            self.meter.on_device += (time.monotonic() - received) * bool(self._prefetcher.ahead)
            if isinstance(made, Exception):
                raise made
            self._quarantine.add(made.bad_samples)  # TooManyBad, or OSError: the report can't be written
        except BaseException:
            self.close()
            raise
        finally:
            self._taking_thread = None
            self.meter.waited += time.monotonic() - begun
        self.meter.count(len(made.batch["index"]), made.stored_bytes, self._sources.popleft())
        self._progress.advance(self._schedule, self._step)
        self._step += 1
        self._timer.step()
        return made.batch

    def _send(self) -> None:
        """Send the batch that is asked for to the device, and the batches behind it that are ready."""
        while len(self._prefetcher) <= self._prefetcher.ahead and self._sent < len(self._schedule):
            if not self._made:
                if len(self._prefetcher) and not self._pipeline.ready:
                    return
                try:
                    self._made.extend(next(self._pipeline))
                except Exception as error:
                    if not len(self._prefetcher):
                        raise
                    self._made.append(error)  # in its batch's turn
            self._sent += 1
            made = self._made.popleft()
            # Taken here, where the batch is on the host.
            counted = self._count_sources and isinstance(made, HostBatch)
            self._sources.append(made.batch["source"].numpy() if counted and isinstance(made, HostBatch) else None)
            sent = time.monotonic()
            self._prefetcher.send(made)
            self.meter.on_device += (time.monotonic() - sent) * bool(self._prefetcher.ahead)

    def _receive(self) -> BatchResult:
        """Receive the oldest batch from the device; the host makes what the device refused."""
        received = self._prefetcher.receive()
        if not isinstance(received, HostWork):
            return received
        if received.error is not None:
            made = read_on_host(received.batch, received.error)
        else:
            made = remake_images(received.batch, received.refused, self._threads)
        return self._prefetcher.complete(received, made)

    def close(self) -> None:
        """End the epoch's threads; may be called twice."""
        if self._closed:  # what is on the way later is another epoch's; and at the interpreter's own end `os` is gone
            return
        self._closed = True
        self.meter.end()
        if self._process != os.getpid():  # forked: threads and batches on their way are the parent's
            return
        self._made.clear()
        try:
            self._prefetcher.clear()
        finally:
            self._pipeline.close()

    def at_exit(self) -> None:
        """Close the epoch. A thread that is taking a batch at that moment keeps what is on its way."""
        if self._taking_thread in (None, threading.get_ident()):
            self.close()
        else:
            self._closed = True
            self._pipeline.close()

    def __del__(self) -> None:
        if hasattr(self, "_pipeline"):  # not where __init__ failed
            self.close()
