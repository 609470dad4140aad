"""A look at one step in so many, on all ranks: for `metrics.jsonl`, and for stragglers.

An allreduce in every step makes all ranks as slow as the slowest one and hides which one that is. It shows in the
times that each rank spends on its own, waiting for input and computing: the others wait for it in their communication.
Pairs of nodes find the one with a slow network, because all nodes end an allreduce together.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, final

import torch
import torch.distributed as dist
from torch import Tensor

from ..loader.loader import Loader
from .config import TrainConfig
from .distributed import Job
from .learner import Learner
from .records import Records

_HOST_BYTES = 64
_PROBE_AFTER = 3

_WINDOWS = 3
_SHARE = 0.2  # of the step
_SECONDS = 0.002

_BYTES = 1 << 18
_TRIPS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The seconds that a rank spends on a step.

    Attributes:
        input: waiting for its batches.
        compute: from the beginning of the forward pass until its own gradients are there.
        communication: from then on until the gradients of all ranks are added.
    """

    input: float
    compute: float
    communication: float

    @property
    def own(self) -> float:
        """The seconds that the rank spends without waiting for others."""
        return self.input + self.compute


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: its number.
        host: the name of its host.
        cause: what it spends more time on than the others.
        excess: how much more than their median, in seconds per step, or per message to another node.
        step: what a step takes, in seconds.
    """

    rank: int
    host: str
    cause: Literal["input", "compute", "communication"]
    excess: float
    step: float

    def __str__(self) -> str:
        if self.cause == "communication":
            return (
                f"the network of rank {self.rank} on {self.host} is slow: 256 KiB to another node and back take "
                f"{1000 * self.excess:.0f} ms more than between the others (a step takes {1000 * self.step:.0f} ms)"
            )
        return (
            f"rank {self.rank} on {self.host} is slow: its {self.cause} takes {1000 * self.excess:.0f} ms per step "
            f"more than that of the others, which wait for it (a step takes {1000 * self.step:.0f} ms)"
        )


def slowest(times: Sequence[StepTimes], hosts: Sequence[str]) -> Straggler | None:
    """Return the rank that the others wait for, for at least a fifth of the step; None if there is none."""
    if len(times) < 2:
        return None
    rank = max(range(len(times)), key=lambda number: times[number].own)
    others = [own for number, own in enumerate(times) if number != rank]
    mine, step = times[rank], times[rank].own + times[rank].communication
    if mine.own - median(other.own for other in others) < max(_SHARE * step, _SECONDS):
        return None
    late = mine.input - median(other.input for other in others)
    long = mine.compute - median(other.compute for other in others)
    return Straggler(rank, hosts[rank], "input" if late > long else "compute", max(late, long), step)


@final
class StragglerWatch:
    """Distinguishes persistently slow ranks from chance: a straggler is slow in three looks in a row.

    Attributes:
        straggler: the rank that is slow now; None if there is none.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._found: deque[Straggler | None] = deque(maxlen=_WINDOWS)
        self._reported: tuple[int, str] | None = None
        self.straggler: Straggler | None = None

    def look(self, times: Sequence[StepTimes]) -> Straggler | None:
        """Add what all ranks spent on a step; return the straggler if it was not known before."""
        self._found.append(slowest(times, self._hosts))
        causes = {None if found is None else (found.rank, found.cause) for found in self._found}
        if len(self._found) < _WINDOWS or len(causes) > 1:
            self.straggler = None
            return None
        before, self._reported = self._reported, causes.pop()
        self.straggler = self._found[-1]
        return None if self._reported == before else self.straggler


