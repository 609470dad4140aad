"""Checks of the arguments of a loader: device, counts and time limits."""

import operator
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec

import numpy as np
import torch

from ..errors import ConfigError, Option
from ..order.world import World
from ..system.did_you_mean import did_you_mean

_MOST_BITS = 1024
_P = ParamSpec("_P")


def refuses_foreign_keywords(function: Callable[_P, None]) -> Callable[_P, None]:
    """Have `function` raise ConfigError for a keyword of another library's loader, with what to use; for decoration."""

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for word in kwargs:
            if advice := did_you_mean(word, "argument of Loader"):
                raise ConfigError(f"a Loader has no {word}: {advice}")
        function(*args, **kwargs)

    return checked


def torch_device(device: torch.device | str | None) -> torch.device:
    """Return the device, which is the host for None; raise ConfigError if torch does not know it, or finds no GPU."""
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ConfigError("{device}: {}", str(error).splitlines()[0]) from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("{device} is {!r}, but torch finds no GPU", str(chosen))
    if chosen.type == "cuda" and chosen.index is None:  # engines must use the GPU that torch uses
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def whole_number(value: int, name: str) -> int:
    """Return `value` as an int; raise ConfigError unless it is a whole number of any integer type, up to 1,024 bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError("{} must be a whole number, got {!r}", Option(name), value) from None
    if (bits := number.bit_length()) > _MOST_BITS:  # Python writes no number of 4300 digits into a state
        raise ConfigError(
            "{} must be a whole number of at most {} bits, got one of {} bits", Option(name), _MOST_BITS, bits
        )
    return number


def check_switches(arguments: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigError unless each of the named arguments is True or False, as a text such as "no" counts as true."""
    for name in names:
        if not isinstance(arguments[name], (int, np.bool_)) or arguments[name] not in (0, 1):
            raise ConfigError(f"{name} must be True or False, got {arguments[name]!r}")


def count_or_auto(value: int | Literal["auto"], name: str) -> int | None:
    """Return None for "auto", else `value` as an int; raise ConfigError unless that is at least 1."""
    if value == "auto":
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError("{} must be 'auto' or a whole number of at least 1, got {!r}", Option(name), value)
    return count


def rank_and_size(world: World | None) -> World:
    """Return `world`, or what `World.detect()` finds for None; raise ConfigError for anything else."""
    if world is None:
        return World.detect()
    if not isinstance(world, World):
        how = f", as in shardio.World{world}" if isinstance(world, tuple) and 1 < len(world) <= 4 else ""
        raise ConfigError(f"world must be a shardio.World(rank, size){how}, got {world!r}")
    return world


def time_limit(value: float, name: str) -> float:
    """Return `value`, a time limit in seconds; raise ConfigError unless it is above 0."""
    if not isinstance(value, (int, float)) or not 0 < value <= threading.TIMEOUT_MAX:
        raise ConfigError("{} must be a number of seconds above 0, got {!r}", Option(name), value)
    return value
