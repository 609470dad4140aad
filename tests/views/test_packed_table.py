"""The table of packed rows: made once, kept in a file that is checked, and made anew if it doesn't fit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import packed
from hypothesis import given
from hypothesis import strategies as st

import shardio
from shardio.dataset.dataset import Dataset
from shardio.errors import ConfigError
from shardio.system import npy
from shardio.views import packed_table
from shardio.views.kept_table import KeptTable
from shardio.views.packed_table import PackedTable
from shardio.views.row_choice import RowLayout

COUNT = 70_000  # of fewer documents no table is kept


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of many short documents, some longer than a row."""
    lengths = np.random.default_rng(0).integers(0, 12, COUNT)
    lengths[::1000] = 70
    path = tmp_path_factory.mktemp("corpus") / "d"
    samples = [{"tokens": np.full(n, number % 1000, np.uint16)} for number, n in enumerate(lengths.tolist())]
    packed(path, samples, {"tokens": ("uint16", (None,))}, container="hdf5", shard_size="300KB")
    return path


@pytest.fixture
def dataset(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The same in a folder of its own, with a cache of its own."""
    monkeypatch.setenv("SHARDIO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "d").mkdir()
    for file in corpus.iterdir():
        os.link(file, tmp_path / "d" / file.name)
    return shardio.open(tmp_path / "d")


def tables(folder: Path) -> list[Path]:
    """The files of tables in a folder."""
    return sorted(folder.glob("shardio.packed-*"))


def rows_of(table: RowLayout, numbers: Any = None) -> list[list[tuple[int, int, int]]]:
    """The pieces of each row, or of some: document, begin and end."""
    numbers = np.arange(len(table)) if numbers is None else np.array(numbers, np.int64)
    pieces = table.pieces(numbers)
    rows: list[list[tuple[int, int, int]]] = [[] for _ in numbers]
    columns = (pieces.rows, pieces.documents, pieces.begins, pieces.ends)
    for row, document, begin, end in zip(*map(np.ndarray.tolist, columns), strict=True):
        rows[row].append((document, begin, end))
    return rows


@given(st.lists(st.integers(0, 3) | st.integers(0, 30), max_size=40), st.integers(1, 12), st.data())
def test_a_table_that_was_written_is_the_one_that_was_made(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], length: int, data: st.DataObject
) -> None:
    """Each document's pieces lie side by side, full rows first; any rows are looked up alike, also from the file."""
    made = packed_table.made(_in_memory(lengths), "tokens", length)
    path = tmp_path_factory.mktemp("table") / "table.bin"
    kept = packed_table.kept({"length": length, "documents": len(lengths)})
    kept.write(path, made)
    read = kept.read(path)
    assert read is not None
    rows = rows_of(made)
    assert rows_of(read) == rows
    pieces = sorted(piece for row in rows for piece in row)
    assert pieces == [
        (document, begin, min(begin + length, count))
        for document, count in enumerate(lengths)
        for begin in range(0, count, length)
    ]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    assert rows_of(read, chosen) == [rows[number] for number in chosen]


def _in_memory(lengths: list[int]) -> Dataset:
    fields = {"tokens": ("uint16", (None,))}
    return shardio.from_samples([{"tokens": np.zeros(n, np.uint16)} for n in lengths], fields)


def test_a_document_takes_at_most_eight_bytes(dataset: Dataset) -> None:
    """The table lies beside the dataset, is mapped, and takes few bytes, also where all documents are long."""
    rows = dataset.packed("tokens", 16)
    (table,) = tables(Path(dataset.path))
    assert table.stat().st_size < 6.5 * COUNT + 2000
    assert rows.padding < 0.01
    inode = table.stat().st_ino
    again = shardio.open(dataset.path).packed("tokens", 16)
    assert table.stat().st_ino == inode
    assert rows_of(again._decided()) == rows_of(rows._decided())
    long = packed_table.made(_in_memory([19] * 5000), "tokens", 8)
    arrays = (long.documents, long.sizes, long.firsts.bits, long.long.bits, long.begun.bits)
    assert sum(array.nbytes for array in arrays) < 8 * 5000


def test_other_rows_have_tables_of_their_own(dataset: Dataset) -> None:
    """Another length and another view of the dataset do not take each other's table; few documents need none."""
    path = Path(dataset.path)
    dataset.packed("tokens", 16)
    dataset.packed("tokens", 17)
    dataset[1:].packed("tokens", 16)
    assert len(tables(path)) == 3
    dataset.packed("tokens", 16, value=3, positions=True)
    dataset[:1000].packed("tokens", 16)
    assert len(tables(path)) == 3


def test_a_damaged_or_foreign_table_is_made_anew(dataset: Dataset) -> None:
    """Whatever stands in the file, rows are those of the documents, and the next process finds a table that fits."""
    path = Path(dataset.path)
    expected = rows_of(dataset.packed("tokens", 16)._decided())
    (table,) = tables(path)
    good = table.read_bytes()
    dataset.packed("tokens", 17)
    (other,) = set(tables(path)) - {table}
    half = len(good) // 2
    for wrong in (b"", good[:half], good[:half] + b"\0" * (len(good) - half), other.read_bytes(), b"\x93NUMPY" * 99):
        table.unlink()
        table.write_bytes(wrong)
        assert rows_of(dataset.packed("tokens", 16)._decided()) == expected
        assert table.read_bytes() == good
    table.unlink()
    table.symlink_to(other)
    assert rows_of(dataset.packed("tokens", 16)._decided()) == expected
    assert not table.is_symlink()


def test_a_table_with_a_right_checksum_reads_no_foreign_memory(tmp_path: Path) -> None:
    """Documents, bits and rows beyond what there is are refused, although nothing was damaged."""
    kept, of_more = (packed_table.kept({"length": 8, "documents": count}) for count in (40, 41))
    made = packed_table.made(_in_memory([3] * 20 + [19] * 20), "tokens", 8)

    def changed(**arrays: Any) -> PackedTable:
        return PackedTable(**({name: getattr(made, name) for name in made.__slots__ if name != "padding"} | arrays))

    none, every = (packed_table.with_counts(np.full((1, 64), byte, np.uint8)) for byte in (0, 255))
    wrongs = [
        changed(documents=made.documents + np.uint16(40)),
        changed(documents=made.documents[:-1]),
        changed(sizes=made.sizes * np.uint16(0)),
        changed(sizes=made.sizes + np.uint16(8)),
        changed(firsts=none),
        changed(firsts=every),
        changed(long=every),
        changed(long=none),
        changed(begun=none),
        changed(begun=every),
        changed(full=1 << 50),
        changed(full=0),
        changed(full=-1),
    ]
    path = tmp_path / "table.bin"
    kept.write(path, made)
    assert kept.read(path) is not None
    for wrong in wrongs:
        kept.write(path, wrong)
        assert kept.read(path) is None
    of_more.write(path, made)
    assert kept.read(path) is None
    path.write_bytes(npy.header_of(np.dtype("u1"), (1 << 50,)) * 6)
    assert kept.read(path) is None


_PACK = """
import sys, time
import shardio
from shardio.views import packed_table
from shardio.views.kept_table import KeptTable

made, count = packed_table.made, 0

def slowly(*arguments):
    global count
    count += 1
    time.sleep(2)
    return made(*arguments)

packed_table.made = slowly
rows = shardio.open(sys.argv[1]).packed("tokens", 16)
print(count, len(rows), rows.padding)
"""


@pytest.mark.long
def test_of_several_processes_one_makes_the_table(dataset: Dataset) -> None:
    """Ranks that open the same rows at once wait for the one that makes their table, and have the same."""
    command = [sys.executable, "-c", _PACK, str(dataset.path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts, *same = zip(*(process.communicate(timeout=100)[0].split() for process in processes), strict=True)
    assert sorted(counts) == ["0", "0", "0", "1"]
    assert all(len({*values}) == 1 for values in same)
    assert len(tables(Path(dataset.path))) == 1


def test_without_a_folder_to_write_to_the_cache_has_the_table(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset that may not be written has its table in the cache's folder; without any, it is in memory."""
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path(dataset.path) and may(path, mode))
    expected = rows_of(dataset.packed("tokens", 16)._decided())
    assert not tables(Path(dataset.path))
    assert len(tables(tmp_path / "cache" / "kept")) == 1
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    shutil.rmtree(tmp_path / "cache")
    assert rows_of(dataset.packed("tokens", 16)._decided()) == expected
    assert not tables(tmp_path / "cache" / "kept")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has two users")
def test_a_table_of_another_user(dataset: Dataset) -> None:
    """Where others may only add files to the folder of a dataset, a table that one of them made is not used."""
    expected = rows_of(dataset.packed("tokens", 16)._decided())
    (path,) = tables(Path(dataset.path))
    os.chown(path, 65534, 65534)
    for mode, is_used in ((0o777, True), (0o1777, False)):  # by 0777 whoever made it may replace the dataset, too
        path.parent.chmod(mode)
        assert rows_of(dataset.packed("tokens", 16)._decided()) == expected
        assert path.stat().st_uid == (65534 if is_used else 0)


def test_a_disk_without_room_keeps_the_table_in_memory(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be written is used all the same."""
    expected = rows_of(dataset.packed("tokens", 16)._decided())
    tables(Path(dataset.path))[0].unlink()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeptTable, "write", full)
    assert rows_of(dataset.packed("tokens", 16)._decided()) == expected
    assert not tables(Path(dataset.path))


def test_tables_are_files_of_the_dataset(dataset: Dataset, tmp_path: Path) -> None:
    """verify does not mind them, clean removes old ones, and a new dataset in their place overwrites them."""
    path = Path(dataset.path)
    dataset.packed("tokens", 16)
    assert not shardio.verify(path).problems
    assert not shardio.clean(path).removed
    names = [table.name for table in tables(path)]
    assert [info.name for info in shardio.clean(path, older_than="0s").removed] == names
    assert len(names) == 1
    assert not tables(path)
    dataset.packed("tokens", 16)
    with pytest.raises(ConfigError, match="overwrite"):
        shardio.create(path, fields={"n": "int64"})
    assert len(packed(path, [{"n": 1}], {"n": "int64"}, overwrite=True)) == 1
    assert not tables(path)
