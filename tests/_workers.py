"""The worker processes of loaders with `isolate=True`, as the operating system knows them."""

import gc
import multiprocessing
from multiprocessing.process import BaseProcess

import shardio


def workers_of(loader: shardio.Loader) -> list[BaseProcess]:
    """The processes that work for this loader; loaders of other tests are gone."""
    gc.collect()
    name = f"shardio rank {loader.world.rank} worker "
    return [process for process in multiprocessing.active_children() if process.name.startswith(name)]
