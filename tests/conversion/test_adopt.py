"""Datasets of files that other programs wrote, adopted in place by `adopt` and `shardio index`."""

import gzip
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb as library
import numpy as np
import pytest
from _adoptable import COUNT, records, tables, tars
from _builders import jpeg, npy, png, write_files
from _cli import run
from _foreign import Datum, example, write_tar, write_tfrecord
from _hdf5_files import write_hdf5
from _places import cut_off, kill_at_work
from webdataset import ShardWriter

import shardio
import shardio.output.folder
from shardio.care.verify import verify
from shardio.conversion.adopt import adopt
from shardio.conversion.api import convert
from shardio.conversion.source import Source
from shardio.errors import BadSample, ConfigError, NotADataset, SourceError
from shardio.system.units import counted
from shardio.testing.sources import check_sample
from shardio_converters.hdf5 import hdf5
from shardio_converters.imagefolder import imagefolder
from shardio_converters.lmdb import lmdb
from shardio_converters.tfrecord import tfrecord
from shardio_converters.webdataset import webdataset


def environment(folder: Path, datums: bool) -> Path:
    """An LMDB of image files, or of Datum messages that hold them."""
    folder.mkdir(parents=True, exist_ok=True)
    with library.open(str(folder / "in"), map_size=1 << 24) as env, env.begin(write=True) as transaction:
        for number in range(COUNT):
            image = jpeg(40, 50 + number, seed=number)
            value = Datum(data=image, label=number, encoded=True).SerializeToString() if datums else image
            transaction.put(b"key %d" % number, value)
    return folder / "in"


ALL: dict[str, Callable[[Path], Any]] = {
    "tars": lambda folder: webdataset(tars(folder), key=False),
    "tfrecords": lambda folder: tfrecord(records(folder)),
    "lmdb": lambda folder: lmdb(environment(folder, datums=False)),
    "lmdb of datums": lambda folder: lmdb(environment(folder, datums=True)),
    "hdf5": lambda folder: hdf5(tables(folder), fields="image=jpegs,label=labels,data/images,data/boxes,names"),
    "hdf5 in chunks": lambda folder: hdf5(
        tables(folder, chunks=(7, 20, 50), compression="gzip", shuffle=True), fields="pixels=data/images,label=labels"
    ),
    "hdf5 of scalars": lambda folder: hdf5(tables(folder), fields="label=labels"),
}


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The content and modification time of every file below a folder."""
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(params=ALL)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A source of each kind, with its files in `in`."""
    return ALL[request.param](tmp_path / "in")


class TestAdoption:
    def test_samples_are_the_sources(self, source: Any, tmp_path: Path) -> None:
        """An adopted dataset has its source's samples, verifies without problems, and leaves the files untouched."""
        before = state(tmp_path / "in")
        made = adopt(source, tmp_path / "out")
        assert state(tmp_path / "in") == before
        dataset = shardio.open(tmp_path / "out")
        assert (dataset.manifest.container, made.skipped) == (source.adoption.container, ())
        expected = [dict(source[number]) for number in range(len(source.sizes()))]
        assert len(dataset) == len(expected)
        for number, sample in enumerate(expected):
            check_sample(dataset[number], sample)
        assert verify(dataset, deep=True).problems == ()
        shards = [path for path in (tmp_path / "out").iterdir() if path.is_symlink()]
        assert sorted(path.resolve() for path in shards) == sorted(source.files)
        (tmp_path / "there").mkdir()  # links are relative: a folder that holds all of it may be moved
        for name in ("in", "out"):
            (tmp_path / name).rename(tmp_path / "there" / name)
        check_sample(shardio.open(tmp_path / "there" / "out")[len(expected) - 1], expected[-1])

    def test_it_is_what_a_conversion_would_be(self, source: Any, tmp_path: Path) -> None:
        """An adopted dataset has the digest of a converted one, unless the source stores values in other bytes."""
        adopt(source, tmp_path / "out", workers=2)
        digests = {shardio.open(tmp_path / "out").digest}
        if "json" in source.fields or "tokens" in source.fields:
            return  # JSON spacing and .npy headers are those of the original writer
        convert(source, tmp_path / "converted", container="tar", shard_size=50_000, tell=lambda note: None)
        assert digests == {shardio.open(tmp_path / "converted").digest}

    def test_made_anew(self, source: Any, tmp_path: Path) -> None:
        """Overwriting removes what shardio wrote and nothing else; a conversion may overwrite an index."""
        made = adopt(source, tmp_path / "out")
        before = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert adopt(source, tmp_path / "out", overwrite=True).manifest == made.manifest
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
        files = state(tmp_path / "in")
        convert(source, tmp_path / "out", container="lmdb", overwrite=True, tell=lambda note: None)
        assert state(tmp_path / "in") == files
        left = {"".join(path.suffixes) for path in (tmp_path / "out").iterdir()}
        assert left == {".lmdb", ".lmdb.sums.idx.npy", ".json"}


