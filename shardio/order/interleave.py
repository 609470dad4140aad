"""Weighted mixtures: the source, and the sample of that source, at each position.

Positions count on from one epoch of the mixture to the next, and windows of equal length cut them. A window is as long
as the sum of the weights, which are integers, and holds each source exactly as often as its weight says, shuffled anew
in every window. Each source goes through epochs of its own: its k-th turn takes position `k % size` of its epoch
`k // size`. All of it is a pure function of the position, like `plan.Plan`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from ..system.units import shown
from .permutation import derive, splitmix64
from .plan import Plan, Shuffle

MOST_TURNS = 4096
"""The length of the longest window, to which finer weights are rounded."""
_FAR_OFF = 1.25  # a share this many times too large or too small is told
_MOST_POSITIONS = 1 << 62  # of all epochs, so that turns can be counted in int64


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Return the smallest integers in the proportions of `weights`, rounded where their sum exceeds `MOST_TURNS`.

    Raises ConfigError unless all weights are positive and finite.
    """
    exact = [_exact(name, weight) for name, weight in weights.items()]
    scale = math.lcm(*(part.denominator for part in exact))
    parts = [int(part * scale) for part in exact]
    parts = [part // math.gcd(*parts) for part in parts]
    if sum(parts) > MOST_TURNS:
        shares = [Fraction(MOST_TURNS * part, sum(parts)) for part in parts]
        parts = [max(1, int(share)) for share in shares]
        most_reduced = sorted(range(len(parts)), key=lambda number: parts[number] - shares[number])
        for number in most_reduced[: max(0, MOST_TURNS - sum(parts))]:
            parts[number] += 1
        parts = [part // math.gcd(*parts) for part in parts]
    return dict(zip(weights, parts, strict=True))


def _exact(name: str, weight: float) -> Fraction:
    """Return a weight as it is written: 0.1 means a tenth, not the nearest float. ConfigError unless it is positive."""
    if not isinstance(weight, Real) or isinstance(weight, bool) or not 0 < weight < math.inf:
        raise ConfigError(f"the weight of {name!r} must be a positive number, got {shown(weight)}")
    if isinstance(weight, Integral):
        return Fraction(int(weight))
    return weight if isinstance(weight, Fraction) else Fraction(str(weight))


def rounded_shares(weights: Mapping[str, float], turns: Mapping[str, int]) -> Iterator[str]:
    """Yield a message for each source whose share of the turns is far from that of the weights.

    Args:
        weights: the weights that were asked for.
        turns: what `whole_weights` made of them.
    """
    exact = {name: _exact(name, weight) for name, weight in weights.items()}
    for name, given in turns.items():
        ratio = Fraction(given, sum(turns.values())) * sum(exact.values()) / exact[name]
        if not 1 / _FAR_OFF <= ratio <= _FAR_OFF:
            times = Decimal(ratio.numerator) / Decimal(ratio.denominator)  # which may be too large for a float
            yield (
                f"the source {name!r} gets {given} of {sum(turns.values()):,} turns, {times:.3g} times the "
                f"share that its weight asks for: there are at most {MOST_TURNS:,} turns, at least one for each source"
            )


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """The order of one epoch of a weighted mixture: a `plan.Order` in constant memory.

    Args:
        n: the number of positions in an epoch of the mixture.
        sizes: the number of samples in each source.
        weights: the turns of each source in a window.
        seed: any integer.
        epoch: the mixture's epoch: 0, 1, ...
        shuffle, block, window: the shuffling of each source, as for `Plan`. With `shuffle=None` the sources take turns
            at even intervals and stay in their stored order.

    Raises ConfigError as `Plan` does, and if the epochs up to this one have more than 2^62 positions.
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
            raise ConfigError(
                f"a mixture needs n of at least 1 and an epoch of 0 or more, got {shown(self.n)}, {shown(self.epoch)}"
            )
        if (self.epoch + 1) * self.n > _MOST_POSITIONS:
            raise ConfigError(
                "{epoch} must be below {} in a mixture of {} samples an epoch, got {}",
                _MOST_POSITIONS // self.n,
                shown(self.n),
                shown(self.epoch),
            )
        turns = [
            ((turn + 0.5) / weight, source) for source, weight in enumerate(self.weights) for turn in range(weight)
        ]
        object.__setattr__(self, "_turns", np.array([source for _, source in sorted(turns)], np.int64))
        object.__setattr__(self, "_starts", np.cumsum([0, *self.sizes]))
        self._source_plan(0, 0)  # checks shuffle, block and window

    @property
    def order(self) -> str:
        """The shuffling of each source in words, as in `Plan.order`."""
        return self._source_plan(0, 0).order

    def indices(self, start: int, stop: int) -> Indices:
        """Return the mixture's sample indices, int64 [stop - start], at positions start..stop-1 of this epoch.

        Raises ConfigError unless 0 <= start <= stop <= n.
        """
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(f"positions must be in [0, {self.n}], got {start} to {stop}")
        return self.lookup(np.arange(start, stop, dtype=np.int64))[0]

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample index at each position in [0, n), and its random key.

        The key counts the source's epochs too: a sample that comes again in a later one is augmented differently.
        """
        sources, turns = self._turns_at(self.epoch * self.n + positions)
        sizes = np.array(self.sizes)[sources]
        epochs, source_positions = turns // sizes, turns % sizes
        indices = self._starts[sources]
        for source, epoch in {*zip(sources.tolist(), epochs.tolist(), strict=True)}:
            rows = (sources == source) & (epochs == epoch)
            indices[rows] += self._source_plan(source, epoch).lookup(source_positions[rows])[0]
        return indices, epochs * self._starts[-1] + indices

    def replacement(self, index: int, rng_key: int, attempt: int) -> tuple[int, int]:
        """Return the index and the random key of another sample of the same source, which replaces a bad one."""
        source = int(np.searchsorted(self._starts, index, "right")) - 1
        other = int(self._starts[source]) + derive(self.seed, rng_key, attempt, 0xBAD) % self.sizes[source]
        return other, rng_key - index + other

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """Return (0, -1), for none: mixtures are not read ahead."""
        return 0, -1

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return no runs: mixtures are not read ahead."""
        return []

    def at_epoch(self, epoch: int) -> "MixedPlan":
        """Return the order of another epoch; ConfigError if `epoch` is negative or too large."""
        return replace(self, epoch=epoch)

    def drawn(self, positions: int) -> tuple[int, ...]:
        """Return how many samples of each source are at the first `positions` positions, counted from epoch 0 on."""
        windows, rest = divmod(positions, len(self._turns))
        first = windows * len(self._turns)
        sources, _ = self._turns_at(np.arange(first, first + rest, dtype=np.int64))
        counts = np.bincount(sources, minlength=len(self.sizes)).tolist()
        return tuple(windows * weight + more for weight, more in zip(self.weights, counts, strict=True))

    def _turns_at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source at each position, counted from the first epoch on, and its number of earlier turns."""
        length = len(self._turns)
        windows, inverse = np.unique(positions // length, return_inverse=True)
        sources = np.broadcast_to(self._turns, (len(windows), length))
        if self.shuffle is not None:
            slots = windows[:, None].astype(np.uint64) * np.uint64(length) + np.arange(length, dtype=np.uint64)
            keys = splitmix64((slots + np.uint64(derive(self.seed, 0x717))).astype(np.uint64, copy=False))
            sources = np.take_along_axis(sources, np.argsort(keys, axis=1, kind="stable"), axis=1)
        # Group the slots by source, in order: the rank within a group is the turn within the window.
        grouped = np.argsort(sources, axis=1, kind="stable")
        firsts = np.cumsum([0, *self.weights])[:-1]
        turns = np.empty_like(grouped)
        np.put_along_axis(turns, grouped, np.arange(length)[None, :], axis=1)
        turns += windows[:, None] * np.array(self.weights)[sources] - firsts[sources]
        return sources[inverse, positions % length], turns[inverse, positions % length]

    def _source_plan(self, source: int, epoch: int) -> Plan:
        return _cached_plan(self.sizes[source], derive(self.seed, source), epoch, self.shuffle, self.block, self.window)


_cached_plan = lru_cache(maxsize=256)(Plan)
