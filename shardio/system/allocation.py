"""Memory whose size is that of the data: more than there is gives an error in words."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .units import format_size


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a new array `shape`, whose content is undefined; MemoryError, in words, if there is too little memory."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError if NumPy cannot even count the bytes
        size = format_size(math.prod(shape) * dtype.itemsize)
        raise MemoryError(f"{list(shape)} of {dtype} need {size} of memory at once: take fewer samples") from error
