"""Datasets written to a real S3 server: conditions, kills, workers, and all that `shardio clean` removes."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from _bucket import run_and_kill, store_options
from _s3 import S3Server
from _time_limit import wait_until

import shardio
from shardio.cli import app
from shardio.conversion.api import convert
from shardio.errors import ObjectChanged
from shardio.format import manifest
from shardio.stores import open_store
from shardio.stores.retrying import RetryingStore
from shardio.stores.url import Url
from shardio_converters.imagefolder import imagefolder

BUCKET = "writing"
RESUMED = ("--shard-size", "4KB", "--resume", "--workers", 1)
_places = count()


@pytest.fixture(scope="module")
def whole(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images in a directory."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert(imagefolder(photo_folder), out, shard_size="4KB")
    return out


@pytest.fixture
def place(s3: S3Server) -> Url:
    """An empty place in a bucket."""
    s3.make_bucket(BUCKET)
    return Url(f"s3://{BUCKET}", f"photos-{next(_places)}")


@pytest.fixture
def store(s3: S3Server, place: Url) -> RetryingStore:
    """Its store."""
    return open_store(place, s3.options)


@pytest.fixture
def environment(s3: S3Server, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine of its own: its keys, and its temporary folder, which is empty."""
    (tmp_path / "temporary").mkdir()
    variables = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_REGION": "us-east-1", "TMPDIR": str(tmp_path / "temporary")}
    keys = {"AWS_ACCESS_KEY_ID": s3.options["access_key_id"], "AWS_SECRET_ACCESS_KEY": s3.options["secret_access_key"]}
    return {**os.environ, **variables, **keys}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "shardio", *map(str, arguments)]


def described(store: RetryingStore, place: Url) -> manifest.Manifest:
    return manifest.Manifest.from_json(bytes(store.read((place / manifest.FILE_NAME).path).data))


def assert_same(store: RetryingStore, place: Url, whole: Path) -> None:
    """The dataset has the bytes of the one in a directory, and no object beside them."""
    found, local = described(store, place), manifest.load(whole)
    assert found.digest == local.digest
    assert found.shards.checksums == local.shards.checksums
    for name, other in zip(found.shards.names, local.shards.names, strict=True):
        for path in whole.glob(f"{Path(other).stem}.*"):
            copy = name.partition(".")[0] + path.name[len(Path(other).stem) :]
            assert store.read((place / copy).path).data == path.read_bytes()


def named(store: RetryingStore, place: Url) -> set[str]:
    """The files of the shards that the manifest names, and itself; fails if a shard is missing."""
    shards = {(place / name).path for name in described(store, place).shards.names}
    there = present(store, place)
    assert shards <= there
    stems = {name.partition(".")[0] for name in shards}
    return {name for name in there if name.partition(".")[0] in stems} | {(place / manifest.FILE_NAME).path}


def present(store: RetryingStore, place: Url) -> set[str]:
    return {info.name for info in store.list(place.path)}


