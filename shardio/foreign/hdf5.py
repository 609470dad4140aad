"""HDF5 files that other programs wrote: how they are opened and parsed, and the columns that shardio adds."""

from ..containers._files import RawFile as RawFile
from ..containers._hdf5_library import LibraryFile as LibraryFile
from ..containers._hdf5_library import Unreadable as Unreadable
from ..containers._hdf5_library import missing_filter as missing_filter
from ..containers._hdf5_library import resolve as resolve
from ..containers.hdf5 import is_raw as is_raw
from ..containers.hdf5_chunks import ChunkedRows as ChunkedRows
from ..containers.hdf5_chunks import chunked_rows as chunked_rows
from ..containers.store import open_hdf5 as open_hdf5
from ..format.fields import CHECKSUM, present_column, shape_column


def is_hidden_column(name: str) -> bool:
    """Return whether a dataset of this name is a column that shardio adds to every shard, not a field."""
    return name.startswith((CHECKSUM, shape_column(""), present_column("")))
