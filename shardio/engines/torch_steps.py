"""Steps carried out by torch on whole batches of images, uint8 [B, height, width, channels], on the tensors' device.

The bytes are those of `native/steps.c`, but for `Blur`, whose sums are rounded in another order.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..transforms.filters import resize_weights
from ..transforms.fuse import LEFT_RIGHT, TOP_BOTTOM, FusedSteps
from ..transforms.mixing import MixParams
from ..transforms.recipe import Recipe
from ..transforms.steps import (
    GREY_WEIGHTS,
    MEAN_GREY,
    OWN_GREY,
    PILLOW_HUES_ONE_LESS,
    SMOOTHING_WEIGHTS,
    AutoContrast,
    Blend,
    Blur,
    Equalize,
    Erase,
    Flip,
    Hue,
    Posterize,
    Sharpen,
    SizePreservingStep,
    Solarize,
    Step,
    Warp,
)
from .base import rows_of


def apply_step(images: Tensor, step: SizePreservingStep) -> Tensor:
    """Carry out a step on a batch and return the result; the input stays as it is."""
    rows = np.flatnonzero(step.mask)
    if not len(rows):
        return images
    values = [getattr(step, field.name) for field in fields(step)][1:]
    arrays = [to_device(value[rows], images.device) if isinstance(value, np.ndarray) else value for value in values]
    if len(rows) == len(images):
        return _OPERATIONS[type(step)](images, *arrays)
    changed = to_device(rows, images.device)
    return images.index_copy(0, changed, _OPERATIONS[type(step)](images[changed], *arrays))


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device; to a GPU from page-locked memory, so that nothing waits for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


_IMAGES_AT_ONCE = 32
"""Images that are resized in one go: intermediate floats take eight times the memory of their pixels."""


def resample(
    flat: Tensor, starts: NDArray[np.int64], fused: FusedSteps, size: tuple[int, int], channels: int
) -> Tensor:
    """Resize, crop and flip regions of different sizes into one batch, as Pillow does but in floats.

    Args:
        flat: the regions end to end, each HWC, uint8.
        starts: the index in `flat` at which each region begins, int64 [B].
        fused: the steps to carry out.
        size: height and width of the results in pixels.
        channels: the number of channels of the images.

    Returns:
        uint8 [B, height, width, channels].
    """
    pixels, count = flat.reshape(-1, channels), len(starts)
    parts = (np.arange(begin, min(begin + _IMAGES_AT_ONCE, count)) for begin in range(0, count, _IMAGES_AT_ONCE))
    return torch.cat([_resample(pixels, starts[rows] // channels, rows_of(fused, rows), size) for rows in parts])


def _resample(pixels: Tensor, starts: NDArray[np.int64], fused: FusedSteps, size: tuple[int, int]) -> Tensor:
    device, regions = pixels.device, fused.regions[:, 2:]
    (rows, down), (columns, across) = (
        resize_weights(
            regions[:, axis], fused.resized[:, axis], fused.windows[:, axis], count, fused.interpolation,
            antialias=fused.antialias,
        )
        for axis, count in enumerate(size)
    )  # fmt: skip
    left_right, top_bottom = ((fused.flips & flip != 0)[:, None, None] for flip in (LEFT_RIGHT, TOP_BOTTOM))
    columns, across = (np.where(left_right, array[:, ::-1], array) for array in (columns, across))
    rows, down = (np.where(top_bottom, array[:, ::-1], array) for array in (rows, down))
    source_rows = np.minimum(np.arange(int(regions[:, 0].max())), regions[:, :1] - 1)
    lines = to_device(starts[:, None] + source_rows * regions[:, 1:].astype(np.int64), device)[:, :, None]
    places, weights = to_device(columns, device)[:, None], to_device(across, device)[:, None, :, :, None]
    wide = sum(pixels[lines + places[..., tap]] * weights[..., tap, :] for tap in range(columns.shape[2]))
    wide = _rounded(wide)
    places, weights = to_device(rows, device), to_device(down, device)[:, :, :, None, None]
    images = torch.arange(len(starts), device=device)[:, None]
    made = sum(wide[images, places[..., tap]] * weights[:, :, tap] for tap in range(rows.shape[2]))
    return _rounded(made).to(torch.uint8)


def _rounded(values: Tensor | int) -> Tensor:
    assert isinstance(values, Tensor)
    return values.add_(0.5).floor_().clamp_(0, 255)


def mix_images(images: Tensor, params: MixParams) -> Tensor:
    """Mix each image with its partner: floats [B, C, H, W], or with a box also uint8 [B, H, W, C]."""
    partners = to_device(params.partners, images.device)
    if params.box is None:
        return torch.lerp(images[partners], images, params.share)
    top, left, height, width = params.box
    rows, columns = slice(top, top + height), slice(left, left + width)
    box = (slice(None), rows, columns) if images.dtype == torch.uint8 else (slice(None), slice(None), rows, columns)
    mixed = images.clone()
    mixed[box] = images[box][partners]
    return mixed


def to_floats(images: Tensor, recipe: Recipe, *, channels_last: bool) -> Tensor:
    """Convert uint8 to floats [B, C, H, W] as `Recipe.to_floats` does; return the images if the recipe leaves uint8."""
    if recipe.normalization is None:
        return images
    layout = torch.channels_last if channels_last else torch.contiguous_format
    mean, std = to_device(recipe.normalization.T, images.device)[..., None, None]
    floats = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=layout)
    return floats.mul_(1 / 255).sub_(mean).div_(std).to(getattr(torch, recipe.dtype))


def convert_and_erase(images: Tensor, recipe: Recipe, erasings: Sequence[Step], *, channels_last: bool) -> Tensor:
    """Convert uint8 images, or uint16 masks, to the recipe's dtype; carry out the steps that follow the conversion."""
    if recipe.is_mask:
        return images.view(torch.int16).to(torch.int64) & 0xFFFF  # devices convert no uint16
    images = to_floats(images, recipe, channels_last=channels_last)
    for step in erasings:
        images = erase(images, step) if isinstance(step, Erase) else images
    return images


def erase(images: Tensor, step: Erase) -> Tensor:
    """Set boxes of images [B, C, H, W] to the step's value, in place."""
    value = to_device(np.array(step.value, np.float32), images.device).to(images.dtype)[:, None, None]
    for row in np.flatnonzero(step.mask).tolist():
        top, left, height, width = step.boxes[row].tolist()
        images[row, :, top : top + height, left : left + width] = value
    return images


def _cut_off(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _flip(images: Tensor, vertical: bool) -> Tensor:
    return images.flip(1 if vertical else 2)


def _warp(images: Tensor, matrices: Tensor, bilinear: bool) -> Tensor:
    count, height, width, _ = images.shape
    device = images.device
    a = matrices.reshape(count, 6, 1, 1).unbind(1)
    rows, columns = torch.arange(height, device=device)[:, None], torch.arange(width, device=device)
    if bilinear:  # written out, because a GPU may compute a matrix product with reduced precision (TF32)
        xs, ys = columns + 0.5, rows + 0.5
        x, y = (a[i] * xs + a[i + 1] * ys + a[i + 2] for i in (0, 3))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        warped = _interpolate(images, x - 0.5, y - 0.5)
    else:  # in units of 2^-16 pixels
        unit = [(value * 65536 + 0.5).floor().long() for value in a]
        start = [((a[i + 2] + a[i] * 0.5 + a[i + 1] * 0.5) * 65536 + 0.5).floor().long() for i in (0, 3)]
        x, y = ((start[n] + unit[i] * columns + unit[i + 1] * rows) >> 16 for n, i in enumerate((0, 3)))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        warped = images[_numbers(images), y.clamp(0, height - 1), x.clamp(0, width - 1)]
    return warped * inside[..., None]


def _numbers(images: Tensor) -> Tensor:
    return torch.arange(len(images), device=images.device)[:, None, None]


def _interpolate(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate between the four pixels around places [B, height, width] in float64, cut off."""
    height, width = images.shape[1:3]
    numbers, left, top = _numbers(images), x.floor(), y.floor()
    dx, dy = (x - left)[..., None], (y - top)[..., None]
    columns = [(left + offset).clamp(0, width - 1).long() for offset in (0, 1)]
    lines = []
    for offset in (0, 1):
        row = (top + offset).clamp(0, height - 1).long()
        one, other = (images[numbers, row, column].double() for column in columns)
        lines.append(one + (other - one) * dx)
    upper, lower = lines
    lower = torch.where((top + 1 < height)[..., None], lower, upper)
    return (upper + (lower - upper) * dy).to(torch.uint8)


def _greys(images: Tensor) -> Tensor:
    """The grey value of each pixel, int32 [B, height, width, 1]."""
    if images.shape[3] == 1:
        return images.int()
    weighted = sum(images[..., c].int() * weight for c, weight in enumerate(GREY_WEIGHTS))
    assert isinstance(weighted, Tensor)
    return ((weighted + 32768) >> 16)[..., None]


def _blend(images: Tensor, factors: Tensor, bases: Tensor) -> Tensor:
    greys = _greys(images)
    means = (greys.double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).int()
    base = torch.where(_per_image(bases == OWN_GREY), greys, means * _per_image(bases == MEAN_GREY))
    return _between(base, images, factors)


def _between(base: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    return _cut_off(base.float() + _per_image(factors) * (images.int() - base).float())


def _hue(images: Tensor, turns: Tensor) -> Tensor:
    if images.shape[3] == 1:
        return images
    r, g, b = images.int().unbind(3)
    high, low = images.amax(3).int(), images.amin(3).int()
    span = high - low
    sixths = torch.where(high == r, g - b, torch.where(high == g, 2 * span + b - r, 4 * span + r - g))
    sixths = 85 * (sixths + 6 * span * (sixths < 0))
    parts = 2 * span.clamp(min=1)
    hue = sixths // parts
    less = to_device(PILLOW_HUES_ONE_LESS, images.device)[hue.long()]
    hue = (hue - (less & (hue * parts == sixths)).int() + turns.int()[:, None, None]) & 255
    saturation = 255 * span // high.clamp(min=1)
    planes = []
    for place in (425, 255, 85):
        k = (2 * hue + place) % 510
        k = torch.minimum(k, 340 - k).clamp(0, 85)
        planes.append(high - (high * saturation * k + 10837) // 21675)
    return torch.stack(planes, dim=3).to(torch.uint8)


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    return images & _per_image(bits)


def _solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    return torch.where(images >= _per_image(thresholds), 255 - images, images)


def _stretch(images: Tensor) -> Tensor:
    low, high = images.amin((1, 2), keepdim=True).double(), images.amax((1, 2), keepdim=True).double()
    flat = high == low
    span = high - low + flat.double()
    scale = torch.full_like(span, 255) / span  # 255 / span would multiply by the rounded inverse
    return torch.where(flat, images, _cut_off(images * scale - low * scale))


def _equalize(images: Tensor) -> Tensor:
    count, height, width, channels = images.shape
    planes = images.permute(0, 3, 1, 2).reshape(count * channels, -1).long()
    histograms = torch.zeros(count * channels, 256, dtype=torch.int64, device=images.device)
    histograms.scatter_add_(1, planes, torch.ones_like(planes))
    step = (height * width - histograms.gather(1, planes.amax(1, keepdim=True))) // 255
    table = (histograms.cumsum(1) - histograms + step // 2) // step.clamp(min=1)
    equalized = torch.where(step > 0, table.clamp(max=255).gather(1, planes), planes).to(torch.uint8)
    return equalized.reshape(count, channels, height, width).permute(0, 2, 3, 1).contiguous()


def _mirrored(side: int, reach: int) -> NDArray[np.int64]:
    """Return the pixels of a row of `side` pixels extended by `reach` on both ends, reflected as often as needed."""
    period = max(1, 2 * (side - 1))
    positions = np.arange(-reach, side + reach) % period
    return np.minimum(positions, period - positions) if side > 1 else np.zeros_like(positions)


def _filter(planes: Tensor, kernels: Tensor) -> Tensor:
    """Filter each image with its own kernel, [B, height, width]; borders are reflected."""
    count, channels, height, width = planes.shape
    rows, columns = kernels.shape[1:]
    down, across = (_mirrored(side, reach // 2) for side, reach in ((height, rows), (width, columns)))
    padded = planes[:, :, to_device(down, planes.device)][:, :, :, to_device(across, planes.device)]
    weights = kernels[:, None, None].expand(-1, channels, -1, -1, -1).reshape(count * channels, 1, rows, columns)
    result = functional.conv2d(padded.reshape(1, count * channels, *padded.shape[2:]), weights, groups=count * channels)
    return result.reshape(count, channels, height, width)


def _sharpen(images: Tensor, factors: Tensor) -> Tensor:
    height, width = images.shape[1:3]
    smooth = images.int().clone()
    if height > 2 and width > 2:
        sums = sum(
            weight * images[:, y : height - 2 + y, x : width - 2 + x].int()
            for y, row in enumerate(SMOOTHING_WEIGHTS)
            for x, weight in enumerate(row)
        )
        smooth[:, 1:-1, 1:-1] = (2 * sums + 13) // 26
    return _between(smooth, images, factors)


def _blur(images: Tensor, sigmas: Tensor, kernel: tuple[int, int]) -> Tensor:
    planes = images.permute(0, 3, 1, 2).float()
    for side, across in zip(kernel[::-1], (True, False), strict=True):
        offsets = torch.arange(side, device=images.device) - (side - 1) / 2
        weights = torch.exp(-0.5 * (offsets / sigmas[:, None]) ** 2)
        weights = weights / weights.sum(1, keepdim=True)
        planes = _filter(planes, weights[:, None, :] if across else weights[:, :, None])
    return _cut_off(planes.permute(0, 2, 3, 1).round())


def _erase(images: Tensor, boxes: Tensor, value: Sequence[float]) -> Tensor:
    inside: Tensor | None = None
    for axis in (0, 1):
        positions = torch.arange(images.shape[1 + axis], device=images.device)
        within = (positions >= boxes[:, axis, None]) & (positions < (boxes[:, axis] + boxes[:, 2 + axis])[:, None])
        inside = within[:, :, None] if inside is None else inside & within[:, None, :]
    fill = _cut_off(to_device(np.array(value, np.float32), images.device).round())
    return images if inside is None else torch.where(inside[..., None], fill, images)


_OPERATIONS: dict[type[Any], Callable[..., Tensor]] = {
    Flip: _flip,
    Warp: _warp,
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
