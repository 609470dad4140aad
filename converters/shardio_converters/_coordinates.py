"""Coordinates of HDF5 files and Zarr stores, compared from file to file: of rows, such as times, and of other axes."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, Message, SourceError
from shardio.foreign.names import printable
from shardio.format import coordinates as steps_of
from shardio.source import Field
from shardio.system.units import counted

_MOST_ROWS = 1 << 24  # of a coordinate that is compared


class LoneColumn(Protocol):
    """A column of a file, see `hdf5.Column` and `zarr._Column`."""

    @property
    def path(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def field(self) -> Field: ...


class FillingReader(Protocol):
    """A reader of columns of a file."""

    def fill(self, column: Any, out: NDArray[Any]) -> None:
        """Read a column of numbers; BadSample if that fails."""

    def close(self) -> None: ...


class Series(Protocol):
    """Files of the same columns, in order: see the converters `hdf5` and `zarr`."""

    @property
    def paths(self) -> Sequence[Path]: ...
    @property
    def columns(self) -> Mapping[str, LoneColumn]:
        """The columns of the first file, by field."""

    @property
    def coordinates(self) -> Sequence["Coordinates"]: ...
    @property
    def counts(self) -> Sequence[int]: ...


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

    def check_same(self, others: "Coordinates", names: Iterable[str], rule: str) -> list[str]:
        """Raise SourceError, which begins with a rule, for the first coordinate of these names that differs.

        Returns a hint for each whose values differ by rounding alone: by less than numbers of the coarser dtype do.
        """
        hints = []
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
            if not differ.any():
                continue
            off = np.abs(ours[differ].astype(np.float64) - theirs[differ])
            if off.max() <= max(steps_of.resolution(ours), steps_of.resolution(theirs)):
                told = "values of {!r} differ by up to {:.3g} between {} and {}, by rounding, and are taken as one"
                hints.append(told.format(name, off.max(), *places))
                continue
            for at in np.flatnonzero(differ)[:1].tolist():
                raise SourceError(
                    f"{rule}: value {at} of {name!r} is {theirs[at]} in {places[1]}, and {ours[at]} in {places[0]}"
                )
        return hints


def read_coordinates(
    path: Path,
    decoded: Iterable[LoneColumn],
    stored: Mapping[str, LoneColumn],
    rows: Iterable[str],
    opens: Callable[[Iterable[Any]], FillingReader],
) -> Coordinates:
    """Read the coordinates of a file.

    Args:
        path: the file.
        decoded: the columns of numbers with one axis, which attributes of netCDF decode where that is possible.
        stored: by path, such columns as they are stored.
        rows: the paths of what may be the coordinate of the rows, the likeliest first.
        opens: returns a reader of columns of the file.
    """

    def read(columns: Iterable[LoneColumn]) -> dict[str, NDArray[Any]]:
        taken, values = {column.path: column for column in columns}, dict[str, NDArray[Any]]()
        with contextlib.closing(opens(taken.values())) as reader:
            for name, column in taken.items():
                found = np.empty(column.shape[0], column.field.row_dtype)
                with contextlib.suppress(BadSample):  # whoever takes the column is told
                    reader.fill(column, found)
                    values[name] = found
        return values

    values = read(column for column in decoded if column.shape[0] <= _MOST_ROWS)
    of_rows = next((name for name in rows if name in values), "")
    coarse = 0.0
    if of_rows and stored[of_rows].field.row_dtype in (np.float16, np.float32):
        numbers = read([stored[of_rows]]).get(of_rows, np.empty(0, np.float32))
        apart, steps = steps_of.resolution(numbers), np.diff(numbers.astype(np.float64))
        coarse = apart if steps_of.is_too_coarse(steps[np.isfinite(steps)], apart) else 0.0
    return Coordinates(path, values, of_rows, coarse)


def of_other_axes(scales: Mapping[str, Sequence[str]], columns: Iterable[LoneColumn]) -> list[str]:
    """Return the paths of the coordinates that some columns have along other axes than the rows.

    Args:
        scales: by path of a column, those of the coordinates of its axes; "" for an axis without one.
        columns: the columns.
    """
    found = [scale for column in columns for scale in scales.get(column.path, ())[1:] if scale]
    return list(dict.fromkeys(found))


def check_joined(series: Sequence[Series]) -> list[str]:
    """Raise SourceError unless the files of several series belong to the same rows, file by file; return hints."""
    hints: list[str] = []
    first = [printable(files.paths[0]) for files in series]
    if len(series) == 1:
        raise SourceError("{join} takes files of different datasets, and all hold those of {}: leave it out", first[0])
    for number, files in enumerate(series[1:], 1):
        if len(files.paths) != len(series[0].paths):
            raise SourceError(
                "{join}: {} with the datasets of {}, and {} with those of {}: each needs one to be joined to",
                counted(len(series[0].paths), "file"),
                first[0],
                counted(len(files.paths), "file"),
                first[number],
            )
        pairs = zip(series[0].coordinates, files.coordinates, series[0].counts, files.counts, strict=True)
        for ours, theirs, rows, other_rows in pairs:
            hints += ours.check_same(theirs, ours.values, "files that are joined must have the same coordinates")
            if rows != other_rows:
                places = printable(ours.file), printable(theirs.file)
                told = "files that are joined must have the same rows: {} in {}, and {} in {}"
                raise SourceError(told, rows, places[0], other_rows, places[1])
    return hints


def merged(series: Sequence[Series]) -> dict[str, int]:
    """Return the number of the series that has each field; SourceError for one in several that is no coordinate."""
    found: dict[str, int] = {}
    for number, one in enumerate(series):
        for name, column in one.columns.items():
            before = found.setdefault(name, number)
            if before != number and column.path not in one.coordinates[0].values:
                raise SourceError(
                    "{join}: {!r} is in {} and in {}, and is no coordinate, which both may have: choose others with "
                    "{fields}",
                    column.path,
                    printable(series[before].paths[0]),
                    printable(one.paths[0]),
                )
    return found


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
