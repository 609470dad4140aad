"""Hues turned in one call, without the GIL: `hue.c`. Only where `library()` is."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from . import library


def adjust_hue(pixels: NDArray[np.uint8], shift: float) -> None:
    """Turns the hues of RGB pixels uint8 [..., 3], C-contiguous, in place, by a share of the circle in [-0.5, 0.5]."""
    call = library().shardio_hue  # type: ignore[union-attr]  # the caller has asked
    call(ctypes.c_void_p(pixels.ctypes.data), ctypes.c_int64(pixels.size // 3), ctypes.c_float(shift))
