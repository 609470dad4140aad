"""A producer: the process at the other end of `isolation`."""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from ...order.plan import Order, Schedule
from ...system import processes
from ...system.timing import StageClock
from ..batch.batches import Collator
from ..batch.host_batch import HostBatch
from .shared_buffers import ProgressNote, SharedBuffer, TensorLocation, map_nested


@dataclass(frozen=True, slots=True)
class _Task:
    """What a producer works on: its steps of an epoch."""

    epoch: int
    plan: Order
    schedule: Schedule
    steps: Iterator[int]


def produce(
    make: Callable[[], Collator], pipe: "Connection[Any, Any]", slots: list[SharedBuffer], note: ProgressNote
) -> None:
    """A producer: makes batches while it has an epoch and a free slot, and listens in between."""
    processes.die_with_parent()
    torch.set_num_threads(1)
    free = deque(range(len(slots)))
    collator: Collator | None = None
    task: _Task | None = None
    while True:
        step = next(task.steps, None) if task is not None and free else None
        while step is None or pipe.poll():
            try:
                message = pipe.recv()
            except (EOFError, OSError):  # the parent has closed its end, or is gone
                return
            if message[0] == "slot":
                free.append(message[1])
            else:
                _, epoch, plan, schedule, first, every = message
                task, step = _Task(epoch, plan, schedule, iter(range(first, len(schedule), every))), None
            if step is None and task is not None and free:
                step = next(task.steps, None)
        if task is None:
            continue
        number = free.popleft()
        try:
            collator = collator or make()
            clock = StageClock(note.stage)
            used, made = _make(collator, task, step, slots[number], note, clock)
            message = ("batch", task.epoch, number, used, made.batch, made.size, made.bad, clock.seconds())
            _send(pipe, message)
        except BaseException as error:  # noqa: BLE001  # raised again in the consumer
            _send(pipe, ("error", task.epoch, _portable(error)))
            task = None
            free.append(number)


def _send(pipe: "Connection[Any, Any]", message: tuple[Any, ...]) -> None:
    """Sends by value: the pipe's own `send` would put what tensors are left into named shared memory."""
    pipe.send_bytes(pickle.dumps(message))


def _make(
    collator: Collator, task: _Task, step: int, slot: SharedBuffer, note: ProgressNote, clock: StageClock
) -> tuple[int, HostBatch]:
    """Makes a batch in a slot: bytes used of the slot, and the batch with a Place for each tensor."""
    arrays = {}
    end = 0
    for name, (shape, dtype) in collator.slots.items():
        arrays[name] = TensorLocation(end, shape, torch.from_numpy(np.empty(0, dtype)).dtype)
        end = arrays[name].next
    memory = slot.reach(end)
    views = {name: place.view(memory).numpy() for name, place in arrays.items()}
    job = collator.job(task.plan, task.schedule.part(task.plan, step), task.schedule.tail == "pad", clock, views)
    for run in job.tasks:
        note.task(f"{run}")
        run()
    (made,) = job.result()
    if isinstance(made, Exception):
        raise made
    loose: list[tuple[TensorLocation, torch.Tensor]] = []

    def stow(tensor: torch.Tensor) -> TensorLocation:
        nonlocal end
        place, tensor = TensorLocation.of(tensor.detach().resolve_conj().resolve_neg(), end)
        start = tensor.data_ptr() - memory.ctypes.data
        if start >= 0 and start + tensor.nbytes <= len(memory):
            return replace(place, start=start)
        loose.append((replace(place, order=()), tensor))  # made elsewhere, by the user's function for one
        end = place.next
        return place

    batch = map_nested(made.batch, torch.Tensor, stow)
    memory = slot.reach(end)
    for place, tensor in loose:
        place.view(memory)[...] = tensor
    return end, replace(made, batch=batch)


def _portable(error: BaseException) -> BaseException:
    """The error itself if it can be sent, else its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own, and only to see whether it survives
    except Exception:  # noqa: BLE001  # whatever pickle meets
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
