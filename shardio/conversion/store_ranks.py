"""One conversion into a store by all ranks of a job: each writes a part of the shards, and the first rank leads.

They communicate through objects of the journal's run alone, so any launcher will do:

    OUT/.converting/RUN/rank-00003          written anew every few seconds as long as that rank works
    OUT/.converting/RUN/rank-00003.over     written when it has finished its part
    OUT/.converting/RUN/rank-00003.failed   the error that ended it

A store has no locks. So a rank counts as dead once its object has stayed as it is for `SILENT_SECONDS`, and a run that
is there when a rank begins counts as this job's once the first rank is seen at work in it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, final

from ..dataset.output_directory import PLAN
from ..dataset.store_output import RECORD_NAME, StoreOutput
from ..errors import ConfigError, PipelineStalled, ShardioError, StoreError
from ..format.manifest import Manifest
from ..order.world import World
from ..system import background
from .journal import compare
from .ranks import BEGIN_SECONDS, STALL_SECONDS
from .store_journal import StoreJournal, object_of_rank
from .tasks import ShardTask

SILENT_SECONDS = 300.0
POLL_SECONDS = 2.0
_BEAT_SECONDS = 15.0
_LEADERS_BEAT_SECONDS = 2.0  # others wait for it


@contextmanager
def at_work(journal: StoreJournal, world: World) -> Iterator[None]:
    """Say in the store that this rank works as long as the `with` block runs, and then how it ended."""
    heartbeat = _Heartbeat(journal, world)
    try:
        yield
    except BaseException as error:
        with suppress(StoreError):  # the error is what counts
            heartbeat.end(error)
        raise
    heartbeat.end()


@final
class _Heartbeat:
    """Says from a thread that this rank works, until `end`."""

    def __init__(self, journal: StoreJournal, world: World) -> None:
        self._journal, self._name = journal, object_of_rank(world.rank)
        self._seconds = _BEAT_SECONDS if world.rank else _LEADERS_BEAT_SECONDS
        self._lock, self._count, self._stop = threading.Lock(), 0, SimpleQueue[None]()
        self._beat()
        background.start(self._keep_beating, "shardio heartbeat")

    def end(self, error: BaseException | None = None) -> None:
        """Say that this rank has finished its part, or what ended it."""
        self._stop.put(None)
        with self._lock:  # what is written after the run was removed would stay
            text = "" if error is None else f"{type(error).__name__}: {error}"
            self._journal.write_note(f"{self._name}.{'over' if error is None else 'failed'}", text)

    def _keep_beating(self) -> None:
        while True:
            try:
                return self._stop.get(timeout=self._seconds)
            except Empty:
                with self._lock, suppress(StoreError):  # the next one may come through
                    if self._stop.empty():
                        self._beat()

    def _beat(self) -> None:
        self._count += 1
        self._journal.write_note(self._name, f"{self._count}")


@final
class OtherRanks:
    """The first rank's view of the others.

    Args:
        journal: the conversion's journal.
        world: this rank and the number of ranks.
        tasks: the tasks of all ranks.
    """

    def __init__(self, journal: StoreJournal, world: World, tasks: Sequence[ShardTask]) -> None:
        self._journal, self._size = journal, world.size
        self._all = {task.number for task in tasks}
        own = {task.number for task in tasks[world.rank :: world.size]}
        self._counts = {task.number: task.count for task in tasks if task.number not in own}
        self._seen: dict[int, tuple[str | None, float]] = {}
        self._looked, self._samples = 0.0, 0

    def samples(self) -> int:
        """Return the number of samples that the others have done; it may be a few seconds old.

        Raises ShardioError if one of them has failed.
        """
        if time.monotonic() > self._looked + POLL_SECONDS:
            self._look()
        return self._samples

    def wait(self, report: Callable[[int], None]) -> None:
        """Wait until all shards have records and all ranks are over, for they must see the plan before it is removed.

        Args:
            report: called with the number of samples that the others have done.

        Raises ShardioError if a rank has failed or fallen silent, PipelineStalled if no rank makes progress for long.
        """
        begun = changed = time.monotonic()
        before = -1
        while True:
            done, over = self._look()
            report(self._samples)
            now = time.monotonic()
            if done >= self._all and (over or now - begun > BEGIN_SECONDS):
                return
            if not done >= self._all:
                self._check_alive(now)
            if len(done) != before:
                changed, before = now, len(done)
            elif now - changed > STALL_SECONDS:
                finished = f"{len(done)} of {len(self._all)} shards are finished"
                raise PipelineStalled(f"{self._journal.path}: {finished}, with no progress for {STALL_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _look(self) -> tuple[set[int], bool]:
        """Return the shards that have records, and whether all other ranks are over."""
        states, now = self._journal.states(), time.monotonic()
        over = True
        for rank in range(1, self._size):
            name = object_of_rank(rank)
            if f"{name}.failed" in states:
                raise ShardioError(f"rank {rank}: {self._journal.read_note(f'{name}.failed')}")
            state = f"{name}.over" if f"{name}.over" in states else states.get(name)
            if rank not in self._seen or self._seen[rank][0] != state:
                self._seen[rank] = state, now
            over &= f"{name}.over" in states
        done = {int(found[1]) for name in states if (found := RECORD_NAME.fullmatch(name))}
        self._looked, self._samples = now, sum(self._counts.get(number, 0) for number in done)
        return done, over

    def _check_alive(self, now: float) -> None:
        for rank, (state, since) in self._seen.items():
            limit = BEGIN_SECONDS if state is None else SILENT_SECONDS
            if state != f"{object_of_rank(rank)}.over" and now - since > limit:
                what = "has not begun" if state is None else "has not been heard from"
                raise ShardioError(f"rank {rank} of {self._size} {what} for {limit:.0f} s")


def wait_for_leader(
    journal: StoreJournal, world: World, expected: Mapping[str, Any], finished: Callable[[], Manifest | None]
) -> dict[str, Any] | Manifest:
    """Wait until the first rank of this job works in a run, and have `journal` join it.

    Args:
        journal: the conversion's journal.
        world: this rank and the number of ranks.
        expected: the plan of this rank.
        finished: returns the manifest if the first rank may find that the dataset is there, and begin nothing.

    Returns:
        The plan of the run, or that manifest.

    Raises ConfigError if the plan differs from `expected`, PipelineStalled if there is none in time.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    first: dict[str, tuple[Any, Any]] | None = None
    while True:
        signs = {}
        plans = journal.plans()
        if not plans and (there := finished()) is not None:
            return there
        for run, plan in plans.items():
            if plan.get("job") != expected["job"]:
                continue
            signs[run] = plan.get("begun"), journal.in_run(run).state(object_of_rank(0))
            if first is not None and first.get(run) != signs[run]:
                journal.run = run
                _check(journal, world, plan, expected)
                return plan
        first = signs if first is None else first
        if time.monotonic() > deadline:
            raise PipelineStalled(f"{journal.path}: rank 0 of this job has not begun within {BEGIN_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _check(journal: StoreJournal, world: World, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    try:
        compare(f"{journal.path}: rank 0's conversion", found, expected)
    except ConfigError as error:
        _Heartbeat(journal, world).end(error)  # or rank 0 would wait for this rank
        raise


def wait_for_end(journal: StoreJournal, out: StoreOutput, replaced: object) -> Manifest:
    """Wait, as another rank, until the first rank has written the manifest; return that.

    Args:
        journal: the conversion's journal.
        out: the output.
        replaced: the state of the manifest that the new one replaces.

    Raises ShardioError if the first rank has failed or fallen silent.
    """
    leader = object_of_rank(0)
    state, changed = journal.state(leader), time.monotonic()
    while journal.state(PLAN) is not None:
        if journal.state(f"{leader}.failed") is not None:
            raise ShardioError(f"rank 0: {journal.read_note(f'{leader}.failed')}")
        now, before = time.monotonic(), state
        state = journal.state(leader)
        if state != before:
            changed = now
        elif now - changed > SILENT_SECONDS:
            raise ShardioError(f"{out.url}: rank 0 has not been heard from for {SILENT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    info, found = out.manifest_info(), out.manifest()
    if info is None or found is None or info.etag == replaced:
        raise ShardioError(f"{out.url}: rank 0 ended before it had written the manifest")
    return found
