"""Counts of numbers in bounded memory: exact for few different values, approximate beyond, and without overflow."""

import math
import struct
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from _builders import png
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardio
from shardio.care.stats import counting
from shardio.care.stats.counting import BINS, ValueCounts, combine, spread_of, values_of
from shardio.care.stats.figures import Spread, Values


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(-(2**53), 2**53) | st.integers(0, 9), max_size=30), min_size=1, max_size=5),
    growing=st.booleans(),
)
def test_counts_of_whole_numbers_are_exact(parts: list[list[int]], growing: bool) -> None:
    """Counts of integers equal NumPy's figures, in however many parts the numbers come."""
    counted = ValueCounts(np.int64)
    for part in parts:
        counted.add(np.array(part, np.int64))
    values = np.array([value for part in parts for value in part], np.int64)
    spread = counted.spread(growing=growing)
    if not len(values):
        assert spread is None
        return
    assert counted.exact
    check_loosely(spread, values)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=50), st.booleans())
@example([sys.float_info.max, -sys.float_info.max], False)
def test_counts_of_floats_are_exact(values: list[float], growing: bool) -> None:
    """Counts of floats are exact, without overflow for the largest and smallest floats."""
    counted = ValueCounts(np.float64)
    counted.add(np.array(values))
    check_loosely(counted.spread(growing=growing), np.array(values))


def check_loosely(spread: Spread | None, values: Any) -> None:
    """Like `check`, but with a tolerance for rounded sums, and where NumPy itself overflows."""
    assert (spread.count, spread.min, spread.max) == (len(values), values.min(), values.max())
    scale = float(np.abs(values).max()) or 1.0
    floats = values / scale
    assert spread.mean / scale == pytest.approx(floats.mean(), abs=1e-12)
    assert spread.std / scale == pytest.approx(floats.std(), abs=1e-7)
    assert spread.median / scale == pytest.approx(np.median(floats), abs=1e-12)
    edges, counts = np.array(spread.histogram.edges), spread.histogram.counts
    assert sum(counts) == len(values)
    assert 1 <= len(counts) <= BINS
    assert len(edges) == len(counts) + 1
    assert len(counts) == 1 or (edges[1:] > edges[:-1]).all()
    assert edges[0] <= values.min()
    assert edges[-1] >= values.max()


DRAWS: dict[str, Callable[[np.random.Generator], Any]] = {
    "sizes": lambda random: random.lognormal(11, 1, 20_000).astype(np.int64),
    "times": lambda random: 1.7e9 + random.normal(0, 1000, 20_000),
    "hashes": lambda random: random.integers(-(2**63), 2**63, 20_000),
    "normal": lambda random: random.normal(0, 1, 20_000),
}


@pytest.mark.parametrize("name", DRAWS)
def test_counts_of_very_many_numbers_are_bounded_and_near(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit values are rounded: memory stays bounded and the figures close."""
    monkeypatch.setattr(counting, "MOST_DIFFERENT", 1000)
    values = DRAWS[name](np.random.default_rng(0))
    counted = ValueCounts(values.dtype.type)
    for part in np.array_split(values, 10):
        counted.add(part)
        assert len(counted.values) <= 1000
    assert not counted.exact
    spread = counted.spread()
    assert (spread.count, spread.min, spread.max) == (20_000, values.min(), values.max())
    deviation = float(values.std())
    assert spread.mean == pytest.approx(float(values.mean()), abs=deviation / 100)
    assert spread.std == pytest.approx(deviation, rel=0.01)
    for told, share in ((spread.median, 50), (spread.p95, 95)):
        assert (values <= told).mean() * 100 == pytest.approx(share, abs=1)


def test_sizes_of_very_many_images_are_bounded_and_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heights and widths of very many images are rounded separately."""
    monkeypatch.setattr(counting, "MOST_DIFFERENT", 500)
    monkeypatch.setattr("shardio.care.stats._COUNTED_SAMPLES", 1000)
    sides = np.random.default_rng(0).integers(100, 1000, (5000, 2))
    blank = png(1, 1)
    # The index takes the size from a PNG's header; no image is decoded.
    samples = [{"image": blank[:16] + struct.pack(">II", w, h) + blank[24:]} for h, w in sides.tolist()]
    images = shardio.stats(shardio.from_samples(samples, {"image": "image"}), sample=0).fields["image"].images
    assert images.sizes <= 500
    assert images.heights.median == pytest.approx(np.median(sides[:, 0]), rel=0.1)
    assert images.widths.mean == pytest.approx(sides[:, 1].mean(), rel=0.02)


def test_bins_grow_where_numbers_lie_far_apart() -> None:
    """Bins are linear for numbers of one magnitude, and geometric for others if the caller allows it."""
    ones = np.ones(3, np.int64)
    near, far = np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 1000.0])
    for values, growing, ratio in ((near, True, False), (far, False, False), (far, True, True)):
        spread = spread_of(values, ones, growing=growing)
        edges = np.array(spread.histogram.edges)
        steps = edges[1:] / edges[:-1] if ratio else np.diff(edges)
        assert np.allclose(steps, steps[0])
    spread = spread_of(np.array([5, 7]), ones[:2])
    assert (spread.histogram.edges, spread.histogram.counts) == ((5, 6, 7, 8), (1, 0, 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(-math.inf), max_size=20), max_size=5))
def test_values_of_parts_are_those_of_all(parts: list[list[float]]) -> None:
    """Merged figures equal NumPy's figures for all numbers together."""
    arrays = [np.array(part, np.float64) for part in parts]
    found = reduce(combine, map(values_of, arrays), Values())
    values = np.concatenate([np.empty(0), *arrays])
    finite = values[np.isfinite(values)]
    assert (found.count, found.nan, found.inf) == (len(finite), np.isnan(values).sum(), np.isinf(values).sum())
    if not len(finite):
        assert found.mean is None
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.mean(), abs=1e-6)
    assert found.std == pytest.approx(finite.std(), abs=1e-3)


def test_values_that_overflow_have_no_mean_or_deviation() -> None:
    """A sum or square beyond float64 is left out; the other figures stay."""
    far = combine(values_of(np.array([1e200, 1e200])), values_of(np.array([-1e200])))
    assert (far.count, far.min, far.max, far.std) == (3, -1e200, 1e200, None)
    assert far.mean == pytest.approx(1e200 / 3)
    further = combine(values_of(np.array([1.7e308])), values_of(np.array([-1.7e308])))
    assert (further.count, further.mean, further.std) == (2, None, None)
