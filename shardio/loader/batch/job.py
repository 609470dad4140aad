"""Jobs: the batch of one step, or the batches of several steps, cut into tasks of a few samples each."""

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar, final

from ...cache.fetcher import FetchCounts
from ...errors import ConfigError, PipelineClosed
from ...format.pieces import PIECE
from ...order.plan import Order, Schedule
from ...system.timing import StageClock
from .assemble import assemble
from .bad_samples import fill
from .host_batch import BatchResult, HostBatch
from .memory import BatchMemory
from .rows import Rows
from .spec import BatchSpec

T = TypeVar("T")
MOST_BATCHES = (16, 32)  # per job: of images, and of anything else
MOST_TOGETHER = 1 << 23  # bytes of the batches of one job
MOST_AHEAD = 1 << 30  # bytes of the batches that are made ahead of the consumer
MOST_FETCHED = 1 << 22  # bytes that each task has in the cache of a store at once
LOCK_SHARE = 1 / 6  # of the interpreter's lock, which the tasks of all threads may hold with what each costs at least
TASK_SECONDS = (2e-3, 0.5e-3)  # a task's Python, whatever it makes: of images, and of anything else
MOST_SECONDS = 0.25  # of a task, which ends before a loop that is left does
IMAGE_SECONDS, IMAGE_BYTE_SECONDS = 0.75e-3, 12e-9  # to decode an image's crop: at least, and for each stored byte
FRAME_SECONDS = 2e-3  # to decode a frame of a clip, with those that it refers to: a small one, so that tasks are short
CLIPS_SECONDS = 0.06  # of a task of clips, at least
VALUE_SECONDS = 2e-6  # to find and copy a value of variable size
BLOCK_SECONDS = 4e-6  # to find the runs or chunks of a block that is read of a value
BYTE_SECONDS = (0.2e-9, 0.8e-9)  # to copy a byte: of a row, and of a block
LEAST_IMAGES = (64, 16)  # of a task: at any time, and of the first ones of an epoch, which the consumer waits for


@final
@dataclass(frozen=True, slots=True)
class JobSize:
    """The size of jobs and tasks.

    Attributes:
        batches: the number of batches that one job makes at most.
        task_samples: the number of samples that one task makes at most.
        first_samples: the same of the first steps, so that every thread soon has a task.
        first_steps: the number of these steps.
        last_samples: the same of the last steps, whose tasks leave threads without work.
        last_steps: the number of these steps.
    """

    batches: int
    task_samples: int
    first_samples: int
    first_steps: int
    last_samples: int
    last_steps: int

    def samples_at(self, step: int, left: int) -> int:
        """Return the number of samples per task at a step, counted from where workers began, before so many others."""
        if step < self.first_steps:
            return self.first_samples
        return self.last_samples if left < self.last_steps else self.task_samples


