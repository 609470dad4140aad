"""Labels of any length as one row per sample."""

from typing import Any

import numpy as np
import pytest
import torch

import shardio
from shardio import Field, Loader, MultiHot, World
from shardio.errors import BadSample, ConfigError

LABELS = [[0, 3], [], [1], [2, 2, 0], [3, 1]]
EXPECTED = [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]


def dataset(labels: Any = LABELS, dtype: str = "int64", **others: Any) -> shardio.Dataset:
    samples = [{"labels": None if one is None else np.array(one, dtype)} for one in labels]
    return shardio.from_samples(samples, {"labels": Field("array", dtype, (None,), **others)}, shard_samples=2)


def delivered(data: shardio.Dataset, *transforms: Any, **options: Any) -> torch.Tensor:
    (batch,) = Loader(data, len(data), shuffle=None, world=World(), transforms={"labels": transforms}, **options)
    found: torch.Tensor = batch["labels"]
    return found


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_each_label_is_one(dtype: str) -> None:
    """A row has 1 for each label of its sample, in the stored dtype, and in floats with ToFloat."""
    data = dataset(dtype=dtype)
    found = delivered(data, MultiHot(4))
    assert found.tolist() == EXPECTED
    assert found.dtype == getattr(torch, dtype)
    floats = delivered(data, MultiHot(4), shardio.ToFloat())
    assert floats.dtype == torch.float32
    assert floats.tolist() == EXPECTED


@pytest.mark.parametrize("options", [{"isolate": True, "threads": 1}, {"to": "numpy"}, {"map": dict}], ids=str)
def test_every_way_of_loading_gives_the_same(options: dict[str, Any]) -> None:
    """Processes, arrays and map functions get the same rows."""
    assert delivered(dataset(), MultiHot(4), **options).tolist() == EXPECTED


def test_missing_values_have_no_labels() -> None:
    """A sample that lacks the field has a row of zeros."""
    assert delivered(dataset([[1], None], optional=True), MultiHot(2)).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("label", [4, -1])
def test_other_labels_are_bad_samples(label: int) -> None:
    """A label that is no class is named, and may be masked."""
    data = dataset([[1], [0, label]])
    with pytest.raises(BadSample, match=rf"sample 1.*label {label} is not in \[0, 4\), as MultiHot takes"):
        delivered(data, MultiHot(4))
    masked = delivered(data, MultiHot(4), on_bad_sample="mask", max_bad=1)
    assert masked.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("field", "transforms", "told"),
    [
        (("float32", (None,)), [MultiHot(4)], "MultiHot takes integers of one axis of any length, got float32"),
        (("int64", (3,)), [MultiHot(4)], "MultiHot takes integers of one axis of any length, got int64"),
        (("int64", (None, 2)), [MultiHot(4)], "MultiHot takes integers of one axis of any length"),
        (("int64", (None,)), [MultiHot(4), shardio.PadTo()], "PadTo takes arrays whose first axis"),
    ],
)
def test_other_fields_are_refused(field: Any, transforms: Any, told: str) -> None:
    """MultiHot takes ragged integers, and makes what needs no padding."""
    value = np.zeros([2 if size is None else size for size in field[1]], field[0])
    data = shardio.from_samples([{"labels": value}], {"labels": field})
    with pytest.raises(ConfigError, match=told):
        Loader(data, 1, transforms={"labels": transforms})
    with pytest.raises(ConfigError, match="num_classes must be"):
        MultiHot(0)
