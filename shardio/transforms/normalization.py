"""Conversions, the last transforms but RandomErasing: ToFloat and Normalize to floats, ToInt64 of whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

Precision: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""The dtype of images and arrays that are converted to floats."""


_SHORT = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "single": "float32"}


def _as_precision(value: object) -> str | None:
    """Return the name of a dtype, which may be one of torch or NumPy; raise ConfigError if it is no `Precision`."""
    if value is None:
        return None
    known = get_args(Precision)
    name = np.dtype(value).name if isinstance(value, (np.dtype, type)) else str(value).removeprefix("torch.")
    if (name := _SHORT.get(name, name)) not in known:
        raise ConfigError(f"dtype must be one of {', '.join(known)}, got {value!r}")
    return name


@dataclass(frozen=True, slots=True)
class ToFloat:
    """Convert images or arrays to floats.

    Images, uint8 [B, H, W, C] in 0..255, become [B, C, H, W] in [0, 1], as by torchvision's `ToDtype(..., scale=True)`.
    Arrays keep their shape and the scale of their numbers. Values are computed in float32 and then rounded to `dtype`;
    a finite number that overflows, such as 101,325 in float16, makes its sample a bad one.

    Args:
        dtype: `"float32"`, `"float16"` or `"bfloat16"`. Torch's own, such as `torch.float16`, `"half"`, `"fp16"` and
            `"bf16"` become these names.

    Raises:
        ConfigError: if `dtype` is none of these. The loader raises it for arrays of complex numbers.
    """

    dtype: Precision = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _as_precision(self.dtype))


@dataclass(frozen=True, slots=True)
class Normalize:
    """Convert to floats by `(x - mean) / std`, per channel.

    Of images, uint8 [B, H, W, C], x is the pixel divided by 255, and the result is [B, C, H, W]: `mean` and `std` are
    on the scale of 0 to 1, as torchvision's are. Of arrays, whose first axis is the channels, x is the stored number,
    and the shape stays. No ToFloat is needed before it. Each operation is rounded to float32, on a device too.

    Args:
        mean: one number per channel, or one for all channels; for images in [-1, 1].
        std: one number per channel, or one for all channels, above 0; for images at most 10.
        dtype: as for ToFloat. None, the default, takes the dtype of a ToFloat directly before it, else float32.

    Raises:
        ConfigError: if a number is out of range or the dtype is unknown. The loader raises it for another number of
            channels, for images if `mean` or `std` is on the scale of 0 to 255, and for arrays of complex numbers.
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    dtype: Precision | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _as_floats(getattr(self, name), name))
        if any(not np.float32(value) > 0 for value in np.atleast_1d(self.std)):
            raise ConfigError(f"std must be above 0, got {self.std!r}")
        object.__setattr__(self, "dtype", _as_precision(self.dtype))


@dataclass(frozen=True, slots=True)
class ToInt64:
    """Convert whole numbers to int64, which torch's embeddings, losses and indexing take.

    It is for arrays of one shape, arrays of several, and scalars, of any integer dtype, and comes last. Values do not
    change: a uint64 that int64 cannot hold makes its sample a bad one.

    Raises:
        ConfigError: the loader raises it for images, floats, complex numbers and booleans.
    """


def merged(conversion: Normalize | None, transform: ToFloat | Normalize, previous: object, position: int) -> Normalize:
    """Return the one Normalize that stands for a ToFloat or Normalize and for what converts before it in its list.

    Args:
        conversion: what the list's transforms before it come to; None if they convert nothing.
        transform: the transform.
        previous: the transform directly before it.
        position: its place in the list, for messages.

    Raises:
        ConfigError: if the two cannot follow each other.
    """
    if isinstance(transform, ToFloat):
        if conversion is not None:
            raise ConfigError(f"transform {position}: ToFloat must come once, and before any Normalize")
        return Normalize(0.0, 1.0, transform.dtype)
    if conversion is not None and not isinstance(previous, ToFloat):
        raise ConfigError(f"transform {position}: Normalize must come once, directly after ToFloat if there is one")
    return replace(transform, dtype=transform.dtype or (conversion.dtype if conversion else None) or "float32")


def per_channel(normalize: Normalize, channels: int, *, why: str = "") -> NDArray[np.float32]:
    """Return mean and standard deviation per channel, float32 [channels, 2].

    Raises ConfigError, which ends with `why`, if there is another number of them.
    """
    columns = []
    for name, numbers in (("mean", normalize.mean), ("std", normalize.std)):
        values = np.atleast_1d(np.asarray(numbers, np.float32))
        if len(values) not in (1, channels):
            wanted = "1 number" if channels == 1 else f"1 or {channels} numbers"
            raise ConfigError(f"Normalize's {name} must have {wanted}, got {len(values)}{why}")
        columns.append(np.broadcast_to(values, channels))
    return np.stack(columns, axis=1)


def _as_floats(value: object, name: str) -> tuple[float, ...]:
    """Return a number, or several, as finite floats, of which float32 holds an approximation."""
    try:
        numbers = tuple(map(float, np.atleast_1d(np.asarray(value, np.float64))))
    except (TypeError, ValueError):
        numbers = ()
    largest = float(np.finfo(np.float32).max)
    if not numbers or not all(math.isfinite(number) and abs(number) <= largest for number in numbers):
        raise ConfigError(f"{name} must be a finite number, or one for each channel, got {value!r}")
    return numbers
