"""The feed: it takes an epoch's batches from the workers and brings them to their device, in order.

If batches are only copied, the consumer copies them, in its `next`. An engine for whole batches has a thread that feeds
it, waits for it and finishes its batches while the consumer works on the one before:

    workers -> next -> [ thread: send and receive of the prefetcher ] -> one finished batch -> consumer
                         ^------- the next one, once the consumer has taken that one -------'

The engine is used in this thread alone, so no interrupt strikes it, and no two loops use it at once.
"""

import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...errors import PipelineClosed
from ...system import background
from ..batch.host_batch import BatchResult, HostBatch
from ..workers.workers import BatchPipeline
from .copier import copier_to
from .prefetcher import DevicePrefetcher

JOIN_LIMIT = 2.0  # seconds that `close` waits for the thread, which may be in the middle of a batch
LOOK_SECONDS = 0.005  # after which the thread looks again for batches of the workers, while the consumer has enough


class FedBatch(NamedTuple):
    """A batch on its device.

    Attributes:
        result: the batch, or the error that the consumer gets instead.
        sources: the source of each sample, int64 [B], if sources are counted.
        host_seconds: the time that the feed waited for the workers before it went on to this batch.
        device_seconds: the time after that, for engines and copies; 0 if nothing happens on a device.
    """

    result: BatchResult
    sources: NDArray[np.int64] | None
    host_seconds: float
    device_seconds: float


@final
class DirectFeed:
    """Brings batches to their device in the thread that takes them.

    Args:
        pipeline: yields the batches of the epoch.
        prefetcher: brings them to their device.
        steps: the number of batches.
        count_sources: whether the sources of samples are counted.
    """

    def __init__(
        self, pipeline: BatchPipeline, prefetcher: DevicePrefetcher, steps: int, *, count_sources: bool
    ) -> None:
        self._pipeline, self.prefetcher, self._left, self._count_sources = pipeline, prefetcher, steps, count_sources
        self._host_batches: deque[BatchResult] = deque()
        self._sources: deque[NDArray[np.int64] | None] = deque()

    def take(self) -> FedBatch:
        """Return the next batch, once those after it that are ready have also been sent to the device."""
        begun, host_seconds = time.monotonic(), 0.0
        if not len(self.prefetcher) and not self._host_batches and self._left:
            self._host_batches.extend(next(self._pipeline))
            begun, before = time.monotonic(), begun
            host_seconds = begun - before
        self.send_ready(self.prefetcher.ahead + 1)
        result = self.prefetcher.receive()
        device_seconds = time.monotonic() - begun if self.prefetcher.ahead else 0.0
        sources = self._sources.popleft() if self._count_sources else None
        return FedBatch(result, sources, host_seconds, device_seconds)

    def send_ready(self, most: int) -> bool:
        """Send batches that are ready to the device, until `most` are in flight. Return whether more could be sent."""
        prefetcher = self.prefetcher
        while self._left and len(prefetcher) < most:
            if not self._host_batches:
                if not self._pipeline.ready:
                    return True
                try:
                    self._host_batches.extend(next(self._pipeline))
                except Exception as error:  # noqa: BLE001  # raised in its batch's turn
                    self._host_batches.append(error)
            self._left -= 1
            result = self._host_batches.popleft()
            if self._count_sources:  # now, while the batch is still on the host
                self._sources.append(result.batch["source"].numpy() if isinstance(result, HostBatch) else None)
            prefetcher.send(result)
        return False

    def stop(self) -> None:
        """End the workers. Whoever waits for a batch of theirs gets PipelineClosed."""
        self._pipeline.close()

    def close(self) -> None:
        """End the workers, and drop the batches in flight; may be called twice."""
        self._host_batches.clear()
        try:
            self.prefetcher.clear()
        finally:
            self.stop()


@final
class ThreadedFeed:
    """Brings batches to their device in a thread of its own, which begins with the first `take`.

    Args:
        feed: what the thread does for a batch. The former user of its prefetcher may still be about to end.
        steps: the number of batches.
    """

    def __init__(self, feed: DirectFeed, steps: int) -> None:
        self._feed, self.prefetcher, self._steps = feed, feed.prefetcher, steps
        # The thread's stream of a GPU. The consumer's waits for it, so work on one batch overlaps that on another.
        self._stream = copier_to(feed.prefetcher.device)
        self._begun = self._stopped = False
        self._room: SimpleQueue[None] = SimpleQueue()  # has an item for each batch that may be finished
        self._fed: SimpleQueue[tuple[FedBatch, Any] | BaseException] = SimpleQueue()

    def take(self) -> FedBatch:
        """Return the next batch; the thread goes on to the one after it."""
        if not self._begun:
            self._begun = True
            self._room.put(None)
            background.start(self._run, "shardio feed")
        fed = self._fed.get()
        self._room.put(None)
        if isinstance(fed, BaseException):
            raise fed
        batch, mark = fed
        if isinstance(batch.result, HostBatch):
            self._stream.wait(mark, batch.result.batch)
        return batch

    def stop(self) -> None:
        """End the workers, and the thread after the batches that its engine has begun."""
        self._stopped = True
        self._room.put(None)
        self._feed.stop()

    def close(self) -> None:
        """End the workers and the thread, waiting 2 s for it at most, and drop the batches in flight."""
        self.stop()
        if self._begun and not background.exiting():
            background.call(self._join)

    def _join(self) -> None:
        if self.prefetcher.in_use.acquire(timeout=JOIN_LIMIT):
            self.prefetcher.in_use.release()
        with suppress(Empty):
            while True:
                self._fed.get_nowait()
        self._fed.put(_closed())  # for a consumer that waits on another thread

    def _run(self) -> None:
        try:
            if not self._stopped:
                self._work()
        except BaseException as error:  # noqa: BLE001  # raised again in the consumer's thread
            self._fed.put(error)
        else:
            self._fed.put(_closed())

    def _work(self) -> None:
        with self.prefetcher.in_use, self._stream:
            try:
                for _ in range(self._steps):
                    self._wait_for_room()
                    if self._stopped:
                        return
                    # Without a variable: while it waits, this thread must not keep the memory of a batch.
                    self._fed.put((self._feed.take(), self._stream.mark()))
            finally:
                self.prefetcher.clear()

    def _wait_for_room(self) -> None:
        """Wait until one more batch may be finished, and have the engine begin on batches meanwhile."""
        while True:
            more = not self._stopped and self._feed.send_ready(self.prefetcher.ahead)
            with suppress(Empty):
                return self._room.get(timeout=LOOK_SECONDS if more else None)


def _closed() -> PipelineClosed:
    return PipelineClosed("closed, or a newer loop over the same loader has begun")


Feed: TypeAlias = DirectFeed | ThreadedFeed


def feed_of(pipeline: BatchPipeline, prefetcher: DevicePrefetcher, steps: int, *, count_sources: bool) -> Feed:
    """Return the feed of an epoch of so many steps: with engines for whole batches, on a thread."""
    feed = DirectFeed(pipeline, prefetcher, steps, count_sources=count_sources)
    return ThreadedFeed(feed, steps) if prefetcher.has_engines else feed
