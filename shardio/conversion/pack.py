"""Make a dataset shard by shard: begin or resume the work, distribute it, watch it, and publish the result."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..dataset import bad_budget
from ..errors import ConfigError, Option, SourceError, TooManyBad
from ..foreign.names import printable
from ..format import manifest
from ..order.world import World
from ..output import Output, Run
from ..output.base import Beat
from ..output.records import Skipped
from ..output.shard_writer import Before, WrittenShard, describe
from ..stores.url import Url
from ..system.rules import check_fields
from ..views.key_table import write_index
from . import ranks
from .growing import Growing
from .image_counts import pair_remarks
from .notes import check_strict
from .runners import Progress, Runner, in_processes, in_threads, on_dask, silent
from .shard_tasks import ShardTask, TaskContext, TaskResult, run_shard_task
from .source import file_states

OnError: TypeAlias = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """A dataset that a conversion wrote.

    Attributes:
        path: its directory, or its URL.
        manifest: its manifest.
        skipped: the samples that were left out; on the first rank only.
        counts: by words for them, numbers of images, see `image_counts`; on the first rank only.
        rounded: by field, the largest change of a number by `dtype`; on the first rank only.
        entries: by ragged field, the number of entries that were written, such as tokens; on the first rank only.
        seconds: how long it took to write all shards; 0 if some, or all, were there before; on the first rank only.
    """

    path: Path | Url
    manifest: manifest.Manifest
    skipped: tuple[Skipped, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, float] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


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
    strict: bool = False
    progress: Progress = silent
    threads: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.workers < 1:
            raise ConfigError("{workers} must be at least 1, got {}", self.workers)
        bad_budget.check_max_bad(self.max_bad)
        if self.dask is not None and self.world.size > 1:
            raise ConfigError(
                "{dask} and ranks cannot share the same work: got {} in a job of {} ranks",
                Option("dask", self.dask),
                self.world.size,
            )

    def runner(self, *, threads_first: bool = False) -> Runner:
        """Return the runner of this process's tasks: threads, Dask, or processes, see `in_processes`."""
        if self.threads:
            return in_threads(self.workers)
        if self.dask is not None:
            return on_dask(self.dask, self.workers)
        return in_processes(self.workers, threads_first=threads_first)


def pack(
    out: Output,
    context: TaskContext,
    tasks: Sequence[ShardTask],
    plan: Mapping[str, Any],
    options: PackOptions,
    *,
    check: Callable[[], None] = lambda: None,
    grows: Growing | None = None,
) -> WrittenDataset:
    """Carry out all tasks and make one dataset of the shards.

    With `resume`, a dataset that this conversion has finished before is returned as it is.

    Args:
        out: the output.
        context: what the tasks share.
        tasks: a task for each shard.
        plan: JSON values that distinguish this conversion from others.
        options: how to carry out the work.
        check: raises an error if the source has changed in ways that the states of its files do not show.
        grows: the dataset at the output that the shards are added to; None if they make one.

    Raises ConfigError for a dataset or an unfinished conversion at the output that `options` do not provide for,
    ObjectChanged if another process has made a dataset there meanwhile; BadSample, TooManyBad, OSError and StoreError.
    """
    work = _Packing(out, context, tasks, plan, options, grows)
    return work.follow() if options.world.rank else work.lead(check)


