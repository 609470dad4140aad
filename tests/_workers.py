"""Find the worker processes of loaders with `isolate=True` among this process's children."""

import gc
import multiprocessing
from multiprocessing.process import BaseProcess

import shardio


def workers_of(loader: shardio.Loader) -> list[BaseProcess]:
    """The worker processes of this loader; collect garbage first, so that the loaders of other tests are gone."""
    gc.collect()
    name = f"shardio rank {loader.world.rank} worker "
    return [process for process in multiprocessing.active_children() if process.name.startswith(name)]
