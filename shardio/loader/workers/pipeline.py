"""The pipeline: it runs the tasks of jobs on threads, and delivers the jobs' results in order.

                 jobs (one or more batches)       tasks (about 16 samples each)
    next(jobs) --> [ open: depth at most ] --> worker 0 ... worker T-1 --> results in order --> consumer
                          ^------------------------- one more may open when one is delivered ------'

Workers are threads, because the calls that cost time (pread, decode, resize) release the GIL. They take turns from one
queue, which holds tasks and the request to open the next job. The first failure of a job is raised in the consumer in
the job's turn, so an error surfaces at the same batch whatever the threads did. An interrupt may strike the consumer
anywhere, so the consumer uses only what a signal leaves intact, see `system/background.py`.

Between the loops of two epochs the pipeline rests: it has no threads, and keeps what they have made of the second one.
"""

import enum
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar, cast, final

from ...errors import PipelineClosed, PipelineStalled
from ...system import background
from ...system.at_exit import close_at_exit
from ...system.stopping import StopMark
from ...system.timing import slices

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
JOIN_LIMIT = 2.0  # seconds that close waits for a worker in the middle of a task
REST_LIMIT = 0.1  # seconds within which workers end their tasks once the pipeline rests


class Job(Protocol[T_co]):
    """A unit of work with one result, cut into tasks that may run concurrently and in any order."""

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        """The tasks. Each is called once, on some thread; `str(task)` describes it."""

    def result(self) -> T_co:
        """Return the result; called on a worker once all tasks have ended."""


@final
class _OpenJob(Generic[T]):
    """An open job.

    Attributes:
        job: the job; None for one that could not be opened, for the end, and once the job has ended.
        left: the number of its unfinished tasks.
        error: its first error.
        value: its result once it has ended, unless it has failed.
        ended: whether it has ended.
        is_end: whether this stands for the end of all jobs.
    """

    def __init__(
        self, job: Job[T] | None, left: int = 0, error: BaseException | None = None, *, is_end: bool = False
    ) -> None:
        self.job, self.left, self.error, self.is_end = job, left, error, is_end
        self.value: T | None = None
        self.ended = False


@final
class Pipeline(Generic[T]):
    """Runs the jobs of an iterator on threads and delivers their results in order. It is an iterator itself.

    Closing the pipeline, or dropping it, ends its threads.

    Args:
        jobs: the jobs; a free worker takes the next one. None stands for no job before `go_on`.
        threads: the number of workers; `resize` may let fewer of them work.
        depth: the number of jobs that may be open at once, including the one that the consumer waits for.
        timeout: seconds that the consumer waits for a result before PipelineStalled.
        name: the name of the pipeline, in the names of threads and in messages.
    """

    def __init__(
        self, jobs: Iterator[Job[T] | None], *, threads: int, depth: int, timeout: float = 300.0, name: str = "shardio"
    ) -> None:
        self._pid, self._timeout, self._name = os.getpid(), timeout, name
        self._team = _Team(jobs, threads, depth, name)
        self.waited = 0.0
        background.call_when_gone(self, self._team.close)
        close_at_exit(self._team)
        self._team.start()

    def __iter__(self) -> "Pipeline[T]":
        return self

    def __next__(self) -> T:
        """Return the next result, in order. Raises a task's error, PipelineStalled, or PipelineClosed after `close`."""
        if os.getpid() != self._pid:
            raise PipelineClosed(f"{self._name}: begun before this process was forked")
        team, begun = self._team, time.monotonic()
        try:
            ended = None if team.closed else self._next_result()
        finally:
            self.waited += time.monotonic() - begun
        if team.closed:  # by another thread: the open jobs may not be finished
            raise PipelineClosed(f"{self._name}: closed, or a newer loop over the same loader has begun")
        if ended is None or ended.error is not None:
            self.close()
        if ended is None:
            raise StopIteration
        if ended.error is not None:
            raise ended.error
        team.make_room()
        return cast(T, ended.value)

    def _next_result(self) -> _OpenJob[T] | None:
        for part in slices(self._timeout):
            try:
                return self._team.results.get(timeout=part)
            except Empty:  # rarely more than once
                continue
        raise PipelineStalled(f"{self._name}: no batch for {self._timeout:.0f} s; {self._team.report()}")

    @property
    def ready(self) -> bool:
        """Whether `next` would return at once."""
        return os.getpid() == self._pid and (self._team.closed or not self._team.results.empty())

    @property
    def idle(self) -> float:
        """Seconds that active workers have waited for room or for tasks, summed over all workers."""
        return sum(self._team.idle)

    def resize(self, threads: int, depth: int) -> None:
        """Let `threads` of the workers work, on at most `depth` open jobs, from now on."""
        self._team.resize(threads, depth)

    def rest(self) -> None:
        """Have the workers leave, each after its current task; if one needs longer than 0.1 s for it, close."""
        self._team.rest()

    def go_on(self) -> bool:
        """Have the workers come back, and return True; False in another process, or once the pipeline is closed."""
        return os.getpid() == self._pid and self._team.go_on()

    def close(self) -> None:
        """Stop the workers, each after the value that it makes, and wait for them, 2 s at most. May be called twice."""
        self._team.close()


