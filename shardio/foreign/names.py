"""What is called by names that others chose: fields, and files in messages."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ..errors import BadSample

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path or a pattern, or several."""

_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


def field_name(name: str) -> str:
    """Somebody's own name as a field may be called: `image/encoded` becomes `image.encoded`, `a b` becomes `a_b`."""
    return _OTHER.sub("_", name.strip("/").replace("/", ".")).lstrip("_.-") or "field"


def shown(path: Paths) -> str:
    """A path as text that can be printed: bytes that are not UTF-8 are written `\\xff`. Of several the first."""
    if not isinstance(path, (str, os.PathLike)):
        return shown(path[0]) + (f" and {len(path) - 1} more" if len(path) > 1 else "")
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def naming(place: str) -> Iterator[None]:
    """Puts the place before what a BadSample says; what the system refuses is one too."""
    try:
        yield
    except BadSample as error:
        raise BadSample(f"{place}: {error}") from error
    except OSError as error:
        raise BadSample(f"{place}: cannot be read: {error.strerror or error}") from error
