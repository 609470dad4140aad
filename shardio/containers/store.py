"""Where the files of datasets are opened for reading: every reader of a container opens them here, and nowhere else."""

import errno
import importlib
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ShardCorrupt
from ..system import npy

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def status(path: Path) -> os.stat_result:
    """Return what the system knows of a file.

    Raises ShardCorrupt unless there is a regular file: a pipe or a device in its place could wait for ever.
    """
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in _NO_FILE:
            raise ShardCorrupt(f"{path}: there is no such file") from error
        raise
    if not stat.S_ISREG(found.st_mode):
        raise ShardCorrupt(f"{path}: is not a regular file")
    return found


def open_raw(path: Path) -> int:
    """Open a file for `pread`; return its descriptor. ShardCorrupt if there is no such file."""
    status(path)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def open_hdf5(path: Path) -> Any:
    """Open an h5py.File; OSError if libhdf5 refuses it."""
    status(path)
    return importlib.import_module("h5py").File(path, "r")


def map_npy(path: Path, largest_header: int) -> Any:
    """Map a `.npy` file into memory, read-only; ValueError or EOFError if its header is damaged."""
    if path.exists():  # NumPy's own error otherwise
        status(path)
    return npy.guarded(lambda: np.lib.format.open_memmap(path, mode="r", max_header_size=largest_header))
