"""Damage in a JPEG file that decodes all the same, found without the GIL (`damage.c`)."""

import ctypes
from typing import Any

from . import library

_TEXT_BYTES = 200
"""The longest message of libjpeg, `JMSG_LENGTH_MAX`."""
_WHOLE, _DAMAGED = 0, 1


def find_damage(data: bytes, size: tuple[int, int], most: int) -> str | None:
    """Return what libjpeg warns of when it reads all of a JPEG file; "" if the file is whole.

    None means that this code cannot tell: libjpeg refuses the file, it must hold more than `most` of its pixels at
    once, or the (height, width) is not `size`.
    """
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    numbers = map(ctypes.c_int64, (len(data), *size, most))
    call: Any = getattr(library(), "shardio_jpeg_damage")  # noqa: B009  the library may be None to mypy
    found = call(data, *numbers, text)
    return text.value.decode(errors="replace") if found in (_WHOLE, _DAMAGED) else None
