"""Conversion by the workers of a Dask cluster: shards are the tasks, retries are Dask's.

The workers need the source and the output by the same paths, on a common file system. Shards that stand have records
there: whatever ends, workers or this process, `resume` goes on.
"""

import pickle
import threading
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError, ShardioError
from ..system.optional import load
from .runners import Runner, Watch, Work, told

RETRIES = 3
CONNECT_SECONDS = 30


def on_dask(address: str, workers: int) -> Runner:
    """A `Runner` on the scheduler at `address` (`tcp://host:8786`), or on `workers` processes for `local`."""
    distributed = load("distributed", purpose="conversion on a Dask cluster", extra="dask")

    def run(work: Work, settings: Any, tasks: Sequence[Any], watch: Watch) -> None:
        try:
            client = (
                distributed.Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)
                if address == "local"
                else distributed.Client(address, timeout=CONNECT_SECONDS)
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {address!r}: {error}") from error
        with client:
            _run(distributed, client, work, settings, tasks, watch)

    return run


def _run(distributed: Any, client: Any, work: Work, settings: Any, tasks: Sequence[Any], watch: Watch) -> None:
    # As bytes, which each thread of a worker unpickles for itself: sources are made for one thread at a time.
    shared = client.scatter(pickle.dumps(settings), broadcast=True)
    waiting = iter(tasks)
    sizes: dict[Any, int] = {}
    results = distributed.as_completed(with_results=False, raise_errors=False)
    done = 0

    def submit() -> None:
        if (task := next(waiting, None)) is not None:
            # Not pure: a shard that an earlier conversion wrote is asked for anew, and found by its record.
            future = client.submit(_one, work, shared, task, retries=RETRIES, pure=False)
            sizes[future.key] = task.count
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
            raise ShardioError(f"Dask workers died over and over on one shard: {error}") from error
        done += sizes.pop(future.key)
        watch.finished(result)
        watch.report(done)
        submit()


_local = threading.local()


def _one(work: Work, shared: bytes, task: Any) -> Any:
    """In a worker: one task."""
    if getattr(_local, "shared", None) is not shared:
        # From our own client, over the way by which Dask itself sends pickles.
        _local.shared, _local.settings = shared, pickle.loads(shared)  # noqa: S301
    return told(lambda: work(_local.settings, task, lambda count: None))
