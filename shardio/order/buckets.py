"""Buckets: batches of samples of like length, an order whose positions are batches.

Windows of equal length cut the order of the samples. In each window the samples are sorted by length, longest first,
and cut into batches; then the batches are permuted. With shuffled samples a window is a random part of the epoch, so
lengths come in random order over the whole of it, and a sample meets others in each epoch.

Source: the buckets of bucketing samplers (torchtext, fairseq), here as a pure function of order and lengths.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..system.types import Indices
from ..system.units import shown
from .permutation import Permutation, derive
from .plan import Order, OrderOfSamples

WINDOW = 1 << 16
"""The most positions of a window. The longer windows are, the less is padded. An epoch has at least four of them, or
the samples of a small dataset would meet the same ones in each epoch."""
MOST = (1 << 31) - 1
"""The greatest length."""
_LEAST_WINDOWS = 4
_ORDER = 0xB0CE7  # the purpose for which keys are derived
_DRAWS = 64  # in search of a replacement that is no longer


class Bucketing(NamedTuple):
    """The batches of buckets. A loader's state resumes only with equal ones; the string is for messages.

    Attributes:
        bucket_by: the field of the lengths, or `NAME:aspect` for the aspect ratios of images; "" without buckets.
        bucket_lengths: what transforms make of the lengths: `max=60,min=48,multiple=32` in turn, or nothing. `|`
            separates several ways, whose longest result counts. "" leaves the stored lengths; `upright` are the aspect
            ratios of upright images.
        bucket_size: samples per batch; 0 for as many as the tokens allow.
        max_tokens: the most that a batch's samples times their greatest length may be; 0 for any.
    """

    bucket_by: str = ""
    bucket_lengths: str = ""
    bucket_size: int = 0
    max_tokens: int = 0

    def __str__(self) -> str:
        if not self.bucket_by:
            return "none"
        size = f"{shown(self.bucket_size)} samples" if self.bucket_size else f"up to {shown(self.max_tokens)} tokens"
        return f"{size} by {self.by}"

    @property
    def by(self) -> str:
        """The lengths that buckets go by, in words."""
        ways = [way or "whole" for way in self.bucket_lengths.split("|")] if self.bucket_lengths else []
        words = " or ".join(ways).replace(",", " ")
        for name, phrase in (("max=", "up to "), ("min=", "padded to "), ("multiple=", "in multiples of ")):
            words = words.replace(name, phrase)
        return f"{self.bucket_by} {words}".rstrip()


@final
@dataclass(frozen=True, slots=True)
class BucketRule:
    """The rule that makes batches of samples.

    Attributes:
        by: the field of the lengths, or of images, as in `Bucketing`.
        batch_size: samples per batch; None for as many as the tokens allow.
        max_tokens: the most that a batch's samples times their greatest length may be; None for any.
        window: the most positions of a window, a multiple of `batch_size`; with None `WINDOW`, or a quarter of the
            epoch where that is less.
        lengths: what transforms make of the lengths, as in `Bucketing`.
    """

    by: str
    batch_size: int | None = None
    max_tokens: int | None = None
    window: int | None = None
    lengths: str = ""

    @property
    def bucketing(self) -> Bucketing:
        """The rule without its window, which follows from the shuffling."""
        return Bucketing(self.by, self.lengths, self.batch_size or 0, self.max_tokens or 0)

    def positions(self, samples: int) -> int:
        """Return the number of positions of a window in an epoch of so many samples."""
        whole = self.batch_size or 1
        window = self.window or min(WINDOW, -(-samples // _LEAST_WINDOWS))
        return -(-window // whole) * whole


class _Batches(NamedTuple):
    """The batches of an epoch.

    Attributes:
        places: the position of each sample in its window, by batch, [samples]; a window's batches stay together.
        ends: where batches end in `places`, int64 [batches].
    """

    places: NDArray[Any]
    ends: NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Buckets(OrderOfSamples):
    """An epoch in batches of samples of like length: a `plan.Order` whose positions are batches.

    The batches of an epoch are made when they are first asked for: 2 bytes for each sample, and 8 for each batch.

    Args:
        samples: the order of the samples, at one epoch.
        lengths: the length of each sample by its number, of any integer dtype, 0 to MOST.
        rule: what makes batches.
    """

    lengths: NDArray[Any] = field(repr=False, compare=False)
    rule: BucketRule
    _batches: Callable[[], _Batches] = field(init=False, repr=False, compare=False)
    _at_epoch: Callable[[int], "Buckets"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_batches", lru_cache(maxsize=1)(partial(_made, self.samples, self.lengths, self.rule))
        )
        # Kept with its batches: workers ask for the next epoch before its loop does.
        at_epoch = lru_cache(maxsize=1)(partial(_at_epoch, self.samples, self.lengths, self.rule))
        object.__setattr__(self, "_at_epoch", at_epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.samples, self.lengths, self.rule, self._batches())

    @property
    def n(self) -> int:
        """The number of batches in the epoch."""
        return len(self.ends)

    @property
    def ends(self) -> NDArray[np.int64]:  # type: ignore[override]  # made when it is first asked for
        """The number of samples in all batches up to each one, int64 [n]."""
        return self._batches().ends

    @property
    def largest(self) -> int:
        """The most samples that a batch of any epoch may have."""
        if self.rule.max_tokens is None:
            return self.rule.batch_size or 1
        return min(self.rule.positions(self.samples.n), self.rule.max_tokens // max(1, int(self.lengths.min())))

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample index and the random key of each sample of some batches in [0, n)."""
        places, ends = self._batches()
        begins = np.where(positions > 0, ends[positions - 1], 0)
        sizes = ends[positions] - begins
        before = np.cumsum(sizes) - sizes
        rows = np.arange(sizes.sum()) + np.repeat(begins - before, sizes)
        return self.samples.lookup(rows - rows % self._window + places[rows])

    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return another sample for a bad one.

        It is no longer than that, if a few draws find such a sample, so that the batch keeps within its tokens.
        """
        longest = int(self.lengths[index])
        draws = [self.samples.replacement_index(index, rng_key, attempt * _DRAWS + draw) for draw in range(_DRAWS)]
        return min(draws, key=lambda drawn: max(longest, int(self.lengths[drawn])))  # the first of equals

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last shuffling window of the samples whose batches are start..stop-1."""
        ends, window = self.ends, self._window
        first, last = (int(ends[start - 1]) if start else 0), int(ends[stop - 1]) - 1
        end = min(self.samples.n, (last // window + 1) * window)
        return self.samples.windows(first - first % window, end)

    def runs(self, start: int, stop: int) -> list[range]:
        """Return the runs of neighbouring samples in shuffling windows start..stop-1."""
        return self.samples.runs(start, stop)

    def at_epoch(self, epoch: int) -> "Buckets":
        """Return the order of another epoch; ConfigError if `epoch` is negative or too large."""
        return self._at_epoch(epoch)

    @property
    def _window(self) -> int:
        return self.rule.positions(self.samples.n)


def _at_epoch(samples: Order, lengths: NDArray[Any], rule: BucketRule, epoch: int) -> Buckets:
    return Buckets(samples.at_epoch(epoch), lengths, rule)


def _rebuilt(samples: Order, lengths: NDArray[Any], rule: BucketRule, batches: _Batches) -> Buckets:
    rebuilt = Buckets(samples, lengths, rule)
    object.__setattr__(rebuilt, "_batches", lambda: batches)
    return rebuilt


def _made(samples: Order, lengths: NDArray[Any], rule: BucketRule) -> _Batches:
    """Make the batches of an epoch, window by window."""
    window = rule.positions(samples.n)
    places = np.empty(samples.n, np.min_scalar_type(window - 1))
    every: list[NDArray[np.int64]] = []
    for number, first in enumerate(range(0, samples.n, window)):
        part = places[first : first + window]
        numbers, _ = samples.lookup(np.arange(first, first + len(part)))
        sizes = _sorted(lengths[numbers].astype(np.int64), rule, part)
        if samples.shuffling.shuffle:
            sizes = _permuted(sizes, part, derive(samples.seed, samples.epoch, number, _ORDER))
        every.append(sizes)
    return _Batches(places, np.cumsum(np.concatenate(every)))


def _sorted(lengths: NDArray[np.int64], rule: BucketRule, places: NDArray[Any]) -> NDArray[np.int64]:
    """Fill in the positions of a window's samples by length, longest first; return the sizes of batches, int64 [k]."""
    count = len(lengths)
    # Sorting one number for length and place is far faster than sorting places by length.
    keys = ((MOST - lengths) << 32) + np.arange(count)
    keys.sort()
    places[:] = keys & ((1 << 32) - 1)
    if rule.max_tokens is None:
        return np.diff(np.append(np.arange(0, count, rule.batch_size), count))
    most = rule.max_tokens // np.maximum(1, MOST - (keys >> 32))
    fits = memoryview(most)
    begins, place = list[int](), 0
    while place < count:
        begins.append(place)
        place += fits[place]
    return np.diff([*begins, count])


def _permuted(sizes: NDArray[np.int64], places: NDArray[Any], key: int) -> NDArray[np.int64]:
    """Permute the batches of a window in `places`, and return their sizes in the new order."""
    order = Permutation(len(sizes), key)(np.arange(len(sizes)))
    begins = np.cumsum(sizes) - sizes
    permuted = sizes[order]
    rows = np.arange(len(places)) + np.repeat(begins[order] - (np.cumsum(permuted) - permuted), permuted)
    places[:] = places[rows]
    return permuted
