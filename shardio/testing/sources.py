"""The contract of a converter: its source gives the expected samples, in every container that they are converted to."""

import difflib
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .. import containers
from ..care.verify import verify
from ..conversion.api import convert
from ..conversion.source import DESCRIBING, YIELDING, Source, as_source
from ..dataset import dataset
from ..format.fields import as_fields
from ..system.types import Sample


def check_source(given: Any, expected: Sequence[Sample], folder: Path, **fields: Mapping[str, Any]) -> None:
    """Assert that a source gives the samples `expected`, and that every container stores them unchanged.

    Args:
        given: the source that a converter returned.
        expected: its samples, in order.
        folder: an empty directory; this function writes datasets into it.
        fields: the definitions that some of its fields must have, as `shardio.create` takes them.
    """
    assert len(expected)
    _check_members(given)
    source = as_source(given)
    assert source is not None
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
    for number in order.tolist():  # a worker may need them in any order
        check_sample(copy[number], expected[number])
    digests = set()
    for container in containers.names():
        shard_size = max(1, int(sizes.sum()) // 3)
        convert(source, folder / container, container=container, shard_size=shard_size, tell=lambda note: None)
        converted = dataset.open(folder / container)
        for number, sample in enumerate(expected):
            check_sample(converted[number], sample)
        assert len(converted) == len(expected)
        assert verify(converted, deep=True).problems == ()
        digests.add(converted.digest)
    assert len(digests) == 1


def check_sample(found: Sample, expected: Sample) -> None:
    """Assert that two samples are equal: names, values, dtypes and shapes of arrays."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found[name], value, strict=False)
            assert found[name].shape == value.shape
        else:
            assert found[name] == value, name


def _check_columns(source: Source, expected: Sequence[Sample]) -> None:
    assert source.column("there is no such field") is None
    for name in source.fields:
        if (column := source.column(name)) is not None:
            assert source.fields[name].kind in ("scalar", "text")
            np.testing.assert_array_equal(column, [sample[name] for sample in expected])


def _check_members(source: Any) -> None:
    """Assert that no member of a source is called almost as one of `Source` of which it has only the default."""
    known = {name: getattr(Source, name, None) for name in (*DESCRIBING, *YIELDING)}
    default = [name for name, value in known.items() if getattr(type(source), name, value) is value]
    for name in dir(source):
        if not name.startswith("_") and name not in known:
            near = difflib.get_close_matches(name, default, 1, 0.85)
            assert not near, f"{type(source).__name__} has {name!r}, which no source has: is {near[0]!r} meant?"
