"""Datasets of Hugging Face's library `datasets`: the rows are the samples, the columns their fields.

They are described at https://huggingface.co/docs/datasets/about_arrow.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, Option, SourceError
from shardio.foreign.image_files import read_image
from shardio.foreign.names import printable
from shardio.source import Field, Sample, check_index, load_optional, local_path

from ._arrow import Column, Rows, classes, columns, damage, rows_at_once, scalar_column
from ._fields import choose_fields, measure_field, rename_remarks

_COLUMN_ROWS = 1 << 16  # rows of scalars to read at once


def huggingface(src: Any, *, subset: str | None = None, fields: str | Mapping[str, str] | None = None) -> "HuggingFace":
    """A Hugging Face Dataset, or the directory that Dataset.save_to_disk or DatasetDict.save_to_disk has written.

    Rows and columns are those of the Dataset after its select, shuffle and filter; its formats and transforms are not
    applied. Images are copied from its table without decoding; where the table holds only a path, the file is read.
    Numbers become scalars, text stays text, and bytes become bytes, or images if they begin like one. Array2D to
    Array5D and lists of numbers become arrays, of a fixed shape where their size is fixed; other lists and structs
    become JSON. Decimals, dates and times become text; dates and times are in ISO 8601, in UTC where there is a time
    zone. A null makes a bad sample, except within JSON. Nothing is downloaded.

    Args:
        src: the directory; in Python also a Dataset or a DatasetDict itself.
        subset: the split to take if there are several, such as "train".
        fields: the columns to take, with names for their fields, as in "image=img,label". Without it: all.

    Example:
        shardio convert huggingface saved/mnist data/mnist --subset train
        shardio convert huggingface saved/mnist/train data/mnist --fields image,label
        shardio convert huggingface saved/mnist/train data/few --where "label < 2"

    Raises:
        SourceError: the directory is missing, damaged or of another kind, `src` is an IterableDataset, or no field
            holds a column's type.
        ConfigError: `subset` is needed, or `subset` or `fields` names something that does not exist.
    """
    place, dataset = _split(*_loaded(src), subset)
    names = choose_fields(fields, dataset.column_names, place)
    features = dataset.features.to_dict()
    found = columns(names, dataset.data.schema, features, place)
    formatted = dataset.with_format("arrow", columns=list(dict.fromkeys(names.values())))
    source = HuggingFace(place, formatted, found, classes(found, features))
    return source.measured(rename_remarks(fields, names))


@final
class HuggingFace:
    """The rows of a Dataset. It pickles the Dataset, which sends paths for the tables that are on disk.

    Args:
        place: its name in messages.
        dataset: the Dataset, formatted to give tables of the chosen columns.
        columns: the columns to read, by field.
        classes: the class names, as metadata has them.
        remarks: see `shardio.source.HasRemarks`; workers do not need them.
    """

    threads = True  # see `shardio.source.Source`: Arrow's tables are immutable

    def __init__(
        self,
        place: str,
        dataset: Any,
        columns: Mapping[str, Column],
        classes: Mapping[str, list[str]],
        remarks: tuple[str, ...] = (),
    ) -> None:
        self._place, self._dataset, self._columns, self._classes = place, dataset, columns, classes
        self.remarks = remarks
        self._step = rows_at_once(sum(column.mean for column in columns.values()))
        self._block: tuple[int, Rows] | None = None  # the latest block, and the number of its first row

    def __reduce__(self) -> tuple[type["HuggingFace"], tuple[Any, ...]]:
        return HuggingFace, (self._place, self._dataset, self._columns, self._classes)

    @property
    def fields(self) -> Mapping[str, Field]:
        """A field for each chosen column."""
        return {name: column.field for name, column in self._columns.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name, and the class names where the Dataset states them."""
        return {"source": "huggingface", **self._classes}

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample, `[n]`: exact for numbers, an average over up to 100 rows for what varies."""
        return np.full(len(self._dataset), sum(column.mean for column in self._columns.values()), np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self._dataset))
        rows, row = self._locate(index)
        return rows.sample(row, self._name(index))

    def column(self, name: str) -> NDArray[Any] | None:
        """See `shardio.source.HasColumns`: any scalar. None for nulls or damage: reading row by row tells where."""
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

    def measured(self, remarks: tuple[str, ...]) -> "HuggingFace":
        """This source with remarks, and with the kinds and average sizes of what varies, from reading some rows."""
        found = {}
        for name, column in self._columns.items():
            field, mean = measure_field(column.field, len(self._dataset), partial(self._value, name))
            found[name] = replace(column, field=field, mean=mean)
        return HuggingFace(self._place, self._dataset, found, self._classes, remarks)

    def _value(self, name: str, index: int) -> Any:
        rows = Rows(self._read(index, index + 1), {name: self._columns[name]}, read_image)
        return rows.sample(0, self._name(index))[name]

    def _locate(self, index: int) -> tuple[Rows, int]:
        """A block of rows that includes sample `index`, and its number within the block."""
        low = index // self._step * self._step
        if self._block is None or self._block[0] != low:
            self._block = None  # frees its memory before the next block is read
            try:
                self._block = low, self._rows(low, min(low + self._step, len(self._dataset)))
            except BadSample:  # one damaged row must not spoil the others in its block
                return self._rows(index, index + 1), 0
        return self._block[1], index - low

    def _rows(self, low: int, high: int) -> Rows:
        return Rows(self._read(low, high), self._columns, read_image)

    def _read(self, low: int, high: int) -> Any:
        """The rows from `low` to before `high` as a table; BadSample if they are damaged."""
        try:
            table = self._dataset[low:high]
            table.validate(full=True)  # memory-mapped data may be anything
        except damage() as error:
            raise BadSample(f"{self._name(low)}: cannot be read: {error}") from error
        return table

    def _name(self, index: int) -> str:
        return f"{self._place}, row {index}"


def _loaded(src: Any) -> tuple[str, Any]:
    """A name for messages, and the Dataset or DatasetDict."""
    library = load_optional("datasets", purpose="the converter 'huggingface'", extra="huggingface")
    if isinstance(src, (library.Dataset, library.DatasetDict)):
        return f"the {type(src).__name__}", src
    if isinstance(src, (library.IterableDataset, library.IterableDatasetDict)):
        reason = "its samples have no numbers, so they cannot be shared out among processes"
        raise SourceError(f"an {type(src).__name__} cannot be converted: {reason}; load it without streaming=True")
    if not isinstance(src, (str, os.PathLike)):
        raise SourceError(f"expected a datasets.Dataset or a directory, got {type(src).__name__}")
    root = local_path(src).absolute()
    for path in root.rglob("*"):
        if not path.is_file() and not path.is_dir():  # the library would wait for somebody to write into a pipe
            raise SourceError(f"{printable(path)} is not a file")
    try:
        return printable(root), library.load_from_disk(str(root), keep_in_memory=False)
    except damage() as error:
        raise SourceError(
            f"{printable(root)} is not what save_to_disk writes: {type(error).__name__}: {error}"
        ) from error


def _split(place: str, loaded: Any, subset: str | None) -> tuple[str, Any]:
    """A name for messages, and the Dataset `subset`, which may be None for a lone Dataset or split."""
    if not isinstance(loaded, Mapping):
        if subset is not None:
            raise ConfigError("{} is one Dataset, without splits; got {}", place, Option("subset", subset))
        return place, loaded
    if not loaded:
        raise SourceError(f"{place} holds no splits")
    chosen = next(iter(loaded)) if subset is None and len(loaded) == 1 else subset
    if chosen not in loaded:
        raise ConfigError("{} has splits; {subset} must be one of {}, got {!r}", place, ", ".join(loaded), subset)
    return f"{place}, {chosen}", loaded[chosen]
