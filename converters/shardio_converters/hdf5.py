"""HDF5 files of any layout that h5py reads: the samples are the rows of datasets along their first axis.

The format is described at https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html.
"""

import contextlib
import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.containers.hdf5_library import DAMAGE
from shardio.errors import ConfigError, Message, Option, SourceError
from shardio.foreign.files import Sort, order_hints, other_files
from shardio.foreign.formats import find_hdf5, is_netcdf3
from shardio.foreign.names import Paths, printable
from shardio.format import cf
from shardio.format.fields import as_ragged, listed_ragged
from shardio.source import Hdf5Names, Sample, check_index, describe_field, label_as_int64

from ._coordinates import Coordinates, check_joined, merged, of_other_axes, read_coordinates, series_hints
from ._fields import (
    check_same_axes,
    check_same_rows,
    choose_fields,
    known_fields,
    listed_shapes,
    measure,
    remark_on_packing,
    remark_on_rows,
    rename_remarks,
    shortened,
    with_attributes,
)
from ._files import source_errors
from ._hdf5_columns import Column, Contents
from ._hdf5_reader import Reader, datasets_of, open_file, try_in_helper
from ._netcdf3 import ClassicContents, ClassicReader
from ._source_base import ColumnSource, JoinedReaders, OneOpenFile

_ROWS_PER_BYTE = 1 << 17  # gzip compresses a thousand zeros to a byte, zstd many more
_FEW_ROWS = 1 << 24  # rows that may occupy no bytes in the file: of chunks that were never written


