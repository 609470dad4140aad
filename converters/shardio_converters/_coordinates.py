"""Coordinates of HDF5 files and Zarr stores, compared from file to file: of rows, such as times, and of other axes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import Message, SourceError
from shardio.foreign.names import printable
from shardio.format import coordinates as steps_of


@final
@dataclass(frozen=True, slots=True)
class Coordinates:
    """Values of coordinates of one file.

    Attributes:
        file: the file.
        values: by path, the values [n], decoded by the file's attributes of netCDF.
        rows: the path of the coordinate of the rows; "" if there is none.
        coarse: how far apart the stored numbers of that one are, if that is too coarse for its steps; else 0.
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


def series_hints(files: Iterable[Coordinates]) -> Iterator[str]:
    """Yield remarks and hints on the coordinate of rows in a series of files."""
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
