"""Files or stores of arrays taken as one series: the same fields in each, their rows one after the other, or merged."""

import contextlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar, final, get_args

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, Message, Option, SourceError
from shardio.foreign.files import Sort, order_hints, order_key
from shardio.foreign.names import printable
from shardio.format import cf
from shardio.format.coordinates import is_too_coarse, resolution
from shardio.format.fields import as_ragged
from shardio.format.unwritten import MissingChunks, Unwritten
from shardio.source import Sample, check_index, describe_field, label_as_int64
from shardio.system.units import counted

from ._coordinates import Coordinates, series_hints
from ._fields import (
    array_field,
    check_same_axes,
    check_same_rows,
    choose_fields,
    known_fields,
    measure,
    remark_on_rows,
    rename_remarks,
    shortened,
)
from ._source_base import ArrayColumn, ColumnReader, ColumnSource, MergedReaders, OneOpenFile, first_axis

SampleOf: TypeAlias = Literal["file", "group", "row"]
"""A sample is all that a file or a store holds, or all in one of its groups, or a row of its arrays."""

_MOST_ROWS = 1 << 24  # of a coordinate that is compared
_MANY_GROUPS = 8  # that hold the same names: more are hardly fields
_DEEPEST = 16  # groups within groups that are looked at


class FileContents(ABC):
    """The columns of one file or store.

    Attributes:
        path: the file.
        group: the group in it that they are in, by whose names they are called; "" for all of the file.
        columns: all columns by name, also those that cannot be taken.
        available: the columns that can be chosen, by all their names.
        usual: the columns to take when none are chosen, by name.
        lost: why others are left out then, by name.
        elsewhere: names the data in other files, which are not read, in words that follow the file's name; "" for none.
        scales: by path of a column, the paths of the coordinates of its axes, that of the rows first; "" for none.
        stored: by path, the columns of numbers with one axis.
        hints: hints on it.
    """

    path: Path
    group = ""
    columns: Mapping[str, Any]
    available: Mapping[str, Any]
    usual: Mapping[str, Any]
    lost: Mapping[str, str]
    elsewhere = ""
    scales: Mapping[str, Sequence[str | None]]
    stored: Mapping[str, ArrayColumn]
    hints: Sequence[str] = ()

    @abstractmethod
    def described(self, column: Any, decode_cf: bool) -> tuple[Any, str]:
        """A column with what its field states of its values, and a remark on attributes that have no effect, or "".

        Raises SourceError, in words that follow the column's name, if its numbers cannot be decoded.
        """

    @abstractmethod
    def opens(self, columns: Iterable[Any]) -> ColumnReader:
        """Open the file to read columns; SourceError if that fails."""

    def coordinates(self, rows: Iterable[str | None]) -> Coordinates:
        """Read the columns of numbers with one axis, decoded where that is possible.

        Args:
            rows: the paths of what may be the coordinate of the rows, the likeliest first.
        """
        decoded = dict[str, ArrayColumn]()
        for name, column in self.stored.items():
            with contextlib.suppress(SourceError):
                column = self.described(column, True)[0]
            if column.shape[0] <= _MOST_ROWS:
                decoded[name] = column
        values = self._values(decoded)
        of_rows = next((name for name in rows if name in values), None) or ""
        coarse = 0.0
        if of_rows and self.stored[of_rows].field.row_dtype in (np.float16, np.float32):
            numbers = self._values({of_rows: self.stored[of_rows]}).get(of_rows, np.empty(0, np.float32))
            apart, steps = resolution(numbers), np.diff(numbers.astype(np.float64))
            coarse = apart if is_too_coarse(steps[np.isfinite(steps)], apart) else 0.0
        return Coordinates(self.path, values, of_rows, coarse)

    def _values(self, columns: Mapping[str, ArrayColumn]) -> dict[str, NDArray[Any]]:
        values = dict[str, NDArray[Any]]()
        with contextlib.closing(self.opens(columns.values())) as reader:
            for name, column in columns.items():
                found = np.empty(column.shape[0], column.field.row_dtype)
                with contextlib.suppress(BadSample):  # whoever takes the column is told
                    reader.fill(column, found)
                    values[name] = found
        return values

    def check(self, columns: Sequence[Any]) -> Mapping[str, Unwritten] | None:
        """Return, by path, what of these columns was never written, as far as opening tells; None if it tells nothing.

        Raises SourceError if they cannot be read.
        """
        return None


