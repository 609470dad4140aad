"""Validation of transforms' arguments. Each function raises ConfigError, which names the argument and its value."""

from collections.abc import Sequence
from typing import get_args

import numpy as np

from ..errors import ConfigError
from .steps import Interpolation


def as_pair(value: int | Sequence[int], name: str) -> tuple[int, int]:
    """Return two integers of at least 1; a single one stands for both."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(not isinstance(v, int) or v < 1 for v in pair):
        raise ConfigError(f"{name} must be one or two integers of at least 1, got {value!r}")
    return pair


def as_positive_range(value: Sequence[float], name: str) -> tuple[float, float]:
    """Return (low, high) with 0 < low <= high."""
    if len(value) != 2 or not 0 < value[0] <= value[1]:
        raise ConfigError(f"{name} must be (low, high) with 0 < low <= high, got {value!r}")
    return float(value[0]), float(value[1])


def as_jitter_range(
    value: float | Sequence[float], name: str, *, center: float, low: float, high: float
) -> tuple[float, float]:
    """Return (min, max) within [low, high]. A number `v` stands for (center - v, center + v), clamped at `low`."""
    if isinstance(value, (int, float)):
        pair = (max(center - value, low), center + value) if value >= 0 else (1.0, 0.0)
    else:
        pair = (value[0], value[1]) if hasattr(value, "__len__") and len(value) == 2 else (1.0, 0.0)
    if not low <= pair[0] <= pair[1] <= high:
        raise ConfigError(
            f"{name} must be a number of at least 0 or (min, max), all in [{low:g}, {high:g}], got {value!r}"
        )
    return float(pair[0]), float(pair[1])


def check_flag(value: bool, name: str) -> None:
    """Raise ConfigError unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


def check_probability(value: float) -> None:
    """Raise ConfigError unless `value` is in [0, 1]."""
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise ConfigError(f"p must be a probability in [0, 1], got {value!r}")


def check_interpolation(value: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of the `allowed` interpolations."""
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise ConfigError(f"interpolation must be {', '.join(others)} or {last}, got {value!r}")


def check_resize(interpolation: str | None, antialias: bool) -> None:
    """Raise ConfigError unless there is such an interpolation, or none is given, with or without antialiasing."""
    if interpolation is None:
        return
    check_interpolation(interpolation, get_args(Interpolation))
    if not antialias and interpolation not in ("nearest", "bilinear", "bicubic"):
        raise ConfigError(f"interpolation {interpolation!r} needs antialias=True")
