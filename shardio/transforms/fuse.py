"""Fusion of steps: crops, resizes and flips become one region that is resized once, then cropped and perhaps flipped.

RandomResizedCrop and flip, Resize and CenterCrop, CenterCrop alone and other usual lists have this form, which an
engine carries out in one pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .steps import Crop, Flip, Interpolation, Scale, Sizes, Step

LEFT_RIGHT, TOP_BOTTOM = 1, 2
"""The flips of `FusedSteps.flips`, as in `native/image.h`."""


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """Crop, resize, crop and flip in one, with a row per image.

    Attributes:
        images: height and width of the image, int32 [B, 2].
        regions: top, left, height and width of the region in the image, int32 [B, 4].
        resized: height and width that the region is resized to, int32 [B, 2].
        windows: top and left of the kept window in the resized region, int32 [B, 2].
        results: height and width of the windows, int32 [B, 2].
        flips: how to flip the window, uint8 [B]: `LEFT_RIGHT`, `TOP_BOTTOM`, both, or 0.
        fill: the pixel beyond the resized region: one number per channel, or one for all; () is black.
        interpolation, antialias: how to resize, see `steps.Scale`.
    """

    images: Sizes
    regions: NDArray[np.int32]
    resized: NDArray[np.int32]
    windows: NDArray[np.int32]
    results: Sizes
    flips: NDArray[np.uint8]
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    fill: tuple[float, ...] = ()

    @classmethod
    def of_resize(cls, images: Sizes, resized: Sizes, interpolation: Interpolation, antialias: bool) -> "FusedSteps":
        """Return a resize of whole images and nothing else."""
        zeros = np.zeros_like(images)
        regions = np.concatenate((zeros, images), axis=1)
        unflipped = np.zeros(len(images), np.uint8)
        return cls(images, regions, resized, zeros, resized, unflipped, interpolation, antialias)

    @property
    def inside(self) -> bool:
        """Whether all windows are within the resized regions."""
        return bool((self.windows >= 0).all() and (self.windows + self.results <= self.resized).all())


EngineStep: TypeAlias = Step | FusedSteps
"""A step, or several as one, as the engines of the host take them."""


def fuse(steps: Sequence[EngineStep], sizes: Sizes) -> FusedSteps | None:
    """Fuse the steps for images of these heights and widths; None where that would give other pixels."""
    regions = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
    windows = np.zeros_like(sizes)
    flips = np.zeros(len(sizes), np.uint8)
    current = sizes
    resized: NDArray[np.int32] | None = None
    how: tuple[Interpolation, bool] = ("bilinear", True)
    windowed, fill = False, tuple[float, ...]()
    for step in steps:
        match step:
            case Crop(boxes):
                corners, kept = boxes[:, :2], boxes[:, 2:]
                flipped = (flips[:, None] & np.array([TOP_BOTTOM, LEFT_RIGHT], np.uint8)) != 0
                corners = np.where(flipped, current - corners - kept, corners)
                outside = bool((corners < 0).any() or (corners + kept > current).any())
                if outside and windowed:  # what an earlier window has cut off would come back
                    return None
                if outside:
                    fill = step.fill
                    resized = current if resized is None else resized
                if resized is not None:
                    windows, windowed = windows + corners, True
                else:
                    regions = np.concatenate((regions[:, :2] + corners, kept), axis=1)
                current = kept
            case Scale(targets, interpolation, antialias):
                if resized is not None or flips.any():  # a filter's rounding is not symmetric
                    return None
                resized, how = targets, (interpolation, antialias)
                current = targets
            case Flip(mask, vertical):
                flips = flips ^ mask * np.uint8(TOP_BOTTOM if vertical else LEFT_RIGHT)
            case _:
                return None
    scaled = regions[:, 2:] if resized is None else resized
    return FusedSteps(sizes, regions, scaled, windows, current, flips, *how, fill)