@final
@dataclass
class _Packing:
    """One rank's part in making a dataset; the first arguments are those of `pack`."""

    out: Output
    context: TaskContext
    tasks: Sequence[ShardTask]
    plan: Mapping[str, Any]
    options: PackOptions
    grows: Growing | None
    finished: int = 0
    samples: int = 0
    skipped: int = 0

    @cached_property
    def wanted(self) -> dict[str, Any]:
        return {"job": ranks.job(), **self.plan}

    @cached_property
    def total(self) -> int:
        return sum(task.count for task in self.tasks)

    def follow(self) -> WrittenDataset:
        """Work as a rank other than the first."""
        out, options, world = self.out, self.options, self.options.world
        keep = options.resume and not options.overwrite
        begun = ranks.wait_for_leader(out, self.context, world, self.wanted, keep=keep)
        if isinstance(begun, manifest.Manifest):
            return WrittenDataset(out.path, begun)
        run, found = begun
        with run.working(world.rank) as beat:
            self._carry_out(run, beat)
        ranks.wait_for_end(out, run, world)
        return WrittenDataset(out.path, out.published(found))

    def lead(self, check: Callable[[], None]) -> WrittenDataset:
        """Begin or resume, work, wait for the other ranks, and publish the dataset."""
        context, options, world = self.context, self.options, self.options.world
        lead = self.out.begin(
            self.wanted,
            container=context.container,
            beside=context.beside,
            resume=options.resume,
            overwrite=options.overwrite,
        )
        if isinstance(lead, manifest.Manifest):
            return WrittenDataset(self.out.path, lead)
        run = lead.run
        try:
            grown = None if self.grows is None else self.grows.before(options.progress)
            before = file_states(context.source)
            begun = None if run.done() else time.monotonic()
            with run.working(0) if world.size > 1 else contextlib.nullcontext(lambda done: None) as beat:
                others = ranks.OtherRanks(self.out, run, world, self.tasks)
                own = self._carry_out(run, beat, others.samples)
                others.wait(lambda done: self._report(own + done))
                now = file_states(context.source)
                for path in (path for path, state in before.items() if now[path] != state):
                    raise SourceError("{} changed while it was converted: start over with {overwrite}", printable(path))
                check()
                written, numbers, keys = self._describe(run, grown)
                check_strict(pair_remarks(written.counts), strict=options.strict)
                written = replace(written, seconds=0.0 if begun is None else time.monotonic() - begun)
                lead.publish(written.manifest, numbers)
                write_index(self.out.path, written.manifest, keys)
                return written
        except Exception as error:
            if isinstance(error, TooManyBad) and not error.skipped:
                records = run.records(sorted(run.done()))
                error.skipped = tuple(bad for record in records if record for bad in record.skipped)
            if world.size == 1:
                lead.abandon(error)
            raise
        finally:
            lead.close()

    def _carry_out(self, run: Run, beat: Beat, others: Callable[[], int] | None = None) -> int:
        """Carry out this rank's tasks; return the number of their samples. The first rank reports progress."""
        world = self.options.world

        def on_progress(done: int) -> None:
            beat(done)
            if others is not None:
                self._report(done + others())

        if own := self.tasks[world.rank :: world.size]:
            runner = self.options.runner(threads_first=self.context.source.threads)
            runner(partial(run_shard_task, self.context, run), own, on_progress, self._on_result)
        return sum(task.count for task in own)

    def _report(self, done: int) -> None:
        """Report progress; the total is an estimate while the samples of unread objects are unknown."""
        total = self.total
        if not self.context.knows_samples:
            done = self.samples
            total = max(done, done * len(self.tasks) // max(1, self.finished))
        self.options.progress("indexing" if self.context.adopted else "writing", min(done, total), total)

    def _on_result(self, result: TaskResult) -> None:
        """Count the samples that a task has left out; TooManyBad if there are too many by now."""
        self.finished += 1
        self.samples += result.samples
        self.skipped += result.skipped
        if result.first_skipped is not None and self.context.knows_samples:
            self._check_budget(self.skipped, self.total, result.first_skipped)

    def _describe(self, run: Run, grown: Before | None) -> tuple[WrittenDataset, list[int], list[NDArray[np.uint64]]]:
        """Return the dataset of the shards, once all are written, and the numbers of those that hold samples.

        Also the hashes of the keys in each of these, uint64 [samples].

        The shards follow those of the dataset that has `grown`, if there is one.

        Raises TooManyBad, and SourceError if no sample is left, or a record is missing or of other fields.
        """
        context, source = self.context, self.context.source
        images = {name for name, field in source.fields.items() if field.kind == "image"}
        skipped: list[Skipped] = []
        numbers: list[int] = []
        keys: list[NDArray[np.uint64]] = []
        samples = 0
        rounded: dict[str, float] = {}
        counts: Counter[str] = Counter()
        entries: Counter[str] = Counter()

        def written() -> Iterator[WrittenShard]:
            nonlocal samples
            for task, record in zip(self.tasks, run.records([task.number for task in self.tasks]), strict=True):
                if record is None:
                    raise SourceError(f"{run.path}: the record of shard {task.number} is missing")
                if record.shard.samples and record.shard.image_shapes.keys() != images:
                    raise SourceError(f"{run.path}: the record of shard {task.number} is of other fields")
                counts.update(record.counts)
                for name, change in record.rounded.items():
                    rounded[name] = max(change, rounded.get(name, 0))
                entries.update(record.entries)
                first = 0 if context.knows_samples else samples + len(skipped)
                skipped.extend(Skipped(first + bad.number, bad.reason) for bad in record.skipped)
                samples += record.shard.samples
                if record.shard.samples:
                    numbers.append(task.number)
                    keys.append(record.shard.keys)
                    yield record.shard
            if not samples:
                all_bad = f"all {len(skipped)} samples are bad; the first: {skipped[0].reason}" if skipped else ""
                raise SourceError(all_bad or f"{self.out.path}: there are no samples")
            if skipped:
                read = self.total if context.knows_samples else samples + len(skipped)
                self._check_budget(len(skipped), read, skipped[0], skipped)

        kept = source if grown is None else grown.manifest
        completed = describe(
            context.container,
            kept.fields,
            written(),
            kept.metadata,
            adopted=context.adopted,
            unchecked=context.unchecked,
            conversion=self.plan,
            has_sums=grown is None or grown.manifest.piece_bytes is not None,
            after=grown,
        )
        return WrittenDataset(self.out.path, completed, tuple(skipped), counts, rounded, entries), numbers, keys

    def _check_budget(self, skipped: int, samples: int, example: Skipped, known: Sequence[Skipped] = ()) -> None:
        """Raise TooManyBad, with those that are known, if more samples are bad than `max_bad` allows."""
        most = self.options.max_bad
        if skipped > (allowed := bad_budget.allowance(most, samples)):
            error = TooManyBad(
                "{} of {} samples are bad, {} allows {}, {} would allow all; one of them: {}",
                skipped,
                samples,
                Option("max_bad", most),
                allowed,
                Option("max_bad", samples),
                example.reason,
            )
            error.skipped = tuple(known)
            raise error
