"""Runners, which carry out tasks in this process, in several, or in the workers of a Dask cluster.

The choice of a runner changes only the time that the work takes. Dask's workers need the source and the output under
the same paths, on a common file system.
"""

import pickle
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

from ..errors import ConfigError, ShardioError, SourceError
from ..system import processes
from ..system.optional import load
from ..system.shared_memory import Shared
from ..system.threads import in_order

POLL_SECONDS = 0.1
THREADS_SECONDS = 2.0
_DASK_RETRIES = 3
_DASK_CONNECT_SECONDS = 30

Advance: TypeAlias = Callable[[int], None]
"""Called with the number of samples done since the last call."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called from time to time with a word for the work, the number of samples done, and the total."""


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that reports nothing."""


Work: TypeAlias = Callable[[Any, Advance], Any]
"""`work(task, advance)` carries out one task; it can be pickled, with what all tasks share."""


OnProgress: TypeAlias = Callable[[int], None]
"""Called from time to time with the number of samples done so far, by one thread at a time."""

OnResult: TypeAlias = Callable[[Any], None]
"""Called with the result of each task, in the thread that started the runner; its exception ends the run."""

Runner: TypeAlias = Callable[[Work, Sequence[Any], OnProgress, OnResult], None]
"""`run(work, tasks, on_progress, on_result)` carries out all tasks, in any order; the first failure ends the rest."""


def in_this_process(work: Work, tasks: Sequence[Any], on_progress: OnProgress, on_result: OnResult) -> None:
    """A `Runner` that carries out all tasks in the calling thread."""
    done, reported = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, reported
        done += count
        if time.monotonic() - reported >= POLL_SECONDS:
            reported = time.monotonic()
            on_progress(done)

    for task in tasks:
        with portable_errors():
            result = work(task, advance)
        on_result(result)
    on_progress(done)


def in_threads(workers: int) -> Runner:
    """Return a `Runner` on threads of this process, which share what the tasks share."""

    def run(work: Work, tasks: Sequence[Any], on_progress: OnProgress, on_result: OnResult) -> None:
        done, reported = 0, time.monotonic()
        counting, stop = threading.Lock(), threading.Event()

        def advance(count: int) -> None:
            nonlocal done, reported
            if stop.is_set():
                raise _Stopped
            with counting:
                done += count
                if time.monotonic() - reported >= POLL_SECONDS:
                    reported = time.monotonic()
                    on_progress(done)

        for result in in_order(lambda task: work(task, advance), tasks, workers, ending=stop.set):
            on_result(result)
        on_progress(done)

    return run


def in_processes(workers: int, *, threads_first: bool = False) -> Runner:
    """Return a `Runner` that starts up to `workers` processes on this machine; they end when this process ends.

    With `threads_first`, as many threads, each with a copy of the work, start first: a short job is done before
    processes would have started. A long job continues in processes, which do not compete for the interpreter.
    """

    def run(work: Work, tasks: Sequence[Any], on_progress: OnProgress, on_result: OnResult) -> None:
        if workers == 1 or len(tasks) < 2:
            in_this_process(work, tasks, on_progress, on_result)
            return
        waiting, done = deque(tasks), 0
        if threads_first:
            done = _run_in_threads(work, waiting, on_progress, on_result, workers)
        if waiting:
            _run_in_processes(work, waiting, lambda n: on_progress(done + n), on_result, workers)

    return run


def _run_in_threads(work: Work, waiting: deque[Any], on_progress: OnProgress, on_result: OnResult, workers: int) -> int:
    """Carry out the tasks that can begin within `THREADS_SECONDS`; return the number of samples done."""
    mapped = Shared(work)  # each thread loads a copy of its own
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
                result = copy(task, advance)
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
                        on_result(result)
                        pending[pool.submit(next, iterator, None)] = iterator
                on_progress(sum(counts))
        finally:
            stop.set()
    return sum(counts)


def _run_in_processes(
    work: Work, waiting: deque[Any], on_progress: OnProgress, on_result: OnResult, workers: int
) -> None:
    counter: Synchronized[int] = processes.CONTEXT.Value("q", 0)
    stop = processes.CONTEXT.Event()
    pool = ProcessPoolExecutor(
        min(workers, len(waiting)),
        processes.CONTEXT,
        initializer=_begin_process,
        initargs=(Shared(work), counter, stop),
    )
    pending: set[Future[Any]] = set()
    try:
        while waiting or pending:
            # A few ahead is enough to keep all processes busy; a million futures would only take memory.
            while waiting and len(pending) < 2 * workers:
                with processes.children_ignore_interrupts():  # the first call starts all processes
                    pending.add(pool.submit(_run_task, waiting.popleft()))
            finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                on_result(future.result())
            on_progress(counter.value)
    except BrokenProcessPool as error:
        raise ShardioError(
            f"a conversion process died; it may have run out of memory, or else {processes.script_advice()}"
        ) from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Raised in a worker when the conversion has failed or been interrupted elsewhere."""