@pytest.mark.parametrize(("make", "kind"), [(tars, webdataset), (records, tfrecord), (tables, hdf5)])
def test_a_lost_manifest_of_linked_files(make: Callable[[Path], Path], kind: Any, tmp_path: Path) -> None:
    """Of a dataset of links without its manifest, errors name a command, which makes it anew and changes no file."""
    files, out = make(tmp_path / "in"), tmp_path / "out"
    before = state(files)
    fields = {} if make is not tables else {"fields": "label=labels"}
    source = kind(files, **({"key": False} if make is tars else fields))
    made = adopt(source, out)
    (out / "shardio.json").unlink()
    advice = f"links to files of other programs, such as {min(files.iterdir())}: `shardio index FILES -o {out} --over"
    with pytest.raises(NotADataset, match=re.escape(advice)):
        shardio.open(out)
    with pytest.raises((ConfigError, NotADataset), match=re.escape(advice)):
        shardio.repair(out)
    with pytest.raises(ConfigError, match="overwrite replaces the unfinished dataset"):
        adopt(source, out)
    (out / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"it holds notes\.txt"):
        adopt(source, out, overwrite=True)
    (out / "notes.txt").unlink()
    assert adopt(source, out, overwrite=True).manifest == made.manifest
    assert state(files) == before


