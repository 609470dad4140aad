"""A look at one step in so many, on all ranks: for `metrics.jsonl`, and for stragglers."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from ..loader.loader import Loader
from .config import TrainConfig
from .distributed import Job
from .learner import Learner
from .link_probe import ring_seconds, slow_node
from .stragglers import StepTimes, Straggler, StragglerWatch, communication_bound

_HOST_BYTES = 64
_PROBE_AFTER = 3


@dataclass(frozen=True, slots=True)
class StepSums:
    """A step of the optimizer, as its ranks end it.

    Attributes:
        epoch: the number of the epoch, from 1.
        step: the number of the step, from 1.
        count: the samples of the step, of all ranks.
        lr: the learning rate.
        sums: of this rank's samples the sum of the losses and that of the scores, on the device.
        norm: the norm of the gradients, on the device.
    """

    epoch: int
    step: int
    count: int
    lr: float
    sums: Tensor
    norm: Tensor | None


@dataclass(frozen=True, slots=True)
class _Look:
    """A step and the steps since the last look, on this rank."""

    sums: StepSums
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
    ranks at the step after that.

    Args:
        config: the configuration of the run.
        job: this process's place in the job.
        learner: what does the steps.
        metric: what the score is.
        record: takes the metrics of a step, on rank 0.
        say: takes a line about a straggler, on rank 0.
    """

    def __init__(
        self,
        config: TrainConfig,
        job: Job,
        learner: Learner,
        *,
        metric: str,
        record: Callable[[Mapping[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self._every, self._job, self._learner = config.metrics_every_steps, job, learner
        self._metric, self._record, self._say = metric, record, say
        # Through host memory, so that a GPU is not waited for.
        self._group = dist.new_group(backend="gloo", timeout=job.timeout) if job.world.size > 1 else None
        self._hosts = self._gather_hosts()
        self._watch = StragglerWatch(self._hosts)
        self._slow_network: Straggler | None = None
        self._bound = 0  # looks in a row at steps that are mostly communication
        self._read: _Look | None = None
        self._gathering: tuple[_Look, list[Tensor], dist.Work | None] | None = None
        self._loader: Loader | None = None
        self.gradient_norm: float | None = None

    def _gather_hosts(self) -> list[str]:
        name = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES)
        mine = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        names = [torch.empty_like(mine) for _ in range(self._job.world.size)]
        if self._group is None:
            names = [mine]
        else:
            dist.all_gather(names, mine, group=self._group)
        return [bytes(name.tolist()).decode(errors="replace").strip() for name in names]

    def begin_epoch(self, loader: Loader) -> None:
        """Begin to measure an epoch."""
        self._loader, self._since, self._waited, self._samples, self._steps = loader, time.perf_counter(), 0.0, 0, 0

    def due(self, step: int) -> bool:
        """Return whether a step is looked at."""
        return step % self._every == 0

    def end_step(self, sums: StepSums) -> None:
        """Take note of a step; all ranks must call it after each."""
        self._advance()
        self._samples += sums.count
        self._steps += 1
        if not self.due(sums.step) or self._loader is None:
            return
        now, waited = time.perf_counter(), self._loader.stats().wait_seconds
        self._read = _Look(
            sums=sums,
            figures=_behind_the_device(sums),
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
        leaders = [rank for rank, local in enumerate(self._job.local_ranks()) if local == 0]
        if len(leaders) < 3:
            return None
        found = slow_node(ring_seconds(leaders, self._job.world.rank, self._group))
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
        sums, ranks = look.sums, self._job.world.size
        self.gradient_norm = max(row[2] for row in table)
        times = [StepTimes(row[3] / look.steps, row[4], row[5]) for row in table]
        new = self._watch.look(times)
        if self._watch.straggler is None and communication_bound(times):
            self._bound += 1
            if self._bound == _PROBE_AFTER:  # once in a run
                self._slow_network = new = self._probe(max(time.own + time.communication for time in times))
        elif self._bound < _PROBE_AFTER:
            self._bound = 0
        if not self._job.leads:
            return
        record: dict[str, Any] = {
            "epoch": sums.epoch,
            "step": sums.step,
            "loss": sum(row[0] for row in table) / sums.count,
            self._metric: sum(row[1] for row in table) / sums.count,
            "lr": sums.lr,
            "gradient_norm": self.gradient_norm,
            "samples_per_second": round(look.samples / look.seconds, 1),
            "samples_per_second_per_rank": round(look.samples / look.seconds / ranks, 1),
            "starved": round(min(1.0, max(row[3] for row in table) / look.seconds), 4),
        }
        slow = self._watch.straggler or self._slow_network
        if slow is not None:
            record["straggler"] = str(slow)
        self._record(record)
        if new is not None:
            self._say(str(new))


def _behind_the_device(step: StepSums) -> Callable[[], list[float]]:
    """Copy the figures of a step to host memory when the device has come to them; return what waits and reads them."""
    norm = step.sums.new_zeros(()) if step.norm is None else step.norm.detach().to(step.sums)
    figures = torch.cat((step.sums, norm[None]))
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
