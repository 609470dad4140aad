"""Parquet files: the rows are the samples, the columns their fields.

The format is described at https://parquet.apache.org/docs/file-format.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.files import Sort, find_files, order_hints, other_files, within_folders
from shardio.foreign.names import Paths, printable, source_errors
from shardio.source import (
    AnnotatedPixels,
    BoxFormat,
    Sample,
    Source,
    check_index,
    describe_field,
    listed_names,
    load_optional,
    local_path,
    with_instances,
)

from ._arrow import (
    MOST_ROWS,
    Column,
    Rows,
    arrow,
    classes,
    columns,
    damage,
    names_within,
    noted_features,
    path_column,
    scalar_column,
    with_fixed,
)
from ._fields import choose_fields, evenly_spaced, measure, rename_remarks
from ._source_base import ColumnSource, OneOpenFile, rows_at_once

_KEPT = 64 << 20  # the most bytes of a row group to keep
_BUFFER = 256 << 10  # bytes to read at once of each column
_THREADS = 8  # threads that read footers
_MEASURED = 8  # row groups whose first rows give the average size of rows
_FIRST = 8  # the number of these rows in each
_SET = re.compile(r"(.+)-\d{5}-of-\d{5}(-\w+)?\.parquet")


def parquet(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    path: str | Mapping[str, str] | None = None,
    root: str | os.PathLike[str] | None = None,
    fixed: str | Collection[str] | None = None,
    sort: Sort = "name",
    files: str | None = None,
    boxes: str | None = None,
    box_format: BoxFormat | None = None,
    annotations: AnnotatedPixels | None = None,
) -> Source:
    """Parquet files: the rows are the samples, the columns their fields.

    Takes one file, a directory of *.parquet files, or a pattern such as "data/train-*.parquet" (quote it). Several
    files are read in the order of their names, and must have the same columns. Numbers become scalars, text stays text,
    and bytes become bytes, or images or videos if they begin like one. Lists of numbers become arrays, of a fixed shape
    where the lists have a fixed size, or images; other lists, structs and maps become JSON. Decimals, dates and times
    become text; dates and times are in ISO 8601, in UTC where there is a time zone. A null makes a bad sample, except
    within JSON. Notes of Hugging Face in the files are followed: images, shapes of arrays, and class names.

    Files that a column names by path, such as images and videos, are read only if `path` names the column: shardio then
    trusts the table, whose paths may be absolute and lead anywhere. An image, a video or a sound of Hugging Face that
    is only a path makes a bad sample otherwise.

    Args:
        src: the file, the directory, or a pattern with `*`, `?`, `[...]` or ranges `{a..b}`; in Python also a list of
            these. Files in a directory with names such as train-00000-of-00002.parquet must all be of one set.
        fields: the columns to take, with names for their fields, as in "image=img,label". Without it: all, but those
            that `path` names.
        path: the columns of text that are paths of files, with names for the fields of what the files hold: images,
            videos or bytes, as in "image=photo,sound".
        root: the folder that relative paths start from. Without it: the folder of each Parquet file.
        fixed: the fields of lists of numbers that all have the length of the first: arrays of one shape. A list of
            another length is then a bad sample.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        files: a pattern for the names of the files to take from a directory, such as "train-*". Without it: all.
        boxes: the field that states boxes on the image, of structs or lists: a list of objects, an object of lists,
            or a list of boxes. Boxes, labels and other numbers per box become fields.
        box_format: the numbers of a box: `xywh` (left, top, width, height), as in COCO; `xyxy` (left, top, right,
            bottom); `cxcywh` (center, width, height); `cxcywhn`, the same divided by the image's width and height.
        annotations: which pixels are annotated where an EXIF tag rotates or flips an image: those that viewers show,
            `upright`, or the `stored` ones. Without it those of the fields `height` and `width`, if there are such; an
            image that has the same size either way is a bad sample.

    Example:
        shardio convert parquet train.parquet data/train --fields image=img,label
        shardio convert parquet clips.parquet data/clips --path sound=file_name --root clips
        shardio convert parquet 'mnist/train-*.parquet' data/mnist
        shardio convert parquet vectors.parquet data/vectors --fixed vector
        shardio convert parquet train.parquet data/few --fields image=img,label --where "label < 2"
        shardio convert parquet boxes.parquet data/boxes --boxes objects --box-format xywh --annotations upright

    Raises:
        SourceError: files are missing, damaged, of several sets or disagree, no field holds a column's type, or `path`
            names a column that is not of text.
        ConfigError: `fields` or `path` names a column that does not exist, both give one field, or `root` is no folder.
    """
    src = within_folders(src, files)
    paths = _files(src, sort)
    with _opened(paths[0]) as file:
        schema = file.schema_arrow
    place = printable(paths[0])
    listed = {} if path is None else choose_fields(path, dict.fromkeys(schema.names), place)
    rest = [name for name in schema.names if fields is not None or name not in listed.values()]
    others = choose_fields(fields, dict.fromkeys(rest), place) if rest else {}
    if both := others.keys() & listed.keys():
        raise ConfigError(f"{place}: two columns would be the field {min(both)!r}; rename one with path or fields")
    names, roots = others | listed, dict.fromkeys(listed, _root(root, listed))
    with ThreadPoolExecutor(_THREADS) as pool:
        footers = list(pool.map(partial(_footer, names=names, roots=roots), paths))
    first = footers[0]
    for footer in footers[1:]:
        _check_same(footer, first, all_columns=fields is None)
    groups = [(number, group) for number, footer in enumerate(footers) for group in range(len(footer.rows))]
    starts = np.cumsum([0, *chain.from_iterable(footer.rows for footer in footers)], dtype=np.int64)
    places = np.array(groups, np.int64).reshape(-1, 2)
    renamed = (*rename_remarks(fields, others), *rename_remarks(path, listed))
    remarks = (*other_files(src, paths, "Parquet files"), *renamed)
    hints = order_hints(paths)
    found = Parquet(tuple(paths), first.columns, first.classes, places, starts, remarks, hints)
    measured = with_fixed(found, listed_names(fixed)).measured()
    named = names_within(noted_features(schema, place).get(names.get(boxes or "", "")))
    return with_instances(measured, boxes, box_format, annotations, classes=named)


@final
@dataclass(frozen=True, eq=False)
class Parquet(ColumnSource):
    """The rows of Parquet files. It pickles as paths and the starts of row groups; each worker opens the files itself.

    Attributes:
        files: the files, which must not change while they are converted.
        columns: the columns to read, by field.
        classes: the class names, as metadata has them.
        groups: the file of each row group, and its number within the file, `[groups, 2]`.
        starts: the number of each row group's first sample, followed by the number of samples, `[groups + 1]`.
    """

    files: tuple[Path, ...] = field()
    columns: Mapping[str, Column]
    classes: Mapping[str, list[str]]
    groups: NDArray[np.int64]
    starts: NDArray[np.int64]
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "parquet"
    threads = True  # see `shardio.source.Source`: each copy opens the files itself

    @property
    def _count(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def _readers(self) -> "OneOpenFile[_Reader]":
        files, found = self.files, self.columns  # a closure over self would keep the open file alive in a cycle
        return OneOpenFile(lambda number: _Reader(files[number], found))

    @cached_property
    def _step(self) -> int:
        mean = sum(column.mean for column in self.columns.values())
        return min(MOST_ROWS, rows_at_once(mean)) if mean else _FIRST

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        position = bisect_right(self.starts, index) - 1
        number, group = self.groups[position].tolist()
        before = int(self.starts[position] - self.starts[position - group])  # rows of the file
        return self._readers.get(number).sample(group, index - int(self.starts[position]), self._step, before)

    def place(self, index: int) -> str:
        """Return the file and the row of a sample, for messages."""
        position = bisect_right(self.starts, index) - 1
        number, group = self.groups[position].tolist()
        return f"{printable(self.files[number])}, row {index - int(self.starts[position - group])}"

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        for (number, group), part in zip(self.groups.tolist(), np.split(out, self.starts[1:-1]), strict=True):
            try:
                part[:] = self._readers.get(number).numbers(group, self.columns[name])
            except damage() as error:
                raise BadSample(f"{printable(self.files[number])}: {error}") from error

    def _measured(self, column: Column) -> Any:
        """Return the column with the kind and the average size of the first rows of some row groups."""
        rows = [
            row
            for group in evenly_spaced(len(self.groups), _MEASURED)
            for row in range(self.starts[group], min(self.starts[group] + _FIRST, self.starts[group + 1]))
        ]
        alone = replace(self, columns={"": column})  # reads no other column
        return measure(column, len(rows), lambda number: alone[rows[number]][""])


@final
class _Reader:
    """An open file. It keeps the batches read from the latest row group, or the last of them if they are too large."""

    def __init__(self, path: Path, chosen: Mapping[str, Column]) -> None:
        self._path = path
        self._columns = {
            name: column if column.root is None else replace(column, root=path.parent / column.root)
            for name, column in chosen.items()
        }
        self._file = _open(path)
        self._begin(-1, iter(()))

    def close(self) -> None:
        self._begin(-1, iter(()))
        self._file.close(force=True)

    def sample(self, group: int, row: int, step: int, before: int) -> Sample:
        """Row `row` of a row group, which is read `step` rows at a time; `before` rows of the file precede the group.

        Raises BadSample if the row or one before it is damaged: a row group is read from its start.
        """
        if group != self._group or row < self._starts[0]:
            names = list(dict.fromkeys(column.name for column in self._columns.values()))
            self._begin(group, self._file.iter_batches(step, row_groups=[group], columns=names, use_threads=False))
        while row >= self._starts[-1]:
            self._read_on(before, row)
        position = bisect_right(self._starts, row) - 1
        return self._batches[position][row - self._starts[position]]

    def numbers(self, group: int, column: Column) -> NDArray[Any]:
        """A row group's column of scalars; BadSample if one is null, an error of `damage()` if it cannot be read."""
        return scalar_column(
            self._file.read_row_group(group, [column.name], use_threads=False)[column.name], column.field
        )

    def _begin(self, group: int, unread: Iterator[Any]) -> None:
        self._group = group
        self._unread = unread
        self._failure = ""
        self._batches: list[Rows] = []
        self._bytes = 0
        self._starts = [0]  # the first row of each batch that is kept, and of the next

    def _read_on(self, before: int, row: int) -> None:
        if not self._failure:
            try:
                batch = next(self._unread)
            except StopIteration:
                self._failure = "there are fewer rows than the file says"
            except damage() as error:
                self._failure = str(error)
        if self._failure:
            place = f"{printable(self._path)}, row {before + row}"
            raise BadSample(f"{place}: its row group is damaged here or before: {self._failure}")
        self._bytes += batch.nbytes
        if self._bytes > _KEPT:
            self._batches, self._starts, self._bytes = [], self._starts[-1:], batch.nbytes
        table, first = arrow().Table.from_batches([batch]), before + self._starts[-1]
        self._batches.append(Rows(table, self._columns, _no_file, printable(self._path), first))
        self._starts.append(self._starts[-1] + batch.num_rows)


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns; SourceError if it is not a Parquet file."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def _files(src: Paths, sort: Sort) -> list[Path]:
    paths = find_files(src, lambda name: name.lower().endswith(".parquet"), "Parquet files (*.parquet)", sort)
    if isinstance(src, (str, os.PathLike)) and Path(src).is_dir():
        sets = sorted({match[1] for path in paths if (match := _SET.fullmatch(path.name))})
        if len(sets) > 1:
            pattern = printable(Path(src) / f"{sets[0]}-*.parquet")
            raise SourceError(
                f"{printable(src)} holds several sets, {', '.join(sets)}; choose one, as with {pattern!r}"
            )
    return paths


