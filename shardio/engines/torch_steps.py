"""Steps carried out by torch on whole batches of images, uint8 [B, height, width, channels], on the tensors' device.

Arithmetic is float32, rounded to uint8 after each step.
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
from ..transforms.fuse import FusedSteps
from ..transforms.mixing import MixParams
from ..transforms.recipe import Recipe
from ..transforms.steps import (
    LUMA_WEIGHTS,
    SMOOTHING_KERNEL,
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
    return torch.cat([_resample(pixels, starts[rows] // channels, fused.rows(rows), size) for rows in parts])


def _resample(pixels: Tensor, starts: NDArray[np.int64], fused: FusedSteps, size: tuple[int, int]) -> Tensor:
    device, regions = pixels.device, fused.regions[:, 2:]
    (rows, down), (columns, across) = (
        resize_weights(
            regions[:, axis], fused.resized[:, axis], fused.windows[:, axis], count, fused.interpolation,
            antialias=fused.antialias,
        )
        for axis, count in enumerate(size)
    )  # fmt: skip
    flips = fused.flips[:, None, None]
    columns, across = (np.where(flips, array[:, ::-1], array) for array in (columns, across))
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
    """Convert uint8 to floats [B, C, H, W] by the recipe's affine, in one kernel; without one, return the images."""
    if recipe.affine is None:
        return images
    count, height, width, channels = images.shape
    factor, offset = to_device(recipe.affine.T, images.device).reshape(2, 1, channels, 1, 1)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    dtype = getattr(torch, recipe.dtype)
    out = torch.empty((count, channels, height, width), dtype=dtype, device=images.device, memory_format=layout)
    return torch.addcmul(offset, images.permute(0, 3, 1, 2), factor, out=out)


def convert_and_erase(images: Tensor, recipe: Recipe, erasings: Sequence[Step], *, channels_last: bool) -> Tensor:
    """Convert uint8 images to the recipe's dtype and carry out the steps that follow the conversion."""
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


