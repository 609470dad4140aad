"""Compare the rate at which batches are written as HDF5 shards with that of a plain copy of the same bytes.

    python -m benchmarks.writing --json writing.json
    python -m benchmarks.writing --work /dev/shm

`ShardWriter.extend` writes batches that are in memory, of rows of 4 KB and of 150 KB, to shards of known numbers of
rows, with all checksums; `copy` is `cp` of these shards, and fsync, which a shard waits for as well. They run in turns.
`mbytes_per_second` and `cpu_seconds` (user and system, with those of `cp`) are medians; `ratio` is the median of the
writer's rate divided by the copy's in the same round.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._results import finish, options, ratio, turns
from shardio.format.fields import as_fields
from shardio.output.shard_writer import ShardWriter

ROWS = {"4 KB": (1024, 256), "150 KB": (38_400, 64)}
"""Floats of a row, and rows of a batch."""


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("--work", type=Path, help="folder to write in (default: that of temporary files)")
    parser.add_argument("--mbytes", type=int, default=1024, help="of each run")
    parser.add_argument("--shards", type=int, default=4)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for name, (floats, count) in ROWS.items():
        batch: dict[str, NDArray[Any]] = {
            "x": np.random.default_rng(0).random((count, floats), np.float32),
            "n": np.arange(count),
        }
        batches = max(1, args.mbytes * 10**6 // args.shards // batch["x"].nbytes)
        with tempfile.TemporaryDirectory(dir=args.work) as work:
            source, target = Path(work, "source"), Path(work, "target")
            source.mkdir()
            _write(batch, args.shards, batches, source)
            size = sum(path.stat().st_size for path in source.glob("*.h5"))
            sides = {"extend": partial(_write, batch, args.shards, batches), "copy": partial(_copy, source)}
            found = turns({side: partial(_timed, run, target) for side, run in sides.items()}, args.rounds)
        wall, cpu = ({side: [times[which] for times in each] for side, each in found.items()} for which in (0, 1))
        result[name] = {
            "mbytes_per_second": {side: round(size / median(seconds) / 1e6) for side, seconds in wall.items()},
            "ratio": round(ratio(wall["copy"], wall["extend"]), 3),
            "cpu_seconds": {side: round(median(seconds), 2) for side, seconds in cpu.items()},
        }
        print(name, result[name], flush=True)
    finish({"shards": args.shards, "mbytes": args.mbytes, "rows": result}, args.json)


def _timed(run: Callable[[Path], None], target: Path) -> tuple[float, float]:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    os.sync()  # what earlier runs wrote and removed is not this one's
    begun, cpu = time.perf_counter(), sum(os.times()[:4])
    run(target)
    return time.perf_counter() - begun, sum(os.times()[:4]) - cpu


def _write(batch: Mapping[str, NDArray[Any]], shards: int, batches: int, folder: Path) -> None:
    rows = batches * len(batch["n"])
    fields = as_fields({"x": ("float32", batch["x"].shape[1:]), "n": "int64"})
    for number in range(shards):
        writer = ShardWriter(folder, "hdf5", fields, number, number * rows, {}, rows)
        for _ in range(batches):
            writer.extend(batch)
        writer.finish()


def _copy(source: Path, target: Path) -> None:
    for path in source.glob("*.h5"):
        subprocess.run(["cp", path, target], check=True)
        with open(target / path.name, "rb") as file:
            os.fsync(file.fileno())


if __name__ == "__main__":
    main()
