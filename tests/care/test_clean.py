"""`shardio.clean` removes leftovers of shardio from a store, and nothing else."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio.care.clean import Cleaned, clean_store
from shardio.conversion.api import convert
from shardio.errors import BadSample, ConfigError, ManifestError, ObjectChanged
from shardio.format import manifest
from shardio.stores.url import Url
from shardio.testing.stores import MemoryStore

PLACE = Url("s3://bucket", "photos")
DAY = 24 * 3600.0


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The store that every URL is in."""
    made = MemoryStore()
    monkeypatch.setattr("shardio.conversion.api.open_store", lambda url, options: made)
    return made


class Numbers:
    """A source of numbers, of which one may be bad."""

    def __init__(self, bad: int = -1) -> None:
        self.fields: dict[str, Any] = {"label": shardio.Field("scalar", dtype="int64")}
        self.metadata: dict[str, Any] = {}
        self._bad = bad

    def sizes(self) -> np.ndarray:
        return np.full(200, 8)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self._bad:
            raise BadSample("bad")
        return {"label": index}


def write(bad: int = -1, **options: Any) -> None:
    """Convert; with a bad sample the conversion stays unfinished."""
    with pytest.raises(BadSample) if bad >= 0 else nullcontext():
        convert(Numbers(bad), str(PLACE), shard_size=200, **options)


def names(store: MemoryStore) -> set[str]:
    return {info.name for info in store.list("")}


def clean(store: MemoryStore, days: float = 0.0, **options: bool) -> Cleaned:
    """Clean as if it were so many days later."""
    return clean_store(PLACE, store, now=time.time() + days * DAY, **options)


def removed(store: MemoryStore, days: float = 0.0, **options: bool) -> set[str]:
    return {f"photos/{info.name}" for info in clean(store, days, **options).removed}


def test_a_dataset_stays(store: MemoryStore) -> None:
    """`clean` keeps all objects that the manifest names, however old they are, also with `everything`."""
    write()
    before = names(store)
    assert clean(store, 1000) == Cleaned((), ())
    assert clean(store, everything=True) == Cleaned((), ())
    assert names(store) == before


