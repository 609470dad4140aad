"""Datasets of shardio as a source: stored bytes are copied unchanged, and verified against their checksums."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.store_access import StoreAccess
from ..errors import BadSample, ConfigError, DatasetError, ShardCorrupt
from ..format import cf, checksums
from ..format.fields import CHECKSUM, Field, content_columns, describe_fields, present_column, shape_column, with_hidden
from ..output.shard_writer import Encoded
from ..stores.url import Url, as_url
from ..system.local_path import local_path
from ..system.types import Indices, Sample
from ..views.classes import Classes, alike
from ..views.expression import Condition
from .source import check_index

_BLOCK_BYTES = 8 << 20
_BLOCK_SAMPLES = 1024


@final
class DatasetSource:
    """The samples of one or more datasets, one dataset after the other, as a `Source`.

    Args:
        paths: the datasets' directories or URLs.
        access: how those at URLs are reached.
        classes: what labels mean where the datasets' classes differ, see `shardio.mix`; None refuses such datasets.

    Raises ConfigError where their fields or classes differ, NotADataset, ManifestError.
    """

    threads = True

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        access: StoreAccess | None = None,
        classes: Classes | None = None,
    ) -> None:
        self._places = [as_url(path) or local_path(path).absolute() for path in paths]
        self._access, self._classes = access or StoreAccess(), classes
        self._open()

    def _open(self) -> None:
        first, *others = opened = [open_dataset(place, **self._access.keywords_for(place)) for place in self._places]
        self._fields = _fields(first)
        for other in others:
            if _numbers_of(_fields(other)) != _numbers_of(self._fields):
                first_has, other_has = describe_fields(first.fields), describe_fields(other.fields)
                raise ConfigError(
                    f"datasets must have the same fields: {first.path} has {first_has}, {other.path} has {other_has}"
                )
            for name, field in self._fields.items():
                if difference := cf.difference(field.attributes, other.fields[name].attributes):
                    raise ConfigError(
                        f"equal numbers of datasets must mean equal values: of field {name!r}, "
                        f"{difference.between(first.path, other.path)}"
                    )
        named = {f"{dataset.path}": dataset for dataset in opened}  # fewer if one is merged twice
        same = dict(zip(named, alike(named, self._fields, self._classes), strict=True))
        self._datasets = [same[f"{dataset.path}"] for dataset in opened]
        self._ends = np.cumsum([len(dataset) for dataset in self._datasets])
        shards = [dataset.manifest.shards for dataset in self._datasets]
        self._shard_ends = np.cumsum(np.concatenate([table.samples for table in shards]))
        self._means = np.concatenate([table.bytes // np.maximum(1, table.samples) for table in shards])

    @property
    def fields(self) -> Mapping[str, Field]:
        """The datasets' common fields. Image fields have no shape: the new dataset determines it."""
        return self._fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The first dataset's metadata, with the classes of all if they are numbered by name."""
        return self._datasets[0].manifest.metadata

    @property
    def changes(self) -> Mapping[str, Any]:
        """JSON values that tell a conversion that renumbers labels from others of the same datasets."""
        return {"labels": [d.digest for d in self._datasets]} if any(d.renumbers for d in self._datasets) else {}

    @property
    def containers(self) -> set[str]:
        """The containers of the datasets."""
        return {dataset.manifest.container for dataset in self._datasets}

    def sizes(self) -> NDArray[np.int64]:
        """Return the mean of its shard for each sample, int64 [n]."""
        return np.repeat(self._means, np.diff(self._shard_ends, prepend=0)).astype(np.int64)

    def holds(self, condition: Condition, numbers: Indices) -> NDArray[np.bool_]:
        """See `subset.HasConditions`."""
        which = np.searchsorted(self._ends, numbers, side="right")
        holds = np.empty(len(numbers), np.bool_)
        for place in np.unique(which).tolist():
            dataset, inside = self._datasets[place], which == place
            rows = numbers[inside] - (int(self._ends[place]) - len(dataset))
            holds[inside] = condition.of(dataset.selection(rows), len(rows))
        return holds

    def __getitem__(self, index: int) -> Sample:
        check_index(index, int(self._ends[-1]))
        dataset, number = self._place(index)
        try:
            dataset.check(np.array([number]), {})
            sample: Sample = dataset[number]
            return sample
        except ShardCorrupt as error:
            raise BadSample(str(error)) from error

    def encoded(self, numbers: NDArray[np.int64]) -> Iterator[Encoded | DatasetError]:
        """Yield the stored samples, see `tasks.HasEncoded`; read in blocks, and one by one where a block is damaged."""
        start = 0
        sizes = self._means[np.searchsorted(self._shard_ends, numbers, side="right")]
        while start < len(numbers):
            dataset, first = self._place(int(numbers[start]))
            most = max(1, int(np.searchsorted(np.cumsum(sizes[start : start + _BLOCK_SAMPLES]), _BLOCK_BYTES)))
            block = numbers[start : start + most] - (int(numbers[start]) - first)
            inside = (block >= 0) & (block < len(dataset))
            count = len(block) if inside.all() else int(np.argmin(inside))
            yield from _read_block(dataset, block[:count], self._fields)
            start += count

    def _place(self, index: int) -> tuple[Dataset, int]:
        which = int(np.searchsorted(self._ends, index, side="right"))
        return self._datasets[which], index - (int(self._ends[which - 1]) if which else 0)

    def __getstate__(self) -> tuple[list[Path | Url], StoreAccess, Classes | None]:
        return self._places, self._access, self._classes

    def __setstate__(self, state: tuple[list[Path | Url], StoreAccess, Classes | None]) -> None:
        self._places, self._access, self._classes = state
        self._open()


def _read_block(
    dataset: Dataset, rows: NDArray[np.int64], fields: Mapping[str, Field]
) -> Iterator[Encoded | DatasetError]:
    """Yield samples of one dataset, checked against their checksums."""
    try:
        selection = dataset.selection(rows)
        hidden = {name: selection.column(name) for name in with_hidden(fields).keys() - fields.keys()}
        columns = {name: selection.stored(name) for name in fields}
        actual = checksums.of_samples({**columns, **hidden}, content_columns(fields))
        if dataset.renumbers:
            dataset.check(rows, columns)
            hidden[CHECKSUM] = actual.astype(hidden[CHECKSUM].dtype, copy=False)
    except DatasetError as error:
        if len(rows) == 1:
            yield error
            return
        for row in rows:
            yield from _read_block(dataset, np.array([row]), fields)
        return
    for place, row in enumerate(rows.tolist()):
        expected = int(hidden[CHECKSUM][place])
        if int(actual[place]) != expected:
            location = dataset.path / f"{dataset.locate(row)}"
            yield ShardCorrupt(f"{location}: checksum {int(actual[place]):016x} is not {expected:016x}")
            continue
        stored = {name: _bytes(column[place]) for name, column in {**columns, **hidden}.items()}
        sizes = {
            name: (int(hidden[shape_column(name)][place][0]), int(hidden[shape_column(name)][place][1]))
            for name, field in fields.items()
            if field.kind == "image" and (not field.optional or hidden[present_column(name)][place])
        }
        yield Encoded(stored, expected, sizes)


def _bytes(value: Any) -> bytes | memoryview:
    return value if isinstance(value, (bytes, memoryview)) else value.tobytes()


def _numbers_of(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields without what their source states of their values."""
    return {name: replace(field, attributes=None) for name, field in fields.items()}


def _fields(dataset: Dataset) -> dict[str, Field]:
    return {name: replace(f, shape=None) if f.kind == "image" else f for name, f in dataset.fields.items()}
