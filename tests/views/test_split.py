"""Splits: shares by class, groups that stay whole, and recorded parts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardio
from shardio.errors import ConfigError, SplitWarning
from shardio.views.split import split_by

SHARES = st.sampled_from(
    [{"a": 0.9, "b": 0.1}, {"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 0.5}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}]
)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=200), SHARES, st.integers(0, 99))
def test_each_class_is_within_one_sample_of_its_share(labels: list[int], shares: Any, seed: int) -> None:
    """Parts are disjoint, shares of 1 in all take every sample, and each part has its share of each class."""
    classes = np.array(labels)
    parts = split_by(len(labels), shares, seed, classes, None)
    taken = np.concatenate(list(parts.values())).tolist()
    assert len(taken) == len(set(taken))
    assert sum(shares.values()) < 1 or len(taken) == len(labels)
    for name, part in parts.items():
        for label in set(labels):
            assert abs((classes[part] == label).sum() - shares[name] * labels.count(label)) < 1 + 1e-6


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.booleans(), SHARES, st.integers(0, 99))
def test_groups_stay_whole(groups: list[int], by_class: bool, shares: Any, seed: int) -> None:
    """No group is in two parts, and each part is within two groups of its share."""
    members = np.unique(groups, return_inverse=True)[1]
    classes = np.arange(len(groups)) % 3 if by_class else None
    parts = split_by(len(groups), shares, seed, classes, members)
    where = [{*members[part].tolist()} for part in parts.values()]
    assert sum(map(len, where)) == len(set.union(*where))
    for name, part in parts.items():
        assert abs(len(part) - shares[name] * len(groups)) <= 2 * np.bincount(members).max() + 1


def test_small_classes_and_groups_add_up() -> None:
    """Many classes, each too small for the small part, still give it its share of all samples."""
    classes = np.repeat(np.arange(100), 30)
    shares = {"train": 0.95, "val": 0.05}
    assert len(split_by(1000, shares, 0, np.repeat(np.arange(100), 10), None)["val"]) == 50
    assert len(split_by(3000, shares, 0, classes, np.arange(3000) // 10)["val"]) == 150


def test_shares_that_groups_cannot_keep_are_told() -> None:
    """A part that is off by more than a hundredth of the samples is told."""
    data = shardio.from_samples([{"patient": min(n // 10, 1), "n": n} for n in range(40)])
    with pytest.warns(SplitWarning) as told:
        data.split({"train": 0.85, "val": 0.15}, group="patient")
    assert [f"{warning.message}" for warning in told] == [
        "the part 'train' has 30 of 40 samples, 75.0% instead of 85.0%",
        "the part 'val' has 10 of 40 samples, 25.0% instead of 15.0%",
    ]


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ({"a": 1.5}, {}, "above 0 and at most 1"),
        ({"a": 0.8, "b": 0.3}, {}, "add up to at most 1"),
        ({"a": "0.5"}, {}, "numbers by name, got 'a': '0.5'"),
        ({"a": 0.5}, {"seed": 0.5}, "seed must be an integer, got 0.5"),
        ({"a": 0.9, "b": 0.1}, {"by": "text"}, "sample 1 has no 'text'; choose with where"),
        ({"a": 0.9, "b": 0.1}, {"by": "missing"}, "no field 'missing'"),
        ({"a": 0.999, "b": 0.001}, {"by": "n"}, "none is left for 'b'"),
    ],
)
def test_splits_that_do_not_fit_are_refused(shares: Any, options: Any, message: str) -> None:
    """A split that breaks a rule is an error that names it."""
    fields = {"n": "int64", "text": shardio.Field("text", optional=True)}
    rows = [{"n": n % 2, "text": None if n % 2 else ""} for n in range(20)]
    with pytest.raises(ConfigError, match=message):
        shardio.from_samples(rows, fields).split(shares, **options)


@pytest.mark.filterwarnings("ignore:the part:shardio.errors.SplitWarning")
@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({}, ([0, 17, 19, 21, 22, 31, 36, 38], [7, 13, 16, 28])),
        ({"seed": 7}, ([4, 8, 9, 10, 14, 17, 30, 35], [2, 13, 26, 32])),
        ({"by": "label"}, ([0, 13, 14, 16, 21, 35, 38, 39], [7, 17, 28, 36])),
        ({"group": "patient"}, ([10, 11, 16, 17, 24, 25, 26, 27], [8, 9, 18, 19])),
        ({"by": "label", "group": "patient", "seed": 7}, ([14, 15, 26, 27, 34, 35, 36, 37], [6, 7, 16, 17])),
    ],
)
def test_recorded_parts(options: Any, recorded: Any) -> None:
    """A part has the same samples in each release, or what was held out would become training data."""
    rows = [{"label": n % 3, "patient": f"p{n // 2}", "n": n} for n in range(40)]
    parts = shardio.from_samples(rows).split({"train": 0.7, "val": 0.2, "test": 0.1}, **options)
    found = {name: part.read(range(len(part)), ["n"])["n"].tolist() for name, part in parts.items()}
    assert (found["val"], found["test"]) == recorded
    assert sorted(found["train"] + found["val"] + found["test"]) == [*range(40)]
