"""Fusion of steps: crops, resizes and flips as one region, resized once, of which a window is kept and perhaps flipped.

RandomResizedCrop and flip, Resize and CenterCrop, CenterCrop alone and other usual lists have this form, which an
engine carries out in one pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .steps import Crop, Flip, Scale, Sizes, Step


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """Crop, resize (bilinear, without antialiasing), crop and flip in one, with a row per image.

    Attributes:
        images: height and width of the image, int32 [B, 2].
        regions: top, left, height and width of the region in the image, int32 [B, 4].
        resized: height and width that the region is resized to, int32 [B, 2].
        windows: top and left of the kept window in the resized region, int32 [B, 2].
        flips: whether to mirror the window left to right, bool [B].
    """

    images: Sizes
    regions: NDArray[np.int32]
    resized: NDArray[np.int32]
    windows: NDArray[np.int32]
    flips: NDArray[np.bool_]


def fuse(steps: Sequence[Step], sizes: Sizes) -> FusedSteps | None:
    """Fuse the steps for images of these heights and widths; None where that would give other pixels."""
    regions = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
    windows = np.zeros_like(sizes)
    flips = np.zeros(len(sizes), np.bool_)
    current = sizes
    resized: NDArray[np.int32] | None = None
    for step in steps:
        match step:
            case Crop(boxes):
                ends = boxes[:, :2] + boxes[:, 2:]
                if flips.any() or (boxes[:, :2] < 0).any() or (ends > current).any():
                    return None
                if resized is not None:
                    windows = windows + boxes[:, :2]
                else:
                    regions = np.concatenate((regions[:, :2] + boxes[:, :2], boxes[:, 2:]), axis=1)
                current = boxes[:, 2:]
            case Scale(targets, interpolation, antialias):
                shrinks = (targets < current).any()
                if resized is not None or interpolation != "bilinear" or (antialias and shrinks):
                    return None
                resized = current = targets
            case Flip(mask):
                flips = flips ^ mask
            case _:
                return None
    return FusedSteps(sizes, regions, regions[:, 2:] if resized is None else resized, windows, flips)
