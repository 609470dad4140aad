"""`shardio index` adopts tars and TFRecords that lie in a bucket."""

from collections.abc import Callable
from pathlib import Path

import _adoptable
import numpy as np
import pytest
from _bucket import names_in, uploaded
from _s3 import S3Server
from typer.testing import CliRunner

import shardio
from shardio.cli import app
from shardio.conversion import indexing
from shardio.stores import RemoteStore, RetryingStore, open_store
from shardio.stores.url import Url, as_url
from shardio.testing.stores import Faults, FaultyStore

FORMATS: dict[str, Callable[[Path], Path]] = {"webdataset": _adoptable.tars, "tfrecord": _adoptable.records}


def index(s3: S3Server, url: str, *more: str) -> str:
    """Adopt what lies at a URL; return what the command prints, or the words of its error."""
    options = [f"--store-option={name}={value}" for name, value in s3.options.items()]
    done = CliRunner().invoke(app, ["index", url, "-o", url, *options, *more], prog_name="shardio")
    return f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize("kind", FORMATS)
def test_objects_give_what_local_files_give(s3: S3Server, tmp_path: Path, kind: str) -> None:
    """The dataset has the digest, fields and checksums of shards of local files; a Loader reads it, verify agrees."""
    folder = FORMATS[kind](tmp_path / "files")
    url = uploaded(s3, folder, f"s3://adopt/{kind}")
    said = index(s3, url)
    assert f"{url}: {_adoptable.COUNT} samples in " in said, said
    local = shardio.index(folder, folder)
    far = shardio.open(url, cache=tmp_path / "cache", cache_size="64MB", store_options=s3.options)
    assert far.digest == local.manifest.digest
    assert far.fields == local.manifest.fields
    assert far.manifest.adopted
    for name in ("names", "samples", "bytes", "checksums"):
        assert list(getattr(far.manifest.shards, name)) == list(getattr(local.manifest.shards, name)), name
    assert not shardio.verify(far, deep=True).problems
    near = shardio.open(folder)
    for one, other in zip(near.read(range(len(near))).items(), far.read(range(len(far))).items(), strict=True):
        np.testing.assert_equal(one, other)


def test_each_object_is_streamed_once(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is asked for once, in order, and no request is made per member."""
    url = uploaded(s3, _adoptable.tars(tmp_path / "files"), "s3://adopt/once")
    counting: list[FaultyStore] = []

    def counted(place: Url, options: dict[str, str]) -> RetryingStore:
        counting.append(FaultyStore(RemoteStore(place.root, options), Faults()))
        return RetryingStore(counting[-1])

    monkeypatch.setattr(indexing, "open_store", counted)
    shardio.index(f"{url}/*.tar", url, store_options=s3.options)
    sizes = {f"once/{path.name}": path.stat().st_size for path in (tmp_path / "files").glob("*.tar")}
    assert sorted(counting[0].reads) == sorted((name, 0, size) for name, size in sizes.items())


def test_a_dataset_that_stands_is_replaced_only_by_overwrite(s3: S3Server, tmp_path: Path) -> None:
    """A second index is refused; with --overwrite it replaces the manifest; a dataset of shardio's own stays."""
    url = uploaded(s3, _adoptable.tars(tmp_path / "files"), "s3://adopt/twice")
    assert "samples in" in index(s3, url)
    assert "there is a dataset already" in index(s3, url)
    assert "samples in" in index(s3, url, "--overwrite", "--fields", "image=jpg")
    again = shardio.open(url, cache=tmp_path / "cache", cache_size="64MB", store_options=s3.options)
    assert list(again.fields) == ["image"]
    with shardio.create(tmp_path / "own") as out:
        out.append({"label": 1})
    own = uploaded(s3, tmp_path / "own", "s3://adopt/own")
    before = names_in(s3, own)
    assert "these are shardio's own" in index(s3, own, "--overwrite")
    assert names_in(s3, own) == before


def test_what_fails_leaves_the_bucket_as_it_was(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged object, or one that is replaced meanwhile, ends the work with its URL; nothing is written."""
    folder = _adoptable.tars(tmp_path / "files")
    url = uploaded(s3, folder, "s3://adopt/damaged")
    place = as_url(url)
    assert place is not None
    store = open_store(place, s3.options)
    data = (folder / "train-01.tar").read_bytes()
    store.write("damaged/train-01.tar", data[: len(data) // 2])
    before = names_in(s3, url)
    said = index(s3, url)
    assert f"{url}/train-01.tar" in said, said
    assert "cut off" in said
    assert "shardio-index-" not in said
    store.write("damaged/train-01.tar", data)
    listed = RemoteStore.list
    lists = 0

    def replacing(self: RemoteStore, prefix: str) -> object:
        nonlocal lists
        lists += 1
        if lists == 2:
            store.write("damaged/train-01.tar", data + bytes(512))
        return listed(self, prefix)

    monkeypatch.setattr(RemoteStore, "list", replacing)
    assert "train-01.tar: was replaced while it was indexed" in index(s3, url)
    monkeypatch.undo()
    assert names_in(s3, url) == before


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
    with pytest.raises(shardio.ConfigError, match="indexed by one process: leave out dask, resume"):
        shardio.index(url, url, resume=True, store_options=s3.options)
    with pytest.raises(shardio.SourceError, match="no such object"):
        shardio.index(f"{url}/*.tfrecord", url, store_options=s3.options)
