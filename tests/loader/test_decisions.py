"""A job decides once for its rows: tasks of a few rows make what one task makes, errors stay with their rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg
from _datasets import packed
from _jobs import same

import shardio
from shardio.dataset.dataset import Dataset
from shardio.loader.batch.job import JobSize

COUNT, BATCH, TASK = 48, 16, 3
CROP: Any = {"image": [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip()]}
VOLUMES: Any = {"volume": [shardio.RandomSpatialCrop(2), shardio.RandomAxisFlip()]}


def rows(first: int = 0) -> Dataset:
    """Samples with every kind of decision: a photo, an array, tokens and a text."""
    numbers = range(first, first + COUNT)
    return shardio.from_samples(
        (
            {
                "image": jpeg(9 + n % 5, 12, seed=n),
                "volume": np.full((4, 4), n, np.float32) + np.arange(4, dtype=np.float32),
                "tokens": np.arange(n, n + 1 + n % 7),
                "text": f"sample {n}",
            }
            for n in numbers
        ),
        {"image": "image", "volume": ("float32", (4, 4)), "tokens": ("int64", (None,)), "text": "text"},
        shard_samples=7,
    )


VIEWS: dict[str, tuple[Callable[[], Any], Any]] = {
    "dataset": (rows, CROP | VOLUMES),
    "mixture": (lambda: shardio.mix({"a": rows(), "b": rows(COUNT)}), CROP | VOLUMES),
    "windows that overlap": (lambda: rows().windows(4, within="dataset"), VOLUMES),
    "windows that don't": (lambda: rows().windows(2, step=2, within="dataset"), VOLUMES),
    "rows of documents": (lambda: rows().packed("tokens", 8), None),
}


def batches(data: Any, transforms: Any) -> list[dict[str, Any]]:
    """The batches of an epoch."""
    return list(shardio.Loader(data, BATCH // 4, transforms=transforms, threads=3, seed=1, tail="pad"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a few rows."""
    monkeypatch.setattr(JobSize, "samples_at", lambda *_: TASK)


@pytest.mark.parametrize("view", VIEWS)
def test_tasks_of_a_few_rows(view: str, request: pytest.FixtureRequest) -> None:
    """However a job is cut into tasks, its batches are the same."""
    make, transforms = VIEWS[view]
    data = make()
    expected = batches(data, transforms)
    request.getfixturevalue("few")
    for batch, other in zip(batches(data, transforms), expected, strict=True):
        assert same(batch, other)


@pytest.mark.usefixtures("few", "nothing_ahead")
def test_a_job_decides_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of a job are located once, not once per task."""
    data, located, selection = rows(), list[list[int]](), Dataset.selection

    def counting(self: Dataset, indices: Any, *limits: Any) -> Any:
        located.append(indices.tolist())
        return selection(self, indices, *limits)

    monkeypatch.setattr(Dataset, "selection", counting)
    for _ in shardio.Loader(data, BATCH, transforms=CROP, fields=["image"], shuffle=None, threads=3):
        pass
    assert sorted(index for each in located for index in each) == list(range(COUNT))
    assert len(located) <= COUNT // BATCH  # of which a job may make several


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_a_lost_shard_is_that_of_its_own_rows(container: str, tmp_path: Path) -> None:
    """A job that cannot decide for all rows leaves the others as they are."""
    samples = ({"image": jpeg(9, 12, seed=n)} for n in range(COUNT))
    data = packed(tmp_path / "d", samples, {"image": "image"}, container=container, shard_size="4KB")
    first, end = data.manifest.shards.starts[1:3].tolist()
    (tmp_path / "d" / data.manifest.shards.names[1]).unlink()
    lossy = shardio.open(tmp_path / "d")
    loader = shardio.Loader(lossy, BATCH, transforms=CROP, threads=3, shuffle=None, on_bad_sample="mask", max_bad=COUNT)
    valid = torch.cat([batch["valid"] for batch in loader])
    assert np.flatnonzero(~valid.numpy()).tolist() == list(range(first, end))
