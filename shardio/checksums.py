"""Checksums: of a sample, of a shard's files, and the digest that names a dataset's content.

XXH3 (https://xxhash.com) finds damage at the speed of memory. It is no signature: it does not stop forgery.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .fields import Field
from .types import Buffer

_BLOCK = 4 << 20


def of_sample(stored: Mapping[str, Buffer], names: Iterable[str]) -> int:
    """A sample's checksum, 64 bits: XXH3 over name, length and stored bytes of each field in `names`, in that order."""
    state = xxhash.xxh3_64()
    for name in names:
        value = stored[name]
        state.update(b"%s\0%d\0" % (name.encode(), value.nbytes if isinstance(value, memoryview) else len(value)))
        state.update(value)
    return int(state.intdigest())


def of_files(paths: Iterable[Path]) -> tuple[int, str]:
    """The size in bytes of some files together, and XXH3-128 over their content one after the other."""
    state, size = xxhash.xxh3_128(), 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                state.update(block)
                size += len(block)
    return size, state.hexdigest()


class Digest:
    """The digest of a dataset's content, fed with its samples' checksums in order."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._state = xxhash.xxh3_128(json.dumps({n: _content(f) for n, f in fields.items()}, sort_keys=True).encode())

    def update(self, checksums: NDArray[np.uint64]) -> None:
        """Adds samples' checksums, uint64 [n]."""
        self._state.update(np.ascontiguousarray(checksums, "<u8").tobytes())

    def text(self) -> str:
        """`xxh3:` and 32 hexadecimal digits."""
        return f"xxh3:{self._state.hexdigest()}"


def _content(field: Field) -> dict[str, Any]:
    # What an image field says of shape is read off the images, so it is no part of what was stored.
    return {"kind": field.kind, "dtype": field.dtype, "shape": field.shape if field.kind == "array" else None}