def job_size(
    spec: BatchSpec, batch_size: int, threads: int, *, one_batch: bool = False, prefetch: int | None = None
) -> JobSize:
    """Choose the size of jobs and tasks for `threads` workers and batches of so many samples, on average.

    A task holds the interpreter's lock for a while, whatever it makes, and all threads share the lock: so the more
    threads there are, the more samples a task makes, as far as memory allows.

    Args:
        spec: the batches.
        batch_size: samples per batch.
        threads: the number of workers.
        one_batch: whether a job makes one batch at any cost.
        prefetch: the number of batches that may be made ahead; None for as many as it takes.
    """
    images = any(kind.is_image for kind in spec.fields.values()) or bool(spec.image_lists or spec.clips)
    seconds, row_bytes = _sample_seconds(spec), max(1, _row_bytes(spec))
    unit = TASK_SECONDS[not images] / seconds  # samples that take as long as the Python of their task
    least, least_first = LEAST_IMAGES if images else (1, max(1, round(unit)))
    if images:
        least = max(least_first, round(least * IMAGE_SECONDS / _image_seconds(spec)))  # fewer of large ones
    if spec.clips:
        least = least_first = max(1, round(CLIPS_SECONDS / seconds))
    samples = max(least, min(round(threads * unit / LOCK_SHARE), round(MOST_SECONDS / seconds)))
    most_samples = max(least_first, MOST_AHEAD // (threads * row_bytes))
    samples = min(samples, most_samples)
    if spec.has_batch_engine:  # for which a task only reads
        one_batch, samples = True, batch_size
    if spec.dataset.in_store:
        samples = min(samples, max(least_first, int(MOST_FETCHED / max(PIECE, _mean_bytes(spec)))))
    together = samples if images else MOST_TOGETHER // (batch_size * row_bytes)
    most = min(MOST_BATCHES[not images], samples // batch_size, together)
    batches = 1 if one_batch else max(1, most)
    count = batch_size * batches
    first = max(least_first, -(-count // (2 * threads)))
    if not images:  # smaller tasks would take longer in their turns at the lock than the first batch gains by them
        first = max(first, round(math.sqrt(unit * batch_size)))
    # One read for a batch: its values are end to end, and threads take batches in turns, not parts of the same one.
    if any(kind.ragged for kind in spec.fields.values()):
        samples, first = max(samples, batch_size), max(first, batch_size)
    parts = max(1, round(count / samples), -(-count // most_samples))
    if prefetch is not None:  # all threads share the few jobs that are open
        parts = max(parts, min(-(-threads // open_jobs(prefetch, batches)), count // least_first))
    samples = -(-count // parts)  # tasks of equal size
    first, last = min(first, samples), min(max(least, first), samples)
    steps = [-(-threads * few // batch_size) if few < samples else 0 for few in (first, samples - 1)]
    return JobSize(batches, samples, first, steps[0], last, steps[1])


def open_jobs(prefetch: int, batches: int) -> int:
    """Return how many jobs of so many batches may be open at once."""
    return 1 + -(-prefetch // batches)


def _sample_seconds(spec: BatchSpec) -> float:
    """Return about how long a thread takes to make a sample, but for its Python."""
    layout = spec.array_layout(1)
    seconds = 0.0
    for name, kind in spec.fields.items():
        whole = BYTE_SECONDS[0] * kind.row_bytes if kind.fixed else VALUE_SECONDS
        if spec.reads_blocks(name):
            shape, dtype = layout[name]
            whole = min(whole, BLOCK_SECONDS + BYTE_SECONDS[1] * math.prod(shape) * dtype.itemsize)
        if kind.kind in ("image", "images"):
            whole = _image_seconds(spec) * (1 + 3 * (kind.kind == "images"))
        if name in spec.clips:
            whole = spec.clips[name].frames * FRAME_SECONDS
        seconds += whole
    if any(not kind.fixed and kind.kind == "array" for kind in spec.fields.values()):
        seconds = max(seconds, BYTE_SECONDS[0] * _row_bytes(spec))
    return max(1e-9, seconds)


def _image_seconds(spec: BatchSpec) -> float:
    return max(IMAGE_SECONDS, IMAGE_BYTE_SECONDS * _mean_bytes(spec))


def _row_bytes(spec: BatchSpec) -> int:
    """Return about how many bytes a sample of a batch takes."""
    rows = sum(math.prod(shape) * dtype.itemsize for shape, dtype in spec.array_layout(1).values())
    if all(kind.fixed or kind.kind != "array" for kind in spec.fields.values()):
        return rows
    # Arrays of several shapes may be large, and padding makes them larger.
    return max(rows, int(_mean_bytes(spec)))


def _mean_bytes(spec: BatchSpec) -> float:
    """Return about how many bytes are stored of a sample."""
    means = spec.dataset.shard_means
    return float(means.mean()) if len(means) else 0.0


@final
class BatchJob:
    """One or more batches, whose rows are made together. A `pipeline.Job`.

    Args:
        rows: the rows to make.
        task_samples: the number of rows that a task makes.
        memory: counts this job if it fills new arrays; None if it fills arrays that were used before.
    """

    def __init__(self, rows: Rows, task_samples: int, memory: BatchMemory | None = None) -> None:
        self._rows, self._new_memory = rows, memory
        self._parts = _cut(len(rows), task_samples)
        ends = [len(rows)] if rows.planned.ends is None else rows.planned.ends.tolist()
        self._batch_parts = [slice(start, end) for start, end in pairwise([0, *ends])]
        self._failures: list[tuple[int, Exception]] = []  # each with the first row of what could not be made

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        """The tasks, created on each access. If the job kept them, both would refer to each other, and the batch's
        memory would wait for the garbage collector."""
        return [_Task(self, part) for part in self._parts]

    def result(self) -> list[BatchResult]:
        """Return the batches. If one cannot be made, its error follows those before it, and ends the list."""
        if self._new_memory is not None:
            self._new_memory.filled_first += 1
        results: list[BatchResult] = []
        failed_row, failure = min(self._failures, default=(len(self._rows), None), key=itemgetter(0))
        for part in self._batch_parts:
            result = failure if failure and part.stop > failed_row else _tried(partial(_assembled, self._rows, part))
            results.append(result)
            if isinstance(result, Exception):
                break
        return results

    def run(self, part: slice) -> None:
        """Make the rows of one task; if that fails, the rows of each batch apart, to find the batch that fails."""
        if any(row <= part.start for row, _ in self._failures):  # the loop ends before these rows
            return
        if (error := _tried(partial(fill, self._rows, part))) is None:
            return
        ends = [batch.stop for batch in self._batch_parts if part.start < batch.stop < part.stop]
        if not ends:
            self._failures.append((part.start, error))
            return
        for start, end in pairwise([part.start, *ends, part.stop]):
            self.run(slice(start, end))

    def describe(self, part: slice, thread: int) -> str:
        """Name the samples of a task, and the stage that the thread is in."""
        stage = self._rows.clock.doing.get(thread)
        samples = self._rows.describe(part)
        return samples if stage is None else f"{stage}: {samples}"


class _Task:
    """Makes a few rows of a job; its text says which, for messages."""

    def __init__(self, job: BatchJob, part: slice) -> None:
        self._job, self._part = job, part
        self._thread = 0

    def __str__(self) -> str:
        return self._job.describe(self._part, self._thread)

    def __call__(self) -> None:
        self._thread = threading.get_ident()
        self._job.run(self._part)


@final
class EpochWork:
    """An epoch that workers make, and the one after it, which they begin before its loop.

    Args:
        order: the order of its samples.
        schedule: the steps that cut it into batches.
        fetched: what was fetched of the samples from stores until now; None if workers don't go on with the next epoch.
        is_first: whether they begin with this one.

    Attributes:
        clock: measures the time of its stages.
        has_loop: whether a loop takes its batches.
    """

    def __init__(
        self, order: Order, schedule: Schedule, fetched: Callable[[], FetchCounts] | None, *, is_first: bool = True
    ) -> None:
        self.order, self.schedule, self.is_first = order, schedule, is_first
        self._fetched, self._fetched_before = fetched, fetched and fetched()
        self.clock = StageClock()
        self.has_loop = is_first
        self._following: list[EpochWork | None] = []  # decided once, by workers or by the next loop
        self._deciding = threading.Lock()

    @property
    def goes_on(self) -> bool:
        """Whether workers go on with the next epoch: not if that may fetch what no loop has asked for."""
        return self._fetched is not None and self._fetched() == self._fetched_before

    def follow(self) -> "EpochWork | None":
        """Return the next epoch; None if workers don't go on with it."""
        with self._deciding:
            if not self._following:
                self._following.append(self._next() if self.goes_on else None)
            return self._following[0]

    def _next(self) -> "EpochWork | None":
        try:
            order = self.order.at_epoch(self.order.epoch + 1)
        except ConfigError:  # there is none
            return None
        schedule = replace(self.schedule, n=order.n, start=0)
        return EpochWork(order, schedule, self._fetched, is_first=False)


def epoch_jobs(spec: BatchSpec, size: JobSize, memory: BatchMemory, first: EpochWork) -> Iterator[BatchJob | None]:
    """Yield the jobs of an epoch in order, and then, if it goes on, those of the next one.

    Yield None as long as the loop of the epoch after that would be the next one but one.
    """
    epoch: EpochWork | None = first
    while epoch is not None:
        yield from _jobs(spec, size, memory, epoch)
        while not epoch.has_loop:
            yield None
        epoch = epoch.follow()


def _jobs(spec: BatchSpec, size: JobSize, memory: BatchMemory, epoch: EpochWork) -> Iterator[BatchJob]:
    """Yield the jobs of an epoch. With `shuffle="block"`, ask storage for samples one window ahead."""
    plan, schedule = epoch.order, epoch.schedule
    requested = -1  # the last window that storage was asked for
    for step, steps in _cut_steps(len(schedule), size.batches, 1 if epoch.is_first else size.batches):
        first, last = plan.windows(*schedule.positions(step, steps))
        if last > requested:
            # One window more than this job needs, so that storage reads it in the meantime.
            for run in plan.runs(max(first, requested + 1), last + 2):
                spec.dataset.read_ahead(run, [name for name in spec.names.delivered if name not in spec.videos])
            requested = last + 1
        # Without a variable: this generator waits, and would keep the newest job's memory meanwhile.
        yield _open_job(spec, size, memory, epoch, step, steps)


def _cut_steps(count: int, most: int, steps: int) -> Iterator[tuple[int, int]]:
    """Yield the first step of each job of an epoch, and the number of its steps.

    The first job makes `steps` batches, and each further one twice as many, up to `most`: a loop that waits for the
    first batch doesn't wait for those after it.
    """
    step = 0
    while step < count:
        yield step, min(steps, count - step)
        step += steps
        steps = min(2 * steps, most)


def _open_job(spec: BatchSpec, size: JobSize, memory: BatchMemory, epoch: EpochWork, step: int, steps: int) -> BatchJob:
    plan, schedule, clock = epoch.order, epoch.schedule, epoch.clock
    with clock.stage("plan"):
        samples = schedule.part(plan, step, steps)
        # Batches of buckets differ in their sizes: lent as they are, where others go round the same few arrays.
        made, arrays = memory.made, memory.lend(None if plan.ends is None else len(samples.indices))
        rows = Rows(spec, plan, samples, arrays, pads=schedule.tail == "pad", clock=clock)
        begun = step if epoch.is_first else sys.maxsize
        left = len(schedule) - step - steps if epoch.has_loop else 0  # workers leave if the loop doesn't begin soon
        task_samples = size.samples_at(begun, sys.maxsize if epoch.has_loop and epoch.goes_on else left)
        return BatchJob(rows, task_samples, memory if memory.made > made else None)


def _tried(make: Callable[[], T]) -> T | Exception:
    """Return what a call returns, or its error, whose traceback refers to this frame, and so not to the job."""
    try:
        return make()
    except PipelineClosed as error:  # nobody gets it, and its frames would keep the memory of the batch
        return error.with_traceback(None)
    except Exception as error:  # noqa: BLE001  # raised again in the consumer, in its batch's turn
        return error


def _assembled(rows: Rows, part: slice) -> HostBatch:
    by_batch = rows.spec.options.map_function is not None
    with rows.clock.stage("map" if by_batch else "mix" if rows.spec.mixing is not None else "assemble"):
        return assemble(rows, part)


def _cut(count: int, most: int) -> list[slice]:
    """Cut rows into as few parts of at most so many as there may be, all of about one size."""
    size = -(-count // max(1, -(-count // most)))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
