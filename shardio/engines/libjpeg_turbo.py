"""Decoding of JPEG files straight into a batch: libjpeg-turbo behind `native/jpeg.c`, many images per call, no GIL."""

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..format.limits import MAX_IMAGE_PIXELS
from ..system.types import Buffer
from ..transforms.fuse import FusedSteps
from .buffer_addresses import buffer_addresses


class _Work(ctypes.Structure):
    """The struct `Work` of `native/jpeg.c`."""

    _fields_ = [
        ("count", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("images", ctypes.c_void_p),
        ("boxes", ctypes.c_void_p),
        ("scaled", ctypes.c_void_p),
        ("windows", ctypes.c_void_p),
        ("flips", ctypes.c_void_p),
        ("affine", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_bytes", ctypes.c_int64),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("most", ctypes.c_int64),
        ("failed", ctypes.c_void_p),
    ]


@final
class JpegDecoder:
    """Decodes, crops, resizes and flips JPEG files. Threads may share it: each call has a C decoder to itself.

    Args:
        channels: 3 for RGB, 1 for grey.
        affine: None for uint8 HWC; otherwise factor and offset per channel of the float32 CHW result, float32
            [channels, 2].
        max_pixels: the most pixels to hold of one file at once; it leaves files that need more to another decoder.
    """

    def __init__(self, channels: int, affine: NDArray[np.float32] | None, max_pixels: int = MAX_IMAGE_PIXELS) -> None:
        library = native.library()
        if library is None:
            raise RuntimeError("the compiled part of shardio was not built")
        self._library = library
        self._library.shardio_decoder_new.restype = ctypes.c_void_p
        self._library.shardio_decode.restype = ctypes.c_int64
        self._channels, self._max_pixels = channels, max_pixels
        self._affine = None if affine is None else np.ascontiguousarray(affine, np.float32)
        self._idle: deque[_NativeDecoder] = deque()

    def __call__(self, encoded: Sequence[Buffer], fused: FusedSteps, out: NDArray[Any]) -> list[int]:
        """Decode files into `out`, [n, height, width, channels], or with `affine` [n, channels, height, width].

        Returns the rows that it leaves to another decoder: it does not tell files of other kinds from damaged ones.
        """
        count = len(encoded)
        height, width = out.shape[1:3] if self._affine is None else out.shape[2:4]
        addresses, lengths, owner = buffer_addresses(encoded)
        columns = [
            np.ascontiguousarray(c, np.int32) for c in (fused.images, fused.regions, fused.resized, fused.windows)
        ]
        flips, failed = np.ascontiguousarray(fused.flips), np.empty(count, np.bool_)
        work = _Work(
            count,
            addresses,
            lengths.ctypes.data,
            *(column.ctypes.data for column in columns),
            flips.ctypes.data,
            None if self._affine is None else self._affine.ctypes.data,
            out.ctypes.data,
            out.strides[0],
            height,
            width,
            self._channels,
            self._max_pixels,
            failed.ctypes.data,
        )
        decoder = self._acquire()
        failures = self._library.shardio_decode(decoder.pointer, ctypes.byref(work))
        self._idle.append(decoder)
        del owner
        return np.flatnonzero(failed).tolist() if failures else []

    def _acquire(self) -> "_NativeDecoder":
        """Return a decoder that no other thread uses. One made before a fork stays with the parent process."""
        while self._idle:
            try:
                decoder = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if decoder.process == os.getpid():
                return decoder
        return _NativeDecoder(self._library)


class _NativeDecoder:
    """A decoder in C, freed with its last reference."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.process = os.getpid()
        address = library.shardio_decoder_new()
        if not address:
            raise MemoryError("no memory for a JPEG decoder")
        self.pointer = ctypes.c_void_p(address)
        # Not at exit: a thread may still decode with it, and the system reclaims all memory anyway.
        weakref.finalize(self, library.shardio_decoder_free, self.pointer).atexit = False
