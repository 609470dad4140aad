"""Hue adjustment in one call, without the GIL (`hue.c`)."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from . import library


def adjust_hue(pixels: NDArray[np.uint8], shift: float) -> None:
    """Rotate the hue of RGB pixels in place.

    Args:
        pixels: uint8 [..., 3], C-contiguous.
        shift: the rotation as a fraction of the hue circle, in [-0.5, 0.5].
    """
    call = library().shardio_hue  # type: ignore[union-attr]  # callers check that it is loaded
    call(ctypes.c_void_p(pixels.ctypes.data), ctypes.c_int64(pixels.size // 3), ctypes.c_float(shift))
