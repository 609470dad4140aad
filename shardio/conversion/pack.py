"""Make a dataset shard by shard: begin or resume the work, distribute it, watch it, and publish the result."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from ..errors import ConfigError, SourceError, TooManyBad
from ..foreign.names import printable
from ..format import manifest
from ..loader import quarantine
from ..order.world import World
from ..output.base import Lead, Output, Run
from ..output.describe import describe
from ..output.records import Record, Skipped
from ..output.shard_writer import WrittenShard
from ..stores.url import Url
from . import ranks
from .dask_runner import on_dask
from .runners import Progress, Runner, RunnerCallbacks, in_processes, in_threads, silent
from .source import file_states
from .tasks import ShardTask, ShardWork, TaskContext, TaskResult, run_shard_task

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
    threads: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {self.workers}")
        if self.on_error not in get_args(OnError):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        quarantine.check_max_bad(self.max_bad)
        if self.dask is not None and self.world.size > 1:
            ranks_too = f"got dask={self.dask!r} in a job of {self.world.size} ranks"
            raise ConfigError(f"dask and ranks cannot share the same work: {ranks_too}")

    def runner(self) -> Runner:
        """Return the runner of this process's tasks; with `threads`, its workers are threads."""
        if self.threads:
            return in_threads(self.workers)
        return in_processes(self.workers) if self.dask is None else on_dask(self.dask, self.workers)


def pack(
    out: Output,
    context: TaskContext,
    tasks: Sequence[ShardTask],
    plan: Mapping[str, Any],
    options: PackOptions,
    *,
    check: Callable[[], None] | None = None,
) -> WrittenDataset:
    """Carry out all tasks and make one dataset of the shards.

    With `resume`, a dataset that this conversion has finished before is returned as it is.

    Args:
        out: the output.
        context: what the tasks share.
        tasks: a task for each shard.
        plan: JSON values that distinguish this conversion from others.
        options: how to carry out the work.
        check: raises an error if the source has changed, in ways that the states of its files do not tell.

    Raises ConfigError for a dataset or an unfinished conversion at the output that `options` do not provide for,
    ObjectChanged if another process has made a dataset there meanwhile; BadSample, TooManyBad, OSError and StoreError.
    """
    world, wanted = options.world, {"job": ranks.job(), **plan}
    if world.rank:
        return _follow(out, context, tasks, wanted, options)
    begun = out.begin(
        wanted,
        container=context.container,
        beside=context.beside,
        resume=options.resume,
        overwrite=options.overwrite,
    )
    if isinstance(begun, manifest.Manifest):
        return WrittenDataset(out.path, begun)
    results = _Results(context, tasks, options)
    try:
        with begun.run.working(0) if world.size > 1 else contextlib.nullcontext(lambda done: None) as beat:
            return _lead(out, begun, results, ShardWork(context, begun.run), beat, plan, check)
    except Exception as error:
        if isinstance(error, TooManyBad) and not error.skipped:
            records = begun.run.records(sorted(begun.run.done()))
            error.skipped = tuple(bad for record in records if record for bad in record.skipped)
        if world.size == 1:
            begun.abandon(error)
        raise
    finally:
        begun.close()


def _lead(
    out: Output,
    lead: Lead,
    results: "_Results",
    work: ShardWork,
    beat: Callable[[int], None],
    plan: Mapping[str, Any],
    check: Callable[[], None] | None,
) -> WrittenDataset:
    """Carry out the first rank's tasks, wait for the other ranks, and publish the dataset."""
    options, tasks = results.options, results.tasks
    others = ranks.OtherRanks(out, lead.run, options.world, tasks)

    def on_progress(done: int) -> None:
        beat(done)
        results.report(done + others.samples())

    own = tasks[:: options.world.size]
    options.runner()(run_shard_task, work, own, RunnerCallbacks(on_progress, results.on_result))
    count = sum(task.count for task in own)
    others.wait(lambda done: results.report(count + done))
    results.check_unchanged()
    if check is not None:
        check()
    written, numbers = results.describe(out.path, results.check(lead.run), plan)
    lead.publish(written.manifest, numbers)
    return written


def _follow(
    out: Output, context: TaskContext, tasks: Sequence[ShardTask], wanted: Mapping[str, Any], options: PackOptions
) -> WrittenDataset:
    """Work as a rank other than the first."""
    world, keep = options.world, options.resume and not options.overwrite
    begun = ranks.wait_for_leader(out, context, world, wanted, keep=keep)
    if isinstance(begun, manifest.Manifest):
        return WrittenDataset(out.path, begun)
    run, found = begun
    results = _Results(context, tasks, options)
    with run.working(world.rank) as beat:
        if own := tasks[world.rank :: world.size]:
            options.runner()(run_shard_task, ShardWork(context, run), own, RunnerCallbacks(beat, results.on_result))
    ranks.wait_for_end(out, run, world)
    return WrittenDataset(out.path, out.published(found))


