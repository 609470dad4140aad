"""The values that a user's function returns for a batch, as columns, and the fields that they come to."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, MapError
from ..format.fields import Field, as_fields, describe_fields

SINGLE = "output"
"""The field of a function that returns no dict."""

Columns: TypeAlias = Mapping[str, NDArray[Any] | Sequence[Any]]
"""By field, the values of some samples: an array [n, ...], or a list of n arrays, texts or bytes."""


def columns_of(outputs: Any) -> dict[str, NDArray[Any] | list[Any]]:
    """Return what a function has returned as columns in host memory.

    Raises MapError for anything but tensors, arrays, and lists of these, of strings or of bytes.
    """
    named = outputs if isinstance(outputs, Mapping) else {SINGLE: outputs}
    return {str(name): _column(value, f"{name}") for name, value in named.items()}


def _column(value: Any, name: str) -> NDArray[Any] | list[Any]:
    if isinstance(value, list | tuple):
        return [each if isinstance(each, str | bytes) else _array(each, name) for each in value]
    return _array(value, name)


def _array(value: Any, name: str) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            raise MapError(f"{name!r} is bfloat16, which no field stores: return value.half() or value.float()")
        return value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return value
    raise MapError(f"{name!r} must be a tensor, an array, or a list of these, of str or of bytes, got {type(value)}")


def stacked(copies: Sequence[Columns]) -> Columns:
    """Return the columns of several random copies of the same samples as one: arrays [n, copies, ...].

    Raises MapError where these are no arrays of one shape.
    """
    return {name: _stacked(name, [each.get(name) for each in copies]) for name in copies[0]}


def _stacked(name: str, parts: Sequence[Any]) -> NDArray[Any]:
    shapes = {part.shape if isinstance(part, np.ndarray) else None for part in parts}
    if None in shapes or len(shapes) > 1:
        raise MapError(f"copies of {name!r} must be tensors of one shape, got {', '.join(map(str, shapes))}")
    return np.stack(parts, axis=1)


def fields_of(columns: Columns) -> dict[str, Field]:
    """Return the fields that hold columns of at least one sample; MapError if there are none."""
    try:
        fields = as_fields({name: _field(column) for name, column in columns.items()})
    except ConfigError as error:
        raise MapError(f"the function's values cannot be stored: {error}") from error
    return dict(fields)


def _field(column: NDArray[Any] | Sequence[Any]) -> Field:
    if isinstance(column, np.ndarray):
        scalar = column.ndim < 2
        return Field("scalar" if scalar else "array", column.dtype.name, None if scalar else column.shape[1:])
    kinds = {(each.dtype.name, *each.shape[1:]) if isinstance(each, np.ndarray) else type(each) for each in column}
    if len(kinds) != 1:
        raise ConfigError(f"a list must hold values of one kind, arrays that differ in their first axis alone: {kinds}")
    (kind,) = kinds
    if isinstance(kind, tuple):
        return Field("array", kind[0], (None, *kind[1:]))
    return Field("text" if kind is str else "bytes")


def check(columns: Columns, fields: Mapping[str, Field], count: int) -> Mapping[str, Field]:
    """Return the fields of a batch's columns; MapError unless there are `count` values of each, as in `fields`.

    Args:
        columns: the columns.
        fields: the fields of the first batch; none if this is the first.
        count: the number of samples.
    """
    for name, column in columns.items():
        found = 0 if isinstance(column, np.ndarray) and not column.ndim else len(column)
        if found != count:
            raise MapError(f"{name!r} must have a value for each of {count} samples, got {found}")
    own = fields_of(columns)
    if fields and own != fields:
        raise MapError(
            f"the function returned {describe_fields(own)}, and for the first batch {describe_fields(fields)}"
        )
    return own


def check_nan(columns: Columns, numbers: Sequence[int], but: Container[int]) -> None:
    """Raise MapError if a value of samples, of these numbers, is NaN; it names the first, and passes over some."""
    for name, column in columns.items():
        if any(map(_has_nan, [column] if isinstance(column, np.ndarray) else column)):
            for number, value in zip(numbers, column, strict=True):
                if number not in but and _has_nan(np.asarray(value)):
                    raise MapError("{!r} of sample {} is NaN; {nan:keep} stores it", name, number)


def _has_nan(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return False
    return bool(np.isnan(value.min(initial=0)))  # a minimum is NaN if any number is, and takes no memory
