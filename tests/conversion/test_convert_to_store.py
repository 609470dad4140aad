"""Conversions into a store: resumed, refused, at once, and over a store that fails."""

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import photo_folders
from _time_limit import wait_until

import shardio
from shardio.conversion import ranks
from shardio.conversion.api import convert
from shardio.dataset.writer import DatasetWriter
from shardio.errors import (
    BadSample,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    ShardioError,
    SourceError,
    StoreUnavailable,
    TooManyBad,
)
from shardio.format import manifest
from shardio.order.world import World
from shardio.stores.base import Store
from shardio.stores.retrying import RetryingStore
from shardio.testing.stores import Faults, FaultyStore, MemoryStore
from shardio_converters.imagefolder import imagefolder

URL = "s3://bucket/photos"
SIZE = "4KB"
_NAME = re.compile(r"photos/(shard-\d+)-([0-9a-f]{8})(\..+)")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 small JPEGs in two classes."""
    return photo_folders(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the same images, converted into a directory."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert(imagefolder(photos), out, shard_size=SIZE)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The store that every URL is in."""
    made = MemoryStore()
    serve(monkeypatch, made)
    return made


def serve(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Have every URL be in `store`."""
    monkeypatch.setattr("shardio.output.open_store", lambda url, options: store)


class Source:
    """The photos; before sample `at` is read it calls `then`, once."""

    def __init__(self, root: Path, at: int | None = None, then: Callable[[], object] | None = None) -> None:
        self._source, self._at, self._then = imagefolder(root), at, then
        self.fields, self.metadata = self._source.fields, self._source.metadata
        self.read: list[int] = []

    def sizes(self) -> np.ndarray:
        return self._source.sizes()

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        if index == self._at and self._then is not None:
            then, self._then = self._then, None
            then()
        return dict(self._source[index])


def scratch() -> None:
    raise BadSample("the disk has a scratch")


def objects(store: Store) -> dict[str, bytes]:
    """All objects of the store by name."""
    return {info.name: bytes(store.read(info.name).data) for info in store.list("")}


def by_ranks(
    source: Callable[[int], Any], size: int = 3, absent: tuple[int, ...] = (), **options: Any
) -> list[manifest.Manifest | Exception | None]:
    """Convert by ranks, on a thread each, the first of which begins last; return the manifest or error of each."""
    results: list[manifest.Manifest | Exception | None] = [None] * size

    def work(rank: int) -> None:
        if not rank:
            time.sleep(0.1)
        try:
            world = World(rank, size)
            given = {"shard_size": SIZE, "workers": 1, **{n: o(rank) if callable(o) else o for n, o in options.items()}}
            results[rank] = convert(source(rank), URL, world=world, **given).manifest
        except (ShardioError, OSError) as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def described(store: Store) -> manifest.Manifest:
    return manifest.Manifest.from_json(bytes(store.read("photos/shardio.json").data))


def files_of(store: Store) -> dict[str, bytes]:
    """The files of the dataset by the names that they would have in a directory; fails if a shard is missing."""
    stems = {name.partition(".")[0]: name[:12] for name in described(store).shards.names}
    found = {}
    for name, data in objects(store).items():
        stem, _, rest = name.removeprefix("photos/").partition(".")
        if stem in stems:
            found[f"{stems[stem]}.{rest}"] = data
    assert {name.partition(".")[0] for name in found} == {*stems.values()}
    return found


def shards_of(whole: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in whole.items() if name != manifest.FILE_NAME}


def writers(store: Store) -> set[str]:
    """The names of the writers of the dataset's shards."""
    return {name.partition("-")[2].partition("-")[2][:8] for name in described(store).shards.names}


def runs(store: Store) -> set[str]:
    """The unfinished runs."""
    return {name.split("/")[2] for name in objects(store) if "/.converting/" in name}


def test_the_same_bytes(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """Shards in a store have the bytes of those in a directory; names and nothing else tell their writer."""
    result = convert(imagefolder(photos), URL, shard_size=SIZE)
    assert str(result.path) == URL
    assert files_of(store) == shards_of(whole)
    assert len(objects(store)) == len(whole)
    assert all(name == "photos/shardio.json" or _NAME.fullmatch(name) for name in objects(store))
    in_directory = manifest.Manifest.from_json(whole[manifest.FILE_NAME])
    made = described(store)
    assert (made.digest, made.conversion) == (in_directory.digest, in_directory.conversion)
    assert made.shards.checksums == in_directory.shards.checksums
    assert len(writers(store)) == 1


def test_resume_keeps_the_shards_that_stand(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """Resuming, which needs nothing but the store, does not read or write finished shards again."""
    with pytest.raises(BadSample, match="scratch"):
        convert(Source(photos, 41, scratch), URL, shard_size=SIZE)
    assert "photos/shardio.json" not in objects(store)
    before = objects(store)
    source = Source(photos)
    convert(source, URL, shard_size=SIZE, resume=True)
    assert sum(number < 30 for number in source.read) < 8  # for the fingerprint of the source
    assert files_of(store) == shards_of(whole)
    assert len(writers(store)) == 2
    assert {name: objects(store).get(name) for name in before if _NAME.fullmatch(name)} == {
        name: data for name, data in before.items() if _NAME.fullmatch(name)
    }
    assert not runs(store)


def test_resume_writes_changed_shards_anew(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """Resuming rewrites a shard that is missing or is not as it was uploaded."""
    with pytest.raises(BadSample):
        convert(Source(photos, 58, scratch), URL, shard_size=SIZE)
    tars = [name for name in objects(store) if name.endswith(".tar")]
    store.delete(tars[:1])
    store.write(tars[2], b"damaged")
    convert(Source(photos), URL, shard_size=SIZE, resume=True)
    assert files_of(store) == shards_of(whole)


def test_a_finished_dataset_is_kept(photos: Path, store: MemoryStore) -> None:
    """Resuming a conversion that has finished writes nothing; one that was killed at its end leaves nothing."""
    convert(imagefolder(photos), URL, shard_size=SIZE)
    before = objects(store)
    convert(imagefolder(photos), URL, shard_size=SIZE, resume=True)
    assert objects(store) == before
    with pytest.raises(ConfigError, match="overwrite replaces it"):
        convert(imagefolder(photos), URL, shard_size=SIZE)
    with pytest.raises(ConfigError, match=r"has shard_size 4000, not 8000"):
        convert(imagefolder(photos), URL, shard_size="8KB", resume=True)


def test_what_was_killed_after_the_manifest(photos: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that dies between its manifest and its end is finished by resume, which removes its records."""
    with monkeypatch.context() as patch:
        patch.setattr("shardio.output.store.StoreRun.remove", lambda run: None)
        convert(imagefolder(photos), URL, shard_size=SIZE)
    assert len(runs(store)) == 1
    source = Source(photos)
    convert(source, URL, shard_size=SIZE, resume=True)
    assert not runs(store)
    assert len(source.read) <= 9  # eight for the fingerprint of the source, one for the hints


@pytest.mark.usefixtures("quick")
def test_ranks_of_what_was_killed_after_the_manifest(
    photos: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that resume it find the dataset too, whichever looks first."""
    with monkeypatch.context() as patch:
        patch.setattr("shardio.output.store.StoreRun.remove", lambda run: None)
        convert(imagefolder(photos), URL, shard_size=SIZE)
    assert len(runs(store)) == 1
    again = by_ranks(lambda rank: imagefolder(photos), resume=True)
    assert [type(one) for one in again] == [manifest.Manifest] * 3
    assert not runs(store)


def test_an_unfinished_conversion_is_not_ignored(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """One that has begun refuses another, which may be running, and other options; overwrite starts beside it."""
    with pytest.raises(BadSample):
        convert(Source(photos, 41, scratch), URL, shard_size=SIZE)
    with pytest.raises(ConfigError, match=r"a conversion has begun there .*resume continues it"):
        convert(imagefolder(photos), URL, shard_size=SIZE)
    with pytest.raises(ConfigError, match="the unfinished conversion has shard_size 4000, not 8000"):
        convert(imagefolder(photos), URL, shard_size="8KB", resume=True)
    convert(imagefolder(photos), URL, shard_size=SIZE, overwrite=True)
    assert len(writers(store)) == 1
    assert files_of(store) == shards_of(whole)
    assert len(runs(store)) == 1  # the first one's


def test_an_old_dataset_stays(photos: Path, store: MemoryStore) -> None:
    """A dataset that is replaced keeps all its objects, and its manifest until the new one is whole."""
    convert(imagefolder(photos), URL, shard_size="8KB")
    old = objects(store)

    def stands() -> None:
        assert {name: data for name, data in objects(store).items() if name in old} == old
        scratch()

    with pytest.raises(BadSample):
        convert(Source(photos, 58, stands), URL, shard_size=SIZE, overwrite=True)
    assert old.items() <= objects(store).items()
    convert(imagefolder(photos), URL, shard_size=SIZE, resume=True)  # what resumes knows what it replaces
    old.pop("photos/shardio.json")
    assert old.items() <= objects(store).items()
    assert len(described(store).shards) == 10


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_at_once_one_wins(photos: Path, store: MemoryStore, overwrite: bool) -> None:
    """If two conversions run at once, the first to end makes the dataset, and the other one ends in an error."""
    if overwrite:
        convert(imagefolder(photos), URL, shard_size="16KB")

    def other() -> None:
        convert(imagefolder(photos), URL, shard_size="8KB", overwrite=True)

    with pytest.raises(ObjectChanged, match=r"photos/shardio.json: another writer has changed it"):
        convert(Source(photos, 41, other), URL, shard_size=SIZE, overwrite=overwrite)
    assert described(store).conversion["shard_size"] == 8000
    assert len(writers(store)) == 1
    assert files_of(store)
    assert len(runs(store)) == 1  # the loser's, which clean removes


def test_two_that_resume_one_conversion(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """Two processes that resume one conversion at once both end well: the first record of each shard counts."""
    with pytest.raises(BadSample):
        convert(Source(photos, 20, scratch), URL, shard_size=SIZE)

    def other() -> None:
        with pytest.raises(BadSample):
            convert(Source(photos, 51, scratch), URL, shard_size=SIZE, resume=True)

    convert(Source(photos, 41, other), URL, shard_size=SIZE, resume=True)
    assert files_of(store) == shards_of(whole)
    assert len(writers(store)) == 3
    assert not runs(store)


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails(photos: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Requests that are refused, and answers that are lost, cost tries and change nothing."""
    memory = MemoryStore()
    faulty = FaultyStore(memory, Faults(refused=0.3, expired=0.002), seed)
    serve(monkeypatch, RetryingStore(faulty, sleep=lambda seconds: None))
    convert(imagefolder(photos), URL, shard_size=SIZE)
    convert(imagefolder(photos), URL, shard_size=SIZE, overwrite=True)
    assert faulty.count > 25
    assert files_of(memory) == shards_of(whole)
    assert not runs(memory)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look and tell often."""
    for name in ("POLL_SECONDS", "_BEAT_SECONDS", "_LEADERS_BEAT_SECONDS"):
        monkeypatch.setattr(f"shardio.output.store.{name}", 0.03)


@pytest.mark.usefixtures("quick")
def test_ranks_share_one_conversion(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """Each rank writes its part, all return the same manifest, and the bytes are those of one process."""
    made = by_ranks(lambda rank: imagefolder(photos))
    assert len({one.to_json() for one in made if isinstance(one, manifest.Manifest)}) == 1
    assert not [one for one in made if not isinstance(one, manifest.Manifest)]
    assert files_of(store) == shards_of(whole)
    assert len(writers(store)) == 3
    assert not runs(store)
    assert [type(one) for one in by_ranks(lambda rank: imagefolder(photos), resume=True)] == [manifest.Manifest] * 3
    assert not runs(store)


@pytest.mark.usefixtures("quick")
def test_a_rank_that_fails_ends_the_others(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """They say which one it was. A job of another size resumes, and takes no run for its own that nobody leads."""
    made = by_ranks(lambda rank: Source(photos, 41, scratch))
    told = [str(error) for error in made]
    failed = next(rank for rank in range(3) if isinstance(made[rank], BadSample))
    assert all(rank == failed or f"rank {failed}: BadSample: the disk has a scratch" in told[rank] for rank in range(3))
    assert len(runs(store)) == 1
    again = by_ranks(lambda rank: imagefolder(photos), size=2, resume=True)
    assert [type(one) for one in again] == [manifest.Manifest] * 2
    assert files_of(store) == shards_of(whole)
    assert not runs(store)


@pytest.mark.usefixtures("quick")
def test_ranks_that_are_silent_or_differ(photos: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that never comes, one that is silent, and one with other options end the conversion, and are named."""
    made = by_ranks(lambda rank: imagefolder(photos), shard_size=lambda rank: "8KB" if rank == 1 else SIZE)
    assert isinstance(made[1], ConfigError)
    assert "has shard_size 4000, not 8000" in str(made[1])
    assert "rank 1: ConfigError" in str(made[0])
    monkeypatch.setattr(ranks, "BEGIN_SECONDS", 0.5)
    made = by_ranks(lambda rank: imagefolder(photos), absent=(2,), overwrite=True)
    assert "rank 2 of 3 has not begun for 0 s" in str(made[0])
    assert "rank 0: ShardioError: rank 2" in str(made[1])
    monkeypatch.setattr("shardio.output.store.SILENT_SECONDS", 0.2)
    monkeypatch.setattr("shardio.output.store._BEAT_SECONDS", 60)
    slow = Source(photos, 58, lambda: time.sleep(1.5))
    made = by_ranks(lambda rank: slow if rank else imagefolder(photos), size=2, overwrite=True)
    assert "rank 1 of 2 has not been heard from for 0 s" in str(made[0])


def test_a_store_that_is_gone(photos: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion whose store stays away ends in an error, and goes on from there once it is back."""
    memory = MemoryStore()

    def gone() -> None:
        serve_faults.append(1)

    serve_faults: list[int] = []

    class Gone:
        def __getattr__(self, name: str) -> Any:
            if serve_faults:
                raise StoreUnavailable("memory://: status code: 503 Slow Down")
            return getattr(memory, name)

    serve(monkeypatch, Gone())
    with pytest.raises(StoreUnavailable, match="503"):
        convert(Source(photos, 41, gone), URL, shard_size=SIZE)
    serve_faults.clear()
    source = Source(photos)
    convert(source, URL, shard_size=SIZE, resume=True)
    assert sum(number < 30 for number in source.read) < 8
    assert files_of(memory) == shards_of(whole)


def test_a_failure_before_the_first_shard_leaves_nothing(photos: Path, store: MemoryStore) -> None:
    """A conversion that ends before a shard is finished leaves no object; so does one whose samples are all bad."""
    with pytest.raises(BadSample):
        convert(Source(photos, 1, scratch), URL, shard_size=SIZE)
    assert objects(store) == {}


def test_bad_samples_are_left_out(photos: Path, store: MemoryStore, tmp_path: Path) -> None:
    """Skipped samples are told, reported, counted by the budget, and those of an interrupted run are remembered."""
    report = tmp_path / "report.jsonl"
    with pytest.raises(TooManyBad) as error:
        convert(Source(photos, 41, scratch), URL, shard_size=SIZE, on_error="skip", max_bad=0, report=report)
    assert [bad.number for bad in error.value.skipped] == [41]
    result = convert(Source(photos), URL, shard_size=SIZE, on_error="skip", max_bad=1, resume=True)
    assert [bad.number for bad in result.skipped] == [41]
    assert json.loads(report.read_text())["number"] == 41
    assert described(store).samples == 59


def test_many_shards(photos: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table of a dataset of many shards has a name of its own, so that an old one stays, here and in a copy."""
    monkeypatch.setattr(manifest, "MOST_INLINE", 3)
    convert(imagefolder(photos), URL, shard_size=SIZE)
    old = objects(store)
    convert(imagefolder(photos), URL, shard_size="8KB", overwrite=True)
    tables = [name for name in objects(store) if manifest.TABLE_PATTERN.fullmatch(name.rpartition("/")[2])]
    assert len(tables) == 2
    for name, data in old.items():
        (tmp_path / name.rpartition("/")[2]).write_bytes(data)
    assert len(shardio.open(tmp_path)) == 60
    convert(imagefolder(photos), tmp_path, shard_size=SIZE, overwrite=True)  # knows all of them for its own
    left = {path.name for path in tmp_path.iterdir()}
    assert {"shardio.json", "shardio.shards.npy", "shard-000000.tar"} < left
    assert not [name for name in left if name.count("-") > 1 or name.startswith("shardio.shards-")]


def test_splits_are_datasets_of_their_own(photos: Path, store: MemoryStore) -> None:
    """Each split has a place, a manifest and a journal below the URL."""
    result = convert(imagefolder(photos), URL, split="a=0.5,b=0.5", shard_size=SIZE)
    assert [str(result.datasets[name].path) for name in "ab"] == [f"{URL}/a", f"{URL}/b"]
    assert {name.split("/")[1] for name in objects(store)} == {"a", "b"}


def test_what_cannot_be_done(photos: Path, store: MemoryStore, tmp_path: Path) -> None:
    """Outputs that cannot be written, and options of no store are refused before anything is written."""
    with pytest.raises(ConfigError, match="got https://"):
        convert(imagefolder(photos), "https://host/photos")
    with pytest.raises(ConfigError, match="store_options are for URLs"):
        convert(imagefolder(photos), tmp_path / "out", store_options={"region": "x"})
    with pytest.raises(ConfigError, match="store_options are for URLs"):
        shardio.create(tmp_path / "out", store_options={"region": "x"})
    assert objects(store) == {}


@pytest.mark.parametrize("damage", [b"", b"{", b"[]"])
def test_a_damaged_plan_is_refused(photos: Path, store: MemoryStore, damage: bytes) -> None:
    """Resuming refuses a plan that is damaged, and names it; overwrite starts over."""
    with pytest.raises(BadSample):
        convert(Source(photos, 41, scratch), URL, shard_size=SIZE)
    (plan,) = (name for name in objects(store) if name.endswith("plan.json"))
    store.write(plan, damage)
    with pytest.raises(shardio.ShardioError, match=r"plan.json is damaged.*start over with overwrite"):
        convert(imagefolder(photos), URL, shard_size=SIZE, resume=True)
    convert(imagefolder(photos), URL, shard_size=SIZE, overwrite=True)


def test_damaged_records(photos: Path, store: MemoryStore) -> None:
    """Resuming refuses a record that is damaged, and names its shard."""
    with pytest.raises(BadSample):
        convert(Source(photos, 41, scratch), URL, shard_size=SIZE)
    (record,) = (name for name in objects(store) if name.endswith("000003.done"))
    store.write(record, objects(store)[record][:-1])
    with pytest.raises(shardio.ShardioError, match="the record of shard 3 is damaged"):
        convert(imagefolder(photos), URL, shard_size=SIZE, resume=True)


def test_a_source_that_changes_meanwhile(photos: Path, store: MemoryStore, tmp_path: Path) -> None:
    """A file of the source that changes while it is converted ends the conversion without a manifest."""
    del photos
    values = tmp_path / "values.npy"
    np.save(values, np.arange(2000.0))

    class Changing:
        def __init__(self) -> None:
            from shardio_converters.numpy import numpy

            self._source = numpy(str(values))
            self.fields, self.metadata = self._source.fields, self._source.metadata
            self.files = [values]

        def sizes(self) -> np.ndarray:
            return self._source.sizes()

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 1500:
                np.save(values, np.arange(3000.0))
            return dict(self._source[index])

    with pytest.raises(SourceError, match="changed while it was converted"):
        convert(Changing(), URL, shard_size=SIZE, container="hdf5")
    assert "photos/shardio.json" not in objects(store)


def test_a_writer(store: MemoryStore) -> None:
    """`shardio.create` uploads shards as they are finished and the manifest at the end; a failure leaves nothing."""
    samples = [{"key": f"{number:04d}", "label": number} for number in range(300)]
    with shardio.create(URL, shard_size=1000) as writer:
        for number, sample in enumerate(samples):
            writer.append(sample)
            assert (number < 250) or len(objects(store)) > 2
    assert described(store).samples == 300
    assert files_of(store)
    before = objects(store)
    with pytest.raises(ConfigError, match="overwrite replaces it"):
        shardio.create(URL)
    with pytest.raises(BadSample), shardio.create(URL, shard_size=1000, overwrite=True) as writer:
        append_all(writer, [*samples, {"key": "no label"}])
    assert objects(store) == before
    writer = shardio.create(URL, overwrite=True)
    append_all(writer, samples)
    with shardio.create(URL, overwrite=True) as other:
        append_all(other, samples[:1])
    with pytest.raises(ObjectChanged):
        writer.close()
    assert described(store).samples == 1


def append_all(writer: DatasetWriter, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        writer.append(sample)


LOST = [".tar", ".idx.npy", ".tar.sums.idx.npy"]


@pytest.mark.parametrize("ending", LOST)
@pytest.mark.parametrize("replaced", [False, True])
def test_no_manifest_names_what_is_not_there(store: MemoryStore, ending: str, replaced: bool) -> None:
    """A file of a shard that is removed or replaced before the end is an error, and there is no dataset."""
    place = f"photos/{'a' if replaced else 'b'}"
    writer = shardio.create(f"s3://bucket/{place}", fields={"x": ("uint8", (100,))}, shard_size=1000)
    for number in range(30):
        writer.append({"x": np.full(100, number, np.uint8)})
    lost = next(name for name in objects(store) if name.endswith(ending))
    if replaced and ending != LOST[2]:  # tables are compared when they are read
        store.write(lost, b"another")
        with pytest.raises(ObjectChanged, match=r"was replaced since it was written, so the dataset has no manifest"):
            writer.close()
    else:
        store.delete([lost])
        with pytest.raises(ObjectNotFound, match=f"{lost}: was removed since it was written, so the dataset has no"):
            writer.close()
        assert objects(store) == {}
    assert f"{place}/{manifest.FILE_NAME}" not in objects(store)


def test_a_conversion_writes_what_was_removed_anew(photos: Path, whole: dict[str, bytes], store: MemoryStore) -> None:
    """A shard that is removed while the last ones are written is an error that names it; resuming completes it."""

    def remove() -> None:
        wait_until(lambda: any("shard-000001-" in name for name in objects(store)), seconds=20)
        store.delete([name for name in objects(store) if "shard-000001-" in name])

    with pytest.raises(ObjectNotFound, match=r"shard-000001-.*: was removed since it was written"):
        convert(Source(photos, 41, remove), URL, shard_size=SIZE)
    convert(Source(photos), URL, shard_size=SIZE, resume=True)
    assert files_of(store) == shards_of(whole)


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
    assert objects(memory) == {}
