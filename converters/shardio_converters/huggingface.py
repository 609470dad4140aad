"""Data sets of Hugging Face's library `datasets`: samples are the rows, with the columns as fields.

They are described at https://huggingface.co/docs/datasets/about_arrow.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.image_files import read_image
from shardio.foreign.names import printable
from shardio.source import Field, Sample, check_index, load_optional

from ._arrow import Column, Rows, classes, columns, damage, rows_at_once, scalar_column
from ._fields import choose_fields, measure_field

_COLUMN_ROWS = 1 << 16  # rows whose scalars are read at once


def huggingface(src: Any, *, subset: str | None = None, fields: str | Mapping[str, str] | None = None) -> "HuggingFace":
    """A Dataset of Hugging Face, or what Dataset.save_to_disk or DatasetDict.save_to_disk has written.

    Rows and columns are those of the Dataset, as selected, shuffled or filtered; its formats and transforms are not
    applied. Images are stored as they are in its table, never decoded; those that are only a path are read from there.
    Numbers are scalars, text is text, bytes are bytes, or images if they begin like one. Array2D and such are arrays,
    and so are lists of numbers, of a fixed shape where they have a fixed size; other lists and structs are JSON.
    Decimals, dates and times become text, the latter in ISO 8601, in UTC where there is a time zone. A null is a bad
    sample, but in JSON. Nothing is downloaded.

    Args:
        src: the directory; from Python also a Dataset or a DatasetDict itself.
        subset: which of several splits, such as "train".
        fields: the columns to take and what to call them, as in "image=img,label". All without it.

    Example:
        shardio convert huggingface saved/mnist data/mnist --subset train
        shardio convert huggingface saved/mnist/train data/mnist --fields image,label

    Raises:
        SourceError: the directory is missing, damaged or of another kind, it is an IterableDataset, or no field holds
            a column's type.
        ConfigError: `subset` is needed or names what is not there, or `fields` does.
    """
    place, dataset = _split(*_loaded(src), subset)
    names = choose_fields(fields, dataset.column_names, place)
    features = dataset.features.to_dict()
    found = columns(names, dataset.data.schema, features, place)
    formatted = dataset.with_format("arrow", columns=list(dict.fromkeys(names.values())))
    return HuggingFace(place, formatted, found, classes(found, features)).measured()


@final
class HuggingFace:
    """The rows of a Dataset. Pickling sends the Dataset, of which what is on disk is not sent but opened again.

    Args:
        place: what messages call it.
        dataset: the Dataset, which gives tables of the chosen columns.
        found: what is read of it, by field.
        named: the classes' names, as metadata has them.
    """

    threads = True  # see `shardio.source.Source`: Arrow's tables never change

    def __init__(self, place: str, dataset: Any, found: Mapping[str, Column], named: Mapping[str, list[str]]) -> None:
        self._place, self._dataset, self._columns, self._classes = place, dataset, found, named
        self._step = rows_at_once(sum(column.mean for column in found.values()))
        self._block: tuple[int, Rows] | None = None  # the last that was read, and where it begins

    def __reduce__(self) -> tuple[type["HuggingFace"], tuple[Any, ...]]:
        return HuggingFace, (self._place, self._dataset, self._columns, self._classes)

    @property
    def fields(self) -> Mapping[str, Field]:
        """One for each column that was chosen."""
        return {name: column.field for name, column in self._columns.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name, and the classes' names where the Dataset tells them."""
        return {"source": "huggingface", **self._classes}

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample, `[n]`: exact for numbers, the average of up to 100 rows for what varies."""
        return np.full(len(self._dataset), sum(column.mean for column in self._columns.values()), np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self._dataset))
        rows, row = self._locate(index)
        return rows.sample(row, self._name(index))

    def column(self, name: str) -> NDArray[Any] | None:
        """See `shardio.source.HasColumns`: any scalar without nulls and damage; rows tell where those are."""
        column = self._columns.get(name)
        if column is None or column.field.kind != "scalar":
            return None
        values = np.empty(len(self._dataset), column.field.row_dtype)
        try:
            for low in range(0, len(values), _COLUMN_ROWS):
                part = values[low : low + _COLUMN_ROWS]
                part[:] = scalar_column(self._read(low, low + len(part))[column.name], column.field)
        except BadSample:
            return None
        return values

    def measured(self) -> "HuggingFace":
        """The same with the kinds and the average sizes of what varies from row to row, by reading some of it."""
        found = {}
        for name, column in self._columns.items():
            field, mean = measure_field(column.field, len(self._dataset), partial(self._value, name))
            found[name] = replace(column, field=field, mean=mean)
        return HuggingFace(self._place, self._dataset, found, self._classes)

    def _value(self, name: str, index: int) -> Any:
        rows = Rows(self._read(index, index + 1), {name: self._columns[name]}, read_image)
        return rows.sample(0, self._name(index))[name]

    def _locate(self, index: int) -> tuple[Rows, int]:
        """Rows of which one is sample `index`, and its number among them."""
        low = index // self._step * self._step
        if self._block is None or self._block[0] != low:
            self._block = None  # never two at a time
            try:
                self._block = low, self._rows(low, min(low + self._step, len(self._dataset)))
            except BadSample:  # damage must not spoil the other rows
                return self._rows(index, index + 1), 0
        return self._block[1], index - low

    def _rows(self, low: int, high: int) -> Rows:
        return Rows(self._read(low, high), self._columns, read_image)

    def _read(self, low: int, high: int) -> Any:
        """The table of these rows; BadSample if they are damaged."""
        try:
            table = self._dataset[low:high]
            table.validate(full=True)  # what is memory-mapped is whatever the file holds
        except damage() as error:
            raise BadSample(f"{self._name(low)}: cannot be read: {error}") from error
        return table

    def _name(self, index: int) -> str:
        return f"{self._place}, row {index}"


def _loaded(src: Any) -> tuple[str, Any]:
    """A Dataset or DatasetDict, and what messages call it."""
    library = load_optional("datasets", purpose="the converter 'huggingface'", extra="huggingface")
    if isinstance(src, (library.Dataset, library.DatasetDict)):
        return f"the {type(src).__name__}", src
    if isinstance(src, (library.IterableDataset, library.IterableDatasetDict)):
        reason = "its samples have no numbers, so they cannot be shared out among processes"
        raise SourceError(f"an {type(src).__name__} cannot be converted: {reason}; load it without streaming=True")
    if not isinstance(src, (str, os.PathLike)):
        raise SourceError(f"expected a datasets.Dataset or a directory, got {type(src).__name__}")
    root = Path(src).absolute()  # never a URL, which would be opened
    try:
        return printable(root), library.load_from_disk(str(root), keep_in_memory=False)
    except damage() as error:
        raise SourceError(
            f"{printable(root)} is not what save_to_disk writes: {type(error).__name__}: {error}"
        ) from error


def _split(place: str, loaded: Any, subset: str | None) -> tuple[str, Any]:
    """The Dataset `subset`, and what messages call it; a Dataset itself has none, and of one split it needs no name."""
    if not isinstance(loaded, Mapping):
        if subset is not None:
            raise ConfigError(f"{place} is one Dataset, without splits; got subset={subset!r}")
        return place, loaded
    if not loaded:
        raise SourceError(f"{place} holds no splits")
    chosen = next(iter(loaded)) if subset is None and len(loaded) == 1 else subset
    if chosen not in loaded:
        raise ConfigError(f"{place} has splits; subset must be one of {', '.join(loaded)}, got {subset!r}")
    return f"{place}, {chosen}", loaded[chosen]
