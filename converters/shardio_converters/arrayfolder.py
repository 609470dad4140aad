"""Folders and tables of files that each hold an array: TIFF, PNG of 16 bits, NIfTI, DICOM, FITS, MATLAB and .npy."""

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, Message, SourceError
from shardio.foreign.files import Sort, find_files, order_hints, order_key
from shardio.foreign.locations import scan_files
from shardio.foreign.names import Paths, bad_samples_at, printable
from shardio.foreign.string_array import StringArray
from shardio.foreign.text_tables import DELIMITERS, Column
from shardio.source import Field, Missing, Sample, check_index, listed_names, local_path, with_optional
from shardio.system.units import counted

from ._array_formats import ELSEWHERE, IMAGE, OPENERS, format_of, open_arrays
from ._class_folders import find_class_folders, hidden_remarks
from ._dicom import series_of
from ._fields import array_field, evenly_spaced, readable, shape_of_all, unheld
from ._files import file_size
from ._opened_array import OpenedArray, Orientation, ReadOptions, off_whole
from ._volume_axes import NEAR, axis_codes, canonical, distance, on_one_grid
from .filelist import ListedFiles, filelist, open_table, usual_column

_PROBED = 24  # files whose headers decide the fields
_READ = 3  # of these files, whose values tell whether they are labels
_NEXT = "\0"  # before each path of a slice
_ORIENTATION = Message("{orientation:RAS} brings all into one order, {orientation:stored} leaves each as it is")
_SHOWN = 5  # the most kinds of files that a message names


