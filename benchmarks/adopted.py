"""Compare the loading rate of adopted files with that of the same samples converted.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.adopted --work /tmp/shardio-adopted --json adopted.json

Pairs: tars by webdataset's ShardWriter and tars of shardio's (decoded and cropped, and without decoding); HDF5 by plain
h5py, contiguous and in chunks with gzip, and HDF5 of shardio's from the same arrays, with the same compression. A
series of arrays in chunks of 24, larger than what a process keeps of chunks, is read in three orders.

All files are dropped from the page cache first, and read again before the clock starts: pages that were written in
small pieces, as by ShardWriter, stay small as long as they are cached, and copying from them takes a fifth longer.
"""

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
from webdataset import ShardWriter

import shardio
from benchmarks._results import finish, options, rate
from benchmarks._workloads import WORKLOADS, photos
from shardio.conversion.adopt import adopt
from shardio.conversion.api import convert
from shardio_converters.hdf5 import hdf5
from shardio_converters.webdataset import webdataset

ARRAYS = (4096, 64, 64)  # float32: 64 MiB
SERIES = (2400, 181, 360)  # float32: 597 MiB
ORDERS: dict[str, dict[str, Any]] = {
    "global": {},
    "block": {"shuffle": "block", "block": 24, "window": 16},
    "as stored": {"shuffle": None},
}
SECONDS = 1.5


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=7, photos=True)
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/shardio-adopted"), help="folder for the datasets, removed at the end"
    )
    args = parser.parse_args()
    work: Path = args.work.absolute()
    shutil.rmtree(work, ignore_errors=True)
    pairs = {**_tars(work, args.photos.absolute()), **_files(work)}
    _drop(work)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in pairs}
    for number in range(args.rounds):
        for name, runs in pairs.items():
            turn = list(runs.items())[:: -1 if number % 2 else 1]
            rounds[name].append({which: run() for which, run in turn})
    shutil.rmtree(work)
    ratios = {name: median(each["adopted"] / each["converted"] for each in found) for name, found in rounds.items()}
    rounded = {name: round(ratio, 3) for name, ratio in ratios.items()}
    finish({"task": "samples per second, adopted / converted", "ratios": rounded, "rounds": rounds}, args.json)


def _drop(folder: Path) -> None:
    """Drop all files from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _tars(work: Path, source: Path) -> dict[str, dict[str, Callable[[], float]]]:
    (work / "tars").mkdir(parents=True)
    with ShardWriter(f"{work}/tars/%06d.tar", maxsize=64_000_000, verbose=0) as writer:
        for number, (path, label) in enumerate(photos(source, WORKLOADS["exact"].count)):
            writer.write({"__key__": f"photo{number:06d}", "jpg": path.read_bytes(), "cls": label})
    made = webdataset(work / "tars", key=False)
    _both(made, work / "photos", container="tar")
    crops = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
    return {
        "tars, crops of 224": _runs(work / "photos", 256, transforms=crops),
        "tars, encoded": _runs(work / "photos", 256, decode=False),
    }


def _files(work: Path) -> dict[str, dict[str, Callable[[], float]]]:
    random = np.random.default_rng(0)
    # Some structure, so that the data compresses.
    data = np.cumsum(random.integers(-3, 4, ARRAYS), axis=-1).astype(np.float32)
    found = {}
    for name, layout in {
        "contiguous": {},
        "chunks + gzip": {"chunks": (16, *ARRAYS[1:]), "compression": "gzip", "shuffle": True},
    }.items():
        path = work / name / "data.h5"
        path.parent.mkdir(parents=True)
        with h5py.File(path, "w") as file:
            file.create_dataset("scans", data=data, **layout)
            file["labels"] = np.arange(len(data), dtype=np.int32)
        source = hdf5(path, fields="scan=scans,label=labels")
        _both(source, path.parent, container="hdf5", **({"compression": "gzip"} if layout else {}))
        found[f"HDF5, {name}"] = _runs(path.parent, 64)
    path = work / "series" / "data.h5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("air", SERIES, "f4", chunks=(24, *SERIES[1:]), compression=1, shuffle=True)
        for start in range(0, len(stored), 24):
            steps = random.integers(-3, 4, (24, *SERIES[1:]), np.int8)
            stored[start : start + 24] = np.cumsum(steps, axis=-1, dtype=np.float32)
    _both(hdf5(path), path.parent, container="hdf5", compression="gzip")
    return found | {f"HDF5, chunks of 24, {name}": _runs(path.parent, 16, **order) for name, order in ORDERS.items()}


def _both(source: Any, folder: Path, **options: Any) -> None:
    adopt(source, folder / "adopted")
    convert(source, folder / "converted", **options)


def _runs(folder: Path, batch_size: int, *, decode: bool = True, **options: Any) -> dict[str, Callable[[], float]]:
    return {which: partial(_rate, folder / which, batch_size, decode, options) for which in ("adopted", "converted")}


def _rate(path: Path, batch_size: int, decode: bool, options: dict[str, Any]) -> float:
    """Samples per second over whole epochs of a Loader, after one that warms it up; or of plain batched reads."""
    if not decode:
        return _reads(path, batch_size)
    loader = shardio.Loader(path, batch_size, threads=2, seed=0, world=shardio.World(), **options)
    for _ in loader:
        pass
    return rate(loader, SECONDS)


def _reads(path: Path, batch_size: int) -> float:
    dataset = shardio.open(path)
    dataset.read(range(len(dataset)), ["image"])
    order = np.random.default_rng(0).permutation(len(dataset))
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        for start in range(0, len(order), batch_size):
            count += len(dataset.read(order[start : start + batch_size], ["image"])["image"])
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