def _to_uint8(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _planes(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float()


def _luma(images: Tensor) -> Tensor:
    return to_device(np.array(LUMA_WEIGHTS if images.shape[3] == 3 else (1.0,), np.float32), images.device)


def _flip(images: Tensor) -> Tensor:
    return images.flip(2)


def _warp(images: Tensor, matrices: Tensor, bilinear: bool) -> Tensor:
    _, height, width, _ = images.shape
    y, x = torch.meshgrid(
        *(torch.arange(side, device=images.device).float() for side in (height, width)), indexing="ij"
    )
    # Written out, because a GPU may compute a matrix product with reduced precision (TF32).
    a = matrices[:, :, :, None, None]
    sources = (a[:, axis, 0] * x + a[:, axis, 1] * y + a[:, axis, 2] for axis in (0, 1))
    grid = torch.stack([(2 * xy + 1) / side - 1 for xy, side in zip(sources, (width, height), strict=True)], dim=-1)
    mode = "bilinear" if bilinear else "nearest"
    warped = functional.grid_sample(_planes(images), grid, mode, "zeros", align_corners=False)
    return _to_uint8(warped.permute(0, 2, 3, 1))


def _blend(images: Tensor, pixel: Tensor, grey: Tensor, mean: Tensor) -> Tensor:
    values, weights = images.float(), _luma(images)
    greys = values @ weights
    shift = grey[:, None, None] * greys + (mean * greys.mean(dim=(1, 2)))[:, None, None]
    return _to_uint8(_per_image(pixel) * values + shift[..., None])


def _hue(images: Tensor, shifts: Tensor) -> Tensor:
    if images.shape[3] == 1:
        return images
    values = images.float()
    r, g, b = values.unbind(3)
    high, low = values.amax(3), values.amin(3)
    span = high - low
    per = 1 / span.clamp(min=1)
    hue = torch.where(high == r, (g - b) * per, torch.where(high == g, 2 + (b - r) * per, 4 + (r - g) * per))
    hue = hue + 6 * shifts[:, None, None]
    turned = [(hue + turn).remainder(6) for turn in (5, 3, 1)]
    return _to_uint8(torch.stack([high - span * torch.minimum(k, 4 - k).clamp(0, 1) for k in turned], dim=3))


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    return images & _per_image(bits)


def _solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    return torch.where(images >= _per_image(thresholds), 255 - images, images)


def _stretch(images: Tensor) -> Tensor:
    low, high = images.amin((1, 2), keepdim=True).float(), images.amax((1, 2), keepdim=True).float()
    flat = high == low
    stretched = (images.float() - low) * (255 / (high - low + flat.float()))
    return torch.where(flat, images, _to_uint8(stretched))


def _equalize(images: Tensor) -> Tensor:
    count, height, width, channels = images.shape
    planes = images.permute(0, 3, 1, 2).reshape(count * channels, -1).long()
    histograms = torch.zeros(count * channels, 256, device=images.device)
    histograms.scatter_add_(1, planes, torch.ones_like(planes, dtype=torch.float32))
    first = histograms.gather(1, planes.amin(1, keepdim=True))
    rest = height * width - first
    table = _to_uint8((histograms.cumsum(1) - first).clamp(min=0) * (255 / rest.clamp(min=1)))
    equalized = torch.where(rest > 0, table.gather(1, planes), planes.to(torch.uint8))
    return equalized.reshape(count, channels, height, width).permute(0, 2, 3, 1).contiguous()


def _mirrored(side: int, reach: int) -> NDArray[np.int64]:
    """Return the pixels of a row of `side` pixels extended by `reach` on both ends, mirrored as often as needed."""
    period = max(1, 2 * (side - 1))
    positions = np.arange(-reach, side + reach) % period
    return np.minimum(positions, period - positions) if side > 1 else np.zeros_like(positions)


def _filter(planes: Tensor, kernels: Tensor) -> Tensor:
    """Filter each image with its own kernel, [B, height, width]; borders are mirrored."""
    count, channels, height, width = planes.shape
    rows, columns = kernels.shape[1:]
    down, across = (_mirrored(side, reach // 2) for side, reach in ((height, rows), (width, columns)))
    padded = planes[:, :, to_device(down, planes.device)][:, :, :, to_device(across, planes.device)]
    weights = kernels[:, None, None].expand(-1, channels, -1, -1, -1).reshape(count * channels, 1, rows, columns)
    result = functional.conv2d(padded.reshape(1, count * channels, *padded.shape[2:]), weights, groups=count * channels)
    return result.reshape(count, channels, height, width)


def _sharpen(images: Tensor, factors: Tensor) -> Tensor:
    smooth = to_device(SMOOTHING_KERNEL, images.device)
    kernels = (1 - factors)[:, None, None] * smooth
    kernels[:, 1, 1] += factors
    return _to_uint8(_filter(_planes(images), kernels).permute(0, 2, 3, 1))


def _blur(images: Tensor, sigmas: Tensor, kernel: tuple[int, int]) -> Tensor:
    planes = _planes(images)
    for side, across in zip(kernel, (False, True), strict=True):
        offsets = torch.arange(side, device=images.device) - (side - 1) / 2
        weights = torch.exp(-0.5 * (offsets / sigmas[:, None]) ** 2)
        weights = weights / weights.sum(1, keepdim=True)
        planes = _filter(planes, weights[:, None, :] if across else weights[:, :, None])
    return _to_uint8(planes.permute(0, 2, 3, 1))


def _erase(images: Tensor, boxes: Tensor, value: Sequence[float]) -> Tensor:
    inside: Tensor | None = None
    for axis in (0, 1):
        positions = torch.arange(images.shape[1 + axis], device=images.device)
        within = (positions >= boxes[:, axis, None]) & (positions < (boxes[:, axis] + boxes[:, 2 + axis])[:, None])
        inside = within[:, :, None] if inside is None else inside & within[:, None, :]
    fill = _to_uint8(to_device(np.array(value, np.float32), images.device))
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
