"""EXIF orientation applied to pixels and to coordinates, as `PIL.ImageOps.exif_transpose` does."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..transforms.coordinates import PlaceStep, Transpose
from ..transforms.steps import Flip, Sizes

Transposition: TypeAlias = tuple[bool, bool, bool]
"""Whether to flip vertically (rows), to flip horizontally (columns), and to swap both axes afterwards."""

Orientations: TypeAlias = NDArray[np.uint8]
"""EXIF orientations of images, 1 to 8, uint8 [n]."""

TRANSPOSITIONS: dict[int, Transposition] = {
    1: (False, False, False),
    2: (False, True, False),
    3: (True, True, False),
    4: (True, False, False),
    5: (False, False, True),
    6: (True, False, True),
    7: (True, True, True),
    8: (False, True, True),
}
"""The transposition that makes an image upright, by its EXIF orientation."""


OF_ROTATION = {0: 1, 90: 6, 180: 3, 270: 8}
"""The EXIF orientation that a rotation is, in degrees clockwise."""


def upright_sizes(sizes: Sizes, orientations: Orientations) -> Sizes:
    """Return heights and widths, int32 [n, 2], of images as they are stored once these are upright."""
    return np.where((orientations >= 5)[:, None], sizes[:, ::-1], sizes)


def upright_steps(orientations: Orientations) -> tuple[PlaceStep, ...]:
    """Return the steps that make images of these EXIF orientations upright; in reverse order they undo it."""
    rows, columns, swaps = np.array([TRANSPOSITIONS[o] for o in range(1, 9)])[orientations.astype(np.intp) - 1].T
    return Flip(rows, vertical=True), Flip(columns), Transpose(swaps)


def transpose(pixels: NDArray[Any], transposition: Transposition) -> NDArray[Any]:
    """Return pixels [height, width, ...] flipped and swapped, in C order."""
    flip_rows, flip_columns, swap = transposition
    pixels = pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]
    return np.ascontiguousarray(pixels.swapaxes(0, 1) if swap else pixels)


def make_upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return pixels [height, width, ...] of an image with an EXIF orientation as viewers show it, in C order."""
    return transpose(pixels, TRANSPOSITIONS[int(orientation)])
