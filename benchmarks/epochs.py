"""Measure what epochs cost on top of their batches: short ones in a row against a long one of the same batches.

    python -m benchmarks.epochs --photos DATASET --json epochs.json

`ratio` is the rate of short epochs over that of a long one, and `seam_us` the microseconds that an epoch takes longer
than its share of the long one. The figures are medians over rounds, in which short and long epochs take turns. Epochs
last about 200 ms and 20 ms, or have one batch.

    photos      random resized crops of 224 and flips, batches of 64
    records     of 3 KB in HDF5, batches of 512
    buckets     sequences of 1 to 512 numbers, padded, batches of 64 of like lengths
    mixture     records of two sources, three of one for each one of the other
    store       records of a folder that is read through the cache of a store
    isolate     records made by processes
    validation  records; a loop over another Loader, which isn't timed, comes between
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options, turns
from benchmarks.many_cores import CROP, WORKS

SECONDS = (0.2, 0.02, 0.0)
LONG = 2.0  # seconds of a long epoch, and of short ones together
THREADS = 2


def _loader(data: Any, batch_size: int, batches: int, **more: Any) -> shardio.Loader:
    """A Loader whose epochs have so many batches, of a dataset whose samples it repeats."""
    repeated = data.select(np.resize(np.arange(len(data)), batches * batch_size))
    return shardio.Loader(repeated, batch_size, threads=THREADS, seed=0, world=shardio.World(), **more)


def _mixture(data: Any, batches: int) -> shardio.Loader:
    mixed = shardio.mix({"a": data, "b": data}, weights={"a": 3, "b": 1}, samples=512 * batches)
    return shardio.Loader(mixed, 512, threads=THREADS, seed=0, world=shardio.World())


def _cases(photos: Path, folder: Path) -> dict[str, Callable[[int], shardio.Loader]]:
    """Return what makes the Loader of each case, of as many batches per epoch."""
    write = WORKS["records"].write
    assert write is not None
    path = write(folder)
    lengths = np.random.default_rng(0).integers(1, 513, 20_000)
    ragged = shardio.from_samples(
        [{"x": np.zeros(length, np.int32)} for length in lengths], {"x": shardio.Field("array", "int32", (None,))}
    )
    records = shardio.open(path)
    padded: Any = {"bucket_by": "x", "transforms": {"x": [shardio.PadTo()]}}
    return {
        "photos": partial(_loader, shardio.open(photos), 64, transforms=CROP),
        "records": partial(_loader, records, 512),
        "buckets": partial(_loader, ragged, 64, **padded),
        "mixture": partial(_mixture, records),
        "store": partial(_loader, shardio.open(path, cache=folder / "cache"), 512),
        "isolate": partial(_loader, records, 512, isolate=True),
        "validation": partial(_loader, records, 512),
    }


def _seconds_per_batch(loader: shardio.Loader, epochs: int, between: shardio.Loader | None) -> float:
    """The seconds of a batch in some epochs, without those of the loops between them."""
    seconds, batches = 0.0, 0
    for _ in range(epochs):
        begun = time.perf_counter()
        batches += sum(1 for _ in loader)
        seconds += time.perf_counter() - begun
        for _ in between or ():
            pass
    return seconds / batches


def _compare(
    make: Callable[[int], shardio.Loader], between: shardio.Loader | None, rounds: int
) -> list[dict[str, Any]]:
    """Compare short epochs with a long one."""
    loader = make(64)
    batch = min(_seconds_per_batch(loader, 1, None) for _ in range(4))
    count = max(256, round(LONG / batch))
    runs = {"long": partial(_seconds_per_batch, make(count), 1, None)}
    for wanted in SECONDS:
        batches = max(1, round(wanted / batch))
        runs[str(batches)] = partial(_seconds_per_batch, make(batches), count // batches, between)
    for run in runs.values():
        run()
    found = {batches: median(each) for batches, each in turns(runs, rounds).items()}
    long = found.pop("long")
    return [
        {
            "batches": int(batches),
            "epoch_ms": round(1e3 * int(batches) * each, 2),
            "ratio": round(long / each, 3),
            "seam_us": round(1e6 * int(batches) * (each - long)),
        }
        for batches, each in found.items()
    ]


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("--photos", type=Path, required=True, help="a dataset with an image field")
    parser.add_argument("--only", nargs="+", metavar="WHAT")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cases = _cases(args.photos, folder)
        for what in args.only or cases:
            between = cases["records"](4) if what == "validation" else None
            rows += [{"what": what, **row} for row in _compare(cases[what], between, args.rounds)]
            print(*rows[-len(SECONDS) :], sep="\n", flush=True)
    finish({"rows": rows, "threads": THREADS, "rounds": args.rounds}, args.json)


if __name__ == "__main__":
    main()