@pytest.mark.slow
def test_commands(
    s3: S3Server,
    store: RetryingStore,
    place: Url,
    photo_folder: Path,
    whole: Path,
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`convert`, `reshard`, `merge` and `clean` take URLs and store options; a replaced dataset's objects go last."""
    arguments = (
        "convert",
        "imagefolder",
        photo_folder,
        place,
        "--shard-size",
        "4KB",
        "--workers",
        2,
        *store_options(s3),
    )
    subprocess.run(command(*arguments), check=True)
    assert_same(store, place, whole)
    assert present(store, place) == named(store, place)
    dataset = shardio.open(place, store_options=s3.options, cache=tmp_path / "cache", cache_size="1GB")
    assert dataset.read(range(60), ["key"]) == shardio.open(whole).read(range(60), ["key"])

    def run(*arguments: object) -> list[str]:
        app([*map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    old = present(store, place) - {(place / manifest.FILE_NAME).path}
    run("reshard", whole, place, "--to", "hdf5", "--overwrite", "--workers", 1)
    assert described(store, place).container == "hdf5"
    run("merge", whole, whole, place / "twice", "--workers", 1)
    assert described(store, place / "twice").samples == 120
    listed = run("clean", place, "--dry-run", "--all")
    assert {f"{place.path}/{line.split()[0]}" for line in listed[:-1]} == old
    kept = run("clean", place)
    assert "0 objects removed" in kept[0]
    assert f"{len(old)} objects kept, which a writer may be at work on" in kept[1]
    assert old < present(store, place)
    run("clean", place, "--all")
    assert not old & present(store, place)
    assert len(named(store, place)) > 1
    assert described(store, place / "twice").samples == 120


class Interrupted:
    """The photos; once, while they are read, something else happens."""

    def __init__(self, photos: Path, happens: Callable[[], object]) -> None:
        self._source, self._happens = imagefolder(photos), [happens]
        self.fields, self.metadata, self.sizes = self._source.fields, self._source.metadata, self._source.sizes

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 41 and self._happens:
            self._happens.pop()()
        return dict(self._source[index])


def test_conditions(s3: S3Server, store: RetryingStore, place: Url, photo_folder: Path) -> None:
    """The server lets one of two manifests win, new and replaced."""
    for number, size in enumerate((16_000, 32_000)):
        options: dict[str, Any] = {"shard_size": size, "overwrite": True, "store_options": s3.options}
        other = partial(convert, imagefolder(photo_folder), str(place), **options)
        with pytest.raises(ObjectChanged, match="another writer has changed it"):
            convert(Interrupted(photo_folder, other), str(place), overwrite=number > 0, store_options=s3.options)
        assert described(store, place).conversion["shard_size"] == size
        assert len(named(store, place)) > 1


@pytest.mark.slow
def test_ranks(
    store: RetryingStore, place: Url, photo_folder: Path, whole: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Ranks that are killed and begin again, with the same names, write the dataset of one process."""
    arguments = command("convert", "imagefolder", photo_folder, place, *RESUMED)

    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "3"}

    def start() -> list[subprocess.Popen[bytes]]:
        ranks = [{"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in (2, 1, 0)]
        return [subprocess.Popen(arguments, env={**environment, **job, **rank}) for rank in ranks]

    ranks = start()
    wait_until(lambda: len(present(store, place)) > 3)
    for process in ranks:
        process.kill()
        process.wait()
    assert [process.wait() for process in start()] == [0, 0, 0]
    assert_same(store, place, whole)
    assert not [name for name in present(store, place) if "/.converting/" in name]


@pytest.mark.slow
def test_kill_at_random_moments(
    store: RetryingStore, place: Url, photo_folder: Path, whole: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Killed at random moments and resumed, each time on a machine that knows nothing of it, it ends as in one go."""
    arguments = command("convert", "imagefolder", photo_folder, place, *RESUMED)
    temporary = run_and_kill(arguments, environment, tmp_path, lambda: len(present(store, place)))
    assert_same(store, place, whole)
    assert not [name for name in present(store, place) if "/.converting/" in name]
    assert list(temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.slow
def test_appends_that_are_killed(
    s3: S3Server, store: RetryingStore, place: Url, photo_folder: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """They end as in one go, also on other machines; a Loader reads the dataset as it was; and none is doubled."""
    for out in (str(place), str(tmp_path / "once")):
        given = {"store_options": s3.options} if out == str(place) else {}
        convert(imagefolder(photo_folder), out, shard_size="4KB", limit=20, **given)
    convert(imagefolder(photo_folder), tmp_path / "once", append=True)
    cache: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": "1GB", "store_options": s3.options}
    reader = shardio.open(place, **cache)
    before = present(store, place) - {(place / manifest.FILE_NAME).path}
    arguments = command("append", "imagefolder", photo_folder, place, *RESUMED[2:])
    temporary = run_and_kill(arguments, environment, tmp_path, lambda: len(present(store, place)))
    assert list(temporary.iterdir()) == []
    assert_same(store, place, tmp_path / "once")
    assert before < present(store, place)
    assert sum(len(batch["label"]) for batch in shardio.Loader(reader, batch_size=10)) == 20
    subprocess.run(arguments, env=environment, check=True)  # was the last one
    grown = shardio.open(place, **cache)
    assert dict(grown.earlier) == {reader.digest: 20}
    assert sum(len(batch["label"]) for batch in shardio.Loader(grown, batch_size=10)) == 80


def test_of_two_appends_one_wins(s3: S3Server, store: RetryingStore, place: Url, photo_folder: Path) -> None:
    """The server lets one manifest take the place of the one that both began with."""
    convert(imagefolder(photo_folder), str(place), shard_size="4KB", limit=20, store_options=s3.options)

    given: dict[str, Any] = {"append": True, "store_options": s3.options}
    other = partial(convert, imagefolder(photo_folder), str(place), overwrite=True, limit=7, **given)
    with pytest.raises(ObjectChanged, match="another writer has changed it"):
        convert(Interrupted(photo_folder, other), str(place), **given)
    assert described(store, place).samples == 27
    shardio.clean(place, everything=True, store_options=s3.options)
    assert present(store, place) == named(store, place)


@pytest.mark.slow
def test_dask(s3: S3Server, store: RetryingStore, place: Url, photo_folder: Path, whole: Path) -> None:
    """Dask workers write to the store themselves, and share no file system for that."""
    pytest.importorskip("distributed")
    convert(imagefolder(photo_folder), str(place), shard_size="4KB", dask="local", workers=2, store_options=s3.options)
    assert_same(store, place, whole)


def test_a_large_shard_is_uploaded_in_parts(s3: S3Server, store: RetryingStore, place: Url, tmp_path: Path) -> None:
    """A shard of more than one part arrives whole, and keeps the ETag by which resume knows it."""
    with shardio.create(str(place), store_options=s3.options) as writer:
        for number in range(3):
            writer.append({"data": random.Random(number).randbytes(8 << 20)})
    dataset = shardio.open(place, store_options=s3.options, cache=tmp_path, cache_size="1GB")
    assert bytes(dataset[2]["data"]) == random.Random(2).randbytes(8 << 20)
    file = tmp_path / "file"
    file.write_bytes(random.Random(3).randbytes(12 << 20))
    written = store.upload((place / "file").path, file)
    assert written.etag == store.info((place / "file").path).etag
