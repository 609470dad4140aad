"""The random number generator of transforms: a pure function of seed, epoch, transform and sample index."""

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..order.permutation import derive, splitmix64
from ..system.types import Indices

_DRAWS = (1 << 20) + 2  # larger than the place of any transform in its list
_GAMMA_ATTEMPTS = 12
"""Attempts at a gamma variate; each succeeds with a probability of at least 0.95."""


@dataclass(frozen=True, slots=True)
class RandomGenerator:
    """A counter-based generator of random numbers for some samples, one transform and one epoch.

    It has no state: the same call returns the same numbers, whatever was drawn before and whichever other samples are
    in `indices`. A transform that needs several independent draws asks for all of them at once, or uses children.

    Attributes:
        seed: the loader's seed.
        epoch: the number of the epoch.
        stream: distinguishes generators of one seed and epoch: a transform's position in the list, or the value that
            `child` derives from it.
        indices: the samples' indices in the dataset, int64 [B].
    """

    seed: int
    epoch: int
    stream: int
    indices: Indices

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return `count` numbers in [0, 1) per sample, float64 [B, count]."""
        key = np.uint64(derive(self.seed, self.epoch, self.stream, 0xA06))
        sample = splitmix64(self.indices.astype(np.uint64) + key)
        counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (splitmix64(sample[:, None] + counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def child(self, number: int) -> "RandomGenerator":
        """Return an independent generator for child transform `number`."""
        return replace(self, stream=derive(self.stream, number, 0xC40))

    def beta(self, alpha: float) -> NDArray[np.float64]:
        """Return one number per sample from the symmetric beta distribution Beta(alpha, alpha), float64 [B].

        Source: Marsaglia and Tsang 2000, "A simple method for generating gamma variables".
        """
        first, second = (_gamma(alpha, self.child(number)) for number in (0, 1))
        total = first + second
        # Both underflow to 0 only with a small alpha, where the distribution is nearly that of a fair coin.
        return np.where(total > 0, first / np.where(total > 0, total, 1), self.uniform(1)[:, 0].round())


@final
@dataclass(frozen=True, slots=True)
class RandomKeys:
    """The numbers that determine the random parameters of some rows.

    Attributes:
        seed: the seed of the loader, or the one that `draws` derives from it.
        epoch: the epoch of the loader.
        samples: the random key of each row's sample, int64 [n]. It is the sample's index, except in mixtures, where a
            sample that comes twice in an epoch gets different crops.
    """

    seed: int
    epoch: int
    samples: Indices

    def __getitem__(self, rows: slice | Indices) -> "RandomKeys":
        return RandomKeys(self.seed, self.epoch, self.samples[rows])

    def generator(self, stream: int) -> RandomGenerator:
        """Return the generator of a stream, such as a transform's place in its list."""
        return RandomGenerator(self.seed, self.epoch, stream, self.samples)

    def within(self, rows: Indices, numbers: Indices) -> "RandomKeys":
        """Return the keys of parts of samples, each of a row, with its number there; number 0 has its sample's key."""
        samples = self.samples[rows]
        others = splitmix64(splitmix64(samples.astype(np.uint64)) + numbers.astype(np.uint64)).astype(np.int64)
        return replace(self, samples=np.where(numbers == 0, samples, others))

    def draws(self, number: int) -> "RandomKeys":
        """Return the keys of another set of random draws, independent of this one; set 0 is this one."""
        return replace(self, seed=derive(self.seed, number, _DRAWS)) if number else self


def _gamma(shape: float, generator: RandomGenerator) -> NDArray[np.float64]:
    """Return one gamma variate per sample, float64 [B]."""
    d = (shape if shape >= 1 else shape + 1) - 1 / 3
    random = generator.uniform(3 * _GAMMA_ATTEMPTS + 1)
    radius, angle, accept = np.split(random[:, :-1], 3, axis=1)
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * angle)
    v = (1 + normal / math.sqrt(9 * d)) ** 3
    positive = np.where(v > 0, v, 1.0)
    accepted = (v > 0) & (np.log1p(-accept) < normal**2 / 2 + d * (1 - positive + np.log(positive)))
    variates: NDArray[np.float64] = d * positive[np.arange(len(v)), accepted.argmax(axis=1)]
    return variates if shape >= 1 else variates * (1 - random[:, -1]) ** (1 / shape)
