"""Splits: which samples each part of a dataset gets, in shares, by class and without tearing groups apart."""

import math
import re
from collections.abc import Iterator, Mapping
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, Message
from ..order.permutation import Permutation, derive
from ..system.types import Indices

_SPLIT = 2  # the purpose of the key, which differs from that of `--shuffle`
_WHOLE = 1e-9  # a share of some samples that is so near to an integer is that integer


def parse_split(given: str | Mapping[str, float]) -> dict[str, int | float]:
    """Return the shares of splits, given as such or in text as `train=0.9,val=0.1`; ConfigError for what breaks a rule.

    Each share is in (0, 1], and they add up to at most 1.
    """
    if not isinstance(given, str | Mapping):
        raise ConfigError("{split} must be a dict such as {}, got {!r}", "{'train': 0.9, 'val': 0.1}", given)
    shares = dict[str, float]() if isinstance(given, str) else given
    for part in given.split(",") if isinstance(given, str) else ():
        name, _, text = (piece.strip() for piece in part.partition("="))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not name or math.isnan(value) or name in shares:
            raise ConfigError("{split} must be names and shares such as train=0.9,val=0.1, got {!r}", given)
        shares = {**shares, name: value}
    if not shares:
        raise ConfigError(
            Message("{split} must name at least one dataset and its share, such as {{'train': 0.9, 'val': 0.1}}")
        )
    for name, share in shares.items():
        if not isinstance(name, str) or not isinstance(share, Real):
            raise ConfigError(f"a split must have numbers by name, got {name!r}: {share!r}")
        if not re.fullmatch(r"(?=.*[A-Za-z0-9])[A-Za-z0-9_-]{1,200}", name):
            raise ConfigError(f"a split's name is at most 200 letters, digits, '-' and '_', got {name!r}")
        if not 0 < share <= 1:
            raise ConfigError(f"a split's share must be above 0 and at most 1, got {name}={share}")
    total = math.fsum(shares.values())
    if total > 1 + 1e-9:
        raise ConfigError(f"the splits' shares must add up to at most 1, they add up to {total:g}")
    return {name: float(share) for name, share in shares.items()}


def split(count: int, shares: Mapping[str, float], seed: int) -> dict[str, Indices]:
    """Return a random share of the numbers 0 to count - 1 for each part, ascending; shares of 1 in all take all."""
    # A number's turn in a random order decides its part, so that the sizes are exact.
    turns = _turns(count, seed)
    ends = [round(min(1.0, end) * count) for end in np.cumsum(list(shares.values()))]
    starts = [0, *ends[:-1]]
    return {
        name: np.flatnonzero((turns >= start) & (turns < end))
        for name, start, end in zip(shares, starts, ends, strict=True)
    }


def split_by(
    count: int,
    shares: Mapping[str, float],
    seed: int,
    classes: NDArray[np.int64] | None,
    groups: NDArray[np.int64] | None,
) -> dict[str, Indices]:
    """Return which samples each part gets, ascending, where classes keep their shares and groups stay whole.

    A group counts for the class that most of its samples have. Within each class the largest groups are given out
    first, those of one size in random order: each part gets as many as its share of what it still lacks, and those
    left over go where most is lacking, of this class and of those before. Without groups every sample is one of its
    own, and each part gets the floor or the ceiling of its share of each class.

    Args:
        count: the number of samples.
        shares: the share of each part, by name.
        seed: determines the random order.
        classes: the class of each sample as a number from 0 on, int64 [count]; None for one class.
        groups: the group of each sample as a number from 0 on, int64 [count]; None if samples are on their own.
    """
    if classes is None and groups is None:
        return split(count, shares, seed)
    sizes = None if groups is None else np.bincount(groups)
    units = count if sizes is None else len(sizes)
    strata = np.zeros(units, np.int64) if classes is None else classes if groups is None else _majority(groups, classes)
    order = np.empty(units, np.int64)
    order[_turns(units, seed)] = np.arange(units)
    if sizes is not None:
        order = order[np.argsort(-sizes[order], kind="stable")]
    order = order[np.argsort(narrow(strata)[order], kind="stable")]
    rest = 1 - min(1.0, math.fsum(shares.values()))
    wanted = np.array([*shares.values(), rest if rest > _WHOLE else 0.0])
    wanted /= wanted.sum()
    part_of_unit = np.empty(units, np.int8 if len(wanted) < 127 else np.int64)
    for run, given in _given_out(strata[order], None if sizes is None else sizes[order], wanted):
        part_of_unit[order[run]] = np.repeat(np.arange(len(wanted)), given)
    part_of = part_of_unit if groups is None else part_of_unit[groups]
    return {name: np.flatnonzero(part_of == number) for number, name in enumerate(shares)}


def _turns(count: int, seed: int) -> Indices:
    return Permutation(count, derive(seed, _SPLIT))(np.arange(count)) if count else np.arange(0)


def _majority(groups: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class that most samples of each group have, the first of them if several have as many."""
    many = int(classes.max(initial=0)) + 1
    pairs, counts = np.unique(groups * many + classes, return_counts=True)
    best = np.lexsort((-(pairs % many), counts, pairs // many))  # of each group, the most frequent class last
    last = np.flatnonzero(np.diff(pairs[best] // many, append=-1))
    majority: NDArray[np.int64] = pairs[best[last]] % many
    return majority


def narrow(numbers: NDArray[np.int64]) -> NDArray[np.int64] | NDArray[np.uint16]:
    """Return numbers in 16 bits if they fit: NumPy sorts these much faster."""
    return numbers.astype(np.uint16) if numbers.max(initial=0) < 1 << 16 else numbers


def _given_out(
    strata: NDArray[np.int64], sizes: NDArray[np.int64] | None, shares: NDArray[np.float64]
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield runs of units of one class and size, sorted as `split_by` does, and how many of each run each part gets."""
    if not len(strata):
        return
    changes = np.diff(strata) != 0
    if sizes is not None:
        changes |= np.diff(sizes) != 0
    ends = [*(np.flatnonzero(changes) + 1).tolist(), len(strata)]
    carried, lacking, before = np.zeros(len(shares)), np.zeros(len(shares)), -1
    samples = np.bincount(strata, sizes)
    for start, stop in zip([0, *ends], ends, strict=False):
        if strata[start] != before:
            before = int(strata[start])
            carried, lacking = carried + lacking, shares * samples[before]
        size = 1 if sizes is None else int(sizes[start])
        open_shares = np.maximum(lacking, 0)
        quotas = (stop - start) * open_shares / open_shares.sum()
        given = np.floor(quotas + _WHOLE).astype(np.int64)
        fractions = np.where(quotas - given > _WHOLE, quotas - given, -np.inf)
        left = stop - start - int(given.sum())
        given[np.argsort(-(fractions * size + carried), kind="stable")[:left]] += 1
        lacking -= given * size
        yield slice(start, stop), given