class TestBeside:
    @pytest.mark.parametrize("make", [tars, records, tables], ids=["tars", "tfrecords", "hdf5"])
    def test_in_the_files_own_folder(self, make: Callable[[Path], Path], tmp_path: Path) -> None:
        """An index may be written to the folder of the files; nothing, not even overwriting, removes the files."""
        folder = make(tmp_path / "in")
        np.save(numbers := tmp_path / "a.npy", np.arange(5))
        before = state(folder)
        given: Any = {"fields": "label=labels,data/images" if make is tables else None, "tell": [].append}
        first = shardio.index(folder, folder, **given).manifest
        after = state(folder)
        assert before.items() <= after.items()
        assert len(after) == 3 * len(before) + 1  # an index and a table of checksums each, and the manifest
        with pytest.raises(ConfigError, match="must be empty; overwrite replaces the dataset"):
            shardio.index(folder, folder, **given)
        assert shardio.index(folder, folder, overwrite=True, **given).manifest.digest == first.digest
        assert before.items() <= state(folder).items()
        with pytest.raises(ConfigError):
            convert(numbers, folder, converter="numpy", overwrite=True)
        assert before.items() <= state(folder).items()

    @pytest.mark.parametrize("lost", ["the index", "the manifest"])
    def test_files_that_are_called_like_shards(self, lost: str, tmp_path: Path) -> None:
        """Adopted files with names like shardio's are never removed or repaired, even without a manifest."""
        folder = tmp_path / "in"
        for number, path in enumerate(sorted(tars(folder).iterdir())):
            path.rename(folder / f"shard-{number:06d}.tar")
        before = state(folder)
        source = webdataset(folder, key=False)
        if lost == "the manifest":
            adopt(source, folder)
            os.truncate(folder / "shardio.json", 100)
        else:
            with cut_off(folder, 0, OSError("full")), pytest.raises(OSError, match="full"):
                adopt(source, folder)
            assert (folder / ".converting").exists()
        np.save(numbers := tmp_path / "a.npy", np.arange(5))
        with pytest.raises(ConfigError):
            convert(numbers, folder, converter="numpy", overwrite=True)
        with pytest.raises((ConfigError, NotADataset)):
            shardio.repair(folder)
        assert before.items() <= state(folder).items()

    def test_a_link_as_the_output(self, tmp_path: Path) -> None:
        """If the output directory is a link, the links in it are relative to its target."""
        tars(tmp_path / "q" / "in")
        (tmp_path / "large" / "out").mkdir(parents=True)
        (tmp_path / "q" / "out").symlink_to(tmp_path / "large" / "out")
        adopt(webdataset(tmp_path / "q" / "in", key=False), tmp_path / "q" / "out")
        assert verify(shardio.open(tmp_path / "q" / "out"), deep=True).problems == ()

    @pytest.mark.parametrize("steps", range(5))
    @pytest.mark.parametrize("make", [tars, tables], ids=["tars", "hdf5"])
    def test_a_publication_that_is_cut_off(self, make: Callable[[Path], Path], steps: int, tmp_path: Path) -> None:
        """A publication that stops after any of its renames resumes to the same result."""
        make(tmp_path / "in")

        def source() -> Any:
            return webdataset(tmp_path / "in", key=False) if make is tars else hdf5(tmp_path / "in", fields="labels")

        whole = adopt(source(), tmp_path / "whole").manifest
        with cut_off(tmp_path / "out", steps, OSError("cut off")), pytest.raises(OSError, match="cut off"):
            adopt(source(), tmp_path / "out")
        assert adopt(source(), tmp_path / "out", resume=True).manifest.digest == whole.digest
        assert verify(shardio.open(tmp_path / "out"), deep=True).problems == ()

    def test_a_name_that_no_shard_may_have(self, tmp_path: Path) -> None:
        """A file whose name no shard may have is adopted into another folder, where its link has a valid name."""
        (tar,) = list(tars(tmp_path / "in").glob("*00.tar"))
        tar = tar.rename(tar.with_name("größe 1.tar"))
        source = webdataset(tar, key=False)
        with pytest.raises(ConfigError, match=r"a shard's name is .*, got 'größe 1.tar': take another OUT"):
            adopt(source, tmp_path / "in")
        adopt(source, tmp_path / "out")
        assert len(shardio.open(tmp_path / "out")) == 3

    def test_an_array_where_an_index_belongs(self, tmp_path: Path) -> None:
        """An array of others that is called like an index is not replaced by one."""
        folder = tars(tmp_path / "in")
        np.save(folder / "train-01.idx.npy", np.arange(5))
        before = state(folder)
        with pytest.raises(ConfigError, match=r"train-01.idx.npy: not an index that shardio wrote"):
            adopt(webdataset(folder, key=False), folder)
        assert state(folder) == before

    def test_some_of_a_folder(self, tmp_path: Path) -> None:
        """Files partly inside and partly outside the output directory are refused."""
        folder = tars(tmp_path / "in")
        (tmp_path / "out").mkdir()
        (folder / "train-00.tar").rename(tmp_path / "out" / "train-00.tar")
        source = webdataset([tmp_path / "out" / "train-00.tar", folder], key=False)
        with pytest.raises(ConfigError, match="holds 1 of 3 files: name all files in it, or another OUT"):
            adopt(source, tmp_path / "out")


def test_indexes_among_the_files(tmp_path: Path) -> None:
    """Indexes that lie beside the files, which a shell's pattern names too, are left out."""
    folder = tables(tmp_path / "in")
    made = shardio.index(folder, folder, fields="label=labels")
    named = sorted(folder.glob("*.h5*"))
    assert any(path.name.endswith(".h5.idx.npy") for path in named)
    assert shardio.index(named, tmp_path / "out", fields="label=labels").manifest.digest == made.manifest.digest


CLASSES = ("cat", "dog", "eel")


