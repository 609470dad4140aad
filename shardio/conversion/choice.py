"""Which of a source's samples are converted, and in which order: numbers, chosen before anything is written."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..order.permutation import Permutation, derive

_SHUFFLE, _SPLIT = 1, 2  # so that one seed gives two unrelated orders


def shuffled(numbers: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """`numbers` in a random order, a pure function of their count and the seed."""
    if not len(numbers):
        return numbers
    return numbers[Permutation(len(numbers), derive(seed, _SHUFFLE))(np.arange(len(numbers)))]


def split(numbers: NDArray[np.int64], parts: Mapping[str, float], seed: int) -> dict[str, NDArray[np.int64]]:
    """Each part's random share of `numbers`, in their order; together all of them if the shares add up to 1.

    Raises ConfigError for shares that are not in (0, 1] or add up to more than 1.
    """
    for name, share in parts.items():
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise ConfigError(f"a split's name is letters, digits, '-' and '_', got {name!r}")
        if not 0 < share <= 1:
            raise ConfigError(f"a split's share must be above 0 and at most 1, got {name}={share:g}")
    total = math.fsum(parts.values())
    if total > 1 + 1e-9:
        raise ConfigError(f"the splits' shares must add up to at most 1, they add up to {total:g}")
    count = len(numbers)
    # A sample's turn in a random order decides its part, so that the parts' sizes are exact.
    turns = Permutation(count, derive(seed, _SPLIT))(np.arange(count)) if count else np.arange(0)
    ends = [round(min(1.0, end) * count) for end in np.cumsum(list(parts.values()))]
    starts = [0, *ends[:-1]]
    return {
        name: numbers[(turns >= start) & (turns < end)] for name, start, end in zip(parts, starts, ends, strict=True)
    }


def parse_split(text: str) -> dict[str, float]:
    """The shares in text such as `train=0.9,val=0.1`; ConfigError if it is none."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = (piece.strip() for piece in part.partition("="))
        try:
            value = float(share)
        except ValueError:
            value = math.nan
        if not equals or not name or math.isnan(value) or name in shares:
            raise ConfigError(f"split must be names and shares such as train=0.9,val=0.1, got {text!r}")
        shares[name] = value
    return shares


def cut(sizes: NDArray[np.int64], shard_size: int) -> list[tuple[int, int]]:
    """Where shards begin and end, [(start, stop), ...]: each ends once it holds `shard_size` bytes or more."""
    ends = np.cumsum(sizes)
    cuts, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = min(len(sizes), int(np.searchsorted(ends, before + shard_size)) + 1)
        cuts.append((start, stop))
        start = stop
    return cuts
