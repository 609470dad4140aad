"""The hdf5 container on its own files: h5py reads them, and shardio reads them without h5py's lock."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from shardio import containers
from shardio.errors import ConfigError, MissingDependency, ShardCorrupt
from shardio.format.fields import CHECKSUM, as_fields, shape_column, with_hidden
from shardio.testing.samples import COUNT, FIELDS, FIRST, raw_of, stored, write

from ._shards import written

HDF5 = containers.get("hdf5")


@contextmanager
def library_locked() -> Iterator[None]:
    """Hold h5py's global lock in another thread, so that whatever needs it waits."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with h5py._objects.phil:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    try:
        yield
    finally:
        release.set()
        thread.join(10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A shard of every kind of field."""
    return write(HDF5, tmp_path / "shard-000000.h5")


def test_plain_h5py_reads_it(path: Path) -> None:
    """A fixed field is one dataset; any other is data and offsets, those of ragged fields in entries of their dtype."""
    with h5py.File(path) as file:
        assert sorted(file) == sorted(with_hidden(FIELDS))
        for name, field in with_hidden(FIELDS).items():
            raw = [stored(i)[name] for i in range(COUNT)]
            if field.fixed:
                assert (file[name].dtype, file[name].shape) == (field.row_dtype, (COUNT, *field.row_shape))
                assert file[name][...].tobytes() == b"".join(raw)
            else:
                data, offsets = file[name]["data"][...], file[name]["offsets"][...]
                dtype, shape = (field.row_dtype, field.entry_shape) if field.ragged else (np.uint8, ())
                assert (data.dtype, data.shape[1:], offsets.dtype, len(offsets)) == (dtype, shape, np.int64, COUNT + 1)
                assert [data[a:b].tobytes() for a, b in pairwise(offsets)] == raw
        assert file["wide"].id.get_offset() % 4096 == 0  # as of all datasets of a page or more


@pytest.mark.parametrize("compression", [None, "gzip", "lzf", "zstd"])
def test_reads_without_the_lock(tmp_path: Path, compression: str | None) -> None:
    """Every field is read while another thread holds h5py's global lock."""
    fields, samples = with_hidden(FIELDS), map(stored, range(COUNT))
    reader = HDF5.reader(written(HDF5, tmp_path / "s.h5", fields, samples, FIRST, compression=compression), fields)
    with library_locked(), ThreadPoolExecutor(1) as pool:
        found = {name: pool.submit(raw_of, reader, [3], name).result(10)[0] for name in with_hidden(FIELDS)}
    assert found == stored(3)


@pytest.mark.parametrize("compression", ["gzip", "lzf", "zstd"])
def test_compression(tmp_path: Path, compression: str) -> None:
    """Fixed arrays are compressed in chunks of whole samples, about a quarter of a MiB each; nothing else is."""
    arrays = {"x": ("float32", (64, 64)), "y": ("uint8", (600, 600))}
    fields = with_hidden(as_fields({"image": "image", "z": "bool", **arrays}))
    zero = {name: bytes(field.row_bytes) for name, field in fields.items() if field.fixed}
    written(HDF5, tmp_path / "s.h5", fields, [{**zero, "image": b"\xff\xd8\xff"}] * 40, compression=compression)
    with h5py.File(tmp_path / "s.h5") as file:
        assert (file["x"].chunks, file["y"].chunks) == ((16, 64, 64), (1, 600, 600))
        filters = [name for name in file["x"]._filters if name != "shuffle"]
        assert filters == ["32015" if compression == "zstd" else compression]
        assert file["x"].shuffle == (compression != "lzf")
        for name in ("z", CHECKSUM, shape_column("image"), "image/data", "image/offsets"):
            assert file[name].chunks is None
    assert (tmp_path / "s.h5").stat().st_size < 400_000


def test_compression_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown compression is refused with the list; without hdf5plugin there is no Zstandard; nothing is written."""
    with pytest.raises(ConfigError, match="None, 'gzip', 'lzf' or 'zstd', got 'zip'"):
        HDF5.writer(tmp_path / "s.h5", with_hidden(FIELDS), 0, compression="zip")
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(MissingDependency, match=r"compression='zstd' needs hdf5plugin: pip install hdf5plugin"):
        HDF5.writer(tmp_path / "s.h5", with_hidden(FIELDS), 0, compression="zstd")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float16", "complex64", "complex128", "uint64", "bool", "int8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (1, 1025)])
def test_dtypes_and_shapes(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """All dtypes come back, also in arrays without elements and in rows on either side of a page."""
    values = np.random.default_rng(0).integers(0, 2, (5, *shape)).astype(dtype)
    fields = as_fields({"x": (dtype, shape) if shape else dtype})
    for compression in (None, "gzip", "lzf", "zstd"):
        samples = ({"x": value.tobytes()} for value in values)
        reader = HDF5.reader(written(HDF5, tmp_path / "s.h5", fields, samples, compression=compression), fields)
        np.testing.assert_array_equal(reader.read(np.array([4, 0, 0]), "x"), values[[4, 0, 0]])
        reader.close()


@pytest.mark.parametrize("compression", [None, "lzf"])
def test_spools_in_blocks(tmp_path: Path, compression: str | None) -> None:
    """A field of several blocks is written completely, compressed or not."""
    values = np.random.default_rng(0).integers(0, 255, (5, 2_000_000), np.uint8)
    fields = as_fields({"x": ("uint8", (2_000_000,)), "b": "bytes"})
    samples = ({"x": value.data, "b": value.data} for value in values)
    reader = HDF5.reader(written(HDF5, tmp_path / "s.h5", fields, samples, compression=compression), fields)
    np.testing.assert_array_equal(reader.read(np.array([3, 4, 0]), "x"), values[[3, 4, 0]])
    assert reader.read(np.array([4]), "b") == [values[4].tobytes()]


def test_counts_that_differ(path: Path) -> None:
    """Fields of different lengths are ShardCorrupt."""
    with h5py.File(path, "r+") as file:
        del file["label"]
        file["label"] = np.zeros(COUNT + 1, np.int64)
    with pytest.raises(ShardCorrupt, match="differ in their number of samples"):
        HDF5.reader(path, with_hidden(FIELDS))
