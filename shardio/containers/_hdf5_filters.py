"""Defines a filter of HDF5, and undoes those that Python can: shuffle, fletcher32, bzip2, and gzip if it must.

Source: HDF5 File Format Specification, "The Filter Pipeline Message"; H5Zshuffle.c and H5checksum.c for the bytes.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
"""uint8 [n], C-contiguous."""

Undo: TypeAlias = Callable[[Bytes, Bytes], Bytes]
"""A function of a filter's output and of memory for the result, which must not be larger than that memory.

It returns the bytes from which the filter made its output: the beginning of the memory, a part of the output, or memory
of its own. It raises Damaged if the filter cannot have made this output, or the result does not fit. Any number of
threads may call it at once.
"""

_CHECKSUM_BYTES = 4
_WIDEST = 16  # bytes of a number
_CHECKSUM_BLOCK = 1 << 15
"""Words per step, so that their running sums stay in the processor's cache and far below 64 bits."""


class Damaged(Exception):
    """A chunk's bytes are not what its filter produces; callers catch it and add the file, field and row."""


@final
@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a dataset, with its settings.

    Attributes:
        name: its name in error messages.
        undo: undoes it.
    """

    name: str
    undo: Undo


def undo_stream(decompressor: Callable[[], Any]) -> Undo:
    """Return what undoes gzip or bzip2 by Python's zlib or bz2, which holds the GIL while it joins parts."""

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        stream = decompressor()
        try:
            # Without a limit a few damaged bytes could ask for all memory.
            content = stream.decompress(data.data, len(buffer) + 1)
        except (OSError, ValueError, zlib.error) as error:
            raise Damaged(str(error)) from error
        if not stream.eof or len(content) > len(buffer):
            raise Damaged(f"its stream does not end within {len(buffer)} bytes")
        return np.frombuffer(content, np.uint8)

    return undo


def undo_shuffle(width: int) -> Undo:
    """Return what undoes a shuffle: the first bytes of all elements are stored, then their second bytes, and so on.

    Args:
        width: bytes of an element.
    """

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        if width < 2:
            return data
        if len(data) > len(buffer):
            raise Damaged(f"{len(data)} bytes are more than the chunk's {len(buffer)}")
        whole = len(data) // width * width
        planes, joined = data[:whole].reshape(width, -1), buffer[:whole]
        if width in (2, 4, 8):
            _join(planes, joined)
        elif width <= _WIDEST:
            for i, plane in enumerate(planes):
                joined[i::width] = plane
        else:  # no number is as wide, but a damaged file may say 2^31, which is no number of turns for a loop
            joined.reshape(-1, width)[:] = planes.T
        buffer[whole : len(data)] = data[whole:]
        return buffer[: len(data)]

    return undo


def undo_fletcher32(data: Bytes, buffer: Bytes) -> Bytes:
    """Compare the checksum that the filter has appended, and leave it out."""
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