def arrayfolder(
    src: Paths,
    *,
    field: str = "array",
    label: bool = True,
    series: bool = True,
    variable: str | None = None,
    hdu: int | None = None,
    orientation: Orientation | None = None,
    rescale: bool | None = None,
    round: bool | None = None,
    sort: Sort = "name",
    hidden: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    path: str | Mapping[str, str] | None = None,
    fields: str | Mapping[str, str] | None = None,
    delimiter: str | None = None,
    classes: str | Iterable[str] | None = None,
    optional: str | Collection[str] | None = None,
) -> "ArrayFolder":
    """Files of one array each, in a folder or a table: TIFF, PNG of 16 bits, NIfTI, DICOM, FITS, MATLAB, .npy.

    Takes a folder, a pattern such as "scans/*.tif" (quote it), or a table, as the converter `filelist` does. Formats
    are recognized by content, not by name, and files may be compressed with gzip. Other files in a folder are left out,
    and a note counts them. If the folder holds folders, these are the classes, as in `imagefolder`: a class's position
    among their sorted names is its label. The values stay as they are, with their dtype, in native byte order: nothing
    is cut off at 8 bits. The field `key` is the path.

    A TIFF gives its first series of pages, in the order of axes that tifffile finds: one page [height, width], several
    of one shape [pages, height, width], colours last, tiles put together, hyperstacks of ImageJ and OME with all their
    axes. Nothing is read from other files that OME's metadata may name. Compressed TIFFs need imagecodecs.

    NIfTI files and DICOM files are scaled to float32 as their headers state, or float64 where the stored numbers have
    32 bits or more; what nothing scales stays as it is. NIfTI files also give a field `affine`. The DICOM files of one
    folder and one series are slices of one sample, sorted by position in space, else by InstanceNumber; a series that
    lacks a slice or has two at one position is a bad sample. The frames of an enhanced DICOM file are sorted in the
    same way, if their positions differ. FITS files are scaled as astropy does it. MATLAB files of version 7.3 are HDF5
    files: use the converter `hdf5`.

    Some files throughout decide the shape and the dtype. Where shapes differ, arrays have any shape, or any length
    along the first axis.

    Args:
        src: the folder, the pattern or the table; in Python also a list of files.
        field: what to call the field of the arrays; of a table, `path` may name several.
        label: take the folders in `src` as classes; without it their files are samples without a label.
        series: take the DICOM files of one folder and one SeriesInstanceUID as slices of one sample; without it each
            file is a sample.
        variable: the variable to take from MATLAB files. Without it: the only array.
        hdu: the number of the HDU to take from FITS files, 0 for the first. Without it: the first with an array.
        orientation: for NIfTI files and DICOM series. RAS brings the axes of all volumes into the order and direction
            nearest to right, anterior, superior, as nibabel's as_closest_canonical does; stored leaves each as it is.
            Without it, volumes of a row stay as they are and must fit in shape; a remark reports axes that differ.
        rescale: apply what headers state and pydicom and tifffile leave to you: DoseGridScaling of DICOM's doses, and
            the scale, offset and nodata of GeoTIFFs, which becomes NaN; the values are then floats. Without it a note
            says if there is any.
        round: round labels that are stored as scaled numbers, such as 2.9999847, to integers within 1e-3; the dtype
            stays. Other numbers in fields with such labels make a sample bad. Without it a note reports such fields.
        hidden: take folders whose names begin with a dot, `__MACOSX` and `@eaDir`. By default they are left out; a note
            names them.
        sort: `natural` sorts files and class folders by the numbers in their names, so that s_2 comes before s_10.
        root: of a table, the folder that relative paths start from. Without it: the folder of the table.
        path: of a table, the column that holds the paths, or several columns and their fields, as in
            "image=scan,mask=mask". Without it: the first that exists of path, file, file_name, filename and image.
        fields: of a table, the other columns to take, with names for their fields, as in "label=species,width".
        delimiter: of a table, the character between the cells of a row; "\\t" is a tab.
        classes: of a table, the class names in the order of their labels, a list or text such as "cat,dog", or "auto"
            for the sorted texts of the field label, or else class.
        optional: the fields that rows of a table may lack.

    Example:
        shardio convert arrayfolder scans data/scans
        shardio convert arrayfolder "plates/*.tif" data/plates --field image --no-label
        shardio convert arrayfolder ct data/slices --no-label --no-series --dtype float16
        shardio convert arrayfolder "plates/*.fits" data/plates --hdu 1
        shardio convert arrayfolder "plates/*.tif" data/rescaled --rescale
        shardio convert arrayfolder ct data/labels --no-label --round
        shardio convert arrayfolder trials data/trials --variable eeg --ragged array
        shardio convert arrayfolder scans.csv data/listed --root scans --classes auto
        shardio convert arrayfolder pairs.csv data/pairs --path image=scan,mask=mask --orientation RAS

    Raises:
        SourceError: `src` cannot be read or holds no such file, none can be read, or no field holds their arrays.
        ConfigError: options of tables are given for a folder, or do not fit the table; see `filelist`.
        MissingDependency: a library that reads such files is not installed.
    """
    options = ReadOptions(variable, hdu, orientation, rescale, round)
    lacked = listed_names(optional)
    of_tables = {"root": root, "path": path, "fields": fields, "delimiter": delimiter, "classes": classes}
    one = src if isinstance(src, (str, os.PathLike)) else None
    if one is not None and (delimiter is not None or os.fspath(one).lower().endswith(tuple(DELIMITERS))):
        table = open_table(local_path(one).absolute(), delimiter)
        names = table.names()
        wanted = usual_column(table, names) if path is None else path
        wanted = {field: wanted} if isinstance(wanted, str) and wanted in names else wanted
        rows: Any = filelist(  # a FileList, as it names no boxes
            one, root=root, path=wanted, fields=fields, delimiter=delimiter, classes=classes, optional=lacked
        )
        remarks = tuple(remark for remark in rows.remarks if path is not None or f"field {field!r}" not in remark)
        found = ArrayFolder(rows.root, rows.paths, rows.columns, rows.classes, {}, {}, options, remarks)
        return _with_fields(found, [name for name, kind in rows.file_fields.items() if kind.optional])
    if given := [name for name, value in of_tables.items() if value is not None] + ["optional"] * bool(lacked):
        raise ConfigError("{} goes with a table ({}), not with {}", given[0], ", ".join(DELIMITERS), printable(src))
    if one is not None and (folder := local_path(one).absolute()).is_dir():
        found = _in_folder(folder, field, label=label, series=series, sort=sort, options=options, hidden=hidden)
    else:
        found = _matching(src, field, series=series, sort=sort, options=options)
    return _with_fields(found, ())


