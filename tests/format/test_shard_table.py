"""The table of shards is in the manifest, or in a file beside it for very many shards."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xxhash
from _datasets import packed

import shardio
from shardio.errors import ManifestError
from shardio.format import manifest
from shardio.format.file_table import FileTable, TableFile
from shardio.format.shard_table import ShardTable, TextColumn


def shards(names: list[str], samples: list[int] | None = None) -> ShardTable:
    """A table of shards with these names."""
    counts = np.array(samples or [2] * len(names), np.int64)
    return ShardTable(TextColumn(names), counts, counts * 100, TextColumn(["0" * 32] * len(names)))


def write(path: Path, count: int = 12, overwrite: bool = False) -> shardio.Dataset:
    """A dataset of tiny shards."""
    return packed(path, ({"label": number} for number in range(count)), shard_size=8, overwrite=overwrite)


@pytest.mark.parametrize(
    "names",
    [
        ["a.tar", "../b.tar"],  # would leave the directory
        ["a.tar", "x/b.tar"],  # a folder
        ["a.tar", ""],
        ["a.tar", ".hidden"],
        ["a.tar", "-rf"],  # an option for other programs
        ["a.tar", "b\0c.tar"],  # ends early for the operating system
        ["a.tar", "b c"],
        ["a.tar", "é.tar"],
        ["a.tar", "a.tar"],  # twice
        ["c.tar", "a.tar", "c.tar"],  # twice, not in order
    ],
)
def test_names_that_are_no_plain_file_are_refused(names: list[str]) -> None:
    """A shard's name is a plain file name, and unique."""
    with pytest.raises(ManifestError, match="shards: "):
        shards(names)


@pytest.mark.parametrize("samples", [[2**62, 2**62, 2**62], [-1, 2, 2]])
def test_counts_that_overflow_are_refused(samples: list[int]) -> None:
    """Sample counts that are negative or add up to more than int64 are refused."""
    with pytest.raises(ManifestError, match="samples must be in"):
        shards(["a", "b", "c"], samples)


def test_names_read_as_text() -> None:
    """Shard names are a sequence of strings, although they are stored as one array."""
    found = shards(["b.tar", "a.tar", "long-name.tar"]).names
    assert list(found) == ["b.tar", "a.tar", "long-name.tar"]
    assert (found[0], found[-1], list(found[1:])) == ("b.tar", "long-name.tar", ["a.tar", "long-name.tar"])
    assert list(shards([]).names) == []


def test_very_many_shards_stand_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table file equals the manifest's table, in memory or not, and is removed with the dataset."""
    listed = write(tmp_path / "a").manifest.shards
    monkeypatch.setattr(manifest, "MOST_INLINE", 5)
    ds = write(tmp_path / "b")
    assert (tmp_path / "b" / manifest.TABLE_NAME).is_file()
    assert not (tmp_path / "a" / manifest.TABLE_NAME).exists()
    assert (ds.manifest.shards.names, ds.manifest.shards.checksums) == (listed.names, listed.checksums)
    monkeypatch.setattr(manifest, "TableFile", partial(TableFile, whole=0))
    again = shardio.open(tmp_path / "b").manifest.shards
    assert isinstance(again.names.table, FileTable)
    assert again == listed
    assert (again.names[-1], list(again.names[1:3])) == (listed.names[-1], list(listed.names[1:3]))
    assert ds.read(range(12))["label"].tolist() == list(range(12))
    assert len((tmp_path / "b" / manifest.FILE_NAME).read_bytes()) < 1000
    assert len(write(tmp_path / "b", count=4, overwrite=True)) == 4
    assert not (tmp_path / "b" / manifest.TABLE_NAME).exists()


def test_a_table_that_is_not_the_manifests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, changed and truncated tables, wrong columns and Python objects each have their own error."""
    monkeypatch.setattr(manifest, "MOST_INLINE", 5)
    write(tmp_path / "d")
    table = tmp_path / "d" / manifest.TABLE_NAME
    whole = table.read_bytes()
    changed = bytearray(whole)
    changed[-1] ^= 1
    for content, message in (
        (None, "which is missing"),
        (bytes(changed), "checksum"),
        (whole[:-100], "cut short"),
        (b"", "cut short"),
    ):
        table.unlink(missing_ok=True)
        if content is not None:
            table.write_bytes(content)
        with pytest.raises(ManifestError, match=message):
            shardio.open(tmp_path / "d")
    np.save(table, np.arange(12))
    described = (tmp_path / "d" / manifest.FILE_NAME).read_text()
    old, new = (xxhash.xxh3_128_hexdigest(data) for data in (whole, table.read_bytes()))
    (tmp_path / "d" / manifest.FILE_NAME).write_text(described.replace(old, new))
    with pytest.raises(ManifestError, match="not a table"):
        shardio.open(tmp_path / "d")
    np.save(table, np.array([None] * 12), allow_pickle=True)
    with pytest.raises(ManifestError, match="damaged"):
        shardio.open(tmp_path / "d")
