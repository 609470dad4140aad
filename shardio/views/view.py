"""A view: rows of another dataset, chosen by an index map, read as that dataset is read.

`BaseDataset` is what datasets and views have in common: samples by number, and the methods that make views.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..errors import ConfigError
from ..format.fields import Field, presence, present_column
from ..format.limits import MAX_VALUE_BYTES
from ..order.plan import Order, Plan, Shuffle
from ..system.shared_memory import is_sharing
from ..system.types import Buffer, Column, Indices
from . import saved
from .choice import Choice, Select, Slice, Where
from .classes import KEY, names_in
from .index_map import IndexMap
from .readable import Location, ReadableDataset, SelectedSamples, decoded

_MOST_SHOWN = 60  # characters of a description in repr


class BaseDataset(ReadableDataset):
    """Samples by number, and the methods that make views of them; datasets and views are of this class.

    A view is a dataset: a Loader reads it, exactly and over any ranks, and resumes it. Views stack.
    """

    orders_itself = False  # whether `plan` draws samples in a way of its own

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

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        return Plan(len(self), seed, 0, shuffle, block, window)

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the numbers, int64 [n], that samples have in the dataset at the bottom of a stack of views.

        Raises IndexError for a number outside.
        """
        return self._checked(np.asarray(indices, np.int64))

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
            return View(self._to_choose_from("a slice"), Slice(index.start, index.stop, index.step))
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
                result |= {} if present is None else {presence(name): present}
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
                "weigh or mix"
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
    return asked.astype(np.int64).reshape(-1)


@final
class View(BaseDataset):
    """Rows of another dataset: sample i of the view is sample `chosen(i)` of it.

    Attributes:
        base: the dataset that the view is of.
        choice: what the view is of it.
        path: the path of the dataset at the bottom.
    """

    def __init__(self, base: ReadableDataset, choice: Choice) -> None:
        self.base, self.choice, self.path = base, choice, base.path
        self._chosen_of = base  # with the labels of which the choice is
        self._map: IndexMap | None = choice.index_map(base)

    @property
    def _chosen(self) -> IndexMap:
        if self._map is None:  # the view was unpickled elsewhere
            self._map = self.choice.index_map(self._chosen_of)
        return self._map

    @property
    def digest(self) -> str:
        """A hash of the choice and of the digest of what it chooses from."""
        return _digest(self.choice, self.base.digest)

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of the views that this choice makes of what the dataset grew from, with their lengths."""
        found = {}
        for digest, samples in self.base.earlier.items():
            if (leading := self.choice.in_earlier(self._chosen, samples)) is not None:
                found[_digest(self.choice, digest)] = leading
        return found

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.base.fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.base.metadata

    def __len__(self) -> int:
        return len(self._chosen)

    def __repr__(self) -> str:
        told = json.dumps(self.choice.description())
        short = told if len(told) <= _MOST_SHOWN else f"{told[:_MOST_SHOWN]}..."
        return f"<View {short}: {len(self)} of {self.base!r}>"

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        if self.base is not self._chosen_of:
            raise saved.renumbered(self)
        return saved.described(self.choice, self.base, arrays)

    def field(self, name: str) -> Field:
        return self.base.field(name)

    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> View:
        view = View.__new__(View)
        view.__dict__.update(self.__dict__, base=self.base.renumbered(labels, metadata))
        return view

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that identify a sample in a batch: its number in the view, and its source in a concatenation."""
        return self.base.id_columns

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some samples, int64 [n] each."""
        return {**self.base.sample_ids(self._chosen(indices)), "index": indices}

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        return self.base.origin(self._chosen(super().origin(indices)))

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        return self.base.selection(self._chosen(self._checked(indices)), max_value_bytes)

    def check(
        self,
        indices: Indices,
        stored: Mapping[str, Column | Sequence[Buffer]],
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.base.check(self._chosen(indices), stored, max_value_bytes)

    def read_ahead(self, first: int, count: int, fields: Iterable[str]) -> None:
        """Ask storage for samples ahead, as `Dataset.read_ahead` does, run by run."""
        numbers, names = self._chosen(np.arange(first, first + count)), list(fields)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
        for begin, size in zip(numbers[starts].tolist(), np.diff(starts, append=len(numbers)).tolist(), strict=True):
            self.base.read_ahead(begin, size, names)

    @property
    def fetched(self) -> FetchCounts:
        return self.base.fetched

    @property
    def in_store(self) -> bool:
        return self.base.in_store

    def refetch(self, index: int) -> bool:
        return self.base.refetch(self._base_number(index))

    def warn_of_small_cache(self, window: int) -> None:
        self.base.warn_of_small_cache(min(window, len(self)))

    def shard_of(self, index: int) -> str:
        return self.base.shard_of(self._base_number(index))

    def locate(self, index: int) -> Location:
        """Return the place of a sample, under its number in the view."""
        return replace(self.base.locate(self._base_number(index)), index=index)

    def _base_number(self, index: int) -> int:
        return int(self._chosen(np.array([index]))[0])

    def __getstate__(self) -> dict[str, Any]:
        # Processes that start here share the map; anywhere else the description is enough to make it again.
        state = self.__dict__.copy()
        if not is_sharing():
            state["_map"] = None
        return state


def _digest(choice: Choice, base: str) -> str:
    content = json.dumps([choice.description(), base])
    return f"view:{xxhash.xxh3_128_hexdigest(content.encode())}"
