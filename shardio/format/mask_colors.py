"""Colours for showing the numbers of masks: PASCAL VOC's colour map, where neighbouring numbers differ."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBERS = 256


def colored(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the colours of integers of any shape, uint8 [..., 3]; they repeat after 256 numbers."""
    numbers = np.arange(_NUMBERS)
    table = np.zeros((_NUMBERS, 3), np.uint8)
    for bit in range(7, -1, -1):
        for channel in range(3):
            table[:, channel] |= ((numbers >> channel & 1) << bit).astype(np.uint8)
        numbers >>= 3
    colors: NDArray[np.uint8] = table[levels % _NUMBERS]
    return colors
