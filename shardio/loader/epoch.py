"""One epoch under way: batches made, sent to their device, and handed over one after the other."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..dataset.mixture import Readable
from ..errors import PipelineClosed
from ..order.plan import Order, Schedule
from .batch.host_batch import Batch, BatchResult, HostBatch
from .device.prefetcher import DevicePrefetcher
from .quarantine import Quarantine
from .stats import Meter
from .workers.pipeline import end_at_exit
from .workers.workers import StepTimer, Workers


@final
class EpochIterator(Iterator[Batch]):
    """What is left of one epoch. Closing it, or dropping it, ends its threads.

    Args:
        plan, schedule: which samples, in which steps.
        workers: make the batches.
        transfer: brings them to their device. Another epoch's batches may be on it, once this one has been closed.
        quarantine: counts what is bad.
        dataset: where samples come from.
        delivered: told of each step, after its batch has come.
    """

    def __init__(
        self,
        plan: Order,
        schedule: Schedule,
        workers: Workers,
        transfer: DevicePrefetcher,
        quarantine: Quarantine,
        dataset: Readable,
        delivered: Callable[["EpochIterator", Schedule, int], None],
    ) -> None:
        self.meter = Meter(dataset.sources)
        self._schedule, self._transfer, self._quarantine = schedule, transfer, quarantine
        self._dataset, self._delivered = dataset, delivered
        self._step = self._taken = 0
        self._made: deque[BatchResult] = deque()
        self._sources: deque[NDArray[np.int64] | None] = deque()
        self._closed, self._process = False, os.getpid()
        self._taker: int | None = None  # the thread that is in `__next__`
        self._steps = workers.begin(plan, schedule, self.meter.clock)
        self._watch = StepTimer(workers, self._steps)
        end_at_exit(self)  # with its engines

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
        self._taker = threading.get_ident()
        try:
            self._send()
            received = time.monotonic()
            made = self._transfer.receive()
            self.meter.on_device += (time.monotonic() - received) * bool(self._transfer.ahead)
            if isinstance(made, Exception):
                raise made
            self._quarantine.add(made.bad)  # TooManyBad, or OSError: the report can't be written
        except BaseException:
            self.close()
            raise
        finally:
            self._taker = None
            self.meter.waited += time.monotonic() - begun
        self.meter.count(len(made.batch["index"]), made.size, self._sources.popleft())
        self._delivered(self, self._schedule, self._step)
        self._step += 1
        self._watch.step()
        return made.batch

    def _send(self) -> None:
        """Sends the batch that is asked for, and those behind it that are ready."""
        while len(self._transfer) <= self._transfer.ahead and self._taken < len(self._schedule):
            if not self._made:
                if len(self._transfer) and not self._steps.ready:
                    return
                try:
                    self._made.extend(next(self._steps))
                except Exception as error:
                    if not len(self._transfer):
                        raise
                    self._made.append(error)  # in its batch's turn
            self._taken += 1
            made = self._made.popleft()
            # Taken here, where the batch is on the host.
            mixed = bool(self._dataset.sources)
            self._sources.append(made.batch["source"].numpy() if mixed and isinstance(made, HostBatch) else None)
            sent = time.monotonic()
            self._transfer.send(made)
            self.meter.on_device += (time.monotonic() - sent) * bool(self._transfer.ahead)

    def close(self) -> None:
        """Ends the epoch's threads; may be called twice."""
        if self._closed:  # what is on the way later is another epoch's; and at the interpreter's own end `os` is gone
            return
        self._closed = True
        self.meter.end()
        if self._process != os.getpid():  # forked: they are the parent's, and so is what is on its way
            return
        self._made.clear()
        try:
            self._transfer.clear()
        finally:
            self._steps.close()

    def at_exit(self) -> None:
        """Closes it. A thread that is taking a batch at that moment keeps what is on its way."""
        if self._taker in (None, threading.get_ident()):
            self.close()
        else:
            self._closed = True
            self._steps.close()

    def __del__(self) -> None:
        if hasattr(self, "_steps"):  # not where __init__ failed
            self.close()
