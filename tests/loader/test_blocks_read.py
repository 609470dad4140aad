"""A crop is read, not cut: batches are those of whole samples, and few bytes are asked for."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr
from _datasets import CONTAINERS, packed
from _device import device as device
from _jobs import same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardio
from shardio import transforms as T
from shardio.containers.chunk_cache import CHUNKS
from shardio.containers.requested import REQUESTED

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
    T.RandomRow(),
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
    loader = shardio.Loader(data, batch_size=8, **{"seed": 3, "tail": "pad", "threads": 2} | options)
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
        assert same(one, other)


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (1, 1, 10, 12), "compression": "gzip"},
}
STORES: dict[str, dict[str, Any]] = {
    "chunks of Zarr": {"chunks": (1, 1, 10, 12)},
    "shards of Zarr": {"chunks": (1, 1, 10, 12), "shards": (5, 2, 40, 48)},
}


def stored_chunks(path: Path, options: dict[str, Any]) -> dict[tuple[int, ...], int]:
    """Write `ROWS` to an HDF5 file or a Zarr store; return the bytes of each chunk by where it begins; {} for none."""
    values, sizes = np.stack([row["x"] for row in ROWS]), dict[tuple[int, ...], int]()
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            made = file.create_dataset("x", data=values, **options)
            if made.chunks:
                made.id.chunk_iter(lambda info: sizes.update({info.chunk_offset: info.size}))
        return sizes
    alone = path.with_name("alone.zarr")  # each chunk in a file of its own
    for store, how in ((path, options), (alone, {**options, "shards": None})):
        zarr.open_group(store, mode="w").create_array("x", data=values, **how)
    for cell in np.ndindex(30, 2, 4, 4):
        begin = tuple(np.multiply(cell, (1, 1, 10, 12)).tolist())
        sizes[begin] = (alone / "x" / "c" / "/".join(map(str, cell))).stat().st_size
    return sizes


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("layout", [*LAYOUTS, *STORES])
def test_bytes_that_are_asked_for(layout: str, tmp_path: Path) -> None:
    """Readers ask for the runs or the chunks that the crops touch, and little else; values are those of the file."""
    options = (LAYOUTS | STORES)[layout]
    path = tmp_path / ("x.h5" if layout in LAYOUTS else "x.zarr")
    sizes = stored_chunks(path, options)
    indexes = 6 * (16 * 5 * 2 * 4 * 4 + 4) if "shards" in options else 0  # of shards, each read once
    shardio.index(path, tmp_path / "d", tell=lambda note: None)
    CHUNKS.reset_in_child()
    before, touched = REQUESTED.total, dict[int, int]()  # by sample: padding repeats some
    found = batches(shardio.open(tmp_path / "d"), transforms={"x": [T.CenterSpatialCrop((10, 20))]})
    asked = REQUESTED.total - before
    for batch in found:
        for number, crop in zip(batch["index"].tolist(), batch["x"].numpy(), strict=True):
            np.testing.assert_array_equal(crop, ROWS[number]["x"][:, 15:25, 14:34])
            cells = ((number, channel, y, x) for channel in range(2) for y in (10, 20) for x in (12, 24))
            touched[number] = sum(sizes[cell] for cell in cells) if sizes else crop.nbytes
    assert 0.9 * sum(touched.values()) <= asked <= 1.1 * (sum(touched.values()) + indexes)
    assert len(touched) == len(ROWS)


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_of_windows_and_of_several_names(layout: str, tmp_path: Path) -> None:
    """Windows of arrays of one shape are read as crops are, and so is each name's crop of a field with several."""
    values = np.stack([row["x"] for row in ROWS[:8]])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", data=values, **LAYOUTS[layout])
        whole = made.id.get_storage_size()
    shardio.index(tmp_path / "x.h5", tmp_path / "d", tell=lambda note: None)
    transforms: dict[str, Any] = {
        "one": [T.RandomWindow(1, offset=True)],
        "two": [T.CenterSpatialCrop((10, 12), offset=True), T.ToFloat("float16")],
    }
    for names, most in ((["one"], 0.55), (["two"], 0.3), (["one", "two"], 0.8)):
        CHUNKS.reset_in_child()
        before = REQUESTED.total
        (batch,) = batches(
            shardio.open(tmp_path / "d"),
            fields=dict.fromkeys(names, "x"),
            transforms={name: transforms[name] for name in names},
        )
        assert REQUESTED.total - before <= most * whole
        for row, number in enumerate(batch["index"].tolist()):
            if "one" in names:
                (z,) = batch["one_offset"][row].tolist()
                np.testing.assert_array_equal(batch["one"][row], values[number, z : z + 1])
            if "two" in names:
                np.testing.assert_array_equal(batch["two"][row], values[number, :, 15:25, 18:30].astype(np.float16))


@pytest.mark.parametrize("verify", [False, True])
def test_stored_bytes_are_those_that_are_read(verify: bool) -> None:
    """A loader counts the bytes of crops and windows, of each name; with `verify=True` those of whole samples."""
    data = shardio.from_samples(ROWS, FIELDS)
    transforms: dict[str, Any] = {
        "x": [T.RandomWindow(1), T.CenterSpatialCrop(3)],
        "again": [T.RandomSpatialCrop((8, 16)), T.ToFloat()],
    }
    loader = shardio.Loader(
        data, 10, fields={"x": "x", "again": "x", "mask": "mask"}, transforms=transforms, verify=verify
    )
    assert len(list(loader)) == 3
    crops = 40 * 48 * 4 + 2 * 8 * 16 * 4
    assert loader.stats().bytes == 30 * ((2 * 40 * 48 * 4 if verify else crops) + 40 * 48)


