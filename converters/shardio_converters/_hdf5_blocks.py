"""Encodes rows that h5py has read as bytes, so that the helper process can send them to the converter."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def encode(values: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield an array as bytes: a description in JSON, then the parts that it names.

    Args:
        values: numbers, objects that are all bytes, all text or all arrays of one dtype, or a structure of these.
    """
    parts: list[bytes | memoryview] = []
    yield json.dumps(_describe(values, parts)).encode()
    yield from parts


def decode(parts: Sequence[bytes | bytearray]) -> NDArray[Any]:
    """Return the array that `encode` yielded, with text as UTF-8."""
    return _restore(json.loads(parts[0]), iter(parts[1:]))


def _describe(values: NDArray[Any], parts: list[bytes | memoryview]) -> dict[str, Any]:
    """Append an array's bytes to `parts`; return its description."""
    if values.dtype.names is not None:
        return {"members": {name: _describe(values[name], parts) for name in values.dtype.names}}
    if not values.dtype.hasobject:
        whole = np.ascontiguousarray(values)
        parts.append(whole.reshape(-1).view(np.uint8).data if whole.nbytes else b"")
        return {"dtype": values.dtype.str, "shape": values.shape}
    flat = [value.encode() if isinstance(value, str) else value for value in values.reshape(-1).tolist()]
    kinds = {value.dtype.str if isinstance(value, np.ndarray) else type(value).__name__ for value in flat} or {"bytes"}
    if len(kinds) > 1:
        raise TypeError(f"expected values of one type, got {', '.join(sorted(kinds))}")
    elements = [value if isinstance(value, bytes) else value.tobytes() for value in flat]
    parts.append(np.array([len(element) for element in elements], "<i8").tobytes())
    parts.append(b"".join(elements))
    return {"elements": kinds.pop(), "shape": values.shape}


def _restore(described: dict[str, Any], parts: Iterator[bytes | bytearray]) -> NDArray[Any]:
    if "members" in described:
        members = {name: _restore(member, parts) for name, member in described["members"].items()}
        count = len(next(iter(members.values())))
        kinds: Any = [(name, values.dtype, values.shape[1:]) for name, values in members.items()]
        whole = np.empty(count, kinds)
        for name, values in members.items():
            whole[name] = values
        return whole
    if "dtype" in described:
        return np.frombuffer(next(parts), described["dtype"]).reshape(described["shape"])
    ends, data = np.cumsum(np.frombuffer(next(parts), "<i8")).tolist(), bytes(next(parts))
    kind, found = described["elements"], np.empty(len(ends), object)
    for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        found[i] = data[start:end] if kind == "bytes" else np.frombuffer(data[start:end], kind)
    return found.reshape(described["shape"])
