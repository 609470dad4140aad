"""The protocol of HDF5 filters, and those that Python undoes itself: deflate, shuffle, fletcher32 and bzip2.

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
_WIDEST = 16  # bytes of a number
_CHECKSUM_BLOCK = 1 << 15
"""Words per step, so that their running sums stay in the processor's cache and far below 64 bits."""


class Damaged(Exception):
    """A chunk's bytes are not what its filter produces; callers catch it and add the file, field and row."""


class Filter(Protocol):
    """One filter of a dataset, with its settings; any number of threads may use it at once."""

    @property
    def name(self) -> str:
        """The name in error messages."""

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        """Return the bytes from which the filter made `data`.

        Args:
            data: the filter's output.
            buffer: memory for the result, which must not be larger than it.

        Returns:
            The beginning of `buffer`, or a part of `data`, or memory of its own.

        Raises:
            Damaged: the filter cannot have made `data`, or the result does not fit.
        """


def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Call:
    """Return a function of a compiled library, with its types; it runs without the GIL. AttributeError if missing."""
    symbol: Any = library[name]  # a new object each time, so that the types set here are private to it
    symbol.argtypes, symbol.restype = arguments, result
    call: Call = symbol
    return call


@final
@dataclass(frozen=True, slots=True)
class Deflate:
    """gzip by Python's zlib, which releases the GIL while it decompresses but not while it joins its parts."""

    name: str = "deflate"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        # Without a limit a few damaged bytes could ask for all memory.
        stream = zlib.decompressobj()
        try:
            content = stream.decompress(data.data, len(buffer) + 1)
        except zlib.error as error:
            raise Damaged(str(error)) from error
        return _checked(content, stream.eof, buffer)


@final
@dataclass(frozen=True, slots=True)
class Bzip2:
    """bzip2 by Python's bz2."""

    name: str = "bzip2"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        stream = bz2.BZ2Decompressor()
        try:
            content = stream.decompress(data.data, len(buffer) + 1)
        except (OSError, ValueError) as error:
            raise Damaged(str(error)) from error
        return _checked(content, stream.eof, buffer)


@final
@dataclass(frozen=True, slots=True)
class Shuffle:
    """Stores the first bytes of all elements, then their second bytes, and so on.

    Attributes:
        width: bytes of an element.
    """

    width: int
    name: str = "shuffle"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        if self.width < 2:
            return data
        if len(data) > len(buffer):
            raise Damaged(f"{len(data)} bytes are more than the chunk's {len(buffer)}")
        whole = len(data) // self.width * self.width
        planes, joined = data[:whole].reshape(self.width, -1), buffer[:whole]
        if self.width in (2, 4, 8):
            _join(planes, joined)
        elif self.width <= _WIDEST:
            for i, plane in enumerate(planes):
                joined[i :: self.width] = plane
        else:  # no number is as wide, but a damaged file may say 2^31, which is no number of turns for a loop
            joined.reshape(-1, self.width)[:] = planes.T
        buffer[whole : len(data)] = data[whole:]
        return buffer[: len(data)]


@final
@dataclass(frozen=True, slots=True)
class Fletcher32:
    """Appends a checksum."""

    name: str = "fletcher32"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        content, stored = data[:-_CHECKSUM_BYTES], int.from_bytes(data[-_CHECKSUM_BYTES:].tobytes(), "little")
        if (actual := fletcher32(content)) != stored:
            raise Damaged(f"{actual:08x} is not {stored:08x}")
        return content


def fletcher32(data: bytes | Bytes) -> int:
    """Return HDF5's Fletcher-32 of big-endian 16-bit words (an odd last byte is the high half of one more).

    Sums are modulo 65535 in ones' complement: a sum that is not zero never becomes zero.
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
    """Join planes of bytes into elements by doubling the width repeatedly, which unlike a transpose is vectorized."""
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


def _checked(content: bytes, ended: bool, buffer: Bytes) -> Bytes:
    if not ended or len(content) > len(buffer):
        raise Damaged(f"its stream does not end within {len(buffer)} bytes")
    return np.frombuffer(content, np.uint8)
