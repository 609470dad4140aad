"""Decoding of whole images by OpenCV, and the check of image files for damage."""

from collections.abc import Sequence
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample
from ..format import images
from ..format.limits import MAX_IMAGE_PIXELS
from ..transforms.fuse import FusedSteps
from .libjpeg_turbo import JpegDecoder

_LONGEST_SIDE = 65535  # pixels: the limit of a JPEG's header
_OPENCV_LIMIT = "OpenCV has limits of its own: set OPENCV_IO_MAX_IMAGE_PIXELS, _WIDTH or _HEIGHT in the environment"


def decode(data: bytes, channels: int, max_pixels: int = MAX_IMAGE_PIXELS) -> NDArray[np.uint8]:
    """Return the pixels of an image file, RGB or grey, uint8 [height, width, channels].

    Orientation tags are not applied. A damaged JPEG decodes as far as it goes: OpenCV reports that on stderr only.

    Raises:
        BadSample: if the file does not decode, or has more than `max_pixels` pixels.
    """
    images.check_pixels(data, max_pixels)
    color = cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), color | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:  # for more pixels than OpenCV accepts, or than there is memory for
        reason = _OPENCV_LIMIT if "CV_IO_MAX_IMAGE" in error.err else error.err
        raise BadSample(f"the {images.sniff(data)} image of {len(data)} bytes does not decode: {reason}") from error
    if decoded is None:
        images.probe(data)  # names the fault if the header shows it
        raise BadSample(f"the {images.sniff(data)} image of {len(data)} bytes does not decode")
    pixels = np.asarray(decoded, np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)


def check_size(size: Sequence[int], stored: Sequence[int]) -> None:
    """Raise BadSample unless an image's (height, width) is the stored one, which crops were drawn for."""
    if tuple(size) != tuple(stored):
        raise BadSample(f"the image is {size[0]} x {size[1]} pixels, {stored[0]} x {stored[1]} were stored")


def check(data: bytes, channels: int, size: tuple[int, int]) -> None:
    """Decode all of an image file to find damage.

    With the compiled part, anything that libjpeg warns of counts as damage to a JPEG, except to one in CMYK.

    Raises:
        BadSample: unless the file is intact and its (height, width) in pixels is `size`.
    """
    jpeg = native.library() is not None and images.sniff(data) == "jpeg"
    if jpeg and _decodes_without_warning(data, channels, size):
        return
    pixels = decode(data, channels)
    check_size(pixels.shape[:2], size)
    if jpeg and images.probe(data).channels in (1, 3):
        raise BadSample("the jpeg image is damaged: it decodes with a warning of libjpeg only")


def _decodes_without_warning(data: bytes, channels: int, size: tuple[int, int]) -> bool:
    """Return whether libjpeg decodes a JPEG of that size without a warning.

    Asked for a result one pixel wide, it reads every coefficient, which is where damage shows, but makes few pixels.
    """
    height, width = size
    if not (1 <= height <= _LONGEST_SIDE and 1 <= width <= _LONGEST_SIDE):
        return False
    image, region, resized, window = (np.array([row], np.int32) for row in (size, (0, 0, *size), (height, 1), (0, 0)))
    fused = FusedSteps(image, region, resized, window, np.zeros(1, np.bool_))
    return not _jpeg_decoder(channels)([data], fused, np.empty((1, height, 1, channels), np.uint8))


@cache
def _jpeg_decoder(channels: int) -> JpegDecoder:
    return JpegDecoder(channels, None)
