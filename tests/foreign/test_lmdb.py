"""LMDB files read page by page agree with the lmdb library, which wrote them."""

import os
import random
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio.containers.lmdb_pages import Pages
from shardio.errors import SourceError
from shardio_converters.lmdb import open_lmdb, scan

MAP = 1 << 28
PAGE = 4096


def write(path: Path, entries: dict[bytes, bytes], deleted: int = 0, **options: object) -> Path:
    """Write an environment in several transactions; every `deleted`-th key is put and deleted again."""
    environment = lmdb.open(str(path), map_size=MAP, **options)
    keys = list(entries)
    for part in (keys[::2], keys[1::2]):
        with environment.begin(write=True) as transaction:
            for key in part:
                transaction.put(key, entries[key])
    if deleted:
        with environment.begin(write=True) as transaction:
            for key in keys[::deleted]:
                transaction.delete(key)
                del entries[key]
    environment.close()
    return path


def found(path: Path) -> list[tuple[bytes, bytes]]:
    """Keys and values of all entries, in the order of the scan."""
    file = open_lmdb(path)
    entries = []
    for place in scan(file):
        key, key_size, offset, size = (int(number) for number in place)
        entries.append((file.read_exactly(key, key_size), file.read_exactly(offset, size)))
    return entries


def entries_of(count: int, largest: int, longest: int = 8, seed: int = 0) -> dict[bytes, bytes]:
    """Entries in random order, with keys of 8 to 8 + `longest` bytes and values of up to `largest` bytes."""
    numbers = random.Random(seed)
    return {
        numbers.randbytes(8 + numbers.randrange(longest)): numbers.randbytes(numbers.randrange(largest + 1))
        for _ in range(count)
    }


class TestEntries:
    @pytest.mark.parametrize(
        ("count", "largest", "longest"),
        [
            (0, 0, 1),
            (1, 10, 1),
            (3, 0, 1),
            (3000, 30, 8),
            (300, 5000, 8),
            (40, 70_000, 8),
            (3000, 100, 500),
            (9, 2050, 1),
        ],
    )
    @pytest.mark.parametrize("deleted", [0, 3])
    def test_what_lmdb_wrote(self, tmp_path: Path, count: int, largest: int, longest: int, deleted: int) -> None:
        """Trees of any depth, overflow pages, long keys and deleted entries are read as the lmdb library does."""
        entries = entries_of(count, largest, longest)
        path = write(tmp_path / "db", entries, deleted)
        assert found(path) == sorted(entries.items())

    def test_places_are_those_of_the_lookup(self, tmp_path: Path) -> None:
        """Offsets are those of a lookup by key; reading makes no lock, and others may have the file open."""
        path = write(tmp_path / "a.mdb", entries_of(500, 5000), subdir=False, lock=False)
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False):
            file = open_lmdb(path)
            pages = Pages(file.fileno(), file.size)
            for place in scan(file):
                key = file.read_exactly(int(place["key"]), int(place["key_size"]))
                assert pages.find(key) == (place["offset"], place["size"])
            assert os.listdir(tmp_path) == ["a.mdb"]


class TestRefusals:
    def test_named_databases(self, tmp_path: Path) -> None:
        """An environment with named databases is refused."""
        environment = lmdb.open(str(tmp_path / "db"), max_dbs=2)
        with environment.begin(write=True, db=environment.open_db(b"train")) as transaction:
            transaction.put(b"a", b"b")
        environment.close()
        with pytest.raises(SourceError, match=r"data.mdb: it holds named databases"):
            scan(open_lmdb(tmp_path / "db"))

    def test_several_values_for_a_key(self, tmp_path: Path) -> None:
        """A database with duplicate keys is refused. py-lmdb makes no unnamed one, so the test sets the flag."""
        path = write(tmp_path / "db", {b"a": b"b"}) / "data.mdb"
        data = bytearray(path.read_bytes())
        data[92] = data[PAGE + 92] = 4  # MDB_DUPSORT
        path.write_bytes(data)
        with pytest.raises(SourceError, match="it has several values for a key"):
            scan(open_lmdb(path))

    @pytest.mark.parametrize("data", [b"", b"x" * 10, b"x" * 10_000, bytes(10_000)])
    def test_not_an_lmdb(self, tmp_path: Path, data: bytes) -> None:
        """A file is refused if its first page is not LMDB's."""
        (tmp_path / "a.mdb").write_bytes(data)
        with pytest.raises(SourceError, match=r"a.mdb: not an LMDB file"):
            scan(open_lmdb(tmp_path / "a.mdb"))


class TestDamage:
    def test_cut_anywhere(self, tmp_path: Path) -> None:
        """A file that is truncated anywhere is refused before any value is read."""
        path = write(tmp_path / "db", entries_of(60, 5000)) / "data.mdb"
        data = path.read_bytes()
        for size in range(2 * PAGE, len(data) - 6 * PAGE, 5 * PAGE + 1000):
            path.write_bytes(data[:size])
            with pytest.raises(SourceError, match=r"data.mdb: damaged or cut off: "):
                found(path)

    def test_pages_that_lead_round(self, tmp_path: Path) -> None:
        """A branch page that refers to itself or repeatedly to others is an error, not an endless loop."""
        path = write(tmp_path / "db", entries_of(3000, 30)) / "data.mdb"
        data = bytearray(path.read_bytes())
        branches = [at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 1]
        for at in branches:
            first = int.from_bytes(data[at + 16 : at + 18], "little")
            data[at + first : at + first + 6] = (at // PAGE).to_bytes(6, "little")
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"damaged: page \d+ contradicts the pages above it"):
            scan(open_lmdb(path))

    def test_entries_that_are_missing(self, tmp_path: Path) -> None:
        """A leaf page with fewer entries than the tree claims is an error, so that no samples are silently missing."""
        path = write(tmp_path / "db", entries_of(20, 30)) / "data.mdb"
        data = bytearray(path.read_bytes())
        for at in (at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 2):
            lower = int.from_bytes(data[at + 12 : at + 14], "little")
            data[at + 12 : at + 14] = (lower - 2).to_bytes(2, "little")
        path.write_bytes(data)
        with pytest.raises(SourceError, match="damaged: it has 20 entries, 19 are found"):
            scan(open_lmdb(path))

    @settings(max_examples=100, deadline=None)
    @given(
        damage=st.lists(
            st.tuples(st.integers(0, 10**6), st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6
        )
    )
    def test_random_damage(self, whole: bytes, damage: list[tuple[int, int, int]], damaged: Path) -> None:
        """Any damage in the pages gives offsets within the file or SourceError, and never ends the process."""
        data = bytearray(whole)
        for page, at, value in damage:
            data[(page * PAGE + at) % len(data)] = value
        damaged.write_bytes(data)
        file = open_lmdb(damaged)
        try:
            places = scan(file)
        except SourceError:
            return
        for place in places.tolist():
            file.read_exactly(place[0], place[1])
            file.read_exactly(place[2], place[3])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A data file with a branch page, values of all sizes and deleted entries."""
    return (write(tmp_path_factory.mktemp("whole"), entries_of(200, 2500), 5) / "data.mdb").read_bytes()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path for damaged copies."""
    return tmp_path_factory.mktemp("damaged") / "data.mdb"
