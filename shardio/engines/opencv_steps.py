"""Steps carried out by OpenCV, one image at a time. Pixels are uint8 [height, width, channels]."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from .. import native
from ..native import hue
from ..transforms.steps import (
    LUMA_WEIGHTS,
    SMOOTHING_KERNEL,
    AutoContrast,
    Blend,
    Blur,
    Crop,
    Equalize,
    Erase,
    Flip,
    Hue,
    Posterize,
    Scale,
    Sharpen,
    SizePreservingStep,
    Solarize,
    Step,
    Warp,
)
from .resizing import resize

PixelArray: TypeAlias = NDArray[np.uint8]
"""One image, uint8 [height, width, channels]."""

_LEVELS = np.arange(256, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step whose arrays are Python values: reading NumPy scalars one by one costs more than the work they control.

    Attributes:
        step: the step.
        rows: for each image the values of the step's arrays; None for an image that does not change.
        final: whether the result may be written into the batch. A later step that changes the size would overwrite
            what it reads.
    """

    step: Step
    rows: list[Any]
    final: bool

    def __call__(self, pixels: PixelArray, row: int, target: PixelArray | None = None) -> PixelArray:
        """Return the result for image `row`, in `target` if the step can write there and the size fits."""
        values = self.rows[row]
        if values is None:
            return pixels
        target = target if self.final else None
        match self.step:
            case Crop():
                return crop(pixels, values)
            case Scale(_, interpolation, antialias):
                return resize(pixels, (values[0], values[1]), interpolation, antialias)
            case Flip():
                return _keep_channels(cv2.flip(pixels, 1, dst=target), pixels)
            case Warp():
                return _warp(pixels, values, self.step.bilinear)
        return _OPERATIONS[type(self.step)](pixels, values, self.step)


def prepare(steps: Sequence[Step]) -> list[PreparedStep]:
    """Prepare steps to be carried out on single images."""
    last = max((position for position, step in enumerate(steps) if isinstance(step, Crop | Scale)), default=-1)
    return [PreparedStep(step, _rows(step), position >= last) for position, step in enumerate(steps)]


def _rows(step: Step) -> list[Any]:
    if isinstance(step, Crop | Scale):
        return list((step.boxes if isinstance(step, Crop) else step.sizes).tolist())
    values = [getattr(step, field.name) for field in fields(step)]
    columns = [v.tolist() for v in values[1:] if isinstance(v, np.ndarray)] or [step.mask.tolist()]
    return [row if changes else None for changes, *row in zip(step.mask.tolist(), *columns, strict=True)]


def crop(pixels: PixelArray, box: list[int]) -> PixelArray:
    """Crop to a box (top, left, height, width), black outside of the image. A view if the box lies inside."""
    top, left, height, width = box
    inside = pixels[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.zeros((height, width, pixels.shape[2]), np.uint8)
    y, x = max(-top, 0), max(-left, 0)
    padded[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return padded


def _warp(pixels: PixelArray, values: list[Any], bilinear: bool) -> PixelArray:
    flags = (cv2.INTER_LINEAR if bilinear else cv2.INTER_NEAREST) | cv2.WARP_INVERSE_MAP
    matrix = np.array(values[0], np.float64)
    return _keep_channels(cv2.warpAffine(pixels, matrix, pixels.shape[1::-1], flags=flags), pixels)


def _keep_channels(pixels: Any, source: PixelArray) -> PixelArray:
    """Restore a last axis of length one, which OpenCV drops."""
    result: PixelArray = pixels if pixels.ndim == 3 else pixels.reshape(*pixels.shape, source.shape[2])
    return result


def _round(values: NDArray[Any]) -> PixelArray:
    rounded: PixelArray = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def _look_up(pixels: PixelArray, table: PixelArray) -> PixelArray:
    """Map pixels by a table of uint8, [256] or [256, 1, channels]."""
    return _keep_channels(cv2.LUT(pixels, table), pixels)


def _blend(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    pixel, grey, mean = values
    weights = np.array(LUMA_WEIGHTS if pixels.shape[2] == 3 else (1.0,))
    offset = mean * float(np.dot(cv2.mean(pixels)[: len(weights)], weights)) if mean else 0.0
    if not grey or len(weights) == 1:
        return _look_up(pixels, _round((pixel + grey) * _LEVELS + offset))
    matrix = np.empty((3, 4))
    matrix[:, :3] = pixel * np.eye(3) + grey * weights
    matrix[:, 3] = offset
    return np.asarray(cv2.transform(pixels, matrix), np.uint8)


def _hue(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    if pixels.shape[2] == 1:
        return pixels
    if native.library() is not None:
        turned = np.array(pixels, order="C")  # a copy: the input must stay as it is
        hue.adjust_hue(turned, values[0])
        return turned
    hsv = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_RGB2HSV)
    degrees = np.asarray(hsv[:, :, 0], np.float32)
    degrees += values[0] * 360
    degrees[degrees >= 360] -= 360
    degrees[degrees < 0] += 360
    return _round(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def _posterize(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    return pixels & np.uint8(values[0])


def _solarize(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    return _look_up(pixels, np.where(np.float32(values[0]) <= _LEVELS, 255 - _LEVELS, _LEVELS).astype(np.uint8))


def _stretch(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    low, high = (f(pixels, axis=(0, 1)).astype(np.float32) for f in (np.min, np.max))
    flat = high == low
    scale, base = np.where(flat, 1, np.float32(255) / np.where(flat, 1, high - low)), np.where(flat, 0, low)
    return _look_up(pixels, _round((_LEVELS[:, None] - base) * scale).reshape(256, 1, -1))


def _equalize(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    planes = [cv2.equalizeHist(np.ascontiguousarray(pixels[:, :, c])) for c in range(pixels.shape[2])]
    return np.stack(planes, axis=2).astype(np.uint8, copy=False)


def _sharpen(pixels: PixelArray, values: list[Any], step: SizePreservingStep) -> PixelArray:
    kernel = (1 - values[0]) * SMOOTHING_KERNEL
    kernel[1, 1] += values[0]
    return _keep_channels(cv2.filter2D(pixels, -1, kernel, borderType=cv2.BORDER_REFLECT_101), pixels)


def _blur(pixels: PixelArray, values: list[Any], step: Blur) -> PixelArray:
    y, x = (gaussian_kernel(side, values[0]) for side in step.kernel)
    return _keep_channels(cv2.sepFilter2D(pixels, -1, x, y, borderType=cv2.BORDER_REFLECT_101), pixels)


@lru_cache(maxsize=256)
def gaussian_kernel(side: int, sigma: float) -> NDArray[np.float32]:
    """Return the weights of a Gaussian filter of `side` pixels, which sum to 1."""
    weights = np.exp(-0.5 * (np.arange(side) - (side - 1) / 2) ** 2 / sigma**2)
    kernel: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return kernel


def _erase(pixels: PixelArray, values: list[Any], step: Erase) -> PixelArray:
    top, left, height, width = values[0]
    erased = pixels.copy()
    erased[top : top + height, left : left + width] = _round(np.array(step.value))
    return erased


_OPERATIONS: dict[type[Any], Callable[[PixelArray, list[Any], Any], PixelArray]] = {
    Blend: _blend,
    Hue: _hue,
    Posterize: _posterize,
    Solarize: _solarize,
    AutoContrast: _stretch,
    Equalize: _equalize,
    Sharpen: _sharpen,
    Blur: _blur,
    Erase: _erase,
}
