"""Whole numbers in the dtype that torch computes with: ToInt64, and what a Loader says of tokens in uint16."""

import warnings
from functools import partial
from typing import Any

import _datasets
import numpy as np
import pytest
import torch
from _builders import jpeg

import shardio
from shardio import World
from shardio.errors import BadSample, ConfigError

TO_INT64 = [shardio.ToInt64()]
FIELDS: Any = {
    "row": ("uint16", (5,)),
    "ragged": {"kind": "array", "dtype": "uint32"},
    "id": "uint16",
    "scan": ("uint16", (3, 4)),
    "mask": ("uint8", (2, 4, 4)),
}


def samples(count: int = 12) -> shardio.Dataset:
    """Rows of one length and of several, numbers, and arrays of two and three axes."""
    rows = [
        {
            "row": np.arange(5, dtype=np.uint16) + 65000 + n,
            "ragged": np.full(n % 4, 2**32 - 1 - n, np.uint32),
            "id": 65535 - n,
            "scan": np.full((3, 4), n, np.uint16),
            "mask": np.arange(32, dtype=np.uint8).reshape(2, 4, 4) + n,
        }
        for n in range(count)
    ]
    return shardio.from_samples(rows, FIELDS, shard_samples=5)


load = partial(_datasets.load, batch_size=4, seed=3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"verify": True},
        {"on_bad_sample": "mask"},
        pytest.param({"isolate": True, "threads": 1}, marks=pytest.mark.slow),
    ],
)
def test_whole_numbers_become_int64(options: dict[str, Any]) -> None:
    """Rows, rows of several lengths, numbers and arrays that are cropped keep their values, as int64."""
    data = samples()
    transforms = {
        **dict.fromkeys(("row", "ragged", "id", "scan"), TO_INT64),
        "mask": [shardio.CenterSpatialCrop((2, 2)), *TO_INT64],
    }
    for batch in load(data, transforms=transforms, **options):
        indices = batch["index"].tolist()
        stored = data.read(indices)
        for name in ("row", "id", "scan"):
            assert batch[name].dtype == torch.int64
            assert batch[name].tolist() == stored[name].tolist()
        assert batch["mask"].dtype == torch.int64
        assert batch["mask"].tolist() == stored["mask"][:, :, 1:3, 1:3].tolist()
        assert [value.dtype for value in batch["ragged"]] == [torch.int64] * 4
        assert [value.tolist() for value in batch["ragged"]] == [value.tolist() for value in stored["ragged"]]
        torch.nn.Embedding(70000, 2)(batch["row"])


def test_a_device_converts_arrays_and_the_host_numbers() -> None:
    """With a device every field is int64 there, also labels. (torch's `meta` device has shapes only.)"""
    for batch in load(samples(), transforms=dict.fromkeys(FIELDS, TO_INT64), device="meta"):
        for values in (batch["row"], batch["id"], *batch["ragged"]):
            assert (values.device.type, values.dtype) == ("meta", torch.int64)


def test_a_list_and_a_torch_dataset() -> None:
    """A list is for the one array field, whose shapes may differ; a TorchDataset delivers the same dtypes."""
    data = samples()
    (batch, *_) = load(data, transforms=TO_INT64, fields=["ragged", "id"])
    assert batch["ragged"][0].dtype == torch.int64
    sample = shardio.TorchDataset(data, transforms=dict.fromkeys(("row", "ragged", "id"), TO_INT64))[3]
    assert [sample["row"].dtype, sample["ragged"].dtype, sample["id"].dtype] == [torch.int64, torch.int64, np.int64]


@pytest.mark.parametrize(
    ("fields", "transforms", "message"),
    [
        ({"x": ("float32", (3,))}, TO_INT64, "for 'x': transform 0: ToInt64 takes integers, got float32"),
        ({"x": {"kind": "array", "dtype": "bool"}}, TO_INT64, "ToInt64 takes integers, got bool"),
        ({"x": ("uint16", (3,))}, [shardio.ToFloat(), *TO_INT64], "transform 1: ToInt64 takes .*, got floats"),
        ({"x": ("uint16", (3,))}, [*TO_INT64, shardio.ToFloat()], "transform 1: ToFloat must come before ToInt64"),
        ({"x": "int32"}, [shardio.ToFloat()], "transforms for 'x', .* scalars take only ToInt64"),
        ({"x": "image"}, TO_INT64, "must be a shardio image transform, got ToInt64"),
        ({"x": "text"}, TO_INT64, "transforms for 'x', but the image fields"),
    ],
)
def test_other_values_refuse_it(fields: Any, transforms: Any, message: str) -> None:
    """Floats, booleans, images and texts are not cast, and nothing follows the cast."""
    values = {"image": jpeg(8, 8), "text": "a", "int32": 1}
    kind = fields["x"]
    value = values[kind] if isinstance(kind, str) else np.zeros(3, kind["dtype"] if isinstance(kind, dict) else kind[0])
    with pytest.raises(ConfigError, match=message):
        load(shardio.from_samples([{"x": value}] * 4, fields), transforms={"x": transforms})


@pytest.mark.parametrize("field", ["row", "ragged", "id"])
def test_what_int64_cannot_hold_is_a_bad_sample(field: str) -> None:
    """A uint64 from 2^63 on names its sample, and is replaced as other bad samples are."""
    fields: Any = {"row": ("uint64", (2,)), "ragged": {"kind": "array", "dtype": "uint64"}, "id": "uint64"}
    rows: list[dict[str, Any]] = [
        {"row": np.zeros(2, np.uint64), "ragged": np.zeros(n, np.uint64), "id": 2**63 - 1} for n in range(8)
    ]
    rows[5][field] = 2**63 if field == "id" else np.array([1, 2**63], np.uint64)
    data = shardio.from_samples(rows, fields)
    transforms = dict.fromkeys(fields, TO_INT64)
    message = rf"sample 5\b.*field '{field}': int64 cannot hold .* 9223372036854775808"
    with pytest.raises(BadSample, match=message):
        list(load(data, transforms=transforms))
    loader = load(data, transforms=transforms, on_bad_sample="mask", max_bad=1)
    batches = list(loader)
    assert [value.dtype for batch in batches for value in batch["ragged"]] == [torch.int64] * 8
    assert [bad.location.index for bad in loader.quarantine()] == [5]


def test_tokens_in_uint16_say_so_once() -> None:
    """A Loader's first batch warns of rows of uint16 and uint32, of one length or several, and names what to do."""
    loader = load(samples())
    with pytest.warns(UserWarning, match="ToInt64") as told:
        list(loader)
    assert [str(warning.message).split(" holds")[0] for warning in told] == ["field 'row'", "field 'ragged'"]
    assert "transforms={'row': [shardio.ToInt64()]} delivers int64" in str(told[0].message)
    assert [warning.filename for warning in told] == [__file__] * 2
    list(loader)  # warnings are errors here


def test_images_of_16_bits_say_nothing() -> None:
    """Nobody is told who casts the field, changes it in map, stores planes or numbers, or is no node's first rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(load(samples(), fields=["scan", "id", "mask"]))
        list(load(samples(), transforms={"row": TO_INT64, "ragged": TO_INT64}))
        list(load(samples(), fields=["row"], map=lambda batch: {"row": batch["row"].long()}))
        list(load(samples(), world=World(1, 2, 1, 2)))
