"""The processes of a job: joining and leaving torch.distributed, and reductions over all ranks."""

import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a process group: see `join`

from ..errors import ConfigError
from ..order.world import World

TIMEOUT = timedelta(minutes=10)
"""The time that a rank waits for the others before it fails, so that no job hangs forever."""


@dataclass(frozen=True, slots=True)
class Job:
    """This process's place in the job.

    Attributes:
        world: the ranks and which of them this process is.
        device: the device that this process computes on.
    """

    world: World
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the one that writes and prints."""
        return self.world.rank == 0

    def total(self, *values: float) -> tuple[float, ...]:
        """Return the sum of each value over all ranks, in float64. All ranks must call it."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, *values: float) -> tuple[float, ...]:
        """Return the maximum of each value over all ranks. All ranks must call it."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def share_buffers(self, model: torch.nn.Module) -> None:
        """Copy the buffers of rank 0 to every rank: each rank keeps running means and variances of its own samples."""
        if self.world.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def _reduce(self, values: tuple[float, ...], operation: "dist.ReduceOp.RedOpType") -> tuple[float, ...]:
        if self.world.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        return tuple(tensor.tolist())


@contextmanager
def join(device: str | None) -> Iterator[Job]:
    """Join the job that the launcher describes in torchrun's variables, and leave it at the end of the `with` block.

    A process group that the caller created is used and kept. The number of torch's CPU threads becomes this rank's
    share of the cores.

    Args:
        device: `"cpu"` or `"cuda"`; None takes CUDA if it is available.

    Raises ConfigError if the device does not exist, or the launcher did not say where rank 0 listens.
    """
    world = World.detect()
    job = Job(world, choose_device(device, world))
    owner = world.size > 1 and not dist.is_initialized()
    threads = torch.get_num_threads()
    if job.device.type == "cuda":
        torch.cuda.set_device(job.device)
    if owner:
        _init_process_group(job)
    try:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size))
        yield job
    except BaseException as error:
        if owner:
            _clear_frames(error)
        raise
    finally:
        torch.set_num_threads(threads)
        if owner:
            # The process group's threads must end here: at the interpreter's exit they can crash the process. So
            # nothing may hold a reference to the group. DistributedDataParallel does, and would also end the group
            # while it holds the interpreter's lock, which the group's threads may wait for.
            # torch.distributed.nn.functional holds one, as a default argument, if a group exists when it is first
            # imported; DistributedDataParallel imports it at some point, so this module imports it earlier.
            gc.collect()
            dist.destroy_process_group()


def _clear_frames(error: BaseException | None) -> None:
    """Drop the local variables of the functions that failed: a model among them would outlive the process group."""
    seen: set[int] = set()  # errors may be each other's causes
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def choose_device(device: str | None, world: World) -> torch.device:
    """Return the device of a rank: the GPU of its local rank, or the CPU; raise ConfigError if it does not exist."""
    count = torch.cuda.device_count()
    requested = torch.device(("cuda" if count else "cpu") if device is None else device)
    if requested.type == "cpu":
        return requested
    if requested.index is not None and world.size > 1:
        raise ConfigError(f"device must not name one GPU for {world.size} ranks, got {device!r}: use 'cuda'")
    index = world.local_rank if requested.index is None else requested.index
    if index >= count:
        raise ConfigError(
            f"device {requested.type}:{index} must be one of this node's {count} GPUs; one rank takes one GPU"
        )
    return torch.device("cuda", index)


def _init_process_group(job: Job) -> None:
    cuda = job.device.type == "cuda"
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            rank=job.world.rank,
            world_size=job.world.size,
            timeout=TIMEOUT,
            device_id=job.device if cuda else None,
        )
    except ValueError as error:
        raise ConfigError(
            f"{job.world.size} ranks cannot find each other; start them with torchrun ({error})"
        ) from error
