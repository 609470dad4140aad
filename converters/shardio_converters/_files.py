"""Whole files: images, files that a list or a table names, and indexes in JSON."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.foreign.names import bad_samples_at, printable, source_errors
from shardio.native import library
from shardio.native.rows import read_files
from shardio.source import Field, check_image
from shardio.system import strict_json
from shardio.system.regular_files import open_regular

_MOST_IMAGE = 2**31 - 1  # bytes: OpenCV takes no more, and a file of zeros could take all memory
_TOGETHER = 16 << 20  # bytes of files that are read at once


def file_size(path: str | Path) -> int:
    """Return the bytes of a file; 0 for one that is missing."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return 0


def read_image(path: str) -> bytes:
    """Return a whole file; BadSample, naming it, if it cannot be read or is too large for an image."""
    return read_file(path, image=True)


def read_listed(root: Path, path: str, field: Field) -> bytes:
    """The file at `path`, which may be absolute or leave `root`; BadSample if it cannot be read, or is no image."""
    place = os.path.join(root, path)  # which leaves the two slashes of a URL
    data = read_file(place, image=field.kind == "image")
    if field.kind == "image":
        with bad_samples_at(printable(place)):
            check_image(data)
    return data


def read_images(paths: Sequence[str], sizes: NDArray[np.int64]) -> Iterator[bytes | BadSample]:
    """Read whole files as `read_image` does, and yield the content of each or the error that it raises.

    Small files are read together in one call without the GIL, so that threads do not queue for it after each file.

    Args:
        paths: the files.
        sizes: about how many bytes each has, int64 `[n]`.
    """
    start = 0
    while start < len(paths):
        stop = start + max(1, int(np.searchsorted(np.cumsum(sizes[start:]), _TOGETHER)))
        small = library() is not None and int(sizes[start:stop].sum()) <= _TOGETHER
        found = read_files([os.fsencode(path) for path in paths[start:stop]], sizes[start:stop]) if small else ()
        for number in range(start, stop):
            data = found[number - start] if found else None
            try:
                # An empty one may be a pipe, which is refused by name.
                yield bytes(data) if data else read_image(paths[number])
            except BadSample as error:
                yield error
        start = stop


def read_file(path: str, most: int | None = None, *, image: bool = False) -> bytes:
    """A file, or its first `most` bytes; BadSample, naming it, if it cannot be read, or is too large for an image."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            if image and size > _MOST_IMAGE:
                raise BadSample(f"{printable(path)}: has {size} bytes, an image file has at most {_MOST_IMAGE}")
            wanted = size if most is None else min(most, size)
            data = os.read(descriptor, wanted)
            # One read returns at most 2 GiB, and the file may have shrunk; mostly it is enough.
            while len(data) < wanted and (more := os.read(descriptor, wanted - len(data))):
                data += more
        finally:
            os.close(descriptor)
    except OSError as error:
        advice = _of_no_file(path) if error.errno == errno.ENOENT else ""
        raise BadSample(f"{printable(path)}: cannot be read: {error.strerror}{advice}") from error
    except ValueError as error:
        raise BadSample(f"{printable(path)!r}: not a valid path: {error}") from error
    return data


def _of_no_file(path: str) -> str:
    """Return the end of a message on a missing file whose name in a list is no path of this system."""
    if "://" in path:
        return "; it is a URL: download the files first, and list their paths"
    return "; paths have slashes here, no backslashes" if "\\" in path else ""


def read_source(path: Path) -> bytes:
    """Return a whole file of a source; SourceError if it cannot be read."""
    with source_errors(path), open(path, "rb", opener=open_regular) as file:
        return file.read()


def parse_json(text: bytes | str, *, nan: bool = True) -> Any:
    """Return the value of a JSON text, which may begin with a byte order mark and, with `nan`, hold NaN and infinities.

    Raises ValueError for anything else that is not JSON in UTF-8, for a key that occurs twice in one object, and
    nesting too deep for Python.
    """
    return strict_json.parse(text, foreign=True, nan=nan)


def read_json(path: Path) -> Any:
    with source_errors(path, ValueError):
        return parse_json(strict_json.read_bytes(path))


def plain_name(name: Any) -> str:
    """Return a file's name in an index; ValueError for a path, which would lead out of the directory."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"a file called {name!r}")
    return name
