"""The whole of a job that makes a dataset shard by shard: begun or gone on with, shared, watched, ended."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from ..dataset.output_directory import OutputDirectory, claim
from ..dataset.shard_writer import WrittenShard
from ..dataset.writer import assemble
from ..errors import ConfigError, SourceError, TooManyBad
from ..format import manifest
from ..loader import quarantine
from ..order.world import World
from . import ranks
from .cluster import on_dask
from .journal import Journal, Lock, Skipped, compare
from .runners import Runner, Watch, in_processes
from .work import Done, Settings, Task, write

OnError: TypeAlias = Literal["raise", "skip"]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called now and then with what is being done, samples done, samples in all."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion made."""

    manifest: manifest.Manifest
    skipped: tuple[Skipped, ...]


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a job is done; it changes no byte of what is made. See `convert.convert`, which has the same words.

    Raises ConfigError for what cannot be.
    """

    workers: int = 1
    dask: str | None = None
    world: World = field(default_factory=World)
    on_error: OnError = "raise"
    max_bad: float = 0.01
    resume: bool = False
    overwrite: bool = False
    progress: Progress = silent

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {self.workers}")
        if self.on_error not in get_args(OnError):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        quarantine.check_most(self.max_bad)
        if self.dask is not None and self.world.size > 1:
            ranks_too = f"got dask={self.dask!r} in a job of {self.world.size} ranks"
            raise ConfigError(f"dask and ranks are two ways to share work: {ranks_too}")

    def runner(self) -> Runner:
        """Who does the tasks of this process."""
        return in_processes(self.workers) if self.dask is None else on_dask(self.dask, self.workers)


def standing(settings: Settings, plan: Mapping[str, Any], how: PackOptions) -> manifest.Manifest | None:
    """The dataset that this conversion has made already, if there is nothing to resume.

    Raises ConfigError if another conversion has made it.
    """
    journal = Journal(settings.out, settings.container)
    stands = (settings.out / manifest.FILE_NAME).exists()
    if not how.resume or how.overwrite or not stands or journal.folder.exists():
        return None
    made = manifest.load(settings.out)
    compare(f"{settings.out}: the dataset that stands there", made.conversion, plan)
    return made


def pack(settings: Settings, tasks: Sequence[Task], plan: dict[str, Any], how: PackOptions) -> Conversion:
    """Does all tasks and makes one dataset of the shards.

    Args:
        settings: what the tasks share.
        tasks: a shard each.
        plan: what tells this job from another: JSON.
        how: who works.
    """
    return _Pack(settings, tasks, {"job": ranks.job(), **plan}, how).run()


@final
class _Pack:
    def __init__(self, settings: Settings, tasks: Sequence[Task], plan: dict[str, Any], how: PackOptions) -> None:
        self._settings, self._tasks, self._plan, self._how = settings, tasks, plan, how
        self._total = sum(task.count for task in tasks)
        self._journal = Journal(settings.out, settings.container)
        self._skipped = 0
        self._retired: Path | None = None

    def run(self) -> Conversion:
        """As the first rank, which leads, or as another one."""
        if self._how.world.rank:
            ranks.wait_for_leader(self._journal, self._how.world, self._plan)
            self._join()
            self._do()
            return Conversion(ranks.wait_for_end(self._journal, self._settings.out), ())
        how = self._how
        place = claim(self._settings.out, overwrite=how.overwrite, resume=how.resume, beside=self._settings.beside)
        lock = Lock(self._journal.folder / "lock", "another conversion")
        try:
            self._journal.begin(self._plan, resume=how.resume)
            self._join()
            self._do()
            return self._end(replace(place, directory=self._journal.shards))
        except TooManyBad as error:
            error.skipped = self._left_out()
            raise
        finally:
            lock.release()
            # Behind the lock's release: some network file systems keep a folder as long as a file in it is open.
            if self._retired is not None:
                shutil.rmtree(self._retired, ignore_errors=True)

    def _join(self) -> None:
        """All tasks are of the run that the journal is of."""
        self._settings = replace(self._settings, run=self._journal.run)

    def _do(self) -> None:
        """This rank's part of the work; the first rank then waits for the others."""
        world, run = self._how.world, self._how.runner()
        if world.size == 1:
            run(write, self._settings, self._tasks, Watch(self._report, self._take))
            return
        own = self._tasks[world.rank :: world.size]
        desk = ranks.RankHeartbeat(self._journal, world)

        def told(done: int) -> None:
            desk.tell(done)
            if not world.rank:
                self._report(done + desk.others())

        try:
            if own:
                run(write, self._settings, own, Watch(told, self._take))
            count = sum(task.count for task in own)
            desk.tell(count, over=True)
            if not world.rank:
                ranks.wait_for_others(
                    self._journal, desk, len(self._tasks), lambda others: self._report(count + others)
                )
                self._report(self._total)
        except BaseException as error:
            desk.tell(0, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            desk.leave()

    def _report(self, done: int) -> None:
        self._how.progress(self._settings.doing, min(done, self._total), self._total)

    def _take(self, done: Done) -> None:
        """A shard is finished."""
        self._skipped += done.skipped
        if done.first is not None and self._settings.knows_samples:
            self._check(self._skipped, self._total, done.first)

    def _check(self, skipped: int, samples: int, one: Skipped) -> None:
        """Raises TooManyBad if more is left out than allowed."""
        most = self._how.max_bad
        if skipped > (allowed := quarantine.allowance(most, samples)):
            raise TooManyBad(
                f"{skipped} of {samples} samples are bad, max_bad={most:g} allows {allowed}; one of them: {one.reason}"
            )

    def _left_out(self) -> tuple[Skipped, ...]:
        """What the records say so far."""
        records = (self._journal.read(number) for number in sorted(self._journal.done()))
        return tuple(bad for record in records if record for bad in record.skipped)

    def _records(self) -> Iterator[Any]:
        for task in self._tasks:
            record = self._journal.read(task.number)
            if record is None:
                raise SourceError(f"{self._journal.folder}: the record of shard {task.number} is gone")
            yield record

    def _end(self, place: OutputDirectory) -> Conversion:
        """All shards stand: they become a dataset."""
        skipped: list[Skipped] = []
        samples = 0

        def written() -> Iterator[WrittenShard]:
            nonlocal samples
            for record in self._records():
                skipped.extend(record.skipped)
                samples += record.shard.samples
                if record.shard.samples:
                    yield record.shard
            if not samples:
                raise SourceError(f"all {len(skipped)} samples are bad; the first: {skipped[0].reason}")
            if skipped:
                self._check(len(skipped), samples + len(skipped), skipped[0])

        source = self._settings.source
        adopted = self._settings.adopted
        plan = {name: value for name, value in self._plan.items() if name != "job"}
        container, fields, metadata = self._settings.container, source.fields, source.metadata
        made = assemble(place, container, fields, written(), metadata, adopted=adopted, conversion=plan)
        self._retired = self._journal.retire()
        return Conversion(made, tuple(skipped))
