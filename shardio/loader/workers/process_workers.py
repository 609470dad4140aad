"""Producers: processes that make whole batches, in anonymous shared memory, for work that holds the GIL.

    parent                                        producer p of P, for steps p, p + P, ...
      ("epoch", number, plan, schedule)   -->     makes the steps' batches in its slots, one after the other
      ("slot", number)                    -->     that slot's memory may be written again
                                          <--     ("batch", epoch, slot, its used bytes, the batch with a Place for
                                                   each tensor, stored bytes, bad samples, seconds)
                                          <--     ("error", epoch, the error)

A slot is a memfd: no name, so nothing stays behind whatever is killed. A producer dies with its parent. What is pickled
here comes from this job's own processes, never from data.
"""

import multiprocessing
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from ...errors import ConfigError, PipelineClosed, PipelineStalled, WorkerDied
from ...order.plan import Order, Schedule
from ...system import processes
from ...system.timing import StageClock
from ..batch.batches import Collator
from ..batch.host_batch import Batch, BatchResult, HostBatch
from .shared_buffers import ProgressNote, TensorLocation, map_nested, new_shared_buffer
from .worker_process import produce

_JOIN_SECONDS = 2.0


@final
class WorkerProcesses:
    """Producer processes of one loader; they outlive its epochs.

    Args:
        make: gives each producer its collator; pickled, so a module's function or a partial of one.
        count: processes.
        slots: batches that each may have made ahead.
        timeout: seconds to wait for a batch before PipelineStalled.
        name: in messages.
    """

    def __init__(
        self, make: Callable[[], Collator], *, count: int, slots: int, timeout: float, name: str = "shardio"
    ) -> None:
        try:
            pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"isolate=True starts processes, and what they work with must be picklable (a function of a module, "
                f"no lambda): {error}"
            ) from error
        if multiprocessing.current_process().daemon:
            raise ConfigError("isolate=True starts processes, which a daemonic process of multiprocessing may not")
        self._name, self._timeout = name, timeout
        self._pid = os.getpid()
        self.epoch = 0
        self.members = [_WorkerProcess(make, slots, f"{name} producer {number}") for number in range(count)]
        weakref.finalize(self, _end, self.members, self._pid)

    @property
    def usable(self) -> bool:
        """Whether all are there, and are this process's: after a fork they are the parent's."""
        return self._pid == os.getpid() and all(producer.process.is_alive() for producer in self.members)

    def begin(self, plan: Order, schedule: Schedule, clock: StageClock) -> "ProcessSteps":
        """Has the producers make the batches of `schedule`; what they still had of an older epoch is dropped."""
        self.epoch += 1
        for number, producer in enumerate(self.members):
            producer.drain()
            producer.send(("epoch", self.epoch, plan, schedule, number, len(self.members)))
        return ProcessSteps(self, self.epoch, len(schedule), clock, self._timeout)


@final
class ProcessSteps(Iterator[list[BatchResult]]):
    """One epoch's batches and their stored bytes, in order: what `Pipeline` is for threads."""

    def __init__(self, producers: WorkerProcesses, epoch: int, steps: int, clock: StageClock, timeout: float) -> None:
        self.waited = 0.0
        self.idle = 0.0
        self._producers, self._epoch, self._steps = producers, epoch, steps
        self._clock, self._timeout = clock, timeout
        self._step = 0
        self._closed = False
        self._pid = os.getpid()

    def __next__(self) -> list[BatchResult]:
        """The next batch, alone in a list; ProducerDied, PipelineStalled, PipelineClosed, or what a producer raised."""
        if self._pid != os.getpid():
            raise PipelineClosed("begun before this process was forked")
        if self._closed or self._producers.epoch != self._epoch:
            raise PipelineClosed("closed, or a newer loop over the same loader has begun")
        if self._step == self._steps:
            raise StopIteration
        members = self._producers.members
        for member in members:
            member.give_back()
        producer = members[self._step % len(members)]
        begun = time.monotonic()
        try:
            message = producer.receive(self._epoch, self._timeout)
        except PipelineStalled:
            producer.end()  # it hangs: the next loop gets new ones
            producer.join()
            raise
        finally:
            self.waited += time.monotonic() - begun
        if message[0] == "error":
            raise message[2]
        _, _, number, used, where, size, bad, seconds = message
        self._clock.add(seconds)
        self._step += 1
        return [HostBatch(producer.batch(number, used, where), size, bad)]

    @property
    def ready(self) -> bool:
        """Whether the next batch is there."""
        members = self._producers.members
        return self._closed or members[self._step % len(members)].waiting

    def resize(self, threads: int, depth: int) -> None:
        """Processes stay as many as they are."""

    def close(self) -> None:
        """Delivers nothing more. The producers stay for the next epoch."""
        self._closed = True


