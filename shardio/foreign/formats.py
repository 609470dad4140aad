"""Files that shardio can read in place, found by their content, whatever their names are."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from ..containers.side_index import SUFFIX as INDEX_SUFFIX
from ..errors import Message, SourceError
from ..format.manifest import FILE_NAME, TABLE_NAME
from ..system import did_you_mean
from ..system.local_path import local_path
from . import tar, tfrecord, zarr
from .files import File, Sort, compression_of, find_files, left_out_files, part_remarks, peek, unreadable
from .locations import scan_files
from .names import Paths, printable

_HDF5 = b"\x89HDF\r\n\x1a\n"
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"
_HEAD = 512
_NETCDF3 = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_HDF5_SUFFIXES = (".h5", ".hdf5", ".he5")

WORDS = {"webdataset": "tar", "tfrecord": "TFRecord", "lmdb": "LMDB", "hdf5": "HDF5", "zarr": "Zarr"}
"""What the files of each format are called, by the name of the converter that reads them."""


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Files of one format.

    Attributes:
        kind: the name of the converter that reads them: `webdataset`, `tfrecord`, `lmdb`, `hdf5` or `zarr`.
        paths: the files, in order; of `lmdb` the paths that were given.
        remarks: a clause for each directory that also holds other files.
    """

    kind: str
    paths: tuple[str | Path, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    """The format of a file, None if it is none of those known, and how it is compressed, None if it is not."""

    kind: str | None
    compression: str | None = None


def find_by_content(given: Sequence[str], kind: str | None = None, on_error: str = "raise") -> FoundFiles:
    """Find the files that `given` names and that shardio can read in place.

    A directory is searched for files of a known format, and its other files are left out; a file that is named, or fits
    a pattern, is taken in any case. A name counts only where the content is of no known format, as of a damaged file.

    Args:
        given: files, directories or patterns.
        kind: the format; None for the one that the files have.
        on_error: `"skip"` leaves compressed files out, unless all are; a remark names them.

    Raises SourceError if no file is of a known format, if their formats differ, or if they are compressed.
    """
    # A shell's pattern names shardio's own indexes as well, which may be next to the files.
    given = [one for one in given if not one.endswith(INDEX_SUFFIX)] or given
    if kind in (None, "zarr") and (stores := zarr.find_stores(given)):
        return FoundFiles("zarr", tuple(stores), part_remarks(given, stores))
    taken: list[tuple[Path, _Content]] = []
    remarks: list[str] = []
    for one in given:
        files = find_files(one, lambda name: name not in (FILE_NAME, TABLE_NAME), "files")
        found = list(zip(files, scan_files(files, _content), strict=True))
        if local_path(one).is_dir():
            wanted = [(path, content) for path, content in found if content.kind and kind in (None, content.kind)]
            others = [path for path, content in found if content.kind is None or kind not in (None, content.kind)]
            found = wanted
            remarks += part_remarks(one, [path for path, _ in wanted])
            if others and wanted and wanted[0][1].kind != "lmdb":  # whose own files are several
                remarks.append(left_out_files(one, others, f"{WORDS[str(wanted[0][1].kind)]} files"))
        taken += found
    kinds = {content.kind: path for path, content in reversed(taken) if content.kind}
    if not (taken if kind else kinds):
        wanted_words = WORDS[kind] if kind else "tar, TFRecord, LMDB, HDF5 or Zarr"
        advice = did_you_mean.to_convert(map(local_path, given))
        raise SourceError(f"{' '.join(map(printable, given))}: found no {wanted_words} file{advice}")
    if kind is None and len(kinds) > 1:
        formats = ", ".join(f"{printable(path)} is {name}" for name, path in reversed(kinds.items()))
        raise SourceError("files must be of one format: {}; name it with {format}", formats)
    kind = kind or next(iter(kinds))
    compressed = [
        (path, content.compression) for path, content in taken if content.compression and content.kind == kind
    ]
    some = len(compressed) < len(taken)
    if compressed and not (some and on_error == "skip"):
        (path, compression), also = compressed[0], Message("; {on_error:skip} leaves it out") if some else ""
        raise SourceError("{} {}{}", printable(path), _why_not_in_place(compression, kind), also)
    for path, compression in compressed:
        remarks.append(f"left out {printable(path)}: it {_why_not_in_place(compression, kind)}")
    taken = [(path, content) for path, content in taken if path not in dict(compressed)]
    return FoundFiles(kind, tuple(given if kind == "lmdb" else [path for path, _ in taken]), tuple(remarks))


def find_hdf5(src: Paths, sort: Sort = "name") -> list[Path]:
    """Return the HDF5 files that `src` names, see `find_files`; of a directory, those that are so by their content.

    NetCDF's classic formats count as HDF5, as its later ones are.

    A name counts only where the content is of no known format, as of a damaged file.
    """
    files = find_files(src, lambda name: name not in (FILE_NAME, TABLE_NAME), "HDF5 files", sort)
    given = [src] if isinstance(src, (str, os.PathLike)) else src
    folders = {path.absolute() for one in given if (path := local_path(one)).is_dir()}
    listed = [path for path in files if path.parent in folders]
    contents = scan_files(listed, _content) if listed else []
    unknown = {path for path, found in zip(listed, contents, strict=True) if found != _Content("hdf5")}
    others = {path for path in unknown if not is_netcdf3(path)}
    if len(others) == len(files):
        raise SourceError(f"{', '.join(map(printable, sorted(folders)))}: holds no HDF5 files")
    return [path for path in files if path not in others]


def is_netcdf3(path: Path) -> bool:
    """Return whether a file is of one of NetCDF's classic formats; SourceError if it cannot be read."""
    try:
        return File(path).read(0, 4) in _NETCDF3
    except OSError as error:
        raise unreadable(path, error) from error


def _why_not_in_place(compression: str, kind: str) -> str:
    """Say that a file is compressed, and which command makes samples of it that go with those of other files."""
    reason = f"is a {WORDS[kind]} file compressed by {compression}, which cannot be read in place"
    same_fields = " SRC OUT --no-key" if kind == "webdataset" else ""
    return f"{reason}: unpack it, or convert it: shardio convert {kind}{same_fields}"


def _content(path: Path) -> _Content:
    try:
        file = File(path)
        head = file.read(0, _HEAD)
        kind = _kind(head) or ("hdf5" if _is_hdf5(file) else None)
    except OSError as error:
        raise unreadable(path, error) from error
    compression = None if kind else compression_of(head)
    if compression:
        kind = _kind(peek(path, compression, _HEAD))
    return _Content(kind or named_kind(path.name), compression)  # by its name what cannot be unpacked here, too


def _kind(head: bytes) -> str | None:
    """Return the format of a file by its first 512 bytes; None if they are of none that is known."""
    if head.startswith(_HDF5):
        return "hdf5"
    if _LMDB_MAGIC in head[16:32]:
        return "lmdb"
    if tfrecord.is_record_header(head):
        return "tfrecord"
    return "webdataset" if tar.is_header(head) else None


def named_kind(name: str) -> str | None:
    """Return the format that a file's name stands for; None for other names."""
    if name.lower().endswith(tar.SUFFIXES):
        return "webdataset"
    if name.lower().endswith(_HDF5_SUFFIXES):
        return "hdf5"
    return "tfrecord" if tfrecord.is_tfrecord_name(name) else None


def _is_hdf5(file: File) -> bool:
    """Return whether HDF5's signature stands where a user block may end: at byte 512, 1024, 2048 and so on."""
    ends = takewhile(lambda at: at < file.size, (512 << times for times in count()))
    return any(file.read(at, len(_HDF5)) == _HDF5 for at in ends)
