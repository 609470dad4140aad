"""Runners, which carry out tasks in this process or in several; `dask_runner` uses Dask's workers.

The choice of a runner changes only the time that the work takes.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

from ..errors import ShardioError, SourceError
from ..system import processes
from ..system.shared_memory import Shared
from ..system.threads import in_order
from .tasks import Advance

POLL_SECONDS = 0.1
THREADS_SECONDS = 2.0

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called from time to time with a word for the work, the number of samples done, and the total."""


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that reports nothing."""


TaskFunction: TypeAlias = Callable[[Any, Any, Advance], Any]
"""`function(shared, task, advance)` carries out one task; it is defined at the top of a module, to be pickled."""


@dataclass(frozen=True, slots=True)
class RunnerCallbacks:
    """Functions that a runner calls while it works, in the thread that started it.

    Attributes:
        on_progress: called from time to time with the number of samples done so far.
        on_result: called with the result of each task; an exception that it raises ends the run.
    """

    on_progress: Callable[[int], None]
    on_result: Callable[[Any], None]


Runner: TypeAlias = Callable[[TaskFunction, Any, Sequence[Any], RunnerCallbacks], None]
"""`run(function, shared, tasks, callbacks)` carries out all tasks, in any order; the first failure ends the rest."""


def in_this_process(function: TaskFunction, shared: Any, tasks: Sequence[Any], callbacks: RunnerCallbacks) -> None:
    """A `Runner` that carries out all tasks in the calling thread."""
    done, reported = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, reported
        done += count
        if time.monotonic() - reported >= POLL_SECONDS:
            reported = time.monotonic()
            callbacks.on_progress(done)

    for task in tasks:
        with portable_errors():
            result = function(shared, task, advance)
        callbacks.on_result(result)
    callbacks.on_progress(done)


def in_threads(workers: int) -> Runner:
    """Return a `Runner` on threads of this process, which share what the tasks share."""

    def run(function: TaskFunction, shared: Any, tasks: Sequence[Any], callbacks: RunnerCallbacks) -> None:
        done = 0
        for result in in_order(lambda task: function(shared, task, lambda count: None), tasks, workers):
            callbacks.on_result(result)
            done += result.count
            callbacks.on_progress(done)

    return run


def in_processes(workers: int) -> Runner:
    """Return a `Runner` that starts up to `workers` processes on this machine; they end when this process ends.

    If threads may use copies of `shared` (`shared.threads`), as many threads start first: a short job is done before
    processes would have started. A long job continues in processes, which do not compete for the interpreter.
    """

    def run(function: TaskFunction, shared: Any, tasks: Sequence[Any], callbacks: RunnerCallbacks) -> None:
        if workers == 1 or len(tasks) < 2:
            in_this_process(function, shared, tasks, callbacks)
            return
        waiting = deque(tasks)
        done = _run_in_threads(function, shared, waiting, callbacks, workers) if _allows_threads(shared) else 0
        if waiting:
            rest = RunnerCallbacks(lambda n: callbacks.on_progress(done + n), callbacks.on_result)
            _run_in_processes(function, shared, waiting, rest, workers)

    return run


def _allows_threads(shared: Any) -> bool:
    return bool(getattr(shared, "threads", False))


def _run_in_threads(
    function: TaskFunction, shared: Any, waiting: deque[Any], callbacks: RunnerCallbacks, workers: int
) -> int:
    """Carry out the tasks that can begin within `THREADS_SECONDS`; return the number of samples done."""
    mapped = Shared(shared)  # each thread loads a copy of its own
    deadline = time.monotonic() + THREADS_SECONDS
    counts, stop = [0] * workers, threading.Event()

    def results(number: int) -> Iterator[Any]:
        def advance(count: int) -> None:
            if stop.is_set():
                raise _Stopped
            counts[number] += count

        copy = mapped.load()
        while time.monotonic() < deadline:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            with portable_errors():
                result = function(copy, task, advance)
            yield result

    with ThreadPoolExecutor(workers) as pool:
        iterators = [results(number) for number in range(workers)]
        pending = {pool.submit(next, iterator, None): iterator for iterator in iterators}
        try:
            while pending:
                finished, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    iterator = pending.pop(future)
                    if (result := future.result()) is not None:
                        callbacks.on_result(result)
                        pending[pool.submit(next, iterator, None)] = iterator
                callbacks.on_progress(sum(counts))
        finally:
            stop.set()
    return sum(counts)


def _run_in_processes(
    function: TaskFunction, shared: Any, waiting: deque[Any], callbacks: RunnerCallbacks, workers: int
) -> None:
    counter: Synchronized[int] = processes.CONTEXT.Value("q", 0)
    stop = processes.CONTEXT.Event()
    pool = ProcessPoolExecutor(
        min(workers, len(waiting)),
        processes.CONTEXT,
        initializer=_begin_process,
        initargs=(Shared(shared), counter, stop),
    )
    pending: set[Future[Any]] = set()
    try:
        while waiting or pending:
            # A few ahead is enough to keep all processes busy; a million futures would only take memory.
            while waiting and len(pending) < 2 * workers:
                with processes.children_ignore_interrupts():  # the first call starts all processes
                    pending.add(pool.submit(_run_task, function, waiting.popleft()))
            finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                callbacks.on_result(future.result())
            callbacks.on_progress(counter.value)
    except BrokenProcessPool as error:
        raise ShardioError(
            f"a conversion process died; it may have run out of memory, or else {processes.script_advice()}"
        ) from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Raised in a worker when the conversion has failed or been interrupted elsewhere."""


_state: tuple[Any, "Synchronized[int]", Event] | None = None


def _begin_process(mapped: Shared, counter: "Synchronized[int]", stop: Event) -> None:
    """Load what all tasks share, once per process."""
    global _state
    processes.die_with_parent()
    _state = (mapped.load(), counter, stop)


def _run_task(function: TaskFunction, task: Any) -> Any:
    """Carry out one task in a process of the pool."""
    if _state is None:
        raise RuntimeError("a task came before the process was set up")
    shared, counter, stop = _state

    def advance(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        with counter.get_lock():
            counter.value += count

    with portable_errors():
        return function(shared, task, advance)


@contextmanager
def portable_errors() -> Iterator[None]:
    """Raise a source's own exceptions as SourceError, with their traceback as text.

    An exception class of the source may not survive pickling, so it could not come back from another process.
    """
    try:
        yield
    except (ShardioError, OSError, _Stopped):
        raise
    except Exception as error:  # noqa: BLE001
        text = "".join(traceback.format_exception(error))
        raise SourceError(f"the source failed with {type(error).__name__}: {error}\n{text}") from None
