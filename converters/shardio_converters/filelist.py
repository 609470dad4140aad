"""Lists of files: CSV, TSV or JSON lines with a row for each sample, which holds its files' paths and other values."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, Message, Option, SourceError
from shardio.foreign import media, sound
from shardio.foreign.locations import scan_files
from shardio.foreign.names import field_name, printable
from shardio.foreign.string_array import StringArray
from shardio.foreign.text_tables import DELIMITERS, Column, TextTable
from shardio.source import (
    AnnotatedPixels,
    BoxFormat,
    Field,
    Sample,
    Source,
    check_index,
    listed_names,
    local_path,
    with_instances,
    with_optional,
)
from shardio.system import did_you_mean

from ._fields import choose_fields, evenly_spaced, field_of_files, rename_remarks
from ._files import file_size, read_file, read_image, read_images, read_listed
from ._sounds import read_sound, sound_field, sound_sizes
from ._source_base import DataclassSource

PATHS = ("path", "file", "file_name", "filename", "image")

_SNIFFED = 16  # files that tell a field
_TRIED = 100  # the first files, which are tried until these are found
_AT_ONCE = 4096  # file sizes that a thread asks for per task


def filelist(
    src: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    path: str | Mapping[str, str] | None = None,
    fields: str | Mapping[str, str] | None = None,
    delimiter: str | None = None,
    classes: str | Iterable[str] | None = None,
    optional: str | Collection[str] | None = None,
    rate: int | None = None,
    mono: bool = False,
    boxes: str | None = None,
    box_format: BoxFormat | None = None,
    annotations: AnnotatedPixels | None = None,
) -> Source:
    """A CSV, TSV or JSON lines file with a row for each sample: the paths of its files, and other values.

    Tables have a header. A column of integers becomes an int64 scalar, one of other numbers a float64 scalar, any other
    text. Only numbers in their usual form count as numbers: `007` and `+49` are text. JSON lines are objects with the
    same keys; where all rows hold booleans, numbers or strings, these become scalars or text, anything else becomes
    json. Files that begin like an image or a video become the field `image` or `video`; others, the field that their
    column is called if `path` names it, else `bytes`. The field `key` is the path as listed, unless a sample has
    several files. Paths may be absolute and may leave the root: shardio trusts the list that you name.

    Args:
        src: the list, a .csv, .tsv, .jsonl or .ndjson file; with `delimiter`, a table of any name.
        root: the folder that relative paths start from. Without it: the folder of the list.
        path: the column that holds the paths, or several columns and their fields, as in "image=photo,mask=mask"; a
            column without a field gives its own name. Without it: the first that exists of path, file, file_name,
            filename and image.
        fields: the other columns to take, with names for their fields, as in "label=species,width". Without it: all.
        delimiter: the character between the cells of a row; "\\t" is a tab. Without it: a comma or a tab, by the
            suffix.
        classes: the class names in the order of their labels, a list or text such as "cat,dog", or "auto" for the
            sorted texts of the field label, or else class. Texts in that field become numbers, and it is called label.
            With `boxes`: the list names the labels of boxes.
        optional: the fields that rows may lack, by an empty cell, or in JSON lines by null or no key.
        rate: the samples per second of sounds: wav, flac, ogg, opus, mp3 and m4a files, which then become the field
            `audio` of int16 arrays `[n]` or `[n, channels]`; without it they stay bytes. FFmpeg resamples them.
        mono: mix the channels of sounds to one.
        boxes: the field that states boxes on the image, as JSON: a list of objects, an object of lists, or a list of
            boxes. Boxes, labels and other numbers per box become fields.
        box_format: the numbers of a box: `xywh` (left, top, width, height), as in COCO; `xyxy` (left, top, right,
            bottom); `cxcywh` (center, width, height); `cxcywhn`, the same divided by the image's width and height.
        annotations: which pixels are annotated where an EXIF tag rotates or flips an image: those that viewers show,
            `upright`, or the `stored` ones. Without it those of the fields `height` and `width`, if there are such; an
            image that has the same size either way is a bad sample.

    Example:
        shardio convert filelist train.csv data/train --root photos --classes auto
        shardio convert filelist train.txt data/train --delimiter ";" --path name
        shardio convert filelist pairs.jsonl data/pairs --path image=photo,mask=mask --fields width,height --mask mask
        shardio convert filelist train.csv data/few --root photos --classes auto --where "label < 2"
        shardio convert filelist words.csv data/words --rate 16000 --mono
        shardio convert filelist boxes.jsonl data/boxes --boxes objects --box-format xywh --annotations stored

    Raises:
        SourceError: the list cannot be read, or a row differs from the others; the message names the line.
        ConfigError: a column does not exist, two fields would have the same name, or `classes` do not fit the labels.
    """
    table = open_table(local_path(src).absolute(), delimiter)
    folder = table.path.parent if root is None else Path(root).absolute()
    if not folder.is_dir():
        raise SourceError("{root} must be a folder, got {}", printable(folder))
    names = table.names()
    wanted = usual_column(table, names) if path is None else path
    alone = isinstance(wanted, str) and wanted in names  # one column, and no word of what to call its field
    only = field_name(path) if isinstance(path, str) and alone and path not in PATHS else "bytes"
    chosen = choose_fields({"file": str(wanted)} if alone else wanted, names, table)
    rest = [name for name in names if name not in chosen.values()]
    others = choose_fields(fields, rest, table) if rest or fields is not None else {}
    lacked = listed_names(optional)
    if alone and not {"image", "video", "audio", only}.isdisjoint(lacked):
        lacked.append("file")
    lacking = [name for field, name in (chosen | others).items() if field in lacked]
    texts, columns = table.read(chosen.values(), others.values(), lacking, all_columns=fields is None)
    paths = {name: texts[own] for name, own in chosen.items()}
    if mono and rate is None:
        raise ConfigError(Message("{mono} goes with {rate}"))
    files = {name: _field(folder, listed, rate, mono=mono) for name, listed in paths.items()}
    if rate is not None and not any("rate" in (field.attributes or {}) for field in files.values()):
        raise ConfigError(Message("{rate} decodes sounds, and the files of this list are none"))
    if alone:
        name = {"bytes": only, "array": "audio"}.get(files["file"].kind, files["file"].kind)
        files, paths = {name: files["file"]}, {name: paths["file"]}
    if boxes is not None and classes == "auto":
        raise ConfigError("with {boxes}, {classes} must be the names of labels, got {!r}", classes)
    taken = {name: columns[own] for name, own in others.items()}
    labels: tuple[str, ...] = ()
    if classes is not None and boxes is None:
        taken, labels = _with_labels(taken, classes, table)
    fields_of = files | {name: column.field for name, column in taken.items()}
    # With boxes, `optional` may name fields that are made of them.
    fields_of = with_optional(fields_of, [n for n in listed_names(optional) if boxes is None or n in fields_of])
    files = {name: fields_of[name] for name in files}
    taken = {name: replace(column, field=fields_of[name]) for name, column in taken.items()}
    if both := files.keys() & taken.keys():
        raise ConfigError(f"{table}: two columns would be the field {min(both)!r}; rename one with path or fields")
    remarks = (*(() if alone else rename_remarks(wanted, chosen)), *rename_remarks(fields, others))
    found = FileList(folder, paths, taken, labels, files, remarks, _hints(files, paths))
    return with_instances(found, boxes, box_format, annotations, classes=() if boxes is None else listed_names(classes))


@dataclass(frozen=True, eq=False)
class ListedFiles(DataclassSource):
    """The base of sources with one or several files, and other values, in each sample.

    Attributes:
        root: the folder that relative paths start from.
        paths: the path of the file in each sample, by field.
        columns: the other values, by field.
        classes: the class names, where they are known.
    """

    root: Path
    paths: Mapping[str, StringArray]
    columns: Mapping[str, Column]
    classes: tuple[str, ...] | Mapping[str, Any]

    @property
    def _count(self) -> int:
        return len(next(iter(self.paths.values())))

    @cached_property
    def _has_key(self) -> bool:
        return len(self.paths) == 1 and "key" not in {**self.paths, **self.columns}

    def _key(self, index: int) -> str:
        return printable(next(iter(self.paths.values()))[index])

    @property
    def _other_fields(self) -> dict[str, Field]:
        """The other values, and `key`, the path as listed, if each sample has one file."""
        key = {"key": Field("text")} if self._has_key else {}
        return {**{name: column.field for name, column in self.columns.items()}, **key}

    def _others(self, index: int) -> Sample:
        found = {name: column[index] for name, column in self.columns.items()}
        if self._has_key:
            found["key"] = self._key(index)
        return found

    def column(self, name: str) -> NDArray[Any] | list[str] | None:
        """See `Source.column`: keys and the other values."""
        if name == "key" and self._has_key:
            return list(map(self._key, range(self._count)))
        column = self.columns.get(name)
        return None if column is None else column.all()


@dataclass(frozen=True, eq=False)
class ImageFiles(ListedFiles):
    """The base of sources with one image file in each sample, `image`. Paths have forward slashes.

    Attributes:
        file_sizes: the bytes of each file, `[n]`; 0 for one that is missing.
    """

    file_sizes: NDArray[np.int64]
    threads = True

    @property
    def fields(self) -> Mapping[str, Field]:
        """`image`, the other values, and `key`, the path below the root."""
        return {"image": Field("image"), **self._other_fields}

    def sizes(self) -> NDArray[np.int64]:
        return self.file_sizes

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        return {"image": read_image(f"{self.root}/{self.paths['image'][index]}"), **self._others(index)}

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """See `Source.block`."""
        indices = numbers.tolist()
        paths = [f"{self.root}/{self.paths['image'][index]}" for index in indices]
        for index, data in zip(indices, read_images(paths, self.file_sizes[numbers]), strict=True):
            try:
                yield data if isinstance(data, BadSample) else {"image": data, **self._others(index)}
            except BadSample as error:
                yield error


def file_sizes(root: Path, paths: StringArray) -> NDArray[np.int64]:
    """Return the bytes of files, `[n]`, 0 for those that are missing; threads ask the file system."""

    def sizes(start: int) -> list[int]:
        rows = range(start, min(start + _AT_ONCE, len(paths)))
        return [file_size(os.path.join(root, paths[row])) for row in rows]

    return np.concatenate([np.zeros(0, np.int64), *scan_files(range(0, len(paths), _AT_ONCE), sizes)])


@final
@dataclass(frozen=True, eq=False)
class FileList(ListedFiles):
    """The rows of a list, or the files of class folders. It pickles as columns: a worker needs no list.

    Attributes:
        file_fields: the fields that hold files: of kind `image`, `video` or `bytes`, or arrays of sounds.
        source: the converter.
    """

    file_fields: Mapping[str, Field]
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source: str = "filelist"
    threads = True

    @property
    def fields(self) -> Mapping[str, Field]:
        return {**self.file_fields, **self._other_fields}

    def sizes(self) -> NDArray[np.int64]:
        """Return the files' sizes in bytes, `[n]`, 0 for missing files; read from the file system once."""
        return self._sizes

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        found = [file_sizes(self.root, paths) for paths in self.paths.values()]
        found = [
            sound_sizes(self.root, self.paths[name], sizes, field) if field.kind == "array" else sizes
            for (name, field), sizes in zip(self.file_fields.items(), found, strict=True)
        ]
        total: NDArray[np.int64] = np.sum(found, axis=0, dtype=np.int64)
        return total

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._count)
        sample: dict[str, Any] = {}
        for name, field in self.file_fields.items():
            path = self.paths[name][index]
            sample[name] = None if field.optional and not path else self._read(path, field)
        return {**sample, **self._others(index)}

    def _read(self, path: str, field: Field) -> Any:
        if field.kind == "array":
            return read_sound(os.path.join(self.root, path), field)
        return read_listed(self.root, path, field)

    @property
    def changes(self) -> Mapping[str, Any]:
        """The build of FFmpeg that decodes sounds, where there are some."""
        sounds = any(field.kind == "array" for field in self.file_fields.values())
        return {"sounds": media.build("libavcodec", "libswresample")} if sounds else {}


