"""Errors of the operating system that say which file they are about, and what to do."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import did_you_mean


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


def reason(error: OSError) -> str:
    """Return what the operating system says, and what to do where that is known."""
    said = error.strerror or f"{error}"
    match error.errno:
        case errno.ENOENT if isinstance(error.filename, str):
            return said + did_you_mean.near_path(Path(error.filename))
        case errno.EAGAIN:
            return f"{said}: another process has locked the file, such as one that still writes it; wait for its end"
        case errno.EMFILE:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"{said}: this process may have {most}; `ulimit -n` before the command raises that"
    return said
