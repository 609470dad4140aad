"""Small data sets that tests share: photos, tensors, samples of every kind; in memory, in folders, in stores.

Samples are plain functions of their numbers, so that a test knows what it must find, and `packed` makes a dataset of
any samples. What tests only read is a fixture of the session, at the end.
"""

import gc
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, spoiled
from _time_limit import wait_until

import shardio
from shardio import native
from shardio.testing import samples as kinds
from shardio.testing.stores import MemoryStore

CONTAINERS = ("tar", "hdf5", "lmdb")
"""The containers on disk."""

FIELDS = {
    "image": "image",
    "label": "int64",
    "key": "text",
    "grid": ("float32", (2, 3)),
    "points": shardio.Field("array", dtype="int16"),
    "blob": "bytes",
    "note": "json",
}
"""The fields of `sample`."""


def sample(number: int) -> dict[str, Any]:
    """A sample with a field of every kind: images of three sizes, and values of any length."""
    return {
        "image": jpeg(20 + number % 3, 30, seed=number),
        "label": number % 7,
        "key": f"päth/{number}.jpg",
        "grid": np.full((2, 3), number, np.float32),
        "points": np.arange(number % 4, dtype=np.int16),
        "blob": bytes([number % 256]) * (number % 5),
        "note": {"n": number, "tags": ["a", None]},
    }


KINDS = kinds.FIELDS
"""The fields of `of_every_kind`: those of the containers' contract."""


def of_every_kind(number: int) -> dict[str, Any]:
    """A sample as the containers' contract has it, whose image is a JPEG."""
    return kinds.sample(number) | {"image": jpeg(10 + number, 20, seed=number)}


def photo(number: int, *, classes: int = 10, bad: bool = False) -> dict[str, Any]:
    """An image of 20 to 24 x 30 pixels, its label and its key; a bad one has an image that no decoder accepts."""
    image = jpeg(20 + number % 5, 30, seed=number)
    return {"image": spoiled(image) if bad else image, "label": number % classes, "key": f"k{number}"}


def tensor(number: int, *, shape: Sequence[int] = (50,), dtype: str = "int64") -> dict[str, Any]:
    """An array filled with the number of its sample, and the number as a label."""
    return {"array": np.full(shape, number, dtype), "label": number}


def packed(
    place: Path | None,
    samples: Iterable[Mapping[str, Any]],
    fields: Mapping[str, Any] | None = None,
    *,
    container: str = "tar",
    shard_size: int | str = "8KB",
    shard_samples: int = 7,
    **options: Any,
) -> shardio.Dataset:
    """Write samples to a dataset and open it.

    Args:
        place: its folder; None makes it in memory, as does the container `"memory"`.
        samples: its samples.
        fields: its fields, as `shardio.create` takes them; None infers them.
        container: the container of its shards.
        shard_size: the size of a shard in a folder; small, so that there are several.
        shard_samples: the samples of a shard in memory.
        options: more options of `shardio.create`; in memory, of `shardio.from_samples`.
    """
    if place is None or container == "memory":
        return shardio.from_samples(samples, fields, shard_samples=shard_samples, **options)
    with shardio.create(place, container=container, fields=fields, shard_size=shard_size, **options) as writer:
        for sample in samples:
            writer.append(sample)
    return shardio.open(place)


def photos(
    count: int = 24, place: Path | None = None, *, classes: int = 10, bad: Collection[int] = (), **options: Any
) -> shardio.Dataset:
    """A dataset of `photo`s, of which those in `bad` are damaged; `options` are those of `packed`."""
    return packed(place, [photo(number, classes=classes, bad=number in bad) for number in range(count)], **options)


def tensors(count: int = 60, place: Path | None = None, **options: Any) -> shardio.Dataset:
    """A dataset of `tensor`s; `options` are those of `packed`."""
    return packed(place, map(tensor, range(count)), **options)


def numbers(count: int, first: int = 0) -> shardio.Dataset:
    """A dataset in memory of samples that hold consecutive numbers from `first` on, in shards of seven."""
    return packed(None, [{"number": first + n} for n in range(count)], {"number": "int64"})


def photo_folders(root: Path, count: int = 60, classes: Sequence[str] = ("cat", "dog")) -> Path:
    """Write small JPEGs of various sizes into one folder per class, by turns: `cat/00.jpg`, ...; return `root`."""
    for number in range(count):
        path = root / classes[number % len(classes)] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(20 + number % 5, 30, seed=number))
    return root


def files(root: Path) -> dict[str, bytes]:
    """The content of all files below a folder, by their paths in it."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def in_store(folder: Path, prefix: str = "d") -> MemoryStore:
    """A store in memory with the files of a folder below `prefix`."""
    return MemoryStore({f"{prefix}/{name}": data for name, data in files(folder).items()})


def load(data: Any, batch_size: int = 8, **options: Any) -> "shardio.Loader":  # quoted: it needs torch
    """A loader of one rank with two threads; `options` are those of a Loader."""
    return shardio.Loader(data, batch_size, **{"world": shardio.World(), "threads": 2} | options)


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 small JPEGs in folders of two classes, which tests only read."""
    return photo_folders(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The garbage collector rests during a test: what goes has lost its last reference."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders make nothing of the next epoch, so that what an epoch reads and calls can be counted."""
    from shardio.loader.batch.job import EpochWork  # it needs torch

    # What Loaders of earlier tests make ahead would be counted, too, for as long as their threads take to leave.
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("shardio rank")], seconds=5)
    monkeypatch.setattr(EpochWork, "goes_on", False)


@pytest.fixture(params=["compiled", "python"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test once with the compiled part, if it is there, and once without it; returns which."""
    if request.param == "python":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("not compiled here")
    return request.param
