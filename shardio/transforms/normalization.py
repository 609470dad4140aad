"""Conversion of uint8 pixels to floats: ToFloat and Normalize, the last transforms but RandomErasing."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..errors import ConfigError

Precision: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""The dtype of images that are floats."""


def _check_precision(value: str | None) -> None:
    if value is not None and value not in get_args(Precision):
        raise ConfigError(f"dtype must be one of {', '.join(get_args(Precision))}, got {value!r}")


@dataclass(frozen=True, slots=True)
class ToFloat:
    """Convert images from uint8 [B, H, W, C] in 0..255 to floats [B, C, H, W] in [0, 1].

    This is torchvision's `ToDtype(..., scale=True)`. Values are computed in float32 and then rounded to `dtype`.

    Args:
        dtype: `"float32"`, `"float16"` or `"bfloat16"`.

    Raises:
        ConfigError: if `dtype` is none of these.
    """

    dtype: Precision = "float32"

    def __post_init__(self) -> None:
        _check_precision(self.dtype)


@dataclass(frozen=True, slots=True)
class Normalize:
    """Convert images from uint8 [B, H, W, C] to floats [B, C, H, W] by `(x / 255 - mean) / std`, per channel.

    `mean` and `std` are on the scale of 0 to 1, as torchvision's are. No ToFloat is needed before it.

    Args:
        mean: one number per channel, or one for all channels, in [-1, 1].
        std: one number per channel, or one for all channels, above 0 and at most 10.
        dtype: `"float32"`, `"float16"` or `"bfloat16"`. None, the default, takes the dtype of a ToFloat directly before
            it, else float32.

    Raises:
        ConfigError: if a number is out of range, as those on the scale of 0 to 255 are, or the dtype is unknown.
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
        for name, largest in (("mean", 1.0), ("std", 10.0)):
            if any(abs(value) > largest for value in getattr(self, name)):
                raise ConfigError(f"{name} is on the scale of 0 to 1, got {getattr(self, name)}: divide it by 255")
        if not self.std or any(not s > 0 for s in self.std):  # type: ignore[union-attr]  # a tuple by now
            raise ConfigError(f"std must be above 0, got {self.std!r}")
        _check_precision(self.dtype)
