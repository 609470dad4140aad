"""The lmdb container: the lmdb library reads it, beside any number of readers."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np
import pytest

from shardio import containers
from shardio.containers import lmdb as container
from shardio.errors import BadSample, ConfigError, ShardCorrupt
from shardio.format.fields import as_fields, with_hidden
from shardio.testing.samples import COUNT, FIELDS, FIRST, stored, write

from ._shards import written

LMDB = containers.get("lmdb")
SHARD = b"\xff" * 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A shard of every kind of field."""
    return write(LMDB, tmp_path / "shard-000000.lmdb")


def test_plain_lmdb_reads_it(path: Path) -> None:
    """The lmdb library reads each value under its index and field name; columns and counts have the last keys."""
    environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
    with environment.begin() as transaction:
        entries = dict(transaction.cursor())
    environment.close()
    for row in range(COUNT):
        for name in FIELDS:
            assert entries.pop((FIRST + row).to_bytes(8, "big") + name.encode()) == stored(row)[name]
    for name in with_hidden(FIELDS).keys() - FIELDS.keys():
        assert entries.pop(SHARD + name.encode()) == b"".join(stored(row)[name] for row in range(COUNT))
    assert entries.pop(SHARD + b"_first") == FIRST.to_bytes(8, "little")
    assert entries.pop(SHARD + b"_count") == COUNT.to_bytes(8, "little")
    assert json.loads(entries.pop(SHARD + b"_fields")).keys() == FIELDS.keys()
    assert entries == {}


def test_grows_over_many_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard larger than the first map and with many commits is complete, reproducible and compact."""
    monkeypatch.setattr(container, "_COMMIT_BYTES", 300_000)
    values = [np.random.default_rng(i).bytes(1000 + i % 3000) for i in range(1500)]
    fields, samples = as_fields({"blob": "bytes"}), [{"blob": value} for value in values]
    one, other = (written(LMDB, tmp_path / name, fields, samples, 2**40) for name in ("a.lmdb", "b.lmdb"))
    reader = LMDB.reader(one, fields)
    assert reader.read(np.arange(1500), "blob") == values
    reader.close()
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_size < 1.5 * 4096 * len(values)


def test_many_readers_of_one_file(path: Path) -> None:
    """A file may have any number of readers, by whatever path, and an environment of the lmdb library beside them.

    None of them leaves a lock file.
    """
    other = path.with_name("other.lmdb")
    other.hardlink_to(path)
    readers = [LMDB.reader(place, with_hidden(FIELDS)) for place in (path, path, other)]
    readers.append(pickle.loads(pickle.dumps(readers[0])))  # noqa: S301
    assert sorted(path.parent.iterdir()) == [other, path]
    assert [reader.read(np.array([6]), "label")[0] for reader in readers] == [1] * 4
    with lmdb.open(str(path), subdir=False, lock=False) as environment:
        assert environment.stat()["entries"] > COUNT
    for reader in readers:
        assert reader.read(np.array([6]), "label")[0] == 1
        reader.close()


@pytest.mark.parametrize("size", [4096, 5000, 8192, 8193, 12288, -4096])
def test_cut_at_a_page(path: Path, size: int) -> None:
    """A file that lacks even its last page is refused when it is opened, and never ends the process."""
    os.truncate(path, size if size > 0 else path.stat().st_size + size)
    with pytest.raises(ShardCorrupt, match=r"shard-000000\.lmdb: (cut short|not a complete LMDB file)"):
        LMDB.reader(path, with_hidden(FIELDS))


def test_other_lmdb(tmp_path: Path) -> None:
    """An LMDB file of another program is ShardCorrupt."""
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, lock=False) as other, other.begin(write=True) as change:
        change.put(b"a", b"b")
    with pytest.raises(ShardCorrupt, match="not written by this container"):
        LMDB.reader(tmp_path / "x.lmdb", with_hidden(FIELDS))


def test_missing_and_changed_entries(path: Path) -> None:
    """A missing entry or one of another size is ShardCorrupt, with field and row."""
    with lmdb.open(str(path), subdir=False, lock=False) as environment, environment.begin(write=True) as change:
        change.delete((FIRST + 5).to_bytes(8, "big") + b"caption")
        change.put((FIRST + 6).to_bytes(8, "big") + b"label", b"123")
    reader = LMDB.reader(path, with_hidden(FIELDS))
    with pytest.raises(ShardCorrupt, match=r"000000\.lmdb, field 'caption', row 5: there is no such entry"):
        reader.read(np.array([4, 5]), "caption")
    with pytest.raises(ShardCorrupt, match=r"000000\.lmdb, field 'label', row 6: expected 8 bytes, got 3"):
        reader.read(np.array([4, 6]), "label")


def test_names_and_sizes_that_lmdb_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer refuses a field name longer than a key at once, and a value of 4 GiB or more in `append`."""
    with pytest.raises(ConfigError, match="511 bytes"):
        LMDB.writer(tmp_path / "s.lmdb", as_fields({"n" * 504: "text"}), 0)
    monkeypatch.setattr(container, "_LARGEST_VALUE", 3)
    writer = LMDB.writer(tmp_path / "s.lmdb", as_fields({"n" * 503: "bytes"}), 0)
    with pytest.raises(BadSample, match=r"sample 0.*4 GiB or more"):
        writer.append({"n" * 503: b"1234"})
    writer.append({"n" * 503: b"123"})
    writer.close()


def test_writers_on_several_threads_are_apart(tmp_path: Path) -> None:
    """The library refuses a file that is open already: one that a dropped writer leaves is never taken for another."""

    def work(folder: Path) -> None:
        folder.mkdir()
        for number in range(200):
            path = folder / f"{number}.lmdb"
            writer = LMDB.writer(path, with_hidden(as_fields({"n": "int64"})), 0)
            path.unlink()
            del writer

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [tmp_path / f"{number}" for number in range(4)]))
