"""A dataset holds no Python object per sample, so the garbage collector's passes do not grow with it."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _datasets import packed
from _foreign import write_tar

import shardio
from shardio.conversion.adopt import adopt
from shardio_converters.hdf5 import hdf5
from shardio_converters.webdataset import webdataset

FEW, MANY = 1000, 5000  # several jobs of a loader each
MOST_MORE = 1000  # caches, threads, and up to 600 objects of batches read ahead; one per sample would be 4000


@pytest.fixture(autouse=True)
def aside() -> None:
    """Take what there is already, such as modules, out of the counts."""
    gc.collect()
    gc.freeze()


def sample(number: int) -> dict[str, Any]:
    return {"label": number, "name": f"n{number}", "box": np.arange(4, dtype=np.float32)}


def in_memory(folder: Path, count: int) -> shardio.Dataset:
    return shardio.from_samples(map(sample, range(count)), shard_samples=count)


def written(container: str) -> Callable[[Path, int], shardio.Dataset]:
    """Return a function that writes one shard of a container."""

    def write(folder: Path, count: int) -> shardio.Dataset:
        return packed(folder, map(sample, range(count)), container=container, shard_size="1GB")

    return write


def tars(folder: Path, count: int) -> Any:
    parts = (
        (f"{n:05}.cls", b"%d" % n) if part else (f"{n:05}.txt", b"n%d" % n) for n in range(count) for part in (0, 1)
    )
    return webdataset(write_tar(folder / "a.tar", parts), key=False)


def arrays(folder: Path, count: int) -> Any:
    with h5py.File(folder / "a.h5", "w") as file:
        file["label"] = np.arange(count)
        file.create_dataset("name", data=[f"n{n}" for n in range(count)], dtype=h5py.string_dtype())
    return hdf5(folder / "a.h5")


def adopted(source: Callable[[Path, int], Any]) -> Callable[[Path, int], shardio.Dataset]:
    """Return a function that adopts the files that `source` writes."""

    def index(folder: Path, count: int) -> shardio.Dataset:
        (folder / "files").mkdir(parents=True)
        adopt(source(folder / "files", count), folder / "out", workers=1)
        return shardio.open(folder / "out")

    return index


def tracked(dataset: shardio.Dataset) -> list[int]:
    """The objects that the collector visits: once the dataset is open, in the middle of an epoch, and after two."""
    gc.collect()
    counts = [len(gc.get_objects())]
    loader = shardio.Loader(dataset, 20, world=shardio.World(), threads=2, prefetch=2)
    for step, _ in enumerate(loader):
        if step == len(loader) // 2:
            gc.collect()
            counts.append(len(gc.get_objects()))
    for _ in loader:
        pass
    gc.collect()
    return [*counts, len(gc.get_objects())]


@pytest.mark.parametrize(
    "make",
    [
        in_memory,
        *map(written, ("tar", "hdf5", "lmdb")),
        *map(adopted, (tars, arrays)),
    ],
    ids=["memory", "tar", "hdf5", "lmdb", "adopted tar", "adopted hdf5"],
)
def test_the_collector_sees_no_samples(make: Callable[[Path, int], shardio.Dataset], tmp_path: Path) -> None:
    """Many samples are no more objects for the collector than a few, at rest and while they are read."""
    tracked(make(tmp_path / "first", 100))  # imports and caches
    few, many = (tracked(make(tmp_path / f"{count}", count)) for count in (FEW, MANY))
    assert all(after - before < MOST_MORE for before, after in zip(few, many, strict=True)), (few, many)
