"""Comparisons: the exact test's probabilities, equal rates called equal, and slow-downs found among noise."""

import itertools

import numpy as np
import pytest

from shardio.bench.significance import compare_pairs, least_rounds
from shardio.errors import ConfigError


def by_enumeration(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """The two-sided probability of the signed-rank sum, by all signs."""
    ranks = np.argsort(np.argsort(np.abs(logs))) + 1
    total = ranks.sum()
    extreme = min(int(ranks[logs > 0].sum()), int(total - ranks[logs > 0].sum()))
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in itertools.product((0, 1), repeat=len(ranks))
    ]
    return min(1.0, 2 * float(np.mean(np.array(sums) <= extreme)))


@pytest.mark.parametrize("seed", range(5))
def test_the_probability_is_exact(seed: int) -> None:
    """It is the share of all signs with as extreme a sum of ranks."""
    random = np.random.default_rng(seed)
    logs = random.normal(0.1 * seed, 0.3, 9)
    found = compare_pairs(np.ones(9).tolist(), np.exp(logs).tolist())
    assert found.p == pytest.approx(by_enumeration(logs))


def noisy(random: np.random.Generator, ratio: float, rounds: int) -> tuple[list[float], list[float]]:
    """Rates of two sides in turns; the machine's speed drifts by a factor of 1.5, and single turns are disturbed."""
    drift = 1.5 ** random.uniform(-0.5, 0.5, rounds)
    a, b = (drift * np.exp(random.normal(0, 0.08, rounds)) for _ in range(2))
    return a.tolist(), (b * ratio).tolist()


def test_equal_rates_are_called_the_same() -> None:
    """At most one of 20 comparisons of equal rates finds a difference."""
    random = np.random.default_rng(1)
    found = [compare_pairs(*noisy(random, 1.0, 40)).finding for _ in range(200)]
    assert found.count("same") >= 190


def test_a_slow_down_of_a_tenth_is_found() -> None:
    """At least nine of ten comparisons find it, and the range holds it."""
    random = np.random.default_rng(2)
    found = [compare_pairs(*noisy(random, 0.9, 40)) for _ in range(100)]
    assert sum(comparison.finding == "slower" for comparison in found) >= 90
    assert sum(comparison.low <= 0.9 <= comparison.high for comparison in found) >= 95


def test_too_few_rounds_are_refused() -> None:
    """So few pairs could never show a difference at the level of the test."""
    assert least_rounds(0.01) == 8
    with pytest.raises(ConfigError, match=r"rounds must be at least 8 for a test at 0\.01, got 7"):
        compare_pairs([1.0] * 7, [2.0] * 7)
    with pytest.raises(ConfigError, match="rates must be pairs of numbers above 0"):
        compare_pairs([1.0] * 8, [0.0] * 8)
    assert compare_pairs([1.0] * 8, [2.0] * 8).finding == "faster"
