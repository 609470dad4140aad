"""Steps: what a transform decides for a batch, as arrays with a row per image, for an engine to carry out.

Every step maps uint8 pixels to uint8 pixels, as Pillow does, which torchvision uses for PIL images. A step that
preserves an image's size has a `mask`, bool [B]: it changes the images where the mask is true.

To add a transform that is made of these steps, write it next to its like (`color.py`, `geometry.py`, ...). Add it to
the unions of `transforms/__init__.py` (to `ChildTransform` in `composition.py` if RandomApply may hold it), to `_MOVES`
in `recipe.py` if it only moves pixels, to `shardio/__init__.py`, to `docs/api/transforms.md` and to
`tests/transforms/test_recorded_draws.py`. A new kind of step also needs its arithmetic in `engines/torch_steps.py`, in
`engines/dali_graph.py`, and in C: `native/steps.c`. Kinds have the order of the union below and of the enum in
`native/steps.h`. `tests/engines/test_steps.py` compares the three.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Interpolation: TypeAlias = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Pillow's filters, torchvision's `InterpolationMode`s; `native/image.h` numbers them in this order."""
Sizes: TypeAlias = NDArray[np.int32]
"""Heights and widths in pixels, int32 [B, 2]."""
Mask: TypeAlias = NDArray[np.bool_]
"""Which images of a batch, bool [B]."""
Floats: TypeAlias = NDArray[np.float32]

GREY_WEIGHTS = (19595, 38470, 7471)
"""The weights of red, green and blue in a pixel's rounded grey value (ITU-R BT.601), in units of 2^-16."""

SMOOTHING_WEIGHTS = ((1, 1, 1), (1, 5, 1), (1, 1, 1))
"""The weights of `Sharpen`'s smoothing, whose sum is divided by 13 and rounded."""

PILLOW_HUES_ONE_LESS = np.isin(
    np.arange(256),
    [*range(1, 32), *range(88, 105, 4), *range(129, 150, 2), *range(153, 174, 4), 176, 184, *range(177, 210, 4)],
)
"""Hues that are integers in exact arithmetic and one less in Pillow's, by its rounding errors; bool [256]."""

BLACK: Final = 0
MEAN_GREY: Final = 1
"""The mean of an image's grey values, rounded."""
OWN_GREY: Final = 2
"""The grey value of the pixel itself."""


@dataclass(frozen=True, slots=True)
class Crop:
    """Crop to boxes of (top, left, height, width) in pixels, int32 [B, 4]. Pixels outside of the image are black.

    Attributes:
        inside: whether all boxes are known to lie within their images.
        mask: the images that are cropped, bool [B]; the box of any other is the whole image. None: all.
        by_center: whether boxes of the sample whose centres are cut off become empty.
        fill: what pixels outside of the image are instead of black: one number per channel, or one for all.
    """

    boxes: NDArray[np.int32]
    inside: bool = False
    mask: Mask | None = None
    by_center: bool = False
    fill: tuple[float, ...] = ()


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
    """Flip left to right, or `vertical`, top to bottom."""

    mask: Mask
    vertical: bool = False


@dataclass(frozen=True, slots=True)
class Warp:
    """Take the position (x, y) of the result from `matrix @ (x, y, 1)` of the image, black outside of it.

    Attributes:
        matrices: affine maps, float64 [B, 2, 3]; the center of the first pixel is (0.5, 0.5).
        bilinear: interpolate between the four nearest pixels; otherwise take the nearest one.
    """

    mask: Mask
    matrices: NDArray[np.float64]
    bilinear: bool


@dataclass(frozen=True, slots=True)
class Blend:
    """`base + factor * (x - base)` for each value x, in float32, clamped to 0..255 and cut off after the point.

    Attributes:
        factors: float32 [B]: 0 gives the base, 1 the image.
        bases: uint8 [B]: `BLACK`, for brightness; `MEAN_GREY`, for contrast; `OWN_GREY`, for saturation.
    """

    mask: Mask
    factors: Floats
    bases: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Hue:
    """Add to the hues of Pillow's HSV model (bytes). Grey images stay as they are.

    Attributes:
        turns: the numbers to add, modulo 256, uint8 [B]; 255 make a full circle.
    """

    mask: Mask
    turns: NDArray[np.uint8]


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
    """Stretch each channel to 0..255, cut off after the point. A channel of a single value stays as it is."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Equalize:
    """Equalize each channel's histogram, as Pillow's ImageOps.equalize does."""

    mask: Mask


@dataclass(frozen=True, slots=True)
class Sharpen:
    """Blend the image with a smooth one, as `Blend` does, by factors float32 [B]: 0 is smooth, above 1 sharper.

    A smooth pixel is the rounded mean of 3 x 3 pixels whose center counts five times. Pixels on an edge stay.
    """

    mask: Mask
    factors: Floats


@dataclass(frozen=True, slots=True)
class Blur:
    """Apply a Gaussian filter of `kernel` (height, width) pixels with standard deviations float32 [B] in pixels.

    Borders are reflected without repeating the last pixel. Results are rounded.
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
"""A step that preserves an image's height and width. `native/steps.h` numbers the kinds in this order."""
Step: TypeAlias = Crop | Scale | SizePreservingStep

S = TypeVar("S", bound=SizePreservingStep)


def restrict(step: S, mask: Mask) -> S:
    """Return the step with its mask narrowed to the images where `mask` is also true."""
    return replace(step, mask=step.mask & mask)
