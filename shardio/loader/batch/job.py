"""Jobs: the batch of one step, or the batches of several steps, cut into tasks of a few samples each."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import final

from ...order.plan import Order, Schedule
from ...system.timing import StageClock
from .assemble import assemble
from .bad_samples import fill
from .host_batch import BatchResult
from .memory import BatchMemory
from .rows import Rows
from .spec import BatchSpec

JOB_COST = 1 << 23  # bytes; a job makes several cheap batches, up to this cost, to spread its own overhead
MOST_BATCHES = 16  # per job
TASK_COST = (1 << 20, 1 << 22)  # bytes; below, the overhead of tasks shows; above, threads wait for one another
IMAGE_COST = 1 << 16  # bytes; counted for the decoding of an image, though copying as much would be far faster
VALUE_COST = 1 << 12  # bytes; counted for any other value of variable size
BLOCK_COST = 4  # times the bytes of a block that is read of a value: its runs and chunks are apart


@final
@dataclass(frozen=True, slots=True)
class JobSize:
    """The size of jobs and tasks.

    Attributes:
        batches: the number of batches that one job makes at most.
        task_samples: the number of samples that one task makes.
    """

    batches: int
    task_samples: int


def job_size(spec: BatchSpec, batch_size: int, threads: int, *, one_batch: bool = False) -> JobSize:
    """Choose the size of jobs and tasks for `threads` workers and batches of so many samples, on average.

    With `one_batch`, a job makes one batch at any cost.
    """
    one_batch = one_batch or spec.has_batch_engine
    cost = _sample_cost(spec)
    batches = 1 if one_batch else min(MOST_BATCHES, max(1, JOB_COST // (batch_size * cost)))
    samples = _task_samples(cost, batch_size * batches, threads)
    # One read for a batch: its values lie end to end, and threads take batches in turns, not parts of the same one.
    ragged = any(kind.ragged for kind in spec.fields.values())
    return JobSize(batches, max(samples, batch_size) if ragged else samples)


def _sample_cost(spec: BatchSpec) -> int:
    """Return about how many bytes making a sample takes, at least 1."""
    costs = {"image": IMAGE_COST, "images": 4 * IMAGE_COST}
    layout = spec.array_layout(1)
    cost = 0
    for name, kind in spec.fields.items():
        own = kind.row_bytes if kind.fixed else costs.get(kind.kind, VALUE_COST)
        if spec.reads_blocks(name):
            shape, dtype = layout[name]
            own = min(own, BLOCK_COST * math.prod(shape) * dtype.itemsize)
        cost += own
    if all(kind.fixed or kind.kind != "array" for kind in spec.fields.values()):
        return max(1, cost)
    # Arrays of several shapes may be large, and padding makes them larger.
    means = spec.dataset.shard_means
    rows = (math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())
    return max(1, cost, sum(rows), int(means.mean()) if len(means) else 0)


def _task_samples(cost: int, count: int, threads: int) -> int:
    """Return the number of samples per task: two tasks per thread for a job of `count` samples, within TASK_COST."""
    low, high = (max(1, limit // cost) for limit in TASK_COST)
    wanted = min(high, max(low, count // (2 * threads)))
    return -(-count // max(1, round(count / wanted)))  # tasks of equal size


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
            result = failure if failure is not None and part.stop > failed_row else _assembled(self._rows, part)
            results.append(result)
            if isinstance(result, Exception):
                break
        return results

    def run(self, part: slice) -> None:
        """Make the rows of one task. If that fails, those of each batch are made apart, to tell which one it fails."""
        if any(row <= part.start for row, _ in self._failures):  # the loop ends before these rows
            return
        error = _error_of(self._rows, part)
        if error is None:
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


def epoch_jobs(
    spec: BatchSpec, size: JobSize, memory: BatchMemory, plan: Order, schedule: Schedule, clock: StageClock
) -> Iterator[BatchJob]:
    """Yield the jobs of an epoch, in order. With `shuffle="block"`, ask storage for samples one window ahead."""
    requested = -1  # the last window that storage was asked for
    for step, steps in _cut_steps(len(schedule), size.batches):
        first, last = plan.windows(*schedule.positions(step, steps))
        if last > requested:
            # One window more than this job needs, so that storage reads it in the meantime.
            for run in plan.runs(max(first, requested + 1), last + 2):
                spec.dataset.read_ahead(run, spec.names.delivered)
            requested = last + 1
        # Without a variable: this generator waits, and would keep the newest job's memory meanwhile.
        yield _open_job(spec, size, memory, plan, schedule, clock, step, steps)


def _cut_steps(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first step of each job of an epoch, and the number of its steps.

    The first job makes one batch, and each further one twice as many, up to `most`: the loop waits for the first batch
    of the epoch, and not for those after it, too.
    """
    step, steps = 0, 1
    while step < count:
        yield step, min(steps, count - step)
        step += steps
        steps = min(2 * steps, most)


def _open_job(
    spec: BatchSpec,
    size: JobSize,
    memory: BatchMemory,
    plan: Order,
    schedule: Schedule,
    clock: StageClock,
    step: int,
    steps: int,
) -> BatchJob:
    with clock.stage("plan"):
        samples = schedule.part(plan, step, steps)
        # Batches of buckets differ in their sizes: lent as they are, where others go round the same few arrays.
        made, arrays = memory.made, memory.lend(None if plan.ends is None else len(samples.indices))
        rows = Rows(spec, plan, samples, arrays, pads=schedule.tail == "pad", clock=clock)
        return BatchJob(rows, size.task_samples, memory if memory.made > made else None)


def _error_of(rows: Rows, part: slice) -> Exception | None:
    """Make rows, and return the error if that fails. Its traceback refers to this frame, and so not to the job."""
    try:
        fill(rows, part)
    except Exception as error:  # noqa: BLE001  # raised again in the consumer, in its batch's turn
        return error
    return None


def _assembled(rows: Rows, part: slice) -> BatchResult:
    by_batch = rows.spec.options.map_function is not None
    stage = "map" if by_batch else "mix" if rows.spec.mixing is not None else "assemble"
    try:
        with rows.clock.stage(stage):
            return assemble(rows, part)
    except Exception as error:  # noqa: BLE001  # raised again in the consumer, in this batch's turn
        return error


def _cut(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
