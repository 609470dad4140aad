"""The processes of a job: joining and leaving torch.distributed, and the few sums they share."""

import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # see `join`

from ..errors import ConfigError
from ..order.world import World

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others before it fails, so that no job hangs for ever."""


@dataclass(frozen=True, slots=True)
class Job:
    """This process's place in the job.

    Attributes:
        world: which of how many ranks.
        device: where it computes.
    """

    world: World
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes and prints."""
        return self.world.rank == 0

    def total(self, *values: float) -> tuple[float, ...]:
        """Each value's sum over all ranks, in float64. All ranks must call it."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, *values: float) -> tuple[float, ...]:
        """Each value's maximum over all ranks. All ranks must call it."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def share_buffers(self, model: torch.nn.Module) -> None:
        """Gives every rank rank 0's buffers (running means and variances, which each rank keeps of its own samples)."""
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
    """Joins the job that the launcher describes (torchrun's variables), and leaves it again whatever happens.

    A process group that the caller has made is used and left alone. CPU threads become this rank's share of the cores.

    Args:
        device: `"cpu"` or `"cuda"`; None takes CUDA where there is any.

    Raises ConfigError if the device is not there, or the launcher did not say where rank 0 listens.
    """
    world = World.detect()
    job = Job(world, choose_device(device, world))
    owner = world.size > 1 and not dist.is_initialized()
    threads = torch.get_num_threads()
    if job.device.type == "cuda":
        torch.cuda.set_device(job.device)
    if owner:
        _init(job)
    try:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size))
        yield job
    except BaseException as error:
        if owner:
            _forget(error)
        raise
    finally:
        torch.set_num_threads(threads)
        if owner:
            # The process group's threads must end here, while the interpreter is whole: at its exit they can bring the
            # process down. So nothing may hold the group, neither DistributedDataParallel, which also would end it with
            # the interpreter's lock held, that the group's threads may wait for; nor torch.distributed.nn.functional,
            # which keeps as a default the group that is there when it is imported: DistributedDataParallel imports it
            # by and by, this module before there is one.
            gc.collect()
            dist.destroy_process_group()


def _forget(error: BaseException | None) -> None:
    """Lets go of the variables of the functions that failed: a model among them would outlive the process group."""
    seen: set[int] = set()  # errors may be one another's causes
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def choose_device(device: str | None, world: World) -> torch.device:
    """The device of one rank: its own GPU by its local rank, or the CPU; ConfigError if it is not there."""
    count = torch.cuda.device_count()
    asked = torch.device(("cuda" if count else "cpu") if device is None else device)
    if asked.type == "cpu":
        return asked
    if asked.index is not None and world.size > 1:
        raise ConfigError(f"device must not name one GPU for {world.size} ranks, got {device!r}: take 'cuda'")
    index = world.local_rank if asked.index is None else asked.index
    if index >= count:
        raise ConfigError(
            f"device {asked.type}:{index} must be one of this node's {count} GPUs; one rank takes one GPU"
        )
    return torch.device("cuda", index)


def _init(job: Job) -> None:
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
