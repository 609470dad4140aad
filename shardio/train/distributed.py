"""The processes of a job: joining and leaving torch.distributed, and reductions over all ranks."""

import gc
import os
import re
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a process group: see `join`
from torch.distributed import distributed_c10d

from ..errors import ConfigError, Message, ShardioError
from ..order.world import World
from ..system import cpus
from . import rendezvous

# What errors contain that follow from a rank or a network that is gone. Gloo has no type of its own for them, and NCCL
# the same one for mistakes of the caller.
_GLOO_LOST = re.compile(r"\[(?!enforce fail)[^\]]*\bgloo/[^\]]*\] ")
_NCCL_LOST = re.compile(r"ncclRemoteError|time(d )?out|aborted|connection", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Job:
    """This process's place in the job.

    Attributes:
        world: the ranks and which of them this process is.
        device: the device that this process computes on.
        timeout: the time that a rank waits for the others.
    """

    world: World
    device: torch.device
    timeout: timedelta = timedelta(minutes=10)

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

    def wait(self) -> None:
        """Wait for all ranks to call this."""
        self.total(0.0)

    def local_ranks(self) -> list[int]:
        """Return the local rank of each rank: a node begins where it is 0. All ranks must call it."""
        mine = self.world
        return [round(n) for n in self.total(*(mine.local_rank if r == mine.rank else 0 for r in range(mine.size)))]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of all ranks, [ranks, *values.shape], on rank 0; on others nothing. All ranks must call it.

        The result is in host memory.
        """
        if self.world.size == 1:
            return values.cpu()[None]
        values = values.to(self.device)
        gathered = [torch.empty_like(values) for _ in range(self.world.size)] if self.leads else None
        dist.gather(values, gathered)
        return values[:0].cpu() if gathered is None else torch.stack([value.cpu() for value in gathered])

    def _reduce(self, values: tuple[float, ...], operation: "dist.ReduceOp.RedOpType") -> tuple[float, ...]:
        if self.world.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        return tuple(tensor.tolist())


@contextmanager
def join(device: str | None, timeout: float) -> Iterator[Job]:
    """Join the job that the launcher describes in torchrun's variables, and leave it at the end of the `with` block.

    A process group that the caller created is used and kept. The number of torch's CPU threads becomes this rank's
    share of the cores.

    Args:
        device: `"cpu"` or `"cuda"`; None takes CUDA if it is available.
        timeout: seconds that a rank waits for the others before it fails, so that no job hangs forever.

    Raises ConfigError if the device does not exist, or the ranks do not find each other in time; ShardioError if
    another rank or the network is gone later.
    """
    world = World.detect()
    job = Job(world, choose_device(device, world), timedelta(seconds=timeout))
    owner = world.size > 1 and not dist.is_initialized()
    threads = torch.get_num_threads()
    if job.device.type == "cuda":
        torch.cuda.set_device(job.device)
    if owner:
        _init_process_group(job)
    try:
        torch.set_num_threads(cpus.share(world.local_size))
        yield job
    except BaseException as error:
        if owner:
            _clear_frames(error)
            if job.device.type == "cuda":
                # Work that waits for ranks that are gone would keep the group from ending.
                gc.collect()
                getattr(distributed_c10d, "_abort_process_group", dist.destroy_process_group)()
        if _others_are_gone(error):
            raise ShardioError(_describe_loss(job, error)) from error
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
            if dist.is_initialized():
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
        raise ConfigError("{device} must not name one GPU for {} ranks, got {!r}: use 'cuda'", world.size, device)
    index = world.local_rank if requested.index is None else requested.index
    if index >= count:
        raise ConfigError(
            f"device {requested.type}:{index} must be one of this node's {count} GPUs; one rank takes one GPU"
        )
    return torch.device("cuda", index)


def _init_process_group(job: Job) -> None:
    cuda = job.device.type == "cuda"
    method = rendezvous.init_method(os.environ)
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=method,
            rank=job.world.rank,
            world_size=job.world.size,
            timeout=job.timeout,
            device_id=job.device if cuda else None,
        )
    except (ValueError, RuntimeError) as error:
        place = "{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ) if method == "env://" else method
        raise ConfigError(
            f"{_place(job)} cannot join the others within {job.timeout.total_seconds():g} s ({_reason(error)}); start "
            f"all of them with torchrun, srun or mpirun; rank 0 was expected at {place}"
        ) from error


def _others_are_gone(error: BaseException) -> bool:
    """Whether an error means that another rank or the network is gone, and is no mistake of this rank."""
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return True
    lost = _NCCL_LOST if isinstance(error, dist.DistBackendError) else _GLOO_LOST
    return isinstance(error, RuntimeError) and lost.search(str(error)) is not None


def _describe_loss(job: Job, error: BaseException) -> str:
    reason = _reason(error)
    timed_out = re.search("time(d )?out", reason, re.IGNORECASE)
    what = "waited in vain for the other ranks" if timed_out else "lost its connection to the other ranks"
    return Message(
        "{} {} ({}): another process or the network is gone; {resume:auto} continues from the last checkpoint",
        _place(job),
        what,
        reason,
    )


def _place(job: Job) -> str:
    return f"rank {job.world.rank} of {job.world.size} on {socket.gethostname()}"


def _reason(error: BaseException) -> str:
    """Return the first sentence of an error of torch.distributed, without the line of C++ that it begins with.

    NCCL's errors tell their cause at the end.
    """
    text = _GLOO_LOST.sub("", str(error))
    first = re.split(r"\. |\n", text, maxsplit=1)[0].rstrip(".")
    cause = re.search(r"Last error:\s*(\S.*)", text)
    return f"{first}: {cause[1].strip()}" if cause else first
