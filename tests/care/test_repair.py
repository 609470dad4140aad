"""Repair: it rebuilds lost indexes and manifests, drops incomplete samples, and reports each change."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _adoptable import COUNT, records, tables, tars
from _builders import jpeg
from _cli import run
from _datasets import CONTAINERS, KINDS, files, of_every_kind, packed
from webdataset import TarWriter

import shardio
from shardio import containers
from shardio.care.repair import repair
from shardio.care.verify import verify
from shardio.containers import side_index
from shardio.conversion.adopt import adopt
from shardio.errors import ConfigError, NotADataset
from shardio.system.directory import Directory
from shardio_converters.hdf5 import hdf5
from shardio_converters.tfrecord import tfrecord
from shardio_converters.webdataset import webdataset


@pytest.fixture
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """40 samples of every kind of field in several shards, of the container that the test names."""
    container = request.getfixturevalue("container") if "container" in request.fixturenames else "tar"
    samples, metadata = map(of_every_kind, range(40)), {"classes": ["a"]}
    made = packed(tmp_path / "data", samples, KINDS, container=container, shard_size="30KB", metadata=metadata)
    return Path(made.path)


def values(root: Path) -> list[dict[str, Any]]:
    """All samples of a dataset."""
    ds = shardio.open(root)
    assert verify(ds, deep=True).problems == ()
    return [ds[number] for number in range(len(ds))]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_lost_manifest(dataset: Path, container: str, damage: str) -> None:
    """A lost manifest is rebuilt, with the same digest and samples but without metadata; of tars, as `like` says."""
    before, samples = shardio.open(dataset).manifest, values(dataset)
    manifest = dataset / "shardio.json"
    if damage == "missing":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:300])
    if container == "tar":
        with pytest.raises(ConfigError, match=r"shardio\.json is lost, and tars state no fields: .*--like DATASET"):
            repair(dataset)
    result = repair(dataset, like=before.fields if container == "tar" else None)
    assert result.same is None
    assert result.done[0] == "shardio.json was lost or damaged; rebuilt"
    made = shardio.open(dataset).manifest
    assert made.digest == before.digest
    assert made.fields == before.fields
    np.testing.assert_equal(values(dataset), samples)


def test_lost_metadata_can_be_added_later(dataset: Path) -> None:
    """The note on a lost manifest names --like, and a second repair adds the metadata that the first did not know."""
    fields = shardio.open(dataset).fields
    (dataset / "shardio.json").unlink()
    assert f"`shardio repair {dataset} --like DATASET` takes it from" in repair(dataset, like=fields).notes[-1]
    added = repair(dataset, metadata={"classes": ["a"]})
    assert (added.notes[0].rpartition("; ")[2], added.same, added.lost) == ("added: classes", True, 0)
    assert shardio.open(dataset).classes == ["a"]
    assert repair(dataset, metadata={"classes": ["b"]}).done == ()


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_lost_index(dataset: Path, damage: str) -> None:
    """A lost index is rebuilt from its tar, byte for byte; an intact dataset stays as it is."""
    before = files(dataset)
    index = dataset / "shard-000001.idx.npy"
    if damage == "missing":
        index.unlink()
    elif damage == "cut":
        os.truncate(index, index.stat().st_size - 10)
    else:
        np.save(index, np.zeros(3))
    result = repair(dataset)
    assert result.shards[0].reasons == ("its index shard-000001.idx.npy was lost or damaged; rebuilt",)
    assert (len(result.shards), result.shards[0].lost, result.notes, result.same) == (1, 0, (), True)
    assert files(dataset) == before
    again = repair(dataset)
    assert (again.done, again.same) == ((), True)
    assert files(dataset) == before


def test_the_bytes_of_others_are_kept_as_they_are(tmp_path: Path) -> None:
    """JSON and arrays that another program wrote keep their bytes, and so their checksums, when a copy is repaired."""
    with TarWriter(f"{tmp_path}/others.tar") as writer:
        for number in range(6):
            array = io.BytesIO()
            np.save(array, np.asfortranarray(np.arange(6 + 2 * number).reshape(2, -1)))
            text = f'{{"z": {number}, "a" : [1,  2.50],\n "\\u00f6": "ö"}}\n'.encode()
            writer.write({"__key__": f"x{number}", "json": text, "tokens.npy": array.getvalue()})
    adopt(webdataset([tmp_path / "others.tar"], key=False), tmp_path / "in")
    shardio.convert(tmp_path / "in", tmp_path / "out", container="tar")
    made = shardio.open(tmp_path / "out")
    samples = values(made.path)
    for lost in ("*.idx.npy", "shardio.json", "*"):
        for path in (path for path in made.path.glob(lost) if path.suffix in (".npy", ".json")):
            path.unlink()
        assert repair(made.path, like=made.fields).manifest.digest == made.digest
        np.testing.assert_equal(values(made.path), samples)


@pytest.mark.parametrize("indexed", [True, False])
def test_every_whole_sample_before_a_cut_is_kept(dataset: Path, indexed: bool) -> None:
    """Wherever a tar is cut, its index names the samples all of whose bytes are left, and the tar stays as it is."""
    path = dataset / "shard-000001.tar"
    index, whole, samples = side_index.load(path), path.read_bytes(), values(dataset)
    first, after = shardio.open(dataset).manifest.shards.starts[1:3].tolist()
    names = [name for name in index.dtype.names if name.endswith(".offset")]
    spans = np.array([[(int(row[n]), int(row[n.removesuffix("offset") + "size"])) for n in names] for row in index])
    ends = np.sort(spans.sum(axis=2), axis=1)
    copy = path.parent.parent / "copy"
    for cut in (ends[2][0], *ends[2][-2:], ends[2][-1] + 200, ends[2][-1] + 700, ends[2][-1] + 1100, ends[3][0] - 1):
        shutil.copytree(dataset, copy)
        (copy / path.name).write_bytes(whole[:cut])
        if not indexed:
            side_index.path_of(copy / path.name).unlink()
        (repaired,) = repair(copy).shards
        kept = int((ends[:, -1] <= cut).sum())
        assert (repaired.kept, repaired.lost) == (kept, len(index) - kept)
        assert (copy / path.name).read_bytes() == whole[:cut]
        np.testing.assert_equal(values(copy), samples[: first + kept] + samples[after:])
        assert repair(copy).done == ()
        shutil.rmtree(copy)


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_kept_and_lost_of_each_shard(dataset: Path, container: str, tmp_path: Path) -> None:
    """Of a lost shard, a cut one and a lost index, repair keeps what is whole, counts it, and touches no shard."""
    samples, table = values(dataset), shardio.open(dataset).manifest.shards
    (names, counts), starts = (list(table.names), table.samples.tolist()), table.starts.tolist()
    assert len(names) > 3
    (dataset / names[0]).unlink()
    os.truncate(dataset / names[1], (dataset / names[1]).stat().st_size // 2)
    if container == "tar":
        (dataset / names[3]).with_suffix(".idx.npy").unlink()
    before = {name: data for name, data in files(dataset).items() if name in names}
    told = run("repair", dataset, "--json", tmp_path / "repaired.json")
    assert before == {name: data for name, data in files(dataset).items() if name in names}
    result = json.loads((tmp_path / "repaired.json").read_text())
    kept = result["shards"][1]["kept"]
    assert (kept > 0) == (container == "tar")
    assert [(shard["shard"], shard["kept"], shard["lost"]) for shard in result["shards"]] == [
        (names[0], 0, counts[0]),
        (names[1], kept, counts[1] - kept),
        *([(names[3], counts[3], 0)] if container == "tar" else []),
    ]
    assert result["lost"] == counts[0] + counts[1] - kept
    gone = f"{names[0]}: left out of the dataset: there is no such file: 0 samples kept, {counts[0]} lost\n"
    assert gone in told
    assert f": {kept} samples kept, {counts[1] - kept} lost\n" in told
    assert f", {result['lost']} lost, digest {result['digest']}, not as before" in told
    np.testing.assert_equal(values(dataset), samples[starts[1] : starts[1] + kept] + samples[starts[2] :])
    assert repair(dataset).to_dict()["shards"] == []


ADOPTABLE: dict[str, Callable[[Path], Any]] = {
    "tars": lambda path: webdataset(path, fields="picture=jpg,what=cls,tokens=tokens.npy", key=False, on_error="skip"),
    "tfrecords": lambda path: tfrecord(path, fields="image,what=label", on_error="skip"),
    "hdf5": lambda path: hdf5(path, fields="label=labels,pixels=data/images,files=jpegs"),
}


@pytest.mark.parametrize(
    ("kind", "place"), [("tars", "out"), ("tars", "in"), ("tfrecords", "out"), ("tfrecords", "in"), ("hdf5", "out")]
)
def test_adopted_files(kind: str, place: str, tmp_path: Path) -> None:
    """Repair of adopted files changes indexes alone: it drops lost files, keeps what precedes a cut, and says so."""
    folder = {"tars": tars, "tfrecords": records, "hdf5": tables}[kind](tmp_path / "in")
    adopt(ADOPTABLE[kind](folder), out := tmp_path / place)
    samples, table = values(out), shardio.open(out).manifest.shards
    names, counts, starts = list(table.names), table.samples.tolist(), table.starts.tolist()
    os.truncate(cut := out / names[0], (out / names[0]).stat().st_size * 2 // 3)
    containers.get(shardio.open(out).manifest.container).files(out / names[1])[1].unlink()
    if lost := names[2:]:
        (out / lost[0]).resolve().unlink()
    before = {
        path: path.read_bytes()
        for path in folder.iterdir()
        if not any(ours in path.name for ours in (".idx.", ".sums.", ".json"))
    }
    result = repair(out)
    assert before.items() <= {path: path.read_bytes() for path in folder.iterdir()}.items()
    kept = result.shards[0].kept
    assert (kept > 0) == (kind != "hdf5")
    told = [(shard.shard, shard.kept, shard.lost) for shard in result.shards]
    assert told == [
        (cut.name, kept, counts[0] - kept),
        (names[1], counts[1], 0),
        *((name, 0, count) for name, count in zip(lost, counts[2:], strict=True)),
    ]
    assert not result.same
    np.testing.assert_equal(values(out), samples[:kept] + samples[starts[1] : starts[2]])
    assert repair(out).done == ()
    if kind != "hdf5":
        adopt(ADOPTABLE[kind](folder), out, on_error="skip", max_bad=1, overwrite=True)
        assert verify(shardio.open(out)).problems == ()


def test_what_to_do_about_adopted_files_is_said(tmp_path: Path) -> None:
    """Where repair finds nothing or leaves samples out, it names the commands that help, and these do."""
    files, out = tars(tmp_path / "in"), tmp_path / "out"
    adopt(webdataset(files, key=False), out)
    first = min(files.iterdir())
    whole = first.read_bytes()
    command = f"`shardio index FILES -o {out} --overwrite`"
    first.write_bytes(whole[:3000] + bytes(20) + whole[3020:])
    told = run("repair", out)
    assert "nothing to repair, by the sizes of the files" in told
    assert "`shardio reshard IN OUT --on-error skip` copies whole ones" in told
    assert f"{command} takes files that were changed on purpose as they are now" in told
    os.truncate(first, 2000)
    assert f"when the files are whole again, {command} takes them" in run("repair", out)
    first.write_bytes(whole)
    assert f"{COUNT} samples in 3 indexed shards" in run("index", files, "-o", out, "--overwrite")


def test_adopted_files_that_are_lost(tmp_path: Path) -> None:
    """A dataset none of whose adopted files is there stays as it is."""
    adopt(webdataset(tars(tmp_path / "in"), key=False), out := tmp_path / "out")
    before = files(out)
    (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(NotADataset, match=r"nothing can be saved: .*there is no such file; .*: 0 samples kept, 3 lost"):
        repair(out)
    (tmp_path / "away").rename(tmp_path / "in")
    assert files(out) == before


def test_an_index_that_cannot_be_rebuilt(tmp_path: Path) -> None:
    """Without anything that names the converter, a file whose index is lost leaves the dataset, and repair says why."""
    adopt(webdataset(tars(tmp_path / "in"), key=False), tmp_path / "out")
    described = tmp_path / "out" / "shardio.json"
    described.write_text(described.read_text().replace('"source": "webdataset"', '"source": "os"'))
    (tmp_path / "out" / "shard-000000.idx.npy").unlink()
    (shard,) = repair(tmp_path / "out").shards
    assert (shard.kept, shard.lost) == (0, 3)
    assert "cannot be rebuilt: the manifest names no converter of webdataset, tfrecord" in shard.reasons[0]


@pytest.mark.parametrize("container", CONTAINERS)
def test_damage_within_a_file_that_grew(dataset: Path, container: str) -> None:
    """Where a file's size tells that it changed, a sample without its checksum is named, and leaves the index of a tar.

    It cannot be left out of other shards, in which `verify` goes on to find it.
    """
    shard = dataset / f"shard-000001{containers.get(container).suffix}"
    ds = shardio.open(dataset)
    image = ds[int(ds.manifest.shards.starts[1])]["image"]
    data = bytearray(shard.read_bytes()) + bytes(512 if container == "tar" else 4096)
    data[data.index(image) + 50] ^= 1
    shard.write_bytes(data)
    (repaired,) = repair(dataset).shards
    if container == "tar":
        assert "and not row 0: " in str(repaired)
        assert repaired.lost == 1
        assert verify(shardio.open(dataset), deep=True).problems == ()
        return
    assert "changed in row 0, as checksums tell" in str(repaired)
    assert repaired.lost == 0
    assert verify(shardio.open(dataset)).problems
    told = run("reshard", dataset, dataset.parent / "rest", "--on-error", "skip", "--max-bad", 1)
    assert f"{len(ds) - 1} samples" in told


@pytest.mark.parametrize("place", ["in", "out"])
def test_an_adopted_hdf5_file_that_changed(place: str, tmp_path: Path) -> None:
    """Rows without their checksums are named and stay; a file with other rows is left out until it is indexed again."""
    folder = tables(tmp_path / "in", chunks=(1, 20, 100), compression="gzip", maxshape=(None, 20, 100))
    out = tmp_path / place
    adopt(hdf5(folder, fields="label=labels,pixels=data/images"), out)
    before = values(out)
    with h5py.File(folder / "part1.h5", "r+") as file:
        file["data/images"][3] = np.random.default_rng(1).integers(0, 255, (20, 100))
    (shard,) = repair(out).shards
    assert (shard.kept, shard.lost) == (40, 0)
    assert "changed in row 3, as checksums tell, and stays as it is; `shardio reshard IN OUT" in str(shard)
    assert verify(shardio.open(out)).problems
    told = run("reshard", out, tmp_path / "whole", "--on-error", "skip", "--max-bad", 1)
    assert f"{len(before) - 1} samples" in told
    np.testing.assert_equal(values(tmp_path / "whole"), before[:43] + before[44:])
    with h5py.File(folder / "part1.h5") as file:
        shorter = {name: file[name][:30] for name in ("data/images", "labels")}
    (folder / "part1.h5").unlink()
    with h5py.File(folder / "part1.h5", "w") as file:
        for name, rows in shorter.items():
            file[name] = rows
    (shard,) = repair(out).shards
    assert (shard.kept, shard.lost) == (0, 40)
    assert shard.reasons[0].startswith("left out of the dataset: ")
    adopt(hdf5(folder, fields="label=labels,pixels=data/images"), out, overwrite=True)
    assert len(values(out)) == len(before) - 10


def test_what_cannot_be_repaired(tmp_path: Path, dataset: Path) -> None:
    """Repair refuses a folder without shards, with mixed containers, or with unknown fields."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotADataset, match="expected shards of one container, found none; it is empty"):
        repair(tmp_path / "empty")
    with pytest.raises(NotADataset, match=r"gone: no such directory or shardio\.json"):
        repair(tmp_path / "gone")
    advice = f"`shardio index {tars(tmp_path / 'tars')} -o OUT` makes a dataset"
    with pytest.raises(NotADataset, match=f"found none; it holds tar files: {advice}"):
        repair(tmp_path / "tars")
    with pytest.raises(NotADataset, match=r"train-00\.tar: .*`shardio index .* makes a dataset of it"):
        repair(tmp_path / "tars" / "train-00.tar")
    for path in dataset.glob("*"):
        if path.suffix != ".tar":
            path.unlink()
        else:
            path.write_bytes(b"")
    with pytest.raises(ConfigError, match="nothing proves that shardio wrote these shards"):
        repair(dataset)
    (dataset / "shard-000000.h5").write_bytes(b"")
    with pytest.raises(NotADataset, match="expected shards of one container, found tar and hdf5"):
        repair(dataset)


