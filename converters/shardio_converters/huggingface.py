"""Datasets of Hugging Face's library `datasets`: the rows are the samples, the columns their fields.

They are described at https://huggingface.co/docs/datasets/about_arrow.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, Option, SourceError
from shardio.foreign.names import printable
from shardio.source import (
    AnnotatedPixels,
    BoxFormat,
    Sample,
    Source,
    check_index,
    listed_names,
    load_optional,
    local_path,
    with_instances,
)

from ._arrow import MOST_ROWS, Column, Rows, classes, columns, damage, names_within, scalar_column, with_fixed
from ._fields import choose_fields, measure, rename_remarks
from ._files import read_image
from ._source_base import BlockCache, ColumnSource, rows_at_once

_COLUMN_ROWS = 1 << 16  # rows of scalars to read at once


def huggingface(
    src: Any,
    *,
    subset: str | None = None,
    fields: str | Mapping[str, str] | None = None,
    fixed: str | Collection[str] | None = None,
    boxes: str | None = None,
    box_format: BoxFormat | None = None,
    annotations: AnnotatedPixels | None = None,
) -> Source:
    """A Hugging Face Dataset, or the directory that Dataset.save_to_disk or DatasetDict.save_to_disk has written.

    Rows and columns are those of the Dataset after its select, shuffle and filter; its formats and transforms are not
    applied. Images and videos are copied from its table without decoding; where the table holds only a path, the file
    is read. Numbers become scalars, text stays text, and bytes become bytes, or images or videos if they begin like
    one. Array2D to Array5D and lists of numbers become arrays, of a fixed shape where their size is fixed, or images;
    other lists and structs become JSON. Decimals, dates and times become text; dates and times are in ISO 8601, in UTC
    where there is a time zone. A null makes a bad sample, except within JSON. Nothing is downloaded.

    Args:
        src: the directory; in Python also a Dataset or a DatasetDict itself.
        subset: the split to take if there are several, such as "train".
        fields: the columns to take, with names for their fields, as in "image=img,label". Without it: all.
        fixed: the fields of lists of numbers that all have the length of the first: arrays of one shape. A list of
            another length is then a bad sample.
        boxes: the field that states boxes on the image, such as `objects`: a list of objects, an object of lists,
            or a list of boxes. Boxes, labels and other numbers per box become fields.
        box_format: the numbers of a box: `xywh` (left, top, width, height), as in COCO; `xyxy` (left, top, right,
            bottom); `cxcywh` (center, width, height); `cxcywhn`, the same divided by the image's width and height.
        annotations: which pixels are annotated where an EXIF tag rotates or flips an image: those that viewers show,
            `upright`, or the `stored` ones. Without it those of the fields `height` and `width`, if there are such; an
            image that has the same size either way is a bad sample.

    Example:
        shardio convert huggingface saved/mnist data/mnist --subset train
        shardio convert huggingface saved/mnist/train data/mnist --fields image,label
        shardio convert huggingface saved/mnist/train data/few --where "label < 2"
        shardio convert huggingface saved/cppe5/train data/boxes --boxes objects --box-format xywh --annotations stored

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
    made = HuggingFace(place, formatted, found, classes(found, features), rename_remarks(fields, names))
    measured = with_fixed(made, listed_names(fixed)).measured()
    named = names_within(features.get(names.get(boxes or "", "")))
    return with_instances(measured, boxes, box_format, annotations, classes=named)


@final
@dataclass(frozen=True, eq=False)
class HuggingFace(ColumnSource):
    """The rows of a Dataset. It pickles the Dataset, which sends paths for the tables that are on disk.

    Attributes:
        place: its name in messages.
        dataset: the Dataset, formatted to give tables of the chosen columns.
        columns: the columns to read, by field.
        classes: the class names, as metadata has them.
    """

    place: str
    dataset: Any
    columns: Mapping[str, Column]
    classes: Mapping[str, list[str]]
    remarks: tuple[str, ...] = ()
    source = "huggingface"
    threads = True  # see `shardio.source.Source`: Arrow's tables are immutable

    @property
    def _count(self) -> int:
        return len(self.dataset)

    @cached_property
    def _blocks(self) -> BlockCache:
        return BlockCache()

    @cached_property
    def _step(self) -> int:
        return min(MOST_ROWS, rows_at_once(sum(column.mean for column in self.columns.values())))

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        sample: Sample = self._blocks.row("", index, self._count, self._step, self._rows)
        return sample

    def _measured(self, column: Column) -> Any:
        def read(row: int) -> Any:
            return Rows(self._read(row, row + 1), {"": column}, read_image, self.place, row)[0][""]

        return measure(column, self._count, read)

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        for low in range(0, len(out), _COLUMN_ROWS):
            part = out[low : low + _COLUMN_ROWS]
            part[:] = scalar_column(self._read(low, low + len(part))[self.columns[name].name], self.columns[name].field)

    def _rows(self, low: int, high: int) -> Rows:
        return Rows(self._read(low, high), self.columns, read_image, self.place, low)

    def _read(self, low: int, high: int) -> Any:
        """Return the rows from `low` to before `high` as a table; BadSample if they are damaged."""
        try:
            table = self.dataset[low:high]
            table.validate(full=True)  # memory-mapped data may be anything
        except damage() as error:
            raise BadSample(f"{self.place}, row {low}: cannot be read: {error}") from error
        return table


def _loaded(src: Any) -> tuple[str, Any]:
    """Return a name for messages, and the Dataset or DatasetDict."""
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
    """Return a name for messages, and the Dataset `subset`, which may be None for a lone Dataset or split."""
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
