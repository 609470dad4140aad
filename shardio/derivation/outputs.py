"""The values that a user's function returns for a batch, as columns, and the fields that they come to."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, MapError
from ..format.fields import Field, describe_fields, infer_fields

Columns: TypeAlias = Mapping[str, NDArray[Any] | Sequence[Any]]
"""By field, the values of some samples: an array [n, ...], or a list of n values."""


def columns_of(outputs: Any) -> Columns:
    """Return what a function has returned as columns in host memory; what is no dict becomes the field `output`.

    Raises MapError for anything but tensors, arrays, and lists.
    """
    named = outputs if isinstance(outputs, Mapping) else {"output": outputs}
    return {f"{name}": _column(value, name) for name, value in named.items()}


def _column(value: Any, name: Any) -> NDArray[Any] | list[Any]:
    if isinstance(value, list | tuple):
        return [_array(each, name) if isinstance(each, torch.Tensor) else each for each in value]
    if isinstance(value, torch.Tensor):
        value = _array(value, name)
    if not isinstance(value, np.ndarray) or not value.ndim:
        raise MapError(f"{name!r} must be a tensor, an array or a list with a value per sample, got {value!r:.60}")
    return value


def _array(value: torch.Tensor, name: Any) -> NDArray[Any]:
    if value.dtype == torch.bfloat16:
        raise MapError(f"{name!r} is bfloat16, which no field stores: return value.half() or value.float()")
    array: NDArray[Any] = value.detach().cpu().numpy()
    return array


def stacked(copies: Sequence[Columns]) -> Columns:
    """Return the columns of several random copies of the same samples as arrays [n, copies, ...].

    Raises MapError where they have no common shape.
    """
    try:
        return {name: np.stack([each[name] for each in copies], axis=1) for name in copies[0]}
    except (KeyError, ValueError) as error:
        raise MapError(f"copies must be tensors of one shape: {error}") from error


def check(columns: Columns, fields: Mapping[str, Field], count: int) -> Mapping[str, Field]:
    """Return the fields of a batch's columns; MapError unless there are `count` values of each, as in `fields`.

    Args:
        columns: the columns.
        fields: the fields of the first batch; none if this is the first.
        count: the number of samples.
    """
    for name, column in columns.items():
        if len(column) != count:
            raise MapError(f"{name!r} must have a value for each of {count} samples, got {len(column)}")
    rows = {name: (field.row_dtype, field.row_shape) for name, field in fields.items() if field.fixed}
    arrays = {name: (c.dtype, c.shape[1:]) for name, c in columns.items() if isinstance(c, np.ndarray)}
    if fields and arrays == rows and len(arrays) == len(columns):
        return fields  # as below, at a tenth of the cost
    try:
        own = infer_fields({name: column[0] for name, column in columns.items()})
    except ConfigError as error:
        raise MapError(f"the function's values cannot be stored: {error}") from error
    for name, field in own.items():
        if field.kind == "array" and field.shape and not isinstance(columns[name], np.ndarray):
            own[name] = replace(field, shape=(None, *field.shape[1:]))
    if fields and own != fields:
        raise MapError(f"the function returned {describe_fields(own)}, for the first batch {describe_fields(fields)}")
    return own


def check_nan(columns: Columns, numbers: Sequence[int], but: Container[int]) -> None:
    """Raise MapError if a value of samples, of these numbers, is NaN; it names the first, and passes over some."""
    for name, column in columns.items():
        if any(map(_has_nan, [column] if isinstance(column, np.ndarray) else column)):
            for number, value in zip(numbers, column, strict=True):
                if number not in but and _has_nan(np.asarray(value)):
                    raise MapError("{!r} of sample {} is NaN; {nan:keep} stores it", name, number)


def _has_nan(value: Any) -> bool:
    numbers = np.asarray(value if isinstance(value, np.ndarray | np.generic | float) else ())
    # A minimum is NaN if any number is, and takes no memory.
    return numbers.dtype.kind in "fc" and bool(np.isnan(numbers.min(initial=0)))


def difference(one: Any, other: Any) -> float | None:
    """Return the largest difference of the numbers in two columns, None if they are equal; infinite for all else."""
    if isinstance(one, np.ndarray) and one.dtype.kind in "biuf" and one.shape == np.shape(other):
        same = one.tobytes() == np.asarray(other, one.dtype).tobytes()
        return None if same else float(np.abs(np.subtract(one, other, dtype=np.float64)).max())
    return None if len(one) == len(other) and all(map(np.array_equal, one, other)) else np.inf
