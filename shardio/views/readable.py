"""The base of datasets and views: samples by number, read from one dataset or several, and where they are stored."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts, ReadSet, fetching, prefetch
from ..cache.node_cache import Hold
from ..containers.extents import NO_BLOCKS, Blocks, Extent, Runs
from ..containers.packed_values import PackedValues, Scratch
from ..errors import ConfigError, ShardCorrupt
from ..format.fields import Field, presence, present_column
from ..format.limits import MAX_VALUE_BYTES
from ..format.pieces import runs
from ..order.plan import Order, Plan, Shuffle
from ..stores.url import Url
from ..system import npy
from ..system.types import Buffer, Column, Indices

Stored: TypeAlias = Mapping[str, Column | Sequence[Buffer]]
"""Values of some samples in stored form, by field."""

StoredPart: TypeAlias = tuple[ReadSet, AbstractContextManager[None]]
"""A read of one dataset in a store, and a `with` block in which the selection of it takes that to be local."""


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a sample: its shard, and its row in the shard.

    Attributes:
        shard: the name of the shard.
        row: the row in the shard.
        index: the number of the sample in the dataset.
        key: the value of the sample's field `key`; None if there is no such field, or it cannot be read.
    """

    shard: str
    row: int
    index: int
    key: str | None

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key}"
        return f"{self.shard}, row {self.row} (sample {self.index}{key})"


