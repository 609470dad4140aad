"""Weighted and class-balanced views: counts are exact in every epoch, and unbiased over many."""

import math
import pickle
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

import shardio
from shardio.errors import ConfigError
from shardio.views.weighing import interval_ends


def data_of(labels: list[int], weights: list[float] | None = None) -> shardio.Dataset:
    """A dataset in memory with these labels, and weights in the field `w`."""
    weighed = zip(labels, [1.0] * len(labels) if weights is None else weights, strict=True)
    return shardio.from_samples(
        [{"label": label, "w": weight, "number": n} for n, (label, weight) in enumerate(weighed)]
    )


def epoch_of(view: Any, epoch: int, **options: Any) -> list[int]:
    """The numbers of an epoch's samples, in order."""
    order = view.plan(options.get("seed", 3), options.get("shuffle", "global"), 4, 3).at_epoch(epoch)
    return order.lookup(np.arange(len(view)))[0].tolist()


weights_of = st.one_of(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=60),
    st.integers(1, 60).map(lambda count: [0.1] * count),
)


@given(weights_of, st.integers(1, 200), st.integers(0, 5), st.sampled_from(["global", "block", None]))
def test_counts_are_exact_in_every_epoch(weights: list[float], samples: int, epoch: int, shuffle: Any) -> None:
    """Each sample comes the floor or the ceiling of its expected count, one of weight 0 never."""
    assume(sum(weights) > 0)
    view = data_of([0] * len(weights)).weighted(weights, samples)
    counts, total = Counter(epoch_of(view, epoch, shuffle=shuffle)), sum(map(Fraction, weights))
    assert counts.total() == samples
    for number, weight in enumerate(weights):
        expected = Fraction(weight) * samples / total
        near = round(expected)
        low, high = math.floor(expected), math.ceil(expected)
        if abs(expected - near) < 1e-9 * max(1, near):  # no float tells such a count from the integer
            low, high = min(low, near), max(high, near)
        assert low <= counts[number] <= high


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 200), st.integers(0, 5))
def test_classes_are_balanced_in_every_epoch(labels: list[int], samples: int, epoch: int) -> None:
    """Each class comes the floor or the ceiling of its share, and within it so does each sample."""
    drawn = epoch_of(data_of(labels).balanced("label", samples), epoch)
    classes, counts = Counter(labels[number] for number in drawn), Counter(drawn)
    for label in set(labels):
        assert abs(classes[label] - Fraction(samples, len(set(labels)))) < 1
    for number, label in enumerate(labels):
        assert abs(counts[number] - Fraction(samples, len(set(labels)) * labels.count(label))) < 1


def test_a_class_of_one_in_a_thousand() -> None:
    """With one sample of a class beside a thousand of another, each class makes up half of an epoch."""
    view = data_of([0] * 1000 + [1]).balanced("label")
    counts = Counter(epoch_of(view, 0))
    assert counts[1000] in (500, 501)
    assert max(counts[number] for number in range(1000)) == 1


@pytest.mark.parametrize("replacement", [False, True])
def test_the_mean_count_is_the_expected_one(replacement: bool) -> None:
    """Over 1,000 epochs the mean count of each sample is within four standard errors of its expected count."""
    weights = np.array([0, 0.3, 1, 1, 2.5, 7, 0.01, 4.2])
    view, epochs = data_of([0] * 8).weighted(weights, 20, replacement=replacement), 1000
    counts = np.array([np.bincount(epoch_of(view, epoch), minlength=8) for epoch in range(epochs)])
    expected = 20 * weights / weights.sum()
    spread = expected * (1 - weights / weights.sum()) if replacement else (expected % 1) * (1 - expected % 1)
    errors = np.sqrt(spread / epochs)
    assert (np.abs(counts.mean(axis=0) - expected) <= 4 * errors + 1e-6).all()
    assert (counts[:, 0] == 0).all()


def test_every_position_is_as_likely() -> None:
    """A chi-square test: where in an epoch a sample comes is uniform."""
    view, epochs = data_of([0] * 10).weighted(np.arange(1, 11), 10), 2000
    places = np.array([epoch_of(view, epoch) for epoch in range(epochs)])
    found = np.array([(places == number).sum(axis=0) for number in range(10)])
    expected = found.sum(axis=1, keepdims=True) / 10
    chi_square = ((found - expected) ** 2 / expected).sum()
    freedom = 10 * 9
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("replacement", [False, True])
def test_a_sample_that_comes_again_draws_otherwise(replacement: bool) -> None:
    """The random keys of a sample differ each time that it comes in an epoch, and its first is its number."""
    view = data_of([0, 0]).weighted([1, 9], 100, replacement=replacement)
    numbers, keys = view.plan(0, "global", 64, 16).lookup(np.arange(100))
    assert len({*zip(numbers.tolist(), keys.tolist(), strict=True)}) == 100
    assert replacement or {0, 1} <= {*keys.tolist()}


