"""Checks of a loader's arguments."""

import operator
import threading
from typing import Literal

import torch

from ..errors import ConfigError


def torch_device(device: torch.device | str | None) -> torch.device:
    """Return the device, the host for None; ConfigError if torch does not know it, or sees no GPU."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ConfigError(f"device: {str(error).splitlines()[0]}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {str(found)!r}, but this torch sees no GPU")
    if found.type == "cuda" and found.index is None:  # engines must take the one that torch takes
        return torch.device("cuda", torch.cuda.current_device())
    return found


def whole_number(value: int, name: str) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number of some type."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from None


def count_or_auto(value: int | Literal["auto"], name: str) -> int | None:
    """Return None for "auto", else a count of at least 1; ConfigError for others."""
    if value == "auto":
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError(f"{name} must be 'auto' or a whole number of at least 1, got {value!r}")
    return count


def time_limit(value: float, name: str) -> float:
    """Return a time limit in seconds; ConfigError unless it is above 0."""
    if not isinstance(value, (int, float)) or not 0 < value <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{name} must be a number of seconds above 0, got {value!r}")
    return value