def ring_seconds(leaders: Sequence[int], rank: int, group: dist.ProcessGroup) -> list[float]:
    """Return the seconds that 256 KiB take from each leader to the next one and back, at best of three.

    Neighbours are asked in pairs, so that no link serves two of them at a time. `leaders` has one rank of each node,
    three at least. All ranks of the group must call this, with their own number.
    """
    count, seconds = len(leaders), torch.zeros(len(leaders), dtype=torch.float64)
    pairs = [(number, (number + 1) % count) for number in range(count)]
    odd = pairs.pop() if count % 2 else None  # the last one shares a node with the first
    data = torch.zeros(_BYTES, dtype=torch.uint8)
    for together in (pairs[0::2], pairs[1::2], [] if odd is None else [odd]):
        dist.barrier(group=group)
        for first, second in together:
            if rank == leaders[first]:
                seconds[first] = min(_trip(data, leaders[second], group, begins=True) for _ in range(_TRIPS))
            elif rank == leaders[second]:
                for _ in range(_TRIPS):
                    _trip(data, leaders[first], group, begins=False)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return seconds.tolist()


def _trip(data: torch.Tensor, other: int, group: dist.ProcessGroup, *, begins: bool) -> float:
    begun = time.perf_counter()
    for sends in (begins, not begins):
        if sends:
            dist.send(data, other, group=group)
        else:
            dist.recv(data, other, group=group)
    return time.perf_counter() - begun


def slow_node(ring: Sequence[float]) -> tuple[int, float] | None:
    """Return the number of the node both of whose links are slow, and its excess in seconds; None if there is none."""
    both = [min(ring[number - 1], ring[number]) for number in range(len(ring))]
    worst = max(range(len(ring)), key=lambda number: both[number])
    usual = median(value for number, value in enumerate(ring) if number not in (worst, (worst - 1) % len(ring)))
    return (worst, both[worst] - usual) if both[worst] > 3 * usual else None


@dataclass(frozen=True, slots=True)
class _Look:
    """A step and the steps since the last look, on this rank."""

    epoch: int
    step: int
    count: int
    lr: float
    figures: Callable[[], list[float]]  # loss, score, norm
    seconds: float
    samples: int
    steps: int
    waited: float
    times: tuple[float, float]