def class_tar(path: Path, kind: str, deep: str = "") -> Path:
    """A tar of class folders, as `tar cf` makes it of an ImageFolder."""
    images = [(f"{deep}{CLASSES[number // 3]}/größe {number}.jpg", jpeg(seed=number)) for number in range(9)]
    return write_tar(path, images, kind)


class TestKeys:
    @pytest.mark.parametrize(
        ("kind", "deep"),
        [
            ("ustar", ""),
            ("gnu", ""),
            ("gnu", "x" * 120 + "/"),  # GNU tar's long names
            ("pax", ""),  # names that are not ASCII are in extended headers
            ("pax", "x" * 120 + "/"),
        ],
    )
    def test_class_folders_keep_their_keys(self, kind: str, deep: str, tmp_path: Path) -> None:
        """A tar of class folders has the samples and the digest in place that converting gives, keys included."""
        tar = class_tar(tmp_path / "a.tar", kind, deep)
        converted = shardio.convert(tar, tmp_path / "out", converter="webdataset")
        made = shardio.index(tar, tmp_path / "in place", strict=True)
        assert made.manifest.digest == converted.manifest.digest
        dataset = shardio.open(made.path)
        assert dataset[4]["key"] == f"{deep}dog/größe 4"
        assert not shardio.verify(dataset, deep=True).problems
        assert "key" not in shardio.index(tar, tmp_path / "no key", key=False).fields

    def test_other_keys_are_taken_if_asked_for(self, tmp_path: Path) -> None:
        """Keys without folders are left out with a hint, as the digests of such datasets stay, unless asked for."""
        folder = tars(tmp_path / "in")
        told: list[str] = []
        plain = shardio.index(folder, tmp_path / "plain", strict=True, tell=told.append)
        assert told == ["the keys are left out; key=True takes them as the field key, as converting does"]
        assert "key" not in plain.fields
        fields = "image=jpg,label=cls"
        made = shardio.index(folder, tmp_path / "keys", fields=fields, key=True)
        options = {"fields": fields}
        converted = shardio.convert(folder, tmp_path / "c", converter="webdataset", converter_options=options)
        assert made.manifest.digest == converted.manifest.digest
        assert made.notes == ()
        with pytest.raises(ConfigError, match=r"key is no choice for .*, which is HDF5"):
            shardio.index(tables(tmp_path / "tables"), tmp_path / "no", key=True)

    @pytest.mark.parametrize("name", ["image=jpg", None])
    def test_a_lost_index_is_rebuilt_with_keys(self, name: str | None, tmp_path: Path) -> None:
        """Repair writes the index of a tar with keys anew as it was, and leaves out keys that it had not."""
        for key in (True, False):
            tar = class_tar(tmp_path / f"{key}.tar", "gnu")
            shardio.index(tar, tmp_path / f"{key}", fields=name, key=key)
            (index,) = (tmp_path / f"{key}").glob("shard-000000.idx.npy")
            before = index.read_bytes()
            index.unlink()
            shardio.repair(tmp_path / f"{key}")
            assert index.read_bytes() == before
            assert not shardio.verify(tmp_path / f"{key}", deep=True).problems


RECORD = [("label", "i4"), ("box", "f4", 3)]


