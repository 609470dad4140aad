"""Inspection of JPEG headers: which files every decoder accepts, and which a tag rotates.

A file that an engine for whole batches refuses stops its whole batch.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample
from ..format import images
from ..system.types import Buffer
from ..transforms.steps import Sizes
from .fused_images import buffer_addresses
from .orientation import Orientations


def are_plain_jpegs(encoded: Sequence[Buffer], sizes: Sizes) -> NDArray[np.bool_]:
    """Return which files are complete 8-bit JPEGs, grey or YCbCr, of these heights and widths, bool [n].

    Without the compiled part, RGB and 12-bit JPEGs also count as plain.

    Args:
        encoded: the image files.
        sizes: the heights and widths that they should have, int32 [n, 2].
    """
    library = native.library()
    if library is None:
        return np.array(
            [_is_plain_jpeg(bytes(data), *size) for data, size in zip(encoded, sizes.tolist(), strict=True)], np.bool_
        )
    addresses, lengths, owner = buffer_addresses(encoded)
    wanted_sizes, are_plain = np.ascontiguousarray(sizes, np.int32), np.empty(len(encoded), np.bool_)
    pointers = (addresses, lengths.ctypes.data, wanted_sizes.ctypes.data, are_plain.ctypes.data)
    library.shardio_plain_jpegs(ctypes.c_int64(len(encoded)), *map(ctypes.c_void_p, pointers))
    del owner
    return are_plain


def orientations_of(encoded: Sequence[Buffer]) -> Orientations:
    """Return the EXIF orientation of each image file; 1 where it has none, or a damaged one."""
    library, found = native.library(), np.zeros(len(encoded), np.uint8)
    if library is not None:
        addresses, lengths, owner = buffer_addresses(encoded)
        pointers = (addresses, lengths.ctypes.data, found.ctypes.data)
        library.shardio_orientations(ctypes.c_int64(len(encoded)), *map(ctypes.c_void_p, pointers))
        del owner
    for row in np.flatnonzero(found == 0).tolist():  # files of other kinds
        found[row] = images.orientation(bytes(encoded[row]))
    return found


def _is_plain_jpeg(data: bytes, height: int, width: int) -> bool:
    try:
        info = images.probe(data)
    except BadSample:
        return False
    return info.format == "jpeg" and (info.height, info.width) == (height, width) and info.channels in (1, 3)
