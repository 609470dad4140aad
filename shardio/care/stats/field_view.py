"""The values of a field as `stats` reads them: without fill values, with axes of arrays taken for channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...errors import ConfigError
from ...format.fields import Field, describe, describe_fields

MOST_CHANNELS = 64
"""The greatest length of the first axis of arrays at which it is taken for channels if no axis is chosen."""

MOST_PLACES = 1 << 16
"""The most channels along several axes."""

FillValues: TypeAlias = float | Sequence[float]
Axes: TypeAlias = int | Sequence[int] | None
"""An axis of arrays, or several, such as those of variables and levels; None for none."""
_ATTRIBUTES = ("_FillValue", "missing_value")  # of the CF conventions, section 2.5.1


@dataclass(frozen=True, slots=True)
class FieldView:
    """The fill values that `stats` leaves out of a field, and its axis of channels.

    Attributes:
        axes: the axes of arrays whose indices are channels; () if all values are taken together.
        fill_values: numbers that mean "no value".
    """

    axes: tuple[int, ...] = ()
    fill_values: tuple[float, ...] = ()


def views(
    fields: Mapping[str, Field], fill_values: Mapping[str, FillValues], channel_axis: Mapping[str, Axes]
) -> dict[str, FieldView]:
    """Return the view of each field.

    Args:
        fields: the dataset's fields.
        fill_values: fill values by field; without them, those that the field's attributes state.
        channel_axis: the axis or axes of channels by field, None for none; without it, the first one, if it is short.

    Raises ConfigError for a field that has no numbers or no such axis, and a fill value that it cannot hold.
    """
    for option, names in (("fill_values", fill_values), ("channel_axis", channel_axis)):
        for name in names:
            if name not in fields or fields[name].kind not in ("array", "scalar"):
                raise ConfigError(f"{option}: {name!r} is no field of numbers; there are {describe_fields(fields)}")
    return {
        name: FieldView(_axes(name, field, channel_axis), _fill_values(name, field, fill_values.get(name)))
        for name, field in fields.items()
    }


def _axes(name: str, field: Field, chosen: Mapping[str, Axes]) -> tuple[int, ...]:
    sizes = (field.shape or ()) if field.kind == "array" else ()
    count = len(sizes)
    if name not in chosen:
        first = int(field.window or field.ragged)
        size = sizes[first] if count > first and field.row_dtype.kind != "c" else None
        return (first,) if size is not None and 0 < size <= MOST_CHANNELS else ()
    given = chosen[name]
    axes = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    for axis in axes:
        whole = isinstance(axis, int) and not isinstance(axis, bool)
        if not whole or not -count <= axis < count or sizes[axis] is None:  # channels must be as many in all arrays
            raise ConfigError("{channel_axis}: field {!r} is {}, which has no axis {!r}", name, describe(field), axis)
    found = tuple(axis % count for axis in axes)
    places = math.prod(sizes[axis] or 0 for axis in found)
    if list(found) != sorted(set(found)) or (len(found) > 1 and places > MOST_PLACES):
        rule = f"different axes in their order, with at most {MOST_PLACES:,} places"
        raise ConfigError("{channel_axis}: field {!r} is {}; give " + rule + ", got {!r}", name, describe(field), given)
    return found if places or not found else ()  # arrays without numbers have no channels


def _fill_values(name: str, field: Field, given: FillValues | None) -> tuple[float, ...]:
    if given is not None:
        values = [_held(field, value) for value in np.atleast_1d(np.asarray(given)).tolist()]
        if None in values:
            raise ConfigError(f"fill_values: field {name!r} is {describe(field)}, which cannot hold {given!r}")
        return tuple(value for value in values if value is not None)
    attributes: Mapping[str, Any] = field.attributes or {}
    stated = [value for key in _ATTRIBUTES if key in attributes for value in np.atleast_1d(attributes[key]).tolist()]
    return tuple(dict.fromkeys(held for value in stated if (held := _held(field, value)) is not None))


def _held(field: Field, value: Any) -> float | None:
    """Return a number as the field holds it, None if it does not; NaN is left out of all figures in any case."""
    if isinstance(value, bool) or not isinstance(value, int | float) or field.kind not in ("array", "scalar"):
        return None
    try:
        with np.errstate(all="ignore"):
            held = np.asarray(value).astype(field.row_dtype)
    except OverflowError:  # an integer beyond 64 bits
        return None
    same = held == value or (held.dtype.kind in "fc" and bool(np.isfinite(held)))  # floats round it
    return held.item() if same else None
