"""Samples of PyTorch Datasets, taken apart into named values that a field can hold."""

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.foreign.names import field_name
from shardio.source import infer_fields

_BYTES = (bytes, bytearray, memoryview)
_PLAIN = (*_BYTES, str, bool, int, float, np.generic, type(None))


def default_names(sample: Any) -> tuple[str, ...]:
    """The default names for the parts of a sample; () for a mapping, whose keys are the names."""
    if isinstance(sample, Mapping):
        return ()
    if not isinstance(sample, (tuple, list)):
        return (infer_fields({"value": storable(sample)})["value"].kind,)
    return ("image", "label") if len(sample) == 2 else tuple(f"field{number}" for number in range(len(sample)))


def parts(sample: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The parts of a sample by field: the values of a mapping; or those of a tuple or list, or a lone value, by
    `names`.

    Raises BadSample if the number of parts differs from the number of names, or two keys would give one field.
    """
    if isinstance(sample, Mapping):
        found = {field_name(str(key)): value for key, value in sample.items()}
        if len(found) < len(sample):
            raise BadSample(f"two keys would be one field: {', '.join(map(str, sample))}")
        return found
    values = sample if isinstance(sample, (tuple, list)) else (sample,)
    if len(values) != len(names):
        raise BadSample(f"it has {len(values)} parts, for {len(names)} names: {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def storable(value: Any) -> Any:
    """Convert a part of a sample to a value that a field holds; BadSample if none does."""
    value = _array_of(value)
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="), copy=False)
        return native[()] if native.ndim == 0 else native
    if hasattr(value, "save") and hasattr(value, "mode"):  # a PIL image, known without PIL
        stream = io.BytesIO()
        value.save(stream, format="PNG")
        return stream.getvalue()
    if isinstance(value, (Mapping, list, tuple)):
        return _json(value)
    if not isinstance(value, _PLAIN):
        raise BadSample(f"no field holds a {type(value).__name__}")
    return value


def is_encoded_here(value: Any) -> bool:
    """Whether the image stored for `value` is a PNG that shardio encodes, rather than `value` itself."""
    return not isinstance(value, _BYTES)


def _array_of(value: Any) -> Any:
    from torch import Tensor, bfloat16  # imported on use: it takes seconds

    if not isinstance(value, Tensor):
        return value
    if value.dtype == bfloat16:  # NumPy has no such dtype; float32 holds all its values
        value = value.float()
    found: NDArray[Any] = value.numpy(force=True)
    return found


def _json(value: Any) -> Any:
    """Convert nested lists and mappings to JSON's types, and tensors and arrays within them to lists."""
    value = _array_of(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    return value


def check_finite(value: Any) -> None:
    """Raise BadSample if a value of JSON's types holds NaN or an infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadSample(f"{value} is not JSON")
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            check_finite(part)