def _root(root: str | os.PathLike[str] | None, listed: Mapping[str, str]) -> Path:
    """Return the folder that relative paths start from; an empty path for the folder of the file that they are in."""
    if root is None:
        return Path()
    if not listed:
        raise ConfigError("{root} goes with {path}, which names the columns of paths, got {!r}", root)
    if not (folder := local_path(root).absolute()).is_dir():
        raise ConfigError("{root} must be a folder, got {}", printable(folder))
    return folder


def _open(path: Path) -> Any:
    """Open a pyarrow.parquet.ParquetFile that reads in the calling thread; SourceError if it is not a Parquet file."""
    library = load_optional("pyarrow.parquet", purpose="the converter 'parquet'", extra="parquet")
    with source_errors(path, *damage()):
        file = arrow().OSFile(os.fsencode(path))  # opened here, because ParquetFile takes only paths in UTF-8
        # Without a buffer, reading the first rows of a column would read all of it.
        return library.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file as `_open` does, and close it after the context; errors of reading in it are SourceErrors too."""
    file = _open(path)
    try:
        with source_errors(path, *damage()):
            yield file
    finally:
        file.close(force=True)


class _Footer(NamedTuple):
    """A file's chosen columns, their class names, the names of all its columns, and the rows of its row groups."""

    path: Path
    columns: Mapping[str, Column]
    classes: Mapping[str, list[str]]
    names: tuple[str, ...]
    rows: list[int]


