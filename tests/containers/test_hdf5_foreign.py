"""The hdf5 container on files that h5py wrote: every layout, byte order, filter and kind of link."""

import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from _builders import overwrite
from _hdf5_files import chunk_of, write_hdf5
from numpy.typing import NDArray

import shardio
from shardio import containers
from shardio.containers.chunk_codecs import fletcher32
from shardio.containers.extents import Blocks
from shardio.errors import MissingDependency, ShardCorrupt
from shardio.format.fields import Field, as_fields

from .test_hdf5 import library_locked

HDF5 = containers.get("hdf5")
ROWS = np.array([0, 12, 3, 4, 5, 5, 9, 2, 12, 11])
VALUES = (np.random.default_rng(0).integers(-99, 99, (13, 7, 5)) * 3).astype(np.int32)


def adopt(path: Path, values: NDArray[Any] = VALUES, dtype: str | None = None, **options: Any) -> containers.Reader:
    """Write `values` as the dataset `x` with h5py's `options`, and return a reader of the file."""
    write_hdf5(path, x={"data": values, **options})
    return HDF5.reader(path, {"x": Field("array", dtype=dtype or values.dtype.name, shape=values.shape[1:])})


# Read without libhdf5's lock.
DIRECT: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of whole rows": {"chunks": (4, 7, 5)},  # the last one is padded
    "chunks of one row": {"chunks": (1, 7, 5)},
    "chunks along all axes": {"chunks": (3, 4, 2)},  # padded along each axis
    "one chunk, larger than the data": {"chunks": (20, 7, 5), "maxshape": (None, 7, 5)},
    "growable, chunks wider than a row": {"chunks": (4, 9, 8), "maxshape": (None, None, None)},
    "shuffle alone": {"chunks": (4, 7, 5), "shuffle": True},
    "fletcher32": {"chunks": (4, 7, 5), "fletcher32": True},
    "chunks of one element": {"chunks": (1, 1, 1), "compression": "gzip"},
}

# Read by h5py.
FALLBACK: dict[str, dict[str, Any]] = {
    "scaleoffset": {"chunks": (4, 7, 5), "scaleoffset": 0},
    "scaleoffset and gzip": {"chunks": (4, 7, 5), "scaleoffset": 0, "compression": "gzip"},
    "zfp": {"chunks": (4, 7, 5), **hdf5plugin.Zfp(reversible=True)},
}


def read_under_lock(reader: containers.Reader, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Read `rows` of `x` while another thread holds h5py's lock."""
    gc.collect()  # objects of h5py, which would wait for the lock wherever they are collected
    with library_locked(), ThreadPoolExecutor(1) as pool:
        return np.asarray(pool.submit(reader.read, rows, "x").result(10))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        *(("int32", how) for how in DIRECT),
        *((dtype, how) for dtype in ("bool", "complex64", "float64", "uint16") for how in list(DIRECT)[:2]),
    ],
)
def test_read_without_the_lock(tmp_path: Path, dtype: str, how: str, order: str) -> None:
    """Contiguous and chunked datasets of every kind of number and either byte order need no lock of h5py."""
    values = VALUES % 2 if dtype == "bool" else VALUES
    reader = adopt(tmp_path / "x.h5", values.astype(np.dtype(dtype).newbyteorder(order)), **DIRECT[how])
    found = read_under_lock(reader, ROWS)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values.astype(dtype)[ROWS])
    assert np.shape(reader.read(np.array([], np.int64), "x")) == (0, 7, 5)


