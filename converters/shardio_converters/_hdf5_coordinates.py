"""Coordinates of HDF5 files, which are compared from file to file: of rows, such as times, and of other axes."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, Message, SourceError
from shardio.foreign.names import printable
from shardio.format import coordinates as steps_of
from shardio.system.units import counted

from ._fields import with_attributes
from ._hdf5_columns import Column, Contents
from ._hdf5_reader import Reader
from ._netcdf3 import ClassicContents, ClassicReader

_MOST_ROWS = 1 << 24  # of a coordinate that is compared


@final
@dataclass(frozen=True, slots=True)
class Coordinates:
    """Values of coordinates of one file.

    Attributes:
        file: the file.
        values: by path, the values [n], decoded by the file's attributes of netCDF.
        rows: the path of the coordinate of the rows; "" if there is none.
        coarse: how far apart the stored numbers of that one are, if they are too coarse to tell its steps; else 0.
    """

    file: Path
    values: Mapping[str, NDArray[Any]]
    rows: str = ""
    coarse: float = 0

    def check_same(self, others: "Coordinates", names: Iterable[str], rule: str) -> None:
        """Raise SourceError, which begins with a rule, for the first coordinate of these names that differs."""
        for name in names:
            ours, theirs = self.values.get(name), others.values.get(name)
            if ours is None or theirs is None:
                continue
            places = printable(self.file), printable(others.file)
            if len(ours) != len(theirs):
                raise SourceError(
                    f"{rule}: {name!r} has {len(theirs)} values in {places[1]}, and {len(ours)} in {places[0]}"
                )
            differ = ~((ours == theirs) | ((ours != ours) & (theirs != theirs)))
            for at in np.flatnonzero(differ)[:1].tolist():
                raise SourceError(
                    f"{rule}: value {at} of {name!r} is {theirs[at]} in {places[1]}, and {ours[at]} in {places[0]}"
                )


def read_coordinates(
    contents: Contents | ClassicContents,
    path: Path,
    columns: Iterable[Column],
    opens: Callable[[Iterable[Column]], Reader | ClassicReader],
) -> Coordinates:
    """Read all coordinates of a file: the datasets of numbers with one axis.

    Args:
        contents: what the file holds.
        path: its path.
        columns: the columns that are taken, which tell the coordinate of the rows.
        opens: returns a reader of columns of the file.
    """

    def read(wanted: Iterable[Column]) -> dict[str, NDArray[Any]]:
        taken, values = {column.path: column for column in wanted}, dict[str, NDArray[Any]]()
        with contextlib.closing(opens(taken.values())) as reader:
            for name, column in taken.items():
                found = np.empty(column.shape[0], column.field.row_dtype)
                with contextlib.suppress(BadSample):  # whoever takes the dataset is told
                    reader.fill(column, found)
                    values[name] = found
        return values

    values = read(column for column in _decoded(contents) if column.shape[0] <= _MOST_ROWS)
    scales = [contents.scales.get(column.path, ())[:1] for column in columns]
    rows = next((scale[0] for scale in scales if scale and scale[0] in values), "")
    coarse = 0.0
    if rows and contents.columns[rows].field.row_dtype in (np.float16, np.float32):
        stored = read([contents.columns[rows]]).get(rows, np.empty(0, np.float32))
        apart, steps = steps_of.resolution(stored), np.diff(stored.astype(np.float64))
        coarse = apart if steps_of.is_too_coarse(steps[np.isfinite(steps)], apart) else 0.0
    return Coordinates(path, values, rows, coarse)


def of_other_axes(contents: Contents | ClassicContents, columns: Iterable[Column]) -> list[str]:
    """Return the paths of the coordinates that some columns have along other axes than the rows."""
    found = [scale for column in columns for scale in contents.scales.get(column.path, ())[1:] if scale]
    return list(dict.fromkeys(found))


def check_joined(series: Sequence[Sequence[Coordinates]], counts: Sequence[Sequence[int]]) -> None:
    """Raise SourceError unless the files of several series belong to the same rows, file by file.

    Args:
        series: the coordinates of each file of each series.
        counts: their numbers of rows.
    """
    first = [printable(files[0].file) for files in series]
    if len(series) == 1:
        raise SourceError("{join} takes files of different datasets, and all hold those of {}: leave it out", first[0])
    for number, files in enumerate(series[1:], 1):
        if len(files) != len(series[0]):
            raise SourceError(
                "{join}: {} with the datasets of {}, and {} with those of {}: each needs one to be joined to",
                counted(len(series[0]), "file"),
                first[0],
                counted(len(files), "file"),
                first[number],
            )
        for ours, theirs, rows, other_rows in zip(series[0], files, counts[0], counts[number], strict=True):
            ours.check_same(theirs, ours.values, "files that are joined must have the same coordinates")
            if rows != other_rows:
                places = printable(ours.file), printable(theirs.file)
                told = "files that are joined must have the same rows: {} in {}, and {} in {}"
                raise SourceError(told, rows, places[0], other_rows, places[1])


def series_hints(files: Iterable[Coordinates]) -> Iterator[str]:
    """Yield what is to be told of the coordinate of rows in a series of files."""
    before: Coordinates | None = None
    told = False
    for file in files:
        values = file.values.get(file.rows)
        if values is None or not len(values):
            before = None
            continue
        if file.coarse and not told:
            told = True
            yield (
                f"{file.rows!r} of {printable(file.file)} is stored in numbers up to {file.coarse:.6g} apart, too "
                "coarse to tell its steps from gaps, at which windows end"
            )
        if before is not None and before.rows == file.rows:
            earlier = before.values[before.rows]
            rising = (earlier[-1] >= earlier[0]) if len(earlier) > 1 else (values[-1] >= values[0])
            if not (values[0] > earlier[-1] if rising else values[0] < earlier[-1]):
                yield Message(
                    "{!r} does not go on from {}, which ends at {}, to {}, which begins at {}: these files overlap or "
                    "are in another order, and windows end between them; {sort:natural} goes by numbers in names",
                    file.rows,
                    printable(before.file),
                    earlier[-1],
                    printable(file.file),
                    values[0],
                )
                return
        before = file


def _decoded(contents: Contents | ClassicContents) -> Iterator[Column]:
    """Yield the columns of numbers with one axis, to be decoded if that is possible."""
    for column in contents.columns.values():
        if column.problem or column.members or column.field.kind != "scalar":
            continue
        try:
            field, _ = with_attributes(column.field, contents.attributes.get(column.path, {}), column.path, True)
            yield replace(column, field=field, decoded=True)
        except SourceError:  # such as a calendar without leap days
            yield column
