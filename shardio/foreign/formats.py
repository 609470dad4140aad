"""Detection of a file's format by its content."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import SourceError
from . import tfrecord
from .files import File, find_files
from .names import printable

_HDF5 = b"\x89HDF\r\n\x1a\n"
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"
_MOST_LOOKED_AT = 64


def format_of(paths: Sequence[str]) -> str:
    """Return the name of the converter that reads `paths`: `webdataset`, `tfrecord`, `lmdb` or `hdf5`.

    Args:
        paths: files, directories or patterns.

    Raises SourceError if no file is of a known format, or if their formats differ.
    """
    found: dict[str, str] = {}
    for given in paths:
        for path in find_files(given, lambda name: True, "files")[:_MOST_LOOKED_AT]:
            if (kind := _format(path)) is not None:
                found.setdefault(kind, printable(path))
    if not found:
        raise SourceError(f"{' '.join(map(printable, paths))}: found no tar, TFRecord, LMDB or HDF5 file")
    if len(found) > 1:
        formats = ", ".join(f"{path} is {kind}" for kind, path in found.items())
        raise SourceError(f"files must be of one format: {formats}; name it with --format")
    return next(iter(found))


def _format(path: Path) -> str | None:
    try:
        file = File(path)
    except OSError as error:
        raise SourceError(f"{printable(path)} cannot be read: {error.strerror or error}") from error
    head = file.read(0, 512)
    if head.startswith(_HDF5):
        return "hdf5"
    if _LMDB_MAGIC in head[16:32]:
        return "lmdb"
    if head[257:262] == b"ustar" or path.name.lower().endswith(".tar"):
        return "webdataset"
    return "tfrecord" if tfrecord.is_tfrecord_name(path.name) else None
