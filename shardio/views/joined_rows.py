"""Joined datasets: each sample has the fields of one dataset, and fields of a row of another one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..containers.extents import NO_BLOCKS, Extent
from ..containers.out_arrays import check_out
from ..errors import ConfigError
from ..format.fields import CHECKSUM, Field, content_columns, present_column
from ..format.limits import MAX_VALUE_BYTES
from ..format.pieces import runs
from ..stores.url import Url
from ..system.types import Indices
from .derived import Derived
from .join import Join, Match, joined_fields, joined_metadata, matched
from .readable import ReadableDataset, SelectedSamples, Stored, StoredPart, taken
from .scattered import Delegating, scattered

T = TypeVar("T")

_PARTS = re.compile(r"((?:_[a-z]+\.)*)(.*)")
"""A name: what makes it one of a hidden column, and the field."""
_PRESENCE = 2
"""Stands for a dataset where a hidden column says no more than which samples have a row in the other one."""


@final
class SideBySide(Delegating):
    """Samples to read of two datasets, in one order: each field of the dataset that has it.

    Args:
        join: the dataset that has all fields.
        numbers: the numbers of the samples in the base, and those of their rows in the other dataset, -1 where there
            is none; int64 [n] each.
        max_value_bytes: the most bytes of one value, see `Limits`.
    """

    def __init__(self, join: JoinedRows, numbers: tuple[Indices, Indices], max_value_bytes: int) -> None:
        self._join, self._numbers, self._most, self._field = join, numbers, max_value_bytes, join.field
        self._sides: dict[int, SelectedSamples] = {}

    def _side(self, side: int) -> SelectedSamples:
        """Return the samples in one of the datasets, which are located when they are first read."""
        if (found := self._sides.get(side)) is None:
            there = np.flatnonzero(self._numbers[side] >= 0)
            dataset = self._join.below[side]
            parts = [(dataset.selection(self._numbers[side][there], self._most), there)] if len(there) else []
            found = self._sides[side] = scattered(dataset.field, len(self._numbers[side]), parts)
        return found

    def _of(self, name: str) -> tuple[SelectedSamples, str]:
        side, own = self._join.side_of(name)
        return self._side(side), own

    def _split(
        self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS
    ) -> Iterator[tuple[SelectedSamples, list[str], dict[str, Extent]]]:
        """Yield which fields are read of which samples; with checksums, also the fields that a join leaves out."""
        asked = list(names)
        for side, dataset in enumerate(self._join.below):
            own = self._join.of_side(side, dict.fromkeys(asked))
            if CHECKSUM in asked:
                own |= dict.fromkeys([CHECKSUM, *content_columns(dataset.fields)])
            if own:
                yield self._side(side), list(own), self._join.of_side(side, blocks)

    def locate(self, names: Iterable[str]) -> None:
        for selection, own, _ in self._split(names):
            selection.locate(own)

    def __getitem__(self, part: slice) -> SideBySide:
        found = copy(self)
        found._numbers = (self._numbers[0][part], self._numbers[1][part])
        found._sides = {side: selection[part] for side, selection in self._sides.items()}
        return found

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        for selection, own, extents in self._split(names, blocks):
            yield from selection.stored_parts(own, extents)

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        if self._join.side_of(name)[0] != _PRESENCE:
            return super().column(name, out)
        array = check_out(out, len(self._numbers[0]), self._field(name))
        array[...] = self._numbers[1] >= 0
        return array


class JoinedRows(Derived[Match]):
    """Samples of a dataset with fields of another one.

    Attributes:
        base: the dataset whose samples they are.
        other: the dataset that has the joined fields.
        choice: which fields these are, and which row of it belongs to a sample.
        path: the path of the dataset at the bottom.
    """

    choice: Join

    def __init__(self, base: ReadableDataset, other: ReadableDataset, choice: Join) -> None:
        self._fields = joined_fields(base, other, choice)
        self._presence = frozenset(
            present_column(new)
            for new, old in choice.fields.items()
            if self._fields[new].optional and not other.fields[old].optional
        )
        self._metadata: Mapping[str, Any] = joined_metadata(base, other, choice, self._fields)
        self.other = self._other_given = other
        super().__init__(base, choice, matched(base, other, choice))

    def _make(self) -> Match:
        return matched(self._chosen_from, self._other_given, self.choice)

    def __len__(self) -> int:
        kept = self._decided().kept
        return len(self.base) if kept is None else len(kept)

    def __repr__(self) -> str:
        return f"<Joined {self._told()}: {len(self)} of {self.base!r} with {self.other!r}>"

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The base, and the other dataset."""
        return self.base, self.other

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the base, and the joined ones."""
        return self._fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the base, with the names of the joined fields' classes."""
        return self._metadata

    def side_of(self, name: str) -> tuple[int, str]:
        """Return the index in `below` of the dataset that has a field or hidden column, and its name there."""
        before, field = _PARTS.fullmatch(name).groups()  # type: ignore[union-attr]  # it matches any text
        own = self.choice.fields.get(field)
        if own is None:
            return 0, name
        return _PRESENCE if name in self._presence else 1, f"{before}{own}"

    def of_side(self, side: int, given: Mapping[str, T]) -> dict[str, T]:
        """Return what is given by field or hidden column of one dataset in `below`, by its names there."""
        return {own: one for name, one in given.items() for found, own in [self.side_of(name)] if found == side}

    def joined_from(self, name: str) -> Path | Url | None:
        side, own = self.side_of(name)
        return self.base.joined_from(name) if side == 0 else self.other.joined_from(own) or self.other.path

    def field(self, name: str) -> Field:
        if (found := self._fields.get(name)) is not None:
            return found
        if not name.startswith("_"):  # as hidden columns are called
            raise ConfigError(f"{self.path}: no field {name!r}; there are {', '.join(self._fields)}")
        side, own = self.side_of(name)
        return Field("scalar", "bool") if side == _PRESENCE else self.below[side].field(own)

    def _in_base(self, indices: Indices) -> Indices:
        kept = self._decided().kept
        return indices if kept is None else kept(indices)

    def _numbers(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the numbers of samples in the base and in the other dataset, there -1 without a row."""
        samples = self._in_base(indices)
        return samples, self._decided()(samples)

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate samples in both datasets, as `Dataset.selection` does."""
        return SideBySide(self, self._numbers(self._checked(indices)), max_value_bytes)

    def needed(self, indices: Indices) -> Iterable[tuple[int, Indices]]:
        samples, rows = self._numbers(indices)
        return (0, samples), (1, rows[rows >= 0])

    def check(self, indices: Indices, stored: Stored, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        for side, numbers in enumerate(self._numbers(indices)):
            there = np.flatnonzero(numbers >= 0)
            own = self.of_side(side, stored)
            known = own if len(there) == len(numbers) else {name: taken(each, there) for name, each in own.items()}
            self.below[side].check(numbers[there], known, max_value_bytes)

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for neighbours in the base, and by position in the other dataset.

        Rows that keys find are far apart: asking for them would take longer.
        """
        names = dict.fromkeys(fields)
        for side, numbers in self.needed(np.arange(run.start, run.stop, run.step)):
            own = self.of_side(side, names)
            for first, stop in runs(np.unique(numbers)) if own and (side == 0 or self.choice.on is None) else ():
                self.below[side].read_ahead(range(first, stop), own)

    warn_of_small_cache = ReadableDataset.warn_of_small_cache

    @property
    def adopted(self) -> bool:
        """Whether all shards of the base are source files."""
        return self.base.adopted

    @property
    def shard_means(self) -> NDArray[np.float64]:
        rows = self.other.shard_means
        return self.base.shard_means + (rows.mean() if len(rows) else 0)

    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> Self:
        other = copy(self)
        own, theirs = self.of_side(0, labels), self.of_side(1, labels)
        other.base = self.base.renumbered(own, metadata) if own else self.base
        other.other = self.other.renumbered(theirs, metadata) if theirs else self.other
        other._metadata = metadata
        return other

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return {**super().description(arrays), "with": self.other.description(arrays)}

    @property
    def digest(self) -> str:
        """A hash of the choice and of the digests of both datasets."""
        return self._joined_digest(self.base.digest, self.other.digest)

    def _joined_digest(self, base: str, other: str) -> str:
        return self._digest(f"{base} with {other}")

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of the joins of what both datasets grew from, with their lengths.

        A sample that has got a row only since is another one.
        """
        found, made = dict[str, int](), self._decided()
        for base, samples in {**self.base.earlier, self.base.digest: len(self.base)}.items():
            known = made.of_first(samples if self.other.earlier else 0)
            last = max((int(rows.max()) for _, rows in known), default=-1)
            for other, count in {**self.other.earlier, self.other.digest: len(self.other)}.items():
                if (base, other) != (self.base.digest, self.other.digest) and last < count:
                    leading = samples if made.kept is None else made.kept.leading(samples)
                    if leading is not None:
                        found[self._joined_digest(base, other)] = leading
        return found
