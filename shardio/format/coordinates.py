"""Coordinates of rows, such as times: whether their numbers are fine enough to distinguish steps from gaps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def usual_step(steps: NDArray[np.float64]) -> float:
    """Return the median of steps, in six digits; 0 if there are none."""
    return float(f"{np.median(steps):.6g}") if len(steps) else 0.0


def resolution(values: NDArray[Any]) -> float:
    """Return how far apart the numbers of a dtype are near the largest value; 0 for integers."""
    finite = np.abs(values[np.isfinite(values)]) if values.dtype.kind == "f" else values[:0]
    return float(np.spacing(finite.max())) if len(finite) else 0.0


def is_too_coarse(steps: NDArray[np.float64], apart: float) -> bool:
    """Return whether a usual step, once rounded, looks like a gap: 2 instead of 1.2, or 3 instead of 2.5.

    Args:
        steps: the steps, finite.
        apart: how far apart the numbers are, see `resolution`.
    """
    usual = usual_step(steps)
    off = np.abs(steps - usual)
    return bool(((off >= abs(usual) / 2) & (off > 0) & (off <= 1.01 * apart)).any())
