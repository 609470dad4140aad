"""Compressed chunks of h5py files: decompressed without libhdf5, on many threads, and safely when damaged."""

import bz2
import contextlib
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import hdf5plugin
import numpy as np
import pytest
from _builders import overwrite
from _hdf5_files import chunk_of
from numpy.typing import NDArray

from shardio import containers
from shardio.containers import chunk_codecs
from shardio.containers.chunk_codecs import fletcher32, undo_shuffle
from shardio.errors import ShardCorrupt
from shardio.format.fields import Field
from shardio.system import helper_process

from .test_hdf5_foreign import adopt, read_under_lock

HDF5 = containers.get("hdf5")
ROWS = np.array([0, 12, 3, 4, 5, 5, 9, 2, 12, 11, 0])

COMPRESSIONS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "gzip, shuffle": {"compression": "gzip", "shuffle": True},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lzf, shuffle": {"compression": "lzf", "shuffle": True},
    "lzf, shuffle, fletcher32": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "zstd, shuffle": {**hdf5plugin.Zstd(clevel=1), "shuffle": True},
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4 in small blocks": dict(hdf5plugin.LZ4(nbytes=64)),
    "bitshuffle, lz4": dict(hdf5plugin.Bitshuffle()),
    "bitshuffle, zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
    "bitshuffle alone": dict(hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle in small blocks": dict(hdf5plugin.Bitshuffle(nelems=16)),
    "blosc, lz4": dict(hdf5plugin.Blosc(cname="lz4", shuffle=hdf5plugin.Blosc.SHUFFLE)),
    "blosc, lz4, bits": dict(hdf5plugin.Blosc(cname="lz4", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc, zstd": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.SHUFFLE)),
    "blosc, zstd, bits": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc, blosclz": dict(hdf5plugin.Blosc(cname="blosclz", shuffle=hdf5plugin.Blosc.NOSHUFFLE)),
    "blosc, zlib": dict(hdf5plugin.Blosc(cname="zlib")),
    "blosc2": dict(hdf5plugin.Blosc2()),
    "blosc2, zstd, bits": dict(hdf5plugin.Blosc2(cname="zstd", filters=hdf5plugin.Blosc2.BITSHUFFLE)),
    "blosc2, fletcher32": {**hdf5plugin.Blosc2(), "fletcher32": True},
    "bzip2": dict(hdf5plugin.BZip2()),
}

CHUNKS = {
    "one row": (1, 17, 9),
    "rows, the last chunk padded": (4, 17, 9),
    "parts of a row, padded": (1, 5, 4),
    "parts of rows, padded along all axes": (5, 8, 9),
}


def values_of(dtype: str) -> NDArray[Any]:
    """An array [13, 17, 9] that compresses well but is not constant."""
    steps = np.random.default_rng(3).integers(0, 3, (13, 17, 9))
    return np.cumsum(steps, axis=1).astype(dtype)


def is_left_to_h5py(reader: containers.Reader) -> bool:
    """Whether a read of `x` goes to the helper process."""
    called = mock.Mock(wraps=helper_process.call)
    with mock.patch.object(helper_process, "call", called):
        reader.read(ROWS, "x")
    return bool(called.called)


@pytest.mark.parametrize(("chunks", "dtype"), [*zip(CHUNKS, ("<u1", "<u2", ">i4", "<u2"), strict=True)])
@pytest.mark.parametrize("how", COMPRESSIONS)
def test_read_without_the_lock(
    tmp_path: Path, how: str, chunks: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in any order and with repeats are read while another thread holds h5py's lock, and h5py opens no file."""
    values = values_of(dtype)
    reader = adopt(tmp_path / "x.h5", values, chunks=CHUNKS[chunks], **COMPRESSIONS[how])
    monkeypatch.setattr(h5py, "File", None)
    np.testing.assert_array_equal(read_under_lock(reader, ROWS), values[ROWS])


@pytest.mark.parametrize("chunks", [(1, 64, 40), (4, 64, 40)])
@pytest.mark.parametrize("how", COMPRESSIONS)
def test_many_threads(tmp_path: Path, how: str, chunks: tuple[int, ...]) -> None:
    """Eight threads read over a thousand chunks at once, each into its own memory."""
    rng = np.random.default_rng(0)
    values = np.cumsum(rng.integers(0, 3, (24, 64, 40)), axis=1).astype(np.uint16)
    reader = adopt(tmp_path / "x.h5", values, chunks=chunks, **COMPRESSIONS[how])

    def work(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 24, 20)
        return np.array_equal(np.asarray(reader.read(rows, "x")), values[rows])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(80)))


@pytest.mark.parametrize("mask", [0, 1, 2, 3, 4, 5, 6, 7])
def test_filters_left_out(tmp_path: Path, mask: int) -> None:
    """Filters that a chunk's mask turns off are not applied."""
    plain = np.arange(40, dtype="<u2")
    stored = plain.tobytes()
    if not mask & 1:
        stored = plain.view(np.uint8).reshape(-1, 2).T.tobytes()
    if not mask & 2:
        stored = zlib.compress(stored)
    if not mask & 4:
        stored += fletcher32(stored).to_bytes(4, "little")
    options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", (1, 40), "<u2", chunks=(1, 40), **options)
        dataset.id.write_direct_chunk((0, 0), stored, filter_mask=mask)
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["x"][0], plain)
    reader = HDF5.reader(tmp_path / "x.h5", {"x": Field("array", dtype="uint16", shape=(40,))})
    np.testing.assert_array_equal(reader.read(np.array([0, 0]), "x"), [plain, plain])


