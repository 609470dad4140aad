"""Folders and tables of files that each hold an array: TIFF, PNG of 16 bits, NIfTI, DICOM, FITS, MATLAB and .npy."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, Message, SourceError
from shardio.foreign.files import Sort, find_files, order_hints, order_key
from shardio.foreign.locations import scan_files
from shardio.foreign.names import Paths, bad_samples_at, printable
from shardio.source import Field, Sample, check_index, listed_names, local_path, with_optional
from shardio.system.units import counted

from ._array_formats import ELSEWHERE, IMAGE, OPENERS, format_of, open_array
from ._class_folders import find_class_folders
from ._fields import array_field, evenly_spaced, readable, shape_of_all, unheld
from ._files import file_size
from ._opened_array import OpenedArray, ReadOptions
from ._source_base import DataclassSource
from ._string_array import StringArray
from ._text_tables import Column
from .filelist import DELIMITERS, filelist, open_table, usual_column

_PROBED = 24  # files whose headers decide the fields
_SHOWN = 5  # the most kinds of files that a message names


def arrayfolder(
    src: Paths,
    *,
    field: str = "array",
    label: bool = True,
    sort: Sort = "name",
    root: str | os.PathLike[str] | None = None,
    path: str | Mapping[str, str] | None = None,
    fields: str | Mapping[str, str] | None = None,
    delimiter: str | None = None,
    classes: str | Iterable[str] | None = None,
    optional: str | Collection[str] | None = None,
) -> "ArrayFolder":
    """Files that each hold an array, in a folder or listed in a table: TIFF, PNG of 16 bits and .npy.

    Takes a folder, a pattern such as "scans/*.tif" (quote it), or a table, as the converter `filelist` does. Files are
    told by their content, whatever their names are, and gzip may compress them. Of a folder, those of no such format
    are left out, and a note counts them. If it holds folders, these are the classes, as `imagefolder` has them: a
    class's place among their sorted names is its label. The values stay as they are, with their dtype, in native byte
    order: nothing is cut off at 8 bits. The field `key` is the path.

    A TIFF gives its first series of pages, in the order of axes that tifffile finds: one page [height, width], several
    of one shape [pages, height, width], colours last, tiles put together, hyperstacks of ImageJ and OME with all their
    axes. Nothing is read from other files that OME's metadata may name. Compressed TIFFs need imagecodecs.

    Some files throughout decide the shape and the dtype. Where shapes differ, arrays have any shape, or any length
    along the first axis.

    Args:
        src: the folder, the pattern or the table; in Python also a list of files.
        field: what to call the field of the arrays; of a table, `path` may name several.
        label: take the folders in `src` as classes; without it their files are samples without a label.
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
        shardio convert arrayfolder scans.csv data/listed --root scans --classes auto

    Raises:
        SourceError: `src` cannot be read or holds no such file, none can be read, or no field holds their arrays.
        ConfigError: options of tables are given for a folder, or do not fit the table; see `filelist`.
        MissingDependency: a library that reads such files is not installed.
    """
    options = ReadOptions()
    lacked = listed_names(optional)
    of_tables = {"root": root, "path": path, "fields": fields, "delimiter": delimiter, "classes": classes}
    one = src if isinstance(src, (str, os.PathLike)) else None
    if one is not None and (delimiter is not None or os.fspath(one).lower().endswith(tuple(DELIMITERS))):
        table = open_table(local_path(one).absolute(), delimiter)
        names = table.names()
        wanted = usual_column(table, names) if path is None else path
        wanted = {field: wanted} if isinstance(wanted, str) and wanted in names else wanted
        rows = filelist(
            one, root=root, path=wanted, fields=fields, delimiter=delimiter, classes=classes, optional=lacked
        )
        remarks = tuple(remark for remark in rows.remarks if path is not None or f"field {field!r}" not in remark)
        found = ArrayFolder(rows.root, rows.paths, {}, rows.columns, rows.classes, options, remarks)
        return _with_fields(found, [name for name, kind in rows.files.items() if kind.optional])
    if given := [name for name, value in of_tables.items() if value is not None] + ["optional"] * bool(lacked):
        raise ConfigError("{} goes with a table ({}), not with {}", given[0], ", ".join(DELIMITERS), printable(src))
    if one is not None and (folder := local_path(one).absolute()).is_dir():
        found = _in_folder(folder, field, label=label, sort=sort, options=options)
    else:
        found = _matching(src, field, sort, options)
    return _with_fields(found, ())


@final
@dataclass(frozen=True, eq=False)
class ArrayFolder(DataclassSource):
    """Files of arrays, by number. It pickles as paths and columns.

    Attributes:
        root: the folder that relative paths start from.
        paths: the path of the file in each sample, by field.
        arrays: the fields of the arrays.
        columns: the other values, by field.
        classes: the class names, where they are known.
        options: what to read of each file.
    """

    root: Path
    paths: Mapping[str, StringArray]
    arrays: Mapping[str, Field]
    columns: Mapping[str, Column]
    classes: tuple[str, ...]
    options: ReadOptions
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "arrayfolder"
    plain_values = True

    @property
    def _keys(self) -> StringArray:
        return next(iter(self.paths.values()))

    @property
    def _has_key(self) -> bool:
        return len(self.paths) == 1 and "key" not in {**self.arrays, **self.columns}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The arrays, the other columns, and `key`, the path, if each sample has one file."""
        key = {"key": Field("text")} if self._has_key else {}
        return {**self.arrays, **{name: column.field for name, column in self.columns.items()}, **key}

    @property
    def changes(self) -> Mapping[str, Any]:
        """The options that change the samples, as JSON values for the conversion's plan, which `--resume` compares."""
        return self.options.given()

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample's arrays if they have one shape, else of its files; 0 for missing ones; `[n]`."""
        return self._sizes

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        total = np.zeros(len(self._keys), np.int64)
        for name, paths in self.paths.items():
            if self.arrays[name].fixed:
                total += self.arrays[name].row_bytes
            else:
                total += np.array(scan_files([self.root / path for path in paths], file_size), np.int64)
        return total

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self._keys))
        sample: dict[str, Any] = {}
        for name, paths in self.paths.items():
            if self.arrays[name].optional and not paths[index]:
                sample[name] = None
                continue
            with bad_samples_at(printable(self.root / paths[index])):
                sample[name] = self.opened(name, index).values()
        sample |= {name: column[index] for name, column in self.columns.items()}
        return {**sample, "key": printable(self._keys[index])} if self._has_key else sample

    def opened(self, name: str, index: int) -> OpenedArray:
        """Read the header of one sample's file; BadSample, without its path, if it holds no array."""
        return open_array(self.root / self.paths[name][index], self.options)

    def column(self, name: str) -> NDArray[Any] | list[str] | None:
        """See `shardio.source.HasColumns`: labels, keys and columns of the table."""
        if name == "key" and self._has_key:
            return list(map(printable, self._keys))
        column = self.columns.get(name)
        return None if column is None else column.all()