@final
@dataclass(frozen=True, eq=False)
class ArrayFolder(ListedFiles):
    """Files of arrays, by number. It pickles as paths and columns.

    The path of slices is that of their folder or the first of them that is the key, and then, each after a null
    character, the paths of all.

    Attributes:
        arrays: the fields of the arrays.
        affines: the fields of the affines that files of these fields state, by field of the arrays.
        options: what to read of each file.
        differ: whether a remark says that volumes of a row differ in their axes, so that they make no bad samples.
        labels: the fields whose values are rounded.
    """

    arrays: Mapping[str, Field]
    affines: Mapping[str, str]
    options: ReadOptions
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    differ: bool = False
    labels: frozenset[str] = frozenset()
    source = "arrayfolder"
    plain_values = True

    def _key(self, index: int) -> str:
        return printable(_key(next(iter(self.paths.values()))[index]))

    @property
    def fields(self) -> Mapping[str, Field]:
        """The arrays with their affines, the other columns, and `key`, the path, if each sample has one file."""
        found = dict(self.arrays)
        for name, affine in self.affines.items():
            found[affine] = Field("array", dtype="float64", shape=(4, 4), optional=self.arrays[name].optional)
        return {**found, **self._other_fields}

    @property
    def changes(self) -> Mapping[str, Any]:
        """The options that change the samples, as JSON values for the conversion's plan, which `--resume` compares."""
        return self.options.given()

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample's arrays if they have one shape, else of its files; 0 for missing ones; `[n]`."""
        return self._sizes

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        total = np.zeros(self._count, np.int64)
        for name, paths in self.paths.items():
            if self.arrays[name].fixed:
                total += self.arrays[name].row_bytes
            else:
                files = [self._files(path) for path in paths]
                total += np.array(scan_files(files, lambda some: sum(map(file_size, some))), np.int64)
        return total

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        arrays: dict[str, Any] = {}
        affines: dict[str, Any] = {}
        headers: dict[str, OpenedArray] = {}
        for name, paths in self.paths.items():
            if self.arrays[name].optional and not paths[index]:
                arrays[name] = None
                affines |= {self.affines[name]: None} if name in self.affines else {}
                continue
            place = printable(self.root / _key(paths[index]))
            with bad_samples_at(place):
                opened = headers[name] = self.opened(name, index)
                if self.options.orientation is None:
                    self._check_grids(headers)
                values, dtype = opened.values(), np.dtype(self.arrays[name].dtype)
                if name in self.labels:
                    if off_whole(values) == math.inf:
                        raise BadSample(Message("{round} takes labels within 1e-3 of integers, here are others"))
                    values = np.rint(values)
                arrays[name] = values.astype(dtype, copy=False) if np.can_cast(values.dtype, dtype) else values
            if name in self.affines:
                affine = opened.affine
                affines[self.affines[name]] = Missing(f"{place}: states no affine") if affine is None else affine
        return {**arrays, **affines, **self._others(index)}

    def _check_grids(self, headers: Mapping[str, OpenedArray]) -> None:
        """Raise BadSample if the last of a row's volumes doesn't fit the first."""
        volumes = [name for name, one in headers.items() if one.space is not None]
        if len(volumes) < 2 or on_one_grid(first := headers[volumes[0]], last := headers[volumes[-1]]):
            return
        shapes, codes = [canonical(one).shape[:3] for one in (first, last)], [*map(axis_codes, (first, last))]
        if shapes[0] != shapes[1]:
            told = "fields {!r} and {!r} are {} and {} along right, anterior, superior; {orientation:stored} takes them"
            raise BadSample(told, volumes[0], volumes[-1], *map(list, shapes))
        if codes[0] != codes[1] and not self.differ:
            told = "the axes of field {!r} are {}, of field {!r} {}; {}"
            raise BadSample(told, volumes[0], codes[0], volumes[-1], codes[1], _ORIENTATION)

    def opened(self, name: str, index: int) -> OpenedArray:
        """Read the header of one sample's file, or files; BadSample, without its path, if there is no array."""
        return open_arrays(self._files(self.paths[name][index]), self.options)

    def _files(self, path: str) -> list[Path]:
        key, *slices = path.split(_NEXT)
        return [self.root / one for one in slices or [key]]


