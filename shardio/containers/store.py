"""Where the files of datasets are opened for reading: every reader of a container opens them here, and nowhere else."""

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import ShardCorrupt
from ..system import npy
from ..system.regular_files import check_regular, open_regular

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NOT_REGULAR = (errno.EISDIR, errno.EINVAL, errno.ENXIO)


def status(path: Path) -> os.stat_result:
    """Return the status of a file; ShardCorrupt unless there is a regular file."""
    with _named(path):
        return check_regular(path)


def open_raw(path: Path) -> int:
    """Open a file for `pread`; return its descriptor. ShardCorrupt unless there is a regular file."""
    with _named(path):
        return open_regular(path, os.O_RDONLY)


def open_hdf5(path: Path) -> Any:
    """Open an h5py.File; OSError if libhdf5 refuses it."""
    status(path)
    return importlib.import_module("h5py").File(path, "r")


def open_hdf5_stream(file: BinaryIO) -> Any:
    """Open an h5py.File that is read through an open file; OSError if libhdf5 refuses it."""
    return importlib.import_module("h5py").File(file, "r")


def map_npy(path: Path, largest_header: int) -> Any:
    """Map a `.npy` file into memory, read-only; ValueError or EOFError if its header is damaged."""
    if os.path.lexists(path):  # NumPy's own error otherwise
        status(path)
    return npy.guarded(lambda: np.lib.format.open_memmap(path, mode="r", max_header_size=largest_header))


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_FILE:
            target = f"; it is a link to {os.path.realpath(path)}" if os.path.islink(path) else ""
            raise ShardCorrupt(f"{path}: there is no such file{target}") from error
        if error.errno in _NOT_REGULAR:
            raise ShardCorrupt(f"{path}: is not a regular file") from error
        raise
