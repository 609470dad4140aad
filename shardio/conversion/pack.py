"""Make a dataset shard by shard: begin or resume the work, distribute it, watch it, and publish the result."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from ..dataset import bad_budget
from ..dataset.output_directory import OutputDirectory, claim
from ..dataset.shard_writer import WrittenShard
from ..dataset.writer import describe, finish_dataset
from ..errors import ConfigError, Option, SourceError, TooManyBad
from ..foreign.names import printable
from ..format import manifest
from ..order.world import World
from ..stores.url import Url
from . import ranks
from .dask_runner import on_dask
from .journal import LOCK, Journal, Lock, Record, compare, remove_retired
from .runners import Progress, Runner, RunnerCallbacks, in_processes, silent
from .skipped import Skipped
from .source import file_states
from .tasks import ShardTask, TaskContext, TaskResult, run_shard_task

OnError: TypeAlias = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """A dataset that a conversion wrote.

    Attributes:
        path: its directory, or its URL.
        manifest: its manifest.
        skipped: the samples that were left out; on the first rank only.
        rotated: the number of images that an EXIF tag rotates or mirrors; on the first rank only.
        rounded: by field, the most by which `dtype` has changed a number; on the first rank only.
    """

    path: Path | Url
    manifest: manifest.Manifest
    skipped: tuple[Skipped, ...] = ()
    rotated: int = 0
    rounded: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Options for carrying out the work, which change no byte of the result. `conversion.convert` explains each.

    Raises ConfigError for values that break a rule.
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
            raise ConfigError("{workers} must be at least 1, got {}", self.workers)
        if self.on_error not in get_args(OnError):
            raise ConfigError("{on_error} must be 'raise' or 'skip', got {!r}", self.on_error)
        bad_budget.check_max_bad(self.max_bad)
        if self.dask is not None and self.world.size > 1:
            raise ConfigError(
                "{dask} and ranks cannot share the same work: got {} in a job of {} ranks",
                Option("dask", self.dask),
                self.world.size,
            )

    def runner(self) -> Runner:
        """Return the runner of this process's tasks."""
        return in_processes(self.workers) if self.dask is None else on_dask(self.dask, self.workers)


@final
class Tally:
    """Counts the results of a conversion, and describes the dataset that they make, wherever its shards go.

    Args:
        context: what the tasks share.
        tasks: a task for each shard.
        plan: JSON values that distinguish this conversion from others.
        options: how the work is carried out.
        watches: whether to see to it that the source's files stay as they are.
    """

    def __init__(
        self,
        context: TaskContext,
        tasks: Sequence[ShardTask],
        plan: Mapping[str, Any],
        options: PackOptions,
        *,
        watches: bool = True,
    ) -> None:
        self._context, self._plan, self._options = context, plan, options
        self.total = sum(task.count for task in tasks)
        self._states = file_states(context.source) if watches else {}
        self._skipped = 0

    def report(self, done: int) -> None:
        """Report progress."""
        self._options.progress(self._context.doing, min(done, self.total), self.total)

    def on_result(self, result: TaskResult) -> None:
        """Count the samples that a task has left out; TooManyBad if there are too many by now."""
        self._skipped += result.skipped
        if result.first_skipped is not None and self._context.knows_samples:
            self._check_budget(self._skipped, self.total, result.first_skipped)

    def check_unchanged(self) -> None:
        """Raise SourceError if a file of the source has changed meanwhile: its samples may be of two versions."""
        now = file_states(self._context.source)
        for path in (path for path, state in self._states.items() if now[path] != state):
            raise SourceError("{} changed while it was converted: start over with {overwrite}", printable(path))

    def publish(self, records: Iterable[Record], finish: Callable[[manifest.Manifest], None]) -> WrittenDataset:
        """Describe the shards, all of which are written, and have `finish` write the manifest.

        Raises TooManyBad, and SourceError if no sample is left.
        """
        skipped: list[Skipped] = []
        samples = rotated = 0
        rounded: dict[str, float] = {}

        def written() -> Iterator[WrittenShard]:
            nonlocal samples, rotated
            for record in records:
                rotated += record.rotated
                for name, change in record.rounded.items():
                    rounded[name] = max(change, rounded.get(name, 0))
                skipped.extend(record.skipped)
                samples += record.shard.samples
                if record.shard.samples:
                    yield record.shard
            if not samples:
                raise SourceError(f"all {len(skipped)} samples are bad; the first: {skipped[0].reason}")
            if skipped:
                self._check_budget(len(skipped), samples + len(skipped), skipped[0])

        context, source = self._context, self._context.source
        completed = describe(
            context.container,
            source.fields,
            written(),
            source.metadata,
            adopted=context.adopted,
            conversion=self._plan,
            has_sums=True,
        )
        finish(completed)
        return WrittenDataset(context.out.path, completed, tuple(skipped), rotated, rounded)

    def check(self, record: Record | None, number: int, place: object) -> Record:
        """Return the record of shard `number`; SourceError if there is none at `place`, or it is of other fields."""
        if record is None:
            raise SourceError(f"{place}: the record of shard {number} is missing")
        images = {name for name, field in self._context.source.fields.items() if field.kind == "image"}
        if record.shard.samples and record.shard.image_shapes.keys() != images:
            raise SourceError(f"{place}: the record of shard {number} is of other fields")
        return record

    def _check_budget(self, skipped: int, samples: int, example: Skipped) -> None:
        """Raise TooManyBad if more samples are bad than `max_bad` allows."""
        most = self._options.max_bad
        if skipped > (allowed := bad_budget.allowance(most, samples)):
            raise TooManyBad(
                "{} of {} samples are bad, {} allows {}, {} would allow all; one of them: {}",
                skipped,
                samples,
                Option("max_bad", most),
                allowed,
                Option("max_bad", samples),
                example.reason,
            )


