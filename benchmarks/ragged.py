"""Load values of several lengths from each container, as lists, end to end and padded, against memcpy.

    python -m benchmarks.ragged --json ragged.json

Values are float32 [n, 4], whose lengths vary evenly from half to one and a half of a mean size, in random order, from
the page cache, with two threads. Figures are GB/s of values, padding not counted, and ratios to memcpy in C of blocks
of the mean size within the same round; medians.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._limits import compile_limit
from benchmarks._processes import run
from benchmarks._results import finish, options, ratio, turns
from benchmarks._store import kept
from benchmarks.sequence_loaders import CONTAINERS

SIZES = {"1 KB": 1 << 10, "16 KB": 1 << 14, "256 KB": 1 << 18, "1 MB": 1 << 20}
FORMS: dict[str, Any] = {"list": None, "Ragged": [shardio.Ragged()], "PadTo": [shardio.PadTo()]}
TOTAL, BATCH_BYTES, ENTRY, THREADS = 256 << 20, 8 << 20, 16, 2
MOST = 65_536  # values of a size
MOST_IN_BATCH = 512
LIMIT = "memcpy"


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-ragged"), help="folder for the datasets")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    args = parser.parse_args()
    program = compile_limit(LIMIT, args.work)
    result: dict[str, Any] = {"rounds": args.rounds, "threads": THREADS}
    for name, size in SIZES.items():
        folder = kept(args.work / name.replace(" ", ""), str(size), partial(_write, size))
        result[name] = _measure(folder, size, program, args.rounds, args.seconds)
        print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
    finish(result, args.json)


def _write(size: int, out: Path) -> None:
    """The same values in each container, and as many bytes in a file for memcpy."""
    random = np.random.default_rng(0)
    lengths = random.integers(size // 2, size * 3 // 2, min(MOST, TOTAL // size)) // ENTRY
    values = random.random((int(lengths.sum()), ENTRY // 4), np.float32)
    parts = np.split(values, np.cumsum(lengths)[:-1])
    for name in CONTAINERS:
        with shardio.create(out / name, container=name, fields={"values": ("float32", (None, ENTRY // 4))}) as writer:
            for part in parts:
                writer.append({"values": part})
    values.tofile(out / "values")


def _measure(folder: Path, size: int, program: Path, rounds: int, seconds: float) -> dict[str, Any]:
    batch_size = min(BATCH_BYTES // size, MOST_IN_BATCH)
    command = [str(program), str(folder / "values"), str(size), str(batch_size), str(THREADS), str(seconds)]
    runs: dict[str, Callable[[], float]] = {LIMIT: partial(_copied, command, size)}
    for name in CONTAINERS:
        for form, transforms in FORMS.items():
            loader = shardio.Loader(
                folder / name,
                batch_size,
                transforms={"values": transforms} if transforms else None,
                threads=THREADS,
                world=shardio.World(),
            )
            runs[f"{name} {form}"] = partial(_rate, loader, seconds)
            sum(1 for _ in loader)  # warm up
    rates = turns(runs, rounds)
    return {
        name: {
            "gb_per_second": round(median(found), 3),
            "of_memcpy": round(ratio(found, rates[LIMIT]), 3),
        }
        for name, found in rates.items()
    }


def _copied(command: list[str], size: int) -> float:
    return float(json.loads(run(command))["samples_per_s"]) * size / 1e9


def _rate(loader: shardio.Loader, seconds: float) -> float:
    begun, delivered = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        for batch in loader:
            values = batch["values"]
            if isinstance(values, list):
                delivered += sum(value.nbytes for value in values)
            elif "values_length" in batch:
                delivered += int(batch["values_length"].sum()) * ENTRY
            else:
                delivered += values.nbytes
    return delivered / (time.perf_counter() - begun) / 1e9


if __name__ == "__main__":
    main()