def hdf5(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    decode_cf: bool = False,
    external_links: bool = False,
    read_timeout: float = 60.0,
    sort: Sort = "name",
    join: bool = False,
    ragged: str | Collection[str] | None = None,
) -> "Hdf5":
    """HDF5 files, and NetCDF files of any version: datasets whose rows, along the first axis, are the samples.

    Takes one file, a directory, or a pattern such as "runs/*.h5" (quote it). Of a directory it takes the files that are
    HDF5 by their content, whatever their names. Several files are read in the order of their names, and must hold the
    same datasets. Each dataset becomes a field: numbers
    become scalars or arrays, strings text, opaque values bytes, and enumerations whole numbers. Rows of uint8 that vary
    in length become bytes, or images if they begin like one; such rows of other numbers become ragged arrays. Each
    member of a compound dataset becomes a field of its own. A group of just `data` and `offsets` (n+1 whole numbers),
    which is how shardio stores values of varying size, becomes bytes or images if its data is uint8 of one axis, and
    ragged arrays of any other numbers. References,
    bitfields, datetimes, long doubles, single values and variable-length numbers in a foreign byte order are left out,
    and named in a note. You can choose a dataset by a soft link within the file.

    Files of NetCDF's classic formats, which are no HDF5 files, are taken in the same way: the rows of a variable are
    those along its first axis, mostly that of the records. Characters [n, length] become text.

    Args:
        src: the file, the directory or the pattern; in Python also a list of these.
        fields: the datasets to take, with names for their fields, as in "image=data/images,label"; a member of a
            compound dataset is "table/name". Without it: all datasets, which must have the same number of rows.
        decode_cf: apply the attributes of netCDF that each file has, as xarray does: scale_factor, add_offset,
            _FillValue, missing_value and _Unsigned; numbers outside of valid_min, valid_max or valid_range become NaN,
            and times seconds since 1970, float64. Without it numbers stay as they are stored; files that differ in such
            attributes, or in units, are refused.
        external_links: read data that a file keeps in other files: external links, external storage, virtual datasets.
            Without it they are refused, because a downloaded file must not choose which of your files are read.
        read_timeout: the seconds that the HDF5 library may take to open a file, or to read a block of rows, which it
            does unless they are plain numbers: damage can keep it busy for minutes, or crash it. A sample whose values
            take longer is bad, and may be good in another run.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        join: take files of different datasets for the same rows: files that hold the same datasets make a series, and
            the first file of each series is joined to those of the others, then the second, and so on. The coordinates
            that they share, datasets of numbers with one axis, must be equal.
        ragged: the fields of arrays whose first axis may have another length in each file; or, as in wave=all, whose
            shape may differ in any way.

    Example:
        shardio convert hdf5 train.h5 data/train --fields image=data/images,label=data/labels
        shardio convert hdf5 train.h5 data/half --to hdf5 --dtype float16 --allow-rounding --compress gzip
        shardio convert hdf5 train.h5 data/photos --fields image=data/images --as-image image
        shardio convert hdf5 "months/*.nc" data/months --fields t2m,time --decode-cf --to hdf5
        shardio convert hdf5 era5 data/wind --join --fields time --stack wind=u10,v10 --to hdf5
        shardio convert hdf5 runs data/runs --external-links
        shardio convert hdf5 runs data/waves --fields wave=data/waves --ragged wave
        shardio convert hdf5 damaged.h5 data/rest --read-timeout 10 --on-error skip

    Raises:
        SourceError: a file is missing or damaged, needs a filter that is not installed, or keeps data in other files;
            the files disagree; datasets differ in their number of rows, claim more rows than the file has room for, or
            have a type that no field holds; with `decode_cf`, a calendar or an attribute from which no values follow.
        ConfigError: `fields` names a dataset that does not exist, or `read_timeout` is not above 0.
    """
    if not 0 < read_timeout < math.inf:
        raise ConfigError("{read_timeout} must be a number of seconds above 0, got {!r}", read_timeout)
    paths = find_hdf5(src, sort)
    options = _Options(decode_cf, external_links, read_timeout, listed_ragged(ragged))
    series: dict[frozenset[str], _Series] = {}
    available: dict[str, None] = {}
    for path in paths:
        contents = ClassicContents(path) if is_netcdf3(path) else _contents(path, external_links, read_timeout)
        kind, chosen = frozenset[str](), fields
        if join:
            kind = frozenset(contents.columns)
            available |= dict.fromkeys(contents.all_columns())
            chosen = fields if fields is None else known_fields(fields, contents.all_columns())
        if kind not in series:
            series[kind] = _Series(chosen, options)
        series[kind].add(path, contents)
    if join and fields is not None:
        choose_fields(fields, available, printable(paths))
    first, *others = series.values()
    each = list(series.values())
    if join:
        check_joined(each)
    columns = {name: replace(each[n].columns[name], file=n) for name, n in merged(each).items()}
    starts = np.cumsum([0, *first.counts], dtype=np.int64)
    lost = {name: why for one in series.values() for name, why in one.lost.items()}
    no_effect = {path: told for one in series.values() for path, told in one.no_effect.items()}
    left_out = shortened([f"left out {name!r}: {why}" for name, why in lost.items()], "datasets are left out")
    not_applied = shortened(list(no_effect.values()), "datasets have such attributes")
    renamed = [remark for one in series.values() for remark in rename_remarks(one.fields, one.names)]
    rows = remark_on_rows({name: axes for one in series.values() for name, axes in one.axes.items()})
    remarks = (*other_files(src, paths, "HDF5 files"), *left_out, *dict.fromkeys(renamed), *not_applied, *rows)
    hints = (*order_hints(first.paths), *series_hints(first.coordinates))
    joined = tuple(zip(*(one.paths for one in others), strict=True))
    files = tuple(first.paths)
    axes = {name: axes for one in series.values() for name, axes in one.axes.items()}
    return Hdf5(files, columns, starts, external_links, read_timeout, remarks, hints, joined, axes).measured()


