"""Datasets and views as a source: stored bytes are copied unchanged, and verified against their checksums."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..dataset.opening import Place, as_dataset, at_bottom
from ..dataset.store_access import DEFAULTS, StoreAccess
from ..errors import BadSample, ConfigError, DatasetError, ShardCorrupt
from ..format import cf, checksums
from ..format.fields import (
    CHECKSUM,
    Field,
    content_columns,
    describe_fields,
    facts_column,
    packets_column,
    present_column,
    shape_column,
    with_hidden,
)
from ..format.packets import BadTable, VideoFacts, check_table
from ..output.shard_writer import Encoded
from ..stores.url import as_url
from ..system.local_path import local_path
from ..system.types import Indices, Sample
from ..views.classes import Classes, alike
from ..views.expression import Condition
from ..views.view import BaseDataset
from .source import Source, check_index

_BLOCK_BYTES = 8 << 20
_BLOCK_SAMPLES = 1024


@final
class DatasetSource(Source):
    """The samples of one or more datasets or views, one after the other, as a `Source`.

    Args:
        places: the datasets, or their paths or URLs.
        access: how those at URLs and on slow file systems are reached.
        classes: what labels mean where the datasets' classes differ, see `shardio.mix`; None raises for such datasets.

    Raises ConfigError where their fields or classes differ, and for a view that draws samples anew in each epoch;
    NotADataset, ManifestError.
    """

    threads = True

    def __init__(
        self,
        places: Sequence[Place],
        access: StoreAccess = DEFAULTS,
        classes: Classes | None = None,
    ) -> None:
        self._places = [
            place if isinstance(place, BaseDataset) else as_url(place) or local_path(place).absolute()
            for place in places
        ]
        self._access, self._classes = access, classes
        first, *others = opened = [as_dataset(place, access) for place in self._places]
        for dataset in opened:
            if dataset.orders_itself:
                raise ConfigError(f"{dataset!r} draws its samples anew in each epoch: convert what it draws from")
            if any(field.window for field in dataset.fields.values()):
                raise ConfigError(f"{dataset!r} is made of other samples: convert these, and make it of the result")
        fields = first.fields.items()
        self._fields = {name: replace(f, shape=None) if f.kind == "image" else f for name, f in fields}
        for other in others:
            if plain(other.fields) != plain(first.fields):
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
        paths = [f"{dataset.path}" for dataset in opened]
        named = {  # views of one dataset have its path
            path if path not in paths[:number] else f"{path} ({number + 1})": dataset
            for number, (path, dataset) in enumerate(zip(paths, opened, strict=True))
        }
        self._datasets = alike(named, self._fields, classes)
        self._ends = np.cumsum([len(dataset) for dataset in self._datasets])
        self._means = [dataset.shard_means.astype(np.int64) for dataset in self._datasets]

    @property
    def fields(self) -> Mapping[str, Field]:
        """The datasets' common fields. Image fields have no shape: the new dataset determines it."""
        return self._fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The first dataset's metadata, with the classes of all if they are numbered by name."""
        return self._datasets[0].metadata

    @property
    def changes(self) -> Mapping[str, Any]:
        """JSON values that set views and renumbered labels apart from other conversions of the same data.

        A copy of a derived dataset states the input, and by a digest which rows are those of its samples.
        """
        plain = all(isinstance(dataset, Dataset) and not dataset.renumbers for dataset in self._datasets)
        found: dict[str, Any] = {} if plain else {"labels": [dataset.digest for dataset in self._datasets]}
        if (first := next(at_bottom(self._datasets[0]))).derived_from is not None:
            found["derived"] = {"rows": first.digest, **first.manifest.conversion["derived"]}
        return found

    @property
    def containers(self) -> set[str]:
        """The containers of the datasets."""
        return {stored.manifest.container for dataset in self._datasets for stored in at_bottom(dataset)}

    def sizes(self) -> NDArray[np.int64]:
        """Return the mean of its shard for each sample, int64 [n]."""
        return np.concatenate([self._sizes(n, np.arange(len(dataset))) for n, dataset in enumerate(self._datasets)])

    def _sizes(self, which: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._means[which][self._datasets[which].shard_numbers(rows)]

    def holds(self, condition: Condition, numbers: Indices) -> NDArray[np.bool_]:
        """See `Source.holds`."""
        which = np.searchsorted(self._ends, numbers, side="right")
        holds = np.empty(len(numbers), np.bool_)
        for place in np.unique(which).tolist():
            dataset, inside = self._datasets[place], which == place
            rows = numbers[inside] - (int(self._ends[place]) - len(dataset))
            holds[inside] = condition.of(dataset.selection(rows), len(rows))
        return holds

    def __getitem__(self, index: int) -> Sample:
        check_index(index, int(self._ends[-1]))
        which, number = self._place(index)
        dataset = self._datasets[which]
        try:
            dataset.check(np.array([number]), {})
            sample: Sample = dataset[number]
            if any(field.kind == "video" for field in self._fields.values()):  # check does not read them
                (one,) = _read_block(dataset, np.array([number]), self._fields)
                if isinstance(one, DatasetError):
                    raise BadSample(str(one)) from one
            return sample
        except ShardCorrupt as error:
            raise BadSample(str(error)) from error

    def encoded(self, numbers: NDArray[np.int64]) -> Iterator[Encoded | DatasetError]:
        """Yield the stored samples, see `Source.encoded`; reads blocks, and single samples where a block is damaged."""
        start = 0
        while start < len(numbers):
            which, first = self._place(int(numbers[start]))
            block = numbers[start : start + _BLOCK_SAMPLES] - (int(numbers[start]) - first)
            inside = (block >= 0) & (block < len(self._datasets[which]))
            block = block if inside.all() else block[: int(np.argmin(inside))]
            block = block[: max(1, int(np.searchsorted(np.cumsum(self._sizes(which, block)), _BLOCK_BYTES)))]
            yield from _read_block(self._datasets[which], block, self._fields)
            start += len(block)

    def _place(self, index: int) -> tuple[int, int]:
        """Return the number of the dataset that has a sample, and the sample's number there."""
        which = int(np.searchsorted(self._ends, index, side="right"))
        return which, index - (int(self._ends[which - 1]) if which else 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetSource, (self._places, self._access, self._classes)


def _read_block(
    dataset: BaseDataset, rows: NDArray[np.int64], fields: Mapping[str, Field]
) -> Iterator[Encoded | DatasetError]:
    """Yield samples of one dataset, checked against their checksums."""
    try:
        selection = dataset.selection(rows)
        names = with_hidden(fields).keys() - fields.keys()
        if any(stored.manifest.unchecked for stored in at_bottom(dataset)):
            names -= {CHECKSUM}
        hidden = {name: selection.stored(name) for name in names}
        columns = {name: selection.stored(name) for name in fields}
        actual = checksums.of_samples({**columns, **hidden}, content_columns(fields))
        if CHECKSUM not in hidden:
            hidden[CHECKSUM] = actual
        elif (actual != hidden[CHECKSUM]).any():  # labels are renumbered, or it is damaged
            dataset.check(rows, columns)
            hidden[CHECKSUM] = actual.astype(hidden[CHECKSUM].dtype, copy=False)
    except DatasetError as error:
        if len(rows) == 1:
            yield error
            return
        for row in rows:
            yield from _read_block(dataset, np.array([row]), fields)
        return
    whole = checksums.whole_videos({**columns, **hidden}, fields, len(rows))
    for place in range(len(rows)):
        if told := _video_damage(fields, columns, hidden, place, whole=bool(whole[place])):
            yield BadSample(f"{dataset.path / str(dataset.locate(int(rows[place])))}, {told}")
            continue
        stored = {name: _bytes(column[place]) for name, column in {**columns, **hidden}.items()}
        sizes = {
            name: (int(hidden[shape_column(name)][place][0]), int(hidden[shape_column(name)][place][1]))
            for name, field in fields.items()
            if field.kind == "image" and (not field.optional or hidden[present_column(name)][place])
        }
        yield Encoded(stored, int(actual[place]), sizes)


def _video_damage(
    fields: Mapping[str, Field], columns: Mapping[str, Any], hidden: Mapping[str, Any], row: int, *, whole: bool
) -> str | None:
    """Return what is wrong with a sample's videos and their tables; None if nothing is."""
    for name in (name for name, field in fields.items() if field.kind == "video"):
        facts, table = VideoFacts(*hidden[facts_column(name)][row].tolist()), hidden[packets_column(name)][row]
        try:
            check_table(facts, table, columns[name][row])
        except BadTable as error:
            return f"field {name!r}: {error}"
    return None if whole else "a video has another checksum than the stored one"


def _bytes(value: Any) -> bytes | memoryview:
    return value if isinstance(value, (bytes, memoryview)) else value.tobytes()


def plain(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields without what datasets and sources state of all values: attributes, and the size of images."""
    return {
        name: replace(field, attributes=None, shape=None if field.kind == "image" else field.shape)
        for name, field in fields.items()
    }