@final
class _Results:
    """Counts the results of a conversion, and describes the dataset that they make.

    Args:
        context: what the tasks share.
        tasks: a task for each shard, of all ranks.
        options: how the work is carried out.
    """

    def __init__(self, context: TaskContext, tasks: Sequence[ShardTask], options: PackOptions) -> None:
        self.tasks, self.options = tasks, options
        self._context = context
        self._total = sum(task.count for task in tasks)
        self._states = {} if options.world.rank else file_states(context.source)
        self._finished = self._samples = self._skipped = 0

    def report(self, done: int) -> None:
        """Report progress; the total is an estimate as long as nobody knows the samples of what was not read."""
        total = self._total
        if not self._context.knows_samples:
            done = self._samples
            total = max(done, done * len(self.tasks) // max(1, self._finished))
        self.options.progress(self._context.doing, min(done, total), total)

    def on_result(self, result: TaskResult) -> None:
        """Count the samples that a task has left out; TooManyBad if there are too many by now."""
        self._finished += 1
        self._samples += result.count
        self._skipped += result.skipped
        if result.first_skipped is not None and self._context.knows_samples:
            self._check_budget(self._skipped, self._total, result.first_skipped)

    def check_unchanged(self) -> None:
        """Raise SourceError if a file of the source has changed meanwhile: its samples may be of two versions."""
        now = file_states(self._context.source)
        for path in (path for path, state in self._states.items() if now[path] != state):
            raise SourceError(f"{printable(path)} changed while it was converted: start over with overwrite")

    def check(self, run: Run) -> Iterator[Record]:
        """Yield the records of all shards; SourceError if one is missing, or of other fields."""
        images = {name for name, field in self._context.source.fields.items() if field.kind == "image"}
        for task, record in zip(self.tasks, run.records([task.number for task in self.tasks]), strict=True):
            if record is None:
                raise SourceError(f"{run.path}: the record of shard {task.number} is missing")
            if record.shard.samples and record.shard.image_shapes.keys() != images:
                raise SourceError(f"{run.path}: the record of shard {task.number} is of other fields")
            yield record

    def describe(
        self, path: Path | Url, records: Iterable[Record], plan: Mapping[str, Any]
    ) -> tuple[WrittenDataset, list[int]]:
        """Return the dataset of the shards, all of which are written, and the numbers of those that hold samples.

        Raises TooManyBad, and SourceError if no sample is left.
        """
        context, source = self._context, self._context.source
        skipped: list[Skipped] = []
        numbers: list[int] = []
        samples = rotated = 0
        rounded: dict[str, float] = {}

        def written() -> Iterator[WrittenShard]:
            nonlocal samples, rotated
            for task, record in zip(self.tasks, records, strict=True):
                rotated += record.rotated
                for name, change in record.rounded.items():
                    rounded[name] = max(change, rounded.get(name, 0))
                first = 0 if context.knows_samples else samples + len(skipped)
                skipped.extend(Skipped(first + bad.number, bad.reason) for bad in record.skipped)
                samples += record.shard.samples
                if record.shard.samples:
                    numbers.append(task.number)
                    yield record.shard
            if not samples:
                all_bad = f"all {len(skipped)} samples are bad; the first: {skipped[0].reason}" if skipped else ""
                raise SourceError(all_bad or f"{path}: there are no samples")
            if skipped:
                self._check_budget(len(skipped), samples + len(skipped), skipped[0], skipped)

        completed = describe(
            context.container,
            source.fields,
            written(),
            source.metadata,
            adopted=context.adopted,
            conversion=plan,
            has_sums=True,
        )
        return WrittenDataset(path, completed, tuple(skipped), rotated, rounded), numbers

    def _check_budget(self, skipped: int, samples: int, example: Skipped, known: Sequence[Skipped] = ()) -> None:
        """Raise TooManyBad, with those that are known, if more samples are bad than `max_bad` allows."""
        most = self.options.max_bad
        if skipped > (allowed := quarantine.allowance(most, samples)):
            error = TooManyBad(
                f"{skipped} of {samples} samples are bad, max_bad={most:g} allows {allowed}, "
                f"max_bad={samples} would allow all; one of them: {example.reason}"
            )
            error.skipped = tuple(known)
            raise error
