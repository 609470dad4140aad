"""Image fields that look like masks and are resized as images: a filter between classes 1 and 3 makes class 2."""

import threading
import warnings
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...engines import image_decoding
from ...errors import BadSample, MaskWarning
from ...format import images
from ...system.types import Buffer

SAMPLES = 64
"""The number of samples that are looked at, unless the dataset has fewer."""

_MOST_VALUES = 32
_PIXELS = 1 << 16
"""The pixels of an image that are looked at, in evenly spaced rows: to sort more would hold up the first batches."""


@final
class UnmarkedMasks:
    """Looks at the first images of a field, and warns once if they hold few values. Threads may share it.

    Args:
        field: the field's name, for the warning.
        channels: 3 if images are delivered as RGB, 1 if as grey.
        samples: the number of samples in the dataset.
        max_pixels: the most pixels of an image to look at.
    """

    def __init__(self, field: str, channels: int, samples: int, max_pixels: int) -> None:
        self._field, self._channels, self._left, self._max_pixels = field, channels, min(SAMPLES, samples), max_pixels
        self._values: NDArray[Any] = np.empty(0, np.uint32)
        self._lock = threading.Lock()

    def look(self, files: Sequence[Buffer]) -> None:
        """Look at some image files, until enough are known. A file that is no PNG, or holds many values, ends it."""
        if not self._left:
            return
        with self._lock:
            for file in files:
                if self._left and self._looks_like_mask(bytes(file)):
                    self._left -= 1
                    if not self._left:
                        self._warn()
                    continue
                self._left = 0
                return

    def _looks_like_mask(self, file: bytes) -> bool:
        if images.sniff(file) != "png":
            return False
        try:
            pixels = image_decoding.decode(file, self._channels, self._max_pixels)
        except BadSample:  # reported where it is delivered
            return True
        step = -(-pixels.shape[0] * pixels.shape[1] // _PIXELS)
        channels = np.moveaxis(pixels[::step], 2, 0).astype(np.uint32)
        values = np.union1d(self._values, sum(channel << 8 * place for place, channel in enumerate(channels)))
        if len(values) > _MOST_VALUES:
            return False
        self._values = values
        return True

    def _warn(self) -> None:
        values = len(self._values)
        warnings.warn(
            f"the first PNGs of field {self._field!r} hold {values} different values, as masks do, and its transforms "
            "resize or turn them with a filter, which makes values between them: if they are masks, convert them with "
            f"mask={self._field!r}, or give interpolation='nearest'; if not, filter shardio.MaskWarning",
            MaskWarning,
            stacklevel=2,
        )
