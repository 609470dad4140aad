"""Files or stores of arrays taken as one series: the same fields in each, their rows one after the other, or joined."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, Message, Option, SourceError
from shardio.foreign.files import Sort, order_hints, order_key
from shardio.foreign.names import printable
from shardio.format import cf
from shardio.format.fields import as_ragged
from shardio.format.unwritten import Unwritten
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

SampleOf: TypeAlias = Literal["file", "group", "row"]
"""A sample is all that a file or a store holds, or all in one of its groups, or a row of its arrays."""

_MANY_GROUPS = 8  # that hold the same names: more are hardly fields
_DEEPEST = 16  # groups within groups that are looked at


class FileContents(Protocol):
    """The columns of one file or store: dataclasses with a `path`, `shape`, `field`, `problem` and `file`.

    Attributes:
        path: the file.
        group: the group in it that they are in, by whose names they are called; "" for all of the file.
        columns: all columns by name, also those that cannot be taken.
        scales: by path of a column, the paths of the coordinates of its axes, that of the rows first; "" for none.
        stored: by path, the columns of numbers with one axis.
        hints: what is to be told of it.
    """

    path: Path
    group: str
    scales: Mapping[str, Sequence[str]]
    hints: Sequence[str]

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
        """Name the data in other files, which are not read, in words that follow the file's name; "" for none."""

    def axes(self, column: Any) -> Sequence[str | None]:
        """The names of a column's axes, that of the rows first; () if it has none."""

    def described(self, column: Any, decode_cf: bool) -> tuple[Any, str]:
        """A column with what its field states of its values, and a remark on attributes that have no effect, or "".

        Raises SourceError, in words that follow the column's name, if its numbers cannot be decoded.
        """

    def opens(self, columns: Iterable[Any]) -> FillingReader:
        """Open the file to read columns; SourceError if that fails."""

    def check(self, columns: Sequence[Any]) -> Mapping[str, Unwritten]:
        """Return, by path, what of these columns was never written, as far as opening tells.

        Raises SourceError if they cannot be read.
        """


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
        sample: what a sample is; None for rows, unless something speaks against them, which is a remark.
        sort: the order of groups.

    Raises ConfigError for joined files whose samples are no rows.
    """

    fields: str | Mapping[str, str] | None
    decode_cf: bool
    join: bool
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
        if self.whole and self.join:
            raise ConfigError("{join} joins rows: it does not go with {}", Option("sample", self.sample))

    @property
    def whole(self) -> bool:
        """Whether columns hold one sample each."""
        return self.sample in ("file", "group")


@final
@dataclass(frozen=True, slots=True)
class FoundSeries:
    """Files as one source takes them.

    Attributes:
        files: those of the first series.
        columns: for each of them, if they are kept, the columns by field, and the number of their joined file.
        counts: the number of rows of each.
        groups: the group of each sample, if samples are groups; `columns` are then those of each group.
        joined: for each of `files` the others that are joined to it; () if none are.
        axes: what the axes of the fields are called.
        unwritten: see `Source.unwritten`.
        remarks, hints: see `Source`.
    """

    files: tuple[Path, ...]
    columns: tuple[Mapping[str, Any], ...]
    counts: Sequence[int]
    groups: tuple[str, ...]
    joined: tuple[tuple[Path, ...], ...]
    axes: Mapping[str, Sequence[str | None]]
    unwritten: tuple[Unwritten, ...]
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
    if options.sample == "group":
        options = replace(options, what="groups")
        found = (group for contents in found for group in _groups_of(contents, options.sort))
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
    told = [hint for one in each for hint in one.told] + (check_joined(each) if options.join else [])
    in_file = merged(each)
    columns = tuple(
        {name: replace(each[number].each[at][name], file=number) for name, number in in_file.items()}
        for at in range(len(first.each))
    )
    lost = {name: why for one in each for name, why in one.lost.items()}
    no_effect = {path: told for one in each for path, told in one.no_effect.items()}
    axes = {name: axes for one in each for name, axes in one.axes.items()}
    renamed = [remark for one in each for remark in rename_remarks(one.options.fields, one.names)]
    unused = shortened(list(no_effect.values()), f"{options.columns} have such attributes")
    remarks = (
        *(sign for sign in (first.grouped, first.looks_whole()) if sign),
        *shortened([f"left out {name!r}: {why}" for name, why in lost.items()], f"{options.columns} are left out"),
        *dict.fromkeys(renamed),
        *(() if options.decode_cf else unused),
        *remark_on_rows(axes),
    )
    groups = tuple(filter(None, first.groups))
    hints = (
        *order_hints(groups or first.paths, options.what),
        *series_hints(first.coordinates),
        *(unused if options.decode_cf else ()),  # no option would give these an effect
        *shortened(told, f"hints on {options.what} or their coordinates"),
    )
    joined = tuple(zip(*(one.paths for one in others), strict=True))
    files = Counter(first.paths)
    counts = list(files.values()) if groups else first.counts
    unwritten = tuple(lack for one in each for lack in one.unwritten)
    return FoundSeries(tuple(files), columns, counts, groups, joined, axes, unwritten, remarks, hints)


def sample_groups(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return those groups beside each other of which the most hold the same names, {group: {name in it: whole name}}.

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
    """How many groups hold the same names."""
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
class _Group:
    """A group of a file as `FileContents`, without coordinates, whose columns are called as they are in the group.

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
        self.path, self.group, self._file, self._outside, self._checks = file.path, group, file, outside, checks
        self.columns = {name: replace(file.columns[whole], path=name) for name, whole in names.items()}
        self.elsewhere, self.hints = file.elsewhere, file.hints if checks else ()

    def default_columns(self) -> Mapping[str, Any]:
        return {name: column for name, column in self.columns.items() if not column.problem}

    def all_columns(self) -> Mapping[str, Any]:
        return self.columns

    def left_out(self) -> Mapping[str, str]:
        return {**self._outside, **{name: column.problem for name, column in self.columns.items() if column.problem}}

    def axes(self, column: Any) -> Sequence[str | None]:
        return self._file.axes(within(self.group, column))

    def described(self, column: Any, decode_cf: bool) -> tuple[Any, str]:
        found, remark = self._file.described(within(self.group, column), decode_cf)
        return replace(found, path=column.path), remark

    def check(self, columns: Sequence[Any]) -> Mapping[str, Unwritten]:
        inside = {column.path: within(self.group, column) for column in columns}
        lacking = self._file.check(list(inside.values())) if self._checks else {}
        return {path: lacking[column.path] for path, column in inside.items() if column.path in lacking}


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
        axes: what the axes of the first file's columns are called, by field.
        groups: the group of each, if it is one.
        counts: the number of rows of each file.
        grouped: the remark that groups of the first file may be samples; "" if they are none, or the user has decided.
        coordinates: those of each file, if they are compared.
        lost, no_effect: why columns are left out, by name, and remarks on attributes without effect, by path.
        told: hints on files, and on coordinates that differ by rounding.
        unwritten: see `FoundSeries`.
    """

    def __init__(self, options: SeriesOptions) -> None:
        self.options = options
        self.names: dict[str, str] = {}
        self.paths: list[Path] = []
        self.each: list[dict[str, Any]] = []
        self.axes: dict[str, Sequence[str | None]] = {}
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
        if not self.paths and self.options.sample is None and not self.options.join:
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
        timed = any(axis and "time" in axis.lower() for c in contents.columns.values() for axis in contents.axes(c))
        if not timed and not any(map(any, contents.scales.values())):
            self._shapes = [column.shape for column in contents.columns.values()]

    def looks_whole(self) -> Message | str:
        """The remark that each file may be a sample; "" if nothing says so, or the user has decided."""
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
        self.groups.append(contents.group)
        self.counts.append(next(iter(found.values())).shape[0])
        self.told += contents.hints
        lacking, number = contents.check(list(found.values())), len(self.paths) - 1
        for name, column in found.items():
            one = lacking.get(column.path) or Unwritten("", "", self.counts[-1])
            self.unwritten.append(replace(one, name=name, file=printable(contents.path.name), number=number))
        if options.compared and not options.whole:
            scales = [contents.scales.get(column.path, ())[:1] for column in found.values()]
            rows = [scale[0] for scale in scales if scale and scale[0]]
            there = read_coordinates(contents.path, _decoded(contents), contents.stored, rows, contents.opens)
            if self.coordinates and not options.ragged:
                grid = of_other_axes(contents.scales, found.values())
                self.told += self.coordinates[0].check_same(there, grid, f"{rule} on their grid")
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


def _form(column: Any) -> tuple[Any, ...]:
    """Return the attributes that a field's columns share in all files."""
    return (replace(column.field, attributes=None), *column.form())


def _decoded(contents: FileContents) -> Iterator[LoneColumn]:
    """Yield the columns of numbers with one axis, decoded if that is possible."""
    for column in contents.stored.values():
        try:
            yield contents.described(column, True)[0]
        except SourceError:
            yield column
