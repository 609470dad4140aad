"""HDF5 files that other programs wrote: how they are opened and parsed."""

from ..containers._files import RawFile as RawFile
from ..containers._hdf5_library import LibraryFile as LibraryFile
from ..containers._hdf5_library import Unreadable as Unreadable
from ..containers._hdf5_library import missing_filter as missing_filter
from ..containers._hdf5_library import resolve as resolve
