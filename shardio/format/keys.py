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

_FLIP, _PRIME = np.uint64(0xC73AB174C5ECD5A2), np.uint64(0x9FB21C651E98DF25)


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
    """Return the XXH3-64 of keys, uint64 [n]: of texts in UTF-8; of integers, [n], as 8 bytes, little-endian.

    Source of the arithmetic for 8 bytes: XXH3_len_4to8_64b of https://github.com/Cyan4973/xxHash.
    """
    if not isinstance(keys, np.ndarray):
        return np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))
    words = keys.astype(np.uint64)
    words = (words << np.uint64(32) | words >> np.uint64(32)) ^ _FLIP
    words ^= _rotated(words, 49) ^ _rotated(words, 24)
    words *= _PRIME
    words ^= (words >> np.uint64(35)) + np.uint64(8)
    words *= _PRIME
    return words ^ words >> np.uint64(28)


def _rotated(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
