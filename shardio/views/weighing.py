"""Weights of samples, given or by class, as intervals that an order draws from (`order/weighted.py`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format.file_table import Table, checksum_of
from ..order.weighted import ClassPoints, Points, SamplePoints, distance_bits
from .choice import Arrays, Choice, Count
from .columns import categories, scalars
from .readable import ReadableDataset
from .split import narrow

_AT_ONCE = 1 << 20  # weights that are computed with together
_NEAR = 2.0**-46  # relative; an expected count so near to an integer is that integer


class _WeightsNode(msgspec.Struct, forbid_unknown_fields=True):
    weighted: str | tuple[str, str]
    samples: Count | None
    replacement: bool


@final
class Weights(Choice, frozen=True, eq=False):
    """A weight for each sample.

    Attributes:
        weights: numbers that were given, [n]; or the name of a field of scalars that holds them.
        samples: samples per epoch; None stands for as many as are weighed.
        replacement: whether each is drawn independently.
    """

    weights: str | Table
    samples: int | None
    replacement: bool

    def made(self, base: ReadableDataset) -> Points:
        weights = scalars(base, self.weights) if isinstance(self.weights, str) else self.weights
        count = check_samples(self.samples, base)
        if weights.shape != (len(base),) or weights.dtype.kind not in "biuf":
            found = f"{list(weights.shape)} of {weights.dtype}"
            raise ConfigError(f"weights must be {len(base)} numbers, one for each sample, got {found}")
        return SamplePoints(interval_ends(weights, count))

    def description(self) -> dict[str, Any]:
        by: Any = self.weights
        if not isinstance(by, str):
            by = [checksum_of(by), by.dtype.str]
        return {"weighted": by, "samples": self.samples, "replacement": self.replacement}

    @property
    def arrays(self) -> Sequence[Table]:
        return () if isinstance(self.weights, str) else (self.weights,)

    @classmethod
    def restored(cls, described: Mapping[str, Any], base: ReadableDataset, arrays: Arrays) -> Self:
        node = msgspec.convert(described, _WeightsNode)
        by = node.weighted if isinstance(node.weighted, str) else arrays(*node.weighted, len(base))
        return cls(by, node.samples, node.replacement)


@final
class Balance(Choice, frozen=True, rename={"field": "balanced"}):
    """The same weight for each class, and within a class for each sample.

    Attributes:
        field: the field whose values are the classes.
        samples, replacement: see `Weights`.
    """

    field: str
    samples: Count | None
    replacement: bool

    def made(self, base: ReadableDataset) -> Points:
        count = check_samples(self.samples, base)
        numbers, names = categories(base, self.field)
        order = np.argsort(narrow(numbers), kind="stable")
        members = order.astype(np.uint32) if len(order) <= np.iinfo(np.uint32).max else order
        firsts = np.cumsum([0, *np.bincount(numbers, minlength=len(names))])
        return ClassPoints(members, firsts, count << distance_bits(count))


def check_samples(samples: int | None, base: ReadableDataset) -> int:
    """Return the number of samples per epoch; ConfigError unless it is an integer in [1, 2^48)."""
    if not len(base):
        raise ConfigError(f"{base.path}: there are no samples to weigh")
    if samples is not None and not 1 <= samples < 1 << 48:
        raise ConfigError(f"samples must be an integer in [1, 2^48), got {samples!r}")
    return len(base) if samples is None else samples


def interval_ends(weights: Table, samples: int) -> NDArray[np.int64]:
    """Return where the intervals of samples end, int64 [n], that are in proportion to their weights.

    Their lengths add up to `samples << distance_bits(samples)` exactly. An expected count that is an integer gives
    an integer number of distances; any other one is between the same two integers as its interval.
    """
    unit = 1 << distance_bits(samples)
    parts = _parts(len(weights))
    total = math.fsum(_sum(weights[part], part.start) for part in parts)
    if not 0 < total < math.inf:
        raise ConfigError(f"weights must have a sum that is above 0 and finite, got {total}")
    lengths = np.empty(len(weights), np.int64)
    for part in parts:
        expected = weights[part].astype(np.float64) / total * samples
        near = np.rint(expected)
        whole = np.where(np.abs(expected - near) <= near * _NEAR, near, np.floor(expected))
        within = np.clip(np.rint((expected - whole) * unit), 0, unit)  # less than 0 if the nearest is above
        lengths[part] = whole.astype(np.int64) * unit + within.astype(np.int64)
    _share_out(samples * unit - int(lengths.sum()), lengths, unit)
    return np.cumsum(lengths, out=lengths)


def _sum(weights: NDArray[Any], first: int) -> float:
    if weights.dtype.kind in "if" and not (good := np.isfinite(weights) & (weights >= 0)).all():
        wrong = int(np.argmin(good))
        raise ConfigError(f"weights must be finite and at least 0, got {weights[wrong]} for sample {first + wrong}")
    return float(weights.sum(dtype=np.longdouble))


def _share_out(lacking: int, lengths: NDArray[np.int64], unit: int) -> None:
    """Add what rounding has lost, or remove what it has won, evenly from lengths that are no multiples of `unit`."""
    while lacking:
        many = sum(int(np.count_nonzero(lengths[part] % unit)) for part in _parts(len(lengths)))
        if not many:  # beyond 2^46 samples, where float64 has no fractions left for expected counts
            lengths[np.argmax(lengths)] += lacking
            return
        before, share, left = 0, abs(lacking) / many, lacking
        for part in _parts(len(lengths)):
            own = lengths[part]
            open_ones = np.flatnonzero(own % unit)
            ends = np.rint((before + np.arange(len(open_ones) + 1)) * share).astype(np.int64)
            within = own[open_ones] % unit
            more = np.clip(np.diff(ends) * (1 if lacking > 0 else -1), -within, unit - within)
            own[open_ones] += more
            before, left = before + len(open_ones), left - int(more.sum())
        lacking = left


def _parts(count: int) -> list[slice]:
    return [slice(start, start + _AT_ONCE) for start in range(0, count, _AT_ONCE)]
