"""A parser of protobuf's wire format that gives the offset of each value.

Source: https://protobuf.dev/programming-guides/encoding. Groups, which proto3 no longer has, are refused. For damaged
bytes of any kind, functions raise ValueError and no other error; its message names the byte.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Span: TypeAlias = tuple[int, int]
"""An offset and a number of bytes."""

_LONGEST_VARINT = 10
_SIZES = {FIXED64: 8, FIXED32: 4}


class Record(NamedTuple):
    """One field of a message: its number, its wire type, and the offsets where its value starts and ends."""

    number: int
    wire: int
    start: int
    end: int

    @property
    def span(self) -> Span:
        return self.start, self.end - self.start


def records(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the fields of the message in `data[start:end]`, in order; the value of a varint is its encoded bytes."""
    at, end = start, len(data) if end is None else end
    while at < end:
        tag, value = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"byte {at}: a field's number is 1 to {(1 << 29) - 1}, got {number}")
        if wire == VARINT:
            after = varint(data, value, end)[1]
        elif wire == BYTES:
            size, value = varint(data, value, end)
            after = value + size
        elif wire in _SIZES:
            after = value + _SIZES[wire]
        else:
            raise ValueError(f"byte {at}: field {number} is of the wire type {wire}, which is not supported")
        if after > end:
            raise ValueError(f"byte {at}: field {number} ends at byte {after}, its message at byte {end}")
        yield Record(number, wire, value, after)
        at = after


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode the varint at offset `at`: its value, 0 to 2**64 - 1, and the offset where it ends."""
    value = 0
    for place in range(at, min(end, at + _LONGEST_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << 7 * (place - at)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
    what = f"has more than {_LONGEST_VARINT} bytes" if end - at >= _LONGEST_VARINT else "is cut short"
    raise ValueError(f"byte {at}: a number {what}")


def int32(data: bytes, record: Record) -> int:
    value = varint(data, record.start, record.end)[0] & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def joined(data: bytes, spans: Iterator[Span] | tuple[Span, ...] | list[Span]) -> bytes:
    return b"".join(data[start : start + size] for start, size in spans)


def int64s(data: bytes) -> NDArray[np.int64]:
    """Decode the varints of a packed field as signed numbers, `[n]`."""
    stored = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(stored < 0x80)
    if not len(stored):
        return np.empty(0, np.int64)
    if not len(last) or last[-1] != len(stored) - 1:
        raise ValueError("the last of its numbers is cut short")
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    if lengths.max() > _LONGEST_VARINT:
        raise ValueError(f"one of its numbers has more than {_LONGEST_VARINT} bytes")
    shifts = 7 * (np.arange(len(stored)) - np.repeat(first, lengths))
    # The tenth byte of a negative number is shifted by 63 bits: its upper bits are dropped, as they should be.
    parts: NDArray[Any] = (stored & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(parts, first).view(np.int64)


def floats(data: bytes) -> NDArray[np.float32]:
    if len(data) % 4:
        raise ValueError(f"floats take 4 bytes each, got {len(data)} bytes")
    return np.frombuffer(data, "<f4").astype(np.float32)
