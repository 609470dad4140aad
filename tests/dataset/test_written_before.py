"""Datasets and a loader state that a release wrote read, verify and resume in each later one.

`make_written_before.py` wrote them, with the release that names the folder.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _cli import run
from _datasets import packed

import shardio
from shardio import World

FOLDER = Path(__file__).parent / "written_before" / "0.1.0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
DATASETS = ["tar", "hdf5", "lmdb", "others"]  # the last one is an adopted tar of another writer


def short_name(value: Any) -> str:
    """A short name of a value: its hash, with its dtype and shape."""
    if isinstance(value, np.ndarray):
        value = value.dtype.str.encode() + repr(value.shape).encode() + value.tobytes()
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.mark.parametrize("name", DATASETS)
def test_samples_read_as_they_were_written(name: str) -> None:
    """Every value of every sample is the same, byte for byte, and so is the digest."""
    dataset = shardio.open(FOLDER / name)
    assert dataset.digest == EXPECTED["digests"][name]
    assert [{field: short_name(v) for field, v in dataset[n].items()} for n in range(20)] == EXPECTED["samples"][name]


@pytest.mark.parametrize("name", DATASETS)
def test_deep_verification_finds_nothing(name: str) -> None:
    """Deep verification of the old files finds no problems."""
    assert shardio.verify(shardio.open(FOLDER / name), deep=True).found == ()


def test_files_are_those_that_were_written() -> None:
    """No file of the fixture has changed since it was written."""
    found = {str(path.relative_to(FOLDER)) for name in DATASETS for path in (FOLDER / name).iterdir()}
    assert found == set(EXPECTED["files"])
    for path, digest in EXPECTED["files"].items():
        assert hashlib.sha256((FOLDER / path).read_bytes()).hexdigest() == digest, path


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_the_same_samples_are_written_as_the_same_bytes(container: str, tmp_path: Path) -> None:
    """Today's writer gives the old dataset's files."""
    old = shardio.open(FOLDER / container)
    names = ("label", "key", "note", "points", "row", "raw")
    fields = {"image": shardio.Field("image"), **{name: old.fields[name] for name in names}}
    packed(tmp_path / "new", old, fields, container=container, shard_size="6KB")
    new = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert new == {path.name: path.read_bytes() for path in (FOLDER / container).iterdir()}


@pytest.mark.parametrize(("container", "batch_size"), [("hdf5", 4), ("tar", 4), ("lmdb", 2)])
def test_a_state_goes_on(container: str, batch_size: int) -> None:
    """The old state resumes with the samples that the old loader would have delivered next."""
    loader = shardio.Loader(FOLDER / container, batch_size, seed=5, threads=1, world=World())
    loader.load_state_dict(EXPECTED["state"])
    rest = [index for batch in loader for index in batch["index"].tolist()]
    assert rest == [index for step in EXPECTED["rest"] for index in step]


def test_indexing_again_gives_the_same_index(tmp_path: Path) -> None:
    """Indexing the adopted file again writes the old index."""
    (tmp_path / "others").mkdir()
    shutil.copy(FOLDER / "others" / "photos.tar", tmp_path / "others")
    run("index", "others", "-o", "others", cwd=tmp_path)
    index = "others/photos.idx.npy"
    assert (tmp_path / index).read_bytes() == (FOLDER / index).read_bytes()
