"""Blocks of rows, read from every container, layout and view, are what cutting whole rows gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from _datasets import CONTAINERS, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio import native
from shardio.containers.base import Blocks
from shardio.errors import ConfigError
from shardio.views.readable import ReadableDataset

COUNT, SHAPE = 23, (3, 9, 11)
FIELDS = {
    "x": ("float32", SHAPE),
    "small": ("int16", (4, 5)),
    "maybe": shardio.Field("array", "uint8", (6, 7), optional=True),
    "track": ("float32", (None, 2)),
}
ROWS = [
    {
        "x": np.random.default_rng(n).random(SHAPE, np.float32),
        "small": np.arange(20, dtype=np.int16).reshape(4, 5) + 20 * n,
        "maybe": None if n % 4 == 1 else np.full((6, 7), n, np.uint8),
        "track": np.zeros((n, 2), np.float32),
    }
    for n in range(COUNT)
]
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "big-endian": {"dtype": ">f4"},
    "chunks of a row": {"chunks": (1, *SHAPE), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "chunks of rows": {"chunks": (4, *SHAPE), **hdf5plugin.Zstd()},
    "parts of rows": {"chunks": (2, 2, 4, 5), "compression": "lzf", "dtype": ">f8"},
    "parts of a row, unfiltered": {"chunks": (1, 1, 4, 11), "maxshape": (None, *SHAPE)},
    "rows, unfiltered": {"chunks": (3, *SHAPE), "fillvalue": 7},
    "left to libhdf5": {"chunks": (2, 3, 5, 5), "scaleoffset": 3},
    "half of it never written": {"chunks": (5, 2, 4, 4), "compression": "gzip", "fillvalue": -3},
    "packed": {"dtype": "i2", "chunks": (4, 3, 5, 5), "compression": "gzip"},
}


def foreign(folder: Path, layout: str) -> ReadableDataset:
    """A file of another program, adopted in place."""
    folder.mkdir()
    values, options = np.stack([row["x"] for row in ROWS]), dict(LAYOUTS[layout])
    dtype = options.pop("dtype", "f4")
    with h5py.File(folder / "rows.h5", "w") as file:
        made = file.create_dataset("x", (COUNT, *SHAPE), dtype, **options)
        made[: COUNT // 2 if "half" in layout else COUNT] = values[: COUNT // 2 if "half" in layout else COUNT] * (
            1000 if layout == "packed" else 1
        )
        if layout == "packed":
            made.attrs["scale_factor"], made.attrs["add_offset"] = np.float32(0.001), np.float32(-5)
            made.attrs["_FillValue"] = np.int16(500)
    shardio.index(folder / "rows.h5", folder / "d", decode_cf=layout == "packed", tell=lambda note: None)
    return shardio.open(folder / "d")


@pytest.fixture(scope="module", params=[*CONTAINERS, "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """Several shards in a container."""
    folder = tmp_path_factory.mktemp(request.param)
    return packed(folder / "d", ROWS, FIELDS, container=request.param, shard_samples=5)


@pytest.fixture(scope="module", params=LAYOUTS)
def adopted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReadableDataset:
    """One file of h5py in a layout."""
    return foreign(tmp_path_factory.mktemp("adopted") / "f", request.param)


VIEWS: dict[str, Callable[[Any], ReadableDataset]] = {
    "itself": lambda data: data,
    "chosen": lambda data: data[20:2:-2],
    "windows": lambda data: data.windows(3, within="dataset"),
    "windows that do not overlap": lambda data: data.windows(2, stride=2, within="dataset"),
    "joined": lambda data: shardio.concat({"a": data, "b": data[3:17]}),
    "windows of joined": lambda data: shardio.concat({"a": data[:9], "b": data[5:]}).windows(
        4, step=2, within="dataset"
    ),
}


@st.composite
def blocks_of(draw: st.DrawFn, data: ReadableDataset, name: str) -> tuple[NDArray[np.int64], Blocks]:
    """Some samples, and a block of each."""
    shape = data.fields[name].row_shape
    k = draw(st.integers(1, len(shape)))
    size = tuple(draw(st.integers(1, length)) for length in shape[-k:])
    indices = np.array(draw(st.lists(st.integers(0, len(data) - 1), max_size=9)), np.int64)
    shares = np.array(draw(st.lists(st.floats(0, 0.999), min_size=len(indices) * k, max_size=len(indices) * k)))
    room = np.array(shape[-k:]) - size + 1
    return indices, Blocks(np.floor(shares.reshape(-1, k) * room).astype(np.int64), size)


def check(view: ReadableDataset, name: str, indices: NDArray[np.int64], blocks: Blocks) -> None:
    """Compare blocks with whole values, cut; in new memory and in memory that is given."""
    whole = view.selection(indices).column(name)
    size = blocks.size
    cut = [
        value[(..., *(slice(b, b + s) for b, s in zip(begin, size, strict=True)))]
        for value, begin in zip(whole, blocks.begins.tolist(), strict=True)
    ]
    expected = np.array(cut, whole.dtype).reshape(len(cut), *whole.shape[1 : whole.ndim - len(size)], *size)
    found = view.selection(indices).blocks(name, blocks)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    room = np.ones((len(expected) + 2, *expected.shape[1:]), expected.dtype)
    selection = view.selection(indices)
    with selection.fetch([name], {name: blocks}):
        selection.blocks(name, blocks, room[1:-1])
    np.testing.assert_array_equal(room[1:-1], expected)
    assert (room[[0, -1]] == 1).all()


EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(
    data=st.data(),
    view=st.sampled_from(sorted(VIEWS)),
    name=st.sampled_from(["x", "small", "maybe"]),
    compiled=st.booleans(),
)
def test_blocks_of_containers(dataset: shardio.Dataset, data: Any, view: str, name: str, compiled: bool) -> None:
    """For any samples and blocks, with repeats, in every container and view, with or without compiled code."""
    chosen = VIEWS[view](dataset)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "library", lambda: None)
        check(chosen, name, *data.draw(blocks_of(chosen, name)))


@EXAMPLES
@given(data=st.data(), view=st.sampled_from(["itself", "windows", "joined"]), compiled=st.booleans())
def test_blocks_of_layouts(adopted: ReadableDataset, data: Any, view: str, compiled: bool) -> None:
    """The same for every layout that h5py writes."""
    chosen = VIEWS[view](adopted)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "library", lambda: None)
        check(chosen, "x", *data.draw(blocks_of(chosen, "x")))


def test_blocks_beyond_rows_are_refused(dataset: shardio.Dataset) -> None:
    """Blocks must be within the values, of as many samples, and the field one of fixed size."""
    selection = dataset.selection(np.arange(2))
    for begins, size in [([[0, 5], [0, 6]], (4, 6)), ([[-1], [0]], (2,)), ([[0]], (2,)), ([[0], [0]], (0,))]:
        with pytest.raises(ValueError, match="block"):
            selection.blocks("x", Blocks(np.array(begins), size))
    with pytest.raises(ConfigError, match=r"differ in size.*parts"):
        selection.blocks("track", Blocks(np.zeros((2, 1), np.int64), (1,)))


def test_blocks_of_rows_of_documents() -> None:
    """Rows made of documents have blocks, too."""
    data = shardio.from_samples([{"t": np.arange(n, dtype=np.uint16)} for n in range(9)], {"t": ("uint16", (None,))})
    check(data.cut("t", 5), "t", np.array([0, 5, 2]), Blocks(np.array([[1], [0], [2]]), (3,)))
