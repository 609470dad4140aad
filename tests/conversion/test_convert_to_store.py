"""Conversions into a store: resumed, refused, at once, and over a store that fails."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _places import SIZE, URL, Photos, StorePlace, by_ranks, scratch
from _time_limit import wait_until

import shardio
from shardio.conversion.api import convert
from shardio.dataset.writer import DatasetWriter
from shardio.errors import (
    BadSample,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    StoreUnavailable,
)
from shardio.format import manifest
from shardio.stores.base import Store
from shardio.stores.retrying import RetryingStore
from shardio.testing.stores import Faults, FaultyStore, MemoryStore
from shardio_converters.imagefolder import imagefolder

_NAME = re.compile(r"photos/(shard-\d+)-([0-9a-f]{8})(\..+)")


def append_all(writer: DatasetWriter, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        writer.append(sample)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> StorePlace:
    """A place in a store in memory, which every URL is in."""
    made = StorePlace(MemoryStore())
    serve(monkeypatch, made.store)
    return made


def serve(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Have every URL be in `store`."""
    monkeypatch.setattr("shardio.output.open_store", lambda url, options: store)


def test_the_same_bytes(photo_folder: Path, whole: dict[str, bytes], place: StorePlace, tmp_path: Path) -> None:
    """Shards in a store have the bytes of those in a directory; names and nothing else tell their writer."""
    result = place.convert(imagefolder(photo_folder))
    assert str(result.path) == URL
    assert place.shards() == whole
    assert len(place.objects()) == len(whole) + 1
    assert all(name == "photos/shardio.json" or _NAME.fullmatch(name) for name in place.objects())
    convert(imagefolder(photo_folder), tmp_path, shard_size=SIZE)
    in_directory, made = shardio.open(tmp_path).manifest, place.manifest()
    assert (made.digest, made.conversion) == (in_directory.digest, in_directory.conversion)
    assert made.shards.checksums == in_directory.shards.checksums
    assert len(place.writers()) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_was_killed_after_the_manifest(
    photo_folder: Path, place: StorePlace, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """A conversion that dies between its manifest and its end is finished by resume, which removes its records.

    Of several ranks, each finds the dataset, whichever looks first.
    """
    with monkeypatch.context() as patch:
        patch.setattr("shardio.output.store.StoreRun.remove", lambda run: None)
        place.convert(imagefolder(photo_folder))
    assert len(place.runs()) == 1
    source = Photos(photo_folder)
    again = by_ranks(place, lambda rank: source, ranks, resume=True)
    assert [type(one) for one in again] == [manifest.Manifest] * ranks
    assert not place.runs()
    assert len(source.read) <= 10 * ranks  # eight for the fingerprint of the source, two for the hints


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_at_once_one_wins(photo_folder: Path, place: StorePlace, overwrite: bool) -> None:
    """If two conversions run at once, the first to end makes the dataset, and the other one ends in an error."""
    if overwrite:
        convert(imagefolder(photo_folder), URL, shard_size="16KB")

    def other() -> None:
        convert(imagefolder(photo_folder), URL, shard_size="8KB", overwrite=True)

    with pytest.raises(ObjectChanged, match=r"photos/shardio.json: another writer has changed it"):
        place.convert(Photos(photo_folder, 41, other), overwrite=overwrite)
    assert place.manifest().conversion["shard_size"] == 8000
    assert len(place.writers()) == 1
    assert place.shards()
    assert len(place.runs()) == 1  # the loser's, which clean removes


def test_two_that_resume_one_conversion(photo_folder: Path, whole: dict[str, bytes], place: StorePlace) -> None:
    """Two processes that resume one conversion at once both end well: the first record of each shard counts."""
    with pytest.raises(BadSample):
        place.convert(Photos(photo_folder, 20, scratch))

    def other() -> None:
        with pytest.raises(BadSample):
            place.convert(Photos(photo_folder, 51, scratch), resume=True)

    place.convert(Photos(photo_folder, 41, other), resume=True)
    assert place.shards() == whole
    assert len(place.writers()) == 3
    assert not place.runs()


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails(
    photo_folder: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Requests that are refused, and answers that are lost, cost tries and change nothing."""
    place = StorePlace(MemoryStore())
    faulty = FaultyStore(place.store, Faults(refused=0.3, expired=0.002), seed)
    serve(monkeypatch, RetryingStore(faulty, sleep=lambda seconds: None))
    place.convert(imagefolder(photo_folder))
    place.convert(imagefolder(photo_folder), overwrite=True)
    assert faulty.count > 25
    assert place.shards() == whole
    assert not place.runs()


@pytest.mark.usefixtures("quick")
def test_a_rank_that_is_silent(photo_folder: Path, place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose object stays as it is ends the conversion, and is named."""
    monkeypatch.setattr("shardio.output.store.SILENT_SECONDS", 0.2)
    monkeypatch.setattr("shardio.output.store._BEAT_SECONDS", 60)
    slow = Photos(photo_folder, 58, lambda: time.sleep(1.5))
    made = by_ranks(place, lambda rank: slow if rank else imagefolder(photo_folder), size=2)
    assert "rank 1 of 2 has not been heard from for 0 s" in str(made[0])


def test_a_store_that_is_gone(photo_folder: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion whose store stays away ends in an error, and goes on from there once it is back."""
    place = StorePlace(MemoryStore())
    faults: list[int] = []

    class Gone:
        def __getattr__(self, name: str) -> Any:
            if faults:
                raise StoreUnavailable("memory://: status code: 503 Slow Down")
            return getattr(place.store, name)

    serve(monkeypatch, Gone())
    with pytest.raises(StoreUnavailable, match="503"):
        place.convert(Photos(photo_folder, 41, lambda: faults.append(1)))
    faults.clear()
    source = Photos(photo_folder)
    place.convert(source, resume=True)
    assert source.early() < 8
    assert place.shards() == whole


def test_many_shards(photo_folder: Path, place: StorePlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table of a dataset of many shards has a name of its own, so that an old one stays, here and in a copy."""
    monkeypatch.setattr(manifest, "MOST_INLINE", 3)
    place.convert(imagefolder(photo_folder))
    old = place.objects()
    convert(imagefolder(photo_folder), URL, shard_size="8KB", overwrite=True)
    tables = [name for name in place.objects() if manifest.TABLE_PATTERN.fullmatch(name.rpartition("/")[2])]
    assert len(tables) == 2
    for name, data in old.items():
        (tmp_path / name.rpartition("/")[2]).write_bytes(data)
    assert len(shardio.open(tmp_path)) == 60
    convert(imagefolder(photo_folder), tmp_path, shard_size=SIZE, overwrite=True)  # knows all of them for its own
    left = {path.name for path in tmp_path.iterdir()}
    assert {"shardio.json", "shardio.shards.npy", "shard-000000.tar"} < left
    assert not [name for name in left if name.count("-") > 1 or name.startswith("shardio.shards-")]


def test_what_cannot_be_done(photo_folder: Path, place: StorePlace, tmp_path: Path) -> None:
    """Outputs that cannot be written, and options of no store are refused before anything is written."""
    with pytest.raises(ConfigError, match="got https://"):
        convert(imagefolder(photo_folder), "https://host/photos")
    with pytest.raises(ConfigError, match="store_options are for URLs"):
        convert(imagefolder(photo_folder), tmp_path / "out", store_options={"region": "x"})
    with pytest.raises(ConfigError, match="store_options are for URLs"):
        shardio.create(tmp_path / "out", store_options={"region": "x"})
    assert place.objects() == {}


def test_a_writer(place: StorePlace) -> None:
    """`shardio.create` uploads shards as they are finished and the manifest at the end; a failure leaves nothing."""
    samples = [{"key": f"{number:04d}", "label": number} for number in range(300)]
    with shardio.create(URL, shard_size=1000) as writer:
        for number, sample in enumerate(samples):
            writer.append(sample)
            assert (number < 250) or len(place.objects()) > 2
    assert place.manifest().samples == 300
    assert place.shards()
    before = place.objects()
    with pytest.raises(ConfigError, match="overwrite replaces it"):
        shardio.create(URL)
    with pytest.raises(BadSample), shardio.create(URL, shard_size=1000, overwrite=True) as writer:
        append_all(writer, [*samples, {"key": "no label"}])
    assert place.objects() == before
    writer = shardio.create(URL, overwrite=True)
    append_all(writer, samples)
    with shardio.create(URL, overwrite=True) as other:
        append_all(other, samples[:1])
    with pytest.raises(ObjectChanged):
        writer.close()
    assert place.manifest().samples == 1


LOST = [".tar", ".idx.npy", ".tar.sums.idx.npy"]


@pytest.mark.parametrize("ending", LOST)
@pytest.mark.parametrize("replaced", [False, True])
def test_no_manifest_names_what_is_not_there(place: StorePlace, ending: str, replaced: bool) -> None:
    """A file of a shard that is removed or replaced before the end is an error, and there is no dataset."""
    writer = shardio.create(URL, fields={"x": ("uint8", (100,))}, shard_size=1000)
    for number in range(30):
        writer.append({"x": np.full(100, number, np.uint8)})
    lost = next(name for name in place.objects() if name.endswith(ending))
    if replaced and ending != LOST[2]:  # tables are compared when they are read
        place.store.write(lost, b"another")
        with pytest.raises(ObjectChanged, match=r"was replaced since it was written, so the dataset has no manifest"):
            writer.close()
    else:
        place.store.delete([lost])
        with pytest.raises(ObjectNotFound, match=f"{lost}: was removed since it was written, so the dataset has no"):
            writer.close()
        assert place.objects() == {}
    assert f"photos/{manifest.FILE_NAME}" not in place.objects()


def test_a_conversion_writes_what_was_removed_anew(
    photo_folder: Path, whole: dict[str, bytes], place: StorePlace
) -> None:
    """A shard that is removed while the last ones are written is an error that names it; resuming completes it."""

    def remove() -> None:
        wait_until(lambda: any("shard-000001-" in name for name in place.objects()), seconds=20)
        place.store.delete([name for name in place.objects() if "shard-000001-" in name])

    with pytest.raises(ObjectNotFound, match=r"shard-000001-.*: was removed since it was written"):
        place.convert(Photos(photo_folder, 41, remove))
    place.convert(Photos(photo_folder), resume=True)
    assert place.shards() == whole


def test_a_writer_whose_upload_fails_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a shard could not be uploaded, its writer is closed: no later call makes a dataset without it."""
    memory = MemoryStore()

    class NoUpload:
        def upload(self, name: str, path: Path) -> None:
            raise StoreUnavailable("memory://: status code: 503 Slow Down")

        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

    serve(monkeypatch, NoUpload())
    writer = shardio.create(URL, shard_size=100)
    with pytest.raises(StoreUnavailable):
        append_all(writer, [{"text": f"{number:09d}"} for number in range(100)])
    with pytest.raises(ConfigError, match="closed"):
        writer.append({"text": "more"})
    with pytest.raises(shardio.ShardioError, match="an earlier write failed"):
        writer.close()
    assert StorePlace(memory).objects() == {}
