"""The pipeline: it runs the tasks of jobs on threads, and delivers the jobs' results in order.

                 jobs (one or more batches)       tasks (about 16 samples each)
    next(jobs) --> [ open: depth at most ] --> worker 0 ... worker T-1 --> head of the line complete --> consumer
                          ^------------------------- one more may open when one is delivered --------------'

Workers are threads, because the calls that cost time (pread, decode, resize) release the GIL. The first failure of a
job is raised in the consumer in the job's turn, so an error surfaces at the same batch whatever the threads did.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar, final

from ...errors import PipelineClosed, PipelineStalled
from ...system.at_exit import close_at_exit

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
JOIN_LIMIT = 2.0  # seconds that close waits for a worker in the middle of a task


class Job(Protocol[T_co]):
    """A unit of work with one result, cut into tasks that may run concurrently and in any order."""

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        """The tasks. Each is called once, on some thread; `str(task)` describes it."""

    def result(self) -> T_co:
        """Return the result; called in the consumer's thread once all tasks have ended."""


class _Open(Generic[T]):
    """An open job, with the number of its unfinished tasks and its first error."""

    def __init__(self, job: Job[T] | None, left: int = 0, error: BaseException | None = None) -> None:
        self.job = job
        self.left = left
        self.error = error


@final
class Pipeline(Generic[T]):
    """Runs the jobs of an iterator on threads and delivers their results in order. It is an iterator itself.

    Args:
        jobs: the jobs; a free worker takes the next one.
        threads: the number of workers; `resize` may let fewer of them work.
        depth: the number of jobs that may be open at once, including the one that the consumer waits for.
        timeout: seconds that the consumer waits for a result before PipelineStalled.
        name: the name of the pipeline, in the names of threads and in messages.
    """

    def __init__(
        self, jobs: Iterator[Job[T]], *, threads: int, depth: int, timeout: float = 300.0, name: str = "shardio"
    ) -> None:
        self._pid = os.getpid()
        self._jobs = jobs
        self._depth = depth
        self._timeout = timeout
        self._name = name
        self._line: deque[_Open[T]] = deque()
        self._tasks: deque[tuple[_Open[T], Callable[[], None]]] = deque()
        lock = threading.Lock()
        self._work_available = threading.Condition(lock)  # active workers wait for room for a job, tasks, or the end
        self._reactivated = threading.Condition(lock)  # workers that `resize` has suspended wait
        self._head_ready = threading.Condition(lock)  # the consumer waits for the oldest job
        self._opening = False
        self._exhausted = False
        self._closed = self._waited_for = False
        self.waited = 0.0
        self._active = threads
        self._idle = [0.0] * threads
        self._doing: list[tuple[object, float]] = [("nothing yet", time.monotonic())] * threads
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        close_at_exit(self)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> "Pipeline[T]":
        return self

    def __next__(self) -> T:
        """Return the next result, in order. Raises a task's error, PipelineStalled, or PipelineClosed after `close`."""
        begun = time.monotonic()
        if os.getpid() != self._pid:
            raise PipelineClosed(f"{self._name}: begun before this process was forked")
        with self._head_ready:
            ready = self._head_ready.wait_for(self._next_ready, self._timeout)
            self.waited += time.monotonic() - begun
            if self._closed:  # by another thread: the open jobs may not be finished
                raise PipelineClosed(f"{self._name}: closed, or a newer loop over the same loader has begun")
            if not ready:
                raise PipelineStalled(f"{self._name}: no batch for {self._timeout:.0f} s; {self._report()}")
            head = self._line.popleft() if self._line else None
            self._work_available.notify()
        if head is None:
            self.close()
            raise StopIteration
        if head.error is not None or head.job is None:
            self.close()
            raise head.error or PipelineClosed(self._name)
        return head.job.result()

    @property
    def ready(self) -> bool:
        """Whether `next` would return at once."""
        if os.getpid() != self._pid:  # forked: a worker of the parent may have held the lock
            return False
        with self._head_ready:
            return self._next_ready()

    @property
    def idle(self) -> float:
        """Seconds that active workers have waited for room or for tasks, summed over all workers."""
        return sum(self._idle)

    def resize(self, threads: int, depth: int) -> None:
        """Let `threads` of the workers work, on at most `depth` open jobs, from now on."""
        with self._work_available:
            self._active, self._depth = min(threads, len(self._threads)), depth
            self._work_available.notify_all()
            self._reactivated.notify_all()

    def close(self) -> None:
        """Stop the workers, each after its current task, and wait for them, 2 s at most. May be called twice."""
        if self._waited_for:  # waiting again would not help; and as the interpreter ends, `os` is gone
            return
        if os.getpid() != self._pid:  # forked: the threads are the parent's, and the lock may never be released
            return
        if threading.current_thread() in self._threads:
            # The garbage collector may call this in any thread, such as a worker that holds the lock.
            self._closed = True
            return
        with self._work_available:
            self._closed = True
            self._tasks.clear()
            self._work_available.notify_all()
            self._reactivated.notify_all()
            self._head_ready.notify_all()
        self._waited_for = True
        deadline = time.monotonic() + JOIN_LIMIT
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def at_exit(self) -> None:
        self.close()

    def _next_ready(self) -> bool:
        if self._closed:
            return True
        if self._line:
            return self._line[0].left == 0
        return self._exhausted and not self._opening

    def _report(self) -> str:
        now = time.monotonic()
        return "; ".join(
            f"worker {n}: {activity} for {now - since:.0f} s" for n, (activity, since) in enumerate(self._doing)
        )

    def _work(self, number: int) -> None:
        while (turn := self._turn(number)) is not None:
            opened, task = turn
            self._doing[number] = (task, time.monotonic())
            error: BaseException | None = None
            try:
                task()
            except BaseException as caught:  # noqa: BLE001  # raised again in the consumer's thread
                error = caught
            with self._head_ready:
                opened.left -= 1
                opened.error = opened.error or error
                if opened.left == 0 and self._line and self._line[0] is opened:
                    self._head_ready.notify()
            del turn, opened, task  # while it waits, a worker must not keep the memory of a delivered batch
        self._doing[number] = ("nothing more to do", time.monotonic())

    def _turn(self, number: int) -> tuple[_Open[T], Callable[[], None]] | None:
        """Wait for the next task, opening a job if there is none; None when all work is done."""
        while True:
            with self._work_available:
                if not self._has_work(number):
                    begun = time.monotonic()
                    self._doing[number] = ("waiting", begun)
                    while not self._has_work(number):
                        (self._work_available if number < self._active else self._reactivated).wait()
                    self._idle[number] += time.monotonic() - begun if number < self._active else 0.0
                if self._closed:
                    self._work_available.notify_all()
                    self._reactivated.notify_all()
                    self._head_ready.notify_all()
                    return None
                if self._tasks:
                    return self._tasks.popleft()
                if self._exhausted:
                    return None
                self._opening = True
                self._doing[number] = ("opening the next batch", time.monotonic())
            self._open()

    def _has_work(self, number: int) -> bool:
        if self._closed or self._exhausted:
            return True
        room = not self._opening and len(self._line) < self._depth
        return number < self._active and (bool(self._tasks) or room)

    def _open(self) -> None:
        """Take the next job without holding the lock, as this may take as long as a task."""
        opened: _Open[T] | None
        tasks: Sequence[Callable[[], None]] = ()
        try:
            job = next(self._jobs)
            tasks = job.tasks
            opened = _Open(job, len(tasks))
        except StopIteration:
            opened = None
        except BaseException as caught:  # noqa: BLE001  # raised again in the consumer's thread
            opened = _Open(None, error=caught)
        with self._work_available:
            self._opening = False
            self._exhausted = opened is None or opened.job is None
            if opened is not None:
                self._line.append(opened)
                self._tasks.extend((opened, task) for task in tasks)
            if self._exhausted or not tasks:
                self._work_available.notify_all()
                self._reactivated.notify_all()
                self._head_ready.notify()
            else:  # this worker takes the first task; others take the next ones, or open the next job
                self._work_available.notify(len(tasks))
