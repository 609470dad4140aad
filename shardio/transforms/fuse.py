"""Steps put together: a region of the image, resized once, a window of the result, mirrored or not.

Crop, resize and flip in their usual orders are all of this form, which an engine can carry out in one go: for example
RandomResizedCrop and flip, Resize and CenterCrop, CenterCrop alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .steps import Crop, Flip, Scale, Sizes, Step


@dataclass(frozen=True, slots=True)
class Fused:
    """One row per image.

    Attributes:
        images: height and width of the image, int32 [B, 2].
        boxes: top, left, height, width of the region in the image, int32 [B, 4].
        scaled: height and width that the region is resized to (bilinear, without a filter), int32 [B, 2].
        windows: top and left, in the resized region, of what is wanted of it, int32 [B, 2].
        flips: whether to mirror the window left to right, bool [B].
    """

    images: Sizes
    boxes: NDArray[np.int32]
    scaled: NDArray[np.int32]
    windows: NDArray[np.int32]
    flips: NDArray[np.bool_]


def fuse(steps: Sequence[Step], sizes: Sizes) -> Fused | None:
    """The steps for images of these sizes (height, width) as one; None where that would not give the same pixels."""
    boxes = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
    windows = np.zeros_like(sizes)
    flips = np.zeros(len(sizes), np.bool_)
    now, resized = sizes, False
    scaled: NDArray[np.int32] | None = None
    for step in steps:
        match step:
            case Crop(crops):
                ends = crops[:, :2] + crops[:, 2:]
                if flips.any() or (crops[:, :2] < 0).any() or (ends > now).any():
                    return None
                if resized:
                    windows = windows + crops[:, :2]
                else:
                    boxes = np.concatenate((boxes[:, :2] + crops[:, :2], crops[:, 2:]), axis=1)
                now = crops[:, 2:]
            case Scale(targets, interpolation, antialias):
                shrinks = (targets < now).any()
                if resized or interpolation != "bilinear" or (antialias and shrinks):
                    return None
                scaled, now, resized = targets, targets, True
            case Flip(mask):
                flips = flips ^ mask
            case _:
                return None
    return Fused(sizes, boxes, boxes[:, 2:] if scaled is None else scaled, windows, flips)
