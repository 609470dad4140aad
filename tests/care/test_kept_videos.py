"""Datasets of videos are looked after: verified to their tables, repaired, copied, indexed in place, appended to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import CONTAINERS
from _videos import make, turned, video

import shardio
from shardio.care.repair import repair
from shardio.care.verify import verify
from shardio.containers import side_index
from shardio.conversion.adopt import adopt, rebuild_index
from shardio.conversion.source import Places, Source
from shardio.errors import BadSample
from shardio.format.fields import Field, facts_column, packets_column
from shardio.system.directory import Directory

NAMES = ("h264.mp4", "vp9.webm", "h264_open.mkv", "edited.mp4", "hevc_open.mp4")
FIELDS = {"video": Field("video", optional=True), "label": Field("scalar", dtype="int64")}


def samples() -> list[dict[str, Any]]:
    return [{"video": video(name), "label": label} for label, name in enumerate(NAMES)] + [{"video": None, "label": 9}]


@pytest.fixture(params=CONTAINERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of two shards, and a sample without a video."""
    with shardio.create(tmp_path / "d", fields=FIELDS, container=request.param, shard_size="100KB") as writer:
        for sample in samples():
            writer.append(sample)
    return tmp_path / "d"


def tables(folder: Path) -> list[Any]:
    """The facts and tables of all videos."""
    dataset = shardio.open(folder)
    selection = dataset.selection(np.arange(len(dataset)))
    facts = selection.column(facts_column("video")).tolist()
    return [facts, [bytes(table) for table in selection.stored(packets_column("video"))]]


def damage(folder: Path, old: bytes, place: int) -> None:
    """Change a byte of what stands once in the files of a dataset."""
    (path,) = (path for path in folder.iterdir() if old in path.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(old) + place] ^= 4
    path.write_bytes(data)


def test_verify(folder: Path) -> None:
    """`verify --deep` finds a video whose bytes or table have changed, and names the sample."""
    assert verify(folder).problems == verify(folder, deep=True).problems == ()
    damage(folder, tables(folder)[1][1], 20)
    (found,) = [problem for problem in verify(folder, deep=True).found if problem.location]
    assert found.location is not None
    assert found.location.index == 1
    assert "its table of packets is another than that of its bytes" in found.reason


def test_copies(folder: Path, tmp_path: Path) -> None:
    """A dataset is converted from others with the tables that they have; a table that is damaged is a bad sample."""
    shardio.convert(folder, tmp_path / "copy", container="lmdb")
    assert shardio.open(tmp_path / "copy").digest == shardio.open(folder).digest
    assert tables(tmp_path / "copy") == tables(folder)
    shardio.convert(folder, tmp_path / "copy", append=True)
    assert tables(tmp_path / "copy") == [[*part, *part] for part in tables(folder)]
    assert verify(tmp_path / "copy", deep=True).problems == ()
    damage(folder, tables(folder)[1][1], 20)
    with pytest.raises(BadSample, match=r"sample 1\b.*field 'video'"):
        shardio.convert(folder, tmp_path / "again")


@pytest.mark.parametrize("lost", ["index", "second", "end"])
def test_repair_of_an_index(tmp_path: Path, lost: str) -> None:
    """The tables of tars are made anew with their index; of a tar that is cut, the others' tables stay."""
    with shardio.create(tmp_path / "d", fields=FIELDS, container="tar") as writer:
        for sample in samples():
            writer.append(sample)
    folder, before = tmp_path / "d", tables(tmp_path / "d")
    path = folder / "shard-000000.tar"
    index = side_index.path_of(path)
    whole = index.read_bytes()
    if lost == "index":
        index.unlink()
    elif lost == "second":
        index.write_bytes(whole[: len(whole) - len(before[1][4]) // 2])
    else:
        path.write_bytes(path.read_bytes()[: int(side_index.load(path)["video.offset"].take(np.array([4]))[0]) + 100])
    kept = [0, 1, 2, 3, 5] if lost == "end" else range(6)  # the last one has no video, and its label in the index
    assert len(repair(folder).done) == 1
    assert lost == "end" or index.read_bytes() == whole
    assert tables(folder) == [[part[row] for row in kept] for part in before]
    assert verify(folder, deep=True).problems == ()


class Files(Source):
    """Videos end to end in one file each, as another program wrote them."""

    def __init__(self, folder: Path, values: list[bytes]) -> None:
        self.files = [folder / f"part{number}.bin" for number in range(len(values))]
        for path, value in zip(self.files, values, strict=True):
            path.write_bytes(b"head" + value)
        self._values = values

    @property
    def fields(self) -> Mapping[str, Field]:
        return {"video": Field("video")}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    @property
    def adoption(self) -> Places:
        return Places(np.arange(len(self._values) + 1), lambda number: {"video": (4, len(self._values[number]))})

    def sizes(self) -> np.ndarray:
        return np.array([len(value) for value in self._values])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"video": self._values[index]}


def test_files_in_place(tmp_path: Path) -> None:
    """Files of others are indexed with tables beside them, and not changed; the index is made anew, the same."""
    (tmp_path / "files").mkdir()
    source = Files(tmp_path / "files", [video(name) for name in NAMES])
    adopt(source, tmp_path / "d")
    dataset = shardio.open(tmp_path / "d")
    assert [dataset[number]["video"] for number in range(len(dataset))] == [video(name) for name in NAMES]
    assert verify(dataset, deep=True).problems == ()
    clip = [shardio.CenterClip(4, stride=2)]
    assert len([*shardio.Loader(dataset, 1, transforms={"video": clip}, verify=True)]) == len(NAMES)
    shard = dataset.manifest.shards.names[2]
    index = side_index.path_of(tmp_path / "d" / shard)
    whole = index.read_bytes()
    index.unlink()
    rebuild_index(source, 2, shard, Directory(tmp_path / "d"))
    assert index.read_bytes() == whole


def test_what_is_not_indexed(tmp_path: Path) -> None:
    """Files that convert would rewrite are refused by the index, with that advice."""
    (tmp_path / "files").mkdir()
    value = make(tmp_path / "v.ts", ("-c:v", "libx264", "-g", "12")).read_bytes()
    with pytest.raises(BadSample, match="`shardio convert` rewrites MPEG-TS"):
        adopt(Files(tmp_path / "files", [value]), tmp_path / "d")


def test_what_is_told(tmp_path: Path) -> None:
    """Converting says how many videos were rewritten, and how many are to be shown turned."""
    values = [make(tmp_path / "v.ts", ("-c:v", "libx264")).read_bytes(), turned(video("h264.mp4"), (0, 1, -1, 0))]
    made = shardio.convert(Files(tmp_path, values), tmp_path / "d")
    assert "1 video of MPEG-TS, AVI or FLV: rewritten to MP4" in str(made.notes)
    assert "a display matrix turns 1 video, which a Loader ignores: Loader(orient=True) turns them" in str(made.notes)
    assert verify(tmp_path / "d", deep=True).problems == ()