def _key(path: str) -> str:
    return path.partition(_NEXT)[0]


def _with_fields(source: ArrayFolder, lacked: Collection[str]) -> ArrayFolder:
    """Return the source with the fields of its arrays, decided by some files throughout, and notes on them."""
    arrays: dict[str, Field] = {}
    affines: dict[str, str] = {}
    hints, remarks, labels = dict.fromkeys(source.hints), [*source.remarks], set[str]()
    opened: dict[str, dict[int, tuple[str, OpenedArray]]] = {}
    for name, paths in source.paths.items():
        there = [number for number, path in enumerate(paths) if path or name not in lacked]
        numbers = [there[at] for at in evenly_spaced(len(there), _PROBED)]
        opened[name] = _opened(source, name, numbers)
        found = dict(opened[name].values())
        arrays[name] = _field(found, hints)
        if (told := _unapplied(found.values())) and source.options.rescale is None:
            rule = "the values of {!r} are taken as they are stored: their headers' {} is not applied, which "
            remarks.append(Message(rule + "{rescale:True} does", name, told))
        if (off := _labels_off(found.values(), source.options.round)) is not None:
            labels |= {name}
            rule = "the values of {!r} are integers but for up to {:.2g}, as scaled labels: {round:True} rounds them"
            remarks += [Message(rule, name, off)] if off and source.options.round is None else []
        if all(one.affine is not None for one in found.values()):
            affines[name] = "affine" if len(source.paths) == 1 else f"{name}_affine"
    if clash := {*arrays, *affines.values()} & source.columns.keys():
        raise ConfigError("two columns would be the field {!r}; rename one with {field}, path or fields", min(clash))
    if source.options.round and not labels:
        raise ConfigError(Message("{round} takes labels within 1e-3 of integers, and those looked at are not"))
    differing = _axes_remarks(opened, hints) if source.options.orientation is None else []
    return replace(
        source, arrays=with_optional(arrays, lacked), affines=affines, remarks=(*remarks, *differing),
        hints=tuple(hints), labels=frozenset(labels if source.options.round else ()), differ=bool(differing),
    )  # fmt: skip


def _unapplied(found: Iterable[OpenedArray]) -> str:
    """Name the statements of headers that are not applied, with their values; "" for none."""
    values: dict[str, dict[str, None]] = {}
    for one in found:
        for name, value in one.unapplied.items():
            values.setdefault(name, {})[str(np.ravel(value).tolist()).strip("[]")] = None
    shown = {name: [*each][:_SHOWN] + ["..."] * (len(each) > _SHOWN) for name, each in values.items()}
    return " and ".join(f"{name}={', '.join(each)}" for name, each in shown.items())


def _labels_off(found: Iterable[OpenedArray], wanted: bool | None) -> float | None:
    """Return how far from integers the labels in some of these arrays are; None if they are no labels."""
    those = [one for one in found if one.dtype.kind == "f" and (wanted or one.scaled)] if wanted is not False else []
    most, some = 0.0, False  # a mask may be empty
    for number in evenly_spaced(len(those), _READ):
        with suppress(BadSample):
            values = those[number].values()
            off = off_whole(values)
            if off == math.inf:
                return None
            most, some = max(most, off), some or bool(np.rint(values).any())
    return most if some else None


def _axes_remarks(opened: Mapping[str, Mapping[int, tuple[str, OpenedArray]]], hints: dict[str, None]) -> list[str]:
    """Remarks on volumes of a row whose axes differ; `hints` gets those on other differences of volumes."""
    remarks: list[str] = []
    for name, found in opened.items():
        kinds = {axis_codes(one): place for place, one in reversed(list(found.values())) if one.space is not None}
        if len(kinds) > 1:
            told = ", ".join(f"{codes} ({place})" for codes, place in reversed(kinds.items()))
            hints[Message("field {!r}: volumes have several orientations, {}; {}", name, told, _ORIENTATION)] = None
    for one, other in combinations(opened, 2):
        both = [(*opened[one][number], opened[other][number][1]) for number in opened[one] if number in opened[other]]
        both = [row for row in both if row[1].space is not None and row[2].space is not None]
        differing = [(place, *codes) for place, *pair in both if len(set(codes := [*map(axis_codes, pair)])) > 1]
        if differing:
            told = "{}: the axes of field {!r} are {}, of field {!r} {}, as in {} of {} rows looked at; {}"
            place, first, second = differing[0]
            remarks.append(Message(told, place, one, first, other, second, len(differing), len(both), _ORIENTATION))
        far, place = max(((distance(a, b), place) for place, a, b in both), default=(0.0, ""))
        if far > NEAR:
            told = "{}: the grids of fields {!r} and {!r} differ by {:.3g} voxels, the most of {} rows looked at"
            hints[Message(told, place, one, other, far, len(both))] = None
    return remarks


