"""Numbers counted by value in bounded memory, and what is said of them: quantiles, moments, histograms."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

BINS = 20
_WIDE = 50  # a largest value so many times the smallest gets bins that grow with the value
_MANTISSA = 52  # bits of a float64
_LARGEST_WHOLE = 2.0**63 - 2**10  # among the float64 that an int64 holds

Numbers: TypeAlias = NDArray[Any]
"""int64, or float64 where they are not whole."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values are in each bin.

    Attributes:
        edges: of the bins, ascending, one more than bins. A bin holds its lower edge and not its upper one; only the
            last bin of numbers that are not whole holds both.
        counts: values in each bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Where some numbers lie.

    Attributes:
        count: how many.
        min, max, mean: of them.
        std: their standard deviation, `sqrt(mean((x - mean)^2))`.
        median, p95: half of them and 95 % of them are at most so much; between two values interpolated.
        histogram: of all.
    """

    count: int
    min: float
    median: float
    mean: float
    p95: float
    max: float
    std: float
    histogram: Histogram


@final
class Tally:
    """Counts numbers by value: exactly up to `MOST` different ones, from there on by values rounded to fewer bits.

    The bits left are as many as `MOST` allows, so a rounded quantile is off by about a part in `MOST` of the numbers.

    Attributes:
        values: different values, ascending.
        counts: how often each was added, int64.
    """

    MOST = 1 << 18

    def __init__(self, dtype: type[np.int64] | type[np.float64], rounded: "Rounding | None" = None) -> None:
        self.values: Numbers = np.empty(0, dtype)
        self.counts = np.empty(0, np.int64)
        self._rounded = rounded or round_to_bits
        self._bits = _MANTISSA
        self._low, self._high = math.inf, -math.inf

    @property
    def exact(self) -> bool:
        """Whether nothing was rounded."""
        return self._bits == _MANTISSA

    def add(self, values: NDArray[Any], counts: NDArray[np.int64] | int = 1) -> None:
        """Counts numbers of any shape, all finite: each once, or as often as `counts` says."""
        added = values.reshape(-1).astype(self.values.dtype)
        if not len(added):
            return
        self._low, self._high = min(self._low, added.min().item()), max(self._high, added.max().item())
        self._merge(self._round(added), np.broadcast_to(counts, added.shape))
        while len(self.values) > self.MOST:
            self._bits -= 1
            values, counts = self._round(self.values), self.counts
            self.values, self.counts = self.values[:0], self.counts[:0]
            self._merge(values, counts)

    def spread(self, *, growing: bool = False) -> Spread | None:
        """What is said of them all; None of none."""
        return spread_of(self.values, self.counts, growing=growing, ends=(self._low, self._high))

    def _round(self, values: Numbers) -> Numbers:
        return values if self.exact else self._rounded(values, self._bits)

    def _merge(self, values: Numbers, counts: NDArray[np.int64]) -> None:
        self.values, which = np.unique(np.concatenate((self.values, values)), return_inverse=True)
        total = np.zeros(len(self.values), np.int64)
        np.add.at(total, which, np.concatenate((self.counts, counts)))
        self.counts = total


def round_to_bits(values: Numbers, bits: int) -> Numbers:
    """Each value to so many bits; whole numbers stay whole."""
    share, exponent = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(np.ldexp(share, bits)), exponent - bits)
    most = np.finfo(np.float64).max if values.dtype.kind == "f" else _LARGEST_WHOLE
    result: Numbers = np.clip(rounded, -most, most).astype(values.dtype)
    return result


Rounding: TypeAlias = Callable[[Numbers, int], Numbers]
"""Values, and how many bits of each to keep."""


def spread_of(
    values: Numbers, counts: NDArray[np.int64], *, growing: bool = False, ends: tuple[float, float] | None = None
) -> Spread | None:
    """What is said of values that occur so often.

    Args:
        values: finite; int64 where they are whole.
        counts: how often each occurs.
        growing: whether the histogram's bins may grow with the value, where the values lie far apart.
        ends: the smallest and the largest, if `values` are rounded.
    """
    if not counts.sum():
        return None
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    total = int(counts.sum())
    low, high = ends or (values[0].item(), values[-1].item())
    floats = values.astype(np.float64)
    # Scaled, by a power of two so that nothing is lost: sums and squares of large numbers would be infinite.
    scale = math.ldexp(1.0, math.frexp(max(-low, high))[1] - 1)
    shares = floats / scale
    mean = float(shares @ counts) / total
    std = math.sqrt(float((shares - mean) ** 2 @ counts) / total)
    median, p95 = (min(max(_quantile(floats, counts, share), low), high) for share in (0.5, 0.95))
    histogram = _histogram(np.clip(values, low, high), counts, growing)
    return Spread(total, low, median, scale * mean, p95, high, scale * std, histogram)


def _quantile(values: NDArray[np.float64], counts: NDArray[np.int64], share: float) -> float:
    """As NumPy's default: interpolated between neighbours."""
    ends = np.cumsum(counts)
    place = share * (int(ends[-1]) - 1)
    below, above = (float(values[np.searchsorted(ends, at, "right")]) for at in (math.floor(place), math.ceil(place)))
    return below + (above / 2 - below / 2) * (2 * (place - math.floor(place)))  # the difference may be infinite


def _histogram(values: Numbers, counts: NDArray[np.int64], growing: bool) -> Histogram:
    low, high = values.min().item(), values.max().item()
    if low == high:
        return Histogram((low, low + 1 if values.dtype.kind == "i" else high), (int(counts.sum()),))
    apart = growing and low > 0 and high / low >= _WIDE
    whole = values.dtype.kind == "i" and high - low < 1 << _MANTISSA
    edges = _whole_edges(low, high, apart) if whole else _edges(float(low), float(high), apart)
    which = np.minimum(np.searchsorted(edges, values, "right") - 1, len(edges) - 2)
    binned = np.zeros(len(edges) - 1, np.int64)
    np.add.at(binned, which, counts)
    return Histogram(tuple(edges.tolist()), tuple(binned.tolist()))


def _edges(low: float, high: float, apart: bool) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # of the last one, by rounding
        if apart:
            edges = np.clip(np.exp(np.linspace(math.log(low), math.log(high), BINS + 1)), low, high)
        else:
            step = high / BINS - low / BINS  # the difference itself may be infinite
            edges = np.clip(low + step * np.arange(BINS + 1), low, high)
    edges[0], edges[-1] = low, high
    return np.unique(edges)


def _whole_edges(low: int, high: int, apart: bool) -> NDArray[Any]:
    if apart:
        return np.unique(np.rint(np.geomspace(low, high + 1, BINS + 1)).astype(np.int64))
    step = -(-(high - low + 1) // BINS)
    return np.array([low + step * bin_ for bin_ in range(-(-(high - low + 1) // step) + 1)])