@final
@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the converter by which each file is opened."""

    decode_cf: bool
    external_links: bool
    read_timeout: float
    ragged: Mapping[str, bool]


@final
class _Series:
    """Files of the same datasets, in order.

    Attributes:
        fields: the choice of fields.
        names: the path of each field's column.
        columns: the columns of the first file by field, without an axis along which files may differ.
        axes: what the axes of the first file's columns are called, by field.
        counts: the number of rows of each file.
        coordinates: those of each file.
        lost, no_effect: why columns are left out, by name, and attributes that have no effect, by path.
    """

    def __init__(self, fields: str | Mapping[str, str] | None, options: _Options) -> None:
        self.fields, self._options = fields, options
        self.names: dict[str, str] = {}
        self.columns: dict[str, Column] = {}
        self.axes: dict[str, Sequence[str]] = {}
        self.counts: list[int] = []
        self.coordinates: list[Coordinates] = []
        self.lost: dict[str, str] = {}
        self.no_effect: dict[str, str] = {}

    @property
    def paths(self) -> list[Path]:
        return [file.file for file in self.coordinates]

    def add(self, path: Path, contents: Contents | ClassicContents) -> None:
        """Add the next file; SourceError if it disagrees with the first one."""
        options, fields = self._options, self.fields
        first = self.paths[0] if self.coordinates else path
        usual = contents.default_columns()
        if fields is None and contents.external:
            raise SourceError("{} {}; or choose others with {fields}", printable(path), contents.where())
        if fields is None and not usual:
            raise SourceError(f"{printable(path)} holds no datasets with rows: {listed_shapes(contents.columns)}")
        self.lost = contents.left_out() | self.lost if fields is None else {}
        self.names = self.names or _choose(fields, contents, path)
        if fields is None and (extra := usual.keys() - self.names.values()):
            raise SourceError(f"files must agree: {printable(path)} has {min(extra)!r}, {printable(first)} has not")
        found = _take(self.names, contents, path, first, options.decode_cf, self.no_effect)
        for name, in_all in options.ragged.items():
            if name in found and found[name].field.kind == "array":
                shape = as_ragged(found[name].field.shape, in_all=in_all)
                found[name] = replace(found[name], field=replace(found[name].field, shape=shape))
        axes: dict[str, Sequence[str]] = {n: contents.scales.get(column.path, ()) for n, column in found.items()}
        self.axes = self.axes or axes
        check_same_axes(axes, self.axes, printable(path), printable(first))
        self.columns = self.columns or found
        _check_same(self.columns, found, path, first)
        self.counts.append(_count(found, path, options.external_links))
        if isinstance(contents, Contents):
            names, links = datasets_of(found.values()), options.external_links
            try_in_helper(path, options.read_timeout, "open_datasets", names=names, external_links=links)
        opens = partial(_open, path, external_links=options.external_links, read_timeout=options.read_timeout)
        opens(found.values()).close()  # fail now if a filter is missing
        scales = [contents.scales.get(column.path, ())[:1] for column in found.values()]
        rows = [scale[0] for scale in scales if scale]
        there = read_coordinates(path, _coordinates(contents), contents.columns, rows, opens)
        if self.coordinates and not options.ragged:
            grid = of_other_axes(contents.scales, found.values())
            self.coordinates[0].check_same(there, grid, "files must agree on their grid")
        self.coordinates.append(there)


@final
@dataclass(frozen=True, eq=False)
class Hdf5(ColumnSource):
    """The rows of HDF5 files. It pickles as paths; each worker opens the files itself, one at a time.

    Attributes:
        files: the files.
        columns: the columns to read, by field.
        starts: the number of each file's first sample, followed by the number of samples, `[files + 1]`.
        external_links: whether to read data in other files that they name.
        read_timeout: seconds that HDF5 may take to open a file, and for each block of rows that only its library reads.
        joined: for each of `files` the others that are joined to it; () if none are.
        axes: what the axes of the columns are called, by field.
    """

    files: tuple[Path, ...] = field()
    columns: Mapping[str, Column]
    starts: NDArray[np.int64]
    external_links: bool
    read_timeout: float
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    joined: tuple[tuple[Path, ...], ...] = ()
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source = "hdf5"

    @property
    def _count(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def _readers(self) -> OneOpenFile[JoinedReaders[Reader | ClassicReader]]:
        # A closure over self would keep the open file alive in a cycle.
        files, columns = self.files, tuple(self.columns.values())
        opens = partial(_open, external_links=self.external_links, read_timeout=self.read_timeout)
        joined = self.joined or ((),) * len(files)
        return OneOpenFile(lambda number: JoinedReaders((files[number], *joined[number]), columns, opens))

    @property
    def dimensions(self) -> Mapping[str, Sequence[str | None]]:
        return self.axes

    @property
    def adoption(self) -> Hdf5Names:
        """See `Source.adoption`; the name of a scalar member of a compound dataset is the path of that dataset."""
        members = [column for column in self.columns.values() if column.members and column.field.kind != "scalar"]
        if members:
            name = "/".join([members[0].path, *members[0].members])
            raise SourceError(f"{printable(self.files[0])}: {name!r} is a member of records, not a dataset: convert it")
        if classic := next(filter(is_netcdf3, self.files), None):
            raise SourceError(f"{printable(classic)} is a NetCDF-3 file, which cannot be read in place: convert it")
        names = {name: column.path for name, column in self.columns.items()}
        in_file = {name: column.file for name, column in self.columns.items() if column.file}
        return Hdf5Names(self.starts, names, self._packing, in_file)

    @property
    def changes(self) -> Mapping[str, Any]:
        made = {"decode_cf": any(column.decoded for column in self.columns.values()), "join": bool(self.joined)}
        return {name: True for name, value in made.items() if value}

    def _packing(self, number: int) -> Mapping[str, Mapping[str, Any]]:
        readers = self._readers.get(number)
        packed = {name: readers.of(c).packing().get(c.path) for name, c in self.columns.items() if c.decoded}
        return {name: attributes for name, attributes in packed.items() if attributes is not None}

    @property
    def classes(self) -> Sequence[str]:
        """The class names where the labels are an enumeration of 0, 1, 2..."""
        return self.columns["label"].classes if "label" in self.columns else ()

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample, `[n]`: exact for numbers and offsets, an average over up to 100 rows for others."""
        sizes = super().sizes()
        if ragged := [column for column in self.columns.values() if column.ragged]:
            for number, part in enumerate(np.split(sizes, self.starts[1:-1])):
                for column in ragged:
                    if isinstance(reader := self._readers.get(number).of(column), Reader):
                        reader.add_lengths(column, part)
        return sizes

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        return {name: self._value(column, index) for name, column in self.columns.items()}

    def _value(self, column: Column, index: int, *, alone: bool = False) -> Any:
        number = bisect_right(self.starts, index) - 1
        return self._readers.get(number).of(column).value(column, index - int(self.starts[number]), alone=alone)

    def _fill(self, name: str, out: NDArray[Any]) -> None:
        for number, part in enumerate(np.split(out, self.starts[1:-1])):
            self._readers.get(number).of(self.columns[name]).fill(self.columns[name], part)

    def _measured(self, column: Column) -> Any:
        # Offsets tell the sizes of a ragged column.
        read = partial(self._value, column, alone=True)
        return measure(column, self._count, read, 0 if column.ragged else 100)


