"""Fused steps carried out by compiled code (`native/jpeg.c`): many images per call, straight into a batch, no GIL."""

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..format.limits import MAX_IMAGE_PIXELS
from ..system.types import Buffer
from ..transforms.fuse import FusedSteps
from .buffer_addresses import buffer_addresses
from .orientation import TURNS, Orientations

EngineName: TypeAlias = Literal["auto", "cpu", "dali", "nvimgcodec"]
"""The engine that decodes and transforms images; `"auto"` chooses one by the device and the installed packages."""
Decode: TypeAlias = Literal["exact", "fast"]
"""The decoding of JPEG files: `"exact"` gives Pillow's pixels, `"fast"` repeats chroma samples and shrinks early."""

_FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
_TURN_BITS = np.array([0, *(sum(flag << bit for bit, flag in enumerate(TURNS[o])) for o in range(1, 9))], np.uint8)
_POINTS = {"nearest": 0, "bilinear": 6, "bicubic": 7}


def filter_number(fused: FusedSteps) -> int:
    """Return the number of a filter in `native/image.h`."""
    return _FILTERS.index(fused.interpolation) if fused.antialias else _POINTS[fused.interpolation]


class _Batch(ctypes.Structure):
    """The struct `ImageBatch` of `native/image.h`."""

    _fields_ = [
        ("count", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("images", ctypes.c_void_p),
        ("boxes", ctypes.c_void_p),
        ("scaled", ctypes.c_void_p),
        ("windows", ctypes.c_void_p),
        ("flips", ctypes.c_void_p),
        ("turns", ctypes.c_void_p),
        ("normalize", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_bytes", ctypes.c_int64),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("filter", ctypes.c_int32),
        ("encoded", ctypes.c_int32),
        ("fast", ctypes.c_int32),
        ("most", ctypes.c_int64),
        ("failed", ctypes.c_void_p),
    ]


@final
class FusedImages:
    """Decodes JPEG files, or takes pixels; crops, resizes and flips them. Threads may share it.

    Args:
        channels: 3 for RGB, 1 for grey.
        normalization: None for uint8 HWC; otherwise mean and standard deviation per channel of the float32 CHW result,
            see `Recipe.normalization`.
        decode: how JPEG files are decoded.
        max_pixels: the most pixels to hold of one file at once; it leaves files that need more to another decoder.
    """

    def __init__(
        self,
        channels: int,
        normalization: NDArray[np.float32] | None = None,
        *,
        decode: Decode = "exact",
        max_pixels: int = MAX_IMAGE_PIXELS,
    ) -> None:
        library = native.library()
        if library is None:
            raise RuntimeError("the compiled part of shardio was not built")
        self._library = library
        self._library.shardio_decoder_new.restype = ctypes.c_void_p
        self._library.shardio_make_images.restype = ctypes.c_int64
        self._channels, self._max_pixels, self._fast = channels, max_pixels, decode == "fast"
        self._normalization = None if normalization is None else np.ascontiguousarray(normalization, np.float32)
        self._idle: deque[_NativeDecoder] = deque()

    def decode(
        self, files: Sequence[Buffer], fused: FusedSteps, out: NDArray[Any], orientations: Orientations | None = None
    ) -> list[int]:
        """Make images of JPEG files in `out`, [n, height, width, channels], or of floats [n, channels, height, width].

        With `orientations`, `fused` is of upright images. Returns the rows that it leaves to another decoder: it does
        not tell files of other kinds from damaged ones.
        """
        return self._make(files, fused, out, orientations, encoded=True)

    def resize(
        self, pixels: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], fused: FusedSteps, out: NDArray[Any]
    ) -> list[int]:
        """Make images of pixels, uint8 [height, width, channels] each, as `decode` does of files."""
        return self._make(pixels, fused, out, None, encoded=False)

    def _make(
        self,
        data: Sequence[Buffer] | Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
        fused: FusedSteps,
        out: NDArray[Any],
        orientations: Orientations | None,
        *,
        encoded: bool,
    ) -> list[int]:
        count, images = len(data), fused.images
        turns = None if orientations is None else _TURN_BITS[orientations]
        if turns is not None:
            images = np.where(turns[:, None] & 4, images[:, ::-1], images)
        height, width = out.shape[1:3] if self._normalization is None else out.shape[2:4]
        addresses, lengths, owner = buffer_addresses(data)
        columns = [np.ascontiguousarray(c, np.int32) for c in (images, fused.regions, fused.resized, fused.windows)]
        flips, failed = np.ascontiguousarray(fused.flips), np.empty(count, np.bool_)
        work = _Batch(
            count,
            addresses,
            lengths.ctypes.data,
            *(column.ctypes.data for column in columns),
            flips.ctypes.data,
            None if turns is None else turns.ctypes.data,
            None if self._normalization is None else self._normalization.ctypes.data,
            out.ctypes.data,
            out.strides[0],
            height,
            width,
            self._channels,
            filter_number(fused),
            encoded,
            self._fast,
            self._max_pixels,
            failed.ctypes.data,
        )
        decoder = self._acquire()
        failures = self._library.shardio_make_images(decoder.pointer, ctypes.byref(work), 1)
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
            raise MemoryError("no memory for an image decoder")
        self.pointer = ctypes.c_void_p(address)
        # Not at exit: a thread may still decode with it, and the system reclaims all memory anyway.
        weakref.finalize(self, library.shardio_decoder_free, self.pointer).atexit = False
