"""Videos of every source: class folders, lists, tars, and tables of Arrow."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import jpeg, write_files
from _foreign import write_tar
from _media import encoded_sound, shown, video

import shardio
from shardio.errors import NotADataset, SourceError
from shardio.source import Field, Source
from shardio_converters.filelist import filelist
from shardio_converters.huggingface import huggingface
from shardio_converters.parquet import parquet
from shardio_converters.videofolder import videofolder
from shardio_converters.webdataset import webdataset

VIDEOS = [video(seed=0), video(seed=1, form="matroska"), video(seed=2, form="mov", group=6)]
NAMES = ["a/0.mp4", "a/1.MKV", "b/2.mov"]


def folder_of(root: Path) -> Path:
    """Two class folders."""
    write_files(root / "clips", dict(zip(NAMES, VIDEOS, strict=True)))
    return root / "clips"


def from_folder(root: Path) -> Source:
    return videofolder(folder_of(root))


def from_list(root: Path) -> Source:
    folder_of(root)
    (root / "list.csv").write_text("path,label\n" + "".join(f"clips/{name},0\n" for name in NAMES))
    return filelist(root / "list.csv")


def from_tar(root: Path) -> Source:
    suffixes = [name.rpartition(".")[2].lower() for name in NAMES]
    write_tar(root / "a.tar", [(f"{n}.{suffix}", VIDEOS[n]) for n, suffix in enumerate(suffixes)])
    return webdataset(root / "a.tar")


def from_bytes(root: Path) -> Source:
    pq.write_table(pa.table({"video": pa.array(VIDEOS, pa.binary())}), root / "a.parquet")
    return parquet(root / "a.parquet")


def from_paths(root: Path) -> Source:
    folder_of(root)
    pq.write_table(pa.table({"file": [f"clips/{name}" for name in NAMES]}), root / "a.parquet")
    return parquet(root / "a.parquet", path={"video": "file"})


def from_noted(root: Path) -> Source:
    """Hugging Face's feature Video, with bytes of one sample and a path of another."""
    folder = folder_of(root)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = [{"bytes": data, "path": None} for data in VIDEOS[:2]]
    cells.append({"bytes": None, "path": str(folder / NAMES[2])})
    note = json.dumps({"info": {"features": {"video": {"_type": "Video"}}}})
    schema = pa.schema([("video", kind)], metadata={"huggingface": note})
    pq.write_table(pa.table({"video": pa.array(cells, kind)}, schema), root / "a.parquet")
    return parquet(root / "a.parquet", path="video")


@pytest.mark.parametrize("made", [from_folder, from_list, from_tar, from_bytes, from_paths, from_noted])
def test_videos_are_taken_from(made: Callable[[Path], Source], tmp_path: Path) -> None:
    """The field is `video`, each file is stored as it is, and a Loader delivers its frames."""
    source = made(tmp_path)
    assert source.fields["video"] == Field("video")
    shardio.convert(source, tmp_path / "out", container="hdf5")
    dataset = shardio.open(tmp_path / "out")
    assert [bytes(dataset[n]["video"]) for n in range(3)] == VIDEOS
    loader = shardio.Loader(dataset, 3, transforms={"video": [shardio.UniformFrames(2)]}, shuffle=None)
    (batch,) = loader
    first = shown(VIDEOS[0])[6].astype(int)  # by swscale, whose colours differ from ours by a little
    assert np.abs(batch["video"][batch["index"].tolist().index(0)][0].numpy() - first).mean() < 3


def test_class_folders_are_those_of_images(tmp_path: Path) -> None:
    """Classes, labels and what is left out follow the rules of imagefolder; images point to it."""
    folder = folder_of(tmp_path)
    (folder / "b" / "notes.txt").write_text("")
    source = videofolder(folder)
    assert dict(source.metadata) == {"source": "videofolder", "classes": ["a", "b"]}
    samples = [(source[n]["key"], source[n]["label"]) for n in range(3)]
    assert samples == list(zip(NAMES, (0, 0, 1), strict=True))
    assert source.remarks[0].startswith("left out 1 file of other kinds than .avi, ")
    write_files(tmp_path / "photos", {"a.jpg": jpeg()})
    with pytest.raises(SourceError, match=r"holds no videos .*shardio convert imagefolder .* takes images"):
        videofolder(tmp_path / "photos")


def test_a_feature_of_videos_is_one_without_a_look_at_values(tmp_path: Path) -> None:
    """A Dataset whose feature is Video has the field, whatever its bytes begin with."""
    datasets = pytest.importorskip("datasets")
    if not hasattr(datasets, "Video"):
        pytest.skip("this release of datasets has no feature for videos")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = [{"bytes": data, "path": None} for data in VIDEOS]
    table = pa.table({"clip": pa.array(cells, kind)})
    made = datasets.Dataset(table, info=datasets.DatasetInfo(features=datasets.Features({"clip": datasets.Video()})))
    source = huggingface(made)
    assert source.fields["clip"] == Field("video")
    assert source[1]["clip"] == VIDEOS[1]


def test_sounds_in_mp4_are_no_videos(tmp_path: Path) -> None:
    """M4A begins like MP4 and holds no pictures: it stays bytes."""
    write_files(tmp_path, {"a.m4a": encoded_sound("ipod", "aac"), "list.csv": b"path\na.m4a\n"})
    assert filelist(tmp_path / "list.csv").fields["bytes"] == Field("bytes")


def test_a_file_that_is_no_video_is_a_bad_sample(tmp_path: Path) -> None:
    """It is named, and left out where that is asked for."""
    folder = folder_of(tmp_path)
    (folder / "b" / "3.mp4").write_bytes(b"no video at all, but text")
    with pytest.raises(shardio.errors.BadSample, match=r"key b/3\.mp4.*field 'video'"):
        shardio.convert(folder, tmp_path / "out", converter="videofolder")
    made = shardio.convert(
        folder, tmp_path / "out", converter="videofolder", on_error="skip", max_bad=1, overwrite=True
    )
    assert made.manifest.samples == 3


def test_workers_and_resume_give_the_same_bytes(tmp_path: Path) -> None:
    """Processes pack videos as one does, and a finished conversion is kept."""
    folder = folder_of(tmp_path)
    one = shardio.convert(folder, tmp_path / "one", converter="videofolder", shard_size=1)
    two = shardio.convert(folder, tmp_path / "two", converter="videofolder", shard_size=1, workers=2)
    assert one.manifest.digest == two.manifest.digest
    assert len(two.manifest.shards) == 3
    again = shardio.convert(folder, tmp_path / "two", converter="videofolder", shard_size=1, resume=True)
    assert again.manifest.digest == one.manifest.digest


@pytest.mark.parametrize(("name", "command"), [("a/0.mp4", "videofolder"), ("a/0.wav", "audiofolder")])
def test_a_folder_that_is_no_dataset_is_told_its_command(name: str, command: str, tmp_path: Path) -> None:
    """Opening a folder of videos or sounds, with or without class folders, names the converter for it."""
    write_files(tmp_path / "in", {name: b"", f"b/{Path(name).name}": b""})
    for folder in (tmp_path / "in", tmp_path / "in" / "a"):
        with pytest.raises(NotADataset, match=rf"`shardio convert {command} \S+{folder.name} OUT"):
            shardio.open(folder)