@pytest.mark.parametrize("how", sorted(set(COMPRESSIONS) - {"bitshuffle alone"}))  # which may decompress to anything
def test_damaged_chunk(tmp_path: Path, how: str) -> None:
    """An invalid chunk is ShardCorrupt with file, field, row, byte and filter, and other chunks are still read."""
    values, path = np.concatenate([values_of("u2")] * 4, axis=2), tmp_path / "x.h5"
    reader = adopt(path, values, chunks=(1, 17, 36), **COMPRESSIONS[how])
    info = chunk_of(path, "x", (3, 0, 0))
    overwrite(path, info.byte_offset, b"\xff" * info.size)
    first = how.replace(",", "").split()[0]
    name = "fletcher32" if "fletcher32" in how else {"gzip": "deflate"}.get(first, first)
    told = rf"x\.h5, field 'x', row 3: the chunk at byte {info.byte_offset} is damaged: {name}: "
    with pytest.raises(ShardCorrupt, match=told):
        reader.read(np.array([2, 3]), "x")
    np.testing.assert_array_equal(reader.read(np.array([2, 4]), "x"), values[[2, 4]])


@pytest.mark.parametrize("how", COMPRESSIONS)
def test_damage_never_crashes(tmp_path: Path, how: str) -> None:
    """Hundreds of chunks with wrong sizes, bytes and endings do not end the process, and later reads are right."""
    values, path = np.concatenate([values_of("u2")] * 4, axis=2), tmp_path / "x.h5"
    adopt(path, values, chunks=(1, *values.shape[1:]), **COMPRESSIONS[how]).close()
    original = path.read_bytes()
    with h5py.File(path) as file:
        infos = [file["x"].id.get_chunk_info(i) for i in range(len(values))]
    reader = HDF5.reader(path, {"x": Field("array", dtype="uint16", shape=values.shape[1:])})
    rng = np.random.default_rng(0)
    with open(path, "r+b", buffering=0) as file:
        for i in range(600):
            row = i % len(values)
            start, size = infos[row].byte_offset, infos[row].size
            data = np.frombuffer(original, np.uint8, size, start).copy()
            if i % 3 == 0:
                data[rng.integers(min(size, 40))] = rng.choice([0, 1, 127, 128, 255])  # the sizes in a header
            elif i % 3 == 1:
                data[rng.integers(size, size=4)] = rng.integers(0, 256, 4)
            else:
                data[rng.integers(size) :] = rng.integers(0, 256)
            os.pwrite(file.fileno(), data.tobytes(), start)
            with contextlib.suppress(ShardCorrupt):
                assert np.shape(reader.read(np.array([row]), "x")) == (1, *values.shape[1:])
            os.pwrite(file.fileno(), original[start : start + size], start)
    np.testing.assert_array_equal(reader.read(np.arange(len(values)), "x"), values)


@pytest.mark.parametrize(
    ("options", "bomb"),
    [
        ({"compression": "gzip"}, zlib.compress(bytes(60_000_000), 9)),
        (dict(hdf5plugin.BZip2()), bz2.compress(bytes(20_000_000))),
    ],
)
def test_more_bytes_than_a_chunk_has(tmp_path: Path, options: dict[str, Any], bomb: bytes) -> None:
    """A stream that decompresses to more than a chunk's size is cut off there."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", (2, 50), "u1", chunks=(1, 50), **options)
        dataset.id.write_direct_chunk((0, 0), bomb)
    reader = HDF5.reader(tmp_path / "x.h5", {"x": Field("array", dtype="uint8", shape=(50,))})
    with pytest.raises(ShardCorrupt, match=r"row 0: the chunk at byte .* not end within 50 bytes"):
        reader.read(np.array([0]), "x")


@pytest.mark.parametrize("how", ["gzip, shuffle", "zstd"])
def test_without_compiled_code(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the libraries lack the functions, h5py decompresses."""
    real = chunk_codecs.function
    monkeypatch.setattr(chunk_codecs, "function", lambda library, name, *types: real(library, "no_such", *types))
    values = values_of("u2")
    reader = adopt(tmp_path / "x.h5", values, chunks=(4, 17, 9), **COMPRESSIONS[how])
    assert is_left_to_h5py(reader)
    np.testing.assert_array_equal(reader.read(ROWS, "x"), values[ROWS])


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 96, 2**31])
@pytest.mark.parametrize("size", [0, 1, 7, 96, 97, 103, 8111])
@pytest.mark.usefixtures("part")
def test_shuffle(width: int, size: int) -> None:
    """The shuffle filter is undone for elements of any size that a file may state; remaining bytes stay at the end."""
    plain = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    count = size // max(width, 1)
    stored = np.concatenate([plain[: count * width].reshape(count, width).T.ravel(), plain[count * width :]])
    room = np.zeros(size + 5, np.uint8)
    np.testing.assert_array_equal(undo_shuffle(width)(stored, room), plain)
    assert width < 2 or not room[size:].any()
