"""Functions that `verdicts.py` and `versus.py` plant as the `map` of a loader."""

import hashlib
import multiprocessing
import os
import time
from typing import Any

Batch = dict[str, Any]
_BYTES = bytes(1 << 14)


def sleep(batch: Batch) -> Batch:
    """Wait, as for a service elsewhere."""
    time.sleep(0.05)
    return batch


def unchanged(batch: Batch) -> Batch:
    """Do nothing: nothing is made ahead of a loop with a function."""
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


def hash_long(batch: Batch) -> Batch:
    """Compute for longer than decoding a batch takes, without the interpreter's lock."""
    end = time.thread_time() + 0.25
    while time.thread_time() < end:
        hashlib.blake2b(_BYTES)
    return batch


def hash_a_while(batch: Batch) -> Batch:
    """Compute without the interpreter's lock, for as many processor seconds as the environment says."""
    end = time.thread_time() + float(os.environ["PLANTED_CPU_SECONDS"])
    while time.thread_time() < end:
        hashlib.blake2b(_BYTES)
    return batch
