"""Keys of samples, texts and integers, and the hashes that they are looked up by."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..system.types import Buffer
from .fields import Field

KEY = "key"
"""The field that holds the keys of samples, unless another one is named."""

NO_KEYS = np.empty(0, np.uint64)
"""The hashes of no keys."""


def is_key(field: Field) -> bool:
    """Return whether the values of a field are texts or integers."""
    return field.kind == "text" or (field.kind == "scalar" and field.row_dtype.kind in "iu")


def has_keys(fields: Mapping[str, Field]) -> bool:
    """Return whether every sample has a value of a field `key` of texts or integers."""
    return KEY in fields and is_key(fields[KEY]) and not fields[KEY].optional


def hashes_of_stored(keys: Sequence[Buffer], field: Field) -> NDArray[np.uint64]:
    """Return the hashes of keys in stored form, uint64 [n]."""
    return hashes_of(np.frombuffer(b"".join(keys), field.row_dtype) if field.fixed else keys)


def hashes_of(keys: Sequence[Buffer] | NDArray[Any]) -> NDArray[np.uint64]:
    """Return the XXH3-64 of keys, uint64 [n]: of texts in UTF-8; of integers, [n], as 8 bytes, little-endian."""
    stored = keys.astype("<u8").view("V8").tolist() if isinstance(keys, np.ndarray) else keys
    return np.fromiter(map(xxhash.xxh3_64_intdigest, stored), np.uint64, len(stored))
