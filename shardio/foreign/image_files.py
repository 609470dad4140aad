"""Reading of complete image files, one by one or many in one call."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample
from ..native import library
from ..native.files import read_files
from .names import printable

_MOST_IMAGE = 2**31 - 1  # bytes: OpenCV takes no more, and a file of zeros could take all memory
_TOGETHER = 16 << 20  # bytes of files that are read at once


def check_image_size(size: int, path: str | Path) -> None:
    """Raise BadSample, naming the file, if it has more bytes than any image that can be decoded."""
    if size > _MOST_IMAGE:
        raise BadSample(f"{printable(path)}: has {size} bytes, an image file has at most {_MOST_IMAGE}")


def read_image(path: str) -> bytes:
    """Read a complete file; BadSample, naming it, if it cannot be read or is too large for an image."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise BadSample(f"{printable(path)}: is not a file")
            size = found.st_size
            check_image_size(size, path)
            data = os.read(descriptor, size + 1)
            # One read returns at most 2 GiB, and the file may have shrunk; mostly it is enough.
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BadSample(f"{printable(path)}: cannot be read: {error.strerror}") from error
    return data


def read_images(paths: Sequence[str], sizes: NDArray[np.int64]) -> Iterator[bytes | BadSample]:
    """Read complete files as `read_image` does, and yield the content of each or the error that it raises.

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
                yield read_image(paths[number]) if data is None else bytes(data)
            except BadSample as error:
                yield error
        start = stop