class SelectedSamples(Protocol):
    """Some samples of a dataset. They are located in their shards once, for all fields that you read."""

    _field: Callable[[str], Field]

    def locate(self, names: Iterable[str]) -> None:
        """Find the values of some fields, once for all parts of this selection that are taken from then on.

        Raises what reading them raises. For a dataset in a store, call it only within `fetch`.
        """

    def __getitem__(self, part: slice) -> Self:
        """Return a selection of neighbours among these samples."""

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        """Yield what reading some fields, or of fields in `blocks` these, takes of each dataset in a store."""

    @contextmanager
    def fetch(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[None]:
        """Return a `with` block in which some fields are local; it waits for those that come from stores, all at once.

        For a field in `blocks`, only the bytes that reading these blocks or entries takes are sure to be local.
        Waiting counts as the stage `fetch` of the clock whose stage the thread is in.
        """
        parts = list(self.stored_parts(names, blocks))
        with ExitStack() as fetched:
            if parts:
                fetched.enter_context(fetching([read_set for read_set, _ in parts]))
            for _, local in parts:
                fetched.enter_context(local)
            yield

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a field whose values all have one size, as an array `[n, *shape]`: `out` if given, else a new one."""

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        """Read the stored bytes of any other field; they may be views of `scratch` if that is given."""
        raise ConfigError(f"all values of field {name!r} have one size; read it with column()")

    def parts(
        self, name: str, runs: Runs, out: NDArray[Any] | None = None, scratch: Scratch | None = None
    ) -> NDArray[Any]:
        """Read runs of the entries of each sample's value of a ragged field.

        Args:
            name: the field; the hidden column `length_column(name)` says how many entries its values have.
            runs: the runs of all samples.
            out: an array to fill, C-contiguous, of the field's dtype, `[sum(runs.sizes), *entry_shape]`.
            scratch: the memory for the result if there is no `out`; the next read reuses it.

        Returns:
            `out`, or an array like it: the entries of all samples end to end.

        Raises ShardCorrupt, which names the sample, for a value that has fewer entries than that, or not as many as
        the hidden column says.
        """
        raise ConfigError(f"all values of field {name!r} have one size, so that it has no parts")

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a block of each sample's value of a field whose values all have one size: `column(name)`, cut.

        Args:
            name: the field.
            blocks: the blocks, one for each sample, along the last axes of the values.
            out: an array to fill, C-contiguous, of the field's dtype, `[n, *blocks.shape(shape)]`.

        Returns `out`, or an array like it. Raises ValueError for blocks that are not within the values.
        """

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        """Read any field in stored form: by `column` if all its values have one size, else by `values`."""
        return self.column(name, out) if self._field(name).fixed else self.values(name, scratch)

    def sizes(self, name: str) -> NDArray[np.int64]:
        """Return the size in bytes of each stored value, int64 [n]."""

    def prefetch(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> list[Hold] | None:
        """Have what reading some fields needs fetched into the node's cache, without waiting for it.

        For a field in `blocks`, that is what reading these takes. Returns what keeps it in the cache until it is
        released; None if there is no room.
        """
        return prefetch([read_set for read_set, _ in self.stored_parts(names, blocks)])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Samples of one dataset that samples of a view are read from.

    Attributes:
        source: the index of the dataset in `below`.
        label: the prefix of its shards' names in the view.
        indices: the numbers of the samples there, int64 [n].
        rows: which of the view's samples each is, counted in the order asked for, int64 [n], ascending.
    """

    source: int
    label: str
    indices: Indices
    rows: NDArray[np.int64]


class ReadableDataset(ABC):
    """The base of datasets and views: samples by number, which a Loader reads.

    A dataset's order (`plan`) names the samples of an epoch by their numbers, and the other methods take these. Where
    the order draws samples anew in each epoch, as that of a weighted view does, they are numbers in what it draws from.

    A view's `parts` say which samples of the datasets below it each of its own is read from. That decides where samples
    are stored, how they are checked, and what is fetched; a `Dataset`, at the bottom, has methods of its own for this.

    Attributes:
        path: the name of the dataset in messages.
    """

    path: Path | Url
    orders_itself = False  # whether `plan` draws samples in a way of its own
    derived_from: str | None = None  # the digest of the dataset whose samples these are computed from, by position

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample, by name."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, Any]:
        """JSON values that describe the samples, such as the names of classes."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """A hash of the content."""

    @property
    @abstractmethod
    def earlier(self) -> Mapping[str, int]:
        """The digests of the datasets that this one extends, with their numbers of samples.

        Their samples come first here, unchanged.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in an epoch."""

    @property
    def numbers(self) -> int:
        """The number of samples that have numbers: as many as there are, unless an order draws from them."""
        return len(self)

    @abstractmethod
    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> Self:
        """Return the dataset with other labels: by field, the new number of each class, and what names them."""

    @abstractmethod
    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Return what this is, down to stored datasets, as JSON values; see `views/saved.py`.

        Arrays that were given are named by their checksums, under which they are added to `arrays`. Raises ConfigError
        for renumbered labels, which belong to the whole that renumbers them.
        """

    @abstractmethod
    def field(self, name: str) -> Field:
        """Return the field or hidden column called `name`; raise ConfigError, which says why, if there is none."""

    @abstractmethod
    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate samples, int64 [n] in [0, numbers), repeats allowed, to read any of their fields; IndexError outside.

        Reading raises BadSample for a value of more bytes than `max_value_bytes`, see `Limits`.
        """

    def joined_from(self, name: str) -> Path | Url | None:
        """Return the path of the dataset that a field was joined from; None for a field that was not joined."""
        return self.below[0].joined_from(name) if self.below else None

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The datasets that this one reads; none of a `Dataset`, which is at the bottom."""
        return ()

    def parts(self, indices: Indices) -> Iterable[Part]:
        """Return the samples below that samples are read from; for a sample made of several, the first of them."""
        return ()

    def needed(self, indices: Indices) -> Iterable[tuple[int, Indices]]:
        """Return all samples that samples are made of: indices of datasets in `below`, and numbers there, int64 [n]."""
        return ((part.source, part.indices) for part in self.parts(indices))

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of numbers that identify a sample in a batch, by name.

        Each comes with the names that its numbers stand for (the sources of a mixture), or with () if its numbers have
        no names.
        """
        return {"index": ()}

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some samples, int64 [n] each."""
        return {"index": indices}

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        if not len(self):
            raise ConfigError(f"there must be at least one sample to load, {self!r} has none")
        return Plan(len(self), seed, 0, shuffle, block, window)

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the numbers, int64 [n], that samples have in the dataset at the bottom of a stack of views.

        Raises IndexError for a number outside.
        """
        return self._checked(as_indices(indices))

    def read(self, indices: Sequence[int] | Indices, fields: Iterable[str] | None = None) -> dict[str, Any]:
        """Read many samples, in the order asked for.

        Args:
            indices: sample numbers in [0, N); repeats are allowed.
            fields: the fields to read; None reads all.

        Returns:
            For each field an array `[n, *shape]` of scalars or arrays of one shape, else a list of n values. Optional
            fields: where a sample lacks the value, a list has None; an array has zeros, and a bool column called
            `NAME_present` comes with it.

        Raises IndexError, ConfigError for an unknown field, ShardCorrupt.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields must be a list of names, as in [{fields!r}], got {fields!r}")
        if isinstance(indices, slice):
            raise ConfigError(f"indices must be integers, got a slice: give {range(*indices.indices(len(self)))}")
        rows = as_indices(indices)
        selection = self.selection(rows)
        result: dict[str, Any] = {}
        for name in self.fields if fields is None else fields:
            field = self.field(name)
            present = selection.column(present_column(name)) if field.optional else None
            if field.fixed:
                result[name] = selection.column(name)
                if present is not None:
                    result[name][~present] = 0  # what a class may be renumbered from
                    result[presence(name)] = present
            else:
                result[name] = decoded(self, name, selection.values(name), rows, present)
        return result

    def check(self, indices: Indices, stored: Stored, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        """Compare the checksums of samples with the stored ones; raise ShardCorrupt for the first that differs.

        `stored` holds the fields that the caller has read already.
        """
        for part in self.parts(indices):
            known = stored
            if len(part.rows) < len(indices):
                known = {name: taken(each, part.rows) for name, each in stored.items()}
            self.below[part.source].check(part.indices, known, max_value_bytes)

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for a run of neighbouring samples, at least one, without waiting for them."""
        names = list(fields)
        for source, indices in self.needed(np.arange(run.start, run.stop, run.step)):
            for first, stop in runs(np.unique(indices)):
                self.below[source].read_ahead(range(first, stop), names)

    def refetch(self, index: int) -> bool:
        """Fetch a damaged sample from its store again; return whether reading it again is worth while."""
        needed = [(source, number) for source, own in self.needed(np.array([index])) for number in own.tolist()]
        again = [self.below[source].refetch(number) for source, number in needed]
        return any(again)

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the cache of the node has no room for `window` samples of each dataset in a store."""
        for dataset in self.below:
            dataset.warn_of_small_cache(window)

    @property
    def adopted(self) -> bool:
        """Whether all shards are source files that `shardio index` adopted, so `shard_numbers` identifies files."""
        return bool(self.below) and all(dataset.adopted for dataset in self.below)

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched from stores until now, and in how many requests."""
        return sum((dataset.fetched for dataset in self.below), FetchCounts())

    @property
    def in_store(self) -> bool:
        """Whether any shards are in a store, where nothing but shardio reads them."""
        return any(dataset.in_store for dataset in self.below)

    @property
    def shard_means(self) -> NDArray[np.float64]:
        """The mean of the stored bytes of a sample, of each shard of all datasets at the bottom, float64 [shards]."""
        return np.concatenate([dataset.shard_means for dataset in self.below])

    def shard_numbers(self, indices: Indices) -> NDArray[np.int64]:
        """Return the index of each sample's shard in `shard_means`, int64 [n], without reading a file."""
        firsts = np.cumsum([0, *(len(dataset.shard_means) for dataset in self.below[:-1])])
        shards = np.empty(len(indices), np.int64)
        for part in self.parts(indices):
            shards[part.rows] = firsts[part.source] + self.below[part.source].shard_numbers(part.indices)
        return shards

    def shard_of(self, index: int) -> str:
        """Return the name of a sample's shard, without reading a file; that of a source's as `source/shard`."""
        (part,) = self.parts(np.array([index]))
        return f"{part.label}{self.below[part.source].shard_of(int(part.indices[0]))}"

    def locate(self, index: int) -> Location:
        """Return the place of a sample: its shard, row and key. Its string is for messages."""
        (part,) = self.parts(np.array([index]))
        location = self.below[part.source].locate(int(part.indices[0]))
        return replace(location, shard=f"{part.label}{location.shard}", index=index)

    def _checked(self, indices: Indices) -> Indices:
        """Return numbers of samples; raise IndexError if one is outside of [0, numbers)."""
        if len(indices) and (indices.min() < 0 or indices.max() >= self.numbers):
            wrong = indices[(indices < 0) | (indices >= self.numbers)][0]
            raise IndexError(f"{self.path}: index must be in [0, {self.numbers}), got {wrong}")
        return indices


def taken(column: Column | Sequence[Buffer], rows: NDArray[np.int64]) -> Column | Sequence[Buffer]:
    """Return some values of a stored column."""
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


def as_indices(given: Any) -> Indices:
    """Return integers as int64 [n]; raise ConfigError for other values, IndexError for one beyond int64."""
    asked = np.asarray(given)
    if asked.size and asked.dtype.kind not in "iu":
        raise ConfigError(f"indices must be integers, got {asked.dtype}")
    if asked.dtype == np.uint64 and asked.size and asked.max() > np.iinfo(np.int64).max:
        raise IndexError(f"no sample has the number {asked.max()}")
    return asked.astype(np.int64).reshape(-1)


def decoded(
    dataset: ReadableDataset,
    name: str,
    stored: Sequence[Buffer],
    indices: Indices,
    present: NDArray[np.bool_] | None = None,
) -> list[Any]:
    """Decode the stored bytes of some samples; ShardCorrupt names the sample whose bytes do not decode.

    With `present`, bool [n], the value is None where that is False. Arrays of other shapes are views of PackedValues,
    whose memory must be used for nothing else from then on.
    """
    field, values = dataset.field(name), list[Any]()
    if field.kind == "text" and present is None and isinstance(stored, PackedValues):
        whole = stored.data.tobytes()
        if whole.isascii():  # as keys mostly are: one call decodes all, and each is a slice
            text, ends = whole.decode("ascii"), (stored.offsets + stored.sizes).tolist()
            return [text[begin:end] for begin, end in zip(stored.offsets.tolist(), ends, strict=True)]
    has = itertools.repeat(True) if present is None or present.all() else present.tolist()
    found: Iterable[Any] = (field.decode(v) if there else None for v, there in zip(stored, has, strict=False))
    if field.kind == "array" and isinstance(stored, PackedValues) and not isinstance(has, list):
        arrays = npy.read_arrays(stored.data, stored.offsets, stored.sizes, field.row_dtype)
        found = map(field.entries, stored) if field.ragged else map(field.checked, arrays)
    try:
        values.extend(found)
    except ValueError as error:  # raised alike for malformed UTF-8, JSON and .npy
        place = dataset.path / f"{dataset.locate(int(indices[len(values)]))}"
        raise ShardCorrupt(f"{place}, field {name!r}: not {field.kind}: {error}") from error
    return values