def _contents(path: Path, external_links: bool, read_timeout: float) -> Contents:
    try_in_helper(path, read_timeout, "walk", external_links=external_links)
    with contextlib.closing(open_file(path)) as file, source_errors(path, *DAMAGE):
        return Contents(file, path, external_links)


def _open(path: Path, columns: Iterable[Column], external_links: bool, read_timeout: float) -> Reader | ClassicReader:
    if is_netcdf3(path):
        return ClassicReader(path, columns)
    return Reader(path, columns, external_links, read_timeout)


def _choose(fields: str | Mapping[str, str] | None, contents: Contents | ClassicContents, path: Path) -> dict[str, str]:
    available = contents.default_columns() if fields is None else contents.all_columns()
    try:
        return choose_fields(fields, available, printable(path))
    except ConfigError as error:
        if contents.external:
            raise ConfigError("{}; the file {}", error, contents.where()) from error
        raise


def _take(
    names: Mapping[str, str],
    contents: Contents | ClassicContents,
    path: Path,
    first: Path,
    decode_cf: bool,
    remarks: dict[str, str],
) -> dict[str, Column]:
    """The chosen columns by field; add remarks on their attributes to `remarks`, by path, unless there are some.

    Raises SourceError if a column cannot be converted, or they differ in their number of rows.
    """
    available = contents.all_columns()
    found: dict[str, Column] = {}
    for called, name in names.items():
        column = available.get(name)
        if column is None:
            raise SourceError(f"files must agree: {printable(path)} has no {name!r}, {printable(first)} has")
        if column.problem:
            raise SourceError(f"{printable(path)}: {name!r} cannot be taken: {column.problem}")
        try:
            column, remark = _described(column, contents.attributes.get(column.path, {}), decode_cf)
        except SourceError as error:
            place = f"{printable(path)}: {name!r} cannot be decoded"
            raise SourceError("{}: {}; choose others with {fields}", place, error) from error
        if remark:
            remarks.setdefault(column.path, remark)
        found[called] = replace(column, field=label_as_int64(called, column.field))
    check_same_rows({name: available[name] for name in names.values()}, printable(path))
    return found


