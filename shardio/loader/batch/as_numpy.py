"""Batches of NumPy arrays instead of tensors, in the same memory: `to="numpy"` of a loader.

Inside the loader, batches hold tensors. The consumer and `map` get arrays, and those that `map` returns become tensors
again.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import MissingDependency
from .nested import map_nested

To: TypeAlias = Literal["torch", "numpy"]
"""The kind of arrays in batches: tensors, or NumPy arrays."""


def bfloat16() -> np.dtype[Any]:
    """Return NumPy's dtype of bfloat16, which ml_dtypes defines; MissingDependency if that is not installed."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependency("arrays of bfloat16 need ml_dtypes: pip install ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def with_arrays(value: Any) -> Any:
    """Return a batch, or a sample, with its tensors replaced by arrays in their memory."""
    return map_nested(value, torch.Tensor, _array)


def with_tensors(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch, or a sample, with its arrays replaced by `as_tensor` of them."""
    found: dict[str, Any] = map_nested(dict(value), np.ndarray, as_tensor)
    return found


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        return _array(tensor.detach().view(torch.uint16)).view(bfloat16())
    found: NDArray[Any] = tensor.numpy(force=True)
    return found


def as_tensor(array: NDArray[Any]) -> Any:
    """Return an array as a tensor in its memory, or in a copy if it is read-only or reversed along an axis.

    An array of a dtype that torch lacks, such as strings, is returned as it is.
    """
    if array.dtype.name == "bfloat16":
        return as_tensor(array.view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy())
    except TypeError:
        return array