def _hints(files: Mapping[str, Field], paths: Mapping[str, StringArray]) -> tuple[str, ...]:
    """Return a hint for each field of bytes whose first file holds an array or sound, by its name."""
    hints = list[str]()
    for name, field in files.items():
        first = next(iter(paths[name]), "") if field.kind == "bytes" else ""
        told = f"{printable(first)} and other files are taken as bytes, field {name!r}"
        if did_you_mean.are_arrays(first):
            hints.append(f"{told}: `shardio convert arrayfolder` takes the same list and makes arrays of them")
        elif did_you_mean.are_sounds(first):
            hints.append(Message("{}: {} decodes sounds, for windows of them", told, Option("rate", 16000)))
    return tuple(hints)


def usual_column(table: TextTable, names: Sequence[str]) -> str:
    """Return the first column of paths by its usual names; ConfigError if there is none."""
    found = next((name for name in PATHS if name in names), None)
    if found is None:
        raise ConfigError(f"{table} has no column {', '.join(PATHS)}; choose with path among {', '.join(names)}")
    return found


def open_table(path: Path, delimiter: str | None) -> TextTable:
    """Return a table by its suffix, or by its delimiter; SourceError if there is no such file."""
    if not path.is_file():  # a pipe, such as a shell's <(...), can be read only once
        missing = f"missing{did_you_mean.near_path(path)}"
        raise SourceError(f"{printable(path)} is {'not a file' if path.exists() else missing}")
    suffix = path.suffix.lower()
    if delimiter is None:
        if suffix not in DELIMITERS:
            raise ConfigError(f"{printable(path)} must end in {', '.join(DELIMITERS)}, or a delimiter must be given")
        return TextTable(path, DELIMITERS[suffix])
    one = "\t" if delimiter == "\\t" else delimiter
    if len(one) != 1 or one in '\r\n"':
        raise ConfigError(
            f"a delimiter must be one character other than a quote or the end of a line, got {delimiter!r}"
        )
    return TextTable(path, one)


