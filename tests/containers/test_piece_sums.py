"""The table of checksums of a shard's pieces: its layout, and what is taken for one."""

from pathlib import Path

import numpy as np
import pytest
import xxhash

from shardio.containers import piece_sums
from shardio.format.pieces import PIECE, piece_count

CHECKSUM = "0123456789abcdef" * 2
# Numbers of pieces: none, one, all of one block of the table, one more, several blocks.
COUNTS = [0, 1, 8175, 8176, 20_000]


def numbers(count: int) -> np.ndarray:
    """Checksums, no two alike."""
    return np.random.default_rng(count).integers(0, 1 << 64, count, np.uint64)


@pytest.mark.parametrize("count", COUNTS)
def test_each_checksum_stands_where_it_is_looked_for(count: int, tmp_path: Path) -> None:
    """A table has the size that is foretold, is an array for NumPy, and each checksum is at its offset."""
    sums = numbers(count)
    table = piece_sums.to_bytes(sums, CHECKSUM)
    assert len(table) == piece_sums.size_of([count * PIECE]) == piece_sums.size_of([1] * count)
    found = [int.from_bytes(table[at : at + 8], "little") for at in map(piece_sums.offset_of, range(count))]
    assert found == sums.tolist()
    (tmp_path / "a.npy").write_bytes(table)
    column = np.load(tmp_path / "a.npy", allow_pickle=False)["xxh3_64"]
    assert len(column) == count + piece_count(len(table))
    assert set(sums.tolist()) <= set(column.tolist())


@pytest.mark.parametrize("count", COUNTS)
def test_a_table_tells_damage_and_other_shards(count: int) -> None:
    """A table with any byte changed, cut short, of another shard, or with its blocks exchanged is not whole."""
    table = piece_sums.to_bytes(numbers(count), CHECKSUM)
    assert piece_sums.is_whole(CHECKSUM, table)
    for place in (0, 100, len(table) // 2, len(table) - 1):
        damaged = bytearray(table)
        damaged[place] ^= 1
        assert not piece_sums.is_whole(CHECKSUM, damaged)
    assert not piece_sums.is_whole(CHECKSUM, table[:-8])
    assert not piece_sums.is_whole(CHECKSUM, b"")
    assert not piece_sums.is_whole(CHECKSUM[::-1], table)
    if piece_count(len(table)) > 2:
        assert not piece_sums.is_whole(CHECKSUM, table[PIECE : 2 * PIECE] + table[:PIECE] + table[2 * PIECE :])


# Sizes of a shard and its index: no bytes, part of a piece, whole pieces, more than what is read at once.
@pytest.mark.parametrize("sizes", [(0, 0), (5, 70_000), (PIECE, 2 * PIECE), ((1 << 20) + 1, (1 << 21) - 1)])
def test_one_reading_gives_what_three_would(sizes: tuple[int, int], tmp_path: Path) -> None:
    """Size and checksum are those of the manifest, and each file's pieces are counted from its beginning."""
    files, expected, state = [], [], xxhash.xxh3_128()
    for number, size in enumerate(sizes):
        data = np.random.default_rng(number).bytes(size)
        files.append(tmp_path / f"{number}")
        files[-1].write_bytes(data)
        state.update(data)
        expected += [xxhash.xxh3_64_intdigest(data[at : at + PIECE]) for at in range(0, size, PIECE)]
    size, checksum, table = piece_sums.of_files(files)
    assert (size, checksum) == (sum(sizes), state.hexdigest())
    assert table == piece_sums.to_bytes(np.array(expected, np.uint64), checksum)


def test_what_lies_in_the_place_of_a_table(tmp_path: Path) -> None:
    """Arrays of others, text, pipes' places without a file: none is taken for a table; one of another shard is."""
    shard, place = tmp_path / "a.tar", tmp_path / "a.tar.sums.idx.npy"
    assert piece_sums.path_of(shard) == place
    assert not piece_sums.looks_like_one(shard)
    np.save(place, np.arange(20, dtype="<u8"))
    assert not piece_sums.looks_like_one(shard)
    place.write_text("mine")
    assert not piece_sums.looks_like_one(shard)
    place.write_bytes(piece_sums.to_bytes(numbers(3), CHECKSUM))
    assert piece_sums.looks_like_one(shard)
