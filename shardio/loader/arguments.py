"""A loader's arguments, checked."""

import operator
import threading
from typing import Literal

import torch

from ..errors import ConfigError


def device_of(device: torch.device | str | None) -> torch.device:
    """The device; the host without one. ConfigError if torch does not know it, or sees no GPU."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ConfigError(f"device: {str(error).splitlines()[0]}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {str(found)!r}, but this torch sees no GPU")
    if found.type == "cuda" and found.index is None:  # engines must take the one that torch takes
        return torch.device("cuda", torch.cuda.current_device())
    return found


def whole_of(value: int, name: str) -> int:
    """A whole number of any type that is one; ConfigError for others."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from None


def count_of(value: int | Literal["auto"], name: str) -> int | None:
    """None for "auto", else a checked count."""
    if value == "auto":
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError(f"{name} must be 'auto' or a whole number of at least 1, got {value!r}")
    return count


def seconds_of(value: float, name: str) -> float:
    """A checked time limit in seconds."""
    if not isinstance(value, (int, float)) or not 0 < value <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{name} must be a number of seconds above 0, got {value!r}")
    return value