def _described(column: Column, attributes: Mapping[str, Any], decode_cf: bool) -> tuple[Column, str]:
    """A column with what its field states of its values, and a remark on attributes that have no effect, or "".

    Raises SourceError, in words that follow the column's name, if its numbers cannot be decoded.
    """
    if column.field.fixed and not column.members:
        field, remark = with_attributes(column.field, attributes, column.path, decode_cf)
        return replace(column, field=field, decoded=decode_cf), remark
    if not (changes := cf.changes(cf.stated(attributes))) or column.field.kind not in ("array", "scalar"):
        return column, ""
    if decode_cf:
        raise SourceError(f"its attributes {cf.told(changes)} are for numbers of one shape, which are no members")
    return column, remark_on_packing(column.path, changes)


def _coordinates(contents: Contents | ClassicContents) -> Iterator[Column]:
    """Yield the columns of numbers with one axis, to be decoded if that is possible."""
    for column in contents.columns.values():
        if column.problem or column.members or column.field.kind != "scalar":
            continue
        try:
            field, _ = with_attributes(column.field, contents.attributes.get(column.path, {}), column.path, True)
            yield replace(column, field=field, decoded=True)
        except SourceError:  # such as a calendar without leap days
            yield column


def _count(columns: Mapping[str, Column], path: Path, external_links: bool) -> int:
    """The number of rows; SourceError if a file cannot hold so many, whose sizes alone could exhaust memory."""
    rows, size = next(iter(columns.values())).shape[0], path.stat().st_size
    if rows > _FEW_ROWS + _ROWS_PER_BYTE * size and not external_links:
        raise SourceError(f"{printable(path)} claims {rows} rows, more than its {size} bytes have room for")
    return rows


def _check_same(expected: Mapping[str, Column], found: Mapping[str, Column], path: Path, first: Path) -> None:
    for name, column in found.items():
        if _form(column) != _form(expected[name]):
            ours, others = column.field, expected[name].field
            alike = ours.shape != others.shape and replace(ours, shape=others.shape) == others
            given = name if as_ragged(ours.shape) == as_ragged(others.shape) else f"{name}=all"
            raise SourceError(
                "files must agree: field {!r} is {} in {}, and {} in {}{}",
                name,
                describe_field(ours),
                printable(path),
                describe_field(others),
                printable(first),
                Message("; converted with {}, shapes may differ", Option("ragged", given)) if alike else "",
            )
        if difference := cf.difference(column.field.attributes, expected[name].field.attributes):
            raise SourceError(
                "files must agree: of field {!r}, {}{}",
                name,
                difference.between(printable(path), printable(first)),
                Message("; {decode_cf:True} applies the attributes of each file") if difference.decodes else "",
            )


def _form(column: Column) -> Column:
    """A column without what files of one form may differ in."""
    return replace(column, shape=(), field=replace(column.field, attributes=None))
