"""Errors of the operating system that say which file they are about."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have an OSError that names no file, such as that of a write to a full disk, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno is None:  # a library's own text
            raise OSError(f"{os.fspath(path)}: {error}") from error
        error.filename = os.fspath(path)
        raise
