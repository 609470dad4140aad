"""Values that belong together, such as an image and its mask: whether their sizes fit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FITS, TURNED, DIFFERS = range(3)


def compare_sizes(one: NDArray[Any], other: NDArray[Any], *, scaled: bool = False, rounding: int = 0) -> NDArray[Any]:
    """Return how sizes fit those of what belongs to them, uint8 [...].

    FITS, TURNED where sizes fit once the axes of one are reversed, as a quarter turn of an image does, else DIFFERS.

    Args:
        one: heights and widths in pixels, or lengths along other axes, [..., axes]; to compare images as viewers show
            them, `engines.orientation.upright_sizes`.
        other: the sizes of what belongs to them, of the same shape.
        scaled: whether equal aspect ratios fit, up to one pixel of rounding; only for heights and widths.
        rounding: how many pixels lengths may differ by, without `scaled`.
    """
    one, other = one.astype(np.int64), other.astype(np.int64)
    found = np.where(_fit(one, other, scaled, rounding), FITS, DIFFERS).astype(np.uint8)
    if found.any():
        found[(found == DIFFERS) & _fit(one, other[..., ::-1], scaled, rounding)] = TURNED
    return found


def _fit(one: NDArray[np.int64], other: NDArray[np.int64], scaled: bool, rounding: int) -> NDArray[np.bool_]:
    difference, allowed = np.abs(one - other).max(axis=-1), np.asarray(rounding)
    if scaled:  # one pixel less along a side of the smaller image changes this difference by a side of the larger one
        difference = np.abs(one[..., 0] * other[..., 1] - one[..., 1] * other[..., 0])
        allowed = np.maximum(one, other).max(axis=-1)
    fit: NDArray[np.bool_] = difference <= allowed
    return fit