_state: tuple[Work, "Synchronized[int]", Event] | None = None


def _begin_process(mapped: Shared, counter: "Synchronized[int]", stop: Event) -> None:
    """Load the work, with what all tasks share, once per process."""
    global _state
    processes.die_with_parent()
    _state = (mapped.load(), counter, stop)


def _run_task(task: Any) -> Any:
    """Carry out one task in a process of the pool."""
    if _state is None:
        raise RuntimeError("a task came before the process was set up")
    work, counter, stop = _state

    def advance(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        with counter.get_lock():
            counter.value += count

    with portable_errors():
        return work(task, advance)


def on_dask(address: str, workers: int) -> Runner:
    """Return a `Runner` on the scheduler at `address` (`tcp://host:8786`), or on `workers` processes for `local`.

    Shards are the tasks, and Dask retries them.
    """
    distributed = load("distributed", purpose="conversion on a Dask cluster", extra="dask")

    def run(work: Work, tasks: Sequence[Any], on_progress: OnProgress, on_result: OnResult) -> None:
        try:
            client = (
                distributed.Client(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
                if address == "local"
                else distributed.Client(address, timeout=_DASK_CONNECT_SECONDS)
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {address!r}: {error}") from error
        with client:
            # As bytes, which each thread of a worker unpickles for itself: a source is read by one thread at a time.
            # A task makes them, which Dask repeats if all workers that hold them die; scattered data would be lost.
            with warnings.catch_warnings(action="ignore"):  # of their size
                pickled = client.submit(bytes, pickle.dumps(work), pure=False)
            waiting, done = iter(tasks), 0
            counts: dict[Any, int] = {}
            results = distributed.as_completed(with_results=False, raise_errors=False)

            def submit() -> None:
                if (task := next(waiting, None)) is not None:
                    # Not pure: a shard that an earlier conversion wrote is asked for again, and found by its record.
                    future = client.submit(_run_dask_task, pickled, task, retries=_DASK_RETRIES, pure=False)
                    counts[future.key] = task.count
                    results.add(future)

            for _ in range(2 * max(1, sum(client.nthreads().values()))):
                submit()
            while not results.is_empty():
                future = next(results)
                if future.status == "cancelled":
                    raise ShardioError(f"the Dask scheduler has given up a shard ({future.key}): {future.status}")
                try:
                    result = future.result()
                except distributed.KilledWorker as error:
                    raise ShardioError(f"Dask workers died repeatedly on one shard: {error}") from error
                done += counts.pop(future.key)
                on_result(result)
                on_progress(done)
                submit()

    return run


_local = threading.local()


def _run_dask_task(pickled: bytes, task: Any) -> Any:
    """Carry out one task in a Dask worker."""
    if getattr(_local, "pickled", None) is not pickled:
        # From our own client, over the connection by which Dask itself sends pickles.
        _local.pickled, _local.work = pickled, pickle.loads(pickled)  # noqa: S301
    with portable_errors():
        return _local.work(task, lambda count: None)


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
