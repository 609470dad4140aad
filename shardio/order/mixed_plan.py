"""Weighted mixtures: the source, and the sample of that source, at each position.

Positions count on from one epoch of the mixture to the next, and windows of equal length cut them. A window is as long
as the sum of the weights, which are integers, and holds each source exactly as often as its weight says, shuffled anew
in every window. Each source goes through epochs of its own order, of n positions each: its k-th turn takes position
`k % n` of its epoch `k // n`. All of it is a pure function of the position, like `plan.Plan`.

Weights may change at some positions, which cut the order into stretches. Windows begin anew in each stretch, and the
turns of the sources count on.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from ..system.units import shown
from .permutation import derive, splitmix64
from .plan import Order, Shuffle, Shuffling

Weights: TypeAlias = Mapping[str, float]
Stages: TypeAlias = Sequence[tuple[int, Weights]]
"""Weights that change: each with the position, counted from epoch 0 on, at or after which they begin."""

MOST_TURNS = 4096
"""The length of the longest window, to which finer weights are rounded."""
_FAR_OFF = 1.25  # a share this many times too large or too small gives a warning
_MOST_POSITIONS = 1 << 62  # of all epochs, so that turns can be counted in int64
_SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # the golden ratio of 2^64: small multiples of it are far apart


def whole_stages(weights: Weights | Stages, sources: Sequence[str]) -> list[tuple[int, Weights]]:
    """Return the stages of a mixture: each with the position at which it begins, and the weights of `sources` in order.

    Weights that don't change are one stage.

    Raises ConfigError unless the first stage begins at 0, each other one after the one before it, and all name the
    sources.
    """
    named = ", ".join(f"{name!r}: ..." for name in sources)
    if isinstance(weights, Mapping):
        stages: list[Any] = [(0, weights)]
    elif isinstance(weights, Sequence) and all(isinstance(part, Sequence) and len(part) == 2 for part in weights):
        stages = list(weights)
    else:
        stages = []
    if not stages or not all(isinstance(part, Mapping) for _, part in stages):
        raise ConfigError(
            f"weights must be a dict by source, as in {{{named}}}, or a list of stages, as in [(0, {{{named}}}), "
            f"(1_000_000, {{{named}}})], got {shown(weights)}"
        )
    positions = [position for position, _ in stages]
    for before, position in zip([None, *positions], positions, strict=False):
        least = 0 if before is None else before + 1
        if not isinstance(position, Integral) or not least <= int(position) < _MOST_POSITIONS:
            after = "" if before is None else f" after {before}"
            raise ConfigError(
                f"stages of weights must begin at ascending numbers of samples, got {shown(position)}{after}"
            )
    if positions[0]:
        raise ConfigError(f"the first stage of weights must begin at 0, got {positions[0]}")
    for position, part in stages:
        if part.keys() != {*sources}:
            when = f" from {position} on" if len(stages) > 1 else ""
            raise ConfigError(
                f"weights{when} must name the sources {', '.join(sources)}, got {', '.join(map(str, part)) or 'none'}"
            )
    return [(int(position), {name: part[name] for name in sources}) for position, part in stages]


def whole_weights(weights: Weights) -> dict[str, int]:
    """Return the smallest integers in the proportions of `weights`, rounded where their sum exceeds `MOST_TURNS`.

    Raises ConfigError unless all weights are finite, none is negative, and one is positive.
    """
    exact = [_exact(name, weight) for name, weight in weights.items()]
    if not any(exact):
        raise ConfigError("all weights are 0; at least one must be positive")
    scale = math.lcm(*(part.denominator for part in exact))
    parts = [int(part * scale) for part in exact]
    parts = [part // math.gcd(*parts) for part in parts]
    if sum(parts) > MOST_TURNS:
        shares = [Fraction(MOST_TURNS * part, sum(parts)) for part in parts]
        parts = [max(bool(share), int(share)) for share in shares]
        most_reduced = sorted(range(len(parts)), key=lambda number: parts[number] - shares[number])
        for number in most_reduced[: max(0, MOST_TURNS - sum(parts))]:
            parts[number] += 1
        parts = [part // math.gcd(*parts) for part in parts]
    return dict(zip(weights, parts, strict=True))


def _exact(name: str, weight: float) -> Fraction:
    """Return a weight as it is written: 0.1 means a tenth, not the nearest float. ConfigError if it is negative."""
    if not isinstance(weight, Real) or isinstance(weight, bool) or not 0 <= weight < math.inf:
        raise ConfigError(f"the weight of {name!r} must be a positive number or 0, got {shown(weight)}")
    if isinstance(weight, Integral):
        return Fraction(int(weight))
    return weight if isinstance(weight, Fraction) else Fraction(str(weight))


def rounded_shares(weights: Weights, turns: Mapping[str, int]) -> Iterator[str]:
    """Yield a message for each source whose share of the turns is far from that of the weights.

    Args:
        weights: the weights that were asked for.
        turns: what `whole_weights` made of them.
    """
    exact = {name: _exact(name, weight) for name, weight in weights.items()}
    for name, given in turns.items():
        if not given:
            continue
        ratio = Fraction(given, sum(turns.values())) * sum(exact.values()) / exact[name]
        if not 1 / _FAR_OFF <= ratio <= _FAR_OFF:
            times = Decimal(ratio.numerator) / Decimal(ratio.denominator)  # it may be too large for a float
            yield (
                f"the source {name!r} gets {given} of {sum(turns.values()):,} turns, {times:.3g} times the "
                f"share that its weight asks for: there are at most {MOST_TURNS:,} turns, at least one for each source"
            )


@final
@dataclass(frozen=True)
class Source:
    """A source of a mixture.

    Attributes:
        order: the order of its epoch 0.
        numbers: how many numbers it has, 0..numbers-1; the order emits some of them.
        at_epoch: returns the order of an epoch, and keeps the last ones.
    """

    order: Order
    numbers: int
    at_epoch: Callable[[int], Order] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_epoch", lru_cache(maxsize=256)(self.order.at_epoch))

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self.order, self.numbers)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Positions from `start` on with the same weights.

    Attributes:
        start: its first position, where its first window begins.
        turns: how many turns each source has had before.
        weights: the turns of each source in a window.
    """

    start: int
    turns: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    """The slots of a window before they are shuffled.

    Attributes:
        sources: the source at each slot, at even intervals.
        weights: the turns of each source.
        firsts: for each source, the turns of all sources before it.
    """

    sources: NDArray[Any]
    weights: NDArray[np.int64]
    firsts: NDArray[np.int64]


