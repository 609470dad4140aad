"""Functions that `verdicts.py` plants as the `map` of a loader."""

import multiprocessing
import time
from typing import Any

Batch = dict[str, Any]


def sleep(batch: Batch) -> Batch:
    """Wait, as for a service elsewhere."""
    time.sleep(0.05)
    return batch


def compute(batch: Batch) -> Batch:
    """Compute in Python, which holds the interpreter's lock."""
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(range(1000))
    return batch


def sleep_on_rank_1(batch: Batch) -> Batch:
    """Be slow on one rank only."""
    if "rank 1" in multiprocessing.current_process().name:
        time.sleep(0.1)
    return batch