@final
@dataclass(frozen=True, slots=True)
class SeriesOptions:
    """How files are taken as a series.

    Attributes:
        fields: the choice of fields.
        decode_cf: whether attributes of netCDF are applied.
        merge: whether files of different columns are merged, see `_check_merged`.
        ragged: the fields whose shapes may differ from file to file, and whether in any axis.
        what: what the files are: "files" or "stores".
        columns: what their columns are: "datasets" or "arrays".
        each: whether the columns of each file are kept, or those of the first stand for all.
        compared: whether coordinates are read, to be compared.
        sample: what a sample is; None for rows, unless something speaks against them, which is a remark.
        sort: the order of groups.

    Raises ConfigError for merged files whose samples are no rows.
    """

    fields: str | Mapping[str, str] | None
    decode_cf: bool
    merge: bool
    ragged: Mapping[str, bool] = field(default_factory=dict)
    what: str = "files"
    columns: str = "datasets"
    each: bool = False
    compared: bool = True
    sample: SampleOf | None = None
    sort: Sort = "name"

    def __post_init__(self) -> None:
        if self.sample is not None and self.sample not in get_args(SampleOf):
            raise ConfigError("{sample} must be one of {}, got {!r}", ", ".join(get_args(SampleOf)), self.sample)
        if self.whole and self.merge:
            raise ConfigError("{merge} merges rows: it does not go with {}", Option("sample", self.sample))

    @property
    def whole(self) -> bool:
        """Whether columns hold one sample each."""
        return self.sample in ("file", "group")


