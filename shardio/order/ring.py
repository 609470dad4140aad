"""Rows cut from a ring: documents end to end, whose last entry is followed by the first, in rows of one length.

Each epoch enters the ring at another place, where the first row begins; a permutation shuffles the rows. So the rows of
two epochs differ, no entry comes twice in an epoch, and fewer entries than a row has are left out.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from .permutation import derive
from .plan import OrderOfSamples

_ENTRY = 0x217  # the purpose for which keys are derived


@final
@dataclass(frozen=True, slots=True)
class RingPlan(OrderOfSamples):
    """The order of one epoch of rows: a `plan.Order` whose numbers are places on the ring, those of first entries.

    Args:
        samples: the order of the `entries // length` rows. If it is the stored one, each epoch enters the ring at its
            first entry.
        entries: the entries on the ring, fewer than 2^62.
        length: the entries of a row.

    Raises ConfigError unless the order is one of as many rows as the entries make.
    """

    entries: int
    length: int
    _first: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.length <= self.entries < 1 << 62 or self.n != self.entries // self.length:
            raise ConfigError(f"{self.entries} entries on a ring do not make {self.n} rows of {self.length}")
        first = derive(self.seed, self.epoch, _ENTRY) % self.entries if self.shuffling.shuffle else 0
        object.__setattr__(self, "_first", first)

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the place where the row at each position in [0, n) begins. It is also the row's random key."""
        places = self._places(self.samples.lookup(positions)[0])
        return places, places

    def _places(self, rows: NDArray[np.int64]) -> Indices:
        return (self._first + self.length * rows) % self.entries

    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return the place of another row of the epoch for a bad one at attempt 1, 2, ..."""
        row = self.samples.replacement_index(index, rng_key, attempt)
        return (self._first + self.length * row) % self.entries

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last window that hold positions start..stop-1; (0, -1) without block shuffle."""
        return self.samples.windows(start, stop)

    def runs(self, start: int, stop: int) -> list[range]:
        """Return the places at which the rows in windows start..stop-1 begin, in runs of neighbours."""
        runs = list[range]()
        for run in self.samples.runs(start, stop):
            first = int(self._places(np.array([run.start]))[0])
            before = min(len(run), -(-(self.entries - first) // self.length))
            for begin, count in ((first, before), (first + self.length * before - self.entries, len(run) - before)):
                if count:
                    runs.append(range(begin, begin + self.length * count, self.length))
        return runs
