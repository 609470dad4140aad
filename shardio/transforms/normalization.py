"""Conversions, the last transforms but RandomErasing: ToFloat and Normalize to floats, ToInt64 for integers.

FillMissing, which goes with them, may stand anywhere before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .validation import check_flag

Precision: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""The dtype of images and arrays that are converted to floats."""

Numbers: TypeAlias = float | Sequence[Any] | NDArray[Any]
"""A number, or one for each place on the leading axes of arrays: `[C]`, `[C, L]`, ..., nested as these are."""


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
    """Convert to floats by `(x - mean) / std`, per channel, or per channel and level.

    For images, uint8 [B, H, W, C], x is the pixel divided by 255, and the result is [B, C, H, W]: `mean` and `std` are
    on the scale of 0 to 1, as torchvision's are. For arrays, whose first axis is the channels, x is the stored number,
    and the shape stays. You need no ToFloat before it. Each operation is rounded to float32, also on a device.

    Args:
        mean: one number per channel, or one for all channels; for images in [-1, 1]. Arrays with more leading axes,
            such as variables and levels [C, L, H, W], may have one for each position along them: nested sequences or
            an array of shape [C, L], or [C, 1] or [1, L].
        std: likewise, above 0; for images at most 10.
        dtype: as for ToFloat. None, the default, takes the dtype of a ToFloat directly before it, else float32.

    Raises:
        ConfigError: if a number is out of range or the dtype is unknown. The loader raises it for another number of
            channels or levels, for numbers that differ along an axis that a transform before it crops, flips or
            rotates at random, for images if `mean` or `std` is on the scale of 0 to 255, and for complex numbers.
    """

    mean: Numbers
    std: Numbers
    dtype: Precision | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _as_floats(getattr(self, name), name))
        if not (np.asarray(self.std, np.float32) > 0).all():
            raise ConfigError(f"std must be above 0, got {self.std!r}")
        object.__setattr__(self, "dtype", _as_precision(self.dtype))


@dataclass(frozen=True, slots=True)
class FillMissing:
    """Replace missing values, NaN and the numbers in `missing`, by a number.

    FillMissing is for arrays and goes anywhere before ToFloat, Normalize and ToInt64: its order among crops, flips and
    rotations doesn't matter. Values are filled before they are normalized, in the pass that converts them.

    Args:
        value: the replacement: one number, or as for `Normalize`, one per channel, or per channel and level. `"mean"`
            takes the mean of the list's Normalize, so that missing values become 0.
        mask: whether to also deliver `NAME_missing`, bool in the shape of the values: True where one was missing. It
            is False in PadTo's padding, and for a sample that lacks the field or is masked.
        missing: a number, or several, that mark a missing value, such as -9999; fields of integers need one.

    Raises:
        ConfigError: if an argument is none of these. The loader raises it for other fields, for a `value` or `missing`
            that the dtype cannot hold, and where `value` does not fit the arrays, as for Normalize.
    """

    value: Numbers | Literal["mean"] = 0.0
    mask: bool = False
    missing: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_flag(self.mask, "mask")
        if not isinstance(self.value, str):
            object.__setattr__(self, "value", _as_floats(self.value, "value"))
        elif self.value != "mean":
            raise ConfigError(f"value must be a number, or one for each channel, or 'mean', got {self.value!r}")
        given = () if self.missing is None else self.missing
        numbers = given if isinstance(given, Sequence) else (given,)
        if not all(isinstance(each, (int, float, np.number)) and not isinstance(each, bool) for each in numbers):
            raise ConfigError(f"missing must be a number, or several, got {self.missing!r}")
        object.__setattr__(self, "missing", tuple(numbers))


@dataclass(frozen=True, slots=True)
class ToInt64:
    """Convert integers to int64, which torch's embeddings, losses and indexing take.

    ToInt64 is for arrays of one or several shapes and for scalars, of any integer dtype, and comes last. Values don't
    change: a uint64 that int64 can't hold makes a bad sample.

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


def per_channel(normalize: Normalize, channels: int) -> NDArray[np.float32]:
    """Return mean and standard deviation per channel of images, float32 [channels, 2].

    Raises ConfigError if there is another number of them.
    """
    pair = [along_axes(f"Normalize's {name}", getattr(normalize, name), (channels,)) for name in ("mean", "std")]
    return np.stack([np.broadcast_to(numbers.astype(np.float32), channels) for numbers in pair], axis=1)


def along_axes(what: str, numbers: Numbers, shape: Sequence[int | None], why: str = "") -> NDArray[np.float64]:
    """Return numbers for the places on the leading axes of arrays in a shape that broadcasts over the arrays, float64.

    One number for all has shape ().

    Args:
        what: what the numbers are, for messages.
        numbers: one, or as many along each of the leading axes as there are places, or 1.
        shape: the lengths of the arrays' axes, None where they differ.
        why: the end of messages.

    Raises:
        ConfigError: if there are other numbers of them.
    """
    values = np.asarray(numbers, np.float64)
    if values.size == 1:
        return values.reshape(())
    if values.ndim <= len(shape) and all(n in (1, size) for n, size in zip(values.shape, shape, strict=False)):
        return values.reshape(*values.shape, *(1 for _ in shape[values.ndim :]))
    if values.ndim > 1:
        raise ConfigError(f"{what} must have a shape of the leading axes, or 1 in their place, got {values.shape}{why}")
    channels = (shape[0] if shape else None) or 1
    wanted = "1 number" if channels == 1 else f"1 or {channels} numbers"
    raise ConfigError(f"{what} must have {wanted}, got {len(values)}{why}")


def _as_floats(value: object, name: str) -> tuple[Any, ...]:
    """Return a number, or several, nested or not, as finite floats that float32 can approximate."""
    try:
        numbers = np.atleast_1d(np.asarray(value, np.float64))
    except (TypeError, ValueError):
        numbers = np.empty(0)
    largest = float(np.finfo(np.float32).max)
    if not numbers.size or not (np.abs(numbers) <= largest).all():
        raise ConfigError(f"{name} must be a finite number, or one for each channel, got {value!r}")
    return _nested(numbers)


def _nested(numbers: NDArray[Any]) -> tuple[Any, ...]:
    return tuple(map(_nested, numbers)) if numbers.ndim > 1 else tuple(numbers.tolist())
