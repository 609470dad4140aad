"""Make a dataset in a store: each shard is built in a temporary folder, uploaded, and removed there."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..dataset.store_output import STAGING, StoreOutput
from ..errors import BadSample, StoreError, TooManyBad
from ..format.manifest import Manifest
from ..system.directory import Directory
from ..system.temporary_folder import remove_abandoned_folders, temporary_folder
from . import ranks
from .journal import Record, compare
from .pack import PackOptions, Tally, WrittenDataset
from .runners import RunnerCallbacks
from .store_journal import StoreJournal
from .store_ranks import OtherRanks, at_work, wait_for_end, wait_for_leader
from .tasks import Advance, ShardTask, TaskContext, TaskResult, write_samples_to


def pack_to_store(
    context: TaskContext, out: StoreOutput, tasks: Sequence[ShardTask], plan: Mapping[str, Any], options: PackOptions
) -> WrittenDataset:
    """Carry out all tasks and make one dataset of the shards, as `pack` does in a directory.

    Args:
        context: what the tasks share.
        out: the output, which the context names as well.
        tasks: a task for each shard.
        plan: JSON values that distinguish this conversion from others.
        options: how to carry out the work.

    Raises ConfigError for a dataset or an unfinished conversion at the output that `options` do not provide for,
    ObjectChanged if another process has made a dataset there meanwhile; BadSample, TooManyBad and StoreError.
    """
    remove_abandoned_folders(STAGING)
    journal, world = StoreJournal(out), options.world
    if world.rank:
        return _follow(journal, context, out, tasks, plan, options)
    begun = journal.begin({"job": ranks.job(), **plan}, resume=options.resume, overwrite=options.overwrite)
    if isinstance(begun, Manifest):
        return WrittenDataset(out.url, begun)
    context = replace(context, run=journal.run)
    tally = Tally(context, tasks, plan, options)
    try:
        with at_work(journal, world) if world.size > 1 else contextlib.nullcontext():
            if world.size == 1:
                options.runner()(run_store_task, context, tasks, RunnerCallbacks(tally.report, tally.on_result))
            else:
                _lead(journal, context, tally, tasks, options)
            tally.check_unchanged()
            written = tally.publish(_records(journal, tally, tasks), lambda completed: out.publish(completed, begun))
    except Exception as error:
        if isinstance(error, TooManyBad):
            error.skipped = tuple(bad for one in journal.read_all(journal.done()) if one for bad in one.skipped)
        if world.size == 1 and not isinstance(error, StoreError):  # else asking it again takes minutes
            with contextlib.suppress(StoreError):
                journal.remove_if_empty()
        raise
    with contextlib.suppress(StoreError):  # the dataset is there; `clean` removes what is left
        journal.remove()
    return written


def _lead(
    journal: StoreJournal, context: TaskContext, tally: Tally, tasks: Sequence[ShardTask], options: PackOptions
) -> None:
    """Carry out the first rank's tasks, and wait for the other ranks."""
    own, others = tasks[:: options.world.size], OtherRanks(journal, options.world, tasks)
    callbacks = RunnerCallbacks(lambda done: tally.report(done + others.samples()), tally.on_result)
    options.runner()(run_store_task, context, own, callbacks)
    count = sum(task.count for task in own)
    others.wait(lambda done: tally.report(count + done))
    tally.report(tally.total)


def _follow(
    journal: StoreJournal,
    context: TaskContext,
    out: StoreOutput,
    tasks: Sequence[ShardTask],
    plan: Mapping[str, Any],
    options: PackOptions,
) -> WrittenDataset:
    """Work as a rank other than the first."""
    world, expected = options.world, {"job": ranks.job(), **plan}

    def finished() -> Manifest | None:
        found = out.manifest() if options.resume and not options.overwrite else None
        if found is not None:
            compare(f"{out.url}: the existing dataset", found.conversion, plan)
        return found

    begun = wait_for_leader(journal, world, expected, finished)
    if isinstance(begun, Manifest):
        return WrittenDataset(out.url, begun)
    context = replace(context, run=journal.run)
    tally = Tally(context, tasks, plan, options, watches=False)
    with at_work(journal, world):
        if own := tasks[world.rank :: world.size]:
            options.runner()(run_store_task, context, own, RunnerCallbacks(lambda done: None, tally.on_result))
    return WrittenDataset(out.url, wait_for_end(journal, out, begun.get("replaces")))


def run_store_task(context: TaskContext, task: Any, advance: Advance) -> TaskResult:
    """Write a shard, upload it, and write its record, unless all of that is done.

    Raises BadSample unless bad samples are skipped, OSError and StoreError.
    """
    if not isinstance(context.out, StoreOutput):
        raise TypeError(f"{context.out.path} is in no store")
    journal = StoreJournal(context.out, context.run)
    record = journal.read(task.number)
    if record is not None and record.skipped and not context.skip:
        raise BadSample(record.skipped[0].reason)  # the interrupted run skipped it, this one must not
    if record is None or not journal.is_whole(record):
        with temporary_folder(STAGING) as folder:
            record = write_samples_to(Directory(folder), context, task, advance)
            if record.shard.samples:
                shard, objects = context.out.upload_shard(folder, record.shard)
                record = replace(record, shard=shard, objects=tuple(objects))
        record = journal.write(task.number, record)
    else:
        advance(task.count)
    skipped = record.skipped
    return TaskResult(task.number, task.count, len(skipped), skipped[0] if skipped else None)


def _records(journal: StoreJournal, tally: Tally, tasks: Sequence[ShardTask]) -> Iterator[Record]:
    numbers = [task.number for task in tasks]
    for number, record in zip(numbers, journal.read_all(numbers), strict=True):
        yield tally.check(record, number, journal.path)
