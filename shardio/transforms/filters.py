"""The weights of a resize along one axis, as Pillow computes them (`Resample.c`), for engines that work in floats."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .steps import Interpolation


def resize_weights(
    sizes: NDArray[np.int32],
    resized: NDArray[np.int32],
    first: NDArray[np.int32],
    count: int,
    interpolation: Interpolation,
    *,
    antialias: bool,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the source pixels of each result and their weights, each [B, count, taps].

    Args:
        sizes: pixels of the axis, [B].
        resized: pixels that it is resized to, [B].
        first: the first result that is wanted, [B].
        count: how many results are wanted.
        interpolation, antialias: see `steps.Scale`.
    """
    scale = (sizes / resized)[:, None]
    centers = (first[:, None] + np.arange(count) + 0.5) * scale
    last = (sizes - 1)[:, None, None].astype(np.int64)
    if interpolation == "nearest":
        return np.minimum(centers.astype(np.int64)[:, :, None], last), np.ones((*centers.shape, 1), np.float32)
    weight, support = _FILTERS[interpolation] if antialias else _POINTS[interpolation]
    widened = np.maximum(scale, 1.0) if antialias else np.ones_like(scale)
    if antialias:
        low = np.maximum((centers - support * widened + 0.5).astype(np.int64), 0)
        high = np.minimum((centers + support * widened + 0.5).astype(np.int64), sizes[:, None])
    else:
        low = np.floor(centers - support + 0.5).astype(np.int64)
        high = low + 2 * int(support)
    places = low[:, :, None] + np.arange(int((high - low).max()))
    weights = weight((places - centers[:, :, None] + 0.5) / widened[:, :, None])
    weights = np.where(places < high[:, :, None], weights, 0.0)
    weights /= weights.sum(axis=2, keepdims=True)
    return np.clip(places, 0, last), weights.astype(np.float32)


def _box(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    made: NDArray[np.float64] = np.maximum(1 - np.abs(x), 0)
    return made


def _hamming(x: NDArray[np.float64]) -> NDArray[np.float64]:
    made: NDArray[np.float64] = np.where(np.abs(x) < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0)
    return made


def _cubic(a: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    def weight(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.abs(x)
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
        made: NDArray[np.float64] = np.where(x < 1, near, np.where(x < 2, far, 0))
        return made

    return weight


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0)


_Weight = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_FILTERS: dict[str, tuple[_Weight, float]] = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1),
    "hamming": (_hamming, 1),
    "bicubic": (_cubic(-0.5), 2),
    "lanczos": (_lanczos, 3),
}
_POINTS: dict[str, tuple[_Weight, float]] = {"bilinear": (_bilinear, 1), "bicubic": (_cubic(-0.75), 2)}
