"""HDF5 files of any layout that h5py reads: the samples are the rows of datasets along their first axis.

The format is described at https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html.
"""

import contextlib
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.containers.hdf5_library import DAMAGE
from shardio.errors import BadSample, ConfigError, Option, SourceError
from shardio.foreign.files import Sort, other_files, within_folders
from shardio.foreign.formats import find_hdf5, is_netcdf3
from shardio.foreign.names import Paths, printable, source_errors
from shardio.format import cf
from shardio.format.fields import listed_ragged
from shardio.format.unwritten import MissingChunks, Unwritten
from shardio.source import Hdf5Names, Places

from ._fields import evenly_spaced, remark_on_packing, with_attributes
from ._hdf5_columns import Column, Contents, is_hidden, is_matlab
from ._hdf5_reader import Reader, datasets_of, open_file, try_in_helper
from ._netcdf3 import ClassicReader, classic_columns
from ._series import FileContents, SampleOf, SeriesOptions, SeriesSource, along, read_series

_ROWS_PER_BYTE = 1 << 17  # gzip compresses a thousand zeros to a byte, zstd many more
_SAMPLED = 8  # rows to look for values that were never written
_NETCDF_FILL = 9.969209968386869e36  # NC_FILL_FLOAT and NC_FILL_DOUBLE
_FEW_ROWS = 1 << 24  # rows that may occupy no bytes in the file: of chunks that were never written