def _with_fields(source: ArrayFolder, lacked: Collection[str]) -> ArrayFolder:
    """The source with the fields of its arrays, which some files throughout decide, and hints on what these hold."""
    arrays: dict[str, Field] = {}
    hints = dict.fromkeys(source.hints)
    for name, paths in source.paths.items():
        there = [number for number, path in enumerate(paths) if path or name not in lacked]
        numbers = [there[at] for at in evenly_spaced(len(there), _PROBED)]
        arrays[name] = _field(source, name, numbers, hints)
    if clash := arrays.keys() & source.columns.keys():
        raise ConfigError("two columns would be the field {!r}; rename one with {field}, path or fields", min(clash))
    return replace(source, arrays=with_optional(arrays, lacked), hints=tuple(hints))


def _field(source: ArrayFolder, name: str, numbers: Sequence[int], hints: dict[str, None]) -> Field:
    """The field of the arrays of these samples; what is to be told of them is added to `hints`."""

    def opened(number: int) -> OpenedArray:
        with bad_samples_at(printable(source.root / source.paths[name][number])):
            return source.opened(name, number)

    found = readable(numbers, opened, "file of an array")
    if not found:
        raise SourceError(f"{printable(source.root)}: no sample has a file for the field {name!r}")
    places = {number: printable(source.root / source.paths[name][number]) for number, _ in found}
    dtypes = {one.dtype: number for number, one in reversed(found)}
    for number, one in found:
        if array_field(one.dtype, ()) is None:
            raise SourceError(f"{places[number]}: {unheld(one.dtype, one.shape)}")
    notes = {note: number for number, one in reversed(found) for note in one.notes}
    hints |= dict.fromkeys(f"{places[number]}: {note}" for note, number in reversed(notes.items()))
    dtype = np.result_type(*dtypes)
    if len(dtypes) > 1:
        kinds = ", ".join(f"{places[number]} is {kind}" for kind, number in reversed(dtypes.items()))
        hints[f"files differ in their dtype, {kinds}: all are stored as {dtype}"] = None
    shape = shape_of_all(one.shape for _, one in found)
    try:
        return Field("array", dtype=dtype.name, shape=shape)
    except ConfigError as error:
        raise SourceError(f"{places[found[0][0]]}: {error}") from error


