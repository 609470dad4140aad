"""Whether two rates that were measured in turns differ, or only vary: the exact test for pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

LEVEL = 0.01  # equal rates are called different once in so many comparisons

Finding: TypeAlias = Literal["same", "faster", "slower"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of the rate of B to that of A.

    Attributes:
        finding: whether B is faster or slower beyond the noise, or indistinguishable from A.
        ratio: the rate of B divided by that of A.
        low, high: the range of ratios that the measurements allow.
        p: the probability of such a difference, or a larger one, between equal rates.
        rounds: the number of pairs of measurements.
    """

    finding: Finding
    ratio: float
    low: float
    high: float
    p: float
    rounds: int

    def __str__(self) -> str:
        same = "the same as far as this can tell" if self.finding == "same" else self.finding
        spread = f"{self.low:.3g} to {self.high:.3g}; p = {self.p:.2g}, {self.rounds} rounds"
        return f"{same}: {self.ratio:.3g} times as fast ({spread})"


def compare_pairs(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> Comparison:
    """Compare rates that were measured in turns, a[i] right before or after b[i].

    This is Wilcoxon's signed-rank test on the logarithms of the ratios (Wilcoxon 1945), with its exact distribution and
    the range that belongs to it (Hodges and Lehmann 1963). It needs no normal distribution: single values may be far
    off.

    Raises ConfigError if there are too few pairs to find anything at this level, or a rate is not more than 0.
    """
    rounds = len(a)
    if len(b) != rounds or min((*a, *b), default=0.0) <= 0:
        raise ConfigError(f"rates must be pairs of numbers above 0, got {len(a)} and {len(b)}")
    if rounds < (least := least_rounds(level)):
        raise ConfigError("{rounds} must be at least {} for a test at {:g}, got {}", least, level, rounds)
    logs = np.log(np.asarray(b) / np.asarray(a))
    below = np.cumsum(_rank_sum_probabilities(rounds))
    order = np.argsort(np.abs(logs))
    positive = int((np.flatnonzero(logs[order] > 0) + 1).sum())
    extreme = min(positive, rounds * (rounds + 1) // 2 - positive)
    p = min(1.0, 2 * float(below[extreme]))
    first, second = np.triu_indices(rounds)
    walsh = np.sort((logs[first] + logs[second]) / 2)
    cut = int(np.searchsorted(below, level / 2, side="right"))  # the rank sums whose probability is at most level / 2
    low, high = float(np.exp(walsh[cut - 1])), float(np.exp(walsh[len(walsh) - cut]))
    ratio = float(np.exp(np.median(walsh)))
    finding: Finding = "same" if p > level else "faster" if ratio > 1 else "slower"
    return Comparison(finding, ratio, low, high, p, rounds)


def least_rounds(level: float = LEVEL) -> int:
    """Return the number of pairs below which no difference can be found at a level."""
    return 1 + math.ceil(math.log2(1 / level))


def _rank_sum_probabilities(n: int) -> NDArray[np.float64]:
    """Return the probabilities of all sums of the ranks 1..n with a random sign each being positive."""
    counts = np.zeros(n * (n + 1) // 2 + 1)
    counts[0] = 1.0
    for rank in range(1, n + 1):
        without = counts / 2
        counts = without.copy()
        counts[rank:] += without[: len(without) - rank]
    return counts
