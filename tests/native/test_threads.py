"""Threads that call compiled code together get what one alone gets, on an interpreter without the GIL too."""

import subprocess
import sys

import pytest

from shardio import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="not compiled here")
SCRIPT = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from shardio.native import rows
from shardio.order.permutation import Permutation

THREADS = 8
table = np.random.default_rng(1).integers(0, 256, (512, 100), dtype=np.uint8)

def work(number):
    order = Permutation(3_001, number % 3)(np.arange(3_001))
    chosen = np.random.default_rng(number % 3).permutation(len(table))
    out = np.empty_like(table)
    rows.gather(table.ctypes.data + chosen * table.strides[0], table.shape[1], out)
    return order.tobytes() + out.tobytes()

barrier = threading.Barrier(THREADS)

def together(number):
    barrier.wait()  # the first calls look up the library's functions at once
    return [work(number + turn) for turn in range(40)]

with ThreadPoolExecutor(THREADS) as threads:
    found = list(threads.map(together, range(THREADS)))
wanted = [work(number) for number in range(3)]
assert all(each == wanted[(number + turn) % 3] for number, turns in enumerate(found) for turn, each in enumerate(turns))
print("equal")
"""


def test_first_calls_of_many_threads() -> None:
    """Positions of plans and rows are those of one thread, where all threads call for the first time at once."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr
