"""Steps carried out on one image at a time, by OpenCV: pixels are uint8 [height, width, channels]."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeAlias

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from .. import native
from ..native import hue
from ..transforms.steps import (
    LUMA,
    SMOOTH,
    AutoContrast,
    Blend,
    Blur,
    Crop,
    Equalize,
    Erase,
    Flip,
    Hue,
    InPlace,
    Posterize,
    Scale,
    Sharpen,
    Solarize,
    Step,
    Warp,
)

Pixels: TypeAlias = NDArray[np.uint8]

_INTERPOLATIONS = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
_BYTES = np.arange(256, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Action:
    """A step as plain Python values: reading NumPy scalars one by one costs more than the work that they steer.

    Attributes:
        step: the step.
        rows: for each image its values by the names of the step's arrays; None where it stays as it is.
        final: whether the result may be written into the slot. A later step that changes the size would read what it
            overwrites.
    """

    step: Step
    rows: list[Any]
    final: bool

    def __call__(self, pixels: Pixels, row: int, target: Pixels | None = None) -> Pixels:
        """The result for image `row`, in `target` where that is possible and has its size."""
        values = self.rows[row]
        if values is None:
            return pixels
        target = target if self.final else None
        match self.step:
            case Crop():
                return crop(pixels, values)
            case Scale():
                return _resize(pixels, self.step, values, target)
            case Flip():
                return _keep_channels(cv2.flip(pixels, 1, dst=target), pixels)
            case Warp():
                return _warp(pixels, values, self.step.bilinear)
        return _CHANGES[type(self.step)](pixels, values, self.step)


def actions(steps: Sequence[Step]) -> list[Action]:
    """The steps, to be carried out one by one."""
    last = max((place for place, step in enumerate(steps) if isinstance(step, Crop | Scale)), default=-1)
    return [Action(step, _rows(step), place >= last) for place, step in enumerate(steps)]


def _rows(step: Step) -> list[Any]:
    if isinstance(step, Crop | Scale):
        return list((step.boxes if isinstance(step, Crop) else step.sizes).tolist())
    values = [getattr(step, field.name) for field in fields(step)]
    columns = [v.tolist() for v in values[1:] if isinstance(v, np.ndarray)] or [step.mask.tolist()]
    return [row if changes else None for changes, *row in zip(step.mask.tolist(), *columns, strict=True)]


def crop(pixels: Pixels, box: list[int]) -> Pixels:
    """A box of top, left, height, width; black where there is no image. A view where it lies inside."""
    top, left, height, width = box
    inside = pixels[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.zeros((height, width, pixels.shape[2]), np.uint8)
    y, x = max(-top, 0), max(-left, 0)
    padded[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return padded


def _resize(pixels: Pixels, step: Scale, size: list[int], target: Pixels | None) -> Pixels:
    height, width = size
    if step.antialias and step.interpolation != "nearest" and (height < pixels.shape[0] or width < pixels.shape[1]):
        return _shrink(pixels, size, step.interpolation)
    # A target of another size is none: OpenCV then makes an array of its own.
    made = cv2.resize(pixels, (width, height), dst=target, interpolation=_INTERPOLATIONS[step.interpolation])
    return _keep_channels(made, pixels)


def _shrink(pixels: Pixels, size: list[int], interpolation: str) -> Pixels:
    """With a filter as wide as the step between pixels. OpenCV has none but the plain average, which is slower, too."""
    source = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).unsqueeze(0)
    made = torch.nn.functional.interpolate(source, size, mode=interpolation, antialias=True)
    result: Pixels = made[0].permute(1, 2, 0).numpy()
    return result


def _warp(pixels: Pixels, values: list[Any], bilinear: bool) -> Pixels:
    flags = (cv2.INTER_LINEAR if bilinear else cv2.INTER_NEAREST) | cv2.WARP_INVERSE_MAP
    matrix = np.array(values[0], np.float64)
    return _keep_channels(cv2.warpAffine(pixels, matrix, pixels.shape[1::-1], flags=flags), pixels)


def _keep_channels(made: Any, source: Pixels) -> Pixels:
    """OpenCV drops a last axis of one; put it back."""
    result: Pixels = made if made.ndim == 3 else made.reshape(*made.shape, source.shape[2])
    return result


def _round(values: NDArray[Any]) -> Pixels:
    made: Pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return made


def _look_up(pixels: Pixels, table: Pixels) -> Pixels:
    """By a table of 256 bytes, or [256, 1, channels]."""
    return _keep_channels(cv2.LUT(pixels, table), pixels)


def _blend(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    own, grey, of_mean = values
    weights = np.array(LUMA if pixels.shape[2] == 3 else (1.0,))
    offset = of_mean * float(np.dot(cv2.mean(pixels)[: len(weights)], weights)) if of_mean else 0.0
    if not grey or len(weights) == 1:
        return _look_up(pixels, _round((own + grey) * _BYTES + offset))
    matrix = np.empty((3, 4))
    matrix[:, :3] = own * np.eye(3) + grey * weights
    matrix[:, 3] = offset
    return np.asarray(cv2.transform(pixels, matrix), np.uint8)


def _hue(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    if pixels.shape[2] == 1:
        return pixels
    if native.library() is not None:
        made = np.array(pixels, order="C")  # a copy: what comes in may be needed again
        hue.adjust_hue(made, values[0])
        return made
    hsv = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_RGB2HSV)
    degrees = np.asarray(hsv[:, :, 0], np.float32)
    degrees += values[0] * 360
    degrees[degrees >= 360] -= 360
    degrees[degrees < 0] += 360
    return _round(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def _posterize(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    return pixels & np.uint8(values[0])


def _solarize(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    return _look_up(pixels, np.where(np.float32(values[0]) <= _BYTES, 255 - _BYTES, _BYTES).astype(np.uint8))


def _stretch(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    low, high = (f(pixels, axis=(0, 1)).astype(np.float32) for f in (np.min, np.max))
    flat = high == low
    scale, base = np.where(flat, 1, np.float32(255) / np.where(flat, 1, high - low)), np.where(flat, 0, low)
    return _look_up(pixels, _round((_BYTES[:, None] - base) * scale).reshape(256, 1, -1))


def _equalize(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    planes = [cv2.equalizeHist(np.ascontiguousarray(pixels[:, :, c])) for c in range(pixels.shape[2])]
    return np.stack(planes, axis=2).astype(np.uint8, copy=False)


def _sharpen(pixels: Pixels, values: list[Any], step: InPlace) -> Pixels:
    kernel = (1 - values[0]) * SMOOTH
    kernel[1, 1] += values[0]
    return _keep_channels(cv2.filter2D(pixels, -1, kernel, borderType=cv2.BORDER_REFLECT_101), pixels)


def _blur(pixels: Pixels, values: list[Any], step: Blur) -> Pixels:
    y, x = (gauss(side, values[0]) for side in step.kernel)
    return _keep_channels(cv2.sepFilter2D(pixels, -1, x, y, borderType=cv2.BORDER_REFLECT_101), pixels)


@lru_cache(maxsize=256)
def gauss(side: int, sigma: float) -> NDArray[np.float32]:
    """The weights of a Gaussian filter of `side` pixels; they add up to 1."""
    weights = np.exp(-0.5 * (np.arange(side) - (side - 1) / 2) ** 2 / sigma**2)
    kernel: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return kernel


def _erase(pixels: Pixels, values: list[Any], step: Erase) -> Pixels:
    top, left, height, width = values[0]
    made = pixels.copy()
    made[top : top + height, left : left + width] = _round(np.array(step.value))
    return made


_CHANGES: dict[type[Any], Callable[[Pixels, list[Any], Any], Pixels]] = {
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