@pytest.mark.parametrize("how", FALLBACK)
def test_read_by_h5py(tmp_path: Path, how: str) -> None:
    """Filters that only HDF5 supports are left to h5py, also after a fork."""
    reader = adopt(tmp_path / "x.h5", **FALLBACK[how])
    np.testing.assert_array_equal(reader.read(ROWS, "x"), VALUES[ROWS])
    if not (child := os.fork()):
        os._exit(0 if np.array_equal(reader.read(ROWS, "x"), VALUES[ROWS]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(reader.read(ROWS[:3], "x"), VALUES[ROWS[:3]])


@pytest.mark.parametrize("chunks", [(3, 7, 5), (3, 4, 2)])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_chunks_never_written(tmp_path: Path, chunks: tuple[int, ...], compression: str | None, order: str) -> None:
    """A chunk that was never written gives the fill value."""
    options = {"chunks": chunks, "compression": compression, "fillvalue": 77}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", (13, 7, 5), f"{order}i4", **options)
        dataset[4:8] = VALUES[4:8]
        expected = dataset[...]
    reader = HDF5.reader(tmp_path / "x.h5", as_fields({"x": ("int32", (7, 5))}))
    np.testing.assert_array_equal(read_under_lock(reader, ROWS), expected[ROWS])
    assert (expected == 77).any()


def never_written(file: Any) -> None:
    """A contiguous dataset without any storage."""
    file.create_dataset("x", (13, 7, 5), "i4", fillvalue=5)


def compact(file: Any) -> None:
    """A dataset that is stored in the file's headers."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple(VALUES.shape), properties)
    file["x"][...] = VALUES


def of_24_bits(file: Any) -> None:
    """Numbers with the size but not the bits of a NumPy dtype, which are converted, not copied."""
    narrow = h5py.h5t.STD_I32LE.copy()
    narrow.set_precision(24)
    h5py.h5d.create(file.id, b"x", narrow, h5py.h5s.create_simple(VALUES.shape))
    file["x"][...] = VALUES


@pytest.mark.parametrize("make", [never_written, compact, of_24_bits])
def test_odd_datasets(tmp_path: Path, make: Callable[[Any], None]) -> None:
    """Datasets that are not simply stored are read as h5py reads them."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        make(file)
        expected = file["x"][...]
    reader = HDF5.reader(tmp_path / "x.h5", as_fields({"x": ("int32", (7, 5))}))
    np.testing.assert_array_equal(reader.read(ROWS, "x"), expected[ROWS])


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 7, 5)}, {"chunks": (4, 7, 5), "compression": "gzip"}])
def test_user_block(tmp_path: Path, options: dict[str, Any]) -> None:
    """Offsets count from the start of the file, also when HDF5 begins after a user block."""
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024) as file:
        file.create_dataset("x", data=VALUES, **options)
        file["t/data"], file["t/offsets"] = np.frombuffer(b"abc", np.uint8), np.arange(14) // 5
    reader = HDF5.reader(tmp_path / "x.h5", as_fields({"x": ("int32", (7, 5)), "t": "text"}))
    np.testing.assert_array_equal(reader.read(ROWS, "x"), VALUES[ROWS])
    assert reader.read(np.array([4, 9, 0]), "t") == [b"a", b"b", b""]


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        ("int16", "int32"),  # a wider integer
        ("int32", "float64"),  # every int32 is a float64
        ("float64", "float32"),  # the same kind, though rounded
    ],
)
def test_conversions(tmp_path: Path, found: str, declared: str) -> None:
    """A field may be declared as another dtype of the same kind, or a wider one."""
    column = adopt(tmp_path / "x.h5", VALUES.astype(found), dtype=declared).read(ROWS, "x")
    assert np.asarray(column).dtype == declared
    np.testing.assert_array_equal(column, VALUES[ROWS])


@pytest.mark.parametrize(
    ("field", "match"),
    [
        (("int32", (5, 7)), r"expected a dataset of shape \(n, 5, 7\), got \(13, 7, 5\)"),  # another shape
        (("uint8", (7, 5)), "expected uint8, got int32"),  # numbers that would not fit
        ("text", "expected bytes or text"),  # a field that differs in size
    ],
)
def test_declared_as_something_else(tmp_path: Path, field: Any, match: str) -> None:
    """A field that does not match its dataset is ShardCorrupt when the shard is opened."""
    adopt(tmp_path / "x.h5").close()
    with pytest.raises(ShardCorrupt, match=match):
        HDF5.reader(tmp_path / "x.h5", as_fields({"x": field}))


def test_variable_values(tmp_path: Path) -> None:
    """Strings, variable-length bytes, and compressed data and offsets are read as values of variable size."""
    texts = ["", "one", "zwölf", "x" * 100] * 5
    raw = [text.encode() for text in texts]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["strings"] = texts
        file.create_dataset("fixed", data=np.array([text[:3].encode() for text in texts]))
        files = file.create_dataset("files", (20,), h5py.vlen_dtype(np.uint8))
        for i, value in enumerate(raw):
            files[i] = np.frombuffer(value, np.uint8)
        group = file.create_group("group")
        group.create_dataset("data", data=np.frombuffer(b"".join(raw), np.uint8), compression="gzip")
        group.create_dataset("offsets", data=np.cumsum([0, *map(len, raw)]).astype("u4"), chunks=(7,))
    fields = as_fields({"strings": "text", "fixed": "text", "files": "bytes", "group": "text"})
    reader = HDF5.reader(tmp_path / "x.h5", fields)
    rows = np.array([3, 0, 2, 2, 17])
    for name in ("strings", "files", "group"):
        assert reader.read(rows, name) == [raw[row] for row in rows]
    assert reader.read(rows, "fixed") == [texts[row][:3].encode() for row in rows]