@lru_cache(maxsize=64)
def _window(weights: tuple[int, ...]) -> _Window:
    slots = sorted(((turn + 0.5) / weight, source) for source, weight in enumerate(weights) for turn in range(weight))
    # The smallest dtype: NumPy sorts numbers of 8 and 16 bits fastest.
    sources = np.array([source for _, source in slots], np.min_scalar_type(len(weights)))
    return _Window(sources, np.array(weights), np.cumsum([0, *weights])[:-1])


@lru_cache(maxsize=16)
def _stretches(
    stages: tuple[tuple[int, tuple[int, ...]], ...], since: int, begun: tuple[int, ...]
) -> tuple[_Stretch, ...]:
    """Return the stretches that stages make from the first position on.

    From `since` on windows and turns count from there, where each source has had `begun` turns.
    """
    if since:
        current = bisect_right(stages, since, key=lambda stage: stage[0]) - 1
        before = [part for part in _stretches(stages, 0, (0,) * len(begun)) if part.start < since]
        later = _stretches(((0, stages[current][1]), *((at - since, w) for at, w in stages[current + 1 :])), 0, begun)
        return (*before, *(replace(part, start=part.start + since) for part in later))
    found: list[_Stretch] = []
    start, turns = 0, begun
    for position, weights in stages:
        if found:
            windows = max(0, -((start - position) // sum(found[-1].weights)))
            start += windows * sum(found[-1].weights)
            turns = tuple(n + windows * weight for n, weight in zip(turns, found[-1].weights, strict=True))
        found.append(_Stretch(start, turns, weights))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class MixedPlan(Order):
    """The order of one epoch of a weighted mixture: a `plan.Order` in constant memory.

    Args:
        n: the number of positions in an epoch of the mixture.
        sources: the sources; the mixture's numbers count through theirs.
        stages: the turns of each source in a window, with the position from which on they hold, 0 for the first. A
            stage begins with the first window at or after its position.
        seed: any integer.
        epoch: the mixture's epoch: 0, 1, ...
        shuffle: the shuffling of the sources. With None they take turns at even intervals, else at random.
        sources_digest: a hash of what the sources are, which a loader's state names.
        since, begun: a position at which the weights were changed, as by a resume, and the turns that each source had
            had by then. The stage of that position begins right there. Positions before it are those of these weights.

    Raises ConfigError if n or epoch is out of range, or the epochs up to this one have more than 2^62 positions.
    """

    n: int = field()  # otherwise the property of `Order` would be its default
    sources: tuple[Source, ...]
    stages: tuple[tuple[int, tuple[int, ...]], ...]
    seed: int = 0
    epoch: int = 0
    shuffle: Shuffle = "global"
    sources_digest: str = ""
    since: int = 0
    begun: tuple[int, ...] = ()
    _stretches: tuple[_Stretch, ...] = field(init=False, repr=False, compare=False)
    _sizes: NDArray[np.int64] = field(init=False, repr=False, compare=False)
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
        begun = self.begun or (0,) * len(self.sources)
        object.__setattr__(self, "_stretches", _stretches(self.stages, self.since, begun))
        object.__setattr__(self, "_sizes", np.array([source.order.n for source in self.sources]))
        object.__setattr__(self, "_starts", np.cumsum([0, *(source.numbers for source in self.sources)]))

    @property
    def shuffling(self) -> Shuffling:
        """The shuffling of the first source."""
        return self.sources[0].order.shuffling

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample index at each position in [0, n), and its random key.

        The key also counts the source's epochs: a sample that comes again in a later one is augmented differently.
        """
        sources, turns = self._turns_at(self.epoch * self.n + positions)
        epochs, places = np.divmod(turns, self._sizes[sources])
        numbers, keys = np.empty_like(turns), np.empty_like(turns)
        for source, epoch in {*zip(sources.tolist(), epochs.tolist(), strict=True)}:
            rows = (sources == source) & (epochs == epoch)
            numbers[rows], keys[rows] = self.sources[source].at_epoch(epoch).lookup(places[rows])
        indices = self._starts[sources] + numbers
        # A plan's keys are the numbers. What distinguishes other keys is spread over 64 bits (arrays wrap around), away
        # from the count of epochs.
        return indices, epochs * self._starts[-1] + indices + (keys - numbers) * _SPREAD

    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return the index of the sample of the same source that replaces a bad one."""
        source = int(np.searchsorted(self._starts, index, "right")) - 1
        first = int(self._starts[source])
        return first + self.sources[source].order.replacement_index(index - first, rng_key, attempt)

    def turns(self, position: int) -> tuple[int, ...]:
        """Return how many turns each source has had before a position that counts from epoch 0 on."""
        stretch = self._stretches[bisect_right(self._stretches, position, key=lambda part: part.start) - 1]
        windows, rest = divmod(position - stretch.start, sum(stretch.weights))
        sources, _ = self._turns_in(stretch, np.arange(position - rest, position, dtype=np.int64))
        counts = np.bincount(sources, minlength=len(self.sources)).tolist()
        every = zip(stretch.turns, stretch.weights, counts, strict=True)
        return tuple(before + windows * weight + more for before, weight, more in every)

    def resumed(self, since: int, position: int, turns: Sequence[int]) -> "MixedPlan":
        """Return the order that has changed to these weights at `since`, and had `turns` of each source at `position`.

        Positions count from epoch 0 on. Raises ConfigError if these weights cannot come to such turns.
        """
        drawn = replace(self, since=since, begun=(0,) * len(self.sources)).turns(position)
        begun = tuple(now - later for now, later in zip(turns, drawn, strict=False))
        if len(turns) != len(drawn) or min(begun) < 0 or sum(begun) != since or since > position:
            raise ConfigError(f"its sources cannot have come to {shown(list(turns))} at sample {position}")
        return replace(self, since=since, begun=begun)

    def _turns_at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source at each position, counted from the first epoch on, and its number of earlier turns."""
        if len(self._stretches) == 1:
            return self._turns_in(self._stretches[0], positions)
        numbers = np.searchsorted([part.start for part in self._stretches], positions, "right") - 1
        sources, turns = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            sources[rows], turns[rows] = self._turns_in(self._stretches[number], positions[rows])
        return sources, turns

    def _turns_in(self, stretch: _Stretch, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the same for positions of one stretch."""
        window = _window(stretch.weights)
        length = len(window.sources)
        places = positions - stretch.start
        windows, slots = places // length, places % length
        numbers, inverse = np.unique(windows, return_inverse=True)
        sources = np.broadcast_to(window.sources, (len(numbers), length))
        if self.shuffle is not None:
            every = (stretch.start + numbers[:, None] * length + np.arange(length)).astype(np.uint64)
            keys = splitmix64(every + np.uint64(derive(self.seed, 0x717)))
            sources = np.take_along_axis(sources, np.argsort(keys, axis=1, kind="stable"), axis=1)
        # Group the slots by source, in order: the rank within a group is the turn within the window.
        grouped = np.argsort(sources, axis=1, kind="stable")
        ranks = np.empty_like(grouped)
        np.put_along_axis(ranks, grouped, np.arange(length)[None, :], axis=1)
        found = sources[inverse, slots].astype(np.int64)
        before = np.array(stretch.turns) - window.firsts
        return found, ranks[inverse, slots] + windows * window.weights[found] + before[found]
