"""The processes of a job: how they find each other, what they add up, how they stop together, and lose one another."""

import gc
import os
import re
import signal
import socket
import threading
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a process group: see `join`
from torch.distributed import distributed_c10d

from ..errors import ConfigError, Message, Preempted, ShardioError
from ..order.world import World
from ..system import cpus

# What errors contain that follow from a rank or a network that is gone. Gloo has no type of its own for them, and NCCL
# the same one for mistakes of the caller.
_GLOO_LOST = re.compile(r"\[(?!enforce fail)[^\]]*\bgloo/[^\]]*\] ")
_NCCL_LOST = re.compile(r"ncclRemoteError|time(d )?out|aborted|connection", re.IGNORECASE)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""The signals that ask a run to save a checkpoint and end: Slurm's at preemption, that of `sbatch --signal`, Ctrl-C."""

SAME_INTERRUPT = 2.0
"""Seconds in which a second SIGINT is the same Ctrl-C: torchrun sends its ranks what the terminal has sent them."""
_INTERRUPTED = b"\nshardio: saving a checkpoint after this step; Ctrl-C again ends the run without one\n"

_PORTS = range(10_000, 30_000)
"""The ports that are derived from a job's number: below those that Linux gives to outgoing connections."""


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

    def wait(self) -> None:
        """Wait for all ranks to call this."""
        self.total(0.0)

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
        if not _others_are_gone(error):
            raise
        reason = _reason(error)
        timed_out = re.search("time(d )?out", reason, re.IGNORECASE)
        raise ShardioError(
            Message(
                "{} {} ({}): another process or the network is gone; {resume:auto} continues from the last checkpoint",
                _place(job),
                "waited in vain for the other ranks" if timed_out else "lost its connection to the other ranks",
                reason,
            )
        ) from error
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
    method = init_method(os.environ)
    place = "{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ) if method == "env://" else method.removeprefix("tcp://")
    try:
        if job.world.rank:
            _await_listener(place, job.timeout.total_seconds())
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=method,
            rank=job.world.rank,
            world_size=job.world.size,
            timeout=job.timeout,
            device_id=job.device if cuda else None,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"{_place(job)} cannot join the others within {job.timeout.total_seconds():g} s ({_reason(error)}); start "
            f"all of them with torchrun, srun or mpirun; rank 0 was expected at {place}"
        ) from error


def _await_listener(place: str, limit: float) -> None:
    """Wait until rank 0 listens there, or raise OSError: torch would wait twice as long, and print frames of C++."""
    host, _, port = place.rpartition(":")
    deadline = time.monotonic() + limit
    while True:
        try:
            return socket.create_connection((host.strip("[]"), int(port)), limit).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _others_are_gone(error: BaseException) -> bool:
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return True
    lost = _NCCL_LOST if isinstance(error, dist.DistBackendError) else _GLOO_LOST
    return isinstance(error, RuntimeError) and lost.search(str(error)) is not None


def _place(job: Job) -> str:
    return f"rank {job.world.rank} of {job.world.size} on {socket.gethostname()}"


def _reason(error: BaseException) -> str:
    """Return the first sentence of an error of torch.distributed, without the line of C++ that it begins with.

    NCCL's errors name their cause at the end.
    """
    text = _GLOO_LOST.sub("", str(error))
    first = re.split(r"\. |\n", text, maxsplit=1)[0].rstrip(".")
    cause = re.search(r"Last error:\s*(\S.*)", text)
    return f"{first}: {cause[1].strip()}" if cause else first


def init_method(environ: Mapping[str, str]) -> str:
    """Return the `init_method` of `torch.distributed.init_process_group` for several ranks.

    MASTER_ADDR and MASTER_PORT, which torchrun sets, come first. Without them `srun`'s variables suffice, and those of
    Open MPI's `mpirun` where all ranks are on one node.

    Raises ConfigError if the variables don't say where rank 0 is.
    """
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if address and port:
        return "env://"
    address, port = address or _address(environ), port or str(_port(environ))
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _address(environ: Mapping[str, str]) -> str:
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if size is not None:
        if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size:
            return "127.0.0.1"
        raise ConfigError(
            f"MASTER_ADDR must be the host of rank 0 if mpirun starts ranks on several nodes, got {size} ranks and no "
            "MASTER_ADDR: mpirun -x MASTER_ADDR=HOST"
        )
    if "SLURM_STEP_ID" not in environ:
        raise ConfigError(
            "MASTER_ADDR must be the host of rank 0, got none: start the ranks with torchrun, srun or mpirun"
        )
    name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environ else "SLURM_JOB_NODELIST"
    nodes = environ.get(name, "")
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).partition(",")[0]  # of `rack[1-2]node[03-07,12],login`
    if not re.fullmatch(r"[\w.-]+", first):
        raise ConfigError(f"Slurm's {name} must begin with the name of a host, got {nodes!r}: set MASTER_ADDR")
    return first


def _port(environ: Mapping[str, str]) -> int:
    """Return a port that all ranks of this job compute, and that other jobs on the node are unlikely to."""
    if "OMPI_COMM_WORLD_SIZE" in environ:
        names: tuple[str, ...] = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    else:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    job = " ".join(environ[name] for name in names if name in environ)
    if not job:
        raise ConfigError(f"MASTER_PORT must be set, as none of {', '.join(names)} is: rank 0 listens there")
    return _PORTS[zlib.crc32(job.encode()) % len(_PORTS)]


@final
class StopRequest:
    """Whether any rank has been asked to stop. In the `with` block the signals do nothing else, but for a second
    Ctrl-C, which raises KeyboardInterrupt.

    Only some ranks may get a signal, and not at the same step. So the ranks ask one another at each step, and read the
    answer at the next one, when it has long arrived: no step waits for it.

    Args:
        job: the ranks.
        handlers: what gives the signals their earlier handlers back. The end of the `with` block closes it unless the
            run was Preempted: a late signal, meant for the run that has stopped, must not kill what is ending.
    """

    def __init__(self, job: Job, handlers: ExitStack) -> None:
        self._job = job
        self._got = 0
        self._stops = False
        self._interrupted: float | None = None
        self._handlers = handlers
        # Through host memory, so that a GPU is not waited for.
        self._group = dist.new_group(backend="gloo", timeout=job.timeout) if job.world.size > 1 else None
        self._answer = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._handlers.callback(signal.signal, number, signal.signal(number, self._receive))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Preempted):
            self._handlers.close()
        if error is None:
            self._finish()  # else another rank may be gone, and its answer never come
        self._group = self._work = None  # nothing may outlive the process group

    def _receive(self, number: int, frame: object) -> None:
        self._got = number
        if number != signal.SIGINT:
            return
        if self._interrupted is None:
            self._interrupted = time.monotonic()
            if self._job.leads and not self._stops:
                os.write(2, _INTERRUPTED)  # a signal may come while another line is printed
        elif time.monotonic() - self._interrupted > SAME_INTERRUPT:
            raise KeyboardInterrupt

    def agreed(self) -> signal.Signals | None:
        """Return the signal that some rank had got by the last call. All ranks must call it, and get the same."""
        found = self._got
        if self._group is not None:
            found = self._finish()
            self._answer.fill_(self._got)
            self._work = dist.all_reduce(self._answer, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._stops = bool(found)
        return signal.Signals(found) if found else None

    def _finish(self) -> int:
        if self._work is None:
            return 0
        self._work.wait()
        self._work = None
        return int(self._answer)
