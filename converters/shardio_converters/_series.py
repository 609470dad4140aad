"""Files or stores of arrays taken as one series: the same fields in each, their rows one after the other, or joined."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, Message, Option, SourceError
from shardio.foreign.files import order_hints
from shardio.foreign.names import printable
from shardio.format import cf
from shardio.format.fields import as_ragged
from shardio.source import describe_field, label_as_int64

from ._coordinates import (
    Coordinates,
    FillingReader,
    LoneColumn,
    check_joined,
    merged,
    of_other_axes,
    read_coordinates,
    series_hints,
)
from ._fields import (
    check_same_axes,
    check_same_rows,
    choose_fields,
    known_fields,
    remark_on_rows,
    rename_remarks,
    shortened,
)


class FileContents(Protocol):
    """The columns of one file or store: dataclasses with a `path`, `shape`, `field`, `problem` and `file`.

    Attributes:
        path: the file.
        columns: all columns by name, also those that cannot be taken.
        scales: by path of a column, the paths of the coordinates of its axes, that of the rows first; "" for none.
        stored: by path, the columns of numbers with one axis.
    """

    path: Path
    scales: Mapping[str, Sequence[str]]

    @property
    def columns(self) -> Mapping[str, Any]: ...
    @property
    def stored(self) -> Mapping[str, LoneColumn]: ...

    def default_columns(self) -> Mapping[str, Any]:
        """The columns to take when none are chosen, by name."""

    def all_columns(self) -> Mapping[str, Any]:
        """The columns that can be chosen, by all their names."""

    def left_out(self) -> Mapping[str, str]:
        """Why columns are left out when none are chosen, by name."""

    def elsewhere(self) -> str:
        """What is in other files, which are not read, in words that follow the file's name; "" for nothing."""

    def axes(self, column: Any) -> Sequence[str | None]:
        """The names of a column's axes, that of the rows first; () if it has none."""

    def described(self, column: Any, decode_cf: bool) -> tuple[Any, str]:
        """A column with what its field states of its values, and a remark on attributes that have no effect, or "".

        Raises SourceError, in words that follow the column's name, if its numbers cannot be decoded.
        """

    def opens(self, columns: Iterable[Any]) -> FillingReader:
        """Open the file to read columns; SourceError if that fails."""

    def check(self, columns: Sequence[Any]) -> None:
        """Raise SourceError if these columns cannot be read."""


@final
@dataclass(frozen=True, slots=True)
class SeriesOptions:
    """How files are taken as a series.

    Attributes:
        fields: the choice of fields.
        decode_cf: whether attributes of netCDF are applied.
        join: whether files of different columns are joined, see `check_joined`.
        ragged: the fields whose shapes may differ from file to file, and whether in any axis.
        what: what the files are: "files" or "stores".
        columns: what their columns are: "datasets" or "arrays".
        each: whether the columns of each file are kept, or those of the first stand for all.
        compared: whether coordinates are read, to be compared.
    """

    fields: str | Mapping[str, str] | None
    decode_cf: bool
    join: bool
    ragged: Mapping[str, bool] = field(default_factory=dict)
    what: str = "files"
    columns: str = "datasets"
    each: bool = False
    compared: bool = True


@final
@dataclass(frozen=True, slots=True)
class FoundSeries:
    """Files as one source takes them.

    Attributes:
        files: those of the first series.
        columns: for each of them, if they are kept, the columns by field, and the number of their joined file.
        counts: the number of rows of each.
        joined: for each of `files` the others that are joined to it; () if none are.
        axes: what the axes of the fields are called.
        remarks, hints: see `Source`.
    """

    files: tuple[Path, ...]
    columns: tuple[Mapping[str, Any], ...]
    counts: Sequence[int]
    joined: tuple[tuple[Path, ...], ...]
    axes: Mapping[str, Sequence[str | None]]
    remarks: tuple[str, ...]
    hints: tuple[str, ...]

    def starts(self) -> NDArray[np.int64]:
        """The number of each file's first row, followed by the number of rows; SourceError for too many."""
        starts = np.cumsum([0, *self.counts], dtype=object)
        if starts[-1] >= 1 << 62:
            raise SourceError(f"{printable(self.files[0])} claims {starts[-1]} rows, which are too many")
        return starts.astype(np.int64)


