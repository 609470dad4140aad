"""Which image files any decoder takes, told by their headers: one odd file would stop a decoder of whole batches."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample
from ..format import images
from ..system.types import Buffer
from ..transforms.steps import Sizes
from .addresses import addresses_of


def plain(encoded: Sequence[Buffer], sizes: Sizes) -> NDArray[np.bool_]:
    """Which files are whole JPEGs of these heights and widths (int32 [n, 2]), 8 bits, grey or YCbCr; bool [n].

    Without the compiled part fewer odd ones are told: RGB and 12-bit ones then count as plain.
    """
    library = native.library()
    if library is None:
        return np.array(
            [_plain(bytes(data), *size) for data, size in zip(encoded, sizes.tolist(), strict=True)], np.bool_
        )
    where, lengths, owner = addresses_of(encoded)
    images_of, found = np.ascontiguousarray(sizes, np.int32), np.empty(len(encoded), np.bool_)
    pointers = (where, lengths.ctypes.data, images_of.ctypes.data, found.ctypes.data)
    library.shardio_plain_jpegs(ctypes.c_int64(len(encoded)), *map(ctypes.c_void_p, pointers))
    del owner
    return found


def _plain(data: bytes, height: int, width: int) -> bool:
    try:
        info = images.probe(data)
    except BadSample:
        return False
    return info.format == "jpeg" and (info.height, info.width) == (height, width) and info.channels in (1, 3)
