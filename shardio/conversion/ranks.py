"""One conversion by all ranks of a job: each writes a part of the shards, and the first rank leads.

Ranks communicate only by files next to the records of shards, see `output.Run`, so any launcher will do (`srun`,
`torchrun`, `mpirun`), and no network is needed.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from ..errors import ConfigError, PipelineStalled, ShardioError
from ..format.manifest import Manifest
from ..order.world import World
from ..output import Output, Run
from ..output.base import RankState
from ..output.records import compare
from .shard_tasks import ShardTask, TaskContext

BEGIN_SECONDS = 600.0
STALL_SECONDS = 1800.0
_LOOK_SECONDS = 2.0
"""The time between two looks of the first rank at the others' progress while it works itself."""

_JOB = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
)  # fmt: skip


def job() -> str:
    """Return a string that identifies this job: all of its ranks share it, and no other job has it."""
    return " ".join(f"{name}={os.environ[name]}" for name in _JOB if name in os.environ)


@final
class OtherRanks:
    """The first rank's view of the others; `tasks` are those of all ranks."""

    def __init__(self, out: Output, run: Run, world: World, tasks: Sequence[ShardTask]) -> None:
        self._out, self._size = out, world.size
        self._look_at_all = run.others(world.size)
        self._all = {task.number for task in tasks}
        own = {task.number for task in tasks[world.rank :: world.size]}
        self._counts = {task.number: task.count for task in tasks if task.number not in own}
        self._looked, self._samples = 0.0, 0

    def samples(self) -> int:
        """Return the number of samples that the others have done; it may be a few seconds old.

        Raises ShardioError if one of them has failed or died.
        """
        if self._size > 1 and time.monotonic() > self._looked + _LOOK_SECONDS:
            self._look()
        return self._samples

    def wait(self, report: Callable[[int], None]) -> None:
        """Wait until all shards have records and all ranks are over, for they must see the plan before it is removed.

        Args:
            report: called with the number of samples that the others have done.

        Raises ShardioError if a rank has failed, died or not begun, PipelineStalled if no rank makes progress for long.
        """
        begun = changed = time.monotonic()
        before = (-1, -1)
        while self._size > 1:
            done, states = self._look()
            waited = time.monotonic() - begun
            here = [rank for rank in range(1, self._size) if rank in states]
            if self._all <= {*done}:
                gone = (states[rank].over or states[rank].lost for rank in here)
                if (len(here) == self._size - 1 and all(gone)) or waited > BEGIN_SECONDS:
                    return
            elif waited > BEGIN_SECONDS and len(here) < self._size - 1:
                rank = next(rank for rank in range(1, self._size) if rank not in here)
                raise ShardioError(f"rank {rank} of {self._size} has not begun for {BEGIN_SECONDS:.0f} s")
            report(self._samples)
            state = (len(done), self._samples)
            if state != before:
                changed, before = time.monotonic(), state
            elif time.monotonic() - changed > STALL_SECONDS:
                finished = f"{len(done)} of {len(self._all)} shards are finished"
                raise PipelineStalled(f"{self._out.path}: {finished}, with no progress for {STALL_SECONDS:.0f} s")
            time.sleep(self._out.poll_seconds)

    def _look(self) -> tuple[Collection[int], Mapping[int, RankState]]:
        done, states = self._look_at_all()
        for rank, state in states.items():
            if state.error:
                raise ShardioError(f"rank {rank}: {state.error}")
            if state.lost and not self._all <= {*done}:
                raise ShardioError(f"rank {rank} of {self._size} {state.lost}")
        recorded = sum(self._counts.get(number, 0) for number in done)
        self._looked = time.monotonic()
        self._samples = max(recorded, sum(state.samples for state in states.values()))
        return done, states


def wait_for_leader(
    out: Output, context: TaskContext, world: World, expected: Mapping[str, Any], *, keep: bool
) -> tuple[Run, Mapping[str, Any]] | Manifest:
    """Wait until the first rank of this job works in a run, and take part in it.

    A plan that is there from the beginning may be that of a dead job: it counts once the first rank is seen at work.

    Args:
        out, context, world: the output, what the tasks share, and this rank.
        expected: the plan of this rank.
        keep: whether the first rank may find that the dataset is there, and begin nothing.

    Returns:
        The run and its plan, or the manifest of that dataset.

    Raises ConfigError if the plan differs from `expected`, PipelineStalled if there is none in time.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    first: dict[str, object] | None = None
    while True:
        seen: dict[str, object] = {}
        plans = out.plans()
        if keep and not plans and (there := out.finished(expected)) is not None:
            return there
        for name, plan in plans.items():
            if plan.get("job") != expected["job"]:
                continue
            seen[name], certain = out.pulse(name, plan)
            if certain or (first is not None and first.get(name) != seen[name]):
                run = out.run(name, context.container, beside=context.beside)
                try:
                    compare(f"{run.path}: rank 0's conversion", plan, expected)
                except ConfigError:
                    with run.working(world.rank):  # or rank 0 would wait for this rank
                        raise
                return run, plan
        first = seen if first is None else first
        if time.monotonic() > deadline:
            raise PipelineStalled(
                f"{out.path}: rank 0 of this job has not begun a conversion within {BEGIN_SECONDS:.0f} s"
            )
        time.sleep(out.poll_seconds)


def wait_for_end(out: Output, run: Run, world: World) -> None:
    """Wait, as another rank, until the first rank has ended the conversion; ShardioError if that failed or died."""
    look = run.leader()
    while run.exists():
        state = look()
        if state is not None and (state.error or state.lost) and run.exists():
            if state.error:
                raise ShardioError(f"rank 0: {state.error}")
            raise ShardioError(f"rank 0 of {world.size} {state.lost}")
        time.sleep(out.poll_seconds)
