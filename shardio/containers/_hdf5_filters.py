"""HDF5's own filters, undone in Python: deflate, shuffle, fletcher32, and bzip2, which Python has too.

Source: HDF5 File Format Specification, "The Filter Pipeline Message"; H5Zshuffle.c and H5checksum.c for the bytes.
"""

import bz2
import ctypes
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
"""uint8 [n], C-contiguous."""

Call: TypeAlias = Callable[..., Any]
"""A C function."""

_CHECKSUM_BYTES = 4
_CHECKSUM_BLOCK = 1 << 15
"""Words at a time: their running sums stay in the processor's cache and far below 64 bits."""


class Damaged(Exception):
    """A chunk's bytes are not what its filters made; caught where the place is known."""


class Filter(Protocol):
    """One filter of a dataset, with its settings; any number of threads may use it at once."""

    @property
    def name(self) -> str:
        """What an error calls it."""

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """The bytes that the filter was given when it made `data`.

        They are the beginning of `room`, or a part of `data`, or memory of their own; never more than `room` holds.
        Raises Damaged if `data` is not what the filter makes, or made of more bytes than that.
        """


def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Call:
    """A function of a compiled library, with its types; it runs without the GIL. AttributeError if there is none."""
    found: Any = library[name]  # a new object each time, so that nobody else's types are changed
    found.argtypes, found.restype = arguments, result
    call: Call = found
    return call


@final
@dataclass(frozen=True, slots=True)
class Deflate:
    """gzip by Python's zlib, which lets go of the GIL while it works but not while it joins its parts."""

    name: str = "deflate"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        # Without a limit a few damaged bytes could ask for all memory.
        stream = zlib.decompressobj()
        try:
            found = stream.decompress(data.data, len(room) + 1)
        except zlib.error as error:
            raise Damaged(str(error)) from error
        return _ended(found, stream.eof, room)


@final
@dataclass(frozen=True, slots=True)
class Bzip2:
    """bzip2 by Python's bz2."""

    name: str = "bzip2"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        stream = bz2.BZ2Decompressor()
        try:
            found = stream.decompress(data.data, len(room) + 1)
        except (OSError, ValueError) as error:
            raise Damaged(str(error)) from error
        return _ended(found, stream.eof, room)


@final
@dataclass(frozen=True, slots=True)
class Shuffle:
    """The first bytes of all elements come first, then their second bytes, and so on; `width` is an element's size."""

    width: int
    name: str = "shuffle"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        if self.width < 2:
            return data
        if len(data) > len(room):
            raise Damaged(f"{len(data)} bytes are more than the chunk's {len(room)}")
        whole = len(data) // self.width * self.width
        planes, joined = data[:whole].reshape(self.width, -1), room[:whole]
        if self.width in (2, 4, 8):
            _join(planes, joined)
        else:
            for i, plane in enumerate(planes):
                joined[i :: self.width] = plane
        room[whole : len(data)] = data[whole:]
        return room[: len(data)]


@final
@dataclass(frozen=True, slots=True)
class Fletcher32:
    """A checksum at the end."""

    name: str = "fletcher32"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`; gives the part of `data` before the checksum."""
        content, stored = data[:-_CHECKSUM_BYTES], int.from_bytes(data[-_CHECKSUM_BYTES:].tobytes(), "little")
        if (actual := fletcher32(content)) != stored:
            raise Damaged(f"{actual:08x} is not {stored:08x}")
        return content


def fletcher32(data: bytes | Bytes) -> int:
    """HDF5's Fletcher-32 of big-endian 16-bit words (an odd last byte is the high half of one more).

    Sums are taken modulo 65535 in ones' complement, where a sum that is not zero never becomes zero.
    """
    words = np.frombuffer(data, ">u2", len(data) // 2)
    first = second = 0
    for start in range(0, len(words), _CHECKSUM_BLOCK):
        sums = np.cumsum(words[start : start + _CHECKSUM_BLOCK], dtype=np.uint64)
        second += first * len(sums) + int(sums.sum())
        first += int(sums[-1])
    if len(data) % 2:
        first += int(data[-1]) << 8
        second += first
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    return (total - 1) % 65535 + 1 if total else 0


def _join(planes: NDArray[np.uint8], out: Bytes) -> None:
    """Bytes to numbers of twice the size, and again: processors do this in whole registers, a transpose they do not."""
    parts: list[NDArray[Any]] = list(planes)
    while (size := parts[0].itemsize) < len(planes):
        wide = np.dtype(f"<u{2 * size}")
        last = 2 * size == len(planes)
        joined = []
        for low, high in zip(parts[::2], parts[1::2], strict=True):
            pair = out.view(wide) if last else np.empty(len(low), wide)
            pair[...] = high
            np.left_shift(pair, 8 * size, out=pair)
            np.bitwise_or(pair, low, out=pair)
            joined.append(pair)
        parts = joined


def _ended(found: bytes, eof: bool, room: Bytes) -> Bytes:
    if not eof or len(found) > len(room):
        raise Damaged(f"its stream does not end within {len(room)} bytes")
    return np.frombuffer(found, np.uint8)