def _in_folder(root: Path, field: str, *, label: bool, sort: Sort, options: ReadOptions) -> ArrayFolder:
    """The files in a folder, or in its class folders."""
    key = order_key(sort)
    folder = find_class_folders(root, ("",), key, "files of arrays")
    by_class = [[path for path, _ in files] for files in folder.files]
    beside = [path for path, _ in folder.beside]
    with_classes = label and bool(by_class)
    listed = [path for files in by_class for path in files]
    listed = listed if with_classes else sorted(beside + listed, key=key)
    chosen, remarks = _known(root, listed)
    if with_classes and beside:
        remarks.append(f"left out {len(beside)} files beside the class folders, of no class")
    column: dict[str, Column] = {}
    names: tuple[str, ...] = ()
    if with_classes:
        numbers = {name: number for number, name in enumerate(folder.classes)}
        labels = np.array([numbers[path.partition("/")[0]] for path in chosen], np.int64)
        column, names = {"label": Column(Field("scalar", dtype="int64"), labels)}, tuple(map(printable, folder.classes))
    hints: tuple[str, ...] = order_hints(chosen)
    if with_classes and len(chosen) == len(names) > 1:
        hints += (
            Message("each folder holds one sample, so that each is a class of its own; {label:False} takes none"),
        )
    return ArrayFolder(root, {field: StringArray(chosen)}, {}, column, names, options, tuple(remarks), hints)


def _matching(src: Paths, field: str, sort: Sort, options: ReadOptions) -> ArrayFolder:
    """The files that fit a pattern, or are listed."""
    files = find_files(src, lambda name: True, "files of arrays", sort)
    root = Path(os.path.commonpath([path.parent for path in files]))
    chosen, remarks = _known(root, [str(path.relative_to(root)) for path in files])
    hints = order_hints(chosen)
    return ArrayFolder(root, {field: StringArray(chosen)}, {}, {}, (), options, tuple(remarks), hints)


def _known(root: Path, listed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those files that are of a known format by their content, and remarks on the others; SourceError if none is."""
    formats = scan_files([root / path for path in listed], format_of) if listed else []
    chosen = [path for path, name in zip(listed, formats, strict=True) if name in OPENERS and name != "png"]
    remarks = []
    elsewhere = Counter(name for name in formats if name in ELSEWHERE or name == "png")
    if others := len(listed) - len(chosen) - elsewhere.total():
        kinds = Counter(
            printable(os.path.splitext(path)[1].lower()) or "without a suffix"
            for path, name in zip(listed, formats, strict=True)
            if name is None
        )
        shown = [f"{kind} {count}" for kind, count in kinds.most_common(_SHOWN)] + ["..."] * (len(kinds) > _SHOWN)
        remarks.append(f"left out {counted(others, 'file')} of no known format: {', '.join(shown)}")
    for name, count in elsewhere.items():
        remarks.append(f"left out {counted(count, 'file')}: each {ELSEWHERE.get(str(name), IMAGE)}")
    if not chosen:
        raise SourceError(f"{printable(root)} holds no files of arrays{'; ' if remarks else ''}{'; '.join(remarks)}")
    return chosen, remarks
