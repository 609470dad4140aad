"""Measure a cache on a fast disk against a slow one: epochs from the slow disk, from the cache, and from the fast one.

    python -m benchmarks.slow_disk --json slow-disk.json
    python -m benchmarks.slow_disk --mbytes 200 --latency 2 --rounds 1

The slow disk is a folder behind 5 ms for each request and 100 MB/s for all together (`limits/slow_fs.c`, mounted by
root), mounted anew for each run, so that nothing of it is in the page cache. Arrays of 100 KB in tars, 600 MB by
default, are read by a fresh process with an empty cache, two epochs each, in turns:

  bare     all files read from the slow disk in requests of 1 MiB, 8 at once: what it gives at most
  slow     a Loader on the slow disk, without a cache
  cached   a Loader with `cache=` on the fast disk: epoch 1 fetches, epoch 2 finds all there
  staged   `shardio.stage`, then an epoch
  local    a Loader on the fast disk
"""

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

import shardio
from benchmarks._results import finish, in_round, medians, options, sayer
from benchmarks._slow_fs import SlowFolder, slow_folder
from benchmarks._store import kept

SAMPLE = 100_000  # bytes
SHUFFLES = ("block", "global")


def make(out: Path, count: int) -> None:
    """Write the data set."""
    with shardio.create(out, shard_size="20MB") as writer:
        for number in range(count):
            writer.append({"x": np.random.default_rng(number).integers(0, 255, SAMPLE, np.uint8)})


def bare(slow: SlowFolder) -> dict[str, float]:
    """Read all files."""
    files = sorted(path for path in slow.path.iterdir() if path.suffix == ".tar")
    begun = time.monotonic()

    def read(path: Path) -> int:
        with open(path, "rb", buffering=0) as file:
            return sum(map(len, iter(lambda: file.read(1 << 20), b"")))

    with ThreadPoolExecutor(8) as pool:
        size = sum(pool.map(read, files))
    return {"epoch 1, MB/s": size / (time.monotonic() - begun) / 1e6}


def epochs(
    place: Path, shuffle: Literal["block", "global"], threads: int, given: Mapping[str, Any], stage: bool
) -> dict[str, float]:
    """Load two epochs; return their rates. Run in a process of its own."""
    found: dict[str, float] = {}
    if stage:
        begun = time.monotonic()
        done = shardio.stage(place, **given)
        found["staging, MB/s"] = done.fetched / (time.monotonic() - begun) / 1e6
    loader = shardio.Loader(place, 32, shuffle=shuffle, tail="pad", threads=threads, world=shardio.World(), **given)
    for epoch in (1, 2):
        begun, first, size = time.monotonic(), 0.0, 0
        for batch in loader:
            first = first or time.monotonic() - begun
            size += int(np.count_nonzero(np.asarray(batch["valid"]))) * SAMPLE
        found[f"epoch {epoch}, MB/s"] = size / (time.monotonic() - begun) / 1e6
        found[f"epoch {epoch}, first batch, s"] = first
        found[f"epoch {epoch}, fetched per byte"] = loader.stats().fetched.bytes / size
    return found


def measure(name: str, data: Path, arguments: argparse.Namespace, work: Path) -> dict[str, float]:
    """Run one row once."""
    kind, _, shuffle = name.partition(" ")
    with (
        tempfile.TemporaryDirectory(dir=work, prefix="cache-") as cache,
        slow_folder(data, arguments.latency, arguments.mbytes, work) as slow,
    ):
        if kind == "bare":
            return bare(slow)
        given = {"cache": cache, "cache_size": "100GB"} if kind in ("cached", "staged") else {}
        place = data if kind == "local" else slow.path
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found = process.apply(epochs, (place, shuffle, arguments.threads, given, kind == "staged"))
        return found | {"read of the slow disk, MB": slow.bytes / 1e6, "in reads": slow.reads, "opens": slow.opens}


def compare(
    names: list[str], run: Callable[[str], dict[str, float]], rounds: int, say: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    """Run all rows in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for name in in_round(names, number):
            found.setdefault(name, []).append(result := run(name))
            say(f"round {number + 1}  {name}: " + ", ".join(f"{key} {value:,.4g}" for key, value in result.items()))
    return found


def ratios(found: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The figures that the targets speak of: medians of ratios that are taken within a round."""
    first, second = "epoch 1, MB/s", "epoch 2, MB/s"
    wanted = {
        f"{text} {shuffle}": (f"cached {shuffle}", key, other.format(shuffle), other_key)
        for shuffle in SHUFFLES
        for text, key, other, other_key in (
            ("epoch 1 with the cache over bare", first, "bare", first),
            ("epoch 1 with the cache over slow", first, "slow {}", first),
            ("epoch 2 with the cache over local", second, "local {}", second),
        )
    }
    wanted["staging over bare"] = "staged block", "staging, MB/s", "bare", first
    return {
        text: round(median(a[key] / b[other_key] for a, b in zip(found[one], found[other], strict=True)), 3)
        for text, (one, key, other, other_key) in wanted.items()
        if one in found and other in found
    }


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, 3)
    parser.add_argument("--latency", type=float, default=5.0, help="milliseconds of each request")
    parser.add_argument("--mbytes", type=float, default=100.0, help="MB/s of the slow disk")
    parser.add_argument("--count", type=int, default=6000, help="arrays of 100 KB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-compare"), help="kept between runs")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    data = kept(work / "data" / f"slow-disk-{arguments.count}", "1", lambda out: make(out, arguments.count))
    names = ["bare", *(f"{kind} {shuffle}" for shuffle in SHUFFLES for kind in ("slow", "cached", "local"))]
    names.append("staged block")
    own = Path(tempfile.mkdtemp(dir=work, prefix="slow-disk-"))
    try:
        found = compare(names, lambda name: measure(name, data, arguments, own), arguments.rounds, sayer())
    finally:
        shutil.rmtree(own, ignore_errors=True)
    result = {
        "benchmark": "slow_disk",
        "latency_ms": arguments.latency,
        "mbytes_per_s": arguments.mbytes,
        "bytes": arguments.count * SAMPLE,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "ratios": ratios(found),
        "rows": {name: medians(rounds) for name, rounds in found.items()},
        "in rounds": found,
    }
    for text, value in result["ratios"].items():
        print(f"{value:6.3f}  {text}")
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
