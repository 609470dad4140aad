"""Compare block shuffling with a global shuffle: quality of the order, and rates from a cold page cache.

    python benchmarks/shuffle.py --json shuffle.json

Quality, on 1,000,000 samples stored class by class (1,000 classes), batches of 256:
- runs: the mean number of neighbours in the epoch that share a class, one after the other (1.001 is chance);
- classes: different classes in a batch (chance: 226);
- distance: the median distance, in the stored order, between neighbours in the epoch (chance: 292,893).
Rates: records of 3 KB in tar shards, dropped from the page cache before each epoch.
"""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, in_turns, options, rate
from shardio.order.plan import Shuffle

SAMPLES, CLASSES, BATCH = 1_000_000, 1000, 256
RECORDS = 100_000
ORDERS: dict[str, dict[str, Any]] = {
    "global": {"shuffle": "global"},
    "block of 64, window of 16": {"shuffle": "block"},
    "block of 64, window of 64": {"shuffle": "block", "window": 64},
    "block of 16, window of 256": {"shuffle": "block", "block": 16, "window": 256},
    "block of 256, window of 4": {"shuffle": "block", "block": 256, "window": 4},
    "stored": {"shuffle": None},
}


def quality(shuffle: Shuffle, **blocks: int) -> dict[str, float]:
    """The quality of one epoch's order."""
    order = shardio.Plan(SAMPLES, 1, 0, shuffle, **blocks).indices(0, SAMPLES)
    classes = order // (SAMPLES // CLASSES)
    batches = classes[: SAMPLES // BATCH * BATCH].reshape(-1, BATCH)
    distinct = 1 + (np.diff(np.sort(batches, axis=1), axis=1) != 0).sum(axis=1)
    return {
        "run": len(classes) / (1 + int((np.diff(classes) != 0).sum())),
        "classes_in_a_batch": float(distinct.mean()),
        "fewest_classes_in_a_batch": int(distinct.min()),
        "neighbours_distance": float(np.median(np.abs(np.diff(order)))),
    }


def cold_rate(path: Path, order: dict[str, Any]) -> float:
    """Samples per second of one epoch with a cold page cache."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return rate(shardio.Loader(path, BATCH, world=shardio.World(), **order))


def main() -> None:
    """Run from the command line."""
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path, chance = Path(folder, "records"), np.random.default_rng(0)
        with shardio.create(path, fields={"x": ("uint8", (3072,))}) as writer:
            for _ in range(RECORDS):
                writer.append({"x": chance.integers(0, 256, 3072, dtype=np.uint8)})
        rates = in_turns({name: partial(cold_rate, path, order) for name, order in ORDERS.items()}, args.rounds)
    found = {name: quality(**order) | {"cold_samples_per_s": rates[name]} for name, order in ORDERS.items()}
    finish({"orders": found}, args.json)


if __name__ == "__main__":
    main()