@final
class _WorkerProcess:
    """The parent's end of one producer."""

    def __init__(self, make: Callable[[], Collator], slots: int, name: str) -> None:
        self.name = name
        self._slots, self._note = [new_shared_buffer(name) for _ in range(slots)], ProgressNote(new_shared_buffer(name))
        self._pipe, theirs = processes.CONTEXT.Pipe()
        self.process = processes.CONTEXT.Process(
            target=produce, args=(make, theirs, self._slots, self._note), name=name, daemon=True
        )
        processes.start(self.process)
        theirs.close()
        self._lent = 0
        # Slots come back when the garbage collector says so, in whatever thread: they wait here for the next send.
        self._back: deque[int] = deque()

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._died() from error

    def receive(self, epoch: int, timeout: float) -> tuple[Any, ...]:
        """The next message of this epoch; what is left of older ones gives its slot back."""
        deadline = time.monotonic() + timeout
        while True:
            self.give_back()
            if not self._pipe.poll(max(0.0, min(0.1, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise PipelineStalled(
                        f"{self.name} (process {self.process.pid}): no batch for {timeout:.0f} s; {self._note.read()}"
                    )
                continue
            try:
                message: tuple[Any, ...] = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise self._died() from error
            if message[1] == epoch:
                return message
            self._dropped(message)

    @property
    def waiting(self) -> bool:
        """Whether it has sent something."""
        try:
            return self._pipe.poll()
        except OSError:
            return True  # `receive` says what has become of it

    def drain(self) -> None:
        """Takes what is left of an older epoch, or the producer could not send it, nor hear of the new one."""
        try:
            while self._pipe.poll():
                self._dropped(self._pipe.recv())
        except (EOFError, OSError) as error:
            raise self._died() from error

    def _dropped(self, message: tuple[Any, ...]) -> None:
        if message[0] == "batch":
            self._back.append(message[2])
            self._lent += 1

    def batch(self, number: int, used: int, where: dict[str, Any]) -> Batch:
        """The batch in a slot. Its memory goes back when nobody refers to the batch any more."""
        memory = self._slots[number].reach(used)
        self._lent += 1
        if self._lent == len(self._slots):
            # The consumer keeps batches: it gets a copy, or the producer would wait for ever.
            memory = memory[:used].copy()
            self._back.append(number)
            self.give_back()
        else:
            # Behind a memoryview every view keeps `loan` itself alive, see `buffers`.
            memory = np.frombuffer(memory.data, np.uint8)
            weakref.finalize(memory, self._back.append, number).atexit = False
        batch: Batch = map_nested(where, TensorLocation, lambda place: place.view(memory))
        return batch

    def give_back(self) -> None:
        """Tells the producer which slots nobody refers to any more."""
        while self._back:
            self._lent -= 1
            self.send(("slot", self._back.popleft()))

    def _died(self) -> WorkerDied:
        self.process.join(_JOIN_SECONDS)
        return WorkerDied(f"{self.name} (process {self.process.pid}) died: exit code {self.process.exitcode}")

    def end(self) -> None:
        self.process.kill()  # it holds nothing that would want to be put in order
        self._pipe.close()

    def join(self) -> None:
        self.process.join(_JOIN_SECONDS)


def _end(members: list[_WorkerProcess], pid: int) -> None:
    if os.getpid() == pid:
        for producer in members:
            producer.end()
        for producer in members:
            producer.join()
