"""Find the worker processes of a loader with `isolate=True` among this process's children."""

import gc
import multiprocessing
from multiprocessing.process import BaseProcess

from _time_limit import wait_until

import shardio


def workers_of(loader: shardio.Loader) -> list[BaseProcess]:
    """The worker processes of this loader, all of which live.

    Those of older loaders have the same names: this collects garbage, and waits until they have ended.
    """
    gc.collect()
    name = f"shardio rank {loader.world.rank} worker "

    def living() -> list[BaseProcess]:
        return [process for process in multiprocessing.active_children() if process.name.startswith(name)]

    wait_until(lambda: len(living()) == loader.threads)
    return living()
