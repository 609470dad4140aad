"""Views of one dataset: what a choice makes of it, and samples that are made of several of its own."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..system.shared_memory import is_sharing
from ..system.types import Indices
from . import saved
from .choice import Choice
from .readable import Part, ReadableDataset, SelectedSamples, Stored

_MOST_SHOWN = 100  # characters of a description in repr

M = TypeVar("M")


class Derived(ReadableDataset, Generic[M]):
    """A dataset that reads another one.

    Attributes:
        base: the dataset that it reads.
        choice: what it makes of that.
        path: the path of the dataset at the bottom.
    """

    def __init__(self, base: ReadableDataset, choice: Choice, made: M | None = None) -> None:
        self.base, self.choice, self.path = base, choice, base.path
        self._chosen_from = base  # with the labels of which a choice is
        self._made: M | None = choice.made(base) if made is None else made

    def _decided(self) -> M:
        """Return what the choice makes of the dataset; samples are looked up there."""
        if self._made is None:  # the view was unpickled elsewhere
            self._made = self._make()
        return self._made

    def _make(self) -> M:
        made: M = self.choice.made(self._chosen_from)
        return made

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The base."""
        return (self.base,)

    def _in_base(self, indices: Indices) -> Indices:
        """Return the numbers of samples in the base."""
        return indices

    def parts(self, indices: Indices) -> Iterable[Part]:
        """Return the samples of the base."""
        return (Part(0, "", self._in_base(indices), np.arange(len(indices))),)

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.base.fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.base.metadata

    def field(self, name: str) -> Field:
        return self.base.field(name)

    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> Self:
        other = copy(self)
        other.base = self.base.renumbered(labels, metadata)
        return other

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        if self.base is not self._chosen_from:
            raise saved.renumbered(self)
        for given in self.choice.arrays:
            stored = np.ascontiguousarray(given)
            arrays[xxhash.xxh3_128_hexdigest(stored.data)] = stored
        return {**self.choice.description(), "of": self.base.description(arrays)}

    def _told(self) -> str:
        """Return the choice for `repr`."""
        known = {name: value for name, value in self.choice.description().items() if value not in (None, False)}
        told = json.dumps(known)
        return told if len(told) <= _MOST_SHOWN else f"{told[:_MOST_SHOWN]}..."

    @property
    def digest(self) -> str:
        """A hash of the choice and of the digest of what it chooses from."""
        return self._digest(self.base.digest)

    def _digest(self, base: str) -> str:
        described = json.dumps([self.choice.description() | self.choice.depends_on(self._chosen_from), base])
        return f"view:{xxhash.xxh3_128_hexdigest(described.encode())}"

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of the views that this choice makes of what the dataset grew from, with their lengths."""
        found = {}
        for digest, samples in self.base.earlier.items():
            if (leading := self.choice.in_earlier(self._decided(), samples)) is not None:
                found[self._digest(digest)] = leading
        return found

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that identify a sample in a batch: its number here, and its source in a concatenation."""
        return self.base.id_columns

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some samples, int64 [n] each."""
        return {**self.base.sample_ids(self._in_base(indices)), "index": indices}

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        return self.base.origin(self._in_base(super().origin(indices)))

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        return self.base.selection(self._in_base(self._checked(indices)), max_value_bytes)

    def warn_of_small_cache(self, window: int) -> None:
        self.base.warn_of_small_cache(min(window, len(self)))

    def __getstate__(self) -> dict[str, Any]:
        # Processes that start here share what was made; anywhere else the choice is enough to make it again.
        return self.__dict__ if is_sharing() else self.__dict__ | {"_made": None}


class Grouped(Derived[M]):
    """Samples with fields of their own, each made of several samples of another dataset."""

    word: ClassVar[str]
    """The name of a sample in messages."""

    def __init__(self, base: ReadableDataset, choice: Choice, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        super().__init__(base, choice)

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._fields

    @abstractmethod
    def members(self, indices: Indices) -> Indices:
        """Return the samples of the base that make up some samples, each once, in ascending order."""

    def needed(self, indices: Indices) -> Iterable[tuple[int, Indices]]:
        return ((0, self.members(indices)),)

    def known_members(self, indices: Indices, stored: Stored) -> Stored:
        """Return the stored values of `members` that are known from those of samples."""
        return {}

    def check(self, indices: Indices, stored: Stored, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        """Compare the checksums of the base samples, each once; the error also names the sample made of them."""
        try:
            self.base.check(self.members(indices), self.known_members(indices, stored), max_value_bytes)
        except ShardCorrupt:
            for number in indices.tolist():
                try:
                    self.base.check(self.members(np.array([number])), {}, max_value_bytes)
                except ShardCorrupt as error:
                    raise ShardCorrupt(f"{self.word} {number}: {error}") from error
            raise