def _with_labels(
    columns: Mapping[str, Column], classes: str | Iterable[str], table: TextTable
) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Return the columns, with labels as numbers, and the class names."""
    own = next((name for name in ("label", "class") if name in columns), None)
    if own is None:
        raise ConfigError("{classes} need a field label or class; the fields are {}", ", ".join(columns) or "none")
    values, kind = columns[own].values, columns[own].field
    if kind.kind != "text" and (kind.dtype != "int64" or classes == "auto"):
        raise ConfigError("{} do not fit {!r}, which is {}", Option("classes", classes), own, kind.dtype or kind.kind)
    if classes == "auto":
        known = sorted(set(values) - {""})
    else:
        known = [name.strip() for name in (classes.split(",") if isinstance(classes, str) else classes)]
    numbers = {name: number for number, name in enumerate(known)}
    if len(numbers) < len(known):
        raise ConfigError("{classes} must differ, got {}", ", ".join(known))
    texts = (numbers.get(text, -1) for text in values)
    labels = np.fromiter(texts, np.int64, len(values)) if isinstance(values, StringArray) else values
    missing = columns[own].missing
    outside = ((labels < 0) | (labels >= len(known))) & (True if missing is None else ~missing)
    if outside.any():
        row = int(outside.argmax())
        told = f"{', '.join(known[:20])}{', ...' if len(known) > 20 else ''}"
        raise SourceError(
            f"{table}, line {table.line(row)}: {columns[own][row]!r} is none of {len(known)} classes: {told}"
        )
    changed = Column(Field("scalar", dtype="int64"), labels, missing=missing)
    return {"label" if n == own else n: changed if n == own else c for n, c in columns.items()}, tuple(known)


def _field(root: Path, paths: StringArray, rate: int | None, *, mono: bool) -> Field:
    """Return the field that fits some files throughout or, if they are missing or empty, the first that are not.

    With a rate, sounds are arrays of samples.
    """
    heads: list[bytes] = []
    for row in dict.fromkeys([*evenly_spaced(len(paths), _SNIFFED), *range(min(_TRIED, len(paths)))]):
        with suppress(BadSample):
            heads += [head] if (head := read_file(os.fspath(root / paths[row]), 64)) else []
        if len(heads) == _SNIFFED:
            break
    found = field_of_files(heads)
    if rate is None or found.kind != "bytes" or not any(media.format_of(head, sound.DEMUXERS) for head in heads):
        return found
    return sound_field([os.path.join(root, paths[row]) for row in range(min(_TRIED, len(paths)))], rate, mono=mono)[0]
