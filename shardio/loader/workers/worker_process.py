"""The worker's side of a worker process: it makes whole batches in shared buffers for `process_workers`.

    loader                                    worker w of W, for steps w, w + W, ...
      StartEpoch                        -->   makes the steps' batches one after the other, each in a shared buffer
      BufferFree                        -->   may write into that buffer again
                                        <--   BatchReady, for each batch
                                        <--   WorkerFailed, once; the epoch is over for this worker

These messages are pickled. Only processes of this job send them; they are never read from data.
"""

import os
import pickle
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch

from ...order.plan import Order, Schedule
from ...system import processes
from ...system.shared_memory import Shared
from ...system.timing import Measured, StageClock
from ..batch.host_batch import HostBatch
from ..batch.job import BatchJob, job_size
from ..batch.nested import map_nested
from ..batch.rows import Rows
from ..batch.spec import BatchSpec
from .shared_buffers import ProgressNote, SharedBuffer, TensorLocation


@dataclass(frozen=True, slots=True)
class StartEpoch:
    """Asks a worker to make every `stride`-th step of an epoch, from step `first` on, and to drop an older epoch.

    Attributes:
        number: counts the epochs that this loader has begun, which identifies late messages of older epochs.
        plan: the order of the epoch.
        schedule: the steps of the epoch.
        first: the first step for this worker.
        stride: the distance between two of its steps.
    """

    number: int
    plan: Order
    schedule: Schedule
    first: int
    stride: int


@dataclass(frozen=True, slots=True)
class BufferFree:
    """Tells a worker that nothing refers to the batch in a buffer any more."""

    buffer: int


@dataclass(frozen=True, slots=True)
class BatchReady:
    """Tells the loader that a batch is finished.

    Attributes:
        epoch: the `StartEpoch.number` of its epoch.
        buffer: the number of the buffer that holds its tensors.
        used: the number of bytes of the buffer that the tensors take.
        batch: the batch, with a TensorLocation instead of each tensor.
        measured: what the worker's clock has measured.
    """

    epoch: int
    buffer: int
    used: int
    batch: HostBatch
    measured: Measured


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Tells the loader that a step could not be made.

    Attributes:
        epoch: the `StartEpoch.number` of its epoch.
        error: the error.
        cause: its cause, such as what the user's function raised, with a note of its traceback, which pickling drops.
    """

    epoch: int
    error: BaseException
    cause: BaseException | None


ToWorker: TypeAlias = StartEpoch | BufferFree
FromWorker: TypeAlias = BatchReady | WorkerFailed


def run_worker(shared: Shared, pipe: "Connection[Any, Any]", buffers: list[SharedBuffer], note: ProgressNote) -> None:
    """Make batches while there is an epoch and a free buffer, and receive messages in between.

    `shared` holds a function that builds the specification of the batches. Returns when the loader closes the pipe or
    ends.
    """
    processes.end_with_parent()
    torch.set_num_threads(1)
    build_spec: Callable[[], BatchSpec] = shared.load()
    free = deque(range(len(buffers)))
    spec: BatchSpec | None = None
    epoch: StartEpoch | None = None
    steps: Iterator[int] = iter(())
    while True:
        step = next(steps, None) if free else None
        while step is None or pipe.poll():
            try:
                message = pipe.recv()
            except (EOFError, OSError):  # the loader has closed the pipe or ended
                return
            match message:
                case BufferFree(number):
                    free.append(number)
                case StartEpoch():
                    epoch, step = message, None
                    steps = iter(range(epoch.first, len(epoch.schedule), epoch.stride))
            if step is None and free:
                step = next(steps, None)
        if epoch is None:
            continue
        number = free.popleft()
        try:
            with warnings.catch_warnings(action="ignore"):  # the loader has warned
                spec = spec or build_spec()
            clock = StageClock(note.stage)
            used, batch = _make(spec, epoch, step, buffers[number], note, clock)
            _send(pipe, BatchReady(epoch.number, number, used, batch, clock.measured()))
        except BaseException as error:  # noqa: BLE001  # raised again in the consumer
            _send(pipe, WorkerFailed(epoch.number, _picklable(error), _noted(error.__cause__)))
            steps = iter(())
            free.append(number)


def _send(pipe: "Connection[Any, Any]", message: FromWorker) -> None:
    """Send by value: the pipe's own `send` would put remaining tensors into named shared memory."""
    pipe.send_bytes(pickle.dumps(message))


def _make(
    spec: BatchSpec, epoch: StartEpoch, step: int, buffer: SharedBuffer, note: ProgressNote, clock: StageClock
) -> tuple[int, HostBatch]:
    """Make a batch in a buffer. Return the bytes used, and the batch with a TensorLocation for each tensor."""
    locations = {}
    end = 0
    with clock.stage("plan"):
        samples = epoch.schedule.part(epoch.plan, step)
        for name, (shape, dtype) in spec.array_layout(len(samples.indices)).items():
            locations[name] = TensorLocation(end, shape, torch.from_numpy(np.empty(0, dtype)).dtype)
            end = locations[name].end
        memory = buffer.reach(end)
        rows = Rows(
            spec,
            epoch.plan,
            samples,
            {name: location.view(memory).numpy() for name, location in locations.items()},
            pads=epoch.schedule.tail == "pad",
            clock=clock,
        )
    job = BatchJob(rows, job_size(spec, len(rows), threads=1, one_batch=True).task_samples)
    for task in job.tasks:
        note.task(str(task))
        task()
    (result,) = job.result()
    if isinstance(result, Exception):
        raise result
    elsewhere: list[tuple[TensorLocation, torch.Tensor]] = []  # such as tensors that the user's function made

    def locate(tensor: torch.Tensor) -> TensorLocation:
        nonlocal end
        location, values = TensorLocation.of(tensor.detach().resolve_conj().resolve_neg(), end)
        start = values.data_ptr() - memory.ctypes.data
        if start >= 0 and start + values.nbytes <= len(memory):
            return replace(location, start=start)
        elsewhere.append((replace(location, order=()), values))
        end = location.end
        return location

    located = map_nested(result.batch, torch.Tensor, locate)
    memory = buffer.reach(end)
    for location, values in elsewhere:
        location.view(memory)[...] = values
    return end, replace(result, batch=located)


def _noted(cause: BaseException | None) -> BaseException | None:
    if cause is None:
        return None
    noted = _picklable(cause)
    noted.add_note(f"In worker process {os.getpid()}:\n{''.join(traceback.format_exception(cause)).rstrip()}")
    return noted


def _picklable(error: BaseException) -> BaseException:
    """Return the error itself if it can be pickled, else a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # pickled just before, to check that it can be unpickled
    except Exception:  # noqa: BLE001  # pickling may raise any exception
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
