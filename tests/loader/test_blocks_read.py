"""A crop is read, not cut: batches are those of whole samples, and few bytes are asked for."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from _datasets import CONTAINERS, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardio
from shardio import transforms as T
from shardio.containers.hdf5_chunks import CHUNKS
from shardio.containers.runs import REQUESTED

SHAPE = (2, 40, 48)
FIELDS = {
    "x": ("float32", SHAPE),
    "mask": ("uint8", SHAPE[1:]),
    "maybe": shardio.Field("array", "int16", (20, 30), optional=True),
}
ROWS = [
    {
        "x": np.random.default_rng(n).random(SHAPE, np.float32),
        "mask": np.random.default_rng(-n % 99).integers(0, 9, SHAPE[1:], np.uint8),
        "maybe": None if n % 3 == 1 else np.full((20, 30), n, np.int16),
    }
    for n in range(30)
]
CROPS: list[Any] = [
    T.RandomSpatialCrop((8, 16)),
    T.CenterSpatialCrop(12),
    T.RandomWindow(1),
    T.RandomSpatialCrop((1, 40, 5)),
]
AFTER: list[list[Any]] = [
    [],
    [T.RandomAxisFlip(axes=(-1, -2))],
    [T.Normalize(0.5, 2.0)],
    [T.CenterSpatialCrop((4, 5)), T.ToFloat("bfloat16")],
]


@pytest.fixture(scope="module", params=[*CONTAINERS, "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """Several shards in a container."""
    return packed(tmp_path_factory.mktemp("d") / "d", ROWS, FIELDS, container=request.param, shard_samples=7)


def batches(data: Any, **options: Any) -> list[dict[str, Any]]:
    """One epoch, with copies of all tensors."""
    loader = shardio.Loader(data, batch_size=8, seed=3, tail="pad", threads=2, **options)
    return [{n: v.clone() if torch.is_tensor(v) else v for n, v in batch.items()} for batch in loader]


@pytest.mark.filterwarnings("ignore::shardio.PairingWarning")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    crop=st.sampled_from(CROPS),
    after=st.sampled_from(AFTER),
    windows=st.booleans(),
    shared=st.booleans(),
)
def test_batches_are_those_of_whole_samples(
    dataset: shardio.Dataset, crop: Any, after: list[Any], windows: bool, shared: bool
) -> None:
    """With any crop and any transforms behind it, blocks give what `verify=True` cuts out of whole samples."""
    data: Any = dataset.windows(3, within="dataset") if windows else dataset
    fields = {"x": "x", "again": "x", "mask": "mask"} if shared else ["x", "mask", "maybe"]
    names = ["x", "again"] if shared else ["x"]
    transforms = {name: [crop, *after] for name in names} | {"mask": [T.RandomSpatialCrop((8, 16))]}
    found = batches(data, fields=fields, transforms=transforms)
    expected = batches(data, fields=fields, transforms=transforms, verify=True)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name in one:
            assert torch.equal(one[name], other[name]), name


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (1, 1, 10, 12), "compression": "gzip"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_that_are_asked_for(layout: str, tmp_path: Path) -> None:
    """Readers ask for the runs or the chunks that the crops touch, and little else; values are those of h5py."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", data=np.stack([row["x"] for row in ROWS]), **LAYOUTS[layout])
        sizes = {}
        if made.chunks:
            made.id.chunk_iter(lambda info: sizes.update({info.chunk_offset: info.size}))
        values = made[...]
    shardio.index(tmp_path / "x.h5", tmp_path / "d", tell=lambda note: None)
    CHUNKS.reset_in_child()
    before, touched = REQUESTED.total, dict[int, int]()  # by sample: padding repeats some
    found = batches(shardio.open(tmp_path / "d"), transforms={"x": [T.CenterSpatialCrop((10, 20))]})
    asked = REQUESTED.total - before
    for batch in found:
        for number, crop in zip(batch["index"].tolist(), batch["x"].numpy(), strict=True):
            np.testing.assert_array_equal(crop, values[number, :, 15:25, 14:34])
            cells = ((number, channel, y, x) for channel in range(2) for y in (10, 20) for x in (12, 24))
            touched[number] = sum(sizes[cell] for cell in cells) if sizes else crop.nbytes
    assert asked <= 1.1 * sum(touched.values())
    assert len(touched) == len(ROWS)
