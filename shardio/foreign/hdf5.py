"""HDF5 files that other programs wrote: the filters that a dataset needs, and the columns that shardio adds."""

from ..containers._hdf5_library import missing_filter as missing_filter
from ..format.fields import CHECKSUM, shape_column


def is_hidden_column(name: str) -> bool:
    """Return whether a dataset of this name is a column that shardio adds to every shard, not a field."""
    return name.startswith((CHECKSUM, shape_column("")))
