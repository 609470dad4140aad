"""JPEG files straight into a batch's slots: libjpeg-turbo, many images per call of shardio's own C, without the GIL."""

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..system.types import Buffer
from ..transforms.fuse import FusedSteps
from .addresses import addresses_of


class _Work(ctypes.Structure):
    """`Work` of `native/jpeg.c`."""

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
        ("failed", ctypes.c_void_p),
    ]


@final
class Turbo:
    """Decodes, crops, resizes and mirrors JPEG files. Threads may share it: each call has a decoder to itself.

    Args:
        channels: 3 for RGB, 1 for grey.
        affine: None for uint8 HWC; else float32 [channels, 2]: factor and offset of the float32 CHW result.
    """

    def __init__(self, channels: int, affine: NDArray[np.float32] | None) -> None:
        library = native.library()
        if library is None:
            raise RuntimeError("the compiled part of shardio was not built")
        self._library = library
        self._library.shardio_decoder_new.restype = ctypes.c_void_p
        self._library.shardio_decode.restype = ctypes.c_int64
        self._channels = channels
        self._affine = None if affine is None else np.ascontiguousarray(affine, np.float32)
        self._free: deque[_Owner] = deque()

    def __call__(self, encoded: Sequence[Buffer], fused: FusedSteps, out: NDArray[Any]) -> list[int]:
        """Fills `out` [n, height, width, channels], or [n, channels, height, width] with `affine`.

        Returns the places of the images that have to be made in another way: what they are, or what is wrong with them,
        is not for this decoder to say.
        """
        count = len(encoded)
        height, width = out.shape[1:3] if self._affine is None else out.shape[2:4]
        addresses, sizes, owner = addresses_of(encoded)
        columns = [
            np.ascontiguousarray(c, np.int32) for c in (fused.images, fused.regions, fused.resized, fused.windows)
        ]
        flips, failed = np.ascontiguousarray(fused.flips), np.empty(count, np.bool_)
        work = _Work(
            count,
            addresses,
            sizes.ctypes.data,
            *(column.ctypes.data for column in columns),
            flips.ctypes.data,
            None if self._affine is None else self._affine.ctypes.data,
            out.ctypes.data,
            out.strides[0],
            height,
            width,
            self._channels,
            failed.ctypes.data,
        )
        lent = self._lend()
        bad = self._library.shardio_decode(lent.decoder, ctypes.byref(work))
        self._free.append(lent)
        del owner
        return np.flatnonzero(failed).tolist() if bad else []

    def _lend(self) -> "_Owner":
        """A decoder that no other thread has now; one that was made before a fork stays with the parent."""
        while self._free:
            try:
                owner = self._free.pop()
            except IndexError:  # another thread was quicker
                break
            if owner.process == os.getpid():
                return owner
        return _Owner(self._library)


class _Owner:
    """A decoder of C, freed when nobody holds it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.process = os.getpid()
        address = library.shardio_decoder_new()
        if not address:
            raise MemoryError("no memory for a JPEG decoder")
        self.decoder = ctypes.c_void_p(address)
        # At exit the system takes all memory back: freeing it here could take it from a thread that still decodes.
        weakref.finalize(self, library.shardio_decoder_free, self.decoder).atexit = False
