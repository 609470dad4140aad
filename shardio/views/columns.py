"""Whole columns of a dataset, read in parts by several threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ShardCorrupt
from ..format.fields import describe, length_column, present_column
from ..order.buckets import MOST
from ..system import cpus
from ..system.types import Indices
from .readable import ReadableDataset, SelectedSamples, decoded

_COUNTED = 1 << 24  # integers
_MOST_BYTES = 1 << 40  # of a value
_MOST_ENTRIES = 1 << 62  # of all values together
AT_ONCE = 1 << 18
"""The samples that one thread reads together."""

T = TypeVar("T")


def in_parts(function: Callable[[Indices], T], count: int, at_once: int = AT_ONCE, first: int = 0) -> Iterator[T]:
    """Yield the results of a function of consecutive numbers from `first` to count - 1, in order; threads call it.

    Each call gets at most `at_once` numbers. Whoever closes the iterator waits for the calls that run, and no others
    begin.
    """
    parts = [range(begin, min(begin + at_once, count)) for begin in range(first, count, at_once)]
    with ThreadPoolExecutor(cpus.usable(), "shardio column") as threads:
        yield from threads.map(lambda part: function(np.arange(part.start, part.stop)), parts)


def stored_numbers(dataset: ReadableDataset, indices: Indices) -> Indices:
    """Return a number of the stored sample that each sample is read from, int64 [n], also across several datasets."""
    if not dataset.below:
        return indices
    found, first = np.empty(len(indices), np.int64), 0
    for part in dataset.parts(indices):
        found[part.rows] = first + stored_numbers(dataset.below[part.source], part.indices)
        first = int(found[part.rows].max()) + 1
    return found


def scalars(dataset: ReadableDataset, name: str) -> NDArray[Any]:
    """Return a field of scalars of all samples, [n]; ConfigError for another kind, and if a sample lacks it."""
    if (field := dataset.field(name)).kind != "scalar":
        raise ConfigError(f"{dataset.path}: {name!r} must be a scalar field, it is {describe(field)}")
    values = np.empty(len(dataset), field.row_dtype)

    def read(numbers: Indices) -> None:
        _with_values(dataset, name, numbers).column(name, values[numbers[0] : numbers[-1] + 1])

    for _ in in_parts(read, len(dataset)):
        pass
    return values


def lengths(dataset: ReadableDataset, name: str) -> NDArray[np.unsignedinteger[Any]]:
    """Return the lengths of samples by their numbers, [numbers], in the smallest dtype.

    These are those of a ragged field's values, 0 where there is none, or a field of scalars.

    Raises ConfigError for another kind of field, and if a sample lacks the scalar or it is not from 0 to 2^31 - 1;
    ShardCorrupt for a length that no value has.
    """
    field = dataset.field(name)
    ragged = field.ragged and field.role != "segments"
    if not ragged and not (field.kind == "scalar" and field.row_dtype.kind in "iu"):
        raise ConfigError(
            "bucket_by must name a field of arrays whose first axis has any length, or of integers, the lengths "
            "of samples, or be 'NAME:aspect' for images; {!r} of {} is {}",
            name,
            dataset.path,
            describe(field),
        )

    def read(numbers: Indices) -> NDArray[Any]:
        return _with_values(dataset, name, numbers).column(name)

    found, first = list[NDArray[np.unsignedinteger[Any]]](), 0
    for values in value_lengths(dataset, name) if ragged else in_parts(read, dataset.numbers):
        if len(outside := np.flatnonzero((values < 0) | (values > MOST))):
            place = dataset.path / f"{dataset.locate(first + int(outside[0]))}"
            raise ConfigError(f"{place}: {name!r} must be from 0 to {MOST} to be a length, it is {values[outside[0]]}")
        found.append(values.astype(np.min_scalar_type(int(values.max()))))
        first += len(values)
    return np.concatenate(found)


def value_lengths(dataset: ReadableDataset, name: str) -> Iterator[NDArray[np.int64]]:
    """Yield the number of entries of each value of a ragged field, int64, in parts.

    Raises ShardCorrupt for a length that no value has, ConfigError for more entries than can be counted.
    """

    def read(numbers: Indices) -> NDArray[np.int64]:
        return dataset.selection(numbers).column(length_column(name))

    most, total, first = _MOST_BYTES // dataset.field(name).entry_bytes, 0, 0
    for values in in_parts(read, dataset.numbers):
        if len(wrong := np.flatnonzero((values < 0) | (values > most))):
            place = dataset.path / f"{dataset.locate(first + int(wrong[0]))}"
            raise ShardCorrupt(f"{place}, field {name!r}: has a length of {values[wrong[0]]}, not one in [0, {most}]")
        total, first = total + int(values.sum()), first + len(values)
        if total >= _MOST_ENTRIES:
            raise ConfigError(f"{dataset.path}: field {name!r} has 2^62 entries or more, too many to count")
        yield values


def _with_values(dataset: ReadableDataset, name: str, numbers: Indices) -> SelectedSamples:
    """Locate samples; ConfigError if one lacks a field."""
    selection = dataset.selection(numbers)
    if dataset.field(name).optional and not (there := selection.column(present_column(name))).all():
        raise ConfigError(
            f"{dataset.path}: sample {numbers[~there][0]} has no {name!r}; choose with "
            f'where("{name} is not None") first'
        )
    return selection


def categories(dataset: ReadableDataset, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the category of each sample by a field, scalar or text: its number, int64 [n], and all values in order."""
    if (field := dataset.field(name)).kind != "text":
        if field.kind != "scalar":
            raise ConfigError(f"{dataset.path}: {name!r} must be a scalar or text field, it is {describe(field)}")
        column = scalars(dataset, name)
        low, high = (
            (int(column.min()), int(column.max())) if len(column) and column.dtype.kind in "iu" else (0, 1 << 63)
        )
        if high < min(low + _COUNTED, 1 << 63):  # counting needs no sorting
            places = column.astype(np.int64) - low
            there = np.bincount(places) > 0
            return (np.cumsum(there) - 1)[places], (np.flatnonzero(there) + low).tolist()
        values, numbers = np.unique(column, return_inverse=True)
        return numbers.reshape(-1).astype(np.int64, copy=False), values.tolist()
    known: dict[str, int] = {}

    def read(numbers: Indices) -> list[str]:
        return decoded(dataset, name, _with_values(dataset, name, numbers).values(name), numbers)

    found = [
        np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int64, len(texts))
        for texts in in_parts(read, len(dataset))
    ]
    ordered = sorted(known)
    rank = np.empty(len(known), np.int64)
    rank[[known[text] for text in ordered]] = np.arange(len(known))
    return rank[np.concatenate(found)] if found else np.empty(0, np.int64), ordered
