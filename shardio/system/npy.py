"""Reading and writing `.npy`, NumPy's own file format, where the bytes may be damaged.

The format is described at https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import io
import math
import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .types import Buffer

_TRIES = 100
_KEPT = 4096  # headers, each of less than 1 KiB
_USUAL_BYTES = 128
_MOST_HEADER = 10_000  # bytes, as of NumPy
_SIZE = rb"(?:0|[1-9][0-9]{0,17})"
_USUAL = re.compile(
    rb"\x93NUMPY\x01\x00\x76\x00\{'descr': '([<>|][biufc][0-9]{1,2})', 'fortran_order': (False|True), 'shape': "
    rb"\((|%b,|%b(?:, %b)+)\), \} *\n" % (_SIZE, _SIZE, _SIZE)
)


class Header(NamedTuple):
    """The header of a `.npy`.

    Attributes:
        start: the offset of the numbers.
        dtype, shape: of the array.
        fortran: whether columns are contiguous.
        stop: the offset of the end of the numbers.
    """

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    stop: int


def read_array(stored: Buffer, expected: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Return the array in the bytes of a `.npy`, as a writable copy; bytes after it are ignored.

    Raises ValueError if the bytes are damaged, hold Python objects or have another dtype than `expected`.
    """
    start, dtype, shape, fortran, stop = _usual_header(bytes(stored[:_USUAL_BYTES])) or _header_in(stored)
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are not read")
    if stop > len(stored):
        raise ValueError(f"its array ends at byte {stop} of {len(stored)}")
    if expected is not None and dtype != expected:
        raise ValueError(f"expected {expected}, got {dtype}")
    return np.ndarray(shape, dtype, stored, start, None, "F" if fortran else "C").copy("A")


def read_arrays(
    memory: NDArray[np.uint8], offsets: NDArray[np.int64], sizes: NDArray[np.int64], expected: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """Yield the arrays in the bytes of several `.npy` as `read_array` returns them, but as views of `memory`.

    Args:
        memory: all bytes, writable; they must stay as they are.
        offsets, sizes: of each `.npy` in `memory`, int64 [n].
        expected: the dtype of all arrays.
    """
    view, item = memory.data, expected.itemsize
    for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        header = _usual_header(bytes(view[offset : offset + _USUAL_BYTES]))
        if header is not None:
            start, dtype, shape, fortran, stop = header
            if dtype == expected and stop <= size and not fortran and not offset % item:
                yield np.ndarray(shape, dtype, view, offset + start)
                continue
        yield read_array(view[offset : offset + size], expected)


def read_header(file: IO[bytes], most: int = _MOST_HEADER) -> Header:
    """Read the header of a `.npy`, of at most `most` bytes, at a file's position; ValueError if it is damaged."""
    head = file.read(12)
    return _header_in(head + file.read(max(0, _start(head) - len(head))), most)


@lru_cache(_KEPT // 4)  # those of side indexes may be longer
def header_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an array in C order; its size does not depend on the length of the first axis."""
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    stream = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(stream, description)
    except ValueError:  # more than 64 KiB
        np.lib.format.write_array_header_2_0(stream, description)
    return stream.getvalue()


def guarded(read: Callable[[], Any]) -> Any:
    """Have NumPy read a `.npy` header by calling `read`, and return its result.

    NumPy parses headers with `ast`, which in some versions of Python fails at random if several threads parse at once
    (https://github.com/python/cpython/issues/106905): this calls `read` again after such a failure.

    Raises ValueError for whatever exception a damaged header causes.
    """
    for _ in range(_TRIES):
        try:
            return read()
        except SystemError:
            continue
        except (SyntaxError, TypeError, AttributeError, LookupError, ArithmeticError, MemoryError, TokenError) as error:
            raise ValueError(f"its header is damaged: {error}") from error
    raise ValueError("its header cannot be parsed")


@lru_cache(_KEPT)
def _usual_header(head: bytes) -> Header | None:
    """Return the header of plain numbers that NumPy wrote, which NumPy takes long to read; None for any other bytes."""
    usual = _USUAL.fullmatch(head)
    if usual is None:
        return None
    descr, fortran, sizes = usual.groups()
    shape = tuple(map(int, filter(None, sizes.split(b","))))
    return _checked(len(head), guarded(lambda: np.dtype(descr.decode())), shape, fortran == b"True")


def _header_in(stored: Buffer, most: int = _MOST_HEADER) -> Header:
    """Return any header at the beginning of bytes; ValueError if it is damaged."""
    file = io.BytesIO(stored[: _start(stored)])

    def read() -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        file.seek(0)
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file, most)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file, most)
        if version != (3, 0):
            raise ValueError(f"its format has version {version[0]}.{version[1]}")
        # UTF-8 instead of version 2's Latin-1: escaped to ASCII, they are the same
        text = file.read()[4:].decode().encode("ascii", "backslashreplace")
        return np.lib.format.read_array_header_2_0(io.BytesIO(struct.pack("<I", len(text)) + text), most)

    shape, fortran, dtype = guarded(read)
    return _checked(file.tell(), dtype, shape, fortran)


def _start(head: Buffer) -> int:
    """Return the offset of the numbers as the first 12 bytes of a `.npy` state it."""
    first, last = (8, 10) if head[6:7] == b"\1" else (8, 12)
    return last + int.from_bytes(head[first:last], "little")


def _checked(start: int, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> Header:
    least = math.prod(size or 1 for size in shape) * dtype.itemsize  # NumPy counts 0 as 1 there too
    if any(size < 0 or isinstance(size, bool) for size in shape) or least >= 1 << 63:
        raise ValueError(f"its header is damaged: shape {shape}")
    return Header(start, dtype, shape, fortran, start + math.prod(shape) * dtype.itemsize)
