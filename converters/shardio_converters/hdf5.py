"""HDF5 files, of any layout that h5py reads: samples are the rows of datasets along their first axis.

The format is described at https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.files import find_files
from shardio.foreign.names import Paths, printable
from shardio.source import Field, Sample, check_index, labelled

from ._blocks import OneOpenFile
from ._fields import choose_fields, listed_shapes, measure_field
from ._hdf5_columns import Column, Contents
from ._hdf5_reader import DAMAGE, Reader, open_file

SUFFIXES = (".h5", ".hdf5", ".he5")
_ROWS_PER_BYTE = 1 << 17  # gzip makes a byte of a thousand zeros, zstd of many more
_FEW_ROWS = 1 << 24  # so many may be there without a byte of their own: chunks that nobody wrote


def hdf5(src: Paths, *, fields: str | Mapping[str, str] | None = None, external_links: bool = False) -> "Hdf5":
    """HDF5 files: datasets whose rows, along the first axis, are the samples.

    Takes one file, a directory of *.h5, *.hdf5 and *.he5 files, or a pattern such as "runs/*.h5" (quote it); they are
    read one after the other in the order of their names and must agree. Each dataset is a field: numbers are scalars or
    arrays, strings text, opaque values bytes, enumerations their whole numbers, rows of uint8 that vary in length
    bytes, or images if they begin like one, and such rows of other numbers arrays without a fixed shape. Each member of
    a compound dataset is a field. A group of just `data` (uint8) and `offsets` (whole numbers, n+1), which is how
    shardio stores them, is bytes or images. References, bitfields and datetimes are left out. Soft links within the
    file can be chosen.

    Args:
        src: the file, the directory or the pattern; in Python also a list of such.
        fields: the datasets to take and what to call them, as in "image=data/images,label"; a member is "table/name".
            Without it all are taken, and they must have the same number of rows.
        external_links: reads what a file keeps in other files: external links, external storage, virtual datasets.
            Without it they are refused, because a file from elsewhere must not choose what is read.

    Example:
        shardio convert hdf5 train.h5 data/train --fields image=data/images,label=data/labels
        shardio convert hdf5 runs data/runs --external-links

    Raises:
        SourceError: a file is missing, damaged, needs a filter that is not installed or keeps data in other files;
            files do not agree, datasets differ in their number of rows or claim more than there is room for, or no
            field holds what they are made of.
        ConfigError: `fields` names what is not there.
    """
    paths = find_files(src, lambda name: name.lower().endswith(SUFFIXES), "HDF5 files")
    names: dict[str, str] = {}
    columns: dict[str, Column] = {}
    counts: list[int] = []
    for path in paths:
        contents = _contents(path, external_links)
        if fields is None:
            _check_whole(contents, path)
        names = names or _choose(fields, contents, path)
        found = _take(names, contents, path, paths[0])
        if fields is None and (extra := contents.default_columns().keys() - names.values()):
            raise SourceError(f"files must agree: {printable(path)} has {min(extra)!r}, {printable(paths[0])} has not")
        columns = columns or found
        _check_same(columns, found, path, paths[0])
        counts.append(_count(found, path, external_links))
        Reader(path, found.values()).close()  # filters that are missing show now
    return Hdf5(tuple(paths), columns, np.cumsum([0, *counts], dtype=np.int64)).measured()


@final
@dataclass(frozen=True, eq=False)
class Hdf5:
    """The rows of HDF5 files. Pickling sends paths; a worker opens the files itself, one at a time.

    Attributes:
        paths: the files.
        columns: what is read of them, by field.
        starts: the number of each file's first sample, and of all samples, `[files + 1]`.
    """

    paths: tuple[Path, ...]
    columns: Mapping[str, Column]
    starts: NDArray[np.int64]
    container = "hdf5"

    def __reduce__(self) -> tuple[type["Hdf5"], tuple[Any, ...]]:
        return Hdf5, (self.paths, self.columns, self.starts)

    @cached_property
    def _readers(self) -> OneOpenFile[Reader]:
        return OneOpenFile(partial(_reader, self.paths, tuple(self.columns.values())))

    @property
    def fields(self) -> Mapping[str, Field]:
        """One for each dataset, member or group that was chosen."""
        return {name: column.field for name, column in self.columns.items()}

    @property
    def files(self) -> Sequence[Path]:
        """The files."""
        return self.paths

    @property
    def names(self) -> Mapping[str, str]:
        """See `shardio.source.HasNames`: scalars are there without their members' names."""
        members = [column for column in self.columns.values() if column.members and column.field.kind != "scalar"]
        if members:
            name = "/".join([members[0].path, *members[0].members])
            raise SourceError(f"{printable(self.paths[0])}: {name!r} is a member of records, not a dataset: convert it")
        return {name: column.path for name, column in self.columns.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name, and the classes' names where the labels are an enumeration of 0, 1, 2..."""
        classes = self.columns["label"].classes if "label" in self.columns else ()
        return {"source": "hdf5", **({"classes": list(classes)} if classes else {})}

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample, `[n]`: exact for numbers and offsets, the average of up to 100 rows for others."""
        sizes = np.full(self.starts[-1], sum(column.mean for column in self.columns.values()), np.int64)
        if ragged := [column for column in self.columns.values() if column.ragged]:
            for number in range(len(self.paths)):
                for column in ragged:
                    part = sizes[self.starts[number] : self.starts[number + 1]]
                    self._readers.get(number).add_lengths(column, part)
        return sizes

    def __getitem__(self, index: int) -> Sample:
        check_index(index, int(self.starts[-1]))
        return {name: self._value(column, index) for name, column in self.columns.items()}

    def _value(self, column: Column, index: int, *, alone: bool = False) -> Any:
        number = bisect_right(self.starts, index) - 1
        return self._readers.get(number).value(column, index - int(self.starts[number]), alone=alone)

    def column(self, name: str) -> NDArray[Any] | None:
        """See `shardio.source.HasColumns`: any scalar, unless a part is damaged: its rows tell where."""
        column = self.columns.get(name)
        if column is None or column.field.kind != "scalar":
            return None
        values = np.empty(self.starts[-1], column.field.row_dtype)
        try:
            for number in range(len(self.paths)):
                self._readers.get(number).fill(column, values[self.starts[number] : self.starts[number + 1]])
        except BadSample:
            return None
        return values

    def measured(self) -> "Hdf5":
        """The same with the kinds and the average sizes of what varies from row to row, by reading some of it."""
        return Hdf5(self.paths, {name: self._measure(column) for name, column in self.columns.items()}, self.starts)

    def _measure(self, column: Column) -> Column:
        read = partial(self._value, column, alone=True)
        # What a ragged column takes is told by its offsets.
        field, mean = measure_field(column.field, int(self.starts[-1]), read, 0 if column.ragged else 100)
        return replace(column, field=field, mean=mean)


def _reader(paths: Sequence[Path], columns: Sequence[Column], number: int) -> Reader:
    return Reader(paths[number], columns)


def _contents(path: Path, external_links: bool) -> Contents:
    file = open_file(path)
    try:
        return Contents(file, path, external_links)
    except DAMAGE as error:
        raise SourceError(f"{printable(path)} cannot be read: {error}") from error
    finally:
        file.close()


def _check_whole(contents: Contents, path: Path) -> None:
    """Raises SourceError unless everything that `path` holds can be taken together."""
    if contents.external:
        raise SourceError(f"{printable(path)} {_elsewhere(contents)}; or choose others with fields")
    usual = contents.default_columns()
    if not usual:
        raise SourceError(f"{printable(path)} holds no datasets with rows: {_listed(contents.columns)}")
    if len({column.shape[0] for column in usual.values()}) > 1:
        listed = _listed(usual)
        raise SourceError(f"{printable(path)}: datasets differ in their rows; choose some with fields: {listed}")


def _choose(fields: str | Mapping[str, str] | None, contents: Contents, path: Path) -> dict[str, str]:
    available = contents.default_columns() if fields is None else contents.all_columns()
    try:
        return choose_fields(fields, available, printable(path))
    except ConfigError as error:
        if contents.external:
            raise ConfigError(f"{error}; the file {_elsewhere(contents)}") from error
        raise


def _take(names: Mapping[str, str], contents: Contents, path: Path, first: Path) -> dict[str, Column]:
    """The columns called `names`, by field; SourceError if one cannot be taken or they differ in their rows."""
    available = contents.all_columns()
    found: dict[str, Column] = {}
    for field, name in names.items():
        column = available.get(name)
        if column is None:
            raise SourceError(f"files must agree: {printable(path)} has no {name!r}, {printable(first)} has")
        if column.problem:
            raise SourceError(f"{printable(path)}: {name!r} cannot be taken: {column.problem}")
        found[field] = replace(column, field=labelled(field, column.field))
    if len({column.shape[0] for column in found.values()}) > 1:
        listed = _listed({name: available[name] for name in names.values()})
        raise SourceError(f"{printable(path)}: what is chosen must have the same number of rows: {listed}")
    return found


def _count(columns: Mapping[str, Column], path: Path, external_links: bool) -> int:
    """The rows of a file; SourceError for more than it can hold: their sizes alone would take all memory."""
    rows, size = next(iter(columns.values())).shape[0], path.stat().st_size
    if rows > _FEW_ROWS + _ROWS_PER_BYTE * size and not external_links:
        raise SourceError(f"{printable(path)} claims {rows} rows, in {size} bytes there is no room for them")
    return rows


def _check_same(expected: Mapping[str, Column], found: Mapping[str, Column], path: Path, first: Path) -> None:
    for name, column in found.items():
        if replace(column, shape=()) != replace(expected[name], shape=()):
            ours, others = (f"{c.path} {c.field}" for c in (column, expected[name]))
            raise SourceError(
                f"files must agree: field {name!r} is {ours} in {printable(path)}, {others} in {printable(first)}"
            )


def _elsewhere(contents: Contents) -> str:
    named = ", ".join(f"{name!r} ({what})" for name, what in contents.external.items())
    return f"keeps data in other files: {named}" + ("" if contents.follow else "; external_links=True reads them")


def _listed(columns: Mapping[str, Column]) -> str:
    return listed_shapes({name: column.shape for name, column in columns.items()})
