"""Concatenation: several datasets as one, whose samples are counted through them in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format import cf
from ..format.fields import Field, describe, describe_fields
from ..format.limits import MAX_VALUE_BYTES
from ..system.types import Indices
from . import saved
from .classes import Classes, alike, named_field
from .readable import Part, ReadableDataset, SelectedSamples
from .scattered import scattered
from .view import BaseDataset


class Concat(BaseDataset):
    """Several datasets as one; `concat` returns it. Sample numbers count through the sources in their order.

    Args:
        datasets: the datasets, by name.
        classes: what labels mean where they name different classes, see `shardio.mix`.

    Attributes:
        sources: the names of the sources.
        fields: the fields that all sources have.
        left_out: by name, the sources that lack a field which others have.
        path: the name of the concatenation in messages.
    """

    word = "concat"
    _told_weights: Any = None

    def __init__(self, datasets: Mapping[str, ReadableDataset], classes: Classes | None = None) -> None:
        if not datasets:
            raise ConfigError(f"{self.word} needs at least one source")
        for name, dataset in datasets.items():
            if len(dataset) == 0:
                raise ConfigError(f"source {name!r} is empty: {dataset.path}")
            if dataset.orders_itself and not self.orders_itself:
                raise ConfigError(
                    f"source {name!r} draws its samples anew in each epoch, so it cannot be joined: shardio.mix takes "
                    "it with weights"
                )
        self.sources = tuple(datasets)
        self._fields = _common_fields(datasets)
        self.left_out: Mapping[str, tuple[str, ...]] = {
            name: tuple(source for source, other in datasets.items() if name not in other.fields)
            for dataset in datasets.values()
            for name in dataset.fields
            if name not in self._fields
        }
        self.path = Path(f"{self.word}({', '.join(datasets)})")
        self._given: Mapping[str, ReadableDataset] | None = datasets
        self._classes = classes
        self._datasets = tuple(alike(datasets, self._fields, classes))
        self._starts = np.cumsum([0, *(dataset.numbers for dataset in self._datasets)])

    def __len__(self) -> int:
        return self.numbers

    @property
    def numbers(self) -> int:
        """The number of samples of all sources together."""
        return int(self._starts[-1])

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields that all sources have, by name."""
        return self._fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The names of classes that all sources share; with `classes="ignore"`, those of the first source."""
        return {key: value for key, value in self._datasets[0].metadata.items() if named_field(key, self._fields)}

    @property
    def datasets(self) -> Mapping[str, ReadableDataset]:
        """The sources by name."""
        return dict(zip(self.sources, self._datasets, strict=True))

    def __repr__(self) -> str:
        lacking = "".join(f", without {name}, which {_listed(names)}" for name, names in self.left_out.items())
        told = f"{', '.join(self._fields)}{lacking}{self._drawing()}"
        return f"<{type(self).__name__} of {self.datasets!r}: fields {told}>"

    def _drawing(self) -> str:
        return ""

    @property
    def digest(self) -> str:
        """A hash of the sources' names and digests; these include renumbered classes."""
        return self._digest([dataset.digest for dataset in self._datasets], len(self))

    def _digest(self, digests: Sequence[str], samples: int) -> str:
        return hashed([[*zip(self.sources, digests, strict=True)], self._told_weights, samples])

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of what this was before its last source grew, with the numbers of samples."""
        digests, before = [dataset.digest for dataset in self._datasets], int(self._starts[-2])
        return {
            self._digest([*digests[:-1], digest], before + samples): before + samples
            for digest, samples in self._datasets[-1].earlier.items()
        }

    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> Self:
        other = copy(self)
        other._datasets = tuple(dataset.renumbered(labels, metadata) for dataset in self._datasets)
        other._given = None
        return other

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        if self._given is None:
            raise saved.renumbered(self)
        sources = {name: dataset.description(arrays) for name, dataset in self._given.items()}
        return {self.word: sources, "classes": self._classes}

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of numbers that identify a sample in a batch: `index`, and `source`, the number of its source."""
        return {"index": (), "source": self.sources}

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some samples, int64 [n] each."""
        return {"index": indices, "source": self.source_of(indices)}

    def source_of(self, indices: Indices) -> NDArray[np.int64]:
        """Return the number of each sample's source, int64 [n], counted in the order of `sources`."""
        return np.searchsorted(self._starts, indices, "right") - 1

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate samples, as `Dataset.selection` does."""
        parts = []
        for part in self.parts(self._checked(indices)):
            parts.append((self._datasets[part.source].selection(part.indices, max_value_bytes), part.rows))
        return scattered(self.field, len(indices), parts)

    def field(self, name: str) -> Field:
        """Return the field or hidden column called `name`; raise ConfigError if there is none."""
        if name in self.left_out:
            raise ConfigError(f"{self.path}: no field {name!r}, which {_listed(self.left_out[name])}")
        found = self._fields.get(name)
        if found is None and not name.startswith("_"):  # as hidden columns are called
            raise ConfigError(f"{self.path}: no field {name!r}; there are {', '.join(self._fields)}")
        return found or self._datasets[0].field(name)

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The sources."""
        return self._datasets

    def parts(self, indices: Indices) -> Iterator[Part]:
        """Yield for each source the samples that are its own."""
        sources = self.source_of(indices)
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            yield Part(source, f"{self.sources[source]}/", indices[rows] - self._starts[source], rows)


def hashed(parts: Any) -> str:
    """Return the digest of several datasets together, by JSON values that identify them."""
    return f"mix:{xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())}"


def _listed(sources: Sequence[str]) -> str:
    names = ", ".join(map(repr, sources))
    return f"the source {names} lacks" if len(sources) == 1 else f"the sources {names} lack"


def _common_fields(datasets: Mapping[str, ReadableDataset]) -> dict[str, Field]:
    (first_name, first), *others = datasets.items()
    common: dict[str, Field] = {}
    for name, field in first.fields.items():
        for other_name, dataset in others:
            other = dataset.fields.get(name)
            if other is None:
                break
            if field.kind == "image" and field.shape != other.shape and replace(field, shape=other.shape) == other:
                field = replace(field, shape=None)
            elif replace(field, attributes=None) != replace(other, attributes=None):
                raise ConfigError(
                    f"field {name!r} is {describe(field)} in source {first_name!r}, but {describe(other)} in "
                    f"{other_name!r}"
                )
            elif difference := cf.difference(field.attributes, other.attributes):
                sources = f"source {first_name!r}", f"source {other_name!r}"
                raise ConfigError(
                    f"equal numbers must mean equal values: of field {name!r}, {difference.between(*sources)}"
                )
        else:
            common[name] = field
    if not common:
        listed = "; ".join(f"{name!r} has {describe_fields(dataset.fields)}" for name, dataset in datasets.items())
        raise ConfigError(f"the sources must have a field in common: {listed}")
    return common
