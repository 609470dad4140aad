"""The blosc2 filter: a chunk is a Blosc2 frame, in the order of B2ND blocks if it has more than one axis.

As in `_hdf5_codecs`, this module does not call the filter's entry point: when that fails, it destroys state that all
threads share.
"""

import ctypes
import math
from dataclasses import dataclass
from typing import Any, final

from ._hdf5_filters import Bytes, Call, Damaged, Filter, function

_POINTER, _INT, _INT64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_AXES = 8
"""The filter's limit; `_Shape` has room for twice as many, because the library's own arrays have grown to that."""

_NO_METALAYER = -34
"""BLOSC2_ERROR_METALAYER_NOT_FOUND: the frame is not a B2ND array."""

_Shape = _INT64 * (2 * _AXES)


class _Array(ctypes.Structure):
    """The beginning of `b2nd_array_t`; unused axes have size 1."""

    _fields_ = [("frame", _POINTER), ("shape", _INT64 * _AXES)]


@final
@dataclass(frozen=True, slots=True)
class Blosc2:
    """Blosc2 of any codec.

    Attributes:
        width: bytes of an element.
        shape: the shape that a B2ND frame must have; () if the dataset does not state one.
    """

    open: Call
    close: Call
    chunk: Call
    open_array: Call
    close_array: Call
    slice: Call
    width: int
    shape: tuple[int, ...]
    name: str = "blosc2"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        frame = self.open(data.ctypes.data, len(data), False)
        if not frame:
            raise Damaged("its frame is wrong")
        array = ctypes.POINTER(_Array)()
        status = self.open_array(frame, ctypes.byref(array))
        if status >= 0:
            try:
                return self._array(array, buffer)
            finally:
                self.close_array(array)
        try:
            if status != _NO_METALAYER:
                raise Damaged(f"its B2ND description is wrong, Blosc2's error {status}")
            size = self.chunk(frame, 0, buffer.ctypes.data, min(len(buffer), 0x7FFFFFFF))
        finally:
            self.close(frame)
        if not 0 < size <= len(buffer):
            raise Damaged(f"Blosc2's error {size}, or more than {len(buffer)} bytes")
        return buffer[:size]

    def _array(self, array: Any, buffer: Bytes) -> Bytes:
        shape = tuple(array.contents.shape)
        size = math.prod(shape) * self.width
        if min(shape) < 1 or size > len(buffer) or (self.shape and shape != self.shape):
            raise Damaged(f"its shape {shape} is not the chunk's")
        stop = _Shape(*shape, *(1 for _ in range(_AXES)))
        status = self.slice(array, _Shape(), stop, buffer.ctypes.data, stop, size)
        if status < 0:
            raise Damaged(f"Blosc2's error {status}")
        return buffer[:size]


def blosc2(library: ctypes.CDLL, values: tuple[int, ...]) -> Filter | None:
    """Return the filter with these settings; None if the filter cannot have written them."""
    width, axes, shape = max(values[2], 1) if len(values) > 2 else 0, values[7] if len(values) > 7 else 0, values[8:]
    if not width or axes != len(shape) or axes > _AXES:
        return None
    full = (*shape, *(1 for _ in range(_AXES - axes))) if axes else ()
    function(library, "blosc2_init", None)()
    return Blosc2(
        function(library, "blosc2_schunk_from_buffer", _POINTER, _POINTER, _INT64, ctypes.c_bool),
        function(library, "blosc2_schunk_free", _INT, _POINTER),
        function(library, "blosc2_schunk_decompress_chunk", _INT, _POINTER, _INT64, _POINTER, ctypes.c_int32),
        function(library, "b2nd_from_schunk", _INT, _POINTER, _POINTER),
        function(library, "b2nd_free", _INT, _POINTER),
        function(library, "b2nd_get_slice_cbuffer", _INT, _POINTER, *[_POINTER] * 4, _INT64),
        width,
        full,
    )