def pack(
    context: TaskContext, tasks: Sequence[ShardTask], plan: Mapping[str, Any], options: PackOptions
) -> WrittenDataset:
    """Carry out all tasks and make one dataset of the shards.

    With `resume`, a dataset that this conversion has finished before is returned as it is.

    Args:
        context: what the tasks share.
        tasks: a task for each shard.
        plan: JSON values that distinguish this conversion from others.
        options: how to carry out the work.

    Raises ConfigError if another conversion made the dataset or the journal at the output, BadSample, TooManyBad and
    OSError.
    """
    if not options.world.rank:
        remove_retired(context.local)
    finished = _finished_before(context, plan, options)
    if finished is not None:
        return WrittenDataset(context.local.path, finished)
    return _PackRun(context, tasks, {"job": ranks.job(), **plan}, options).run()


def _finished_before(context: TaskContext, plan: Mapping[str, Any], options: PackOptions) -> manifest.Manifest | None:
    """Return the manifest of the dataset that this conversion has finished before, None if there is work to do."""
    out = context.local.path
    unfinished = Journal(context.local, context.container).exists()
    if not options.resume or options.overwrite or not (out / manifest.FILE_NAME).exists() or unfinished:
        return None
    finished = manifest.load(out)
    compare(f"{out}: the existing dataset", finished.conversion, plan)
    return finished


@final
class _PackRun:
    """One rank's part in a conversion."""

    def __init__(
        self, context: TaskContext, tasks: Sequence[ShardTask], plan: dict[str, Any], options: PackOptions
    ) -> None:
        self._context, self._tasks, self._plan, self._options = context, tasks, plan, options
        self._out = context.local
        self._journal = Journal(self._out, context.container)
        own = {name: value for name, value in plan.items() if name != "job"}
        self._tally = Tally(context, tasks, own, options, watches=not options.world.rank)

    def run(self) -> WrittenDataset:
        if self._options.world.rank:
            return self._follow()
        return self._lead()

    def _follow(self) -> WrittenDataset:
        """Work as a rank other than the first."""
        ranks.wait_for_leader(self._journal, self._options.world, self._plan)
        self._join_run()
        self._run_tasks()
        return WrittenDataset(self._out.path, ranks.wait_for_end(self._journal, self._out.path))

    def _lead(self) -> WrittenDataset:
        """Begin the journal, work, and publish the dataset: the first rank's part."""
        overwrite, resume, beside = self._options.overwrite, self._options.resume, self._context.beside
        anew = not self._journal.exists()
        missing = [path for path in (self._out.path, *self._out.path.parents) if not path.exists()]
        final, folder = claim(self._out, overwrite=overwrite, resume=resume, beside=beside)
        lock = Lock(folder, LOCK, "another conversion")
        retired, emptied = "", list[Path]()
        try:
            self._journal.begin(self._plan, lock, resume=resume)
            self._join_run()
            self._run_tasks()
            self._tally.check_unchanged()
            place = OutputDirectory(self._journal.open_shards(), final, beside)
            written = self._tally.publish(self._records(), lambda completed: finish_dataset(place, completed))
            retired = self._journal.retire()
            return written
        except Exception as error:
            if isinstance(error, TooManyBad):
                error.skipped = self._skipped_so_far()
            if anew and self._options.world.size == 1:
                retired = self._retire_empty()
                emptied = missing if retired else []
            raise
        finally:
            lock.release()
            # After the lock's release: some network file systems keep a folder as long as a file in it is open.
            if retired:
                with contextlib.suppress(OSError):
                    final.remove(retired)
                    for path in emptied:
                        path.rmdir()

    def _retire_empty(self) -> str:
        """Retire the journal of a conversion that failed if no shard is finished, "" if one is: it may resume."""
        with contextlib.suppress(OSError):
            return "" if self._journal.run and self._journal.done() else self._journal.retire()
        return ""

    def _join_run(self) -> None:
        """Bind the tasks to the run that the journal is in."""
        self._context = replace(self._context, run=self._journal.run)

    def _run_tasks(self) -> None:
        """Carry out this rank's tasks; the first rank then waits for the others."""
        world, run = self._options.world, self._options.runner()
        if world.size == 1:
            run(run_shard_task, self._context, self._tasks, RunnerCallbacks(self._tally.report, self._tally.on_result))
            return
        tasks = self._tasks[world.rank :: world.size]
        heartbeat = ranks.RankHeartbeat(self._journal, world)

        def on_progress(done: int) -> None:
            heartbeat.beat(done)
            if not world.rank:
                self._tally.report(done + heartbeat.done_by_others())

        try:
            if tasks:
                run(run_shard_task, self._context, tasks, RunnerCallbacks(on_progress, self._tally.on_result))
            count = sum(task.count for task in tasks)
            heartbeat.beat(count, over=True)
            if not world.rank:
                ranks.wait_for_others(
                    self._journal, heartbeat, len(self._tasks), lambda others: self._tally.report(count + others)
                )
                self._tally.report(self._tally.total)
        except BaseException as error:
            heartbeat.beat(0, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            heartbeat.release()

    def _skipped_so_far(self) -> tuple[Skipped, ...]:
        records = (self._journal.read(number) for number in sorted(self._journal.done()))
        return tuple(bad for record in records if record for bad in record.skipped)

    def _records(self) -> Iterator[Record]:
        for task in self._tasks:
            yield self._tally.check(self._journal.read(task.number), task.number, self._journal.path)
