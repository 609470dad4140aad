"""Whole images: decoded as they are, or looked through for damage."""

from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample
from ..format import images
from ..transforms.fuse import FusedSteps
from .turbo import Turbo

_LONGEST_SIDE = 65535  # pixels: what a JPEG's header has room for


def decode(data: bytes, channels: int) -> NDArray[np.uint8]:
    """The pixels of an image file, RGB or grey, uint8 [height, width, channels], by OpenCV.

    Raises BadSample if it does not decode. Orientation tags are not applied. OpenCV decodes what there is of a damaged
    JPEG, and tells nobody but stderr.
    """
    color = cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE
    try:
        found = cv2.imdecode(np.frombuffer(data, np.uint8), color | cv2.IMREAD_IGNORE_ORIENTATION) if data else None
    except cv2.error as error:  # more pixels than it takes
        raise BadSample(f"the {images.sniff(data)} image of {len(data)} bytes does not decode: {error.err}") from error
    if found is None:
        images.probe(data)  # says what is wrong, if the file's outside shows it
        raise BadSample(f"the {images.sniff(data)} image of {len(data)} bytes does not decode")
    pixels = np.asarray(found, np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)


def check(data: bytes, channels: int, size: tuple[int, int]) -> None:
    """Decodes all of an image file; BadSample unless it is whole and has that (height, width) in pixels.

    JPEG: what libjpeg only warns of counts as damage where the compiled part is there, but for CMYK.
    """
    jpeg = native.library() is not None and images.sniff(data) == "jpeg"
    if jpeg and _decodes_silently(data, channels, size):
        return
    pixels = decode(data, channels)
    if pixels.shape[:2] != size:
        raise BadSample(f"the image is {_times(pixels.shape[:2])} pixels, {_times(size)} were stored")
    if jpeg and images.probe(data).channels in (1, 3):
        raise BadSample("the jpeg image is damaged: it decodes with a warning of libjpeg only")


def _decodes_silently(data: bytes, channels: int, size: tuple[int, int]) -> bool:
    """Whether libjpeg takes all of a JPEG of that size without a word.

    Asked for a picture one pixel wide, it reads every coefficient, which is where damage shows, and makes few pixels.
    """
    height, width = size
    if not (1 <= height <= _LONGEST_SIDE and 1 <= width <= _LONGEST_SIDE):
        return False
    image, box, scaled, window = (np.array([row], np.int32) for row in (size, (0, 0, *size), (height, 1), (0, 0)))
    fused = FusedSteps(image, box, scaled, window, np.zeros(1, np.bool_))
    return not _turbo(channels)([data], fused, np.empty((1, height, 1, channels), np.uint8))


@cache
def _turbo(channels: int) -> Turbo:
    return Turbo(channels, None)


def _times(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
