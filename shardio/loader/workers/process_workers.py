"""The loader's side of worker processes, which make whole batches in anonymous shared memory.

They are for work that holds the GIL. `worker_process` is the other side, and describes the messages. A shared buffer is
a memfd: it has no name, so no file is left behind if processes are killed. A worker dies with its parent.
"""

import multiprocessing
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import final

import numpy as np

from ...errors import ConfigError, Message, Option, PipelineClosed, PipelineStalled, WorkerDied
from ...order.plan import Order, Schedule
from ...system import processes
from ...system.at_exit import close_at_exit
from ...system.background import Departures, call_on_lasting_thread, call_when_gone
from ...system.shared_memory import Shared
from ...system.timing import StageClock, slices
from ..batch.host_batch import Batch, BatchResult, HostBatch
from ..batch.nested import map_nested
from ..batch.spec import BatchSpec
from .shared_buffers import ProgressNote, TensorLocation, new_shared_buffer
from .worker_process import BatchReady, BufferFree, FromWorker, StartEpoch, ToWorker, WorkerFailed, run_worker

_JOIN_SECONDS = 2.0
_ISOLATE = Option("isolate", True)


@final
class WorkerProcesses:
    """The worker processes of one loader; they outlive its epochs.

    Args:
        build_spec: builds the specification of the batches in each worker; it must be picklable, such as a function of
            a module or a partial of one.
        count: the number of processes.
        buffers: the number of shared buffers of each process, which limits the batches that it makes ahead.
        timeout: seconds to wait for a batch before PipelineStalled.
        name: the loader's name in messages.

    Raises ConfigError if `build_spec` cannot be pickled, or this process may not start others.
    """

    def __init__(
        self, build_spec: Callable[[], BatchSpec], *, count: int, buffers: int, timeout: float, name: str = "shardio"
    ) -> None:
        try:
            shared = Shared(build_spec)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                "{} starts processes, and all that they use must be picklable (a function of a module, no lambda): {}",
                _ISOLATE,
                error,
            ) from error
        if processes.is_of_a_session(build_spec):
            raise ConfigError(
                "{} starts processes, which have no function or class of a notebook's cell or an interactive session: "
                "write what map= uses into a module, such as my_map.py, and import it from there",
                _ISOLATE,
            )
        if multiprocessing.current_process().daemon:
            raise ConfigError("{} starts processes, which a daemonic process of multiprocessing cannot do", _ISOLATE)
        self._timeout = timeout
        self._pid = os.getpid()
        self.epoch = 0
        members: list[_WorkerProcess] = []
        self.members = members
        call_when_gone(self, _end, members, self._pid)
        close_at_exit(self)

        def start() -> None:
            for number in range(count):
                members.append(_WorkerProcess(shared, buffers, f"{name} worker {number}"))

        call_on_lasting_thread(start)

    @property
    def usable(self) -> bool:
        """Whether all processes are alive, children of this process, and between two messages."""
        return self._pid == os.getpid() and all(member.process.is_alive() and member.in_step for member in self.members)

    def begin(self, plan: Order, schedule: Schedule, clock: StageClock) -> "ProcessPipeline":
        """Start the processes on the batches of `schedule`, and drop an older epoch."""
        self.epoch += 1
        for number, member in enumerate(self.members):
            member.drain()
            member.send(StartEpoch(self.epoch, plan, schedule, first=number, stride=len(self.members)))
        return ProcessPipeline(self, self.epoch, len(schedule), clock, self._timeout)

    def at_exit(self) -> None:
        _end(self.members, self._pid)


@final
class ProcessPipeline(Iterator[list[BatchResult]]):
    """Yields one epoch's batches from worker processes, in order, as `Pipeline` does from threads."""

    def __init__(self, workers: WorkerProcesses, epoch: int, steps: int, clock: StageClock, timeout: float) -> None:
        self.waited = self.idle = 0.0
        self._workers, self._epoch, self._steps = workers, epoch, steps
        self._clock, self._timeout = clock, timeout
        self._step = 0
        self._closed = False
        self._pid = os.getpid()

    def __next__(self) -> list[BatchResult]:
        """Return the next batch in a list. Raises WorkerDied, PipelineStalled, PipelineClosed or a worker's error."""
        if self._pid != os.getpid():
            raise PipelineClosed("begun before this process was forked")
        if self._closed or self._workers.epoch != self._epoch:
            raise PipelineClosed("closed, or a newer loop over the same loader has begun")
        if self._step == self._steps:
            raise StopIteration
        members = self._workers.members
        for member in members:
            member.give_back()
        worker = members[self._step % len(members)]
        begun = time.monotonic()
        try:
            message = worker.receive(self._epoch, self._timeout)
        except PipelineStalled:
            _end([worker], self._pid)  # it hangs: the next loop gets new workers
            raise
        finally:
            self.waited += time.monotonic() - begun
        if isinstance(message, WorkerFailed):
            raise message.error from message.cause
        self._clock.add(message.measured)
        self._step += 1
        return [worker.batch(message)]

    @property
    def ready(self) -> bool:
        """Whether `next` would return at once."""
        members = self._workers.members
        return self._closed or members[self._step % len(members)].has_message

    def resize(self, threads: int, depth: int) -> None:
        """Do nothing: the number of processes is fixed."""

    def close(self) -> None:
        """Stop delivering batches. The processes stay for the next epoch."""
        self._closed = True


