"""Decompressed chunks that a process keeps: each is made once for the rows that are read while it is kept."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import overwrite
from _hdf5_files import chunk_of
from numpy.typing import NDArray

import shardio
from shardio import World
from shardio.containers import chunked_rows, hdf5_chunks
from shardio.containers.chunk_cache import ChunkCache
from shardio.containers.chunk_filters import FilterPipeline
from shardio.containers.extents import Blocks
from shardio.errors import ShardCorrupt
from shardio.native.chunks import SIZE

from .test_hdf5_foreign import adopt

CHUNK = 8 * 6 * 400 * 2  # bytes
VALUES = np.cumsum(np.random.default_rng(0).integers(0, 3, (40, 6, 400)), axis=1).astype(np.uint16)


pytestmark = pytest.mark.usefixtures("part")
"""Chunks are decompressed by compiled code, many in a call, or one by one."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An item for each chunk that is decompressed."""
    counted, undo, fill = list[None](), FilterPipeline.undo, FilterPipeline.fill

    def counting(*arguments: Any) -> Any:
        counted.append(None)
        return undo(*arguments)

    def counting_all(pipeline: FilterPipeline, chunks: NDArray[np.int64], *arguments: Any) -> Any:
        counted.extend([None] * np.count_nonzero(chunks[:, SIZE] >= 0))
        return fill(pipeline, chunks, *arguments)

    monkeypatch.setattr(FilterPipeline, "undo", counting)
    monkeypatch.setattr(FilterPipeline, "fill", counting_all)
    return counted


