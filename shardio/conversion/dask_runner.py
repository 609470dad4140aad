"""Conversion by the workers of a Dask cluster: shards are the tasks, and Dask retries them.

The workers need the source and the output under the same paths, on a common file system. Finished shards have records
there, so `resume` continues wherever the workers or this process stopped.
"""

import pickle
import threading
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError, ShardioError
from ..system.optional import load
from .runners import Runner, RunnerCallbacks, TaskFunction, portable_errors

RETRIES = 3
CONNECT_SECONDS = 30


def on_dask(address: str, workers: int) -> Runner:
    """Return a `Runner` on the scheduler at `address` (`tcp://host:8786`), or on `workers` processes for `local`."""
    distributed = load("distributed", purpose="conversion on a Dask cluster", extra="dask")

    def run(function: TaskFunction, shared: Any, tasks: Sequence[Any], callbacks: RunnerCallbacks) -> None:
        try:
            client = (
                distributed.Client(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
                if address == "local"
                else distributed.Client(address, timeout=CONNECT_SECONDS)
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {address!r}: {error}") from error
        with client:
            _run(distributed, client, function, shared, tasks, callbacks)

    return run


def _run(
    distributed: Any, client: Any, function: TaskFunction, shared: Any, tasks: Sequence[Any], callbacks: RunnerCallbacks
) -> None:
    # As bytes, which each thread of a worker unpickles for itself: a source is read by one thread at a time.
    pickled = client.scatter(pickle.dumps(shared), broadcast=True)
    waiting = iter(tasks)
    counts: dict[Any, int] = {}
    results = distributed.as_completed(with_results=False, raise_errors=False)
    done = 0

    def submit() -> None:
        if (task := next(waiting, None)) is not None:
            # Not pure: a shard that an earlier conversion wrote is asked for again, and found by its record.
            future = client.submit(_run_task, function, pickled, task, retries=RETRIES, pure=False)
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
        callbacks.on_result(result)
        callbacks.on_progress(done)
        submit()


_local = threading.local()


def _run_task(function: TaskFunction, pickled: bytes, task: Any) -> Any:
    """Carry out one task in a Dask worker."""
    if getattr(_local, "pickled", None) is not pickled:
        # From our own client, over the connection by which Dask itself sends pickles.
        _local.pickled, _local.shared = pickled, pickle.loads(pickled)  # noqa: S301
    with portable_errors():
        return function(_local.shared, task, lambda count: None)
