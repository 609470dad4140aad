"""One conversion by all ranks of a job: each writes a part of the shards, and the first rank leads.

Ranks communicate through files in the journal's folder alone, so any launcher will do (`srun`, `torchrun`, `mpirun`),
and no network is needed.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from ..errors import ConfigError, PipelineStalled, ShardioError
from ..format import manifest
from ..order.world import World
from .journal import Journal, Lock, is_held

BEGIN_SECONDS = 600.0
STALL_SECONDS = 1800.0
POLL_SECONDS = 0.2

_JOB = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
)  # fmt: skip


def job() -> str:
    """Return a text that identifies this job: all of its ranks share it, and no other job has it."""
    return " ".join(f"{name}={os.environ[name]}" for name in _JOB if name in os.environ)


@final
class RankHeartbeat:
    """A rank's file in the journal: its content states the rank's progress, and its lock that the rank is alive.

    Args:
        journal: the conversion's journal.
        world: this rank and the number of ranks.
    """

    def __init__(self, journal: Journal, world: World) -> None:
        self._journal, self._world = journal, world
        self._lock = Lock(self._path(world.rank), f"rank {world.rank} of this job")
        self.beat(0)

    def _path(self, rank: int) -> Path:
        return self._journal.folder / f"rank-{rank:05d}"

    def beat(self, samples: int, *, over: bool = False, error: str = "") -> None:
        """State that this rank has done `samples` samples, and whether it has finished its part or failed."""
        self._lock.write(json.dumps({"samples": samples, "over": over, "error": error}))

    def release(self) -> None:
        """Release the lock, after the last beat."""
        self._lock.release()

    def all_over(self) -> bool:
        """Return whether all other ranks have begun and finished their parts."""
        for rank in set(range(self._world.size)) - {self._world.rank}:
            try:
                if not json.loads(self._path(rank).read_bytes())["over"]:
                    return False
            except (FileNotFoundError, ValueError):  # not there yet, or half written
                return False
        return True

    def done_by_others(self) -> int:
        """Return the number of samples that the other ranks have done.

        Raises ShardioError if one of them has failed or died.
        """
        total = 0
        for rank in set(range(self._world.size)) - {self._world.rank}:
            held = is_held(self._path(rank))  # first: once the lock is gone, the file is complete
            try:
                state = json.loads(self._path(rank).read_bytes())
            except FileNotFoundError:  # has not begun
                continue
            except ValueError:  # half written
                state = {"samples": 0, "over": False, "error": ""}
            if state["error"]:
                raise ShardioError(f"rank {rank}: {state['error']}")
            if held is False and not state["over"]:
                raise ShardioError(f"rank {rank} of {self._world.size} died after {state['samples']} samples")
            total += state["samples"]
        return total


def wait_for_leader(journal: Journal, world: World, expected: dict[str, Any]) -> None:
    """Wait until the first rank has written this job's plan, and join its run.

    Raises ConfigError if the plan differs from `expected`, PipelineStalled if none comes in time.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while (found := journal.plan()) is None or found.get("job") != expected["job"]:
        if time.monotonic() > deadline:
            raise PipelineStalled(f"{journal.folder}: rank 0 of this job has not begun within {BEGIN_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    journal.join(found.get("run"))
    for key, value in expected.items():
        if found.get(key) != value:
            message = f"{journal.folder}: rank 0 has {key} {found.get(key)!r}, this rank {value!r}"
            heartbeat = RankHeartbeat(journal, world)
            heartbeat.beat(0, error=message)  # or rank 0 would wait for this rank
            heartbeat.release()
            raise ConfigError(message)


def wait_for_others(journal: Journal, heartbeat: RankHeartbeat, shards: int, report: Callable[[int], None]) -> None:
    """Wait, as the first rank, until all shards have records.

    This includes ranks that have nothing to do: they must see the plan before it is removed.

    Args:
        journal: the conversion's journal.
        heartbeat: the heartbeat of this rank.
        shards: the number of shards.
        report: called with the number of samples that the other ranks have done.

    Raises ShardioError if a rank has failed or died, PipelineStalled if no rank makes progress for 30 minutes.
    """
    begun = changed = time.monotonic()
    before = (-1, -1)
    while (state := (len(journal.done()), heartbeat.done_by_others()))[0] < shards or not heartbeat.all_over():
        if state[0] >= shards and time.monotonic() - begun > BEGIN_SECONDS:
            return
        report(state[1])
        if state != before:
            changed, before = time.monotonic(), state
        if time.monotonic() - changed > STALL_SECONDS:
            finished = f"{state[0]} of {shards} shards are finished"
            raise PipelineStalled(f"{journal.folder}: {finished}, with no progress for {STALL_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def wait_for_end(journal: Journal, out: Path) -> manifest.Manifest:
    """Wait, as another rank, until the first rank has put the dataset in its place; return the manifest.

    Raises ShardioError if the first rank died before.
    """
    while journal.folder.exists():
        if is_held(journal.folder / "lock") is False and journal.folder.exists():
            raise ShardioError(f"{out}: rank 0 ended before it had put the dataset in place")
        time.sleep(POLL_SECONDS)
    return manifest.load(out)
