"""What a transform comes to: steps, arrays with a row per image, which an engine only carries out.

Images are bytes, and each step gives bytes: what is between is rounded to the nearest, what is beyond is cut off at 0
and 255. A step that keeps an image's size has a `mask`, bool [B]: the images that it changes. Grey values are those of
ITU-R BT.601, as in torchvision.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
Sizes: TypeAlias = NDArray[np.int32]
"""Heights and widths in pixels, int32 [B, 2]."""
Mask: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float32]

LUMA = (0.2989, 0.587, 0.114)
"""What red, green and blue add to grey."""

SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The filter of `Sharpen`."""


@dataclass(frozen=True, slots=True)
class Crop:
    """Cut a box: int32 [B, 4] of top, left, height, width in pixels. What lies outside of the image is black.

    Attributes:
        inside: whether all boxes are known to lie within their images.
    """

    boxes: NDArray[np.int32]
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Resize to heights and widths int32 [B, 2]."""

    sizes: Sizes
    interpolation: Interpolation
    antialias: bool


@dataclass(frozen=True, slots=True)
class Flip:
    """Mirror left to right."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Warp:
    """Each pixel (x, y) of the result from `matrix @ (x, y, 1)` of the image; what lies outside of it is black.

    Attributes:
        matrices: float32 [B, 2, 3]; whole numbers are the middles of pixels.
        bilinear: between four pixels, or else the nearest one.
    """

    mask: Mask
    matrices: Floats
    bilinear: bool


@dataclass(frozen=True, slots=True)
class Blend:
    """`own * x + grey * g(x) + mean * m`, where g(x) is a pixel's grey value and m the mean of all; float32 [B].

    Brightness, contrast, saturation and grey pictures are of this form.
    """

    mask: Mask
    own: Floats
    grey: Floats
    mean: Floats


@dataclass(frozen=True, slots=True)
class Hue:
    """Turn hues by a share of the whole circle, float32 [B], in the HSV model; grey images stay."""

    mask: Mask
    shifts: Floats


@dataclass(frozen=True, slots=True)
class Posterize:
    """Keep the bits of each value that are set in uint8 [B]."""

    mask: Mask
    bits: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Solarize:
    """Invert the values that are at least float32 [B]."""

    mask: Mask
    thresholds: Floats


@dataclass(frozen=True, slots=True)
class AutoContrast:
    """Stretch each channel to 0..255; a channel of one value stays."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Equalize:
    """Make each channel's histogram even, as OpenCV's equalizeHist does."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Sharpen:
    """`factor * x + (1 - factor) * smooth(x)`, float32 [B]: 0 is smooth, 1 the image, above 1 sharper.

    Smooth is the mean of 3 x 3 pixels in which the middle one counts five times. Borders are mirrored.
    """

    mask: Mask
    factors: Floats


@dataclass(frozen=True, slots=True)
class Blur:
    """A Gaussian filter of `kernel` (height, width) pixels and standard deviations float32 [B] in pixels.

    Borders are mirrored without repeating the last pixel.
    """

    mask: Mask
    sigmas: Floats
    kernel: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Erase:
    """Set boxes int32 [B, 4] of top, left, height, width to `value`, one number per channel or one for all."""

    mask: Mask
    boxes: NDArray[np.int32]
    value: tuple[float, ...]


InPlace: TypeAlias = Flip | Warp | Blend | Hue | Posterize | Solarize | AutoContrast | Equalize | Sharpen | Blur | Erase
"""A step that keeps an image's size."""
Step: TypeAlias = Crop | Scale | InPlace

S = TypeVar("S", bound=InPlace)


def only(step: S, mask: Mask) -> S:
    """The step for the images where bool [B] is true; the others stay as they are."""
    return replace(step, mask=step.mask & mask)
