"""Checksums: of a sample, of a shard's files, and the digest that names a dataset's content.

XXH3 (https://xxhash.com) finds damage at the speed of memory. It is no signature: it does not stop forgery.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..system.types import Buffer
from .fields import Field

_BLOCK = 1 << 20
_COPIED = 1 << 14  # bytes: to put less end to end costs less than another call


def of_sample(stored: Mapping[str, Buffer], names: Iterable[str]) -> int:
    """A sample's checksum, 64 bits: XXH3 over name, length and stored bytes of each field in `names`, in that order."""
    parts: list[Buffer] = []
    for name in names:
        parts += _head(name, memoryview(stored[name]).nbytes), stored[name]
    return _of_parts(parts)


def of_samples(columns: Mapping[str, NDArray[Any] | Sequence[Buffer]], names: Iterable[str]) -> NDArray[np.uint64]:
    """`of_sample` of many, uint64 [n]. A column is an array [n, ...] if its size is fixed, else stored bytes."""
    parts: list[Iterable[Buffer]] = []
    for name in names:
        column = columns[name]
        parts += _rows_of(name, column) if isinstance(column, np.ndarray) else _values_of(name, column)
    return np.array([_of_parts(row) for row in zip(*parts, strict=True)], np.uint64)


def _rows_of(name: str, column: NDArray[Any]) -> tuple[Iterable[Buffer], Iterable[Buffer]]:
    count, width = len(column), math.prod(column.shape[1:]) * column.itemsize
    data = np.ascontiguousarray(column).reshape(-1).view(np.uint8).data if count * width else memoryview(b"")
    return [_head(name, width)] * count, [data[start * width : (start + 1) * width] for start in range(count)]


def _values_of(name: str, column: Sequence[Buffer]) -> tuple[Iterable[Buffer], Iterable[Buffer]]:
    return [_head(name, memoryview(value).nbytes) for value in column], column


def _head(name: str, size: int) -> bytes:
    return b"%s\0%d\0" % (name.encode(), size)


def _of_parts(parts: Sequence[Buffer]) -> int:
    if sum(map(len, parts)) <= _COPIED:
        return xxhash.xxh3_64_intdigest(b"".join(parts))
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return int(state.intdigest())


def of_files(paths: Iterable[Path]) -> tuple[int, str]:
    """The size in bytes of some files together, and XXH3-128 over their content one after the other."""
    state, size = xxhash.xxh3_128(), 0
    block = memoryview(bytearray(_BLOCK))  # one for all: fresh memory costs more than what is read into it
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while read := file.readinto(block):
                state.update(block[:read])
                size += read
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