def _opened(source: ArrayFolder, name: str, numbers: Sequence[int]) -> dict[int, tuple[str, OpenedArray]]:
    """The arrays of those of these samples that can be read, each with its path; SourceError if there are none."""

    def opened(number: int) -> tuple[str, OpenedArray]:
        place = printable(source.root / _key(source.paths[name][number]))
        with bad_samples_at(place):
            found = source.opened(name, number)
            if array_field(found.dtype, ()) is None:
                raise BadSample(unheld(found.dtype, found.shape))
            return place, found

    found = dict(readable(numbers, opened, "file of an array"))
    if not found:
        raise SourceError(f"{printable(source.root)}: no sample has a file for the field {name!r}")
    return found


def _field(found: Mapping[str, OpenedArray], hints: dict[str, None]) -> Field:
    """Return the field of arrays, by path; add hints on them to `hints`."""
    dtypes = {one.dtype: place for place, one in reversed(list(found.items()))}
    notes = {note: place for place, one in reversed(list(found.items())) for note in one.notes}
    hints |= {Message("{}: {}", place, note): None for note, place in reversed(notes.items())}
    dtype = np.result_type(*dtypes)
    if len(dtypes) > 1:
        kinds = ", ".join(f"{place} is {kind}" for kind, place in reversed(dtypes.items()))
        hints[f"files differ in their dtype, {kinds}: all are stored as {dtype}"] = None
    shape = shape_of_all(one.shape for one in found.values())
    try:
        return Field("array", dtype=dtype.name, shape=shape)
    except ConfigError as error:
        raise SourceError(f"{next(iter(found))}: {error}") from error


def _in_folder(
    root: Path, field: str, *, label: bool, series: bool, sort: Sort, options: ReadOptions, hidden: bool | None
) -> ArrayFolder:
    """Return the files in a folder, or in its class folders."""
    key = order_key(sort)
    folder = find_class_folders(root, ("",), key, "files of arrays", hidden=bool(hidden))
    by_class = [[path for path, _ in files] for files in folder.files]
    beside = [path for path, _ in folder.beside]
    with_classes = label and bool(by_class)
    listed = [path for files in by_class for path in files]
    listed = listed if with_classes else sorted(beside + listed, key=key)
    chosen, remarks, hints = _known(root, listed, series=series)
    remarks += hidden_remarks(folder.hidden) if hidden is None else ()
    if with_classes and beside:
        remarks.append(f"left out {counted(len(beside), 'file')} beside the class folders, of no class")
    if folder.left_out:
        remarks.append(f"left out what is no file of data: {', '.join(f'{k} {n}' for k, n in folder.left_out.items())}")
    column: dict[str, Column] = {}
    names: tuple[str, ...] = ()
    if with_classes:
        of = [_key(path).partition("/")[0] for path in chosen]
        held = [name for name in folder.classes if name in set(of)]
        numbers = {name: number for number, name in enumerate(held)}
        labels = np.array([numbers[name] for name in of], np.int64)
        column, names = {"label": Column(Field("scalar", dtype="int64"), labels)}, tuple(map(printable, held))
        if empty := [printable(name) for name in folder.classes if name not in numbers]:
            shown = ", ".join(empty[:_SHOWN]) + (", ..." if len(empty) > _SHOWN else "")
            remarks.append(f"left out folders without files of arrays, which are no classes: {shown}")
    if with_classes and len(chosen) == len(names) > 1:
        hints.append(
            Message("each folder holds one sample, so that each is a class of its own; {label:False} takes none")
        )
    return ArrayFolder(root, {field: StringArray(chosen)}, column, names, {}, {}, options, tuple(remarks), tuple(hints))


