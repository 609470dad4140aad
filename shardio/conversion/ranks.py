"""One conversion by all ranks of a job: each takes its part of the shards, the first one leads.

Ranks meet in the journal's folder alone: any launcher will do (`srun`, `torchrun`, `mpirun`), no network is needed.
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
    """What the ranks of one job have in common, and those of no other job."""
    return " ".join(f"{name}={os.environ[name]}" for name in _JOB if name in os.environ)


@final
class RankHeartbeat:
    """A rank's place in the journal: it tells how far it is, and knows how far the others are.

    Args:
        journal: of the conversion.
        world: this rank and how many there are.
    """

    def __init__(self, journal: Journal, world: World) -> None:
        self._journal, self._world = journal, world
        self._lock = Lock(self._path(world.rank), f"rank {world.rank} of this job")
        self.tell(0)

    def _path(self, rank: int) -> Path:
        return self._journal.folder / f"rank-{rank:05d}"

    def tell(self, samples: int, *, over: bool = False, error: str = "") -> None:
        """This rank has done so many samples, and is at work, over, or has failed."""
        self._lock.write(json.dumps({"samples": samples, "over": over, "error": error}))

    def leave(self) -> None:
        """Lets go of this rank's place."""
        self._lock.release()

    def all_over(self) -> bool:
        """Whether all other ranks have come, and have done their part."""
        for rank in set(range(self._world.size)) - {self._world.rank}:
            try:
                if not json.loads(self._path(rank).read_bytes())["over"]:
                    return False
            except (FileNotFoundError, ValueError):  # not there yet, or in the middle of a word
                return False
        return True

    def others(self) -> int:
        """Samples that the other ranks have done; ShardioError if one has failed or died."""
        total = 0
        for rank in set(range(self._world.size)) - {self._world.rank}:
            held = is_held(self._path(rank))  # before its word is read: what it wrote before it let go is there then
            try:
                word = json.loads(self._path(rank).read_bytes())
            except FileNotFoundError:  # has not begun
                continue
            except ValueError:  # in the middle of a word
                word = {"samples": 0, "over": False, "error": ""}
            if word["error"]:
                raise ShardioError(f"rank {rank}: {word['error']}")
            if held is False and not word["over"]:
                raise ShardioError(f"rank {rank} of {self._world.size} died after {word['samples']} samples")
            total += word["samples"]
        return total


def wait_for_leader(journal: Journal, world: World, expected: dict[str, Any]) -> None:
    """Waits until the leader has written this job's plan; ConfigError if it is not what this rank is to do."""
    deadline = time.monotonic() + BEGIN_SECONDS
    while (found := journal.plan()) is None or found.get("job") != expected["job"]:
        if time.monotonic() > deadline:
            raise PipelineStalled(f"{journal.folder}: rank 0 of this job has not begun within {BEGIN_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    journal.run = str(found["run"])
    for key, value in expected.items():
        if found.get(key) != value:
            told = f"{journal.folder}: rank 0 has {key} {found.get(key)!r}, this rank {value!r}"
            desk = RankHeartbeat(journal, world)
            desk.tell(0, error=told)  # or rank 0 would wait for it
            desk.leave()
            raise ConfigError(told)


def wait_for_others(journal: Journal, desk: RankHeartbeat, shards: int, report: Callable[[int], None]) -> None:
    """The leader waits until all shards have records; `report` is told what the others have done.

    It also waits for ranks that have nothing to do: they must see the plan before it is taken away.
    """
    begun = changed = time.monotonic()
    before = (-1, -1)
    while (state := (len(journal.done()), desk.others()))[0] < shards or not desk.all_over():
        if state[0] >= shards and time.monotonic() - begun > BEGIN_SECONDS:
            return
        report(state[1])
        if state != before:
            changed, before = time.monotonic(), state
        if time.monotonic() - changed > STALL_SECONDS:
            stand = f"{state[0]} of {shards} shards stand"
            raise PipelineStalled(f"{journal.folder}: {stand}, and no more have come for {STALL_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def wait_for_end(journal: Journal, out: Path) -> manifest.Manifest:
    """The other ranks wait until the leader has put the dataset in its place; ShardioError if it died before."""
    while journal.folder.exists():
        if is_held(journal.folder / "lock") is False and journal.folder.exists():
            raise ShardioError(f"{out}: rank 0 ended before the dataset was in its place")
        time.sleep(POLL_SECONDS)
    return manifest.load(out)
