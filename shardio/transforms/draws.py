"""Random numbers that belong to a sample: from seed, epoch, sample index and the transform's place, nothing else."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..order.permutation import derive, splitmix64
from ..system.types import Indices

_ATTEMPTS = 12
"""Tries for a gamma variate, of which each succeeds with 0.95 at least."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of some samples in some epoch, for one place in the list of transforms."""

    seed: int
    epoch: int
    place: int
    indices: Indices

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` numbers in [0, 1) per sample, float64 [B, count]."""
        key = np.uint64(derive(self.seed, self.epoch, self.place, 0xA06))
        sample = splitmix64(self.indices.astype(np.uint64) + key)
        counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (splitmix64(sample[:, None] + counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def within(self, number: int) -> "Draws":
        """Those of transform `number` of a transform that holds others."""
        return replace(self, place=derive(self.place, number, 0xC40))

    def beta(self, alpha: float) -> NDArray[np.float64]:
        """One number per sample from the symmetric beta distribution Beta(alpha, alpha), float64 [B].

        Source: Marsaglia and Tsang 2000, "A simple method for generating gamma variables".
        """
        first, second = (_gamma(alpha, self.within(number)) for number in (0, 1))
        total = first + second
        # Both are 0 only where a small alpha leaves less than the smallest number: then one of them is all.
        return np.where(total > 0, first / np.where(total > 0, total, 1), self.uniform(1)[:, 0].round())


def _gamma(shape: float, draws: Draws) -> NDArray[np.float64]:
    """One gamma variate per sample."""
    d = (shape if shape >= 1 else shape + 1) - 1 / 3
    random = draws.uniform(3 * _ATTEMPTS + 1)
    one, two, accept = np.split(random[:, :-1], 3, axis=1)
    normal = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * math.pi * two)
    v = (1 + normal / math.sqrt(9 * d)) ** 3
    positive = np.where(v > 0, v, 1.0)
    fits = (v > 0) & (np.log1p(-accept) < normal**2 / 2 + d * (1 - positive + np.log(positive)))
    made: NDArray[np.float64] = d * positive[np.arange(len(v)), fits.argmax(axis=1)]
    return made if shape >= 1 else made * (1 - random[:, -1]) ** (1 / shape)
