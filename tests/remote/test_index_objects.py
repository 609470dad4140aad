"""`shardio index` adopts tars and TFRecords that lie in a bucket."""

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _adoptable
import numpy as np
import pytest
from _bucket import names_in, opened, run_and_kill, store_options, uploaded
from _builders import write_files
from _datasets import packed
from _s3 import S3Server
from typer.testing import CliRunner
from webdataset import TarWriter

import shardio
from shardio.cli import app
from shardio.conversion import indexing
from shardio.stores import RemoteStore, RetryingStore, open_store
from shardio.stores.url import Url, as_url
from shardio.testing.stores import Faults, FaultyStore

FORMATS: dict[str, Callable[[Path], Path]] = {"webdataset": _adoptable.tars, "tfrecord": _adoptable.records}


def index(s3: S3Server, url: str, *more: str) -> str:
    """Adopt what lies at a URL; return what the command prints, or the words of its error."""
    done = CliRunner().invoke(app, ["index", url, "-o", url, *store_options(s3), *more], prog_name="shardio")
    return f"{done.output}{done.exception or ''}"


def without_journal(s3: S3Server, url: str) -> list[str]:
    """The names of the objects at a URL that are not those of an unfinished adoption."""
    return [name for name in names_in(s3, url) if not name.startswith(".converting/")]


def copies(folder: Path, *names: str) -> Path:
    """A folder of tars with these names, of the same three samples."""
    tar = _adoptable.tars(folder.with_name("source")) / "train-00.tar"
    return write_files(folder, dict.fromkeys(names, tar.read_bytes()))


def many(folder: Path) -> Path:
    """Eight tars of three samples each, and what their dataset is if all is done at once."""
    files = copies(folder / "files", *(f"train-{number:02d}.tar" for number in range(8)))
    shardio.index(files, folder / "whole")
    return files


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[FaultyStore]:
    """The stores that `index` opens, which count what it reads."""
    stores: list[FaultyStore] = []

    def counted(place: Url, options: dict[str, str]) -> RetryingStore:
        stores.append(FaultyStore(RemoteStore(place.root, options), Faults()))
        return RetryingStore(stores[-1])

    monkeypatch.setattr(indexing, "open_store", counted)
    return stores


@pytest.mark.parametrize("kind", FORMATS)
def test_objects_give_what_local_files_give(s3: S3Server, tmp_path: Path, kind: str) -> None:
    """The dataset has the digest, fields and checksums of shards of local files; a Loader reads it, verify agrees."""
    folder = FORMATS[kind](tmp_path / "files")
    url = uploaded(s3, folder, f"s3://adopt/{kind}")
    said = index(s3, url)
    assert f"{url}: {_adoptable.COUNT} samples in " in said, said
    local = shardio.index(folder, folder)
    far = opened(s3, url, tmp_path / "cache")
    assert far.digest == local.manifest.digest
    assert far.fields == local.manifest.fields
    assert far.manifest.adopted
    for name in ("names", "samples", "bytes", "checksums"):
        assert list(getattr(far.manifest.shards, name)) == list(getattr(local.manifest.shards, name)), name
    assert not shardio.verify(far, deep=True).problems
    near = shardio.open(folder)
    for one, other in zip(near.read(range(len(near))).items(), far.read(range(len(far))).items(), strict=True):
        np.testing.assert_equal(one, other)


def test_each_object_is_streamed_once(s3: S3Server, tmp_path: Path, reads: list[FaultyStore]) -> None:
    """Each byte is asked for once, in order, and no request is made per member."""
    url = uploaded(s3, _adoptable.tars(tmp_path / "files"), "s3://adopt/once")
    shardio.index(f"{url}/*.tar", url, store_options=s3.options)
    sizes = {f"once/{path.name}": path.stat().st_size for path in (tmp_path / "files").glob("*.tar")}
    members = [read for read in reads[0].reads if "/.converting/" not in read[0]]
    assert sorted(members) == sorted((name, 0, size) for name, size in sizes.items())