@final
class _WorkerProcess:
    """The loader's side of one worker process.

    Attributes:
        process: the process.
        in_step: whether every message has been sent, received and acted upon as a whole. After an interrupt it may stay
            False: the process is of no more use.
    """

    def __init__(self, build_spec: Shared, buffers: int, name: str) -> None:
        self._name = name
        self._buffers = [new_shared_buffer(name) for _ in range(buffers)]
        self._note = ProgressNote(new_shared_buffer(name))
        self._pipe, worker_end = processes.CONTEXT.Pipe()
        self.process = processes.CONTEXT.Process(
            target=run_worker, args=(build_spec, worker_end, self._buffers, self._note), name=name, daemon=True
        )
        processes.start(self.process)
        worker_end.close()
        self._has_answered = False
        self._lent = 0
        self._unused: deque[int] = deque()
        self._dropped: Departures[int] = Departures()
        self.in_step = True

    def send(self, message: ToWorker) -> None:
        """Send a message; raise WorkerDied if the process has ended."""
        before, self.in_step = self.in_step, False
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._died() from error
        self.in_step = before

    def receive(self, epoch: int, timeout: float) -> FromWorker:
        """Return the next message of this epoch; free the buffers of older epochs' batches.

        The caller passes a finished batch on to `batch`.
        """
        for part in slices(timeout, longest=0.1):
            self.give_back()
            while self._pipe.poll(part):
                message = self._receive()
                if message.epoch == epoch:
                    self.in_step = not isinstance(message, BatchReady)
                    return message
                self._drop(message)
                self.give_back()
        raise PipelineStalled(
            f"{self._name} (process {self.process.pid}): no batch for {timeout:.0f} s; {self._note.read()}"
        )

    def _receive(self) -> FromWorker:
        """Return the next message. The worker is in step again when the caller has acted upon it."""
        self.in_step = False
        try:
            message: FromWorker = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        self._has_answered = True
        return message

    @property
    def has_message(self) -> bool:
        """Whether the worker has sent something."""
        try:
            return self._pipe.poll()
        except OSError:
            return True  # `receive` raises the error

    def drain(self) -> None:
        """Take messages of an older epoch out of the pipe, as a full pipe would keep the worker from the new epoch."""
        try:
            while self._pipe.poll():
                self._drop(self._receive())
        except OSError as error:
            raise self._died() from error

    def _drop(self, message: FromWorker) -> None:
        if isinstance(message, BatchReady):
            self._unused.append(message.buffer)
            self._lent += 1
        self.in_step = True

    def batch(self, message: BatchReady) -> HostBatch:
        """Return the batch in a buffer. The buffer is free again once nothing refers to the batch any more."""
        number = message.buffer
        memory = self._buffers[number].reach(message.used)
        self._lent += 1
        if self._lent == len(self._buffers):
            # The consumer keeps batches: return a copy, or the worker would wait for a free buffer for ever.
            memory = memory[: message.used].copy()
            self._unused.append(number)
            self.give_back()
        else:
            # With a memoryview in between, every view keeps `memory` itself alive, see `memory.BufferPool`.
            memory = np.frombuffer(memory.data, np.uint8)
            self._dropped.watch(memory, number)
        self.in_step = True
        batch: Batch = map_nested(message.batch.batch, TensorLocation, lambda location: location.view(memory))
        return replace(message.batch, batch=batch)

    def give_back(self) -> None:
        """Tell the worker which buffers are free again."""
        before, self.in_step = self.in_step, False
        self._unused.extend(self._dropped.collect())
        while self._unused:
            self._lent -= 1
            self.send(BufferFree(self._unused.popleft()))
        self.in_step = before

    def _died(self) -> WorkerDied:
        self.process.join(_JOIN_SECONDS)
        code = self.process.exitcode
        # A new process imports the script, and ends with code 1 if this fails, as it does where it starts processes.
        hint: object = ""
        if code == 1 and not self._has_answered:
            hint = Message(" before its first batch; with {} {}", _ISOLATE, processes.script_advice())
        return WorkerDied("{} (process {}) died: exit code {}{}", self._name, self.process.pid, code, hint)

    def kill(self) -> None:
        """Kill the process, which holds nothing that needs an orderly end, and do not wait for that."""
        self.process.kill()
        self._pipe.close()


def _end(members: list[_WorkerProcess], pid: int) -> None:
    if os.getpid() == pid:
        for member in members:
            member.kill()
        deadline = time.monotonic() + _JOIN_SECONDS
        for member in members:
            member.process.join(max(0.0, deadline - time.monotonic()))