@dataclass(frozen=True, eq=False)
class SeriesSource(ColumnSource):
    """The rows of files or stores. It pickles as paths; each worker opens the files itself, one at a time.

    Attributes:
        files: those of the first series.
        each: the columns to read by field: of each file, or of each group if samples are groups, or one for all.
        starts: the number of each file's first sample, followed by the number of samples, `[files + 1]`.
        absent: what was never written.
        groups: the group of each sample, if samples are groups.
        merged: for each of `files` the others that are merged with it; () if none are.
        remarks, hints, missing_chunks: see `Source`.
    """

    files: tuple[Path, ...] = field()
    each: tuple[Mapping[str, Any], ...]
    starts: NDArray[np.int64]
    absent: tuple[Unwritten, ...]
    groups: tuple[str, ...]
    merged: tuple[tuple[Path, ...], ...] = field()
    remarks: tuple[str, ...] = field()
    hints: tuple[str, ...] = field()
    missing_chunks: MissingChunks | None = field()

    @property
    def columns(self) -> Mapping[str, Any]:  # type: ignore[override]  # a property for a declared attribute
        return self.each[0]

    @property
    def dimensions(self) -> Mapping[str, Sequence[str | None]]:
        return {name: column.dimensions for name, column in self.columns.items()}

    @property
    @abstractmethod
    def _decodes(self) -> bool:
        """Whether attributes of netCDF are applied."""

    @abstractmethod
    def _opens(self) -> Callable[[Path, list[Any]], ColumnReader]:
        """Return a function that opens a file to read columns, and holds no reference to this source."""

    @abstractmethod
    def _looked_at(self, column: Any) -> tuple[int, int]:
        """Return the number of rows from which to measure a column, and the most of them to read, see `measure`."""

    @property
    def changes(self) -> Mapping[str, Any]:
        made: dict[str, Any] = {"decode_cf": self._decodes, "join": bool(self.merged)}
        if any(column.whole for column in self.columns.values()):
            made["sample"] = "group" if self.groups else "file"
        made["axes"] = {name: column.axis for name, column in self.columns.items() if column.axis}
        return {name: value for name, value in made.items() if value}

    @property
    def _count(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def _readers(self) -> OneOpenFile[MergedReaders]:
        # A closure over self would keep the open file alive in a cycle.
        files, merged, opens = self.files, self.merged or ((),) * len(self.files), self._opens()
        each = ({},) if self.groups else self.each  # a group's columns are opened when they are read
        return OneOpenFile(
            lambda n: MergedReaders((files[n], *merged[n]), each[n if len(each) > 1 else 0].values(), opens)
        )

    def _columns(self, number: int) -> Mapping[str, Any]:
        """Return the columns of a file, or of a group if samples are groups."""
        return self.each[number] if len(self.each) > 1 else self.each[0]

    def _at(self, index: int) -> tuple[MergedReaders, Mapping[str, Any], int]:
        """Return the readers and the columns of a sample, and its row."""
        number = bisect_right(self.starts, index) - 1
        readers = self._readers.get(number)
        if not self.groups:
            return readers, self._columns(number), index - int(self.starts[number])
        group = self.groups[index]
        return readers, {name: within(group, column) for name, column in self._columns(index).items()}, 0

    def _value(self, name: str, index: int) -> Any:
        """One value of a sample, read without its neighbouring rows."""
        readers, columns, row = self._at(index)
        return readers.of(columns[name]).value(columns[name], row, alone=True)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        readers, columns, row = self._at(index)
        return {name: readers.of(column).value(column, row) for name, column in columns.items()}

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        for number, part in enumerate(np.split(out, self.starts[1:-1])):
            column = self._columns(number)[name]
            self._readers.get(number).of(column).fill(column, part)

    def measured(self) -> Self:
        first = dict[str, Any]()
        for name, column in self.columns.items():
            count, most = self._looked_at(column)
            first[name] = measure(column, count, partial(self._value, name), most)
        kinds = {name: column.field.kind for name, column in first.items()}
        each = [
            {n: replace(c, mean=first[n].mean, field=replace(c.field, kind=kinds[n])) for n, c in columns.items()}
            for columns in self.each
        ]
        return replace(self, each=tuple(each))


S = TypeVar("S", bound=SeriesSource)
C = TypeVar("C", bound=ArrayColumn)


def read_series(
    found: Iterable[FileContents], options: SeriesOptions, made: type[S], missing: MissingChunks | None, **how: Any
) -> S:
    """Take files in order as a source of the class `made`, with these `missing_chunks` and the fields of its own.

    Raises SourceError if files disagree, ConfigError for a choice of fields that there are not.
    """
    series: dict[frozenset[str], _Series] = {}
    available: dict[str, None] = {}
    if options.sample == "group":
        options = replace(options, what="groups")
        found = (group for contents in found for group in _groups_of(contents, options.sort))
    for contents in found:
        kind, chosen = frozenset[str](), options.fields
        if options.merge:
            kind, names = frozenset(contents.columns), contents.available
            available |= dict.fromkeys(names)
            chosen = chosen if chosen is None else known_fields(chosen, names)
        if kind not in series:
            series[kind] = _Series(replace(options, fields=chosen))
        series[kind].add(contents)
    each = list(series.values())
    first, *others = each
    if options.merge and options.fields is not None:
        choose_fields(options.fields, available, printable(first.paths[0]))
    told = [hint for one in each for hint in one.told] + (_check_merged(each) if options.merge else [])
    in_file = _series_by_field(each)
    columns = [
        {name: replace(each[number].each[at][name], file=number) for name, number in in_file.items()}
        for at in range(len(first.each))
    ]
    lost = {name: why for one in each for name, why in one.lost.items()}
    no_effect = {path: told for one in each for path, told in one.no_effect.items()}
    renamed = [remark for one in each for remark in rename_remarks(one.options.fields, one.names)]
    unused = shortened(list(no_effect.values()), f"{options.columns} have such attributes")
    remarks = (
        *(sign for sign in (first.grouped, first.looks_whole()) if sign),
        *shortened([f"left out {name!r}: {why}" for name, why in lost.items()], f"{options.columns} are left out"),
        *dict.fromkeys(renamed),
        *(() if options.decode_cf else unused),
        *remark_on_rows(columns[0]),
    )
    groups = tuple(filter(None, first.groups))
    hints = (
        *order_hints(groups or first.paths, options.what),
        *series_hints(first.coordinates),
        *(unused if options.decode_cf else ()),  # no option would give these an effect
        *shortened(told, f"hints on {options.what} or their coordinates"),
    )
    files = Counter(first.paths)
    starts = np.cumsum([0, *(files.values() if groups else first.counts)], dtype=object)
    if starts[-1] >= 1 << 62:
        raise SourceError(f"{printable(first.paths[0])} claims {starts[-1]} rows, which are too many")
    return made(
        files=tuple(files),
        each=tuple(columns),
        starts=starts.astype(np.int64),
        absent=tuple(lack for one in each for lack in one.unwritten),
        groups=groups,
        merged=tuple(zip(*(one.paths for one in others), strict=True)),
        remarks=remarks,
        hints=hints,
        missing_chunks=missing,
        **how,
    )


def sample_groups(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the sibling groups that most often hold the same names, {group: {name in it: whole name}}.

    Args:
        names: the paths of arrays, such as `data/demo_0/actions`.
    """
    beside: dict[str, dict[str, dict[str, str]]] = {}
    for name in names:
        parts = name.split("/")
        for at in range(1, min(len(parts), _DEEPEST)):
            within, group = "/".join(parts[: at - 1]), "/".join(parts[:at])
            beside.setdefault(within, {}).setdefault(group, {})["/".join(parts[at:])] = name
    return max(beside.values(), key=_alike, default={})


def _alike(groups: Mapping[str, Mapping[str, str]]) -> int:
    """Return how many groups hold the same names."""
    return max(Counter(frozenset(names) for names in groups.values()).values())


def looks_like_a_sample(shapes: Collection[Sequence[int]]) -> bool:
    """Return whether arrays of these shapes, as each of several files has them, may be a sample rather than rows.

    None of them has fewer than two axes, as labels do. And either a first axis is as long as another of its array, or
    the first two axes are like the height and width of images, only some of which have channels.
    """
    grids = {tuple(shape[:2]) for shape in shapes}
    if any(len(shape) < 2 for shape in shapes):
        return False
    alike = len(grids) == 1 and all(0 < max(grid) <= 2 * min(grid) for grid in grids) and len(set(map(len, shapes))) > 1
    return alike or any(shape[0] in shape[1:] for shape in shapes)


def _groups_of(contents: FileContents, sort: Sort) -> Iterator[Any]:
    """Yield the groups of a file that are samples; SourceError if there are none."""
    found, key = sample_groups(contents.columns), order_key(sort)
    if not found:
        raise SourceError("{} has no groups: {sample:file} takes it as a sample", printable(contents.path))
    taken = {name for names in found.values() for name in names.values()}
    outside = dict.fromkeys((name for name in contents.columns if name not in taken), "it is in no group of a sample")
    for number, group in enumerate(sorted(found, key=key)):
        yield _Group(contents, group, found[group], {} if number else outside, checks=not number)


@final
class _Group(FileContents):
    """A group of a file, without coordinates, whose columns are called as they are in the group.

    Args:
        file: the contents of the file.
        group: the group.
        names: by name in the group, the name in the file.
        outside: why other columns of the file are left out.
        checks: whether the file is checked with this group.
    """

    def __init__(
        self, file: FileContents, group: str, names: Mapping[str, str], outside: Mapping[str, str], *, checks: bool
    ) -> None:
        self.path, self.group, self._file, self._checks = file.path, group, file, checks
        self.columns = self.available = {name: replace(file.columns[at], path=name) for name, at in names.items()}
        self.usual = {name: column for name, column in self.columns.items() if not column.problem}
        self.lost = {**outside, **{name: column.problem for name, column in self.columns.items() if column.problem}}
        self.elsewhere, self.hints = file.elsewhere, file.hints if checks else ()

    def described(self, column: Any, decode_cf: bool) -> tuple[Any, str]:
        found, remark = self._file.described(within(self.group, column), decode_cf)
        return replace(found, path=column.path), remark

    def opens(self, columns: Iterable[Any]) -> ColumnReader:
        return self._file.opens([within(self.group, column) for column in columns])

    def check(self, columns: Sequence[Any]) -> Mapping[str, Unwritten] | None:
        inside = {column.path: within(self.group, column) for column in columns}
        lacking = self._file.check(list(inside.values())) if self._checks else {}
        return lacking and {path: lacking[at.path] for path, at in inside.items() if at.path in lacking}


def along(column: C, axis: str, fixed: str) -> C | None:
    """Return a column whose samples are along another axis; None if it has no such axis.

    Args:
        column: the column; its `problem` says why the axis cannot be that of samples.
        axis: the axis, by the last part of its name or by its number.
        fixed: why the column is read along its first axis only; "" if it is not.
    """
    names = [(name or "").rpartition("/")[2] for name in column.dimensions]
    place = names.index(axis) if axis in names else int(axis) if axis.isdecimal() else -1
    if not 0 <= place < len(column.shape):
        return None
    if not place or column.problem:
        return column
    if fixed:
        return replace(column, problem=fixed)
    shape, axes = first_axis(column.shape, place), first_axis(column.dimensions, place)
    field = array_field(np.dtype(column.field.dtype), shape[1:])
    problem = "" if field else f"no field holds {list(shape[1:])} of {column.field.dtype}"
    return replace(column, shape=shape, axis=place, dimensions=axes, field=field or column.field, problem=problem)


def within(group: str, column: Any) -> Any:
    """Return a column of a group by its path in the file."""
    return replace(column, path=f"{group}/{column.path}")


@final
class _Series:
    """Files of the same columns, in order.

    Attributes:
        options: the options, with the choice of fields of these files.
        names: the name of each field's column.
        paths: the files.
        each: the columns of each file by field, or of the first one; without an axis along which files may differ.
        groups: the group of each, if it is one.
        counts: the number of rows of each file.
        grouped: the remark that groups of the first file may be samples; "" if they are none, or the user has decided.
        coordinates: those of each file, if they are compared.
        lost, no_effect: why columns are left out, by name, and remarks on attributes without effect, by path.
        told: hints on files, and on coordinates that differ by rounding.
        unwritten: what was never written.
    """

    def __init__(self, options: SeriesOptions) -> None:
        self.options = options
        self.names: dict[str, str] = {}
        self.paths: list[Path] = []
        self.each: list[dict[str, Any]] = []
        self.groups: list[str] = []
        self.counts: list[int] = []
        self.grouped: Message | str = ""
        self._shapes: list[tuple[int, ...]] = []
        self.coordinates: list[Coordinates] = []
        self.lost: dict[str, str] = {}
        self.no_effect: dict[str, str] = {}
        self.told: list[str] = []
        self.unwritten: list[Unwritten] = []

    @property
    def columns(self) -> Mapping[str, Any]:
        return self.each[0]

    def add(self, contents: FileContents) -> None:
        """Add the next file; SourceError if it disagrees with the first one."""
        if not self.paths and self.options.sample is None and not self.options.merge:
            self._look_for_samples(contents)
        try:
            self._add(contents)
        except SourceError as error:
            if self.grouped and not self.paths:
                raise SourceError("{}; {}", error, self.grouped) from error
            raise

    def _look_for_samples(self, contents: FileContents) -> None:
        names = contents.columns if self.options.fields is None else self._choose(contents).values()
        groups = sample_groups(names)
        single = (not c.shape for names in groups.values() for c in map(contents.columns.get, names.values()) if c)
        if groups and (count := _alike(groups)) > (1 if any(single) else _MANY_GROUPS):
            told = "{} holds {} groups of the same {}, such as {!r}: {sample:group} takes each group as a sample, "
            told += "{sample:row} keeps the rows of each as fields"
            self.grouped = Message(told, printable(contents.path), count, self.options.columns, next(iter(groups)))
        timed = any(axis and "time" in axis.lower() for c in contents.columns.values() for axis in c.dimensions)
        if not timed and not any(map(any, contents.scales.values())):
            self._shapes = [column.shape for column in contents.columns.values()]

    def looks_whole(self) -> Message | str:
        """Return the remark that each file may be a sample; "" if nothing says so, or the user has decided."""
        if (
            len(self.counts) < 2
            or len(set(self.counts)) > 1
            or not self._shapes
            or not looks_like_a_sample(self._shapes)
        ):
            return ""
        told = (
            "each of {} {} holds {}, and may be one sample: {sample:file} takes it as one, {sample:row} keeps {} rows"
        )
        shapes = ", ".join(f"{name} {list(column.shape)}" for name, column in self.columns.items())
        return Message(told, len(self.counts), self.options.what, shapes, self.counts[0])

    def _add(self, contents: FileContents) -> None:
        options, place = self.options, printable(contents.path / contents.group)
        first = printable(self.paths[0] / self.groups[0]) if self.paths else place
        usual, rule = contents.usual, f"{options.what} must agree"
        if options.fields is None:
            if contents.elsewhere:
                raise SourceError("{} {}; or choose others with {fields}", place, contents.elsewhere)
            self.lost = {**contents.lost, **self.lost}
            if not usual:
                why = "; ".join(f"{name!r}: {reason}" for name, reason in contents.lost.items()) or "none"
                raise SourceError(f"{place} holds no {options.columns} with rows that can be taken: {why}")
        self.names = self.names or self._choose(contents)
        if options.fields is None and (extra := usual.keys() - self.names.values()):
            raise SourceError(f"{rule}: {place} has {min(extra)!r}, {first} has not")
        found = self._take(contents, place, first)
        if options.each or not self.each:
            self.each.append(found)
        check_same_axes(found, self.columns, place, first, options.what)
        self._check_same(found, place, first)
        self.paths.append(contents.path)
        self.groups.append(contents.group)
        self.counts.append(next(iter(found.values())).shape[0])
        self.told += contents.hints
        number = len(self.paths) - 1
        if (lacking := contents.check(list(found.values()))) is not None:
            for name, column in found.items():
                one = lacking.get(column.path) or Unwritten("", "", self.counts[-1])
                self.unwritten.append(replace(one, name=name, file=printable(contents.path.name), number=number))
        if options.compared and not options.whole:
            scales = [contents.scales.get(column.path, ()) for column in found.values()]
            there = contents.coordinates(axes[0] for axes in scales if axes)
            if self.coordinates and not options.ragged:
                grid = dict.fromkeys(axis for axes in scales for axis in axes[1:] if axis)
                self.told += self.coordinates[0].check_same(there, grid, f"{rule} on their grid")
            self.coordinates.append(there)

    def _choose(self, contents: FileContents) -> dict[str, str]:
        fields = self.options.fields
        available = contents.usual if fields is None else contents.available
        try:
            return choose_fields(fields, available, printable(contents.path))
        except ConfigError as error:
            if contents.elsewhere:
                raise ConfigError("{}; the file {}", error, contents.elsewhere) from error
            raise

    def _take(self, contents: FileContents, place: str, first: str) -> dict[str, Any]:
        """The chosen columns by field; SourceError if one cannot be taken, or they differ in their number of rows."""
        available, found = contents.available, dict[str, Any]()
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
            if ours == others and not (ours.attributes or others.attributes) and column.form() == expected.form():
                continue
            if _form(column) != _form(expected):
                alike = ours.shape != others.shape and replace(ours, shape=others.shape) == others
                given = name if as_ragged(ours.shape) == as_ragged(others.shape) else f"{name}=all"
                advice = Message("; converted with {}, shapes may differ", Option("ragged", given)) if alike else ""
                if alike and self.options.sample is None:
                    advice += Message("; {sample:file} takes each " + one + " as a sample")
                told = rule + ": field {!r} is {} in {}, and {} in {}{}"
                raise SourceError(told, name, describe_field(ours), place, describe_field(others), first, advice)
            if difference := cf.difference(ours.attributes, others.attributes):
                advice = Message("; {decode_cf:True} applies the attributes of each " + one)
                told = rule + ": of field {!r}, {}{}"
                raise SourceError(told, name, difference.between(place, first), advice if difference.decodes else "")


def _check_merged(series: Sequence[_Series]) -> list[str]:
    """Raise SourceError unless the files of several series belong to the same rows, file by file; return hints."""
    hints: list[str] = []
    first = [printable(files.paths[0]) for files in series]
    if len(series) == 1:
        raise SourceError("{merge} takes files of different datasets, and all hold those of {}: leave it out", first[0])
    for number, files in enumerate(series[1:], 1):
        if len(files.paths) != len(series[0].paths):
            raise SourceError(
                "{merge}: {} with the datasets of {}, and {} with those of {}: each needs one to be merged with",
                counted(len(series[0].paths), "file"),
                first[0],
                counted(len(files.paths), "file"),
                first[number],
            )
        pairs = zip(series[0].coordinates, files.coordinates, series[0].counts, files.counts, strict=True)
        for ours, theirs, rows, other_rows in pairs:
            hints += ours.check_same(theirs, ours.values, "files that are merged must have the same coordinates")
            if rows != other_rows:
                places = printable(ours.file), printable(theirs.file)
                told = "files that are merged must have the same rows: {} in {}, and {} in {}"
                raise SourceError(told, rows, places[0], other_rows, places[1])
    return hints


def _series_by_field(series: Sequence[_Series]) -> dict[str, int]:
    """Return the number of the series that has each field; SourceError for one in several that is no coordinate."""
    found: dict[str, int] = {}
    for number, one in enumerate(series):
        for name, column in one.columns.items():
            before = found.setdefault(name, number)
            if before != number and column.path not in one.coordinates[0].values:
                raise SourceError(
                    "{merge}: {!r} is in {} and in {}, and is no coordinate, which both may have: choose others with "
                    "{fields}",
                    column.path,
                    printable(series[before].paths[0]),
                    printable(one.paths[0]),
                )
    return found


def _form(column: Any) -> tuple[Any, ...]:
    """Return the attributes that a field's columns share in all files."""
    return (replace(column.field, attributes=None), *column.form())
