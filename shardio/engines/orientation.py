"""EXIF orientation applied to pixels, as `PIL.ImageOps.exif_transpose` does."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..transforms.steps import Sizes

Turn: TypeAlias = tuple[bool, bool, bool]
"""Whether to mirror rows (bottom to top), to mirror columns (right to left), and to swap both afterwards."""

Orientations: TypeAlias = NDArray[np.uint8]
"""EXIF orientations of images, 1 to 8, uint8 [n]."""

TURNS: dict[int, Turn] = {
    1: (False, False, False),
    2: (False, True, False),
    3: (True, True, False),
    4: (True, False, False),
    5: (False, False, True),
    6: (True, False, True),
    7: (True, True, True),
    8: (False, True, True),
}
"""The turn that makes an image upright, by its EXIF orientation."""


def upright_sizes(sizes: Sizes, orientations: Orientations) -> Sizes:
    """Return heights and widths, int32 [n, 2], of images as they are stored once these are upright."""
    return np.where((orientations >= 5)[:, None], sizes[:, ::-1], sizes)


def turned(pixels: NDArray[Any], turn: Turn) -> NDArray[Any]:
    """Return pixels [height, width, ...] mirrored and swapped, in C order."""
    mirror_rows, mirror_columns, swap = turn
    pixels = pixels[:: -1 if mirror_rows else 1, :: -1 if mirror_columns else 1]
    return np.ascontiguousarray(pixels.swapaxes(0, 1) if swap else pixels)