def read_series(found: Iterable[FileContents], options: SeriesOptions) -> FoundSeries:
    """Take files in order; SourceError if they disagree, ConfigError for a choice of fields that there are not."""
    series: dict[frozenset[str], _Series] = {}
    available: dict[str, None] = {}
    for contents in found:
        kind, chosen = frozenset[str](), options.fields
        if options.join:
            kind, names = frozenset(contents.columns), contents.all_columns()
            available |= dict.fromkeys(names)
            chosen = chosen if chosen is None else known_fields(chosen, names)
        if kind not in series:
            series[kind] = _Series(replace(options, fields=chosen))
        series[kind].add(contents)
    each = list(series.values())
    first, *others = each
    if options.join and options.fields is not None:
        choose_fields(options.fields, available, printable(first.paths[0]))
    if options.join:
        check_joined(each)
    in_file = merged(each)
    columns = tuple(
        {name: replace(each[number].each[at][name], file=number) for name, number in in_file.items()}
        for at in range(len(first.each))
    )
    lost = {name: why for one in each for name, why in one.lost.items()}
    no_effect = {path: told for one in each for path, told in one.no_effect.items()}
    axes = {name: axes for one in each for name, axes in one.axes.items()}
    renamed = [remark for one in each for remark in rename_remarks(one.options.fields, one.names)]
    remarks = (
        *shortened([f"left out {name!r}: {why}" for name, why in lost.items()], f"{options.columns} are left out"),
        *dict.fromkeys(renamed),
        *shortened(list(no_effect.values()), f"{options.columns} have such attributes"),
        *remark_on_rows(axes),
    )
    hints = (*order_hints(first.paths, options.what), *series_hints(first.coordinates))
    joined = tuple(zip(*(one.paths for one in others), strict=True))
    return FoundSeries(tuple(first.paths), columns, first.counts, joined, axes, remarks, hints)


