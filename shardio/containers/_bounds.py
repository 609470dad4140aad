"""The one check of where values are: every reader, compiled or not, asks it before it touches a byte."""

import numpy as np
from numpy.typing import NDArray


def within(
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64] | int,
    begin: NDArray[np.int64] | int,
    end: NDArray[np.int64] | int,
) -> NDArray[np.bool_]:
    """Return which spans lie within `begin` to `end`, bool [n]; any int64 may stand in a damaged file.

    Args:
        offsets: where each span begins, int64 [n].
        sizes: bytes, int64 [n], or one number for all; so are the others.
        begin, end: the bounds of the data, from 0 on.
    """
    # The sum of an offset and a size may not fit into int64; the difference of a bound and a size from 0 on does.
    inside: NDArray[np.bool_] = (sizes >= 0) & (offsets >= begin) & (offsets <= end - sizes)
    return inside
