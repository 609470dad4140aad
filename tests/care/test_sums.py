"""The tables of checksums beside shards: who writes them, and what verify, repair and resume make of them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from _adoptable import tables, tars
from _datasets import packed

import shardio
from shardio import containers
from shardio.care.repair import repair
from shardio.care.verify import verify
from shardio.containers import piece_sums
from shardio.conversion.adopt import adopt
from shardio.conversion.api import convert
from shardio.errors import ConfigError, SourceError
from shardio.format.pieces import PIECE
from shardio_converters.hdf5 import hdf5
from shardio_converters.webdataset import webdataset

LOST = "its table of checksums was lost or damaged; written anew"


def write(path: Path, container: str) -> Path:
    """A dataset of a few shards."""
    rows = [{"blob": np.random.default_rng(number).bytes(30_000), "label": number} for number in range(12)]
    packed(path, rows, container=container, shard_size="100KB")
    return path


def linked(path: Path, make: Callable[[Path], Path], kind: Any, **options: Any) -> Path:
    """A dataset of links to files of others."""
    adopt(kind(make(path.parent / "in"), **options), path)
    return path


MAKE: dict[str, Callable[[Path], Path]] = {
    "tar": lambda path: write(path, "tar"),
    "hdf5": lambda path: write(path, "hdf5"),
    "lmdb": lambda path: write(path, "lmdb"),
    "adopted tars": lambda path: linked(path, tars, webdataset, key=False),
    "adopted hdf5": lambda path: linked(path, tables, hdf5, fields={"label": "labels", "data": "data/images"}),
}


@pytest.fixture(params=MAKE)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of each kind."""
    return MAKE[request.param](tmp_path / "d")


def tables_of(path: Path) -> dict[str, bytes]:
    """The tables in a folder."""
    return {file.name: file.read_bytes() for file in path.glob("*.sums.idx.npy")}


def check_tables(path: Path) -> None:
    """Compare tables and manifest with the files of all shards, and find no other table."""
    described = shardio.open(path).manifest
    assert described.piece_bytes == PIECE
    expected = {}
    for number, name in enumerate(described.shards.names):
        size, checksum, table = piece_sums.of_files(containers.get(described.container).files(path / name))
        assert (size, checksum) == (described.shards.bytes[number], described.shards.checksums[number])
        expected[f"{name}.sums.idx.npy"] = table
    assert tables_of(path) == expected


def test_a_table_that_is_lost_or_damaged(dataset: Path) -> None:
    """`create` and `index` write a table beside each shard; `verify` names those that are missing or wrong.

    `repair` writes them as they were, and changes nothing else.
    """
    check_tables(dataset)
    assert verify(dataset, deep=True).problems == ()
    before = {path.name: path.read_bytes() for path in dataset.iterdir()}
    first, *_, last = sorted(tables_of(dataset))
    (dataset / first).unlink()
    (dataset / last).write_bytes(before[last][:-1] + bytes([before[last][-1] ^ 1]))
    assert verify(dataset).problems == (
        f"{first} is missing; `shardio repair` writes it anew",
        f"{last} does not hold the checksums of its pieces; `shardio repair` writes it anew",
    )
    assert [shard.reasons for shard in repair(dataset).shards] == [(LOST,), (LOST,)]
    after = {path.name: path.read_bytes() for path in dataset.iterdir()}
    for content in (before, after):  # a repair forgets how the dataset was converted
        content["shardio.json"] = json.dumps({**json.loads(content["shardio.json"]), "conversion": {}}).encode()
    assert after == before
    assert repair(dataset).done == ()


def test_datasets_without_tables_stay_so(dataset: Path) -> None:
    """A dataset that has no tables is whole, and a repair gives it none."""
    for table in dataset.glob("*.sums.idx.npy"):
        table.unlink()
    told = json.loads((dataset / "shardio.json").read_text())
    del told["piece_bytes"]
    (dataset / "shardio.json").write_text(json.dumps(told))
    assert verify(dataset).problems == ()
    assert repair(dataset).done == ()
    assert tables_of(dataset) == {}


def test_a_repair_vouches_for_no_damage(tmp_path: Path) -> None:
    """A changed byte that a repair does not see is found by `verify` afterwards, though another shard was repaired."""
    path = write(tmp_path / "d", "tar")
    first, second = sorted(path.glob("*.tar"))[:2]
    with open(first, "r+b") as file:
        file.seek(2000)
        file.write(b"changed")
    before = tables_of(path)
    second.with_name(f"{second.stem}.idx.npy").unlink()
    assert [shard.shard for shard in repair(path).shards] == [second.name]
    assert tables_of(path) == before
    (problem,) = verify(path).problems
    assert problem.startswith(f"{first.name}: checksum ")


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_after_a_repair_tables_fit(container: str, tmp_path: Path) -> None:
    """A lost index, a cut shard and a lost manifest are repaired with tables that fit what is left."""
    path = write(tmp_path / "d", container)
    first, second = sorted(p for p in path.iterdir() if p.suffix in (".tar", ".h5", ".lmdb"))[:2]
    data = first.read_bytes()
    first.write_bytes(data[: len(data) // 2])
    if container == "tar":
        (path / f"{second.stem}.idx.npy").unlink()
    lost = [shard.shard for shard in repair(path).shards if not shard.kept]
    for name in lost:
        piece_sums.path_of(path / name).unlink()
    check_tables(path)
    before, fields = (path / "shardio.json").read_bytes(), shardio.open(path).fields
    (path / "shardio.json").unlink()
    repair(path, like=fields if container == "tar" else None)
    check_tables(path)
    assert (path / "shardio.json").read_bytes() == before


def test_resume_mends_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that resumes keeps shards without tables, and writes these."""
    np.save(tmp_path / "a.npy", np.arange(3000.0))
    again = partial(convert, tmp_path / "a.npy", tmp_path / "out", converter="numpy", container="tar", shard_size="5KB")
    with monkeypatch.context() as patched:
        patched.setattr("shardio.output.folder.move_into_place", mock.Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            again()
    (shards,) = (tmp_path / "out" / ".converting").glob("run-*/shards")
    inodes = {path.name: path.stat().st_ino for path in shards.glob("*.tar")}
    for table in sorted(shards.glob("*.sums.idx.npy"))[::2]:
        table.unlink()
    again(resume=True)
    check_tables(tmp_path / "out")
    assert {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")} == inodes


def test_an_array_of_others_in_the_place_of_a_table(tmp_path: Path) -> None:
    """An index beside files refuses to replace what is no table, by name, before it writes anything."""
    folder = tars(tmp_path / "in")
    mine = folder / f"{min(folder.iterdir()).name}.sums.idx.npy"
    np.save(mine, np.arange(5))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises((ConfigError, SourceError), match=f"{mine.name}: not a table that shardio wrote"):
        adopt(webdataset(sorted(folder.glob("*.tar")), key=False), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_overwriting_leaves_no_table(tmp_path: Path) -> None:
    """A dataset that replaces another one has its own tables only, whatever the containers."""
    np.save(tmp_path / "a.npy", np.arange(30.0))
    path = write(tmp_path / "d", "hdf5")
    for container in ("lmdb", "tar"):
        convert(tmp_path / "a.npy", path, converter="numpy", container=container, overwrite=True)
        check_tables(path)
