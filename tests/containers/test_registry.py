"""The registry is the only list of containers: one that a test registers works everywhere."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from _datasets import tensors

import shardio
from shardio import containers
from shardio.care.repair import repair
from shardio.care.verify import verify
from shardio.errors import ConfigError
from shardio.format.manifest import FILE_NAME

LMDB = containers.get("lmdb")


class Added:
    """The container that this module adds: LMDB files by another name."""

    name, suffix = "added", ".added"
    options: Mapping[str, str] = MappingProxyType({"compression": "none, that is, nothing"})

    def __getattr__(self, name: str) -> Any:
        return getattr(LMDB, name)


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `Added` for one test."""
    monkeypatch.setattr(containers, "CONTAINERS", {**containers.CONTAINERS, "added": Added()})


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """50 samples in several shards of `Added`."""
    return Path(tensors(50, tmp_path / "data", container="added", shard_size="5KB").path)


def test_facts() -> None:
    """The registry's answers include the new container; an unknown name raises with the list."""
    assert containers.get("added").name == "added"
    assert containers.names() == ("tar", "hdf5", "lmdb", "added")
    assert containers.with_option("compression").keys() == {"hdf5", "added"}
    with pytest.raises(ConfigError, match="container must be one of tar, hdf5, lmdb, added, got 'zip'"):
        containers.get("zip")


def test_written_read_and_verified(dataset: Path) -> None:
    """A dataset of it is written, opened, loaded and verified."""
    opened = shardio.open(dataset)
    assert len(opened.manifest.shards) > 3
    assert [opened[number]["label"] for number in range(50)] == list(range(50))
    rows = [row for batch in shardio.Loader(dataset, 10, threads=2) for row in batch["label"].tolist()]
    assert sorted(rows) == list(range(50))
    assert verify(opened, deep=True).problems == ()
    (dataset / "shard-000001.added").write_text("{}")
    assert "shard-000001.added" in verify(shardio.open(dataset)).problems[0]


def test_made_again(dataset: Path) -> None:
    """Its lost manifest is repaired, and a dataset of it is replaced on request."""
    digest = shardio.open(dataset).digest
    (dataset / FILE_NAME).unlink()
    assert repair(dataset).manifest.digest == digest
    tensors(1, dataset, container="added", overwrite=True)
    names = ["shard-000000.added", "shard-000000.added.sums.idx.npy", FILE_NAME]
    assert sorted(path.name for path in dataset.iterdir()) == names
