"""The map-style dataset works in torch's own DataLoader."""

import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _datasets import packed, photo
from torch.utils.data import DataLoader

import shardio
from shardio import World
from shardio.errors import BadSample, ConfigError

CROP = [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip()]


def write(path: Path, container: str = "tar", bad: int = -1) -> Path:
    fields = {"image": "image", "label": "int64", "weight": "float32", "key": "text"}
    rows = (photo(n, classes=20, bad=n == bad) | {"weight": n / 2} for n in range(20))
    packed(path, rows, fields, container=container, shard_size=5000)
    return path


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 0},
        pytest.param({"num_workers": 2, "multiprocessing_context": "fork"}, marks=pytest.mark.slow),
        pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, marks=pytest.mark.long),
    ],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_dataloader_delivers_what_the_loader_does(tmp_path: Path, container: str, workers: dict[str, Any]) -> None:
    """DataLoader delivers the loader's pixels, types, texts, and crops of each epoch."""
    path = write(tmp_path / "d", container)
    dataset = shardio.TorchDataset(path, transforms=CROP, seed=3)
    loader = shardio.Loader(path, 5, transforms=CROP, seed=3, shuffle=None, world=World(), threads=1)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        for got, want in zip(DataLoader(dataset, 5, **workers), loader, strict=True):
            assert list(got) == list(want)
            assert got["key"] == want["key"]
            for name in ("image", "label", "weight", "index"):
                assert got[name].dtype == want[name].dtype
                assert torch.equal(got[name], want[name])


FORK = {"multiprocessing_context": "fork", "persistent_workers": True}
SPAWN = {"multiprocessing_context": "spawn", "persistent_workers": True}


def crops(batches: Iterable[dict[str, Any]]) -> list[bytes]:
    """The pixels of each sample."""
    return [image.numpy().tobytes() for batch in batches for image in batch["image"]]


@pytest.mark.parametrize("workers", [FORK, pytest.param(SPAWN, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_persistent_workers_see_set_epoch(tmp_path: Path, workers: dict[str, Any]) -> None:
    """Workers that outlive an epoch draw for the next one, by the Loader's choices."""
    path = write(tmp_path / "d")
    dataset = shardio.TorchDataset(path, transforms=CROP, seed=3)
    loader = shardio.Loader(path, 5, transforms=CROP, seed=3, shuffle=None, world=World(), threads=1)
    batches = DataLoader(dataset, 5, num_workers=1, **workers)
    drawn = []
    for epoch in (0, 1, 5):
        dataset.set_epoch(epoch)
        loader.set_epoch(epoch)
        drawn.append(crops(batches))
        assert drawn[-1] == crops(loader)
    assert len({*map(tuple, drawn)}) == 3


@pytest.mark.parametrize(
    ("options", "alike"),
    [
        ({"batch_size": 2}, 1),  # in this process
        ({"batch_size": 8}, 1),  # all in one batch
        ({"batch_size": 2, "num_workers": 1, **FORK}, 1),
        ({"batch_size": 2, "num_workers": 2, **FORK}, 2),  # the first in each worker are alike
        ({"batch_size": None, "num_workers": 1, **FORK}, 1),  # samples by number, asked for by a worker
    ],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_repeats_draw_anew(tmp_path: Path, options: dict[str, Any], alike: int) -> None:
    """A sample that a sampler names eight times comes in other crops, the same after the same `set_epoch`."""
    dataset = shardio.TorchDataset(write(tmp_path / "d"), transforms=CROP)
    by_hand = dataset[5]["image"].numpy().tobytes()
    batches = DataLoader(dataset, sampler=[5, 5, -15, 5, 5, 5, 5, 5], **options)
    by_epoch = []
    for epoch in (0, 0, 1):
        dataset.set_epoch(epoch)
        in_batches = batches if options["batch_size"] else ({"image": sample["image"][None]} for sample in batches)
        by_epoch.append(crops(in_batches))
    assert by_epoch[0] == by_epoch[1]
    assert by_epoch[0].count(by_hand) == alike
    assert by_epoch[0][0] == by_hand
    assert len({*by_epoch[0]}) == 9 - alike
    assert not {*by_epoch[0]} & {*by_epoch[2]}
    dataset.set_epoch(0)
    assert [dataset[5]["image"].numpy().tobytes() for _ in range(2)] == [by_hand] * 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_processes_that_set_an_epoch_have_their_own(tmp_path: Path) -> None:
    """A process that was forked with the dataset, such as another rank, sets the epoch of its workers and no other."""
    dataset = shardio.TorchDataset(write(tmp_path / "d"), transforms=CROP)
    before = crops(DataLoader(dataset, 5))
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    copy.set_epoch(1)
    after = crops(DataLoader(copy, 5))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            batches = DataLoader(dataset, 5, num_workers=1, **FORK)
            first = crops(batches)  # its workers start before it sets an epoch
            dataset.set_epoch(1)
            code = 0 if (first, crops(batches)) == (before, after) else 2
            del batches
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert crops([{"image": [dataset[n]["image"] for n in range(20)]}]) == before
    with pytest.raises(ConfigError, match=r"epoch must be in \[0, 2\^63\), got 9223372036854775808"):
        dataset.set_epoch(1 << 63)


def test_samples_by_number(tmp_path: Path) -> None:
    """Indexing follows sequences: negative indices, IndexError at the end, repeats."""
    dataset = shardio.TorchDataset(write(tmp_path / "d"), fields=["label"])
    assert len(dataset) == 20
    assert [sample["label"] for sample in dataset] == list(range(20))
    assert dataset[-1] == {"label": 19, "index": 19}
    assert [sample["index"] for sample in dataset.__getitems__([3, 3, np.int64(1)])] == [3, 3, 1]
    assert dataset.__getitems__([]) == []
    for index in (20, -21):
        with pytest.raises(IndexError, match=rf"index must be in \[0, 20\), got {index}"):
            dataset[index]
    with pytest.raises(ConfigError, match=r"a sample's number must be an integer, got 0\.5"):
        dataset[0.5]


def test_bad_samples(tmp_path: Path) -> None:
    """Bad samples are named, or replaced by the plan's choice."""
    path = write(tmp_path / "d", bad=7)
    with pytest.raises(BadSample, match=r"row \d+ \(sample 7, key k7\), field 'image'"):
        shardio.TorchDataset(path, transforms=CROP)[7]
    dataset = shardio.TorchDataset(path, transforms=CROP, on_bad_sample="replace", verify=True)
    found = [sample["index"] for sample in dataset.__getitems__(range(20))]
    assert found[7] != 7
    assert found[:7] + found[8:] == [*range(7), *range(8, 20)]
    assert pickle.loads(pickle.dumps(dataset))[7]["index"] == found[7]  # noqa: S301
    with pytest.raises(ConfigError, match="on_bad_sample of a TorchDataset must be 'raise' or 'replace', got 'mask'"):
        shardio.TorchDataset(path, on_bad_sample="mask")
    with pytest.raises(ConfigError, match="orient must be True or False, got 'no'"):
        shardio.TorchDataset(path, orient="no")  # type: ignore[arg-type]  # what users type