def offsets_of(data: Any, transforms: dict[str, Any], **options: Any) -> dict[str, dict[int, Any]]:
    """By column, then sample, the values of one epoch: tensors."""
    found: dict[str, dict[int, Any]] = {}
    for batch in batches(data, transforms=transforms, **options):
        for name in batch:
            found.setdefault(name, {}).update(zip(batch["index"].tolist(), batch[name], strict=True))
    return found


HOW: list[dict[str, Any]] = [
    {},
    {"verify": True},
    {"isolate": True, "threads": 1},
    {"map": dict},
    {"map": dict, "map_by": "sample"},
    {"device": "there"},
]


@pytest.mark.filterwarnings("ignore::shardio.PairingWarning")
@pytest.mark.parametrize("how", HOW)
def test_a_batch_tells_where_crops_begin(how: dict[str, Any], device: str) -> None:
    """`NAME_offset` is where the stored value holds the crop, whoever makes the batch; 0 of values that lack."""
    data = shardio.from_samples(ROWS, FIELDS)
    transforms: dict[str, Any] = {
        "x": [T.CenterSpatialCrop((30, 40)), T.RandomSpatialCrop(16, offset=True), T.RandomSpatialCrop((8, 8))],
        "again": [T.RandomSpatialCrop((8, 16), offset=True), T.ToFloat()],
        "mask": [T.RandomWindow(5, offset=True), T.RandomAxisFlip()],
        "maybe": [T.CenterSpatialCrop((4, 7), offset=True)],
    }
    fields = {"x": "x", "again": "x", "mask": "mask", "maybe": "maybe"}
    where = how | ({"device": device} if "device" in how else {})
    found = offsets_of(data, transforms, fields=fields, **where)
    apart, begins = shardio.TorchDataset(data, fields=fields, transforms=transforms, seed=3), set()
    for n, row in enumerate(ROWS):
        y, x = found["again_offset"][n].tolist()
        np.testing.assert_array_equal(found["again"][n].cpu(), row["x"][:, y : y + 8, x : x + 16])
        begins.add((y, x))
        (z,) = found["mask_offset"][n].tolist()
        window = row["mask"][z : z + 5]
        assert any(np.array_equal(found["mask"][n].cpu(), each) for each in (window, window[:, ::-1]))
        y, x = found["x_offset"][n].tolist()
        assert (5, 4) <= (y, x) <= (5 + 30 - 16, 4 + 40 - 16)
        corner = found["x"][n][:, 0, 0].cpu()
        around = row["x"][:, y : y + 9, x : x + 9]
        assert (around == corner.numpy()[:, None, None]).all(axis=0).any()
        assert found["maybe_offset"][n].tolist() == ([0, 0] if row["maybe"] is None else [8, 11])
        for name in ("x_offset", "again_offset", "mask_offset", "maybe_offset"):
            assert found[name][n].dtype == torch.int64
            assert torch.equal(found[name][n].cpu(), apart[n][name])
    assert len(begins) > 10


def test_crops_of_several_shapes_tell_where_they_begin() -> None:
    """Arrays of several shapes and lengths have offsets too, with PadTo 0 of short ones; masked samples have 0."""
    kinds: Any = {"a": ("int64", (None, None)), "r": shardio.Field("array", "int64", (None,), optional=True)}
    shapes = [(5, 9), (3, 4), (8, 3), (2, 9)]  # the last one is too small
    samples = [{"a": np.arange(np.prod(s)).reshape(s), "r": np.arange(20 * n)} for n, s in enumerate(shapes)]
    samples[2].pop("r")
    rules = {
        "a": [T.RandomSpatialCrop((3, 3), offset=True)],
        "r": [T.RandomWindow(9, offset=True), T.PadTo()],
    }
    options: Any = {"on_bad_sample": "mask", "max_bad": 1}
    found = offsets_of(shardio.from_samples(samples, kinds), rules, **options)
    for n, sample in enumerate(samples[:3]):
        y, x = found["a_offset"][n].tolist()
        np.testing.assert_array_equal(found["a"][n], sample["a"][y : y + 3, x : x + 3])
    assert found["a_offset"][3].tolist() == [0, 0]
    assert found["r_offset"][0].tolist() == found["r_offset"][2].tolist() == found["r_offset"][3].tolist() == [0]
    assert found["r"][1].tolist() == [*range(found["r_offset"][1].item(), found["r_offset"][1].item() + 9)]


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([T.RandomSpatialCrop(9, offset=True), T.CenterSpatialCrop(8, offset=True)], "a field has one offset"),
        ([T.RandomAxisFlip(), T.RandomSpatialCrop(9, offset=True)], "must come before RandomAxisFlip"),
        ([T.RandomRotate90(), T.RandomWindow(1, offset=True)], "must come before RandomRotate90"),
    ],
)
def test_offsets_that_would_mean_nothing_are_refused(transforms: list[Any], message: str) -> None:
    """One offset of a field, told in its stored values."""
    data = shardio.from_samples([{"x": np.zeros((2, 20, 20))}])
    with pytest.raises(shardio.ConfigError, match=message):
        shardio.Loader(data, 1, transforms={"x": transforms})


def test_columns_of_one_name_are_refused() -> None:
    """A field that has the name of the column is delivered under another name."""
    data = shardio.from_samples([{"x": np.zeros((2, 20, 20)), "x_offset": 1}])
    crop = {"x": [T.CenterSpatialCrop(9, offset=True)]}
    with pytest.raises(shardio.ConfigError, match="offset=True adds the column 'x_offset'"):
        shardio.Loader(data, 1, transforms=crop)
    names = {"x": "x", "other": "x_offset"}
    assert next(iter(shardio.Loader(data, 1, fields=names, transforms=crop)))["x_offset"].tolist() == [[5, 5]]
