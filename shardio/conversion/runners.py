"""Who does the tasks: this process, several, or those of a Dask cluster. It changes nothing but the time it takes."""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

from ..errors import ShardioError, SourceError
from ..system import processes
from ..system.shared_memory import Shared
from .work import Advance

POLL_SECONDS = 0.1
THREADS_SECONDS = 2.0


Work: TypeAlias = Callable[[Any, Any, Advance], Any]
"""`work(settings, task, advance)`: a module's function."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how far the work is.

    Attributes:
        report: called now and then with the samples done so far.
        finished: called with what each task gave; what it raises ends the rest.
    """

    report: Callable[[int], None]
    finished: Callable[[Any], None]


Runner: TypeAlias = Callable[[Work, Any, Sequence[Any], Watch], None]
"""`run(work, settings, tasks, watch)` does all tasks, in any order; the first failure ends the rest."""


def here(work: Work, settings: Any, tasks: Sequence[Any], watch: Watch) -> None:
    """A `Runner`: this process does all."""
    done, reported = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, reported
        done += count
        if time.monotonic() - reported >= POLL_SECONDS:
            reported = time.monotonic()
            watch.report(done)

    for task in tasks:
        watch.finished(told(partial(work, settings, task, advance)))
    watch.report(done)


def in_processes(workers: int) -> Runner:
    """A `Runner`: so many new processes of this machine, which end with this one, however it ends.

    Where threads may use copies of what the tasks share (`settings.threads`), so many threads begin at once: a short
    job is done before processes would have started; a long one goes on in processes, which do not wait for each other.
    """

    def run(work: Work, settings: Any, tasks: Sequence[Any], watch: Watch) -> None:
        if workers == 1 or len(tasks) < 2:
            here(work, settings, tasks, watch)
            return
        waiting = deque(tasks)
        done = _by_threads(work, settings, waiting, watch, workers) if getattr(settings, "threads", False) else 0
        if waiting:
            _by_processes(work, settings, waiting, Watch(lambda n: watch.report(done + n), watch.finished), workers)

    return run


def _by_threads(work: Work, settings: Any, waiting: deque[Any], watch: Watch, workers: int) -> int:
    """Does the tasks that can be begun within some seconds; gives how much was done."""
    shared = Shared(settings)  # each thread has a copy of its own
    deadline = time.monotonic() + THREADS_SECONDS
    counts, stop = [0] * workers, threading.Event()

    def loop(number: int) -> Iterator[Any]:
        def advance(count: int) -> None:
            if stop.is_set():
                raise _Stopped
            counts[number] += count

        own = shared.load()
        while time.monotonic() < deadline:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            yield told(partial(work, own, task, advance))

    with ThreadPoolExecutor(workers) as pool:
        loops = [loop(number) for number in range(workers)]
        pending = {pool.submit(next, each, None): each for each in loops}
        try:
            while pending:
                finished, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    each = pending.pop(future)
                    if (result := future.result()) is not None:
                        watch.finished(result)
                        pending[pool.submit(next, each, None)] = each
                watch.report(sum(counts))
        finally:
            stop.set()
    return sum(counts)


def _by_processes(work: Work, settings: Any, waiting: deque[Any], watch: Watch, workers: int) -> None:
    counter: Synchronized[int] = processes.CONTEXT.Value("q", 0)
    stop = processes.CONTEXT.Event()
    pool = ProcessPoolExecutor(
        min(workers, len(waiting)), processes.CONTEXT, initializer=_begin, initargs=(Shared(settings), counter, stop)
    )
    pending: set[Future[Any]] = set()
    try:
        while waiting or pending:
            # A few ahead is enough to keep all processes busy; a million futures would only take memory.
            while waiting and len(pending) < 2 * workers:
                with processes.children_ignore_interrupts():  # the first call starts all processes
                    pending.add(pool.submit(_one, work, waiting.popleft()))
            finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                watch.finished(future.result())
            watch.report(counter.value)
    except BrokenProcessPool as error:
        hint = "it may have run out of memory, or a script lacks `if __name__ == '__main__':`"
        raise ShardioError(f"a conversion process died; {hint}") from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Raised in a process whose conversion has failed or been interrupted elsewhere."""


_state: tuple[Any, "Synchronized[int]", Event] | None = None


def _begin(shared: Shared, counter: "Synchronized[int]", stop: Event) -> None:
    """In a new process: keeps what all its tasks share."""
    global _state
    processes.die_with_parent()
    _state = (shared.load(), counter, stop)


def _one(work: Work, task: Any) -> Any:
    """In a process of the pool: one task."""
    if _state is None:
        raise RuntimeError("a task before the process was set up")
    settings, counter, stop = _state

    def advance(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        with counter.get_lock():
            counter.value += count

    return told(partial(work, settings, task, advance))


def told(work: Callable[[], Any]) -> Any:
    """What `work` gives; a source's own exception, which may not survive the way between processes, as SourceError."""
    try:
        return work()
    except (ShardioError, OSError, _Stopped):
        raise
    except Exception as error:  # noqa: BLE001
        text = "".join(traceback.format_exception(error))
        raise SourceError(f"the source failed with {type(error).__name__}: {error}\n{text}") from None
