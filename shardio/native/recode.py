"""JPEG files re-encoded, and damage in them found, in one call without the GIL (`recode.c`, `damage.c`)."""

import ctypes
import threading
import weakref
from typing import Any

from ..errors import BadSample
from . import library

_LARGE = 1 << 24
"""Pixels of a result above which the thread frees its decoder's memory afterwards."""
_TEXT_BYTES = 200
"""The longest message of libjpeg, `JMSG_LENGTH_MAX`."""
_WHOLE, _DAMAGED = 0, 1
_local = threading.local()


def recode(data: bytes, size: tuple[int, int], orientation: tuple[bool, bool, bool], quality: int) -> bytes | None:
    """Encode a JPEG file anew as a baseline JPEG (YCbCr 4:2:0, or grey), smaller or in another orientation.

    Args:
        data: the file.
        size: height and width of the result in pixels, neither larger than the file's.
        orientation: whether to flip the image vertically, to flip it horizontally, and then to transpose it.
        quality: the JPEG quality of the result, 1 to 100.

    Returns the new file, or None if the file is of a kind that this code does not handle.

    Raises BadSample if the file is damaged.
    """
    height, width = size
    flags = sum(flag << bit for bit, flag in enumerate(orientation))
    return _call("shardio_recode", data, height, width, flags, quality, large=height * width > _LARGE)


def transcode(data: bytes) -> bytes | None:
    """Convert a JPEG file to a baseline JPEG with the same coefficients, without metadata.

    Returns and raises what `recode` does.
    """
    return _call("shardio_transcode", data)


def restart(data: bytes, *, strip: bool = False) -> bytes | None:
    """Convert a JPEG file to a baseline JPEG with restart markers, so that a decoder can begin in the middle.

    The coefficients, and so the pixels of every decoder, stay the same; this is checked. Metadata stays as well; with
    `strip`, only the markers of JFIF and Adobe stay, which state colors.

    Returns and raises what `recode` does.
    """
    return _call("shardio_restart", data, strip)


def find_damage(data: bytes, size: tuple[int, int], most: int) -> str | None:
    """Return what libjpeg warns of when it reads all of a JPEG file; "" if the file is whole.

    None means that this is unknown: libjpeg refuses the file, it must hold more than `most` of its pixels at
    once, or the (height, width) is not `size`.
    """
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    numbers = map(ctypes.c_int64, (len(data), *size, most))
    call: Any = getattr(library(), "shardio_jpeg_damage")  # noqa: B009  the library may be None to mypy
    found = call(data, *numbers, text)
    return text.value.decode(errors="replace") if found in (_WHOLE, _DAMAGED) else None


def _call(name: str, data: bytes, *arguments: int, large: bool = False) -> bytes | None:
    recoder = _recoder()
    result = ctypes.c_void_p()
    integers = map(ctypes.c_int32, arguments)
    call = getattr(recoder.library, name)
    size = call(recoder.address, data, ctypes.c_int64(len(data)), *integers, ctypes.byref(result))
    output = ctypes.string_at(result, abs(size)) if size else None
    if large:
        del _local.recoder
    if output is not None and size < 0:  # the output is the reason
        raise BadSample(f"the jpeg image is damaged: {output.decode(errors='replace')}")
    return output


def _recoder() -> "_Recoder":
    """Return this thread's recoder, from the library that is loaded."""
    recoder: _Recoder | None = getattr(_local, "recoder", None)
    if recoder is None or recoder.library is not library():
        recoder = _local.recoder = _Recoder(library())
    return recoder


class _Recoder:
    """Decoder, encoder and memory on the C side, freed with this object."""

    def __init__(self, library: Any) -> None:
        self.library = library
        address = library.shardio_recoder_new()
        if not address:
            raise MemoryError("no memory for a JPEG encoder")
        self.address = ctypes.c_void_p(address)
        # No finalizer at exit: a thread may still be encoding, and the system reclaims the memory anyway.
        weakref.finalize(self, library.shardio_recoder_free, self.address).atexit = False