@final
class StepMonitor:
    """Looks at every `config.metrics_every_steps`th step of all ranks, without making any of them wait.

    A step's figures are copied from the device behind its work, read when the next step has begun, and those of other
    ranks at the step after that. On rank 0 the metrics go to `records`, and lines about stragglers to `say`; on others
    there are no `records`.
    """

    def __init__(
        self,
        config: TrainConfig,
        job: Job,
        learner: Learner,
        *,
        metric: str,
        records: Records | None,
        say: Callable[[str], None],
    ) -> None:
        self._every, self._job, self._learner = config.metrics_every_steps, job, learner
        self._metric, self._records, self._say = metric, records, say
        # Through host memory, so that a GPU is not waited for.
        self._group = dist.new_group(backend="gloo", timeout=job.timeout) if job.world.size > 1 else None
        name = bytearray(socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES))
        names = job.gather(torch.frombuffer(name, dtype=torch.uint8)).tolist()  # none but on rank 0, which reports
        self._hosts = [bytes(name).decode(errors="replace").strip() for name in names] or [""] * job.world.size
        self._watch = StragglerWatch(self._hosts)
        self._slow_network: Straggler | None = None
        self._bound = 0  # looks in a row at steps that are mostly communication
        self._read: _Look | None = None
        self._gathering: tuple[_Look, list[Tensor], dist.Work | None] | None = None
        self._loader: Loader | None = None
        self.gradient_norm: float | None = None

    def begin_epoch(self, loader: Loader) -> None:
        """Begin to measure an epoch."""
        self._loader, self._since, self._waited, self._samples, self._steps = loader, time.perf_counter(), 0.0, 0, 0

    def due(self, step: int) -> bool:
        """Return whether a step is looked at."""
        return step % self._every == 0

    def end_step(self, epoch: int, step: int, *, count: int, lr: float, sums: Tensor, norm: Tensor | None) -> None:
        """Take note of a step; all ranks must call it after each.

        Args:
            epoch: the number of the epoch, from 1.
            step: the number of the step, from 1.
            count: the samples of the step, of all ranks.
            lr: the learning rate.
            sums: of this rank's samples the sum of the losses and that of the scores, on the device.
            norm: the norm of the gradients, on the device.
        """
        self._advance()
        self._samples += count
        self._steps += 1
        if not self.due(step) or self._loader is None:
            return
        now, waited = time.perf_counter(), self._loader.stats().wait_seconds
        self._read = _Look(
            epoch=epoch,
            step=step,
            count=count,
            lr=lr,
            figures=_behind_the_device(sums, norm),
            seconds=now - self._since,
            samples=self._samples,
            steps=self._steps,
            waited=waited - self._waited,
            times=self._learner.step_times(),
        )
        self._since, self._waited, self._samples, self._steps = now, waited, 0, 0

    def _probe(self, step: float) -> Straggler | None:
        """Return the node whose network is slow, of three or more; all ranks must call it."""
        if self._group is None:
            return None
        world = self._job.world
        local_ranks = self._job.total(*(world.local_rank if rank == world.rank else 0 for rank in range(world.size)))
        leaders = [rank for rank, local in enumerate(local_ranks) if local == 0]
        if len(leaders) < 3:  # both ends of the only link look the same
            return None
        found = slow_node(ring_seconds(leaders, world.rank, self._group))
        if found is None:
            return None
        rank = leaders[found[0]]
        return Straggler(rank, self._hosts[rank], "communication", found[1], step)

    def flush(self) -> None:
        """Wait until the last step is recorded; all ranks must call it."""
        self._advance()
        self._advance()

    def close(self) -> None:
        """Let go of the ranks' connection."""
        self._gathering = self._group = None

    def _advance(self) -> None:
        if self._gathering is not None:
            look, table, work = self._gathering
            self._gathering = None
            if work is not None:
                work.wait()
            self._end(look, [row.tolist() for row in table])
        if self._read is not None:
            look, self._read = self._read, None
            mine = torch.tensor([*look.figures(), look.waited, *look.times], dtype=torch.float64)
            table, work = [mine], None
            if self._group is not None:
                table = [torch.empty_like(mine) for _ in range(self._job.world.size)]
                work = dist.all_gather(table, mine, group=self._group, async_op=True)
            self._gathering = look, table, work

    def _end(self, look: _Look, table: list[list[float]]) -> None:
        self.gradient_norm = max(row[2] for row in table)
        times = [StepTimes(row[3] / look.steps, row[4], row[5]) for row in table]
        new = self._watch.look(times)
        # Whether all ranks, also the last one to be ready, spend most of the step on adding their gradients.
        bound = all(time.communication > max(time.own, _SECONDS) for time in times)
        if self._watch.straggler is None and bound:
            self._bound += 1
            if self._bound == _PROBE_AFTER:  # once in a run
                self._slow_network = new = self._probe(max(time.own + time.communication for time in times))
        elif self._bound < _PROBE_AFTER:
            self._bound = 0
        if self._records is None:
            return
        rate = look.samples / look.seconds
        record: dict[str, Any] = {
            "epoch": look.epoch,
            "step": look.step,
            "loss": sum(row[0] for row in table) / look.count,
            self._metric: sum(row[1] for row in table) / look.count,
            "lr": look.lr,
            "gradient_norm": self.gradient_norm,
            "samples_per_second": round(rate, 1),
            "samples_per_second_per_rank": round(rate / self._job.world.size, 1),
            "starved": round(min(1.0, max(row[3] for row in table) / look.seconds), 4),
            "communication": round(min(time.communication for time in times), 4),
        }
        slow = self._watch.straggler or self._slow_network
        if slow is not None:
            record["straggler"] = str(slow)
        self._records.step(record)
        if new is not None:
            self._say(str(new))


def _behind_the_device(sums: Tensor, norm: Tensor | None) -> Callable[[], list[float]]:
    """Copy the figures of a step to host memory when the device has come to them; return what waits and reads them."""
    figures = torch.cat((sums, (sums.new_zeros(()) if norm is None else norm.detach().to(sums))[None]))
    if figures.device.type != "cuda":
        return figures.tolist
    host = torch.empty_like(figures, device="cpu", pin_memory=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no hints
    host.copy_(figures, non_blocking=True)
    copied.record()

    def read() -> list[float]:
        copied.synchronize()
        return host.tolist()

    return read
