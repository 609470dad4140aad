"""Arguments of transforms, checked."""

from collections.abc import Sequence

from ..errors import ConfigError


def pair_of(value: int | Sequence[int], name: str) -> tuple[int, int]:
    """Two whole numbers of at least 1; one stands for both."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(not isinstance(v, int) or v < 1 for v in pair):
        raise ConfigError(f"{name} must be one or two whole numbers of at least 1, got {value!r}")
    return pair


def range_of(value: Sequence[float], name: str) -> tuple[float, float]:
    """(low, high) with 0 < low <= high."""
    if len(value) != 2 or not 0 < value[0] <= value[1]:
        raise ConfigError(f"{name} must be (low, high) with 0 < low <= high, got {value!r}")
    return float(value[0]), float(value[1])


def span_of(value: float | Sequence[float], name: str, middle: float, low: float, high: float) -> tuple[float, float]:
    """(least, most) within [low, high]; one number is how far both are from `middle`, at most down to `low`."""
    if isinstance(value, (int, float)):
        pair = (max(middle - value, low), middle + value) if value >= 0 else (1.0, 0.0)
    else:
        pair = (value[0], value[1]) if hasattr(value, "__len__") and len(value) == 2 else (1.0, 0.0)
    if not low <= pair[0] <= pair[1] <= high:
        raise ConfigError(
            f"{name} must be a number of at least 0 or (least, most), all in [{low:g}, {high:g}], got {value!r}"
        )
    return float(pair[0]), float(pair[1])


def probability_of(value: float) -> None:
    """A number in [0, 1]."""
    if not 0 <= value <= 1:
        raise ConfigError(f"p must be in [0, 1], got {value!r}")


def interpolation_of(value: str) -> None:
    """A way to resize."""
    if value not in ("nearest", "bilinear", "bicubic"):
        raise ConfigError(f"interpolation must be 'nearest', 'bilinear' or 'bicubic', got {value!r}")