def use(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers keep their chunks in another cache."""
    for module in (chunked_rows, hdf5_chunks):
        monkeypatch.setattr(module, "CHUNKS", cache)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChunkCache]:
    """A cache of this test alone, with room for five chunks."""
    cache = ChunkCache(5 * CHUNK)
    use(cache, monkeypatch)
    yield cache
    assert 0 <= cache.used <= cache.most


@pytest.mark.parametrize(
    ("chunks", "each", "expected"),
    [
        ((8, 6, 400), 1, 5),  # row by row
        ((8, 6, 400), 3, 5),  # a few rows at a time, across chunks
        ((8, 6, 400), 8, 5),  # whole chunks, which are not kept
        ((8, 3, 400), 1, 10),  # tiles: two to a row
        ((1, 3, 400), 1, 80),  # of one row: nobody needs them again
        ((40, 6, 400), 1, 40),  # larger than what is kept
    ],
)
def test_rows_one_after_another(
    tmp_path: Path, made: list[None], cache: ChunkCache, chunks: tuple[int, ...], each: int, expected: int
) -> None:
    """Reading on where the last read ended decompresses each chunk once, unless chunks are too large to be kept."""
    reader = adopt(tmp_path / "x.h5", VALUES, chunks=chunks, compression="gzip")
    for start in range(0, 40, each):
        rows = np.arange(start, min(start + each, 40))
        np.testing.assert_array_equal(reader.read(rows, "x"), VALUES[rows])
    assert len(made) == expected
    assert (cache.used > 0) == (each < 8 and chunks[0] == 8)


def test_what_was_used_last_is_kept(tmp_path: Path, made: list[None], cache: ChunkCache) -> None:
    """The chunk that was used longest ago makes room for a new one."""
    many = np.concatenate([VALUES, VALUES[:16]])
    reader = adopt(tmp_path / "x.h5", many, chunks=(8, 6, 400), compression="gzip")
    for row, expected in ((0, 1), (8, 2), (16, 3), (24, 4), (32, 5), (1, 5), (40, 6), (2, 6), (9, 7), (25, 7), (17, 8)):
        np.testing.assert_array_equal(reader.read(np.array([row]), "x"), many[[row]])
        assert len(made) == expected
    assert cache.used == cache.most


def test_chunks_of_one_row_of_large_data(tmp_path: Path, cache: ChunkCache) -> None:
    """Chunks of one row are kept only while all open data have at most four times the bytes that are kept."""
    one = {"chunks": (1, 6, 200), "compression": "gzip"}
    small = adopt(tmp_path / "small.h5", VALUES, **one)
    blocks = Blocks(np.array([[2, 30]]), (3, 40))
    np.testing.assert_array_equal(small.read_blocks(np.array([7]), "x", blocks), VALUES[7:8, 2:5, 30:70])
    assert cache.used == 6 * 200 * 2
    large = adopt(tmp_path / "large.h5", np.concatenate([VALUES] * 4), **one)
    np.testing.assert_array_equal(large.read_blocks(np.array([9]), "x", blocks), VALUES[9:10, 2:5, 30:70])
    assert cache.used == 6 * 200 * 2
    large.close()
    del large
    small.read_blocks(np.array([8]), "x", blocks)
    assert cache.used > 6 * 200 * 2


def test_threads_that_need_one_chunk(tmp_path: Path, made: list[None], cache: ChunkCache) -> None:
    """Many threads that ask for rows of the same chunks at once decompress each chunk once."""
    reader = adopt(tmp_path / "x.h5", VALUES, chunks=(8, 6, 400), compression="gzip")
    barrier = threading.Barrier(8)

    def work(seed: int) -> bool:
        barrier.wait()
        rows = np.random.default_rng(seed).permutation(40)
        return all(np.array_equal(reader.read(rows[[n]], "x")[0], VALUES[rows[n]]) for n in range(40))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(made) == 5


def test_more_than_there_is_room_for(tmp_path: Path, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that drive out each other's chunks read what is stored, within the limit."""
    monkeypatch.setattr(cache, "most", 2 * CHUNK)
    reader = adopt(tmp_path / "x.h5", VALUES, chunks=(8, 6, 400), compression="gzip")

    def work(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 40, 30)
        found = [np.asarray(reader.read(rows[[n]], "x"))[0] for n in range(30)]
        with cache._lock:  # a new chunk is counted before others are dropped
            return np.array_equal(found, VALUES[rows]) and cache.used <= cache.most

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


def test_closed_files_leave_nothing(tmp_path: Path, cache: ChunkCache) -> None:
    """The chunks of a file that nobody has open any more go with the next read of a chunk."""
    for name in ("x.h5", "y.h5"):
        reader = adopt(tmp_path / name, VALUES, chunks=(8, 6, 400), compression="gzip")
        reader.read(np.array([3]), "x")
        assert cache.used == CHUNK
        reader.close()
        del reader


def test_a_damaged_chunk_is_not_kept(tmp_path: Path, cache: ChunkCache) -> None:
    """A chunk that cannot be decompressed is an error for each of its rows, each time; others are read."""
    reader = adopt(tmp_path / "x.h5", VALUES, chunks=(8, 6, 400), compression="gzip")
    info = chunk_of(tmp_path / "x.h5", "x", 1)
    overwrite(tmp_path / "x.h5", info.byte_offset, bytes(info.size))
    for row in (8, 9, 8):
        with pytest.raises(ShardCorrupt, match=f"row {row}: the chunk at byte {info.byte_offset} is damaged"):
            reader.read(np.array([row]), "x")
    np.testing.assert_array_equal(reader.read(np.array([7]), "x"), VALUES[[7]])
    assert cache.used == CHUNK


def test_a_fork_while_a_chunk_is_made(tmp_path: Path, cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is forked while another thread decompresses a chunk reads that chunk itself."""
    reader = adopt(tmp_path / "x.h5", VALUES, chunks=(8, 6, 400), compression="gzip")
    begun, go_on = threading.Event(), threading.Event()

    def wait_before(name: str) -> None:
        whole = getattr(FilterPipeline, name)

        def waiting(*arguments: Any) -> Any:
            begun.set()
            go_on.wait()
            return whole(*arguments)

        monkeypatch.setattr(FilterPipeline, name, waiting)

    wait_before("undo")
    wait_before("fill")
    thread = threading.Thread(target=reader.read, args=(np.array([3]), "x"))
    thread.start()
    begun.wait()
    if not (child := os.fork()):
        go_on.set()
        os._exit(0 if np.array_equal(reader.read(np.array([3]), "x"), VALUES[[3]]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    thread.join()


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"shuffle": None}, 1),  # as stored
        ({"shuffle": "block", "block": 8, "window": 2}, 2),  # a block reaches into two chunks
    ],
)
def test_an_epoch_of_a_loader(
    tmp_path: Path, made: list[None], monkeypatch: pytest.MonkeyPatch, files: int, options: dict[str, Any], most: int
) -> None:
    """An epoch in stored order decompresses each chunk once, one in blocks twice at most, and gives what is stored."""
    values = np.arange(files * 160 * 1500, dtype=np.float32).reshape(-1, 1500)  # rows of more than 4 KiB
    paths = [tmp_path / f"{number}.nc" for number in range(files)]
    for path, part in zip(paths, np.split(values, files), strict=True):
        adopt(path, part, chunks=(8, 1500), compression="gzip", shuffle=True).close()
    shardio.index(paths, tmp_path / "adopted")
    use(ChunkCache(12 * 8 * values[0].nbytes), monkeypatch)
    made.clear()
    loader = shardio.Loader(tmp_path / "adopted", 5, threads=3, world=World(), seed=1, tail="pad", **options)
    for batch in loader:
        np.testing.assert_array_equal(batch["x"].numpy(), values[batch["index"].numpy()])
    assert 20 * files <= len(made) <= most * 20 * files + files