def test_a_dataset_of_many_shards_stays(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does the table of its shards; that of a replaced dataset goes."""
    monkeypatch.setattr(manifest, "MOST_INLINE", 3)
    write()
    old = names(store) - {"photos/shardio.json"}
    write(overwrite=True, limit=100)
    assert removed(store, 2) == old
    assert clean(store, 2) == Cleaned((), ())


def test_what_unfinished_and_replaced_conversions_left(store: MemoryStore) -> None:
    """Shards and records go once they are older than a day; before that, they stay unless everything is to go."""
    write()
    write(overwrite=True)
    write(bad=101, overwrite=True)
    named = {name.partition(".")[0] for name in shardio_manifest(store).shards.names}
    left = {name for name in names(store) if name.split("/")[1].partition(".")[0] not in {*named, "shardio"}}
    assert len(left) > 20
    assert {f"photos/{info.name}" for info in clean(store).kept} == left
    assert removed(store, 0.9) == set()
    assert removed(store, 1.1, dry_run=True) == left
    assert left < names(store)
    assert removed(store, dry_run=True, everything=True) == left
    assert removed(store, 1.1) == left
    assert not left & names(store)
    assert clean(store, 1.1) == Cleaned((), ())


def test_a_conversion_that_is_running_stays(store: MemoryStore) -> None:
    """A conversion that has written something within a day keeps all its shards, those older than a day too."""
    write(bad=101)
    before = names(store)
    aged(store, 3)
    assert removed(store, dry_run=True) == before
    (plan,) = (name for name in before if name.endswith("plan.json"))
    store.write(plan, store.read(plan).data)  # as resuming does
    assert removed(store) == set()
    write(resume=True)
    assert len(shardio_manifest(store).shards) == 8
    assert clean(store, 2).removed == ()


def test_a_writer_at_work_keeps_its_shards(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer of `shardio.create` that has finished a shard within a day keeps those that are older."""
    monkeypatch.setattr("shardio.dataset.writer.open_store", lambda url, options: store)
    with shardio.create(PLACE, fields={"label": "int64"}, shard_size=80) as writer:
        for number in range(50):
            writer.append({"label": number})
        aged(store, 3)
        assert len(removed(store, dry_run=True)) == len(names(store))
        for number in range(50, 70):
            writer.append({"label": number})
        assert removed(store) == set()
    assert shardio_manifest(store).samples == 70
    assert clean(store, 2) == Cleaned((), ())
    assert not [name for name in names(store) if ".converting" in name]


def test_a_run_that_is_cleaned_begins_anew(store: MemoryStore) -> None:
    """After its remains are removed, a conversion that resumes starts over."""
    write(bad=101)
    clean(store, 2)
    assert names(store) == set()
    write(resume=True)
    assert shardio_manifest(store).samples == 200


STRANGERS = [
    "photos/shard-000000.tar",  # of a dataset that was copied from a directory
    "photos/shard-000000.idx.npy",
    "photos/shard-000000-1a2b3c4d",  # no file has this name
    "photos/shard-000000-1a2b3c4d/x.tar",
    "photos/shard-000000-1A2B3C4D.tar",
    "photos/shard-000000-1a2b3c4d.tar.gz ",
    "photos/my-shard-000000-1a2b3c4d.tar",
    "photos/shardio.json.bak",
    "photos/shardio.shards.npy",
    "photos/.converting/plan.json",
    "photos/.converting/run-1a2b3c4d/readme.txt",
    "photos/.converting/run-1a2b3c4d/deeper/plan.json",
    "photos/train/shard-000000-1a2b3c4d.tar",  # of a split, which is a dataset of its own
    "photos/train/.converting/run-1a2b3c4d/plan.json",
    "photos-2/shard-000000-1a2b3c4d.tar",
    "shard-000000-1a2b3c4d.tar",
]


def test_nothing_else_is_removed(store: MemoryStore) -> None:
    """Objects whose names shardio does not give, or that lie elsewhere, stay, with a dataset and without one."""
    for name in STRANGERS:
        store.write(name, b"mine")
    aged(store, 1000)
    assert clean(store, everything=True) == Cleaned((), ())
    write()
    write(overwrite=True)
    clean(store, everything=True)
    assert {*STRANGERS} <= names(store)


def test_a_damaged_manifest_removes_nothing(store: MemoryStore) -> None:
    """Where nobody knows what the manifest names, nothing is removed."""
    write()
    store.write("photos/shardio.json", b"{}")
    before = names(store)
    with pytest.raises(ManifestError):
        clean(store, 1000, everything=True)
    assert names(store) == before


def test_a_manifest_that_changes_meanwhile(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that is completed while its place is cleaned keeps its shards, however old they are."""
    write(bad=101)
    aged(store, 3)
    read = store.read

    def resuming(name: str, *args: Any, **options: Any) -> Any:
        """Another process resumes the conversion, and completes it, when the manifest is read the first time."""
        if not name.endswith("shardio.json"):
            return read(name, *args, **options)
        monkeypatch.setattr(store, "read", read)
        try:
            return read(name, *args, **options)
        finally:
            write(resume=True)

    monkeypatch.setattr(store, "read", resuming)
    clean(store)
    dataset = shardio_manifest(store)
    assert dataset.samples == 200
    assert {f"photos/{name}" for name in dataset.shards.names} <= names(store)

    class Restless:
        """A store whose manifest changes whenever somebody looks at it."""

        def info(self, name: str) -> Any:
            store.write("photos/shardio.json", bytes(store.read("photos/shardio.json").data) + b"\n")
            return store.info(name)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    with pytest.raises(ObjectChanged, match="changes all the time"):
        clean_store(PLACE, Restless(), everything=True)


def test_a_local_path_is_refused(tmp_path: Path) -> None:
    """`clean` is for stores: what is left in a directory, overwrite removes."""
    with pytest.raises(ConfigError, match="must be that of a store"):
        shardio.clean(tmp_path)


def shardio_manifest(store: MemoryStore) -> manifest.Manifest:
    return manifest.Manifest.from_json(bytes(store.read("photos/shardio.json").data))


def aged(store: MemoryStore, days: float) -> None:
    """Make all objects older."""
    store._objects = {
        name: (data, replace(info, modified=info.modified - days * DAY))
        for name, (data, info) in store._objects.items()
    }
