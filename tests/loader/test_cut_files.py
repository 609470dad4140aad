"""Files that are cut short under a running Loader: whatever they are, an error in words or nothing, and no SIGBUS."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _forked
import numpy as np
import pytest
import zarr
from _datasets import packed, tensors

import shardio
from shardio.format import manifest

RUN = """
import os, sys
import shardio
from shardio.format import file_table

path, file, size, whole, isolate = sys.argv[1], *map(eval, sys.argv[2:])
if whole is not None:
    file_table.READ_WHOLE = whole
if __name__ == "__main__":
    dataset = shardio.open(path)
    if "tokens" in dataset.fields:
        dataset = dataset.packed("tokens", 16)
    loader = shardio.Loader(dataset, batch_size=8, threads=2, prefetch=1, isolate=isolate)
    batches, delivered = iter(loader), 0
    try:
        for _ in range(len(loader)):
            next(batches)
            delivered += 1
            if delivered == 2:
                os.truncate(file, int(os.stat(file).st_size * size))
        print("whole")
    except shardio.ShardioError as error:
        print(type(error).__name__, error)
    batches.close()
"""
"""Truncates a file after two batches of an epoch, and says what becomes of the rest."""


def run(
    path: Path, file: Path, size: float, whole: int | None, native: str = "on", *, isolate: bool = False
) -> tuple[str, str]:
    """The class of the error that ends an epoch and its message, after `file` was cut; ("whole", "") if none does."""
    environment = {**os.environ, "SHARDIO_NATIVE": native, "SHARDIO_CACHE": str(path.parent / "cache")}
    arguments = str(path), repr(str(file)), repr(size), repr(whole), repr(isolate)
    done = _forked.run(RUN, *arguments, environ=environment)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    name, _, message = done.stdout.strip().partition(" ")
    return name, message


def numbers(folder: Path, count: int = 20_000) -> tuple[Path, Path]:
    """A saved view of samples by their numbers, and the file that has them."""
    dataset = tensors(50, folder / "d")
    dataset.select(np.resize(np.arange(50), count)).save(folder / "view.json")
    (array,) = folder.glob("view.*.npy")
    return folder / "view.json", array


def weights(folder: Path) -> tuple[Path, Path]:
    """A saved view of samples with weights, and the file that has these."""
    tensors(2000, folder / "d").weighted(np.arange(2000) + 1.0).save(folder / "view.json")
    (array,) = folder.glob("view.*.npy")
    return folder / "view.json", array


def store(folder: Path) -> tuple[Path, Path]:
    """A Zarr store in place, of which a chunk in three was never written, and its index."""
    array = zarr.create_array(folder / "s.zarr", shape=(3000, 4), chunks=(1, 4), dtype="i4")
    for row in range(3000):
        if row % 3:
            array[row] = row
    with pytest.warns(shardio.SourceWarning):
        shardio.index(folder / "s.zarr", folder / "d")
    (index,) = (folder / "d").glob("*.zarr.idx.npy")
    return folder / "d", index


def many_shards(folder: Path) -> tuple[Path, Path]:
    """A dataset whose shards are listed in a file of their own, and that file."""
    most, manifest.MOST_INLINE = manifest.MOST_INLINE, 5
    try:
        tensors(2000, folder / "d", shard_size="8KB")
    finally:
        manifest.MOST_INLINE = most
    return folder / "d", folder / "d" / manifest.TABLE_NAME


def documents(folder: Path) -> tuple[Path, Path]:
    """A dataset of so many documents that a table of their packed rows is kept, and that table."""
    lengths = np.random.default_rng(0).integers(1, 12, 70_000)
    lengths[::1000] = 70
    samples = ({"tokens": np.full(n, n, np.uint16)} for n in lengths.tolist())
    dataset = packed(folder / "d", samples, {"tokens": ("uint16", (None,))}, container="hdf5", shard_size="1MB")
    dataset.packed("tokens", 16)
    (table,) = (folder / "d").glob("shardio.packed-*.bin")
    return folder / "d", table


Made = Callable[[Path], tuple[Path, Path]]
KINDS: tuple[Made, ...] = numbers, store, many_shards, documents


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Made, Path], tuple[Path, Path]]:
    """Copies what one of `KINDS` makes, which is made once, to a folder."""
    there = dict[Made, tuple[Path, Path, Path]]()

    def copied(kind: Made, folder: Path) -> tuple[Path, Path]:
        if kind not in there:
            there[kind] = (place := tmp_path_factory.mktemp(kind.__name__), *kind(place))
        place, *paths = there[kind]
        shutil.copytree(place, folder, dirs_exist_ok=True, symlinks=True)
        path, file = (folder / path.relative_to(place) for path in paths)
        return path, file

    return copied


@pytest.mark.slow
@pytest.mark.parametrize(("size", "native"), [(0.5, "on"), (0, "off")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_file(kind: Made, size: float, native: str, made: Any, tmp_path: Path) -> None:
    """A file that is too large to be held: an error that names it, in the turn of the batch that needs it."""
    path, file = made(kind, tmp_path)
    name, message = run(path, file, size, 0, native)
    assert name == ("ShardCorrupt" if kind is store else "ManifestError")
    assert f"{file}: cut short while it was open, or its storage failed" in message


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_file(kind: Made, made: Any, tmp_path: Path) -> None:
    """A file of at most 16 MiB is read as it is opened: the epoch goes on as if nothing had happened."""
    path, file = made(kind, tmp_path)
    assert run(path, file, 0, None) == ("whole", "")


@pytest.mark.slow
@pytest.mark.parametrize("native", ["on", "off"])
def test_a_view_of_more_than_16_mib(native: str, tmp_path: Path) -> None:
    """The numbers of two million samples are not held, and a cut is an error in words."""
    path, file = numbers(tmp_path, 2_200_000)
    name, message = run(path, file, 0.5, None, native)
    assert name == "ManifestError"
    assert f"{file}: cut short" in message


@pytest.mark.slow
def test_weights(tmp_path: Path) -> None:
    """Weights are read as they are opened, whatever their size: the epoch goes on."""
    path, file = weights(tmp_path)
    assert run(path, file, 0, 0) == ("whole", "")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", [numbers, documents])
def test_worker_processes(kind: Made, made: Any, tmp_path: Path) -> None:
    """Worker processes, which open the file themselves, hand the same error to the loop."""
    path, file = made(kind, tmp_path)
    name, message = run(path, file, 0.5, 0, isolate=True)
    assert name == "ManifestError"
    assert f"{file}: cut short" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "cut"),
    [
        ("tar", "shard-000000.tar"),  # values
        ("tar", "shard-000000.idx.npy"),  # labels, and where values are
        ("hdf5", "shard-000000.h5"),
        ("lmdb", "shard-000000.lmdb"),
    ],
)
@pytest.mark.parametrize("native", ["on", "off"])
def test_shards(container: str, cut: str, native: str, tmp_path: Path) -> None:
    """A shard or its index that is cut short while it is open is an error that names the shard."""
    tensors(2000, tmp_path / "d", container=container, shard_size="1GB")
    name, message = run(tmp_path / "d", tmp_path / "d" / cut, 0.5, None, native)
    assert name == "ShardCorrupt"
    assert "shard-000000" in message


CONVERT = """
import os, sys
import numpy as np
import shardio
from shardio.errors import ShardioError
from shardio.conversion.source import find
from shardio.format import file_table

