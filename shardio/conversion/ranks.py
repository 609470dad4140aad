"""One conversion by all ranks of a job: each writes a part of the shards, and the first rank leads.

Ranks communicate through files in the journal's folder alone, so any launcher will do (`srun`, `torchrun`, `mpirun`),
and no network is needed.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import msgspec

from ..errors import ConfigError, PipelineStalled, ShardioError
from ..format import manifest
from ..order.world import World
from .journal import LOCK, Journal, Lock, first_line, is_held

BEGIN_SECONDS = 600.0
STALL_SECONDS = 1800.0
POLL_SECONDS = 0.2
_MOST_BYTES = 1 << 20

_JOB = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
)  # fmt: skip


def job() -> str:
    """Return a text that identifies this job: all of its ranks share it, and no other job has it."""
    return " ".join(f"{name}={os.environ[name]}" for name in _JOB if name in os.environ)


class _Beat(msgspec.Struct):
    """The content of a rank's file."""

    samples: int = 0
    over: bool = False
    error: str = ""


@final
class RankHeartbeat:
    """A rank's file in the journal: its content states the rank's progress, and its lock that the rank is alive.

    Args:
        journal: the conversion's journal.
        world: this rank and the number of ranks.
    """

    def __init__(self, journal: Journal, world: World) -> None:
        self._folder, self._world = journal.open(), world
        self._lock = Lock(self._folder, _file_of(world.rank), f"rank {world.rank} of this job")
        self.beat(0)

    def beat(self, samples: int, *, over: bool = False, error: str = "") -> None:
        """State that this rank has done `samples` samples, and whether it has finished its part or failed."""
        self._lock.write(msgspec.json.encode(_Beat(samples, over, error)).decode())

    def release(self) -> None:
        """Release the lock, after the last beat."""
        self._lock.release()

    def all_over(self) -> bool:
        """Return whether all other ranks have begun and finished their parts."""
        return all(beat is not None and beat.over for beat in map(self._beat_of, self._others()))

    def done_by_others(self) -> int:
        """Return the number of samples that the other ranks have done.

        Raises ShardioError if one of them has failed or died.
        """
        total = 0
        for rank in self._others():
            beat = self._beat_of(rank)
            if beat is None:
                continue
            ended = is_held(self._folder, _file_of(rank)) is False  # it had the lock when it wrote its first line
            if ended:
                beat = self._beat_of(rank) or beat
            if beat.error:
                raise ShardioError(f"rank {rank}: {beat.error}")
            if ended and not beat.over:
                raise ShardioError(f"rank {rank} of {self._world.size} died after {beat.samples} samples")
            total += beat.samples
        return total

    def _others(self) -> list[int]:
        return [rank for rank in range(self._world.size) if rank != self._world.rank]

    def _beat_of(self, rank: int) -> _Beat | None:
        """Return what a rank has stated last; None if it has not begun, or has not got its lock yet."""
        try:
            line = first_line(self._folder.read(_file_of(rank), _MOST_BYTES))
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(line, type=_Beat) if line else None
        except (msgspec.MsgspecError, UnicodeDecodeError):  # who holds the lock, or half written
            return _Beat()


def _file_of(rank: int) -> str:
    return f"rank-{rank:05d}"


def wait_for_leader(journal: Journal, world: World, expected: dict[str, Any]) -> None:
    """Wait until the first rank has written this job's plan, and join its run.

    A plan that is there from the beginning may be that of a dead job: it counts once the first rank is seen to lead it.

    Raises ConfigError if the plan differs from `expected`, PipelineStalled if none comes in time.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    first = found = journal.plan()
    while found is None or found.get("job") != expected["job"] or (found == first and not journal.is_led(found)):
        if time.monotonic() > deadline:
            raise PipelineStalled(f"{journal.path}: rank 0 of this job has not begun within {BEGIN_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
        found = journal.plan()
    journal.join(found.get("run"))
    for key, value in expected.items():
        if found.get(key) != value:
            message = f"{journal.path}: rank 0 has {key} {found.get(key)!r}, this rank {value!r}"
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
            raise PipelineStalled(f"{journal.path}: {finished}, with no progress for {STALL_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def wait_for_end(journal: Journal, out: Path) -> manifest.Manifest:
    """Wait, as another rank, until the first rank has put the dataset in its place; return the manifest.

    Raises ShardioError if the first rank died before.
    """
    while journal.exists():
        with contextlib.suppress(FileNotFoundError):  # put in place meanwhile
            if is_held(journal.open(), LOCK) is False and journal.exists():
                raise ShardioError(f"{out}: rank 0 ended before it had put the dataset in place")
        time.sleep(POLL_SECONDS)
    return manifest.load(out)
