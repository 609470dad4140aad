"""The rate that a rank's Python allows on a machine with many cores, measured on one with few.

    python -m benchmarks.many_cores --photos DATASET --json many_cores.json

An image takes 766 us of sleep in a build of the compiled part of its own, the time that decoding a photo of 48 KB takes
on a processor; all Python, reads and copies are real. So the rate shows what they allow with so many decoders.
`lock_us_per_sample` is the processor time outside compiled code per sample, of all threads: what may hold the
interpreter's lock (GIL), with the work of NumPy and torch, some of which doesn't. A million divided by it is the
largest rate of a rank, however many cores it has. `consumer_us_per_batch` is that of the loop's thread, per batch. The
figures are medians over rounds, in which the rows take turns.

    photos      random resized crops of 224 and flips, batches of 256
    encoded     the same photos as files for an engine for whole batches, which drops them
    patches     64 x 64 of fields of 721 x 1440 float32 in HDF5, batches of 64
    tokens      rows of 2,048 in HDF5 as int64, batches of 16
    records     of 3 KB in HDF5, batches of 512
"""

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, final
from unittest import mock

import h5py
import numpy as np
import torch

import shardio
from benchmarks._compiled import CountedLibrary, in_place, sleeping
from benchmarks._results import finish, options, turns
from shardio.loader.device import prefetcher
from shardio.views.view import BaseDataset

THREADS = (1, 16, 64)
DECODE_US = 766  # of a photo of 48 KB, and a crop of it
SETTLE, SECONDS = 1.0, 2.0
EPOCH_BATCHES = 4096


@dataclass(frozen=True, slots=True)
class Work:
    """The data of a Loader, and its options.

    Attributes:
        batch_size: samples per batch.
        transforms: those of the Loader.
        engine: that of the Loader; what "dali" is given is dropped.
        write: writes the data into a folder, and returns where they are; None for the photos that are given.
    """

    batch_size: int
    transforms: Any = None
    engine: str = "cpu"
    write: Callable[[Path], Path] | None = None

    def loader(self, data: BaseDataset, threads: int, batches: int, batch_size: int | None = None) -> shardio.Loader:
        """A Loader whose epochs have so many batches, of a dataset whose samples it repeats."""
        size = batch_size or self.batch_size
        repeated = data.select(np.resize(np.arange(len(data)), batches * size))
        options: dict[str, Any] = {"transforms": self.transforms, "engine": self.engine, "threads": threads}
        return shardio.Loader(repeated, size, world=shardio.World(), seed=0, **options)


def _write(field: Any, samples: Callable[[np.random.Generator], Any], count: int, folder: Path) -> Path:
    chance = np.random.default_rng(0)
    with shardio.create(folder / "data", container="hdf5", fields={"x": field}) as writer:
        for _ in range(count):
            writer.append({"x": samples(chance)})
    return folder / "data"


def _write_fields(folder: Path) -> Path:
    chance = np.random.default_rng(0)
    (folder / "files").mkdir()
    with h5py.File(folder / "files" / "fields.h5", "w") as file:
        rows = file.create_dataset("x", (16, 721, 1440), "f4")
        for number in range(len(rows)):
            rows[number] = chance.standard_normal((721, 1440), np.float32)
    shardio.index(folder / "files", folder / "data", tell=lambda note: None)
    return folder / "data"


CROP: Sequence[Any] = (shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip())
WORKS = {
    "photos": Work(256, CROP),
    "encoded": Work(256, CROP, engine="dali"),
    "patches": Work(64, {"x": [shardio.RandomSpatialCrop((64, 64))]}, write=_write_fields),
    "tokens": Work(
        16,
        {"x": [shardio.ToInt64()]},
        write=partial(_write, ("uint16", (2048,)), lambda chance: chance.integers(0, 50_000, 2048, np.uint16), 10_000),
    ),
    "records": Work(
        512,
        write=partial(_write, ("uint8", (3072,)), lambda chance: chance.integers(0, 256, 3072, np.uint8), 20_000),
    ),
}


@final
class Drop:
    """An engine for whole batches that makes nothing of what it is given."""

    ahead, reason = 2, ""

    def begin(self, encoded: Any, sizes: Any, steps: Any) -> None:
        """Take a batch."""

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """Return nothing."""
        return torch.empty(0), ()

    def check_process(self) -> None:
        """Any process may use it."""

    def close(self) -> None:
        """There is nothing to close."""


def dropping_engines() -> AbstractContextManager[Any]:
    """Have Loaders that are made in this `with` block drop what engines for whole batches would be given."""
    return mock.patch.object(prefetcher, "make_engine", side_effect=lambda *_, **__: Drop())


class Figures(NamedTuple):
    """The figures of a row; microseconds are of processor time.

    Attributes:
        rate: samples per second.
        lock_us: microseconds outside compiled code per sample.
        consumer_us: microseconds of the consumer's thread per batch.
    """

    rate: float
    lock_us: float
    consumer_us: float


def measure(work: Work, data: BaseDataset, threads: int, library: ctypes.CDLL) -> Figures:
    """Measure a row. Its processor time is that of another Loader, whose calls of compiled code are timed."""
    counted = CountedLibrary(library)
    with _running(work, data, threads, library) as batches:
        samples, seconds = _take(batches, SECONDS)
    rate = samples / seconds
    with _running(work, data, threads, counted) as batches:
        before = time.process_time() - counted.seconds, time.thread_time()
        samples, _ = _take(batches, SECONDS)
        lock, consumer = time.process_time() - counted.seconds - before[0], time.thread_time() - before[1]
    return Figures(rate, 1e6 * lock / samples, 1e6 * consumer * work.batch_size / samples)


@contextmanager
def _running(work: Work, data: BaseDataset, threads: int, library: Any) -> Iterator[Iterator[Any]]:
    """Yield the batches of a Loader that calls `library` as the compiled part, once it has settled."""
    with in_place(library), dropping_engines():
        batches = chain.from_iterable(repeat(work.loader(data, threads, EPOCH_BATCHES)))
        _take(batches, SETTLE)
        yield batches


def _take(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Take batches for so long; the samples and the seconds that it took."""
    begun, samples, spent = time.perf_counter(), 0, 0.0
    while spent < seconds:
        samples += len(next(batches)["index"])
        spent = time.perf_counter() - begun
    return samples, spent


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--photos", type=Path, required=True, help="a dataset with an image field")
    parser.add_argument("--only", nargs="+", default=list(WORKS), choices=WORKS, metavar="WHAT")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        library = sleeping(folder, DECODE_US)
        runs = {}
        for what in args.only:
            work = WORKS[what]
            if work.write is not None:
                (folder / what).mkdir()
            data = shardio.open(args.photos if work.write is None else work.write(folder / what))
            for threads in THREADS:
                runs[f"{what} {threads}"] = partial(measure, work, data, threads, library)
        found = {
            name: Figures(*map(median, zip(*each, strict=True))) for name, each in turns(runs, args.rounds).items()
        }
    rows = [
        {
            "what": name.split()[0],
            "threads": int(name.split()[1]),
            "images_per_second": round(figures.rate),
            "lock_us_per_sample": round(figures.lock_us, 2),
        }
        for name, figures in found.items()
    ]
    consumer = {name: round(figures.consumer_us) for name, figures in found.items()}
    result = {"rows": rows, "consumer_us_per_batch": consumer, "decode_us": DECODE_US, "rounds": args.rounds}
    finish({**result, "load_average": [load, os.getloadavg()[0]]}, args.json)


if __name__ == "__main__":
    main()
