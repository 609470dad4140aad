"""Where the files of datasets are opened for reading: every reader of a container opens them here, and nowhere else."""

import importlib
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ShardCorrupt
from ..system import npy


def open_raw(path: Path) -> int:
    """Open a file for `pread`; return its descriptor. ShardCorrupt if there is no such file."""
    _check_regular(path)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def open_hdf5(path: Path) -> Any:
    """Open an h5py.File; OSError if libhdf5 refuses it."""
    _check_regular(path)
    return importlib.import_module("h5py").File(path, "r")


def map_npy(path: Path, largest_header: int) -> Any:
    """Map a `.npy` file into memory, read-only; ValueError or EOFError if its header is damaged."""
    if path.exists():  # NumPy's own error otherwise
        _check_regular(path)
    return npy.guarded(lambda: np.lib.format.open_memmap(path, mode="r", max_header_size=largest_header))


def _check_regular(path: Path) -> None:
    """Raise ShardCorrupt unless there is a regular file: a pipe or a device in its place could wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise ShardCorrupt(f"{path}: there is no such file") from error
    if not stat.S_ISREG(mode):
        raise ShardCorrupt(f"{path}: is not a regular file")
