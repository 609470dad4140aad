"""The choices that a view can make of a dataset: a slice, samples by number, those for which a condition holds."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format.file_table import Table, checksum_of
from ..system.types import Indices
from .columns import AT_ONCE, categories, in_parts
from .expression import Condition, Expression
from .index_map import IndexMap, NumberMap, RangeMap, of_mask
from .readable import ReadableDataset
from .split import split_by

_FAR = 1 << 62
_TEXTS_AT_ONCE = 1 << 14  # samples whose texts one thread reads together


class Choice(Protocol):
    """The choice that a view makes of its dataset. It can be written down, and gives the same index map anywhere."""

    def index_map(self, base: ReadableDataset) -> IndexMap:
        """Return which sample of `base` each of the view's samples is."""

    def description(self) -> dict[str, Any]:
        """Return the choice as JSON values; an array is given by its checksum."""

    def in_earlier(self, chosen: IndexMap, samples: int) -> int | None:
        """Return how many samples the same choice makes of the first `samples` of the dataset.

        None unless these come first in the view, which `chosen` maps.
        """


@final
@dataclass(frozen=True, slots=True)
class Slice:
    """`dataset[start:stop:step]`."""

    start: int | None
    stop: int | None
    step: int | None

    @classmethod
    def of(cls, given: slice) -> "Slice":
        """Return a slice in Python's integers, no farther out than any dataset reaches; ConfigError for others."""
        try:
            bounds = [
                None if bound is None else max(-_FAR, min(operator.index(bound), _FAR))
                for bound in (given.start, given.stop, given.step)
            ]
        except TypeError as error:
            raise ConfigError(f"not a slice of samples: {given}: {error}") from error
        return cls(*bounds)

    def index_map(self, base: ReadableDataset) -> IndexMap:
        try:
            return RangeMap(range(len(base))[slice(self.start, self.stop, self.step)])
        except ValueError as error:
            raise ConfigError(f"not a slice of samples: [{self.start}:{self.stop}:{self.step}]: {error}") from error

    def description(self) -> dict[str, Any]:
        return {"slice": [self.start, self.stop, self.step]}

    def in_earlier(self, chosen: IndexMap, samples: int) -> int | None:
        before = range(samples)[slice(self.start, self.stop, self.step)]
        first = chosen(np.arange(min(1, len(chosen))))
        begins_alike = not len(before) or (len(before) <= len(chosen) and before.start == first[0])
        return len(before) if begins_alike and before.step == (self.step or 1) else None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Samples by their numbers, int64 [n], in any order."""

    numbers: Table

    def index_map(self, base: ReadableDataset) -> IndexMap:
        return NumberMap(self.numbers)

    def description(self) -> dict[str, Any]:
        return {"select": checksum_of(self.numbers), "count": len(self.numbers)}

    def in_earlier(self, chosen: IndexMap, samples: int) -> int | None:
        return len(self.numbers) if chosen.leading(samples) == len(self.numbers) else None


@final
@dataclass(frozen=True, slots=True)
class Where:
    """The samples for which a condition holds, in their order."""

    condition: str

    def bound(self, base: ReadableDataset) -> Condition:
        """Return the condition as one on the fields of a dataset."""
        expression = Expression(self.condition)
        for name in sorted(expression.names | expression.tested):
            base.field(name)  # says why it is not there
        return expression.bind(base.fields, base.metadata)

    def masks(self, base: ReadableDataset, first: int = 0) -> Iterator[NDArray[np.bool_]]:
        """Return whether the condition holds for each sample from `first` on, bool [n], in consecutive parts."""
        condition = self.bound(base)

        def holds(numbers: Indices) -> NDArray[np.bool_]:
            return condition.of(base.selection(numbers), len(numbers))

        return in_parts(holds, len(base), _TEXTS_AT_ONCE if condition.texts else AT_ONCE, first)

    def index_map(self, base: ReadableDataset) -> IndexMap:
        return of_mask(self.masks(base))

    def description(self) -> dict[str, Any]:
        return {"where": self.condition}

    def in_earlier(self, chosen: IndexMap, samples: int) -> int | None:
        return chosen.leading(samples)


@final
@dataclass(frozen=True, slots=True)
class Part:
    """One part of a split: see `BaseDataset.split`."""

    shares: Mapping[str, float]
    part: str
    by: str | None
    group: str | None
    seed: int

    def index_map(self, base: ReadableDataset) -> IndexMap:
        return self.index_maps(base)[self.part]

    def index_maps(self, base: ReadableDataset) -> dict[str, IndexMap]:
        """Return the samples of every part; ConfigError if one has none."""
        classes, groups = (None if name is None else categories(base, name)[0] for name in (self.by, self.group))
        maps = {}
        for name, numbers in split_by(len(base), self.shares, self.seed, classes, groups).items():
            if not len(numbers):
                raise ConfigError(
                    f"{base.path}: the {len(base)} samples cannot fill all parts: none is left for {name!r}"
                )
            mask = np.zeros(len(base), np.bool_)
            mask[numbers] = True
            maps[name] = of_mask([mask])
        return maps

    def description(self) -> dict[str, Any]:
        return {
            "split": dict(self.shares), "part": self.part, "by": self.by, "group": self.group, "seed": self.seed,
        }  # fmt: skip

    def in_earlier(self, chosen: IndexMap, samples: int) -> int | None:
        return None  # more samples are split otherwise
