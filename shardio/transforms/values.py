"""Transforms of what comes last: bytes to numbers."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..errors import ConfigError

Precision: TypeAlias = Literal["float32", "float16", "bfloat16"]


def _precision(value: str | None) -> None:
    if value is not None and value not in get_args(Precision):
        raise ConfigError(f"dtype must be one of {', '.join(get_args(Precision))}, got {value!r}")


@dataclass(frozen=True, slots=True)
class ToFloat:
    """uint8 [B, H, W, C] to floats [B, C, H, W], divided by 255. What is computed is float32, then rounded to `dtype`.

    Args:
        dtype: `"float32"`, `"float16"` or `"bfloat16"`.
    """

    dtype: Precision = "float32"

    def __post_init__(self) -> None:
        _precision(self.dtype)


@dataclass(frozen=True, slots=True)
class Normalize:
    """`(x / 255 - mean) / std` by channel, uint8 [B, H, W, C] to floats [B, C, H, W].

    Args:
        mean: one number per channel, or one for all, on the scale 0 to 1.
        std: likewise, above 0.
        dtype: `"float32"`, `"float16"` or `"bfloat16"`; None is that of a ToFloat before it, else float32.
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    dtype: Precision | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            object.__setattr__(
                self, name, (float(value),) if isinstance(value, (int, float)) else tuple(map(float, value))
            )
        for name, most in (("mean", 1.0), ("std", 10.0)):
            if any(abs(value) > most for value in getattr(self, name)):
                raise ConfigError(f"{name} is on the scale of 0 to 1, got {getattr(self, name)}: divide it by 255")
        if not self.std or any(not s > 0 for s in self.std):  # type: ignore[union-attr]  # a tuple by now
            raise ConfigError(f"std must be above 0, got {self.std!r}")
        _precision(self.dtype)
