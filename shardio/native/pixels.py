"""Rows of PNGs whose filters are undone (`png.c`), and bytes looked up in tables (`lookup.c`), without the GIL."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import library

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def unfilter(rows: bytes, height: int, width: int, channels: int) -> NDArray[np.uint8] | None:
    """Return the pixels, uint8 [height, width, channels], of a PNG's decompressed rows; None if they cannot be undone.

    Args:
        rows: for each row a byte that names its filter, and `width * channels` bytes.
        height: in pixels.
        width: in pixels.
        channels: 1 or 3, of 8 bits each.
    """
    compiled = library()
    if compiled is None or len(rows) != height * (1 + width * channels):
        return None
    pixels = np.empty((height, width, channels), np.uint8)
    shape = map(_LONG, pixels.shape)
    return None if compiled.shardio_unfilter(*shape, rows, _POINTER(pixels.ctypes.data)) else pixels


def look_up(pixels: NDArray[np.uint8], tables: NDArray[Any], out: NDArray[Any], *, planes: bool) -> bool:
    """Write what tables have for the pixels of images.

    Args:
        pixels: uint8 [n, height, width, channels] of 1 or 3 channels.
        tables: what each channel's 256 values become, of 2 or 4 bytes: [channels, 256].
        out: receives the results, [n, channels, height, width] with `planes`, otherwise of the shape of `pixels`.
        planes: whether the results of one channel are contiguous.

    Returns False, and does nothing, if there is no compiled part, or if `out` is not C-contiguous; the others must be.
    """
    compiled = library()
    if compiled is None or not out.flags.c_contiguous:
        return False
    images, height, width, channels = pixels.shape
    compiled.shardio_look_up(
        *(_LONG(images), _LONG(height * width), _INT(channels), _INT(planes), _INT(tables.itemsize)),
        *(_POINTER(array.ctypes.data) for array in (pixels, tables, out)),
    )
    return True