def hdf5(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    axis: str | None = None,
    decode_cf: bool = False,
    external_links: bool = False,
    read_timeout: float = 60.0,
    sort: Sort = "name",
    merge: bool = False,
    ragged: str | Collection[str] | None = None,
    sample: SampleOf | None = None,
    files: str | None = None,
    missing_chunks: MissingChunks | None = None,
) -> "Hdf5":
    """HDF5 files, and NetCDF files of any version: datasets whose rows, along the first axis, are the samples.

    Takes one file, a directory, or a pattern such as "runs/*.h5" (quote it). In a directory it takes the files whose
    content is HDF5, whatever their names. Several files are read in the order of their names, and must hold the same
    datasets. Each dataset becomes a field: numbers become scalars or arrays, strings text, opaque values bytes, and
    enumerations integers. Rows of uint8 that vary in length become bytes, or images if they begin like one; such rows
    of other numbers become ragged arrays. Each member of a compound dataset becomes a field of its own. A group of just
    `data` and `offsets` (n+1 integers), as shardio stores values of varying size, becomes bytes or images if its data
    is uint8 of one axis, and ragged arrays of any other numbers. References, bitfields, datetimes, long doubles, single
    values and variable-length numbers in a foreign byte order are left out, and a note names them. You can choose a
    dataset by a soft link within the file.

    Files of NetCDF's classic formats, which are no HDF5 files, are taken in the same way: the rows of a variable are
    those along its first axis, mostly that of the records. Characters [n, length] become text.

    Args:
        src: the file, the directory or the pattern; in Python also a list of these.
        fields: the datasets to take, with names for their fields, as in "image=data/images,label"; a member of a
            compound dataset is "table/name". Without it: all datasets, which must have the same number of rows.
        axis: the axis that the samples are along, by the name of its dimension scale, such as time; or by its number,
            from 0 on. It becomes the first one. Datasets that lack it are left out.
        decode_cf: apply the attributes of netCDF that each file has, as xarray does: scale_factor, add_offset,
            _FillValue, missing_value and _Unsigned; numbers outside of valid_min, valid_max or valid_range become NaN,
            and times seconds since 1970, float64. Without it numbers stay as they are stored, and files must agree in
            such attributes and in units.
        external_links: read data that a file keeps in other files: external links, external storage, virtual datasets.
            Without it such data is an error: a downloaded file must not choose which of your files are read.
        read_timeout: the seconds that the HDF5 library may take to open a file, or to read a block of rows, which it
            does unless they are plain numbers: damage can keep it busy for minutes, or crash it. A sample whose values
            take longer is bad, and may be good in another run.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        merge: take files of different datasets for the same rows: files that hold the same datasets make a series, and
            the first file of each series is merged with those of the others, then the second, and so on. The
            coordinates that they share, datasets of numbers with one axis, must be equal.
        ragged: the fields of arrays whose first axis may have another length in each file; or, as in wave=all, whose
            shape may differ in any way.
        sample: what a sample is. row: a row of the datasets, along their first axis. file: all datasets of a file,
            including single values. group: all datasets of one group, where neighbouring groups hold the same names, as
            in demo_0/actions and demo_1/actions; fields have the names within the group. By default, rows; a note says
            if the files look otherwise.
        files: a pattern for the names of the files to take from a directory, such as "train-*". Without it: all.
        missing_chunks: what to make of chunks that are not there. fill: their values are the fill value. refuse: an
            error. By default they are fill values, and a note says how many. It is a remark, which `strict`
            makes an error, where something speaks for a loss: an array has none of its chunks, no field has any from
            some row on, or chunks have names that the metadata do not give them; an array of such alone is refused.

    Example:
        shardio convert hdf5 train.h5 data/train --fields image=data/images,label=data/labels
        shardio convert hdf5 train.h5 data/half --to hdf5 --dtype float16 --allow-rounding --compress gzip
        shardio convert hdf5 train.h5 data/photos --fields image=data/images --as-image image
        shardio convert hdf5 "months/*.nc" data/months --fields t2m,time --decode-cf --to hdf5
        shardio convert hdf5 last.h5 data/last --axis 2 --to hdf5
        shardio convert hdf5 era5 data/wind --merge --fields time --stack wind=u10,v10 --to hdf5
        shardio convert hdf5 runs data/runs --external-links --missing-chunks fill
        shardio convert hdf5 runs data/waves --fields wave=data/waves --ragged wave
        shardio convert hdf5 runs data/scans --sample file --files '*.h5'
        shardio convert hdf5 damaged.h5 data/rest --read-timeout 10 --on-error skip

    Raises:
        SourceError: a file is missing or damaged, needs a filter that is not installed, or keeps data in other files;
            the files disagree; datasets differ in their number of rows, claim more rows than the file has room for, or
            have a type that no field holds; with `decode_cf`, a calendar or an attribute cannot be applied.
        ConfigError: `fields` names a dataset that does not exist, or `read_timeout` is not above 0.
    """
    if not 0 < read_timeout < math.inf:
        raise ConfigError("{read_timeout} must be a number of seconds above 0, got {!r}", read_timeout)
    src = within_folders(src, files)
    paths = find_hdf5(src, sort)
    sample = "row" if sample is None and axis is not None else sample
    options = SeriesOptions(fields, decode_cf, merge, listed_ragged(ragged), sample=sample, sort=sort)
    if options.whole and axis is not None:
        raise ConfigError("{axis} is that of rows: it does not go with {}", Option("sample", sample))
    how: Any = {"external_links": external_links, "read_timeout": read_timeout}
    contents = (_Contents(path, options.whole, axis, **how) for path in paths)
    found = read_series(contents, options, Hdf5, missing_chunks, **how)
    remarks = (*other_files(src, paths, "HDF5 files"), *found.remarks)
    hints = (*found.hints, *(_reversed_axes(found.columns) if is_matlab(paths[0]) else ()))
    return replace(found, remarks=remarks, hints=hints).measured()


def _reversed_axes(columns: Mapping[str, Column]) -> Iterator[str]:
    """Yield a hint on the axes of the first of MATLAB's arrays that has several."""
    for name, column in columns.items():
        if len(column.shape) > 1:
            there = " x ".join(map(str, reversed(column.shape)))
            yield (
                f"MATLAB stores axes in reverse order: {name!r}, {list(column.shape)} here, is {there} in MATLAB, of "
                "which samples are along the last axis"
            )
            return


