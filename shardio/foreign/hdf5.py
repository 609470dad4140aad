"""HDF5 files that other programs wrote: how they are opened and parsed."""

from collections.abc import Sequence
from typing import Any

from ..containers._files import RawFile as RawFile
from ..containers._hdf5_library import LibraryFile as LibraryFile
from ..containers._hdf5_library import Unreadable as Unreadable
from ..containers._hdf5_library import missing_filter as missing_filter
from ..containers._hdf5_library import resolve as resolve


def open_in_helper(path: str, inode: Sequence[int]) -> Any:
    """Open a file in the helper process, for functions that `LibraryFile.call` runs there; no other process may."""
    from ..containers._hdf5_service import open_file  # importing this changes how h5py locks files

    return open_file(path, inode)
