"""Crops and resizes of one image: resizes by compiled code, or else by Pillow, which gives the same bytes."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .. import native
from ..transforms.fuse import FusedSteps
from ..transforms.steps import Interpolation
from .fused_images import FusedImages


def cropped(pixels: NDArray[np.uint8], box: list[int], fill: tuple[float, ...] = ()) -> NDArray[np.uint8]:
    """Crop to a box (top, left, height, width), with `fill` outside of the image. A view if the box is inside."""
    top, left, height, width = box
    inside = pixels[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.full((height, width, pixels.shape[2]), np.array(fill or 0, np.uint8))
    y, x = max(-top, 0), max(-left, 0)
    padded[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return padded


def resize(
    pixels: NDArray[np.uint8], size: tuple[int, int], interpolation: Interpolation, antialias: bool
) -> NDArray[np.uint8]:
    """Return an image, uint8 [height, width, channels], resized to `size`; see `steps.Scale`.

    Without the compiled part, torch makes what is not antialiased; it may differ by 1.
    """
    if pixels.shape[:2] == size:
        return pixels
    channels, shapes = pixels.shape[2], np.array([pixels.shape[:2], size], np.int32)
    fused = FusedSteps.of_resize(shapes[:1], shapes[1:], interpolation, antialias)
    if native.library() is not None:
        out = np.empty((1, *size, channels), np.uint8)
        if _images(channels).resize([np.ascontiguousarray(pixels)], fused, out):
            raise MemoryError("there is no memory to resize an image")
        made: NDArray[np.uint8] = out[0]
        return made
    if antialias or interpolation == "nearest":
        image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
        made = np.asarray(resized(image, size, interpolation))
    else:
        # Conversions import this module, and go without torch.
        import torch

        from .torch_steps import resample

        made = resample(torch.from_numpy(np.array(pixels)), np.zeros(1, np.int64), fused, size, channels).numpy()
    return made.reshape(*size, channels)


def resized(image: Image.Image, size: tuple[int, int], interpolation: Interpolation) -> Image.Image:
    """Return what Pillow 13's `resize` makes of an image, (height, width), on any Pillow."""
    method, shorter, narrower = Image.Resampling[interpolation.upper()], image.height - size[0], image.width - size[1]
    if interpolation != "nearest" and shorter > max(0, 2 * narrower):
        image = image.resize((image.width, size[0]), method)  # older ones would begin horizontally all the same
    return image.resize(size[::-1], method)


@cache
def _images(channels: int) -> FusedImages:
    return FusedImages(channels)
