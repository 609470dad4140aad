"""What converters share: which fields are taken and what they are called, files named in errors."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError
from shardio.foreign.names import field_name, shown
from shardio.format import images
from shardio.format.fields import Field
from shardio.native import library
from shardio.native.files import read_files

_MOST_IMAGE = 2**31 - 1  # bytes: OpenCV takes no more, and a file of zeros could take all memory
_TOGETHER = 16 << 20  # bytes of files that are read at once


def choose(given: str | Mapping[str, str] | None, available: Iterable[str], place: object) -> dict[str, str]:
    """Which of a source's own names become which fields, in order: `{field: own name}`.

    Args:
        given: `{field: own name}`, or text such as `"image=data/images,label"`, where a name without `=` is both. All
            that are available without it.
        available: the source's own names.
        place: the source, for messages.

    Raises ConfigError for a name that the source does not have, or one field given twice.
    """
    known = list(available)
    if given is None:
        pairs = [(field_name(name), name) for name in known]
    elif isinstance(given, str):
        parts = [part.strip() for part in given.split(",") if part.strip()]
        pairs = [_pair(part, known) for part in parts]
    else:
        pairs = list(given.items())
    chosen: dict[str, str] = {}
    for field, name in pairs:
        if name not in known:
            raise ConfigError(f"{place} has no {name!r}; there are {', '.join(known) or 'none'}")
        if field in chosen:
            raise ConfigError(f"{place}: {chosen[field]!r} and {name!r} would both be the field {field!r}; rename one")
        chosen[field] = name
    if not chosen:
        raise ConfigError(f"fields must name at least one of {', '.join(known)}, got {given!r}")
    return chosen


def _pair(part: str, known: list[str]) -> tuple[str, str]:
    if part in known:  # a name may hold an equals sign itself
        return field_name(part), part
    field, equals, name = part.partition("=")
    return (field.strip(), name.strip()) if equals else (field_name(part), part)


def check_image_size(size: int, path: str | Path) -> None:
    """BadSample, naming the file, if it has more bytes than an image that can be decoded."""
    if size > _MOST_IMAGE:
        raise BadSample(f"{shown(path)}: has {size} bytes, an image file has at most {_MOST_IMAGE}")


def read_image(path: str) -> bytes:
    """A whole file; BadSample, naming it, if it cannot be read, or is too large for an image."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise BadSample(f"{shown(path)}: is no file")
            size = found.st_size
            check_image_size(size, path)
            data = os.read(descriptor, size + 1)
            # A read gives at most 2 GiB, and a file may have grown; mostly this is all.
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BadSample(f"{shown(path)}: cannot be read: {error.strerror}") from error
    return data


def read_images(paths: Sequence[str], sizes: NDArray[np.int64]) -> Iterator[bytes | BadSample]:
    """Whole files as by `read_image`, or what that raises; read together, which keeps threads from waiting in turns.

    Args:
        paths: the files.
        sizes: about how many bytes each has, int64 [n].
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


def check_index(index: int, count: int) -> None:
    """IndexError unless `index` is in [0, count)."""
    if not 0 <= index < count:
        raise IndexError(f"index must be in [0, {count}), got {index}")


def sniffed(values: Iterable[bytes]) -> Field:
    """A field of images if the first of `values` that isn't empty begins like one, otherwise of bytes."""
    first = next((value for value in values if len(value)), b"")
    return Field("image" if images.sniff(first) else "bytes")


def spread(count: int, most: int = 100) -> list[int]:
    """At most `most` of `count` rows, evenly spaced: a sample to estimate sizes from."""
    rows: list[int] = np.linspace(0, count - 1, min(count, most)).astype(np.int64).tolist()
    return rows


def utf8(data: bytes) -> str:
    """`data` as text; BadSample if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadSample(f"not UTF-8: {error}") from error


class Closes(Protocol):
    """What can be closed, such as a file."""

    def close(self) -> None:
        """Lets go of it."""


_T = TypeVar("_T", bound=Closes)


@final
class OneOpen(Generic[_T]):
    """Numbered files of which one is open at a time, in each process anew: a fork's child uses nothing inherited."""

    def __init__(self, opens: Callable[[int], _T]) -> None:
        self._opens = opens
        self._open: _T | None = None
        self._key = (0, -1)

    def get(self, number: int) -> _T:
        """File `number`; the one before is closed."""
        if self._open is None or self._key != (os.getpid(), number):
            if self._open is not None:
                self._open.close()
                self._open = None  # in case the next one does not open
            self._open = self._opens(number)
            self._key = (os.getpid(), number)
        return self._open
