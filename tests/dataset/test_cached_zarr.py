"""Zarr stores in a bucket or on a slow file system, read by way of the cache of the node, chunk by chunk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from _builders import zipped
from _datasets import load
from _zarr_stores import column, lose, rewrite
from numpy.typing import NDArray

import shardio
from shardio.containers.extents import Blocks
from shardio.errors import ShardCorrupt
from shardio.format.pieces import PIECE

pytestmark = pytest.mark.filterwarnings("ignore:.* are not there")

ROWS, SHAPE, CHUNK = 24, (2, 90, 120), (4, 1, 45, 60)
LAYOUTS: dict[str, dict[str, Any]] = {
    "format 2": {"zarr_format": 2},
    "format 3": {},
    "raw": {"compressors": None},
    "sharded": {"shards": (8, 2, 90, 60)},
    "zipped": {"shards": (8, 2, 90, 60)},
}


def made(folder: Path, layout: str, *, checksums: bool = False) -> NDArray[Any]:
    """Index a store of a layout at `folder / "d"`, whose second half is never written; return its numbers."""
    data = np.random.default_rng(0).random((ROWS, *SHAPE), np.float32)
    array = zarr.create_array(
        folder / "a.zarr", shape=data.shape, chunks=CHUNK, dtype="f4", fill_value=7, **LAYOUTS[layout]
    )
    data[16:] = 7
    array[:16] = data[:16]
    store = folder / "a.zarr"
    if layout == "zipped":
        store = zipped(folder / "a.zarr")
    shardio.index(store, folder / "d", checksums=checksums)
    return data


def cached(folder: Path, cache: str = "cache", size: str = "64MB") -> shardio.Dataset:
    """The dataset that `made` has indexed, by way of a cache."""
    return shardio.open(folder / "d", cache=folder / cache, cache_size=size)


@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_the_files(tmp_path: Path, layout: str, checksums: bool) -> None:
    """Rows, blocks and batches are those of zarr; then nothing comes any more, and the store may be away."""
    data = made(tmp_path, layout, checksums=checksums)
    far, rows = cached(tmp_path), [5, 7, 23, 0]
    np.testing.assert_array_equal(column(far, rows), data[rows])
    blocks = Blocks(np.array([[30, 70], [0, 0], [44, 59], [10, 1]]), (40, 50))
    found = far.selection(np.array(rows)).blocks("array", blocks)
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(found[number], data[row][blocks.place(number)])
    for batch in load(far, 4, verify=checksums):
        np.testing.assert_array_equal(batch["array"], data[batch["index"]])
    done = shardio.verify(tmp_path / "d", deep=True, cache=tmp_path / "cache")
    assert (done.problems, done.unchecked) == ((), not checksums)
    staged = shardio.stage(tmp_path / "d", cache=tmp_path / "cache", cache_size="64MB")
    assert not staged.problems
    (tmp_path / "a.zarr").rename(tmp_path / "away")
    np.testing.assert_array_equal(column(cached(tmp_path), np.arange(ROWS)), data)
    (tmp_path / "away").rename(tmp_path / "a.zarr")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "zipped"])
def test_nothing_but_the_chunks_of_blocks_comes(tmp_path: Path, layout: str) -> None:
    """Crops ask for the chunks that they touch, ahead too: for those of shards by pieces, for all others exactly."""
    made(tmp_path, layout)
    far, near = cached(tmp_path), shardio.open(tmp_path / "d")
    column(far, [23])  # opens it
    before = far.fetched.bytes
    crops: dict[str, Any] = {"transforms": {"array": [shardio.RandomSpatialCrop((8, 8), offset=True)]}, "seed": 3}
    touched = set[tuple[int, ...]]()
    for batch, same in zip(load(far.select([1, 6, 13]), 1, **crops), load(near.select([1, 6, 13]), 1, **crops),
                           strict=True):  # fmt: skip
        np.testing.assert_array_equal(batch["array"], same["array"])
        (top, left), row = batch["array_offset"][0].tolist(), [1, 6, 13][int(batch["index"][0])]
        ends = {(y // 45, x // 60) for y in (top, top + 7) for x in (left, left + 7)}
        touched |= {(row // 4, level, *end) for level in (0, 1) for end in ends}
    came = far.fetched.bytes - before
    if layout == "sharded":
        shards = {(row // 2, x) for row, _, _, x in touched}
        assert came <= PIECE * (2 * len(touched) + 2 * len(shards))
    else:
        name = "{}.{}.{}.{}" if layout == "format 2" else "c/{}/{}/{}/{}"
        assert came == sum((tmp_path / "a.zarr" / name.format(*cell)).stat().st_size for cell in touched)


def shorten(chunk: Path) -> None:
    chunk.write_bytes(b"")


@pytest.mark.parametrize("layout", ["format 3", "sharded"])
@pytest.mark.parametrize(
    ("change", "told"), [(lose, "is missing"), (rewrite, "was written anew"), (shorten, "was written anew")]
)
def test_a_chunk_that_is_not_as_it_was(tmp_path: Path, layout: str, change: Callable[[Path], None], told: str) -> None:
    """A chunk that was lost or written anew is a bad sample by its name; all others are read, also through a Loader."""
    data = made(tmp_path, layout)
    change(tmp_path / "a.zarr/c/1/0/0/0")
    bad = range(8, 16) if layout == "sharded" else range(4, 8)
    far, good = cached(tmp_path), [row for row in range(ROWS) if row not in bad]
    np.testing.assert_array_equal(column(far, good), data[good])
    with pytest.raises(ShardCorrupt, match=rf"/d/shard-000000.zarr, field '': the chunk c/1/0/0/0 {told}"):
        column(far, [bad[1]])
    loader = load(far, 4, on_bad_sample="replace", max_bad=ROWS)
    assert sum(1 for _ in loader) == ROWS // 4
    assert {record.location.row for record in loader.quarantine()} == set(bad)
    assert f"c/1/0/0/0 {told}" in shardio.verify(tmp_path / "d", cache=tmp_path / "cache").problems[0]


@pytest.mark.parametrize("name", ["1", "1/0/0/0"])
def test_links_lead_nowhere(tmp_path: Path, name: str) -> None:
    """A link in place of a chunk, or of its folder, is not followed."""
    made(tmp_path, "format 3")
    (tmp_path / "a.zarr/c" / name).rename(tmp_path / "outside")
    (tmp_path / "a.zarr/c" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ShardCorrupt, match="the chunk c/1/0/0/0 is missing"):
        cached(tmp_path).selection(np.array([5])).blocks("array", Blocks(np.array([[0, 0, 0]]), (1, 8, 8)))


def test_a_small_cache(tmp_path: Path) -> None:
    """A cache with room for a part of the store gives whole epochs, and takes no more room."""
    data = made(tmp_path, "raw")
    for _ in range(2):
        for batch in load(cached(tmp_path, size="1.5MB"), 4, shuffle=None):
            np.testing.assert_array_equal(batch["array"], data[batch["index"]])
    taken = sum(one.stat().st_blocks * 512 for one in (tmp_path / "cache/files").rglob("*") if one.is_file())
    assert taken <= 1_500_000
