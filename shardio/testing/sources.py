"""The contract of a converter: what its source gives, converted to every container and read back."""

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .. import containers
from ..care.verify import verify
from ..conversion import convert
from ..conversion.source import HasColumns, Source
from ..dataset import dataset
from ..format.fields import as_fields
from ..system.types import Sample


def check_source(source: Source, expected: Sequence[Sample], folder: Path, **fields: Mapping[str, Any]) -> None:
    """Asserts that `source` gives the samples `expected`, and that each container gives them back.

    Args:
        source: what a converter returned.
        expected: its samples, in order.
        folder: where datasets may be written; it must be empty.
        fields: what some of its fields must be, as `shardio.create` takes them.
    """
    assert len(expected)
    for name, field in as_fields(fields).items() if fields else ():
        assert source.fields[name] == field
    assert json.loads(json.dumps(source.metadata)) == dict(source.metadata)
    assert "source" in source.metadata
    sizes = source.sizes()
    assert sizes.dtype == np.int64
    assert sizes.shape == (len(expected),)
    assert sizes.min() >= 0
    for number, sample in enumerate(expected):
        check_sample(source[number], sample)
    for outside in (-1, len(expected)):
        with pytest.raises(IndexError):
            source[outside]
    _check_columns(source, expected)
    copy: Source = pickle.loads(pickle.dumps(source))  # noqa: S301
    order = np.random.default_rng(0).permutation(len(expected))
    for number in order.tolist():  # a worker may be asked in any order
        check_sample(copy[number], expected[number])
    digests = set()
    for container in containers.names():
        convert(source, folder / container, container=container, shard_size=max(1, int(sizes.sum()) // 3))
        made = dataset.open(folder / container)
        for number, sample in enumerate(expected):
            check_sample(made[number], sample)
        assert len(made) == len(expected)
        assert verify(made, deep=True).problems == ()
        digests.add(made.digest)
    assert len(digests) == 1


def check_sample(found: Sample, expected: Sample) -> None:
    """Asserts that two samples are equal: names, values, dtypes and shapes of arrays."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found[name], value, strict=False)
            assert found[name].shape == value.shape
        else:
            assert found[name] == value, name


def _check_columns(source: Source, expected: Sequence[Sample]) -> None:
    if isinstance(source, HasColumns):
        assert source.column("there is no such field") is None
        for name in source.fields:
            if (column := source.column(name)) is not None:
                assert source.fields[name].kind == "scalar"
                np.testing.assert_array_equal(column, [sample[name] for sample in expected])