def test_resume_reads_only_what_has_no_index(s3: S3Server, tmp_path: Path, reads: list[FaultyStore]) -> None:
    """A resumed command reads the first and the last object, and those that have no index yet.

    It refuses other fields than the first command had; once the dataset is there, it does nothing.
    """
    files = many(tmp_path)
    url = uploaded(s3, files, "s3://adopt/resumed")
    store, data = open_store(as_url(url), s3.options), (files / "train-05.tar").read_bytes()
    image = data.index(b"\xff\xd8\xff")
    bad = data[: image + 3] + bytes(40) + data[image + 43 :]
    store.write("resumed/train-05.tar", bad)

    def adopt(**options: Any) -> Any:
        return shardio.index(url, url, store_options=s3.options, **options)

    with pytest.raises(shardio.BadSample, match=f"{url}/train-05.tar"):
        adopt()
    done = {int(Path(name).stem) for name in names_in(s3, url) if name.endswith(".done")}
    assert done >= {0, 1, 2, 3, 4}
    # As `clean` may.
    store.delete([f"resumed/{name}" for name in names_in(s3, url) if name.endswith("/000002.idx.npy")])
    reads.clear()
    with pytest.raises(shardio.ConfigError, match="has fields"):
        adopt(resume=True, fields="image=jpg")
    with pytest.raises(shardio.BadSample, match=f"{url}/train-05.tar"):
        adopt(resume=True)
    again = {int(name[-6:-4]) for name, _, _ in reads[1].reads if name.endswith(".tar")}
    assert again >= {0, 2, 5, 7}
    assert not again & done - {0, 2, 7}
    made = adopt(resume=True, on_error="skip", max_bad=1)
    assert [one.number for one in made.skipped] == [15]
    dataset = opened(s3, url, tmp_path / "cache")
    assert not shardio.verify(dataset, deep=True).problems
    whole = shardio.open(tmp_path / "whole")
    assert list(dataset.read([14, 15])["caption"]) == list(whole.read([14, 16])["caption"])
    assert without_journal(s3, url) == names_in(s3, url)
    before = names_in(s3, url)
    assert adopt(resume=True).manifest.digest == made.manifest.digest
    assert names_in(s3, url) == before


@pytest.mark.long
@pytest.mark.slow
def test_kill_at_random_moments(s3: S3Server, tmp_path: Path) -> None:
    """Killed at random moments and resumed, each time with an empty temporary folder, it ends as in one go."""
    url = uploaded(s3, many(tmp_path), "s3://adopt/killed")
    command = [sys.executable, "-m", "shardio", "index", url, "-o", url, "--workers", "1", "--resume"]
    command += store_options(s3)
    run_and_kill(command, {}, tmp_path, lambda: len(names_in(s3, url)))
    dataset = opened(s3, url, tmp_path / "cache")
    assert dataset.digest == shardio.open(tmp_path / "whole").digest
    assert list(dataset.manifest.shards.checksums) == list(shardio.open(tmp_path / "whole").manifest.shards.checksums)
    assert not shardio.verify(dataset, deep=True).problems
    assert without_journal(s3, url) == names_in(s3, url)


def test_a_dataset_that_stands_is_replaced_only_by_overwrite(s3: S3Server, tmp_path: Path) -> None:
    """A second index is refused; with --overwrite it replaces the manifest; a dataset of shardio's own stays."""
    url = uploaded(s3, _adoptable.tars(tmp_path / "files"), "s3://adopt/twice")
    assert "samples in" in index(s3, url)
    assert "there is a dataset already" in index(s3, url)
    assert "samples in" in index(s3, url, "--overwrite", "--fields", "image=jpg")
    again = opened(s3, url, tmp_path / "cache")
    assert list(again.fields) == ["image"]
    packed(tmp_path / "own", [{"label": 1}])
    own = uploaded(s3, tmp_path / "own", "s3://adopt/own")
    before = names_in(s3, own)
    assert "these are shardio's own" in index(s3, own, "--overwrite")
    assert names_in(s3, own) == before


