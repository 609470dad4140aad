"""Safe forms of names that others chose: of fields, and of files in error messages."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from ..errors import BadSample, SourceError
from ..system import os_errors

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path or a pattern, or several."""

_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


def field_name(name: str) -> str:
    """Return a valid field name for any name: `image/encoded` becomes `image.encoded`, `a b` becomes `a_b`."""
    return _OTHER.sub("_", name.strip("/").replace("/", ".")).lstrip("_.-") or "field"


def printable(path: Paths) -> str:
    """Return a path as printable text, with bytes that are not UTF-8 as `\\xff`; of several, the first and a count."""
    if not isinstance(path, (str, os.PathLike)):
        return printable(path[0]) + (f" (and {len(path) - 1} more)" if len(path) > 1 else "")
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def bad_samples_at(place: str) -> Iterator[None]:
    """Prefix `place` to the message of a BadSample raised in this context; also raise an OSError as a BadSample."""
    try:
        yield
    except BadSample as error:
        raise BadSample("{}: {}", place, error) from error
    except OSError as error:
        raise BadSample(f"{place}: cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def source_errors(place: object, *kinds: type[Exception]) -> Iterator[None]:
    """Raise an OSError, or an error of these kinds, as the SourceError that `place` cannot be read."""
    refused: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except refused as error:
        where = printable(place) if isinstance(place, (str, Path)) else place
        file = getattr(error, "filename", None)
        reason = os_errors.reason(error) if isinstance(error, OSError) else error
        within = f"{printable(file)}: " if isinstance(file, str) and file != str(place) else ""
        raise SourceError(f"{where} cannot be read: {within}{reason}") from error
