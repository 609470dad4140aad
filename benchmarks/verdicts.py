"""How often `shardio bench` names the bottleneck that was planted, as a confusion table.

Each bottleneck is real: reads that a preloaded library delays, large images, functions that wait or hold the
interpreter's lock, batches so small that the lock is held for them all the time, busy processes, a slow rank, a slow
consumer, too few threads, a server behind a slow link, chunks that are decompressed for one of their rows, a `map` that
computes, alone and next to busy processes. Run it on a machine that does nothing else: what others do on the processors
is a bottleneck too.

    python -m benchmarks.verdicts --rounds 5 --json verdicts.json
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import shardio
from benchmarks._link import link
from benchmarks._results import finish, options
from shardio.bench.config import BenchConfig
from shardio.bench.measurement import measure
from shardio.system import cpus
from tests.remote._file_server import Manners, file_server

HERE = Path(__file__).parent
SECONDS = 3.0
DELAY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
static ssize_t delayed(const char *name, int file, void *to, size_t size, off_t at) {
    ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, name);
    struct timespec pause = {0, 4000000};
    if (size > 4096) nanosleep(&pause, 0);
    return real(file, to, size, at);
}
ssize_t pread(int file, void *to, size_t size, off_t at) { return delayed("pread", file, to, size, at); }
ssize_t pread64(int file, void *to, size_t size, off_t at) { return delayed("pread64", file, to, size, at); }
"""


@dataclass(frozen=True, slots=True)
class Plant:
    """A bottleneck that is planted.

    Attributes:
        config: what to measure, given the folder of the data.
        around: what disturbs the measurement; it may yield the URL of the data instead of the folder.
        right: the names that are right.
    """

    config: Callable[[Path | str], BenchConfig]
    right: tuple[str, ...]
    around: Callable[[Path], Any] = field(default=lambda folder: nullcontext())


def make_data(folder: Path) -> None:
    """Write the data: photos in tar shards, vectors in HDF5, a series in chunks of 256 rows as other programs do."""
    random = np.random.default_rng(0)
    with shardio.create(folder / "photos", fields={"image": "image", "label": "int64"}, shard_size="4MB") as writer:
        for number in range(400):
            ramp = np.add.outer(np.linspace(0, 120, 375), np.linspace(0, 120, 500))[..., None]
            pixels = (ramp + random.integers(0, 16, (375, 500, 3))).astype(np.uint8)
            writer.append({"image": _jpeg(pixels), "label": number % 10})
    with shardio.create(folder / "vectors", container="hdf5", fields={"x": ("float32", (256,))}) as writer:
        for number in range(20_000):
            writer.append({"x": np.full(256, number, np.float32)})
    (folder / "files").mkdir()
    with h5py.File(folder / "files" / "series.h5", "w") as file:
        # More than the 256 MiB of chunks that a process keeps: 640 MiB in chunks of 4 MiB, all of the same bytes.
        chunk = random.integers(0, 50, (256, 64, 64)).astype(np.float32)
        rows = file.create_dataset("x", (160 * 256, 64, 64), "f4", chunks=chunk.shape, compression="gzip")
        packed = zlib.compress(chunk.tobytes(), 1)
        for first in range(0, len(rows), len(chunk)):
            rows.id.write_direct_chunk((first, 0, 0), packed)
    shardio.index(folder / "files", folder / "series", tell=lambda note: None)  # which names the bottleneck, too


def _jpeg(pixels: "np.ndarray[Any, Any]") -> bytes:
    import cv2

    return bytes(cv2.imencode(".jpg", pixels)[1].tobytes())


@contextmanager
def slow_reads(folder: Path) -> Iterator[None]:
    """Delay each read of the measured processes by 4 ms."""
    compiler = shutil.which("cc") or "cc"
    library = folder / "delay.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, "-x", "c", "-", "-ldl"], input=DELAY, text=True, check=True
    )
    before = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = str(library)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LD_PRELOAD"]
        else:
            os.environ["LD_PRELOAD"] = before


@contextmanager
def busy_processors(folder: Path) -> Iterator[None]:
    """Keep every processor busy with two processes of others."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cpus.usable())]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def slow_link(folder: Path) -> Iterator[str]:
    """Serve the data behind a link of 40 Mbit/s and a round trip of 20 ms."""
    with (
        file_server(folder, Manners(etags="none")) as url,
        link(int(url.rpartition(":")[2]), 20.0, 40.0, folder) as slow,
    ):
        yield f"http://127.0.0.1:{slow.port}"


def _data(name: str, **options: Any) -> Callable[[Path | str], BenchConfig]:
    return lambda folder: BenchConfig(f"{folder}/{name}", **options)


photos = partial(_data, "photos", batch_size=32, image_size=224)
vectors = partial(_data, "vectors", batch_size=256)
series = partial(_data, "series", batch_size=8)
PLANTS = {
    "consumer": Plant(photos(step_time=0.2), ("consumer",)),
    "storage": Plant(photos(), ("storage",), slow_reads),
    "decode": Plant(photos(), ("decode",)),
    "threads": Plant(photos(threads=1), ("threads",)),
    "start of epochs": Plant(photos(batch_size=100, step_time=0.15, map="planted:unchanged"), ("start of epochs",)),
    "map": Plant(vectors(map="planted:sleep"), ("map",)),
    "computing map": Plant(photos(map="planted:hash_long"), ("map",)),
    "computing map beside others": Plant(photos(map="planted:hash_long"), ("map",), busy_processors),
    "decompress": Plant(series(), ("decompress",)),
    "decompress beside others": Plant(series(), ("decompress",), busy_processors),
    "GIL": Plant(vectors(map="planted:compute"), ("GIL",)),
    "GIL of small batches": Plant(vectors(batch_size=8, threads=4), ("GIL",)),
    "other processes": Plant(photos(), ("other processes",), busy_processors),
    "network": Plant(photos(cache_size="6MB"), ("network",), slow_link),
    "slow rank": Plant(vectors(ranks=2, threads=1, map="planted:sleep_on_rank_1"), ("slow rank",)),
}


def run(name: str, folder: Path, seconds: float = SECONDS) -> str:
    """Plant a bottleneck, and return what the bench names."""
    plant = PLANTS[name]
    with ExitStack() as stack:
        place = stack.enter_context(plant.around(folder)) or folder
        cache = None if place is folder else str(folder / "cache")  # files of a folder would come from there, too
        config = replace(plant.config(place), seconds=seconds, warmup=seconds / 3, cache=cache)
        result = measure(config)
    print(f"{name:16} {result.verdict.bottleneck:16} {result.verdict.sentence}", file=sys.stderr, flush=True)
    return result.verdict.bottleneck


def main() -> None:
    """Plant each bottleneck several times, in turns, and print the table."""
    args = options(__doc__).parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    sys.path.insert(0, str(HERE))
    counts = {name: Counter[str]() for name in PLANTS}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for _ in range(args.rounds):
            for name in PLANTS:
                counts[name][run(name, Path(folder))] += 1
    named = sorted({*PLANTS, *(found for count in counts.values() for found in count)})
    print("| planted | " + " | ".join(named) + " |")
    print("|---" * (len(named) + 1) + "|")
    for name, count in counts.items():
        print(f"| {name} | " + " | ".join(str(count[found] or "") for found in named) + " |")
    finish({"rounds": args.rounds, "seconds": SECONDS, "counts": counts}, args.json)


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