kind, path, file = sys.argv[1:]
file_table.READ_WHOLE = 0
source = find(kind)(path)
source[0]
os.truncate(file, os.stat(file).st_size // 2)
try:
    source[1999]
except ShardioError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("form", ["npy", "columns", "npz", "idx"])
def test_sources(form: str, native: str, tmp_path: Path) -> None:
    """A source that is cut short after it was opened is an error that names the file."""
    file, images = tmp_path / "x.npy", np.zeros((2000, 8, 8), np.uint8)
    if form == "idx":
        file = tmp_path / "train-images-idx3-ubyte"
        file.write_bytes(b"\0\0\x08\3" + np.array(images.shape, ">i4").tobytes() + images.tobytes())
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\1" + np.array([2000], ">i4").tobytes() + bytes(2000)
        )
    elif form == "npz":
        np.savez(file := tmp_path / "x.npz", x=images)
    else:
        np.save(file, np.asfortranarray(images) if form == "columns" else images)
    arguments = "idx" if form == "idx" else "numpy", str(tmp_path if form == "idx" else file), str(file)
    done = _forked.run(CONVERT, *arguments, environ={**os.environ, "SHARDIO_NATIVE": native})
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stdout.startswith("SourceError ")
    assert f"{file}: cut short while it was open" in done.stdout
