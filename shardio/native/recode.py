"""One JPEG to another in one call, without the GIL: `recode.c`. Only where `library()` is."""

import ctypes
import threading
import weakref
from typing import Any

from ..errors import BadSample
from . import library

_LARGE = 1 << 24  # pixels; memory that an image of more of them took is given back
_local = threading.local()


def recode(data: bytes, size: tuple[int, int], turn: tuple[bool, bool, bool], quality: int) -> bytes | None:
    """A baseline JPEG (YCbCr 4:2:0, or grey) of the JPEG file `data`; None if it is not for this code.

    Args:
        data: the file.
        size: height and width of the result, none larger than the file's.
        turn: whether the file's rows are mirrored (bottom to top), its columns (right to left), and then both swapped.
        quality: of the result, 1 to 100.

    Raises BadSample if data is missing or makes no sense.
    """
    height, width = size
    flags = sum(bit << place for place, bit in enumerate(turn))
    return _call("shardio_recode", data, height, width, flags, quality, large=height * width > _LARGE)


def transcode(data: bytes) -> bytes | None:
    """A baseline JPEG with the very coefficients of the file `data`, without its metadata; else as `recode`."""
    return _call("shardio_transcode", data)


def _call(name: str, data: bytes, *arguments: int, large: bool = False) -> bytes | None:
    recoder = _recoder()
    result = ctypes.c_void_p()
    integers = map(ctypes.c_int32, arguments)
    call = getattr(recoder.library, name)
    size = call(recoder.address, data, ctypes.c_int64(len(data)), *integers, ctypes.byref(result))
    made = ctypes.string_at(result, abs(size)) if size else None
    if large:
        del _local.recoder
    if made is not None and size < 0:
        raise BadSample(f"the jpeg image is damaged: {made.decode(errors='replace')}")
    return made


def _recoder() -> "_Recoder":
    """This thread's own, made by the library that is in use."""
    found: _Recoder | None = getattr(_local, "recoder", None)
    if found is None or found.library is not library():
        found = _local.recoder = _Recoder(library())
    return found


class _Recoder:
    """Decoder, encoder and memory of C, freed when nobody holds them."""

    def __init__(self, library: Any) -> None:
        self.library = library
        library.shardio_recoder_new.restype = ctypes.c_void_p
        library.shardio_recode.restype = library.shardio_transcode.restype = ctypes.c_int64
        address = library.shardio_recoder_new()
        if not address:
            raise MemoryError("no memory for a JPEG encoder")
        self.address = ctypes.c_void_p(address)
        # At exit the system takes all memory back: freeing it here could take it from a thread that still encodes.
        weakref.finalize(self, library.shardio_recoder_free, self.address).atexit = False
