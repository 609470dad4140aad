"""A view: rows of another dataset, chosen by an index map, read as that dataset is read.

`BaseDataset` is what datasets and views have in common: samples by number, and the methods that make views.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, final, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..errors import ConfigError, ShardCorrupt, SplitWarning
from ..format.fields import Field, describe, length_column, presence, present_column
from ..format.limits import MAX_VALUE_BYTES
from ..order.plan import Order, Plan, Shuffle
from ..order.ring import RingPlan
from ..order.weighted import Points, WeightedPlan
from ..system.rules import whole_number
from ..system.shared_memory import is_sharing
from ..system.types import Buffer, Column, Indices
from . import saved
from .choice import Choice, Part, Select, Slice, Where
from .classes import KEY, names_in
from .documents import RowLayout
from .index_map import IndexMap
from .readable import Location, ReadableDataset, SelectedSamples, decoded
from .sequence_rows import RowChoice, RowSelection, documents_of
from .split import parse_split
from .weighing import Balance, Weighing, Weights
from .windows import ALL, FILE, Starts, WindowSelection, rows_to_check, usual_step, windowed

_SHARE_TOLD = 0.01  # of all samples
_MOST_SHOWN = 100  # characters of a description in repr


class BaseDataset(ReadableDataset):
    """Samples by number, and the methods that make views of them; datasets and views are of this class.

    A view is a dataset: a Loader reads it, exactly and over any ranks, and resumes it. Views stack.
    """

    orders_itself = False  # whether `plan` draws samples in a way of its own

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The datasets that this one reads; none of a `Dataset`, which is at the bottom."""
        return ()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        """Return this, as nothing changes what a dataset is."""
        return self

    @property
    def numbers(self) -> int:
        """The number of samples that have numbers: as many as there are, unless an order draws from them."""
        return len(self)

    @property
    def classes(self) -> list[str] | None:
        """The class names by `label`, or by the only field that has such names; None if no source has stated them.

        They are the list `classes` in `metadata`, where names of other fields' classes are, too.
        """
        return list(names_in(self.metadata.get(KEY))) or None

    def _facts(self) -> str:
        """Return what a notebook shows above the fields."""
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the fields and a few samples as HTML, which notebooks show. It reads at most four samples."""
        from . import notebook  # loads Pillow

        return notebook.to_html(self, self._facts(), self.classes)

    @property
    def adopted(self) -> bool:
        """Whether all shards are source files that `shardio index` adopted, so that `shard_numbers` tells the files."""
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

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        if not len(self):
            raise ConfigError(f"there must be at least one sample to load, {self!r} has none")
        return Plan(len(self), seed, 0, shuffle, block, window)

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the numbers, int64 [n], that samples have in the dataset at the bottom of a stack of views.

        Raises IndexError for a number outside.
        """
        return self._checked(whole_numbers(indices))

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> View: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | View:
        """Return one sample, field names to values; or for a slice the view of its samples.

        An image is its encoded bytes, a scalar a Python number, and what the sample lacks of an optional field None.
        A view that draws samples anew in each epoch shows epoch 0 of seed 0.
        """
        if isinstance(index, slice):
            return View(self._to_choose_from("a slice"), Slice.of(index))
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"a sample's number must be a whole number, got {index!r}; read([...]) reads several")
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [0, {len(self)}), got {index}")
        place = np.array([index % len(self)])
        columns = self.read(self.plan(0, None, 1, 1).lookup(place)[0])
        sample = {}
        for name, field in self.fields.items():
            value = columns[name][0]
            lacks = field.optional and not columns.get(presence(name), [True])[0]
            sample[name] = None if lacks else value.item() if field.kind == "scalar" else value
        return sample

    def read(self, indices: Sequence[int] | Indices, fields: Iterable[str] | None = None) -> dict[str, Any]:
        """Read many samples, in the order asked for.

        Args:
            indices: sample numbers in [0, N); repeats are allowed.
            fields: the fields to read; None reads all.

        Returns:
            For each field an array `[n, *shape]` of scalars or arrays of one shape, else a list of n values. Of an
            optional field a list has None where a sample lacks the value; an array has zeros there, and beside it is
            a bool column, called `NAME_present`.

        Raises IndexError, ConfigError for an unknown field, ShardCorrupt.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields must be a list of names, as in [{fields!r}], got {fields!r}")
        if isinstance(indices, slice):
            raise ConfigError(f"indices must be whole numbers, got a slice: give {range(*indices.indices(len(self)))}")
        rows = whole_numbers(indices)
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

    def where(self, condition: str) -> View:
        """Return the samples for which a condition holds, in their order.

        It reads the fields that the condition names, and no others.

        Args:
            condition: such as `"label in (3, 5) and score > 0.7"`, on scalars and texts. Besides numbers and
                comparisons it may have names of classes (`label == "cat"`), `key.startswith("val/")`, `"val/" in key`,
                `score is None`, `and`, `or` and `not`.

        Raises ConfigError for text that is no condition, or names what is no such field.
        """
        return View(self._to_choose_from("where"), Where(condition))

    def select(self, indices: Sequence[int] | Indices | Sequence[bool] | NDArray[np.bool_]) -> View:
        """Return samples by number, in the order given, repeats allowed.

        Args:
            indices: whole numbers in [-N, N), or a mask of N bools.

        Raises ConfigError for a mask of another length, IndexError for a number outside.
        """
        base = self._to_choose_from("select")
        given = np.asarray(indices)
        if given.dtype == np.bool_:
            if given.shape != (len(base),):
                raise ConfigError(f"a mask for select must have {len(base)} values, got {list(given.shape)}")
            return View(base, Select(np.flatnonzero(given)))
        rows = whole_numbers(given)
        return View(base, Select(self._checked(np.where(rows < 0, rows + len(base), rows))))

    def windows(
        self, length: int, *, stride: int = 1, step: int = 1, within: str | None = None, contiguous: str | None = None
    ) -> Windows:
        """Return windows: samples of `length` neighbouring rows each, arrays with an axis of that length before theirs.

        A window never holds rows of two sequences. Each sequence has windows from its first row on, and leaves out the
        rows at its end that are too few for one.

        Args:
            length: the rows of a window.
            stride: the rows from the start of a window to the start of the next one. With less than `length` they
                overlap; rows that windows of one batch share are read once.
            step: the rows from one row of a window to the next: 2 takes every second row.
            within: what a sequence is. `"file"`: the rows of one source file of data that `shardio index` adopted; of
                other data, rows with one value of the field `file`. `"dataset"`: all rows. Or the name of a field,
                a scalar or text: rows with one value of it. By default `"dataset"` with `contiguous`, else `"file"`.
            contiguous: the name of a coordinate, a scalar such as the time, at whose gaps sequences end, too: where its
                step from row to row differs by half or more from its usual step, the median of all. Missing rows,
                repeated ones, and a row without the value are gaps; months of 28 to 31 days are none. Alone, it lets
                windows run from file to file where the coordinate goes on.

        Fields whose values differ in size, such as image files and texts, are left out. A window has the value of an
        optional field if all of its rows have it.

        Raises ConfigError for numbers below 1, a column that cannot tell sequences, a coordinate too coarse to tell its
        steps, data that tells no source files, and data without a field that windows could have.
        """
        base = self._to_choose_from("windows")
        if within is None:
            within = FILE if contiguous is None else ALL
        starts = Starts(length, stride, step, within)
        if contiguous is not None:
            starts = replace(starts, contiguous=(contiguous, usual_step(base, within, contiguous)))
        return Windows(base, starts)

    def cut(
        self, field: str, length: int, *, positions: bool = False, documents: bool = False, cu_seqlens: bool = False
    ) -> SequenceRows:
        """Return rows of `length` entries, cut from all documents end to end: `floor(entries / length)` in an epoch.

        The documents lie on a ring, which each shuffled epoch enters at another place, so that rows differ from epoch
        to epoch. An epoch has each entry at most once, and leaves out fewer than `length`.

        Args:
            field: a ragged field, such as `("uint16", (None,))`, whose values are the documents.
            length: the entries of a row.
            positions: also give `NAME_position`, int64 [length]: the place of each entry within its document's part of
                the row.
            documents: also give `NAME_document`, int64 [length]: the number, within the row, of each entry's document.
            cu_seqlens: also give `NAME_cu_seqlens`, int32 [segments + 1]: the boundaries of documents in the batch laid
                end to end, as attention kernels take them.

        Rows come under the field's name, `[length, *entry]`; whole numbers of up to 32 bits as int64. Other fields are
        left out. Numbers of samples, as in `batch["index"]`, are the places on the ring at which rows begin.

        A token that the field's attribute `vocabulary`, the number of tokens, does not cover is a bad sample.

        Raises ConfigError for a field of another kind and a length below 1, ShardCorrupt for damaged lengths.
        """
        base = self._to_choose_from("cut")
        return SequenceRows(base, RowChoice(field, length, False, 0, positions, documents, cu_seqlens))

    def packed(
        self,
        field: str,
        length: int,
        *,
        value: float = 0,
        positions: bool = False,
        documents: bool = False,
        cu_seqlens: bool = False,
    ) -> SequenceRows:
        """Return rows of `length` entries with whole documents in them, packed by best fit decreasing.

        Documents longer than a row are split: their first parts fill rows, and the rest is packed. Every entry is in
        exactly one row. Which documents make which row is decided once, and kept in a file beside the dataset, or in
        the cache.

        Args:
            field: a ragged field, such as `("uint16", (None,))`, whose values are the documents.
            length: the entries of a row.
            value: what follows the last document of a row that is not full.
            positions: as for `cut`; 0 in padding.
            documents: as for `cut`; -1 in padding.
            cu_seqlens: as for `cut`; the padding of a row is a segment of its own.

        Besides the fields that `cut` gives, rows have `NAME_length`, int64: how many entries are of documents.

        Raises what `cut` raises, and ConfigError for a value that the rows' dtype cannot hold.
        """
        base = self._to_choose_from("packed")
        return SequenceRows(base, RowChoice(field, length, True, value, positions, documents, cu_seqlens))

    def split(
        self,
        shares: Mapping[str, float],
        *,
        by: str | None = None,
        group: str | None = None,
        seed: int = 0,
    ) -> dict[str, View]:
        """Split the samples at random into parts, each of which keeps their order.

        The same data gives the same parts for the same seed, in any container and any number of shards.

        Args:
            shares: the share of each part by name, such as `{"train": 0.9, "val": 0.1}`; they add up to at most 1.
            by: a scalar or text field whose classes keep their shares in every part. Without `group`, each part gets
                the floor or the ceiling of its share of each class.
            group: a scalar or text field, such as `"patient"`: samples of one group stay together. Within each class
                (that of most of a group's samples) the largest groups are given out first, and each goes where most is
                lacking, so parts come as near to their shares as whole groups allow. A part that is off by more than a
                hundredth of all samples is told (SplitWarning).
            seed: determines the parts.

        Raises ConfigError for shares out of range, a field of another kind, and if a part would be empty.
        """
        base, shares, seed = self._to_choose_from("split"), parse_split(shares), whole_number(seed, "seed")
        choices = {name: Part(shares, name, by, group, seed) for name in shares}
        maps = next(iter(choices.values())).index_maps(base)
        parts = {name: View(base, choice, maps[name]) for name, choice in choices.items()}
        for name, part in parts.items():
            share = len(part) / len(self)
            if abs(share - shares[name]) > _SHARE_TOLD and abs(len(part) - shares[name] * len(self)) >= 1:
                told = f"the part {name!r} has {len(part):,} of {len(self):,} samples"
                warnings.warn(f"{told}, {share:.1%} instead of {shares[name]:.1%}", SplitWarning, stacklevel=2)
        return parts

    def weighted(
        self,
        weights: Sequence[float] | NDArray[Any] | str,
        samples: int | None = None,
        *,
        replacement: bool = False,
    ) -> Weighted:
        """Return a view whose epochs hold each sample in proportion to its weight.

        A sample comes the floor or the ceiling of its expected count in every epoch: which of the two is drawn anew
        each time, so that the mean is the expected count. It is augmented differently each time that it comes.

        Args:
            weights: a weight of at least 0 for each sample, or the name of a field of scalars that holds them. A sample
                of weight 0 never comes.
            samples: samples per epoch; None takes as many as this dataset has.
            replacement: draw every sample independently instead, so that counts vary at random.

        Raises ConfigError for weights that are negative, not finite, all 0 or of another number than the samples.

        Source: systematic sampling (Madow 1949).
        """
        base = self._to_choose_from("weighted")
        count = None if samples is None else whole_number(samples, "samples")
        if isinstance(weights, str):
            return Weighted(base, Weights(weights, None, count, replacement))
        # A copy, as the array may change later; in a type that `save` keeps, so that equal weights have one digest.
        given = np.asarray(weights)
        stored = np.dtype("f8") if given.dtype == np.longdouble else given.dtype.newbyteorder("<")
        return Weighted(base, Weights(None, given.astype(stored), count, replacement))

    def balanced(self, field: str, samples: int | None = None, *, replacement: bool = False) -> Weighted:
        """Return a view whose epochs hold each class equally often, and each sample of a class equally often.

        Classes come the floor or the ceiling of their share in every epoch, and so do samples; see `weighted`.

        Args:
            field: a scalar or text field whose values are the classes, such as `"label"`.
            samples: samples per epoch; None takes as many as this dataset has.
            replacement: see `weighted`.

        Raises ConfigError for a field of another kind, and if a sample lacks it.
        """
        count = None if samples is None else whole_number(samples, "samples")
        return Weighted(self._to_choose_from("balanced"), Balance(field, count, replacement))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep a view in a file: its description, with the digests of what it is of. `shardio.open` opens it.

        It replaces an older view there in one step. Arrays that were given, as to `select`, are saved beside it. The
        file says where a dataset is if that is below its own folder, so that you may move both; otherwise you tell
        `shardio.open` what the view is of.

        Args:
            path: the file, whose name ends in `.json`.

        Raises ConfigError for another name, for a file there that is no view, and for a dataset that is no view.
        """
        saved.save(self, path)

    def _to_choose_from(self, how: str) -> ReadableDataset:
        """Return this dataset, from which a view chooses; ConfigError if it draws samples by an order of its own."""
        if self.orders_itself:
            raise ConfigError(
                f"{how} chooses from stored samples, and {self!r} draws them anew in each epoch: choose first, then "
                "weigh, cut or mix"
            )
        return self

    def _checked(self, indices: Indices) -> Indices:
        """Return numbers of samples; raise IndexError if one is outside of [0, numbers)."""
        if len(indices) and (indices.min() < 0 or indices.max() >= self.numbers):
            wrong = indices[(indices < 0) | (indices >= self.numbers)][0]
            raise IndexError(f"{self.path}: index must be in [0, {self.numbers}), got {wrong}")
        return indices


def whole_numbers(given: Any) -> Indices:
    """Return whole numbers as int64 [n]; raise ConfigError for others."""
    asked = np.asarray(given)
    if asked.size and asked.dtype.kind not in "iu":
        raise ConfigError(f"indices must be whole numbers, got {asked.dtype}")
    if asked.dtype == np.uint64 and asked.size and asked.max() > np.iinfo(np.int64).max:
        raise IndexError(f"no sample has the number {asked.max()}")
    return asked.astype(np.int64).reshape(-1)


class Derived(BaseDataset):
    """A dataset that reads another one.

    Attributes:
        base: the dataset that it reads.
        path: the path of the dataset at the bottom.
    """

    def __init__(self, base: ReadableDataset) -> None:
        self.base, self.path = base, base.path
        self._chosen_from = base  # with the labels of which a choice is

    def _described(self, choice: Choice | Weighing | RowChoice, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        if self.base is not self._chosen_from:
            raise saved.renumbered(self)
        return saved.described(choice, self.base, arrays)

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The base."""
        return (self.base,)

    def _in_base(self, indices: Indices) -> Indices:
        """Return the numbers of samples in the base."""
        return indices

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

    def check(
        self,
        indices: Indices,
        stored: Mapping[str, Column | Sequence[Buffer]],
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.base.check(self._in_base(indices), stored, max_value_bytes)

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for samples ahead, as `Dataset.read_ahead` does, run by run."""
        _read_ahead(self.base, self._in_base(np.array(run)), list(fields))

    def refetch(self, index: int) -> bool:
        return self.base.refetch(self._base_number(index))

    def warn_of_small_cache(self, window: int) -> None:
        self.base.warn_of_small_cache(min(window, len(self)))

    def shard_numbers(self, indices: Indices) -> NDArray[np.int64]:
        return self.base.shard_numbers(self._in_base(indices))

    def shard_of(self, index: int) -> str:
        return self.base.shard_of(self._base_number(index))

    def locate(self, index: int) -> Location:
        """Return the place of a sample, under its number here."""
        return replace(self.base.locate(self._base_number(index)), index=index)

    def _base_number(self, index: int) -> int:
        return int(self._in_base(np.array([index]))[0])


@final
class View(Derived):
    """Rows of another dataset: sample i of the view is the i-th that its choice makes.

    Attributes:
        base: the dataset that the view is of.
        choice: the choice that it makes.
        path: the path of the dataset at the bottom.
    """

    def __init__(self, base: ReadableDataset, choice: Choice, index_map: IndexMap | None = None) -> None:
        super().__init__(base)
        self.choice = choice
        self._map: IndexMap | None = choice.index_map(base) if index_map is None else index_map

    def _chosen(self) -> IndexMap:
        if self._map is None:  # the view was unpickled elsewhere
            self._map = self.choice.index_map(self._chosen_from)
        return self._map

    def _in_base(self, indices: Indices) -> Indices:
        return self._chosen()(indices)

    @property
    def digest(self) -> str:
        """A hash of the choice and of the digest of what it chooses from."""
        return self._digest(self.base.digest)

    def _digest(self, base: str) -> str:
        # Names of classes are no part of a dataset's digest, but what a condition chooses may depend on them.
        names = self.choice.bound(self._chosen_from).class_numbers if isinstance(self.choice, Where) else {}
        return digest_of(self.choice.description() | ({"classes": names} if names else {}), base)

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of the views that this choice makes of what the dataset grew from, with their lengths."""
        found = {}
        for digest, samples in self.base.earlier.items():
            if (leading := self.choice.in_earlier(self._chosen(), samples)) is not None:
                found[self._digest(digest)] = leading
        return found

    def __len__(self) -> int:
        return len(self._chosen())

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return self._described(self.choice, arrays)

    def __repr__(self) -> str:
        return f"<View {_short(self.choice.description())}: {len(self)} of {self.base!r}>"

    def __getstate__(self) -> dict[str, Any]:
        # Processes that start here share the map; anywhere else the description is enough to make it again.
        return self.__dict__ if is_sharing() else self.__dict__ | {"_map": None}


@final
class Windows(Derived):
    """Windows of a dataset: each sample is several neighbouring rows of it; `dataset.windows` returns them.

    Attributes:
        base: a view of the first row of each window.
        starts: the choice of these rows, and which rows follow them.
        path: the path of the dataset at the bottom.
    """

    base: View

    def __init__(self, rows: ReadableDataset, starts: Starts) -> None:
        self._fields = windowed(rows.fields, starts.length, rows.path)
        self.starts = starts
        super().__init__(View(rows, starts))

    def _rows(self, indices: Indices) -> Indices:
        """Return the rows of windows, int64 [n, length]."""
        return self.starts.rows(self.base._in_base(indices))

    @property
    def digest(self) -> str:
        """A hash of how windows are cut, and of the digest of the dataset that has the rows."""
        return self.base.digest

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of the same windows of what the dataset grew from, with their numbers."""
        return self.base.earlier

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of a window, arrays [length, *shape]."""
        return self._fields

    def __len__(self) -> int:
        return len(self.base)

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return self.base.description(arrays)

    @property
    def shard_means(self) -> NDArray[np.float64]:
        return super().shard_means * self.starts.length

    def __repr__(self) -> str:
        left_out = ", ".join(name for name in self.base.fields if name not in self._fields)
        without = f" without {left_out}, whose values differ in size" if left_out else ""
        return f"<Windows {_short(self.starts.description())}: {len(self)} of {self.base.base!r}{without}>"

    def field(self, name: str) -> Field:
        if (found := self._fields.get(name)) is not None:
            return found
        stored = self.base.field(name)
        if name in map(present_column, self._fields):
            return stored
        raise ConfigError(f"{self.path}: windows leave out {name!r}, whose values differ in size: {describe(stored)}")

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the numbers, int64 [n, length], that the rows of windows have in the dataset at the bottom."""
        rows = self._rows(self._checked(whole_numbers(indices)))
        return self.base.base.origin(rows.reshape(-1)).reshape(rows.shape)

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate windows, as `Dataset.selection` does; rows that several of them hold are read once."""
        return WindowSelection(self.base.base, self._fields, self._rows(self._checked(indices)), max_value_bytes)

    def check(
        self,
        indices: Indices,
        stored: Mapping[str, Column | Sequence[Buffer]],
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        """Compare the checksums of all rows, each once; the error names the window, too."""
        rows = self._rows(indices)
        try:
            self.base.base.check(*rows_to_check(rows, self._fields, stored), max_value_bytes)
        except ShardCorrupt:
            for window, own in zip(indices.tolist(), rows, strict=True):
                try:
                    self.base.base.check(own, {}, max_value_bytes)
                except ShardCorrupt as error:
                    raise ShardCorrupt(f"window {window}: {error}") from error
            raise

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for the rows of windows ahead, run by run, each row once."""
        _read_ahead(self.base.base, np.unique(self._rows(np.array(run))), list(fields))

    def refetch(self, index: int) -> bool:
        again = [self.base.base.refetch(row) for row in self._rows(np.array([index]))[0].tolist()]
        return any(again)

    def warn_of_small_cache(self, window: int) -> None:
        rows = min(window, len(self)) * min(self.starts.stride, self.starts.length)
        self.base.base.warn_of_small_cache(min(rows, len(self.base.base)))


@final
class SequenceRows(Derived):
    """Rows of one length, made of documents; `dataset.cut` and `dataset.packed` return them.

    Attributes:
        base: the dataset that has the documents.
        choice: how they make rows.
        path: the path of the dataset at the bottom.
    """

    def __init__(self, documents: ReadableDataset, choice: RowChoice) -> None:
        self._fields = choice.fields(documents)
        super().__init__(documents)
        self.choice = choice
        self._layout: RowLayout | None = choice.layout(documents)
        self.orders_itself = not choice.packed  # each epoch cuts rows anew

    def _made(self) -> RowLayout:
        if self._layout is None:  # the view was unpickled elsewhere
            self._layout = self.choice.layout(self._chosen_from)
        return self._layout

    def _in_base(self, indices: Indices) -> Indices:
        """Return the first document of each row."""
        pieces = self._made().pieces(indices)
        return pieces.documents[np.searchsorted(pieces.rows, np.arange(len(indices)))]

    def _documents(self, indices: Indices) -> Indices:
        """Return the documents in some rows, each once, in ascending order."""
        return np.unique(self._made().pieces(indices).documents)

    def __len__(self) -> int:
        return len(self._made())

    @property
    def numbers(self) -> int:
        """The number of rows that have numbers: of cut ones, as many as there are entries."""
        return self._made().numbers

    @property
    def padding(self) -> float:
        """The share of the entries of all rows that are padding."""
        return self._made().padding

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of rows."""
        return self._fields

    def field(self, name: str) -> Field:
        if (found := self._fields.get(name)) is not None:
            return found
        if name in (length_column(own) for own, field in self._fields.items() if field.ragged):
            return Field("scalar", "int64")
        raise ConfigError(f"{self.path}: rows of documents have no field {name!r}; there are {', '.join(self._fields)}")

    @property
    def digest(self) -> str:
        """A hash of how rows are made, and of the digest of the dataset that has the documents."""
        return digest_of(self.choice.description(), self.base.digest)

    @property
    def earlier(self) -> Mapping[str, int]:
        """An empty mapping, as more documents make other rows."""
        return {}

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the rows in epoch 0."""
        if self.choice.packed or not len(self):
            return super().plan(seed, shuffle, block, window)
        return RingPlan(self.numbers, self.choice.length, seed, 0, shuffle, block, window)

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return self._described(self.choice, arrays)

    def __repr__(self) -> str:
        padding = f", {self.padding:.2%} padding" if self.choice.packed else " an epoch"
        return f"<SequenceRows {_short(self.choice.description())}: {len(self)}{padding} of {self.base!r}>"

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that identify a row in a batch: only its `index`."""
        return {"index": ()}

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some rows, int64 [n] each."""
        return {"index": indices}

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the number, in the dataset at the bottom, of each entry's document: int64 [n, length], -1 in padding.

        Raises IndexError for a number outside.
        """
        rows = self._checked(whole_numbers(indices))
        return documents_of(self._made().pieces(rows), self.base, len(rows), self.choice.length)

    @property
    def shard_means(self) -> NDArray[np.float64]:
        return np.full_like(super().shard_means, self._fields[self.choice.field].row_bytes)

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate the pieces of documents in rows, as `Dataset.selection` does."""
        pieces = self._made().pieces(self._checked(indices))
        return RowSelection(self.base, self.choice, self._fields, pieces, len(indices), max_value_bytes)

    def check(
        self,
        indices: Indices,
        stored: Mapping[str, Column | Sequence[Buffer]],
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        """Compare the checksums of all documents in rows, each once; the error names the row, too."""
        try:
            self.base.check(self._documents(indices), {}, max_value_bytes)
        except ShardCorrupt:
            for row in indices.tolist():
                try:
                    self.base.check(self._documents(np.array([row])), {}, max_value_bytes)
                except ShardCorrupt as error:
                    raise ShardCorrupt(f"row {row}: {error}") from error
            raise

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for the documents of cut rows ahead. Those of packed ones lie apart: asking takes longer."""
        if not self.choice.packed:
            _read_ahead(self.base, self._documents(np.array(run)), [self.choice.field])

    def refetch(self, index: int) -> bool:
        again = [self.base.refetch(document) for document in self._documents(np.array([index])).tolist()]
        return any(again)

    def warn_of_small_cache(self, window: int) -> None:
        self.base.warn_of_small_cache(-(-len(self.base) * window // max(len(self), 1)))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if is_sharing() else self.__dict__ | {"_layout": None}


@final
class Weighted(Derived):
    """Samples of another dataset, which its order draws by weight; `BaseDataset.weighted` and `balanced` return it.

    The numbers of samples, as in `batch["index"]`, are those of the dataset that is weighed.

    Attributes:
        base: the dataset that is weighed.
        weighing: the weights, the samples per epoch, and how they are drawn.
        path: the path of the dataset at the bottom.
    """

    orders_itself = True

    def __init__(self, base: ReadableDataset, weighing: Weighing) -> None:
        super().__init__(base)
        self.weighing = weighing
        self._points: Points | None = weighing.points(base)

    def __len__(self) -> int:
        return len(self.base) if self.weighing.samples is None else self.weighing.samples

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return self._described(self.weighing, arrays)

    def __repr__(self) -> str:
        return f"<Weighted {_short(self.weighing.description())}: {len(self)} an epoch of {self.base!r}>"

    @property
    def numbers(self) -> int:
        """The number of samples that are weighed."""
        return len(self.base)

    @property
    def digest(self) -> str:
        """A hash of the weights and of the digest of what is weighed."""
        return digest_of(self.weighing.description(), self.base.digest)

    @property
    def earlier(self) -> Mapping[str, int]:
        """Nothing: weights of other samples draw all samples otherwise."""
        return {}

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        if self._points is None:  # the view was unpickled elsewhere
            self._points = self.weighing.points(self._chosen_from)
        return WeightedPlan(len(self), self._points, self.weighing.replacement, seed, 0, shuffle, block, window)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if is_sharing() else self.__dict__ | {"_points": None}


def _read_ahead(dataset: ReadableDataset, numbers: Indices, names: Sequence[str]) -> None:
    """Ask storage for samples, int64 [n], run by run."""
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    for begin, size in zip(numbers[starts].tolist(), np.diff(starts, append=len(numbers)).tolist(), strict=True):
        dataset.read_ahead(range(begin, begin + size), names)


def digest_of(description: Mapping[str, Any], base: str) -> str:
    """Return the digest of a view by its description and the digest of what it is of."""
    return f"view:{xxhash.xxh3_128_hexdigest(json.dumps([description, base]).encode())}"


def _short(description: Mapping[str, Any]) -> str:
    told = json.dumps({name: value for name, value in description.items() if value not in (None, False)})
    return told if len(told) <= _MOST_SHOWN else f"{told[:_MOST_SHOWN]}..."
