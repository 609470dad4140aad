"""The practical limit of loading small records from the page cache: NumPy's take from a memory map, on threads.

    python limits/take.py FILE.npy BATCH_SIZE THREADS SECONDS

Each thread gathers whole batches of random rows into two buffers of its own, in turn; NumPy does so without the GIL.
Every page is touched once before the clock starts. Prints one line: records per second, and user+system seconds per
1000 records.
"""

import json
import sys
import threading
import time

import numpy as np


def work(rows: "np.ndarray", order: "np.ndarray", batch_size: int, deadline: float, done: list[int]) -> None:
    """Gather batches of `order` until the deadline, and append their number of records to `done`."""
    buffers = [np.ones((batch_size, *rows.shape[1:]), rows.dtype) for _ in range(2)]
    batches = len(order) // batch_size
    number = 0
    while time.perf_counter() < deadline:
        first = number % batches * batch_size
        rows.take(order[first : first + batch_size], axis=0, out=buffers[number % 2], mode="clip")
        number += 1
    done.append(number * batch_size)


def main() -> None:
    """Run from the command line."""
    rows = np.load(sys.argv[1], mmap_mode="r").view(np.ndarray)  # a memmap's own methods are slower
    batch_size, threads, seconds = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    rows.reshape(-1).view(np.uint8)[::4096].sum()
    orders = [np.random.default_rng(thread).permutation(len(rows)) for thread in range(threads)]
    done: list[int] = []
    cpu, begun = time.process_time(), time.perf_counter()
    pool = [threading.Thread(target=work, args=(rows, order, batch_size, begun + seconds, done)) for order in orders]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"samples_per_s": sum(done) / took, "cpu_s_per_1000": 1000 * cpu / sum(done)}))


if __name__ == "__main__":
    main()
