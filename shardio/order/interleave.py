"""Several sources drawn from by weight: which source, and which of its samples, stands at each position.

Positions are counted on from one epoch of the mixture into the next, and cut into windows as long as the sum of the
weights, which are whole numbers. Each window holds every source exactly as often as its weight says, shuffled anew in
each; and each source is gone through in epochs of its own, whole ones, in the order in which its turns come. All of it
is a pure function of the position, as `plan.Plan` is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from .permutation import derive, splitmix64
from .plan import Plan, Shuffle

MOST_TURNS = 4096
"""The longest window: finer weights are rounded to it."""


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers, as small as can be, in the proportions of `weights`; rounded where their sum would be too large.

    Raises ConfigError unless all are positive and finite.
    """
    for name, weight in weights.items():
        if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 < weight < math.inf:
            raise ConfigError(f"the weight of {name!r} must be a positive number, got {weight!r}")
    exact = [Fraction(repr(float(weight))) for weight in weights.values()]  # 0.1 is meant as a tenth
    scale = math.lcm(*(part.denominator for part in exact))
    parts = [int(part * scale) for part in exact]
    parts = [part // math.gcd(*parts) for part in parts]
    if sum(parts) > MOST_TURNS:
        shares = [Fraction(MOST_TURNS * part, sum(parts)) for part in parts]
        parts = [max(1, int(share)) for share in shares]
        most = sorted(range(len(parts)), key=lambda place: parts[place] - shares[place])
        for place in most[: max(0, MOST_TURNS - sum(parts))]:
            parts[place] += 1
        parts = [part // math.gcd(*parts) for part in parts]
    return dict(zip(weights, parts, strict=True))


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """The order of one epoch of a mixture; see `plan.Plan`.

    Args:
        n: positions of an epoch.
        sizes: samples of each source.
        weights: turns of each source in a window.
        seed: any whole number.
        epoch: of the mixture: 0, 1, ...
        shuffle, block, window: how each source is shuffled; with None sources take turns evenly, in their stored order.
    """

    n: int
    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    seed: int = 0
    epoch: int = 0
    shuffle: Shuffle = "global"
    block: int = 64
    window: int = 16
    _turns: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    _starts: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n < 1 or self.epoch < 0:
            raise ConfigError(f"a mixture needs n of at least 1 and an epoch of 0 or more, got {self.n}, {self.epoch}")
        turns = [
            ((turn + 0.5) / weight, source) for source, weight in enumerate(self.weights) for turn in range(weight)
        ]
        object.__setattr__(self, "_turns", np.array([source for _, source in sorted(turns)], np.int64))
        object.__setattr__(self, "_starts", np.cumsum([0, *self.sizes]))
        self._source(0, 0)  # its rules are checked now

    @property
    def order(self) -> str:
        """What the order depends on besides sources, weights, seed and epoch."""
        return self._source(0, 0).order

    def indices(self, start: int, stop: int) -> Indices:
        """The mixture's sample indices, int64 [stop - start], at positions start..stop-1 of this epoch."""
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(f"positions must be in [0, {self.n}], got {start} to {stop}")
        return self.drawn(np.arange(start, stop, dtype=np.int64))[0]

    def drawn(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """The sample index at each position in [0, n), and what its random choices are keyed by: a sample that comes
        again, in a later epoch of its source, is cropped in another way."""
        sources, turns = self._taken(self.epoch * self.n + positions)
        sizes = np.array(self.sizes)[sources]
        epochs, places = turns // sizes, turns % sizes
        indices = self._starts[sources]
        for source, epoch in {*zip(sources.tolist(), epochs.tolist(), strict=True)}:
            rows = (sources == source) & (epochs == epoch)
            indices[rows] += self._source(source, epoch).drawn(places[rows])[0]
        return indices, epochs * self._starts[-1] + indices

    def replacement(self, index: int, draw: int, attempt: int) -> tuple[int, int]:
        """The sample, and its draw, that comes in the place of a bad one: of the same source."""
        source = int(np.searchsorted(self._starts, index, "right")) - 1
        other = int(self._starts[source]) + derive(self.seed, draw, attempt, 0xBAD) % self.sizes[source]
        return other, draw - index + other

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """None: storage is not asked ahead for a mixture."""
        return 0, -1

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """None."""
        return []

    def _taken(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source at each position, counted from the first epoch's first, and how often it has had its turn."""
        length = len(self._turns)
        windows, inverse = np.unique(positions // length, return_inverse=True)
        sources = np.broadcast_to(self._turns, (len(windows), length))
        if self.shuffle is not None:
            slots = windows[:, None].astype(np.uint64) * np.uint64(length) + np.arange(length, dtype=np.uint64)
            keys = splitmix64((slots + np.uint64(derive(self.seed, 0x717))).astype(np.uint64, copy=False))
            sources = np.take_along_axis(sources, np.argsort(keys, axis=1, kind="stable"), axis=1)
        # Grouped by source, in the order of their slots: the place in the group is the turn within the window.
        grouped = np.argsort(sources, axis=1, kind="stable")
        firsts = np.cumsum([0, *self.weights])[:-1]
        turns = np.empty_like(grouped)
        np.put_along_axis(turns, grouped, np.arange(length)[None, :], axis=1)
        turns += windows[:, None] * np.array(self.weights)[sources] - firsts[sources]
        return sources[inverse, positions % length], turns[inverse, positions % length]

    def _source(self, source: int, epoch: int) -> Plan:
        return _plan(self.sizes[source], derive(self.seed, source), epoch, self.shuffle, self.block, self.window)


AnyPlan: TypeAlias = Plan | MixedPlan

_plan = lru_cache(maxsize=256)(Plan)
