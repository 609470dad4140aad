"""Rules for the fields of a configuration, stated by their types, and one function that checks them all."""

import math
import operator
import threading
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import ConfigError, Option

_MOST_BITS = 1024


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field may have, for `typing.Annotated`.

    Attributes:
        low: the lowest one.
        high: the first one that is too high.
        above: whether `low` itself is too low.
    """

    low: float = 0
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value < self.high


Count: TypeAlias = Annotated[int, Range(1)]
"""An integer of at least 1."""
Positive: TypeAlias = Annotated[float, Range(0, above=True)]
"""A number above 0."""
Share: TypeAlias = Annotated[float, Range(0, 1)]
"""A number in [0, 1)."""


def as_integer(value: int, name: str) -> int:
    """Return `value` as an int; raise ConfigError unless it is an integer of any type, up to 1,024 bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError("{} must be an integer, got {!r}", Option(name), value) from None
    if (bits := number.bit_length()) > _MOST_BITS:  # Python writes no number of 4300 digits into a state
        raise ConfigError("{} must have at most {} bits, got a number of {}", Option(name), _MOST_BITS, bits)
    return number


def at_least_one(value: int, name: str) -> int:
    """Return `value` as an int; raise ConfigError unless it is an integer of any type, of at least 1."""
    if (number := as_integer(value, name)) < 1:
        raise ConfigError("{} must be at least 1, got {}", Option(name), number)
    return number


def time_limit(value: float, name: str) -> float:
    """Return `value`, a time limit in seconds; raise ConfigError unless it is above 0."""
    if not isinstance(value, (int, float)) or not 0 < value <= threading.TIMEOUT_MAX:
        raise ConfigError("{} must be a number of seconds above 0, got {!r}", Option(name), value)
    return value


def check_switches(**switches: bool) -> None:
    """Raise ConfigError unless each argument is True or False, as a string such as "no" counts as true."""
    for name, value in switches.items():
        if not isinstance(value, (int, np.bool_)) or value not in (0, 1):
            raise ConfigError(f"{name} must be True or False, got {value!r}")


def check_fields(config: Any) -> None:
    """Raise ConfigError if a field of a dataclass is none of its type's words, or a number outside of its `Range`.

    Types without a rule, such as bool, are not checked.
    """
    for name, kind in get_type_hints(type(config), include_extras=True).items():
        alternatives = get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)
        value = getattr(config, name)
        broken = [_broken(value, alternative) for alternative in alternatives]
        if None not in broken and (rules := [rule for rule in broken if rule]):
            raise ConfigError("{} must be {}, got {!r}", Option(name), rules[0], value)


def _broken(value: object, kind: Any) -> str | None:
    """Return what a value must be by the rule of its type that it breaks; None if it breaks none."""
    if kind is types.NoneType:
        return None if value is None else ""
    if get_origin(kind) is Literal:
        *most, last = map(repr, get_args(kind))
        return None if value in get_args(kind) else f"{', '.join(most)} or {last}" if most else last
    if get_origin(kind) is not Annotated:
        return None
    base, allowed = get_args(kind)
    right = isinstance(value, (int, float) if base is float else int) and not isinstance(value, bool)
    if right and value in allowed:
        return None
    if base is int:
        too_high = right and value >= allowed.high
        return f"below {allowed.high}" if too_high else f"an integer of at least {allowed.low}"
    return f"a number in {'(' if allowed.above else '['}{allowed.low}, {allowed.high})"
