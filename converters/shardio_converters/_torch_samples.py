"""The samples of PyTorch's data sets as fields and values that can be stored."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.foreign.names import field_name
from shardio.source import sniff_image

_BYTES = (bytes, bytearray, memoryview)
_PLAIN = (*_BYTES, str, bool, int, float, np.generic, type(None))


def default_names(sample: Any) -> tuple[str, ...]:
    """What the parts of a tuple or list are called that says nothing of it; () for a mapping, whose keys do."""
    if isinstance(sample, Mapping):
        return ()
    if not isinstance(sample, (tuple, list)):
        return (_kind(storable(sample)),)
    return ("image", "label") if len(sample) == 2 else tuple(f"field{number}" for number in range(len(sample)))


def parts(sample: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The parts of a sample by field: a mapping's own, or those of a tuple or list, or the sample itself, by `names`.

    Raises BadSample if there are more or fewer parts than names.
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
    """A part of a sample as a field takes it; BadSample if none does."""
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
    """Whether an image that is stored for `value` is a PNG of its pixels, and not `value` itself."""
    return not isinstance(value, _BYTES)


def _kind(value: Any) -> str:
    match value:
        case np.ndarray():
            return "array"
        case bytes() | bytearray() | memoryview():
            return "image" if sniff_image(value) else "bytes"
        case str():
            return "text"
        case bool() | int() | float() | np.generic():
            return "scalar"
    return "json"


def _array_of(value: Any) -> Any:
    from torch import Tensor, bfloat16  # only now: it takes seconds

    if not isinstance(value, Tensor):
        return value
    if value.dtype == bfloat16:  # NumPy has no such type; float32 holds all of it
        value = value.float()
    found: NDArray[Any] = value.numpy(force=True)
    return found


def _json(value: Any) -> Any:
    """Lists and objects of JSON's own types, with the elements of tensors and arrays in it."""
    value = _array_of(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    return value
