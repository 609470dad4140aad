"""Blocks of rows, read from every container and view, are what cutting whole rows gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _datasets import CONTAINERS, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio import native
from shardio.containers.extents import Blocks
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


@pytest.fixture(scope="module", params=[*CONTAINERS, "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """Several shards in a container."""
    folder = tmp_path_factory.mktemp(request.param)
    return packed(folder / "d", ROWS, FIELDS, container=request.param, shard_samples=5)


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
