"""`shardio.clean` removes leftovers of shardio from a store or a directory, and nothing else."""

import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import files

import shardio
from shardio.care.clean import Cleaned, clean_output
from shardio.conversion.api import convert
from shardio.errors import BadSample, ConfigError, ManifestError, NotADataset, ObjectChanged
from shardio.format import manifest
from shardio.output.folder import FolderOutput
from shardio.output.store import StoreOutput
from shardio.stores.url import Url
from shardio.testing.stores import MemoryStore

PLACE = Url("s3://bucket", "photos")
DAY = 24 * 3600.0


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The store that every URL is in."""
    made = MemoryStore()
    monkeypatch.setattr("shardio.output.open_store", lambda url, options: made)
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


def clean(store: Any, days: float = 0.0, *, everything: bool = False, dry_run: bool = False) -> Cleaned:
    """Clean as if it were so many days later."""
    since = None if everything else time.time() + (days - 1) * DAY
    return clean_output(StoreOutput(PLACE, store), since=since, dry_run=dry_run)


def removed(store: MemoryStore, days: float = 0.0, **options: bool) -> set[str]:
    return {f"photos/{info.name}" for info in clean(store, days, **options).removed}


@pytest.mark.parametrize("inline", [10_000, 3])
def test_a_dataset_stays(store: MemoryStore, inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clean` keeps all objects that the manifest names, however old they are, also with `everything`.

    So it does with the table of many shards; that of a replaced dataset goes with its shards.
    """
    monkeypatch.setattr(manifest, "MOST_INLINE", inline)
    write()
    before = names(store)
    assert clean(store, 1000) == clean(store, everything=True) == Cleaned((), ())
    assert names(store) == before
    write(overwrite=True, limit=100)
    assert removed(store, 2) == before - {"photos/shardio.json"}
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


