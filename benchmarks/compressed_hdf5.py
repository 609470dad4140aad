"""Read random rows of compressed HDF5 with shardio and with h5py, on one thread and on several.

    python benchmarks/compressed_hdf5.py --json result.json

256 MB of uint16 volumes of 2 MiB (smooth, and noise that halves what can be saved) are written by plain h5py in each
compression, one volume per chunk, and are in the page cache. Each round reads the volumes in random order for about a
third of a second: through shardio's reader with 1, 2, ... threads, through one h5py file with as many, and through
shardio in as many single-threaded processes, which share no lock: what the machine allows at that moment.
The result is the median rate of each, and the median of the rounds' ratios: to one thread, to h5py's best and to the
processes. Needs hdf5plugin and a system that forks.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

from benchmarks._results import finish, options
from shardio import containers
from shardio.format.fields import Field

SHAPE = (64, 128, 128)
COUNT = 128
SECONDS = 0.3
FORK = multiprocessing.get_context("fork")
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "lzf+shuffle": {"compression": "lzf", "shuffle": True},
    "zstd+shuffle": {**hdf5plugin.Zstd(), "shuffle": True},
    "blosc lz4": dict(hdf5plugin.Blosc(cname="lz4", shuffle=hdf5plugin.Blosc.SHUFFLE)),
    "blosc zstd bits": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc2 zstd": dict(hdf5plugin.Blosc2(cname="zstd")),
    "bitshuffle lz4": dict(hdf5plugin.Bitshuffle()),
    "lz4+shuffle": {**hdf5plugin.LZ4(), "shuffle": True},
}

Read = Callable[[int, NDArray[Any]], object]


def volumes(count: int, seed: int = 0) -> NDArray[np.uint16]:
    """uint16 [count, *SHAPE]: waves with normal noise."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*(np.linspace(0, 1, size, dtype=np.float32) for size in SHAPE), indexing="ij", sparse=True)
    made = np.empty((count, *SHAPE), np.uint16)
    for volume in made:
        a, b, c, d = rng.uniform(2, 9, 4).astype(np.float32)
        waves = 8000 + 4000 * np.sin(a * x + b * y) + 3000 * np.cos(c * z + d * x)
        volume[...] = waves + rng.standard_normal(SHAPE, np.float32) * 2
    return made


def rate(read: Read, threads: int, order: NDArray[np.int64]) -> float:
    """MB/s of reading the rows in this order, each thread taking the next remaining row, into memory of its own."""
    rows = iter(order.tolist())  # next() of a list iterator is atomic under the GIL

    def work(buffer: NDArray[Any]) -> None:
        for row in rows:
            read(row, buffer)

    buffers = [np.empty((1, *SHAPE), np.uint16) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        begun = time.perf_counter()
        list(pool.map(work, buffers))
        seconds = time.perf_counter() - begun
    return len(order) * buffers[0].nbytes / 1e6 / seconds


def process_rate(read: Read, processes: int, order: NDArray[np.int64]) -> float:
    """MB/s of forked processes, each with its share of the rows."""
    buffer = np.empty((1, *SHAPE), np.uint16)

    def work(rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            read(row, buffer)

    started = [FORK.Process(target=work, args=(part,)) for part in np.array_split(order, processes)]
    begun = time.perf_counter()
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise SystemExit("a process failed")
    return len(order) * buffer.nbytes / 1e6 / (time.perf_counter() - begun)


def measure(
    values: NDArray[Any], options: dict[str, Any], threads: list[int], rounds: int, path: Path
) -> dict[str, Any]:
    """Run all rounds for one compression."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(1, *SHAPE), **options)
    reader = containers.get("hdf5").reader(path, {"x": Field("array", dtype="uint16", shape=SHAPE)})
    with h5py.File(path) as file:
        dataset = file["x"]
        ways: dict[str, Read] = {
            "shardio": lambda row, buffer: reader.read(np.array([row]), "x", buffer),
            "h5py": lambda row, buffer: dataset.read_direct(buffer, np.s_[row : row + 1]),
        }
        for read in ways.values():
            buffer = np.empty((1, *SHAPE), np.uint16)
            read(3, buffer)
            if not np.array_equal(buffer[0], values[3]):
                raise SystemExit(f"{path}: read back wrong")
        rng = np.random.default_rng(0)
        size = int(SECONDS * rate(ways["shardio"], 1, rng.permutation(COUNT)) * 1e6 / values[0].nbytes)
        orders = (rng.integers(COUNT, size=max(size, COUNT)) for _ in iter(int, 1))
        rates: list[dict[str, float]] = []
        for _ in range(rounds):
            found = {f"{way} {n}": rate(read, n, next(orders)) for n in threads for way, read in ways.items()}
            rates.append(found | {f"forks {n}": process_rate(ways["shardio"], n, next(orders)) for n in threads[1:]})
    reader.close()
    result: dict[str, Any] = {"ratio": values.nbytes / path.stat().st_size}
    result["MB_per_s"] = {key: median(r[key] for r in rates) for key in rates[0]}
    result["to_one_thread"] = {n: median(r[f"shardio {n}"] / r["shardio 1"] for r in rates) for n in threads}
    result["to_h5py"] = {
        n: median(r[f"shardio {n}"] / max(r[f"h5py {m}"] for m in threads) for r in rates) for n in threads
    }
    result["to_processes"] = {n: median(r[f"shardio {n}"] / r[f"forks {n}"] for r in rates) for n in threads[1:]}
    result["rounds"] = rates
    path.unlink()
    return result


def table(results: dict[str, Any], threads: list[int]) -> str:
    """A text table with a line per compression."""
    heads = ["ratio", *(f"shardio {n}" for n in threads), *(f"h5py {n}" for n in threads)]
    heads += [*(f"{n}/1" for n in threads[1:]), *(f"{n}/h5py" for n in threads), *(f"{n}/forks" for n in threads[1:])]
    lines = [f"{'MB/s':16}" + "".join(f"{head:>11}" for head in heads)]
    for name, found in results.items():
        rates = [found["MB_per_s"][f"{way} {n}"] for way in ("shardio", "h5py") for n in threads]
        ratios = [*(found["to_one_thread"][n] for n in threads[1:]), *(found["to_h5py"][n] for n in threads)]
        ratios += [found["to_processes"][n] for n in threads[1:]]
        cells = [f"{found['ratio']:11.2f}", *(f"{r:11.0f}" for r in rates), *(f"{r:11.2f}" for r in ratios)]
        lines.append(f"{name:16}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=7)
    parser.add_argument(
        "--only", choices=sorted(COMPRESSIONS), action="append", help="one compression; may be repeated"
    )
    args = parser.parse_args()
    threads = sorted({1, 2, len(os.sched_getaffinity(0))})
    values, results = volumes(COUNT), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only or COMPRESSIONS:
            results[name] = measure(values, COMPRESSIONS[name], threads, args.rounds, Path(folder, "x.h5"))
    print(table(results, threads))
    versions = {"hdf5plugin": hdf5plugin.version, "libhdf5": h5py.version.hdf5_version}
    workload = "random rows of 2 MiB, uint16, one a chunk, page cache warm"
    finish({"workload": workload, "results": results, "versions": versions}, args.json)


if __name__ == "__main__":
    main()