@final
class _Contents(FileContents):
    """The contents of an HDF5 or NetCDF-3 file."""

    def __init__(self, path: Path, whole: bool, axis: str | None, external_links: bool, read_timeout: float) -> None:
        self.path, self._external_links, self._read_timeout = path, external_links, read_timeout
        self._classic = is_netcdf3(path)
        if self._classic and axis is not None:
            raise SourceError(
                "{}: {axis} is for NetCDF-4 and HDF5: `nccopy -k nc4` makes such a file of one of NetCDF-3", path
            )
        if self._classic:
            found, self._attributes = classic_columns(path, whole)
            names, hidden = {name: name for name in found}, set[str]()
        else:
            try_in_helper(path, read_timeout, "walk", external_links=external_links)
            with contextlib.closing(open_file(path)) as file, source_errors(path, *DAMAGE):
                walked = Contents(file, path, external_links, whole)
            found, self._attributes, names = walked.columns, walked.attributes, walked.names()
            hidden = set(filter(is_hidden, found))
            self.elsewhere = walked.where() if walked.external else ""
        for bounds, times in cf.inherit_units(self._attributes).items():
            self._attributes[bounds] = cf.with_units_of(self._attributes[bounds], self._attributes[times])
            found |= {name: replace(one, units_from=times) for name, one in found.items() if one.path == bounds}
        self.columns = found if axis is None else {name: _along(column, axis) for name, column in found.items()}
        self.available = {name: self.columns[real] for name, real in names.items()}
        self.scales = scales = {column.path: column.dimensions for column in self.columns.values()}
        first = {axes[0] for axes in scales.values() if len(axes) > 1}
        others = [scale for axes in scales.values() for scale in axes[1:] if scale in found and scale not in first]
        self.lost = dict.fromkeys(others, "it is the coordinate of an axis that is not the rows")
        self.lost |= {name: one.problem for name, one in self.columns.items() if one.problem and name not in hidden}
        self.usual = {name: one for name, one in self.columns.items() if name not in hidden and name not in self.lost}
        taken = [column for column in self.columns.values() if not column.problem and not column.members]
        self.stored = {column.path: column for column in taken if column.field.kind == "scalar"}

    def described(self, column: Column, decode_cf: bool) -> tuple[Column, str]:
        attributes = self._attributes.get(column.path, {})
        if column.field.fixed and not column.members:
            field, remark = with_attributes(column.field, attributes, column.path, decode_cf)
            return replace(column, field=field, decoded=decode_cf), remark
        if not (changes := cf.changes(cf.stated(attributes))) or column.field.kind not in ("array", "scalar"):
            return column, ""
        if decode_cf:
            raise SourceError(f"its attributes {cf.told(changes)} are for numbers of one shape, which are no members")
        return column, remark_on_packing(column.path, changes)

    def opens(self, columns: Iterable[Column]) -> Reader | ClassicReader:
        return _open(self.path, columns, self._external_links, self._read_timeout)

    def check(self, columns: Sequence[Column]) -> Mapping[str, Unwritten]:
        """Fail now if a filter is missing, or a file has no room for so many rows, whose sizes could exhaust memory."""
        rows, size = columns[0].shape[0], self.path.stat().st_size
        if rows > _FEW_ROWS + _ROWS_PER_BYTE * size and not self._external_links:
            raise SourceError(f"{printable(self.path)} claims {rows} rows, more than its {size} bytes have room for")
        found: Any = {}
        if not self._classic:
            names, links = datasets_of(columns), self._external_links
            told = try_in_helper(self.path, self._read_timeout, "open_datasets", names=names, external_links=links)
            found = json.loads(told[0]) if told else {}
        self.opens(columns).close()
        moved = {column.path for column in columns if column.axis}  # of which these are no rows
        return {name: Unwritten(**one) for name, one in found.items() if name not in moved}


def _along(column: Column, axis: str) -> Column:
    """Return a column whose samples are along another axis; one with a problem if it has no such axis."""
    is_array = column.field.kind == "array" and not column.members and not column.ragged
    fixed = "" if is_array else "only arrays of numbers are read along another axis than the first"
    return along(column, axis, fixed) or replace(column, problem=column.problem or f"it has no axis {axis!r}")


