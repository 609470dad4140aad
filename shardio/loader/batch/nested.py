"""Values within the dicts, lists and tuples of a batch."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def map_nested(value: Any, kind: type[T], function: Callable[[T], Any]) -> Any:
    """Return `value` with each `x` of type `kind` in its dicts, lists and tuples replaced by `function(x)`."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {name: map_nested(item, kind, function) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_nested(item, kind, function) for item in value)
    return value
