"""Ranges of an order's positions, read one after the other: batches are cut from the beginning of each range on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from .plan import OrderOfSamples


@final
@dataclass(frozen=True, slots=True)
class Ranges(OrderOfSamples):
    """Batches of some ranges of another order's positions: a `plan.Order` whose positions are batches.

    A sample keeps its random key, so that neither the ranges nor the batches change what is drawn for it.

    Args:
        samples: the order.
        ranges: ranges of its positions, in any order; one may come several times.
        batch_size: the samples of a batch; the last batch of a range may have fewer.
        ends: the number of samples in all batches up to each one, int64 [n].
    """

    ranges: Sequence[range]
    batch_size: int
    ends: NDArray[np.int64] = field(init=False, repr=False, compare=False)  # type: ignore[misc]  # a value of each
    _begins: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples.ends is not None:
            raise ConfigError("ranges are of samples, and the positions of this order are batches of any length")
        begins = [np.arange(each.start, each.stop, self.batch_size) for each in self.ranges]
        sizes = [np.minimum(self.batch_size, each.stop - own) for each, own in zip(self.ranges, begins, strict=True)]
        object.__setattr__(self, "_begins", np.concatenate(begins))
        object.__setattr__(self, "ends", np.cumsum(np.concatenate(sizes)))

    @property
    def n(self) -> int:
        """The number of batches."""
        return len(self.ends)

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample index and the random key of each sample of some batches in [0, n)."""
        sizes = self.ends[positions] - np.where(positions > 0, self.ends[positions - 1], 0)
        rows = np.arange(sizes.sum()) + np.repeat(self._begins[positions] - (np.cumsum(sizes) - sizes), sizes)
        return self.samples.lookup(rows)

    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return the sample that the other order names."""
        return self.samples.replacement_index(index, rng_key, attempt)

    def at_epoch(self, epoch: int) -> NoReturn:
        """Raise ConfigError: no epoch follows, so that workers begin none."""
        raise ConfigError("ranges are of one epoch, and {epoch} is {}", epoch)
