"""Fused steps carried out by compiled code (`native/jpeg.c`): many images per call, straight into a batch, no GIL."""

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..containers.packed_values import PackedValues
from ..errors import PipelineClosed
from ..format.limits import MAX_IMAGE_PIXELS
from ..system.helper_process import current_limit
from ..system.types import Buffer
from ..transforms.fuse import FusedSteps
from ..transforms.steps import Interpolation
from .orientation import TRANSPOSITIONS, Orientations

EngineName: TypeAlias = Literal["auto", "cpu", "dali", "nvimgcodec"]
"""The engine that decodes and transforms images; `"auto"` chooses one by the device and the installed packages."""
Decode: TypeAlias = Literal["exact", "fast"]
"""The decoding of JPEG files: `"exact"` gives Pillow's pixels, `"fast"` repeats chroma samples and shrinks early."""

Refused: TypeAlias = dict[int, bool]
"""The rows that are left to another decoder, and whether that is because they take too long."""
_LATE = 2
_FILTERS = get_args(Interpolation)
_TRANSPOSITION_BITS = np.array(
    [0, *(sum(flag << bit for bit, flag in enumerate(TRANSPOSITIONS[o])) for o in range(1, 9))], np.uint8
)
_POINTS = {"nearest": 0, "bilinear": 6, "bicubic": 7}


def filter_number(fused: FusedSteps) -> int:
    """Return the number of a filter in `native/image.h`."""
    return _FILTERS.index(fused.interpolation) if fused.antialias else _POINTS[fused.interpolation]


def buffer_addresses(
    encoded: Sequence[Buffer] | Sequence[NDArray[np.uint8]] | NDArray[Any],
) -> tuple[int, NDArray[np.int64], object]:
    """Return a pointer to the values' addresses, their lengths in bytes, int64 [n], and an object that owns the memory.

    Hold on to the lengths and the owner until the compiled code has returned.
    """
    if isinstance(encoded, PackedValues):
        starts = encoded.offsets + encoded.data.ctypes.data
        return starts.ctypes.data, np.ascontiguousarray(encoded.sizes), (starts, encoded)
    if isinstance(encoded, np.ndarray):  # rows of one size
        rows = np.ascontiguousarray(encoded)
        size = rows.nbytes // max(1, len(rows))
        starts = rows.ctypes.data + size * np.arange(len(rows))
        return starts.ctypes.data, np.full(len(rows), size, np.int64), (starts, rows)
    if len(encoded) and isinstance(encoded[0], np.ndarray):
        arrays = [np.ascontiguousarray(value, np.uint8) for value in encoded]
        places = np.array([array.ctypes.data for array in arrays], np.uint64)
        return places.ctypes.data, np.array([array.nbytes for array in arrays], np.int64), (places, arrays)
    values = [value if isinstance(value, bytes) else bytes(value) for value in encoded]
    pointers = (ctypes.c_char_p * len(values))(*values)
    return ctypes.addressof(pointers), np.fromiter(map(len, values), np.int64, len(values)), (pointers, values)


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
        ("transpositions", ctypes.c_void_p),
        ("normalize", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_bytes", ctypes.c_int64),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("filter", ctypes.c_int32),
        ("encoded", ctypes.c_int32),
        ("frames", ctypes.c_int32),
        ("fast", ctypes.c_int32),
        ("most", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("fill", ctypes.c_uint8 * 4),
        ("failed", ctypes.c_void_p),
    ]


@final
class FusedImages:
    """Decodes JPEG files, or takes pixels or frames; crops, resizes and flips them. Threads may share it.

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
        self._channels, self._max_pixels, self._fast = channels, max_pixels, decode == "fast"
        self._normalization = None if normalization is None else np.ascontiguousarray(normalization, np.float32)
        self._idle: deque[_NativeDecoder] = deque()

    def resize(
        self, pixels: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], fused: FusedSteps, out: NDArray[Any]
    ) -> list[int]:
        """Make images of pixels, uint8 [height, width, channels] each, in `out`; return the rows that `make` leaves."""
        return [*self.make(pixels, [(self, fused, out)], None, encoded=False)[0]]

    def make(
        self,
        data: Sequence[Buffer] | Sequence[NDArray[np.uint8]] | NDArray[Any],
        wanted: "Sequence[Wanted]",
        orientations: Orientations | None,
        *,
        encoded: bool,
        frames: bool = False,
    ) -> list[Refused]:
        """Make several images of each of some JPEG files, if they are `encoded`, of `VideoFrames.table`, or of pixels.

        Each `out` is [n, height, width, channels], or of floats [n, channels, height, width]. With `orientations`, the
        steps are of upright images. A file whose crops are near each other is decoded once, the region around them.

        Returns, for each that is wanted, the rows that it leaves to another decoder: it does not distinguish files of
        other kinds from damaged ones. A file takes too long beyond `current_limit()` seconds of processor time.
        """
        addresses, lengths, owner = buffer_addresses(data)
        transpositions = None if orientations is None else _TRANSPOSITION_BITS[orientations]
        failed = np.empty((len(wanted), len(data)), np.uint8)
        works, held = (_Batch * len(wanted))(), []
        for work, rows, (images, fused, out) in zip(works, failed, wanted, strict=True):
            work.count, work.data, work.sizes = len(data), addresses, lengths.ctypes.data
            work.transpositions = None if transpositions is None else transpositions.ctypes.data
            work.encoded, work.frames, work.seconds = encoded, frames, current_limit()
            work.failed = rows.ctypes.data
            held.append(images.describe(work, fused, out, transpositions))
        decoder = self._acquire()
        failures = self._library.shardio_make_images(decoder.pointer, works, len(wanted))
        self._idle.append(decoder)
        del owner, held
        if failures < 0:
            raise PipelineClosed("the loop is over")
        return [{int(r): rows[r] == _LATE for r in np.flatnonzero(rows)} if failures else {} for rows in failed]

    def describe(
        self, work: "_Batch", fused: FusedSteps, out: NDArray[Any], transpositions: NDArray[np.uint8] | None
    ) -> Any:
        """Set how images are made; return the arrays that have to live as long as `work`."""
        stored = (
            fused.images
            if transpositions is None
            else np.where(transpositions[:, None] & 4, fused.images[:, ::-1], fused.images)
        )
        columns = [np.ascontiguousarray(c, np.int32) for c in (stored, fused.regions, fused.resized, fused.windows)]
        flips = np.ascontiguousarray(fused.flips)
        work.images, work.boxes, work.scaled, work.windows = (column.ctypes.data for column in columns)
        work.flips, work.filter = flips.ctypes.data, filter_number(fused)
        work.normalize = None if self._normalization is None else self._normalization.ctypes.data
        work.height, work.width = out.shape[1:3] if self._normalization is None else out.shape[2:4]
        work.out, work.out_bytes = out.ctypes.data, out.strides[0]
        if fused.fill:
            work.fill[: self._channels] = np.broadcast_to(np.array(fused.fill, np.uint8), self._channels).tolist()
        work.channels, work.fast, work.most = self._channels, self._fast, self._max_pixels
        return columns, flips

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


Wanted: TypeAlias = tuple[FusedImages, FusedSteps, NDArray[Any]]
"""How images are made, the steps of each, and where they go: see `FusedImages.make`."""


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