def test_a_writer_at_work_keeps_its_shards(store: MemoryStore) -> None:
    """A writer of `shardio.create` that has finished a shard within a day keeps those that are older."""
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
        clean(Restless(), everything=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a dataset."""
    convert(Numbers(), tmp_path / "out", shard_size=200)
    return tmp_path / "out"


def clean_folder(folder: Path, days: float = 0.0, *, everything: bool = False) -> set[str]:
    """Clean a directory as if it were so many days later; return the names of what was removed."""
    since = None if everything else time.time() + (days - 1) * DAY
    return {info.name for info in clean_output(FolderOutput(folder), since=since).removed}


def killed(code: str, folder: Path) -> None:
    """Run Python code on a directory, `out`, in a process that is killed at its end."""
    begin = f"import os, signal, shardio; out = {str(folder)!r}\n"
    subprocess.run([sys.executable, "-c", f"{begin}{code}\nos.kill(os.getpid(), signal.SIGKILL)"], check=False)


WRITER = """
writer = shardio.create(out, fields={"label": "int64"}, shard_size=80, overwrite=True)
for number in range(50):
    writer.append({"label": number})
"""
PUBLISHING = """
from shardio.system.directory import Directory
rename, left = Directory.rename, [3]
def stopping(source, name, target, new):
    if str(target.path) == out:
        left[0] -= 1
        left[0] or os.kill(os.getpid(), signal.SIGKILL)
    rename(source, name, target, new)
Directory.rename = stopping
"""
CONVERSION = """
def progress(what, done, total):
    os.kill(os.getpid(), signal.SIGKILL)
shardio.convert(out, out, shard_size=100, overwrite=True, progress=progress, workers=1)
"""


@pytest.mark.parametrize("code", [WRITER, CONVERSION], ids=["create", "convert"])
def test_what_a_killed_process_left_in_a_folder(folder: Path, code: str) -> None:
    """Its hidden folder goes once it is older than a day, or with `everything`; the dataset stays as it is."""
    before = files(folder)
    for everything in (False, True):
        killed(code, folder)
        (hidden,) = (path.name for path in folder.iterdir() if path.is_dir())
        assert clean_folder(folder, 0.9) == set()
        assert clean_folder(folder, 0 if everything else 1.1, everything=everything) == {hidden}
        assert files(folder) == before
    assert clean_folder(folder, everything=True) == set()


@pytest.mark.parametrize(
    "code", [f"{WRITER}writer.close()", "shardio.convert(out, out, shard_size=100, overwrite=True, workers=1)"]
)
def test_a_publication_that_was_cut_off_in_a_folder(folder: Path, code: str) -> None:
    """If a writer is killed while it replaces a dataset, the shards that it had put in place go too."""
    killed(PUBLISHING + code, folder)
    assert not (folder / "shardio.json").exists()
    assert list(folder.glob("shard-*"))
    (folder / "mine.txt").write_text("mine")
    assert clean_folder(folder) == set()
    assert len(clean_folder(folder, 1.1)) > 1
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_a_live_writer_in_a_folder_is_left_alone(folder: Path) -> None:
    """What another process holds a lock on stays, however old it is, also with `everything`."""
    for code in (WRITER, CONVERSION.replace("os.kill(os.getpid(), signal.SIGKILL)", "wait()")):
        begin = f"import time, shardio; out = {str(folder)!r}\ndef wait():\n    print(flush=True); time.sleep(600)\n"
        with subprocess.Popen([sys.executable, "-c", f"{begin}{code}\nwait()"], stdout=subprocess.PIPE) as process:
            try:
                process.stdout.readline()
                before = files(folder)
                found = clean_output(FolderOutput(folder), since=None)
                assert (found.removed, len(found.kept)) == ((), 1)
                assert clean_folder(folder, 1000) == set()
                assert files(folder) == before
            finally:
                process.kill()
        assert len(clean_folder(folder, everything=True)) == 1


def test_nothing_else_in_a_folder_is_removed(folder: Path, tmp_path: Path) -> None:
    """Files that shardio did not make stay, a hidden folder with such a file too, and shards without a manifest."""
    for name in (".writing-1a2b3c4d-new/mine", ".writing-mine/file", "notes.txt", ".notes.1a2b3c4d.tmp", "train/x"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / ".shard-000000.tar.1a2b3c4d.tmp").write_text("half")
    (folder / ".writing-01234567-new").symlink_to(tmp_path)
    before = files(folder)
    assert clean_folder(folder) == set()
    assert clean_folder(folder, 2) == {".shard-000000.tar.1a2b3c4d.tmp"}
    del before[".shard-000000.tar.1a2b3c4d.tmp"]
    assert files(folder) == before
    (folder / ".writing-01234567-new").unlink()
    (folder / "shardio.json").unlink()  # lost: repair makes it of the shards
    killed("os.makedirs(f'{out}/.writing-76543210-new')", folder)
    assert clean_folder(folder, everything=True) == {".writing-76543210-new"}
    assert {*files(folder)} == {*before} - {"shardio.json"}
    (folder / "shardio.json").write_text("{")
    with pytest.raises(ManifestError):
        clean_folder(folder, everything=True)


def test_arguments(folder: Path, tmp_path: Path) -> None:
    """An age has a unit; a directory exists; store options are for URLs."""
    killed(WRITER, folder)
    assert shardio.clean(folder, older_than="1h").removed == ()
    assert len(shardio.clean(folder, older_than="0s", dry_run=True).removed) == 1
    assert len(shardio.clean(folder, older_than="0s").removed) == 1
    for age in ("", "24", "-1h", "1 w"):
        with pytest.raises(ConfigError, match="older_than must be an age such as 30m"):
            shardio.clean(folder, older_than=age)
    with pytest.raises(NotADataset, match="no such directory"):
        shardio.clean(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="store_options are for URLs"):
        shardio.clean(folder, store_options={"region": "x"})


def shardio_manifest(store: MemoryStore) -> manifest.Manifest:
    return manifest.Manifest.from_json(bytes(store.read("photos/shardio.json").data))


def aged(store: MemoryStore, days: float) -> None:
    """Make all objects older."""
    for name, (data, info) in store._objects.items():
        store._objects[name] = data, replace(info, modified=(info.modified or 0.0) - days * DAY)
