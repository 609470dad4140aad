"""Checksums of samples and of shard files, and the digest that identifies a dataset's content.

XXH3 (https://xxhash.com) detects damage at memory speed. It is not cryptographic: it does not detect forgery.
"""

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..system.regular_files import open_regular
from ..system.types import Buffer
from .fields import Field, sum_column

_BLOCK = 1 << 20
_SMALL_BLOCK = 1 << 18  # bytes: what is joined is hashed while it is in the cache
_JOIN_LIMIT = 1 << 14  # bytes: up to this size, joining the parts costs less than further calls


def of_sample(stored: Mapping[str, Buffer], names: Iterable[str]) -> int:
    """Return a sample's 64-bit checksum.

    It is XXH3-64 over the name, the length and the stored bytes of each field in `names`, in that order.
    """
    parts: list[Buffer] = []
    for name in names:
        parts += _header(name, memoryview(stored[name]).nbytes), stored[name]
    return _of_parts(parts)


def of_samples(columns: Mapping[str, NDArray[Any] | Sequence[Buffer]], names: Iterable[str]) -> NDArray[np.uint64]:
    """Return the checksums of n samples, as `of_sample` computes them, uint64 [n].

    Args:
        columns: for each field an array [n, ...] if its size is fixed, else the stored bytes of each sample.
        names: the fields that count, in that order.
    """
    chosen = {name: columns[name] for name in names}
    arrays = {name: _as_bytes(column) for name, column in chosen.items() if isinstance(column, np.ndarray)}
    if len(arrays) == len(chosen) and sum(rows.shape[1] for rows in arrays.values()) <= _JOIN_LIMIT:
        return _of_small_rows(arrays)
    parts: list[Iterable[Buffer]] = []
    for name, column in chosen.items():
        values = rows_of(arrays[name]) if name in arrays else column
        parts += [_header(name, memoryview(value).nbytes) for value in values], values
    return np.array([_of_parts(row) for row in zip(*parts, strict=True)], np.uint64)


def rows_of(column: NDArray[Any]) -> list[memoryview]:
    """Return the bytes of each row of an array [n, ...]."""
    rows = _as_bytes(column)
    (count, width), data = rows.shape, rows.reshape(-1).data
    return [data[start : start + width] for start in range(0, count * width, width)] if width else [data] * count


def _as_bytes(column: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array [n, ...] as the bytes of its rows, uint8 [n, bytes]."""
    width = math.prod(column.shape[1:]) * column.itemsize
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8).reshape(len(column), width)


def _of_small_rows(arrays: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint64]:
    """Return the checksums of samples whose parts are joined many samples at a time, by copies of whole columns."""
    parts: list[NDArray[np.uint8]] = []  # each header [1, bytes], then its rows [n, bytes]
    for name, rows in arrays.items():
        parts += np.frombuffer(_header(name, rows.shape[1]), np.uint8)[None], rows
    ends = np.cumsum([part.shape[1] for part in parts])
    count, sums = len(parts[1]), array("Q")
    block = max(1, _SMALL_BLOCK // int(ends[-1]))
    joined = np.empty((min(block, count), ends[-1]), np.uint8)  # reused: fresh memory costs more than the copies
    values, places = rows_of(joined), np.split(joined, ends[:-1], axis=1)
    for place, header in zip(places[::2], parts[::2], strict=True):
        place[:] = header
    for start in range(0, count, block):
        for place, rows in zip(places[1::2], parts[1::2], strict=True):
            np.copyto(place[: count - start], rows[start : start + block])
        sums.extend(map(xxhash.xxh3_64_intdigest, values[: count - start]))
    return np.array(sums, np.uint64)


def whole_videos(columns: Mapping[str, Any], fields: Mapping[str, Field], count: int) -> NDArray[np.bool_]:
    """Return which of `count` samples have the videos that their stored checksums are of, bool; see `of_samples`."""
    whole = np.ones(count, np.bool_)
    for name in (name for name, field in fields.items() if field.kind == "video"):
        actual = np.array([xxhash.xxh3_64_intdigest(value) for value in columns[name]], np.uint64)
        whole &= actual == columns[sum_column(name)]
    return whole


def _header(name: str, size: int) -> bytes:
    return b"%s\0%d\0" % (name.encode(), size)


def _of_parts(parts: Sequence[Buffer]) -> int:
    if sum(map(len, parts)) <= _JOIN_LIMIT:
        return xxhash.xxh3_64_intdigest(b"".join(parts))
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return int(state.intdigest())


class FileSums:
    """Checksums of files end to end, and of each of their pieces, from one reading.

    Args:
        piece: bytes of a piece, a power of two up to 1 MiB; the last one of each file may be shorter.

    Attributes:
        size: the total size in bytes.
        whole: XXH3-128 over all of them.
        pieces: XXH3-64 of each piece.
    """

    def __init__(self, piece: int) -> None:
        self.size, self.whole, self.pieces, self._piece = 0, xxhash.xxh3_128(), array("Q"), piece

    def add(self, block: memoryview) -> None:
        """Add what follows: whole MiB, or what a file has left."""
        self.size += len(block)
        self.whole.update(block)
        starts = range(0, len(block), self._piece)
        self.pieces.extend(xxhash.xxh3_64_intdigest(block[start : start + self._piece]) for start in starts)

    def add_files(self, paths: Iterable[Path]) -> None:
        """Add some files, of the first one what comes after that which has been added."""
        block, start = memoryview(bytearray(_BLOCK)), self.size  # reused: fresh memory would cost more than the read
        for path in paths:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                file.seek(start)
                filled = start = 0
                while read := file.readinto(block[filled:]):
                    filled += read
                    if filled == _BLOCK:
                        self.add(block)
                        filled = 0
                self.add(block[:filled])


class Digest:
    """The digest of a dataset's content: XXH3-128 over its fields and its samples' checksums, in order.

    Args:
        fields: the dataset's fields.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._state = xxhash.xxh3_128(json.dumps({n: _content(f) for n, f in fields.items()}, sort_keys=True).encode())

    def update(self, checksums: NDArray[np.uint64]) -> None:
        """Add the checksums of the next n samples, uint64 [n]."""
        self._state.update(np.ascontiguousarray(checksums, "<u8").tobytes())

    def update_unchecked(self, checksum: str) -> None:
        """Add a shard whose samples have no checksums, by the checksum of its files."""
        self._state.update(bytes.fromhex(checksum))

    def text(self) -> str:
        """Return the digest so far: `xxh3:` and 32 hexadecimal digits."""
        return f"xxh3:{self._state.hexdigest()}"


def _content(field: Field) -> dict[str, Any]:
    # An image field's shape is derived from the images, so it is no part of the stored content.
    shape = {"array": field.shape, "pixels": field.row_shape}.get(field.kind)
    optional = {"optional": True} if field.optional else {}
    parts = {"role": field.role, "on": field.on, "per": field.per} if field.on or field.per else {}
    parts |= {"flip_pairs": field.flip_pairs} if field.flip_pairs else {}  # which change what flips deliver
    return {"kind": field.kind, "dtype": field.dtype, "shape": shape, **optional, **parts}