def test_it_shows_epoch_0_and_leads_to_the_base() -> None:
    """`view[i]` is a sample of epoch 0, `origin` leads through a stack, and a pickled view is the same."""
    data = data_of([0, 1, 1, 1], [0, 1, 2, 1])
    view = data.where("label == 1").weighted("w", 8)
    assert (len(view), view.numbers) == (8, 3)
    assert Counter(view[place]["number"] for place in range(8)) == {1: 2, 2: 4, 3: 2}
    assert view.origin([0, 2]).tolist() == [1, 3]
    copied = pickle.loads(pickle.dumps(view))  # noqa: S301  # our own
    assert copied.digest == view.digest
    assert epoch_of(copied, 4) == epoch_of(view, 4)
    assert view.digest != data.where("label == 1").weighted("w", 9).digest


def test_a_view_keeps_the_weights_that_it_was_given() -> None:
    """A view keeps its weights when the array changes later, and equal weights of any float type have one digest."""
    data, given = data_of([0, 1, 1, 1]), np.array([1.0, 0, 2, 0])
    view = data.weighted(given, samples=np.int64(6))
    same = [data.weighted(given.astype(kind), 6).digest for kind in (">f8", np.longdouble)]
    given[:] = 1
    assert {view.digest, *same} == {data.weighted([1.0, 0, 2, 0], 6).digest}
    assert Counter(epoch_of(pickle.loads(pickle.dumps(view)), 0)) == Counter(epoch_of(view, 0))  # noqa: S301  # our own


def test_an_epoch_of_more_samples_than_float64_counts() -> None:
    """Where expected counts have no fractions left, intervals still fill the line."""
    assert interval_ends(np.ones(3), 2**47)[-1] == 2**47 << 14


@pytest.mark.parametrize(
    ("weigh", "message"),
    [
        (lambda ds: ds.weighted("w", samples=2.5), "samples must be an integer, got 2.5"),
        (lambda ds: ds.weighted([1, 2]), r"weights must be 4 numbers, one for each sample, got \[2\] of int64"),
        (lambda ds: ds.weighted([1, -1, 1, 1]), "weights must be finite and at least 0, got -1 for sample 1"),
        (lambda ds: ds.weighted([1, 1, np.nan, 1]), "got nan for sample 2"),
        (lambda ds: ds.weighted(np.zeros(4)), "a sum that is above 0"),
        (lambda ds: ds.weighted("w", samples=0), r"samples must be an integer in \[1, 2\^48\), got 0"),
        (lambda ds: ds.weighted("missing"), "no field 'missing'"),
        (lambda ds: ds.weighted("w").select([0]), "choose first, then weigh, cut or mix"),
        (lambda ds: ds.weighted("w").weighted("w"), "weighted chooses from stored samples"),
        (lambda ds: ds[:0].balanced("label"), "there are no samples to weigh"),
        (lambda ds: shardio.TorchDataset(ds.weighted("w")), "TorchDataset takes no mixture and no weighted view"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weigh: Any, message: str) -> None:
    """Weights that break a rule are an error that names it and the sample."""
    with pytest.raises(ConfigError, match=message):
        weigh(data_of([0, 1, 1, 1]))


@pytest.mark.parametrize(
    ("weigh", "shuffle", "counts", "recorded"),
    [
        (lambda ds: ds.weighted("w", 20), "global", [0, 1, 1, 4, 3, 11], "fa694243ab05baaa"),
        (lambda ds: ds.weighted("w", 20), "block", [0, 1, 1, 4, 3, 11], "904f14289a28dee3"),
        (lambda ds: ds.weighted("w", 20), None, [0, 1, 1, 4, 3, 11], "2426f61814be23c3"),
        (lambda ds: ds.weighted("w", 20, replacement=True), "global", [0, 0, 3, 4, 3, 10], "1e0865c42fabd388"),
        (lambda ds: ds.balanced("label", 20), "global", [7, 3, 3, 3, 2, 2], "d6fb907fa78c4bca"),
    ],
)
def test_recorded_samples(weigh: Any, shuffle: Any, counts: list[int], recorded: str) -> None:
    """Counts, order and random keys of an epoch stay what they are: states of earlier releases resume."""
    view = weigh(data_of([0, 1, 1, 2, 2, 2], [0.0, 0.5, 1, 2, 2.5, 7]))
    numbers, keys = view.plan(3, shuffle, 4, 3).at_epoch(5).lookup(np.arange(20))
    assert np.bincount(numbers, minlength=6).tolist() == counts
    assert xxhash.xxh3_64_hexdigest(np.concatenate([numbers, keys]).astype("<i8").tobytes()) == recorded