def test_a_chunk_that_h5py_finds_damaged(tmp_path: Path) -> None:
    """A chunk that h5py cannot decompress is ShardCorrupt with its field and row, and other chunks are still read."""
    adopt(tmp_path / "x.h5", chunks=(1, 7, 5), fletcher32=True, **hdf5plugin.Zfp(reversible=True)).close()
    info = chunk_of(tmp_path / "x.h5", "x", (3, 0, 0))
    overwrite(tmp_path / "x.h5", info.byte_offset + info.size // 2, b"\xaa\x55\xaa\x55\xaa")
    reader = HDF5.reader(tmp_path / "x.h5", as_fields({"x": ("int32", (7, 5))}))
    with pytest.raises(ShardCorrupt, match=r"x\.h5, field 'x', row 3: damaged, h5py says"):
        reader.read(np.array([2, 3]), "x")
    np.testing.assert_array_equal(reader.read(np.array([2, 4]), "x"), VALUES[[2, 4]])


def test_filter_that_nobody_has(tmp_path: Path) -> None:
    """A filter that HDF5 cannot load is reported as a missing dependency, with the field."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4,))
        properties.set_filter(299, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((13,)), properties)
    with pytest.raises(MissingDependency, match=r"x\.h5, field 'x' needs HDF5 filter 299 .*: pip install hdf5plugin"):
        HDF5.reader(tmp_path / "x.h5", as_fields({"x": "int32"}))


@pytest.mark.parametrize("size", [1, 2, 3, 719, 720, 721, 100_001, 131_070, 131_072, 140_000])
@pytest.mark.parametrize("fill", ["random", "zeros", "ones", "one"])
def test_fletcher32_is_that_of_hdf5(tmp_path: Path, size: int, fill: str) -> None:
    """The checksum is the one that libhdf5 writes, for odd sizes, carries and sums that are multiples of 65535."""
    data = {
        "random": np.random.default_rng(size).integers(0, 256, size, np.uint8),
        "zeros": np.zeros(size, np.uint8),
        "ones": np.full(size, 255, np.uint8),  # every sum is a multiple of 65535
        "one": np.eye(1, size, dtype=np.uint8)[0],  # weighted by 65535 or 65536 in the larger sizes
    }[fill]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=(size,), fletcher32=True)
        file.flush()
        raw = dataset.id.read_direct_chunk((0,))[1]
    assert int.from_bytes(raw[-4:], "little") == fletcher32(data.tobytes())


def test_blocks_that_only_libhdf5_reads(tmp_path: Path) -> None:
    """A block of rows that only libhdf5 decompresses reads the chunks that it touches, and no others."""
    values = np.arange(6 * 8 * 10, dtype="i4").reshape(6, 8, 10)
    options = {"chunks": (2, 4, 5), "scaleoffset": 0, "compression": "gzip"}
    path = write_hdf5(tmp_path / "a.h5", x={"data": values, **options})
    shardio.index(path, tmp_path / "out")
    overwrite(path, chunk_of(path, "x", (2, 4, 0)).byte_offset, b"\xff" * 12)
    selection = shardio.open(tmp_path / "out").selection(np.array([3, 0, 2, 3]))
    blocks = Blocks(np.array([[0, 3], [4, 0], [2, 5], [5, 7]]), (2, 3))
    expected = np.array([values[row][blocks.place(n)] for n, row in enumerate([3, 0, 2, 3])])
    np.testing.assert_array_equal(selection.blocks("x", blocks), expected)
    with pytest.raises(ShardCorrupt, match=r"field 'x', row 2: damaged, h5py says"):
        selection.blocks("x", Blocks(np.array([[0, 3], [4, 0], [4, 1], [5, 7]]), (2, 3)))