def _matching(src: Paths, field: str, *, series: bool, sort: Sort, options: ReadOptions) -> ArrayFolder:
    """Return the files that fit a pattern, or are listed."""
    files = find_files(src, lambda name: True, "files of arrays", sort)
    root = Path(os.path.commonpath([path.parent for path in files]))
    chosen, remarks, hints = _known(root, [str(path.relative_to(root)) for path in files], series=series)
    return ArrayFolder(root, {field: StringArray(chosen)}, {}, (), {}, {}, options, tuple(remarks), tuple(hints))


def _known(root: Path, listed: Sequence[str], *, series: bool) -> tuple[list[str], list[str], list[str]]:
    """Return the samples of files whose content has a known format, with remarks and hints on them and the others.

    Raises SourceError if none has one.
    """
    formats = dict(zip(listed, scan_files([root / path for path in listed], format_of) if listed else [], strict=True))
    chosen = [path for path, name in formats.items() if name in OPENERS and name != "png"]
    pairs = {path.removesuffix(".gz")[:-4] for path in chosen if path.lower().endswith((".hdr", ".hdr.gz"))}
    values = (".img", ".img.gz")
    others = [
        path
        for path, name in formats.items()
        if name is None and not (path.lower().endswith(values) and path.removesuffix(".gz")[:-4] in pairs)
    ]
    remarks = []
    if others:
        kinds = Counter(printable(os.path.splitext(path)[1].lower()) or "without a suffix" for path in others)
        shown = [f"{kind} {count}" for kind, count in kinds.most_common(_SHOWN)] + ["..."] * (len(kinds) > _SHOWN)
        remarks.append(f"left out {counted(len(others), 'file')} of no known format: {', '.join(shown)}")
    elsewhere = Counter(ELSEWHERE.get(name, IMAGE) for name in formats.values() if name in ELSEWHERE or name == "png")
    remarks += [f"left out {counted(count, 'file')}: each {said}" for said, count in elsewhere.items()]
    dicom = [path for path in chosen if formats[path] == "dicom"]
    uids = dict(zip(dicom, scan_files([root / path for path in dicom], series_of) if dicom else [], strict=True))
    hints = []
    if without := [path for path, uid in uids.items() if uid is None]:
        chosen = [path for path in chosen if path not in set(without)]
        told = "left out {} that {} no image, such as a DICOMDIR, an RTSTRUCT or a report; the first is {}"
        holds = "hold" if len(without) > 1 else "holds"
        hints.append(told.format(counted(len(without), "DICOM file"), holds, printable(root / without[0])))
    if not chosen:
        said = "".join(f"; {one}" for one in (*remarks, *hints))
        raise SourceError(f"{printable(root)} holds no files of arrays{said}")
    joined = _joined(chosen, {path: uid for path, uid in uids.items() if uid and series})
    hints += order_hints(map(_key, joined))
    if counts := [path.count(_NEXT) for path in joined if _NEXT in path]:
        told = "{} are {} DICOM series, of which each is a sample; {series:False} takes each file as one"
        hints.append(Message(told, counted(sum(counts), "file"), len(counts)))
    return joined, remarks, hints


def _joined(chosen: Sequence[str], uids: Mapping[str, str]) -> list[str]:
    """Return the paths of samples, in order, with the slices of one folder and one series, by their `uids`, joined.

    See `ArrayFolder.paths`.
    """
    of = {path: (os.path.dirname(path), uid) for path, uid in uids.items()}
    groups: dict[tuple[str, str], list[str]] = {}
    for path, series in of.items():
        groups.setdefault(series, []).append(path)
    alone = Counter(os.path.dirname(path) for path in chosen if path not in of) + Counter(
        folder for folder, _ in groups
    )
    found = []
    for path in chosen:
        files = groups[of[path]] if path in of else [path]
        if path == files[0]:
            folder = os.path.dirname(path)
            key = folder if folder and alone[folder] == 1 else path
            found.append(_NEXT.join([key, *files]) if len(files) > 1 else path)
    return found
