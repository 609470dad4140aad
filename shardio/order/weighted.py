"""Weighted sampling: each sample comes in proportion to its weight, exactly, in an order that is a pure function.

A line of points is divided into one interval per sample, as long as the sample's expected count. An epoch of n samples
takes n points at distance 1 from a random start, so that each sample comes the floor or the ceiling of its expected
count; the same holds for classes whose samples are neighbours. A permutation then shuffles the points.

Source: systematic sampling (Madow 1949, "On the theory of systematic sampling, II").
"""

from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..system.types import Indices
from .permutation import derive, splitmix64
from .plan import OrderOfSamples

_START, _DRAW = 0x57A7, 0xD2A3  # the purposes for which keys are derived
_FINEST, _MOST = 32, 62  # bits: of the distance between two points, and of the line


def distance_bits(samples: int) -> int:
    """Return the number of bits of the distance between two neighbouring points, in units of the line."""
    return min(_FINEST, _MOST - samples.bit_length())


@final
@dataclass(frozen=True, slots=True, eq=False)
class SamplePoints:
    """A line with an interval for each sample, in stored order.

    Args:
        ends: where the intervals end, int64 [n], ascending.
    """

    ends: NDArray[np.int64]

    @property
    def units(self) -> int:
        """The length of the line."""
        return int(self.ends[-1])

    def at(self, points: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the samples whose intervals hold some points, and where these intervals begin; int64 [k] each."""
        numbers = np.searchsorted(self.ends, points, "right")
        return numbers, np.where(numbers > 0, self.ends[numbers - 1], 0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassPoints:
    """Intervals of equal length for all classes. The samples of a class divide its interval equally.

    Args:
        members: the samples by class, uint32 or int64 [n].
        firsts: the index in `members` where each class begins, and n; int64 [classes + 1].
        units: the length of the line.
    """

    members: NDArray[np.uint32] | NDArray[np.int64]
    firsts: NDArray[np.int64]
    units: int
    _begins: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        classes = len(self.firsts) - 1
        begins = [number * self.units // classes for number in range(classes + 1)]
        object.__setattr__(self, "_begins", np.array(begins, np.int64))

    def at(self, points: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the samples whose intervals hold some points, and where these intervals begin; int64 [k] each."""
        begins = self._begins
        which = np.searchsorted(begins, points, "right") - 1
        counts = (self.firsts[which + 1] - self.firsts[which]).astype(object)  # products exceed 64 bits
        lengths = (begins[which + 1] - begins[which]).astype(object)
        # The last sample of the class whose interval, from i * length / count on, begins at the point or before it.
        within = -(-(points - begins[which] + 1).astype(object) * counts // lengths) - 1
        starts = begins[which] + (within * lengths // counts).astype(np.int64)
        return self.members[self.firsts[which] + within.astype(np.int64)].astype(np.int64), starts


Points: TypeAlias = SamplePoints | ClassPoints
"""A line of `samples << distance_bits(samples)` units, divided into an interval for each sample."""


@final
@dataclass(frozen=True, slots=True)
class WeightedPlan(OrderOfSamples):
    """The order of one epoch of weighted samples: a `plan.Order` whose numbers are those of what is weighed.

    Args:
        samples: the order of what the epoch draws. If it is the stored one, the samples come in the order of their
            intervals.
        points: the intervals of the samples.
        independent: draw each position by itself, with replacement, instead of at equal distances.
    """

    points: Points
    independent: bool = False

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample at each position in [0, n), and its random key, another one each time that it comes."""
        places, bits = self.samples.lookup(positions)[0], distance_bits(self.samples.n)
        seed, epoch = self.samples.seed, self.samples.epoch
        if self.independent:
            return self._drawn(places.astype(np.uint64), derive(seed, epoch, _DRAW))
        start = derive(seed, epoch, _START) >> (64 - bits) if bits else 0
        numbers, begins = self.points.at((places << bits) + start)
        first_places = np.maximum(-((start - begins) >> bits), 0)
        return numbers, _keys(numbers, places - first_places)

    def _drawn(self, numbers: NDArray[np.uint64], key: int) -> tuple[Indices, NDArray[np.int64]]:
        """Return independent draws and their random keys; each depends on `key` and a number of its own."""
        random = splitmix64(splitmix64(numbers + np.uint64(key)) ^ np.uint64(key))
        points = (random.astype(object) * self.points.units >> 64).astype(np.int64)
        return self.points.at(points)[0], (random >> np.uint64(1)).astype(np.int64)

    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return another sample, drawn by weight, for a bad one at attempt 1, 2, ..."""
        key = derive(self.seed, self.epoch, rng_key, attempt, 0xBAD)
        return int(self._drawn(np.zeros(1, np.uint64), key)[0][0])


def _keys(numbers: Indices, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return random keys of samples: the number when it comes for the first time, and a hash from then on."""
    hashed = splitmix64(splitmix64(times.astype(np.uint64)) ^ numbers.astype(np.uint64)) >> np.uint64(1)
    return np.where(times > 0, hashed.astype(np.int64), numbers)