@final
@dataclass(frozen=True, eq=False)
class Hdf5(SeriesSource):
    """The rows of HDF5 files.

    Attributes:
        external_links: whether to read data in other files that they name.
        read_timeout: seconds that HDF5 may take to open a file, and for each block of rows that only its library reads.
    """

    external_links: bool
    read_timeout: float
    source = "hdf5"

    @property
    def _decodes(self) -> bool:
        return any(column.decoded for column in self.columns.values())

    def _opens(self) -> Callable[[Path, Iterable[Column]], Reader | ClassicReader]:
        return partial(_open, external_links=self.external_links, read_timeout=self.read_timeout)

    def _looked_at(self, column: Column) -> tuple[int, int]:
        return self._count, 0 if column.ragged else 100  # offsets tell the sizes of a ragged column

    @property
    def adoption(self) -> Hdf5Names | Places:
        """See `Source.adoption`; the name of a scalar member of a compound dataset is the path of that dataset."""
        members = [column for column in self.columns.values() if column.members and column.field.kind != "scalar"]
        if members:
            name = "/".join([members[0].path, *members[0].members])
            raise SourceError(f"{printable(self.files[0])}: {name!r} is a member of records, not a dataset: convert it")
        if moved := next((column.path for column in self.columns.values() if column.axis), None):
            raise SourceError(
                f"{printable(self.files[0])}: {moved!r} is read along another axis than its first: convert it"
            )
        if classic := next(filter(is_netcdf3, self.files), None):
            raise SourceError(f"{printable(classic)} is a NetCDF-3 file, which cannot be read in place: convert it")
        names = {name: column.path for name, column in self.columns.items()}
        if any(column.whole for column in self.columns.values()):
            return Places(self.starts, self._spans, names)
        in_file = {name: column.file for name, column in self.columns.items() if column.file}
        return Hdf5Names(self.starts, names, self._packing, in_file)

    def _spans(self, index: int) -> Mapping[str, tuple[int, int]]:
        readers, columns, _ = self._at(index)
        return {name: readers.of(one).span(one) for name, one in columns.items() if one.field.kind != "scalar"}

    def _packing(self, number: int) -> Mapping[str, Mapping[str, Any]]:
        readers = self._readers.get(number)
        packed = {name: readers.of(c).packing().get(c.path) for name, c in self.columns.items() if c.decoded}
        return {name: attributes for name, attributes in packed.items() if attributes is not None}

    def unwritten(self, *, tables: bool) -> Sequence[Unwritten]:
        return (*self.absent, *self._unwritten_netcdf())

    def _unwritten_netcdf(self) -> Iterator[Unwritten]:
        """Yield the decoded fields with rows that hold what netCDF takes for numbers that were never written.

        No attribute says so of that value, so that it stays, as xarray leaves it.
        """
        rows = evenly_spaced(self._count, _SAMPLED)
        for name, column in self.columns.items():
            if not column.decoded or column.field.dtype not in ("float32", "float64"):
                continue
            fill = np.dtype(column.field.dtype).type(_NETCDF_FILL)
            held = list[int]()
            for row in rows:
                with contextlib.suppress(BadSample):
                    held += [row] if (np.asarray(self._value(name, row)) == fill).any() else []
            if held:
                number = bisect_right(self.starts, held[0]) - 1
                first, file = f"row {held[0] - int(self.starts[number])}", self.files[number].name
                yield Unwritten(
                    name, file, self._count, number, lacking=len(held), count=len(rows), first=first, fill=str(fill),
                    what="rows looked at",
                )  # fmt: skip

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


def _open(path: Path, columns: Iterable[Column], external_links: bool, read_timeout: float) -> Reader | ClassicReader:
    if is_netcdf3(path):
        return ClassicReader(path, columns)
    return Reader(path, columns, external_links, read_timeout)