def test_what_fails_leaves_the_bucket_as_it_was(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged object, or one that is replaced meanwhile, ends the work with its URL; only the journal is written."""
    folder = _adoptable.tars(tmp_path / "files")
    url = uploaded(s3, folder, "s3://adopt/damaged")
    store = open_store(as_url(url), s3.options)
    data = (folder / "train-01.tar").read_bytes()
    store.write("damaged/train-01.tar", data[: len(data) // 2])
    before = names_in(s3, url)
    said = index(s3, url)
    assert f"{url}/train-01.tar" in said, said
    assert "cut off" in said
    assert "shardio-index-" not in said
    assert without_journal(s3, url) == before
    store.write("damaged/train-01.tar", data)
    assert "their sizes and ETags" in index(s3, url, "--resume")
    assert "a conversion has begun there" in index(s3, url)
    shardio.clean(url, everything=True, store_options=s3.options)
    assert names_in(s3, url) == before
    listed = RemoteStore.list
    lists = 0

    def replacing(self: RemoteStore, prefix: str) -> object:
        nonlocal lists
        lists += prefix == "damaged"
        if lists == 2:
            store.write("damaged/train-01.tar", data + bytes(512))
        return listed(self, prefix)

    monkeypatch.setattr(RemoteStore, "list", replacing)
    assert "train-01.tar: was replaced while it was indexed" in index(s3, url)
    monkeypatch.undo()
    assert without_journal(s3, url) == before


def test_places_that_no_manifest_can_name_are_refused(s3: S3Server, tmp_path: Path) -> None:
    """OUT must be the URL of the objects' own folder; other formats, other folders and options are refused in words."""
    url = uploaded(s3, _adoptable.tars(tmp_path / "files"), "s3://adopt/places")
    for out, words in (
        (tmp_path / "out", "out and all paths must be URLs or all local"),
        ("s3://adopt/elsewhere", "out must be the URL that the objects are directly in, s3://adopt/places"),
    ):
        with pytest.raises(shardio.ConfigError, match=words):
            shardio.index(f"{url}/*.tar", out, store_options=s3.options)
    with pytest.raises(shardio.ConfigError, match="a file server neither lists nor stores"):
        shardio.index("http://host/x.tar", "http://host")
    with pytest.raises(shardio.ConfigError, match="format must be webdataset or tfrecord"):
        shardio.index(url, url, format="lmdb", store_options=s3.options)
    with pytest.raises(shardio.ConfigError, match="indexed by one process: leave out dask"):
        shardio.index(url, url, dask="local", store_options=s3.options)
    with pytest.raises(shardio.SourceError, match="no such object"):
        shardio.index(f"{url}/*.tfrecord", url, store_options=s3.options)
    folder = copies(tmp_path / "names", "shard-000000-1a2b3c4d.tar", "x", "x.tar")
    named = uploaded(s3, folder, "s3://adopt/names")
    with pytest.raises(shardio.ConfigError, match="shardio clean removes those that no manifest names"):
        shardio.index(f"{named}/shard*", named, store_options=s3.options)
    with pytest.raises(shardio.ConfigError, match=r"x and x[.]tar would have the same index"):
        shardio.index(f"{named}/x*", named, store_options=s3.options)


@pytest.mark.parametrize("moment", ["at the first object", "before the indexes are written"])
def test_a_dataset_that_another_writes_meanwhile_stays(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Neither its manifest nor the indexes beside it are replaced, not by --overwrite either."""
    url = uploaded(s3, _adoptable.tars(tmp_path / "files"), f"s3://adopt/meanwhile-{len(moment)}")
    packed(tmp_path / "own", [{"label": 1}])
    read, list_, listed = RemoteStore.read, RemoteStore.list, 0

    def write() -> None:
        monkeypatch.undo()
        uploaded(s3, tmp_path / "own", url)

    def reading(self: RemoteStore, name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.endswith("train-00.tar"):
            write()
        return read(self, name, *arguments, **keywords)

    def listing(self: RemoteStore, prefix: str) -> Any:
        nonlocal listed
        listed += not prefix.endswith(".converting") and "run-" not in prefix
        if listed == 2:
            write()
        return list_(self, prefix)

    if moment == "at the first object":
        monkeypatch.setattr(RemoteStore, "read", reading)
    else:
        monkeypatch.setattr(RemoteStore, "list", listing)
    with pytest.raises(shardio.ObjectChanged, match="another writer has changed it"):
        shardio.index(url, url, overwrite=True, store_options=s3.options)
    assert not [name for name in names_in(s3, url) if name.startswith("train") and name.endswith(".npy")]
    assert len(opened(s3, url, tmp_path / "cache")) == 1


def test_objects_are_in_the_order_of_names_or_of_numbers(s3: S3Server, tmp_path: Path) -> None:
    """A note tells where the two differ, also with --strict; --sort natural takes the numbers."""
    url = uploaded(s3, copies(tmp_path / "series", "s_1.tar", "s_2.tar", "s_10.tar"), "s3://adopt/series")
    note = "note: the objects are in the order of their names, where s_10.tar comes before s_2.tar; --sort natural goes"
    for options, names in (
        ([], ["s_1.tar", "s_10.tar", "s_2.tar"]),
        (["--sort=natural"], ["s_1.tar", "s_2.tar", "s_10.tar"]),
    ):
        said = index(s3, url, "--strict", "--overwrite", *options)
        assert (note in said) == (not options), said
        dataset = opened(s3, url, tmp_path / "cache")
        assert list(dataset.manifest.shards.names) == names


def test_parts_in_one_folder_are_told(s3: S3Server, tmp_path: Path) -> None:
    """Train and validation objects in one folder are a remark; --files takes one part, or all without a remark."""
    url = uploaded(s3, copies(tmp_path / "parts", "train-0.tar", "train-1.tar", "val-0.tar"), "s3://adopt/parts")
    remark = "holds train-0.tar, val-0.tar, which look like parts of a data set"
    assert remark in index(s3, url, "--strict")
    assert remark in index(s3, url)
    for pattern, count in (("*train*", 2), ("*.tar", 3)):
        assert remark not in index(s3, url, "--strict", "--overwrite", "--files", pattern)
        dataset = opened(s3, url, tmp_path / "cache")
        assert len(dataset.manifest.shards) == count


def test_an_object_of_other_fields_is_named(s3: S3Server, tmp_path: Path) -> None:
    """The first and the last object tell the fields; an object whose samples have others is an error."""
    folder = tmp_path / "files"
    folder.mkdir()
    with tarfile.open(folder / "0.tar", "w"):
        pass
    for number, more in ((1, {"json": {"a": 1}}), (2, {})):
        with TarWriter(str(folder / f"{number}.tar")) as writer:
            writer.write({"__key__": f"x{number}", "cls": number, **more})
    url = uploaded(s3, folder, "s3://adopt/fields")
    with pytest.raises(shardio.SourceError, match=f"{url}/1.tar: its samples have .*json.* choose fields"):
        shardio.index(url, url, store_options=s3.options)
    shardio.index(url, url, fields="label=cls", overwrite=True, store_options=s3.options)
    assert len(opened(s3, url, tmp_path / "cache")) == 2
