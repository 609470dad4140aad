"""Steps that preserve the size of images, carried out on a batch in one call, without the GIL (`native/steps.c`).

Without the compiled part, torch makes the same bytes; those of `Blur` are nearly the same.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from .. import native
from ..transforms.steps import Blur, Erase, Flip, SizePreservingStep, Warp
from .base import step_arrays
from .torch_steps import apply_step

KINDS = get_args(SizePreservingStep)
"""The kinds of steps, in the order of `native/steps.h`."""


class _Step(ctypes.Structure):
    """The struct `Step` of `native/steps.h`."""

    _fields_ = [
        ("kind", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("more", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("way", ctypes.c_int64),
    ]


def carry_out(images: NDArray[np.uint8], steps: Sequence[SizePreservingStep]) -> None:
    """Carry out steps in place.

    Args:
        images: the images, uint8 [n, height, width, channels]; each is C-contiguous.
        steps: the steps, with a row per image.

    Raises:
        MemoryError: if there is no memory for copies of the largest image.
    """
    steps = [step for step in steps if step.mask.any()]
    library = native.library()
    if not steps:
        return
    if library is None:
        tensor = torch.from_numpy(images)
        for step in steps:
            tensor.copy_(apply_step(tensor, step))
        return
    arrays = [arrays_of(step, images.shape[3]) for step in steps]
    table = (_Step * len(steps))(*map(_as_struct, steps, arrays))
    count, apart, number = map(ctypes.c_int64, (len(images), images.strides[0], len(steps)))
    shape = (ctypes.c_int32 * 3)(*images.shape[1:])
    if library.shardio_carry_out(count, ctypes.c_void_p(images.ctypes.data), apart, shape, table, number):
        raise MemoryError("there is no memory to transform an image")


def arrays_of(step: SizePreservingStep, channels: int) -> list[NDArray[Any]]:
    """Return a step's mask and values as the compiled part takes them."""
    mask, *arrays = step_arrays(step).values()
    match step:
        case Blur():
            arrays = [gaussian_filters(step.sigmas, side) for side in step.kernel]
        case Erase():
            arrays.append(np.broadcast_to(np.rint(step.value).clip(0, 255).astype(np.uint8), channels))
    return [np.ascontiguousarray(array) for array in (mask, *arrays)]


def _as_struct(step: SizePreservingStep, arrays: list[NDArray[Any]]) -> _Step:
    addresses = [array.ctypes.data for array in arrays]
    sides = step.kernel if isinstance(step, Blur) else (0, 0)
    way = (isinstance(step, Warp) and step.bilinear) or (isinstance(step, Flip) and step.vertical)
    return _Step(KINDS.index(type(step)), *addresses, *[None] * (3 - len(addresses)), *sides, way)


def gaussian_filters(sigmas: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Return the weights of Gaussian filters of `side` pixels, float32 [n, side]; those of a filter sum to 1."""
    offsets = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    weights = np.exp(np.float32(-0.5) * (offsets / sigmas[:, None]) ** 2)
    filters: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return filters