def compressed(folder: Path) -> Source:
    tar = tars(folder) / "train-00.tar"
    (folder / "a.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    return webdataset(folder / "a.tar.gz", key=False)


def raw_pixels(folder: Path) -> Source:
    with library.open(str(folder / "in")) as env, env.begin(write=True) as transaction:
        transaction.put(b"a", Datum(channels=3, height=4, width=4, data=bytes(48)).SerializeToString())
    return lmdb(folder / "in")


def array_in_a_tar(array: np.ndarray[Any, Any]) -> Callable[[Path], Source]:
    return lambda folder: webdataset(write_tar(folder / "a.tar", [("a.npy", npy(array))]), key=False)


def lists_of_integers(folder: Path) -> Source:
    return tfrecord(write_tfrecord(folder / "a.tfrecord", [example({"a": [1, 2], "b": [1.0, 2.0]})] * 3))


def of_hdf5(value: Any) -> Callable[[Path], Source]:
    return lambda folder: hdf5(write_hdf5(folder / "a.h5", table=value))


class TestNotAdoptable:
    @pytest.mark.parametrize(
        ("make", "message"),
        [  # offsets into unpacked data are none in the file; texts and raw pixels are stored as JSON and PNG
            (compressed, r"a.tar.gz is compressed by gzip, so it cannot be read in place"),
            (raw_pixels, "its Datum holds no image file"),
            (of_hdf5([["a", "b"], ["c", "d"]]), "convert it"),
            (array_in_a_tar(np.asfortranarray(np.eye(2, 3))), "its array is in Fortran's order"),
            (array_in_a_tar(np.arange(6, dtype=">f4")), "the file does not hold it as shardio stores it: convert the"),
            (lists_of_integers, "feature 'a': several values of its kind are not contiguous"),  # varints
            (of_hdf5(np.zeros(5, RECORD)), "'table/box' is a member of records, not a dataset: convert it"),
            (
                lambda folder: imagefolder(write_files(folder, {"in/a/1.png": png()}) / "in"),
                r"ImageFolder has no files that can be read in place: convert it",
            ),
        ],
    )
    def test_what_a_file_does_not_hold(self, make: Callable[[Path], Source], message: str, tmp_path: Path) -> None:
        """Files that do not hold their values as shardio stores them, and sources without shard files, are refused."""
        with pytest.raises((SourceError, BadSample), match=message):
            adopt(make(tmp_path), tmp_path / "out")

    def test_keys_in_two_pieces(self, tmp_path: Path) -> None:
        """A key that the tar's header splits is no value in the file: it is left out with a note, or refused."""
        name = f"{'deep/' * 25}cat/1"
        write_tar(tmp_path / "a.tar", [(f"{name}{number}.jpg", jpeg(seed=number)) for number in range(3)])
        with pytest.raises(SourceError, match=r"the tar does not hold the key '.*cat/10' in one piece: pass key=False"):
            adopt(webdataset(tmp_path / "a.tar"), tmp_path / "out")
        told: list[str] = []
        for key in (None, True):
            made = shardio.index(tmp_path / "a.tar", tmp_path / f"{key}", key=key, tell=told.append)
            assert list(made.fields) == ["image"]
            assert told[-1] == f"left out the keys, as a tar holds {name + '0'!r} in two pieces; converting keeps them"
            with pytest.raises(SourceError, match="strict allows nothing to be left out"):
                shardio.index(tmp_path / "a.tar", tmp_path / "no", key=key, strict=True)


class TestBadSamples:
    def damaged(self, folder: Path) -> Any:
        """Tars in which the image of sample 4 is cut short."""
        folder.mkdir()
        with ShardWriter(f"{folder}/%d.tar", maxcount=3, verbose=0, encoder=False) as writer:
            for number in range(COUNT):
                image = jpeg(seed=number)[: -50 if number == 4 else None]
                writer.write({"__key__": f"x{number}", "jpg": image, "cls": b"%d" % number})
        return webdataset(folder, key=False)

    def test_python(self, tmp_path: Path) -> None:
        """`shardio.index` does what the command does, returns what was written and left out, and warns of the rest."""
        self.damaged(tmp_path / "in")
        (tmp_path / "in" / "words.txt").write_text("words")
        given: dict[str, Any] = {"fields": {"label": "cls", "image": "jpg"}, "on_error": "skip", "max_bad": 1}
        with pytest.warns(shardio.SourceWarning, match="left out 1 file beside .*: words.txt"):
            made = shardio.index(tmp_path / "in", tmp_path / "out", report=tmp_path / "report", **given)
        dataset = shardio.open(made.path)
        assert [dataset[number]["label"] for number in range(made.manifest.samples)] == [0, 1, 2, 3, 5, 6]
        assert verify(dataset, deep=True).problems == ()
        assert [skipped.number for skipped in made.skipped] == [4]
        assert json.loads((tmp_path / "report").read_text())["number"] == 4
        told: list[str] = []
        again = shardio.index([tmp_path / "in"], tmp_path / "again", format="webdataset", tell=told.append, **given)
        assert (again.manifest.digest, told) == (made.manifest.digest, list(made.notes))

    @pytest.mark.long
    def test_skipped_rows_of_hdf5_files(self, tmp_path: Path) -> None:
        """Rows whose chunks are damaged are left out of the index of their file, and named."""
        folder, out = tables(tmp_path / "in", chunks=(1, 20, 100), compression="gzip"), tmp_path / "out"
        options = "label=labels,pixels=data/images,files=jpegs"
        whole = [hdf5(folder, fields=options)[number] for number in range(80)]
        with h5py.File(folder / "part0.h5", "r+") as file:
            for row in (0, 7):
                file["data/images"].id.write_direct_chunk((row, 0, 0), b"\xff" * 40)
        with pytest.raises(BadSample, match=r"part0.h5, field 'data/images', row 0: the chunk at byte"):
            shardio.index(folder, out, fields=options)
        shardio.index(folder, out, fields=options, on_error="skip", max_bad=2)
        dataset = shardio.open(out)
        assert verify(dataset, deep=True).problems == ()
        left = [sample for number, sample in enumerate(whole) if number not in (0, 7)]
        np.testing.assert_equal([dataset[number] for number in range(len(dataset))], left)
        copy = convert(hdf5(folder, fields=options), tmp_path / "copy", on_error="skip", max_bad=2)
        assert copy.manifest.digest == dataset.manifest.digest

    def test_a_bad_sample_leaves_no_place_behind(self, tmp_path: Path) -> None:
        """A sample that lacks an optional field, after a bad one that has it, lacks it in the adopted dataset."""
        three, five = npy(np.zeros(3)), npy(np.zeros(5))
        members = [(f"{n:03d}.{name}", value) for n in range(105) for name, value in (("txt", b"x"), ("npy", three))]
        tar = write_tar(tmp_path / "a.tar", [*members, ("b.txt", b"x"), ("b.npy", five), ("c.npy", three)])
        options = {"fields": "txt=txt,npy=npy", "optional": "txt", "key": False}
        shardio.index(tar, tmp_path / "out", on_error="skip", max_bad=3, **options)
        assert shardio.open(tmp_path / "out")[105]["txt"] is None
        assert verify(tmp_path / "out", deep=True).problems == ()

    def test_the_same_command_with_skip_follows_a_failure(self, tmp_path: Path) -> None:
        """A failure before any file is finished leaves nothing behind; the error names the option that helps."""
        write_tar(tmp_path / "a.tar", [("a.txt", b"x"), ("b.txt", b"\xff"), ("c.txt", b"z")])
        command = ("index", tmp_path / "a.tar", "-o", tmp_path / "new" / "out")
        told = run(*command, code=1)
        assert "not UTF-8" in told
        assert "the same command with --on-error skip --resume leaves such samples out" in told
        assert not (tmp_path / "new").exists()
        told = run(*command, "--on-error", "skip", "--max-bad", 0, code=1)
        assert "--max-bad 0 allows 0, --max-bad 3 would allow all; one of them" in told
        assert "2 samples in 1 indexed shard" in run(*command, "--on-error", "skip", "--max-bad", 3, "--resume")

    @pytest.mark.parametrize("make", [tars, records], ids=["tars", "tfrecords"])
    def test_what_precedes_a_cut(self, make: Callable[[Path], Path], tmp_path: Path) -> None:
        """Of files that were cut off the whole samples are taken; one bad sample stands for the rest of each file."""
        first, *others = sorted(make(tmp_path / "in").iterdir())
        os.truncate(first, first.stat().st_size // 2)
        for path in others[1:]:
            os.truncate(path, 0)
        refused = run("index", tmp_path / "in", "-o", tmp_path / "out", code=1)
        assert f"{first.name}, byte " in refused
        assert "was cut off; " in refused
        assert "; --on-error skip takes what precedes the damage" in refused
        skip = ("--on-error", "skip", "--max-bad", 2, "--report", tmp_path / "bad.jsonl")
        told = run("index", tmp_path / "in", "-o", tmp_path / "out", *skip)
        ends = 1 + len(others[1:])
        assert f"skipped the lost rest of {counted(ends, 'file')}:" in told
        made = shardio.open(tmp_path / "out")
        counts = made.manifest.shards.samples.tolist()
        assert 0 < counts[0] < (3 if make is tars else 4)
        labels = [number - 2 * (make is tars) for number in range(COUNT)]
        second = 3 if make is tars else 4
        assert [made[n]["label"] for n in range(len(made))] == [*labels[: counts[0]], *labels[second : second + 3]]
        assert verify(made, deep=True).problems == ()
        reasons = [json.loads(line)["reason"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert all(reason.endswith(" precede it; the rest of the file is lost") for reason in reasons)
        assert [reason.partition(", byte ")[0] for reason in reasons] == [str(path) for path in (first, *others[1:])]
        converter = "webdataset" if make is tars else "tfrecord"
        copy = convert(tmp_path / "in", tmp_path / "again", converter=converter, on_error="skip", max_bad=2).manifest
        assert copy.samples == len(made)

    def test_resumed(self, tmp_path: Path) -> None:
        """Resuming keeps finished shards, and refuses a source whose files changed in between."""
        source = self.damaged(tmp_path / "in")
        for resume in (False, True):
            with pytest.raises(BadSample, match=r"1.tar, key 'x4', .jpg: the jpeg image is cut short"):
                adopt(source, tmp_path / "out", resume=resume)
            assert list((tmp_path / "out" / ".converting").rglob("000000.done"))
        os.utime(tmp_path / "in" / "0.tar", (1, 1))
        source = webdataset(tmp_path / "in", key=False)
        with pytest.raises(ConfigError, match="their sizes and times"):
            adopt(source, tmp_path / "out", resume=True)
        made = adopt(source, tmp_path / "out", on_error="skip", max_bad=1, overwrite=True)
        assert made.manifest.samples == 6
        same = adopt(source, tmp_path / "out", on_error="skip", max_bad=1, resume=True)
        assert same.manifest == made.manifest
        assert made.manifest.conversion["names"] == {"image": "jpg", "label": "cls"}

    def test_a_file_that_changes_meanwhile(self, tmp_path: Path) -> None:
        """A file that changes while it is indexed ends the work, whatever its samples look like."""
        source = webdataset(tars(tmp_path / "in"), key=False)
        read = type(source).__getitem__

        def touched(self: Any, index: int) -> Any:
            if index == 4:
                with open(tmp_path / "in" / "train-01.tar", "ab") as file:
                    file.write(bytes(512))
            return read(self, index)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(source), "__getitem__", touched)
            with pytest.raises(SourceError, match=r"train-01.tar changed while it was indexed: from \("):
                adopt(source, tmp_path / "out", workers=1)
        with pytest.raises(ConfigError, match="their sizes and times"):
            adopt(webdataset(tmp_path / "in", key=False), tmp_path / "out", resume=True)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_kill_at_random_moments(tmp_path: Path, beside: bool) -> None:
    """An index that is killed and resumed again and again is that of one go, and the files stay as they are."""
    (tmp_path / "in").mkdir()
    for number in range(80):
        write_tar(tmp_path / "in" / f"{number:02d}.tar", [(f"{n}.jpg", jpeg(seed=number + n)) for n in range(12)])
    before = state(tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "whole")
    out, whole = (tmp_path / name if beside else tmp_path / f"{name} out" for name in ("in", "whole"))
    adopt(webdataset(tmp_path / "whole", key=False), whole)
    given = ("index", tmp_path / "in", "-o", out, "--resume")
    command, chance = [sys.executable, "-m", "shardio", *map(str, given)], random.Random(5)
    assert sum(kill_at_work(command, out, chance) for _ in range(3))
    run(*given)
    found = state(tmp_path / "in")
    assert before.items() <= found.items()
    assert len(found) == len(before) + (2 * len(before) + 1 if beside else 0)
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    assert all((out / name).read_bytes() == (whole / name).read_bytes() for name in names if "json" not in name)
    assert shardio.open(out).manifest.shards == shardio.open(whole).manifest.shards
    assert verify(shardio.open(out), deep=True).problems == ()