def _footer(path: Path, names: Mapping[str, str], roots: Mapping[str, Path]) -> _Footer:
    place = printable(path)
    with _opened(path) as file:
        schema = file.schema_arrow
        features = noted_features(schema, place)
        found = columns(names, schema, features, place)
        found |= {name: path_column(found[name], root, place) for name, root in roots.items()}
        # The metadata of a row group's columns is not touched: where it is damaged, pyarrow crashes the process.
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        if sum(rows) != file.metadata.num_rows or min(rows, default=0) < 0:
            raise SourceError(f"{place} is damaged: its row groups do not have {file.metadata.num_rows} rows")
        return _Footer(path, found, classes(found, features), tuple(schema.names), rows)


def _check_same(found: _Footer, first: _Footer, all_columns: bool) -> None:
    ours, others = printable(found.path), printable(first.path)
    if all_columns and (extra := set(found.names) - set(first.names)):
        raise SourceError(f"files must agree: {ours} has {min(extra)!r}, {others} has not")
    for name, column in found.columns.items():
        if column != first.columns[name]:
            kind, other = (describe_field(one.field) for one in (column, first.columns[name]))
            raise SourceError(f"files must agree: field {name!r} is {kind} in {ours}, and {other} in {others}")
    if found.classes != first.classes:
        raise SourceError(f"files must agree: the class names differ between {ours} and {others}")


def _no_file(path: str) -> bytes:
    reason = "the file is not read, because a table must not choose files to read; the option path reads what you name"
    raise BadSample(f"only a path, {path!r}: {reason}")
