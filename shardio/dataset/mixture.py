"""Mixtures: several datasets as one, sampled by weight."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..cache.node_cache import Hold
from ..containers.base import check_out
from ..containers.row_locator import Scratch
from ..errors import ConfigError, StateWarning
from ..format import cf
from ..format.fields import Field, describe, describe_fields
from ..format.limits import MAX_VALUE_BYTES
from ..order.interleave import MixedPlan, rounded_shares, whole_weights
from ..order.plan import Order, Plan, Schedule, Shuffle
from ..system.types import Buffer, Column, Indices
from .classes import KEY, Classes, named_field
from .dataset import Dataset, with_classes_alike
from .dataset import open as open_dataset
from .fetch_ahead import FetchAhead
from .location import Location
from .selection import Selection
from .store_access import StoreAccess


def mix(
    sources: Mapping[str, Dataset | str | os.PathLike[str]],
    weights: Mapping[str, float] | None = None,
    *,
    samples: int | None = None,
    classes: Classes | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Mixture:
    """Combine several datasets into one, for `shardio.Loader`.

    Each source goes through shuffled epochs of its own: a small source with a large weight starts over before the
    others have ended, and a large source continues in the next epoch where it stopped.

    Args:
        sources: datasets, or their paths or URLs, by name. They must have at least one field in common; the mixture
            leaves out the fields that a source lacks.
        weights: the proportions in which to draw from the sources. None takes every sample of all sources once.
        samples: samples per epoch, with `weights`; None takes as many as all sources have together.
        classes: what labels mean where sources name different classes; None refuses such sources. `"union"` numbers
            classes by name: those of the first source keep their numbers, and classes that it lacks follow. `"ignore"`
            takes labels as they are, whatever their names.
        cache, cache_size, store_options: for sources given as URLs, see `shardio.open`.

    Raises ConfigError for weights that do not fit the sources, no field in common, a field that sources have in
    different kinds, dtypes or shapes; for different classes, with the first that differs; and whatever `shardio.open`
    raises. Warns (StateWarning) of a source whose share of the turns, which are whole numbers, is more than a quarter
    off the one that its weight asks for.
    """
    if not isinstance(sources, Mapping):
        raise ConfigError(
            "sources must be a dict of datasets or paths by name, as in {'a': ..., 'b': ...}, got "
            f"{type(sources).__name__}"
        )
    for name, source in sources.items():
        if isinstance(source, Mixture):
            raise ConfigError(f"source {name!r} is itself a mixture; give its datasets instead")
        if not isinstance(source, (Dataset, str, os.PathLike)):
            raise ConfigError(f"source {name!r} must be a path or a Dataset, got {source!r}")
    access = StoreAccess(cache, cache_size, store_options)
    access.check_needed(*sources.values())
    opened = {
        name: source if isinstance(source, Dataset) else open_dataset(source, **access.keywords_for(source))
        for name, source in sources.items()
    }
    mixture = Mixture(opened, weights, samples, classes)
    if weights is not None and mixture.weights is not None:
        for told in rounded_shares(weights, mixture.weights):
            warnings.warn(told, StateWarning, stacklevel=2)
    return mixture


@final
class Mixture:
    """Several datasets as one; `mix` returns it. Sample indices count through the sources in their order.

    Attributes:
        sources: the names of the sources.
        weights: the turns of each source in a window, as integers; None if an epoch holds every sample once.
        fields: the fields that all sources have.
        left_out: by name, the sources that lack a field which others have.
        classes: the class names by `label`, see `Dataset.classes`; with `classes="ignore"` those of the first source.
        path: the name of the mixture in messages.
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        weights: Mapping[str, float] | None,
        samples: int | None,
        classes: Classes | None = None,
    ) -> None:
        if not datasets:
            raise ConfigError("a mixture needs at least one source")
        if weights is None and samples is not None:
            raise ConfigError("samples= needs weights=: without weights an epoch holds every sample once")
        if weights is not None and not isinstance(weights, Mapping):
            named = ", ".join(f"{name!r}: ..." for name in datasets)
            raise ConfigError(f"weights must be a dict by source, as in {{{named}}}, got {weights!r}")
        if weights is not None and weights.keys() != datasets.keys():
            raise ConfigError(
                f"weights must name the sources {', '.join(datasets)}, got {', '.join(weights) or 'none'}"
            )
        if samples is not None and (not isinstance(samples, int) or samples < 1):
            raise ConfigError(f"samples must be a whole number of at least 1, got {samples!r}")
        for name, dataset in datasets.items():
            if len(dataset) == 0:
                raise ConfigError(f"source {name!r} is empty: {dataset.path}")
        self.sources = tuple(datasets)
        self.weights = None if weights is None else whole_weights({name: weights[name] for name in datasets})
        self.fields: Mapping[str, Field] = _common_fields(datasets)
        self.left_out: Mapping[str, tuple[str, ...]] = {
            name: tuple(source for source, other in datasets.items() if name not in other.fields)
            for dataset in datasets.values()
            for name in dataset.fields
            if name not in self.fields
        }
        self.path = Path(f"mix({', '.join(datasets)})")
        self._datasets = tuple(with_classes_alike(datasets, self.fields, classes))
        self.classes = self._datasets[0].classes if named_field(KEY, self.fields) else None
        self._sizes = tuple(map(len, self._datasets))
        self._starts = np.cumsum([0, *self._sizes])
        self._samples = samples or len(self)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights {self.weights}, {self._samples} samples an epoch"
        lacking = "".join(f", without {name}, which {_listed(names)}" for name, names in self.left_out.items())
        sources = dict(zip(self.sources, self._datasets, strict=True))
        return f"<Mixture of {sources!r}: fields {', '.join(self.fields)}{lacking}{weights}>"

    @property
    def digest(self) -> str:
        """A hash of the sources' names and digests, the weights, the length of an epoch, and renumbered classes."""
        parts = [[name, d.digest] for name, d in zip(self.sources, self._datasets, strict=True)]
        text = json.dumps([parts, self.weights, self._samples])
        return f"mix:{xxhash.xxh3_128_hexdigest(text.encode())}"

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Plan | MixedPlan:
        """Return the order of the samples in epoch 0."""
        if self.weights is None:
            return Plan(len(self), seed, 0, shuffle, block, window)
        return MixedPlan(self._samples, self._sizes, tuple(self.weights.values()), seed, 0, shuffle, block, window)

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

    def select(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> MixedSelection:
        """Locate samples, as `Dataset.select` does."""
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"{self.path}: index must be in [0, {len(self)}), got {wrong}")
        parts = [(dataset.select(local, max_value_bytes), rows) for dataset, local, rows in self._split(indices)]
        return MixedSelection(self.field, len(indices), parts)

    def field(self, name: str) -> Field:
        """Return the field or hidden column called `name`; raise ConfigError if there is none."""
        if name in self.left_out:
            raise ConfigError(f"{self.path}: no field {name!r}, which {_listed(self.left_out[name])}")
        found = self.fields.get(name)
        if found is None and not name.startswith("_"):  # as hidden columns are called
            raise ConfigError(f"{self.path}: no field {name!r}; there are {', '.join(self.fields)}")
        return found or self._datasets[0].field(name)

    def decode(
        self, name: str, stored: Sequence[Buffer], indices: Indices, present: NDArray[np.bool_] | None = None
    ) -> list[Any]:
        values: list[Any] = [None] * len(indices)
        for dataset, local, rows in self._split(indices):
            if len(rows) == len(indices):
                return dataset.decode(name, stored, local, present)
            has = None if present is None else present[rows]
            part = dataset.decode(name, [stored[row] for row in rows.tolist()], local, has)
            for row, value in zip(rows.tolist(), part, strict=True):
                values[row] = value
        return values

    def check(
        self,
        indices: Indices,
        stored: Mapping[str, Column | Sequence[Buffer]],
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        for dataset, local, rows in self._split(indices):
            part = {n: c[rows] if isinstance(c, np.ndarray) else [c[row] for row in rows] for n, c in stored.items()}
            dataset.check(local, part, max_value_bytes)

    def read_ahead(self, first: int, count: int, fields: Iterable[str]) -> None:
        """Ask storage for samples ahead, as `Dataset.read_ahead` does; they may belong to several sources."""
        for source, dataset in enumerate(self._datasets):
            low, high = max(first, int(self._starts[source])), min(first + count, int(self._starts[source + 1]))
            if low < high:
                dataset.read_ahead(low - int(self._starts[source]), high - low, fields)

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched for all sources until now."""
        return sum((dataset.fetched for dataset in self._datasets), FetchCounts())

    def fetch_ahead(self, fields: Sequence[str], plan: Order, schedule: Schedule) -> FetchAhead | None:
        in_store = any(dataset.shards.in_store for dataset in self._datasets)
        return FetchAhead(self, fields, plan, schedule) if in_store else None

    def prefetch(self, indices: Indices, fields: Iterable[str], share: float) -> list[Hold] | None:
        holds: list[Hold] = []
        for dataset, local, _ in self._split(indices):
            if (more := dataset.prefetch(local, fields, share)) is None:
                for hold in holds:
                    hold.release()
                return None
            holds += more
        return holds

    def warn_of_small_cache(self, window: int) -> None:
        for dataset in self._datasets:
            dataset.warn_of_small_cache(window)

    def refetch(self, index: int) -> bool:
        source, local = self._source_and_index(index)
        return self._datasets[source].refetch(local)

    def shard_of(self, index: int) -> str:
        """Return the name of a sample's shard as `source/shard`, without reading a file."""
        source, local = self._source_and_index(index)
        return f"{self.sources[source]}/{self._datasets[source].shard_of(local)}"

    def locate(self, index: int) -> Location:
        """Return the place of a sample, with its shard as `source/shard`."""
        source, local = self._source_and_index(index)
        location = self._datasets[source].locate(local)
        return replace(location, shard=f"{self.sources[source]}/{location.shard}", index=index)

    def where(self, index: int) -> str:
        return f"{self.locate(index)}"

    def _source_and_index(self, index: int) -> tuple[int, int]:
        """Return the number of a sample's source, and the sample's index in it."""
        source = int(self.source_of(np.array([index]))[0])
        return source, index - int(self._starts[source])

    def _split(self, indices: Indices) -> Iterator[tuple[Dataset, Indices, NDArray[np.int64]]]:
        """Yield for each source in `indices`: its dataset, its samples' indices there, and their rows in `indices`."""
        sources = self.source_of(indices)
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            yield self._datasets[source], indices[rows] - self._starts[source], rows


@final
class MixedSelection:
    """Samples of several datasets to read, in a fixed order: a `Selection` of each, and its rows in that order."""

    def __init__(self, field: Any, count: int, parts: Sequence[tuple[Selection, NDArray[np.int64]]]) -> None:
        self._parts = parts
        self._field, self._count = field, count

    @contextmanager
    def fetch(self, names: Iterable[str]) -> Iterator[None]:
        """Return a `with` block as `Selection.fetch` does."""
        with ExitStack() as stack:
            for part, _ in self._parts:
                stack.enter_context(part.fetch(names))
            yield

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        if len(self._parts) == 1:
            return self._parts[0][0].column(name, out)
        array = check_out(out, self._count, self._field(name))
        for part, rows in self._parts:
            array[rows] = part.column(name)
        return array

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        if len(self._parts) == 1:
            return self._parts[0][0].values(name, scratch)
        values: list[Buffer] = [b""] * self._count
        for part, rows in self._parts:
            for row, value in zip(rows.tolist(), part.values(name), strict=True):
                values[row] = value
        return values

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        return self.column(name, out) if self._field(name).fixed else self.values(name, scratch)


def _listed(sources: Sequence[str]) -> str:
    names = ", ".join(map(repr, sources))
    return f"the source {names} lacks" if len(sources) == 1 else f"the sources {names} lack"


def _common_fields(datasets: Mapping[str, Dataset]) -> dict[str, Field]:
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
        raise ConfigError(f"the sources of a mixture must have a field in common: {listed}")
    return common