@final
class _Series:
    """Files of the same columns, in order.

    Attributes:
        options: the options, with the choice of fields of these files.
        names: the name of each field's column.
        paths: the files.
        each: the columns of each file by field, or of the first one; without an axis along which files may differ.
        axes: what the axes of the first file's columns are called, by field.
        counts: the number of rows of each file.
        coordinates: those of each file, if they are compared.
        lost, no_effect: why columns are left out, by name, and remarks on attributes without effect, by path.
    """

    def __init__(self, options: SeriesOptions) -> None:
        self.options = options
        self.names: dict[str, str] = {}
        self.paths: list[Path] = []
        self.each: list[dict[str, Any]] = []
        self.axes: dict[str, Sequence[str | None]] = {}
        self.counts: list[int] = []
        self.coordinates: list[Coordinates] = []
        self.lost: dict[str, str] = {}
        self.no_effect: dict[str, str] = {}

    @property
    def columns(self) -> Mapping[str, Any]:
        return self.each[0]

    def add(self, contents: FileContents) -> None:
        """Add the next file; SourceError if it disagrees with the first one."""
        options, place = self.options, printable(contents.path)
        first = printable(self.paths[0]) if self.paths else place
        usual, rule = contents.default_columns(), f"{options.what} must agree"
        if options.fields is None:
            if elsewhere := contents.elsewhere():
                raise SourceError("{} {}; or choose others with {fields}", place, elsewhere)
            self.lost = {**(lost := contents.left_out()), **self.lost}
            if not usual:
                why = "; ".join(f"{name!r}: {reason}" for name, reason in lost.items()) or "none"
                raise SourceError(f"{place} holds no {options.columns} with rows that can be taken: {why}")
        self.names = self.names or self._choose(contents)
        if options.fields is None and (extra := usual.keys() - self.names.values()):
            raise SourceError(f"{rule}: {place} has {min(extra)!r}, {first} has not")
        found = self._take(contents, place, first)
        axes = {name: contents.axes(column) for name, column in found.items()}
        self.axes = self.axes or axes
        check_same_axes(axes, self.axes, place, first, options.what)
        if options.each or not self.each:
            self.each.append(found)
        self._check_same(found, place, first)
        self.paths.append(contents.path)
        self.counts.append(next(iter(found.values())).shape[0])
        contents.check(list(found.values()))
        if options.compared:
            scales = [contents.scales.get(column.path, ())[:1] for column in found.values()]
            rows = [scale[0] for scale in scales if scale and scale[0]]
            there = read_coordinates(contents.path, _decoded(contents), contents.stored, rows, contents.opens)
            if self.coordinates and not options.ragged:
                grid = of_other_axes(contents.scales, found.values())
                self.coordinates[0].check_same(there, grid, f"{rule} on their grid")
            self.coordinates.append(there)

    def _choose(self, contents: FileContents) -> dict[str, str]:
        fields = self.options.fields
        available = contents.default_columns() if fields is None else contents.all_columns()
        try:
            return choose_fields(fields, available, printable(contents.path))
        except ConfigError as error:
            if elsewhere := contents.elsewhere():
                raise ConfigError("{}; the file {}", error, elsewhere) from error
            raise

    def _take(self, contents: FileContents, place: str, first: str) -> dict[str, Any]:
        """The chosen columns by field; SourceError if one cannot be taken, or they differ in their number of rows."""
        available, found = contents.all_columns(), dict[str, Any]()
        for called, name in self.names.items():
            column = available.get(name)
            if column is None:
                raise SourceError(f"{self.options.what} must agree: {place} has no {name!r}, {first} has")
            if column.problem:
                raise SourceError(
                    "{}: {!r} cannot be taken: {}; choose others with {fields}", place, name, column.problem
                )
            try:
                column, remark = contents.described(column, self.options.decode_cf)
            except SourceError as error:
                raise SourceError(
                    "{}: {!r} cannot be decoded: {}; choose others with {fields}", place, name, error
                ) from error
            if remark:
                self.no_effect.setdefault(column.path, remark)
            kind = label_as_int64(called, column.field)
            if called in self.options.ragged and kind.kind == "array":
                kind = replace(kind, shape=as_ragged(kind.shape, in_all=self.options.ragged[called]))
            found[called] = replace(column, field=kind)
        check_same_rows({name: available[name] for name in self.names.values()}, place)
        return found

    def _check_same(self, found: Mapping[str, Any], place: str, first: str) -> None:
        """Raise SourceError unless the fields of a file are those of the first one."""
        rule, one = f"{self.options.what} must agree", self.options.what.removesuffix("s")
        for name, column in found.items():
            expected = self.each[0][name]
            ours, others = column.field, expected.field
            if _form(column) != _form(expected):
                alike = ours.shape != others.shape and replace(ours, shape=others.shape) == others
                given = name if as_ragged(ours.shape) == as_ragged(others.shape) else f"{name}=all"
                advice = Message("; converted with {}, shapes may differ", Option("ragged", given)) if alike else ""
                told = rule + ": field {!r} is {} in {}, and {} in {}{}"
                raise SourceError(told, name, describe_field(ours), place, describe_field(others), first, advice)
            if difference := cf.difference(ours.attributes, others.attributes):
                advice = Message("; {decode_cf:True} applies the attributes of each " + one)
                told = rule + ": of field {!r}, {}{}"
                raise SourceError(told, name, difference.between(place, first), advice if difference.decodes else "")


def _form(column: Any) -> tuple[Any, ...]:
    """What the columns of a field have in common in all files."""
    return (replace(column.field, attributes=None), *column.form())


def _decoded(contents: FileContents) -> Iterator[LoneColumn]:
    """Yield the columns of numbers with one axis, decoded if that is possible."""
    for column in contents.stored.values():
        try:
            yield contents.described(column, True)[0]
        except SourceError:  # such as a calendar without leap days
            yield column