def test_what_others_wrote_is_left_alone(tmp_path: Path) -> None:
    """Repair neither truncates nor renames links and files of others that are named like shards."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(2):
        with TarWriter(str(raw / f"shard-{number:06d}.tar")) as writer:
            for name in range(5):
                writer.write({"__key__": f"photo{name}", "jpg": jpeg(seed=name)})
    adopt(webdataset(raw, key=False), tmp_path / "out")
    (tmp_path / "out" / "shardio.json").unlink()
    data = bytearray((raw / "shard-000001.tar").read_bytes())
    data[3000] ^= 1
    (raw / "shard-000001.tar").write_bytes(data)
    before = {path: path.read_bytes() for path in raw.iterdir()}
    for folder in (raw, tmp_path / "out"):
        with pytest.raises(ConfigError, match="shardio did not write this file, or nothing proves that it did"):
            repair(folder)
    assert {path: path.read_bytes() for path in raw.iterdir()} == before


class Killed(BaseException):
    """Stands for the death of the process: nothing handles it."""


@pytest.mark.parametrize("place", ["data", "out", "in"])
def test_a_repair_that_is_killed(dataset: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that ends before any of its steps is taken up by the next one, and nothing is left of it."""
    if place != "data":
        adopt(webdataset(tars(tmp_path / "in"), key=False), tmp_path / place)
    first, second, third = sorted((tmp_path / ("data" if place == "data" else "in")).glob("*.tar"))[:3]
    os.truncate(first, first.stat().st_size * 2 // 3)
    (next((tmp_path / place).glob("*1.idx.npy"), None) or second.with_suffix(".idx.npy")).write_bytes(b"damaged")
    if place == "data":
        third.unlink()
    shutil.copytree(tmp_path, whole := tmp_path.with_name(f"{tmp_path.name}-whole"), symlinks=True)
    repair(whole / place)
    for steps in range(20):
        attempt = tmp_path.with_name(f"{tmp_path.name}-{steps}")
        shutil.copytree(tmp_path, attempt, symlinks=True)
        with monkeypatch.context() as patched:
            left = iter(range(steps))
            replace = os.replace

            def stopping(*arguments: Any, left: Any = left, replace: Any = replace, **options: Any) -> None:
                if next(left, None) is None:
                    raise Killed
                replace(*arguments, **options)

            patched.setattr(os, "replace", stopping)
            patched.setattr(Directory, "unlink", lambda *_: None)  # a dead process clears nothing away
            try:
                repair(attempt / place)
            except Killed:
                pass
            else:
                break
        repair(attempt / place)
        assert files(attempt / place) == files(whole / place)
        assert repair(attempt / place).done == ()
    assert steps > 2