class _Turn(enum.Enum):
    """A turn of a worker that is not a task: to open the next job, to look whether the pipeline rests, or to end."""

    OPEN = enum.auto()
    LOOK = enum.auto()
    END = enum.auto()


@final
class _Team(Generic[T]):
    """The workers of a pipeline and what they share. Its threads keep it alive, but not the pipeline.

    Attributes:
        results: the jobs that have ended, in order; None after the last one.
        closed: whether the workers should end.
        idle: for each worker, the seconds that it has waited while it was active.
    """

    def __init__(self, jobs: Iterator[Job[T] | None], threads: int, depth: int, name: str) -> None:
        self.results: SimpleQueue[_OpenJob[T] | None] = SimpleQueue()
        self.closed = self._waited_for = False
        self._stop_mark = StopMark()
        self.idle = [0.0] * threads
        self._jobs, self._count, self._name, self._pid = jobs, threads, name, os.getpid()
        self._turns: SimpleQueue[tuple[_OpenJob[T], Callable[[], None]] | _Turn] = SimpleQueue()
        self._lock = threading.Lock()  # guards `_line`, the counts of open jobs, `_opening`, `_resting` and `_present`
        self._line: deque[_OpenJob[T]] = deque()
        self._depth = self._room = depth
        self._opening = self._exhausted = False
        self._active = threads
        self._wake_ups: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(threads)]
        self._doing: list[tuple[object, float]] = [("nothing yet", time.monotonic())] * threads
        self._idents: set[int] = set()
        self._present: set[int] = set()  # the numbers of the workers that have not left or ended
        self._resting: SimpleQueue[None] | None = None  # while the pipeline rests; an item ends the wait for workers
        self._kept_turns: deque[tuple[_OpenJob[T], Callable[[], None]] | _Turn] = deque()  # of workers that have left
        self._left: SimpleQueue[None] = SimpleQueue()
        self._closing = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._request_open()
            absent = [number for number in range(self._count) if number not in self._present]
            self._present.update(absent)
        try:
            while absent:
                background.start(partial(self._run, absent[-1]), f"{self._name}-{absent[-1]}")
                absent.pop()
        except RuntimeError as error:  # the system allows no more threads
            self.results.put(_OpenJob[T](None, error=error))
        finally:
            self._present.difference_update(absent)

    def rest(self) -> None:
        with self._lock:
            limit: SimpleQueue[None] = SimpleQueue()
            self._resting = limit
            working = any(self._doing[number][0] != "waiting" for number in self._present)
        for _ in range(self._count):
            self._turns.put(_Turn.LOOK)
        for wake_up in self._wake_ups[self._active :]:
            wake_up.put(None)
        if working:
            background.start(partial(self._close_late, limit), f"{self._name} rest")

    def _close_late(self, gone_on: SimpleQueue[None]) -> None:
        """Close unless all workers have left soon, or go on."""
        with suppress(Empty):
            gone_on.get(timeout=REST_LIMIT)
            return
        with self._lock:
            late = self._resting is gone_on and self._present
        if late:
            self.close()

    def go_on(self) -> bool:
        with self._lock:
            resting, self._resting = self._resting, None
        if resting is not None:
            resting.put(None)
        if not self.closed:
            self.start()
        return not self.closed

    def make_room(self) -> None:
        """Let one more job be opened, because one was delivered."""
        with self._lock:
            self._room += 1
            self._request_open()

    def resize(self, threads: int, depth: int) -> None:
        with self._lock:
            self._active = min(threads, self._count)
            self._room += depth - self._depth
            self._depth = depth
            self._request_open()
        self._wake_suspended()

    def report(self) -> str:
        now = time.monotonic()
        return "; ".join(
            f"worker {n}: {activity} for {now - since:.0f} s" for n, (activity, since) in enumerate(self._doing)
        )

    def close(self) -> None:
        """Stop the workers, each after the value that it makes, and wait for them, 2 s at most. May be called twice."""
        if self._waited_for or os.getpid() != self._pid:  # forked: the threads are the parent's
            return
        self._stop()
        if threading.get_ident() in self._idents or background.exiting():
            return
        with self._closing:
            if not self._waited_for:  # waiting again would not help
                background.call(self._join)
                self._waited_for = True

    at_exit = close

    def _stop(self) -> None:
        self.closed = True
        self._stop_mark.set()
        for _ in range(self._count):
            self._turns.put(_Turn.END)
        self._wake_suspended()
        self.results.put(None)

    def _join(self) -> None:
        deadline = time.monotonic() + JOIN_LIMIT
        with suppress(Empty):
            while self._present:
                self._left.get(timeout=max(0.0, deadline - time.monotonic()))
        # What nobody took keeps the memory of its batches.
        self._line.clear()
        self._kept_turns.clear()
        for queue in (self._turns, self.results):
            with suppress(Empty):
                while True:
                    queue.get_nowait()
        self.results.put(None)  # for a consumer that waits on another thread

    def _wake_suspended(self) -> None:
        for wake_up in self._wake_ups:
            wake_up.put(None)

    def _request_open(self) -> None:
        """Have a worker open the next job after the tasks of those before it. The caller holds the lock."""
        if self._room > 0 and not self._opening and not self._exhausted:
            self._opening = True
            self._turns.put(_Turn.OPEN)

    def _run(self, number: int) -> None:
        ident = threading.get_ident()
        self._idents.add(ident)
        left = False
        try:
            with self._stop_mark.followed():
                left = self._work(number)
        finally:
            self._idents.discard(ident)
            if not left:  # or another one may have the number by now
                self._present.discard(number)
            if self.closed:
                self._left.put(None)  # for `close`, which waits for it

    def _work(self, number: int) -> bool:
        """Work until the pipeline is closed, or all jobs have ended, or it rests; return whether it rests."""
        while not self.closed:
            if self._leaves(number):
                return True
            begun = time.monotonic()
            self._doing[number] = ("waiting", begun)
            if number >= self._active and not self._exhausted:  # suspended by `resize`
                self._wake_ups[number].get()
                continue
            turn = self._kept_turns.popleft() if self._kept_turns else self._turns.get()
            self.idle[number] += time.monotonic() - begun
            if turn is _Turn.END or self.closed:
                break
            if turn is _Turn.LOOK:
                continue
            self._doing[number] = ("a turn", begun)  # before it looks, so that `rest` knows of it or it of `rest`
            if self._resting is not None:
                self._kept_turns.append(turn)
            elif isinstance(turn, _Turn):
                self._doing[number] = ("opening the next batch", time.monotonic())
                self._open()
            else:
                self._carry_out(number, *turn)
            del turn  # while it waits, a worker must not keep the memory of a delivered batch
        self._doing[number] = ("nothing more to do", time.monotonic())
        return False

    def _leaves(self, number: int) -> bool:
        """Return whether the pipeline rests, so that a worker leaves: `go_on` starts another one."""
        if self._resting is None:
            return False
        with self._lock:
            if self._resting is not None:
                self._present.discard(number)
            return self._resting is not None

    def _open(self) -> None:
        """Take the next job, and pass its tasks to the workers."""
        tasks: Sequence[Callable[[], None]] = ()
        try:
            job = next(self._jobs)
            if job is None:
                with self._lock:
                    self._opening = False
                return
            tasks = job.tasks
            opened = _OpenJob(job, len(tasks))
        except StopIteration:
            opened = _OpenJob[T](None, is_end=True)
        except BaseException as caught:  # noqa: BLE001  # raised again in the consumer's thread
            opened = _OpenJob[T](None, error=caught)
        with self._lock:
            self._opening, self._exhausted = False, opened.job is None
            self._room -= 1
            self._line.append(opened)
            for task in tasks:
                self._turns.put((opened, task))
            self._request_open()
        if self._exhausted:
            for _ in range(self._count):
                self._turns.put(_Turn.END)
            self._wake_suspended()
        if not tasks:
            self._finish(opened)

    def _carry_out(self, number: int, opened: _OpenJob[T], task: Callable[[], None]) -> None:
        self._doing[number] = (task, time.monotonic())
        error: BaseException | None = None
        try:
            task()
        except BaseException as caught:  # noqa: BLE001  # raised again in the consumer's thread
            error = caught
        with self._lock:
            opened.left -= 1
            opened.error = opened.error or error
            last = not opened.left
        if last:
            self._finish(opened)

    def _finish(self, opened: _OpenJob[T]) -> None:
        """Make the result of a job whose tasks have ended, and deliver it once those before it are."""
        if opened.job is not None and opened.error is None:
            try:
                opened.value = opened.job.result()
            except BaseException as caught:  # noqa: BLE001  # raised again in the consumer's thread
                opened.error = caught
        with self._lock:
            opened.job, opened.ended = None, True
            while self._line and self._line[0].ended:
                first = self._line.popleft()
                self.results.put(None if first.is_end else first)
