"""Steps: what a transform decides for a batch, as arrays with a row per image, for an engine to carry out.

Every step maps uint8 pixels to uint8 pixels: results are rounded to the nearest integer and clamped to 0..255. A step
that preserves an image's size has a `mask`, bool [B]: it changes the images where the mask is true. Grey values are
luma by ITU-R BT.601, as in torchvision.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Interpolation: TypeAlias = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Pillow's filters, which are torchvision's `InterpolationMode`s."""
Sizes: TypeAlias = NDArray[np.int32]
"""Heights and widths in pixels, int32 [B, 2]."""
Mask: TypeAlias = NDArray[np.bool_]
"""Which images of a batch, bool [B]."""
Floats: TypeAlias = NDArray[np.float32]

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)
"""The weights of red, green and blue in a pixel's grey value."""

SMOOTHING_KERNEL = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
"""The filter of `Sharpen`."""


@dataclass(frozen=True, slots=True)
class Crop:
    """Crop to boxes of (top, left, height, width) in pixels, int32 [B, 4]. Pixels outside of the image are black.

    Attributes:
        inside: whether all boxes are known to lie within their images.
    """

    boxes: NDArray[np.int32]
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Resize to heights and widths int32 [B, 2].

    Attributes:
        interpolation: the filter.
        antialias: whether the filter is as wide as the distance between source pixels where it shrinks. The reference
            is Pillow's `resize`: horizontally, then vertically, with the order of Pillow 13. Otherwise it interpolates
            between the nearest pixels.
    """

    sizes: Sizes
    interpolation: Interpolation
    antialias: bool


@dataclass(frozen=True, slots=True)
class Flip:
    """Mirror left to right."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Warp:
    """Take pixel (x, y) of the result from `matrix @ (x, y, 1)` of the image. Pixels outside of the image are black.

    Attributes:
        matrices: affine maps, float32 [B, 2, 3]; integer coordinates are the centers of pixels.
        bilinear: interpolate between the four nearest pixels; otherwise take the nearest one.
    """

    mask: Mask
    matrices: Floats
    bilinear: bool


@dataclass(frozen=True, slots=True)
class Blend:
    """`pixel * x + grey * g(x) + mean * m`, with g(x) the grey value of pixel x and m the mean grey value of the image.

    The weights are float32 [B]. Brightness, contrast, saturation and greyscale have this form.
    """

    mask: Mask
    pixel: Floats
    grey: Floats
    mean: Floats


@dataclass(frozen=True, slots=True)
class Hue:
    """Rotate hues in the HSV model by a fraction of the full circle, float32 [B]. Grey images stay as they are."""

    mask: Mask
    shifts: Floats


@dataclass(frozen=True, slots=True)
class Posterize:
    """Keep those bits of each value that are set in `bits`, uint8 [B]."""

    mask: Mask
    bits: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Solarize:
    """Invert the values that are at or above the threshold, float32 [B]."""

    mask: Mask
    thresholds: Floats


@dataclass(frozen=True, slots=True)
class AutoContrast:
    """Stretch each channel to 0..255. A channel of a single value stays as it is."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Equalize:
    """Equalize each channel's histogram, as OpenCV's equalizeHist does."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Sharpen:
    """`factor * x + (1 - factor) * smooth(x)`, with factors float32 [B]: 0 is smooth, 1 the image, above 1 sharper.

    `smooth` is the weighted mean of 3 x 3 pixels in which the center counts five times. Borders are mirrored without
    repeating the last pixel.
    """

    mask: Mask
    factors: Floats


@dataclass(frozen=True, slots=True)
class Blur:
    """Apply a Gaussian filter of `kernel` (height, width) pixels with standard deviations float32 [B] in pixels.

    Borders are mirrored without repeating the last pixel.
    """

    mask: Mask
    sigmas: Floats
    kernel: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Erase:
    """Set boxes of (top, left, height, width), int32 [B, 4], to `value`: one number per channel, or one for all."""

    mask: Mask
    boxes: NDArray[np.int32]
    value: tuple[float, ...]


SizePreservingStep: TypeAlias = (
    Flip | Warp | Blend | Hue | Posterize | Solarize | AutoContrast | Equalize | Sharpen | Blur | Erase
)
"""A step that preserves an image's height and width."""
Step: TypeAlias = Crop | Scale | SizePreservingStep

S = TypeVar("S", bound=SizePreservingStep)


def restrict(step: S, mask: Mask) -> S:
    """Return the step with its mask narrowed to the images where `mask` is true too."""
    return replace(step, mask=step.mask & mask)
