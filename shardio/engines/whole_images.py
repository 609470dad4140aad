"""Decoding of whole images to Pillow's pixels, and the check of image files for damage.

Crops of JPEGs are decoded in C: `fused_images.py`, `native/jpeg.c`.
"""

import io
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from .. import native
from ..errors import BadSample
from ..format import images
from ..format.fields import Field
from ..format.limits import MAX_IMAGE_PIXELS
from ..native.pixels import unfilter
from ..native.recode import find_damage
from ..system import stopping
from ..system.helper_process import current_limit
from .resizing import resized

Levels: TypeAlias = NDArray[Any]
"""The numbers that the pixels of masks are, uint8 or uint16."""

_PIECE = 1 << 10
"""Bytes of a progressive JPEG that Pillow decodes between two looks at the time: its scans may be short."""
_GREY, _RGB = 0, 2  # colour types of PNG
_SCALED_BY_PILLOW = {2: 85, 4: 17}  # its factor from grey levels of so many bits to 0..255
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes, by channels."""
_DAMAGE = (OSError, SyntaxError, ValueError, LookupError, struct.error, EOFError, MemoryError)
"""The exceptions that Pillow raises for files that it cannot read."""
# Image.open would try every format, and has a limit of pixels of its own, which is the process's.
_READERS: dict[str, type[ImageFile.ImageFile]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
}


def decode(data: bytes, channels: int, max_pixels: int = MAX_IMAGE_PIXELS) -> NDArray[np.uint8]:
    """Return the pixels of an image file, uint8 [height, width, channels], as Pillow converts them.

    One channel is grey, three are RGB, four RGBA; images without transparency become opaque. Orientation tags are not
    applied.

    Raises:
        BadSample: if the file does not decode, or has more than `max_pixels` pixels.
    """
    stopping.check()
    images.check_pixels(data, max_pixels)
    if images.sniff(data) == "png" and channels != 4 and (plain := _decode_plain_png(data, channels)) is not None:
        return plain
    pixels = _by_pillow(data, _MODES[channels])
    return pixels.reshape(*pixels.shape[:2], channels)


def decode_mask(data: bytes, max_pixels: int = MAX_IMAGE_PIXELS) -> Levels:
    """Return the numbers that a mask's file stores, [height, width, 1]: uint8, or uint16 for a PNG of 16 bits.

    They are the indices of a palette, or grey levels as stored: those of 1, 2 and 4 bits are not scaled to 255.

    Raises:
        BadSample: if the file does not decode, holds colours, or has more than `max_pixels` pixels.
    """
    stopping.check()
    images.check_pixels(data, max_pixels)
    images.check_mask(data)
    bits, grey = data[24], data[25] == _GREY
    if (plain := _decode_plain_png(data, 1)) is not None:
        return plain
    pixels = _by_pillow(data, None)
    levels: Levels = pixels.astype(np.uint16 if bits == 16 else np.uint8)[..., None]
    return levels // np.uint8(_SCALED_BY_PILLOW[bits]) if grey and bits in _SCALED_BY_PILLOW else levels


def decode_as(field: Field, data: bytes, max_pixels: int = MAX_IMAGE_PIXELS) -> Levels:
    """Return what `decode` or, of a mask, `decode_mask` does of a field's image file."""
    return decode_mask(data, max_pixels) if field.role == "mask" else decode(data, field.channels or 3, max_pixels)


def _by_pillow(data: bytes, mode: str | None) -> NDArray[Any]:
    """Return the pixels of an image file in one of Pillow's modes, or in its own."""
    kind = images.sniff(data) or ""
    try:
        with _READERS[kind](_Watched(data)) as image:
            if image.info.get("progressive"):
                image.decodermaxblock = _PIECE
            return np.asarray(image if mode is None else image.convert(mode))
    except _DAMAGE as error:
        images.probe(data)  # names the fault if the header shows it
        raise BadSample(f"the {kind} image of {len(data)} bytes does not decode: {error}") from error


def check_time(*, late: bool) -> None:
    """Raise BadSample if the decoding of an image has taken too long."""
    if late:
        raise BadSample("decoding the image takes more than {:g} s, a quarter of {timeout}", current_limit())


@final
class _Watched(io.BytesIO):
    """An image file that is read as long as its pixels are wanted, and in time: this thread's processor time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._due = time.thread_time() + current_limit()

    def read(self, size: int | None = -1, /) -> bytes:
        stopping.check()
        check_time(late=time.thread_time() > self._due)
        return super().read(size)


def with_alpha(pixels: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Return pixels, uint8 [height, width, 1, 3 or 4], as RGBA, resized by Pillow's bilinear filter if `size` is given.

    Pillow weighs colours by their alpha, so that what is transparent does not bleed.
    """
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGBA")
    if size is not None and pixels.shape[:2] != size:
        image = resized(image.convert("RGBa"), size, "bilinear").convert("RGBA")
    return np.asarray(image, np.uint8)


def _decode_plain_png(data: bytes, channels: int) -> NDArray[np.uint8] | None:
    """Return the pixels of a plain PNG, with the compiled part in two thirds of Pillow's time; None for any other PNG.

    A plain one has 8 bits per sample, no palette, no transparency, no animation and no interlacing, colours only where
    they are wanted, and intact pixels. Pillow decides on any other. It also refuses files for data other than their
    pixels, such as a large profile or a damaged text chunk; plain ones may have these.
    """
    stored = {_GREY: 1, _RGB: 3}.get(data[25], 4)
    if stored > channels or (compressed := _plain_png(data)) is None:
        return None
    width, height = struct.unpack_from(">II", data, 16)
    pixels: NDArray[np.uint8] | None
    try:
        if native.library() is None:
            alone = (data[:33], struct.pack(">I", len(compressed)), b"IDAT", compressed, bytes(4), images.PNG_END)
            pixels = _by_pillow(b"".join(alone), _MODES[stored]).reshape(height, width, stored)
        else:
            decompressor = zlib.decompressobj()
            rows = decompressor.decompress(compressed, height * (1 + width * stored) + 1)
            pixels = unfilter(rows, height, width, stored) if decompressor.eof else None
    except (BadSample, zlib.error):
        return None
    return pixels if pixels is None or stored == channels else pixels.repeat(channels, axis=2)


def _plain_png(data: bytes) -> bytes | None:
    """Return the compressed rows of a PNG whose header and chunks are those of a plain one; None for any other."""
    if data[24] != 8 or any(data[26:29]) or data[29:33] != zlib.crc32(data[12:29]).to_bytes(4):
        return None
    compressed: list[memoryview] = []
    behind = False
    for name, content in _chunks(data):
        if name == b"IEND":
            return b"".join(compressed)
        if name == b"IDAT" and not behind:
            compressed.append(content)
        elif name in (b"IDAT", b"tRNS", b"acTL") or not name.isalpha():
            return None
        else:
            behind = bool(compressed)
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the name and the content of each chunk of a PNG; the last one may be cut short."""
    position, content = 8, memoryview(data)
    while position + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        yield name, content[position + 8 : position + 8 + length]
        position += 12 + length


def check_size(size: Sequence[int], stored: Sequence[int]) -> None:
    """Raise BadSample unless an image's (height, width) is the stored one, which crops were drawn for."""
    if tuple(size) != tuple(stored):
        raise BadSample(f"the image is {size[0]} x {size[1]} pixels, {stored[0]} x {stored[1]} were stored")


def check(data: bytes, channels: int, size: tuple[int, int], *, mask: bool = False) -> None:
    """Decode all of an image file, or of a mask's, to find damage.

    With the compiled part, libjpeg's warning of lost or senseless data also counts, although such a JPEG decodes.

    Raises:
        BadSample: unless the file is intact and its (height, width) in pixels is `size`.
    """
    images.probe(data, whole=False)
    jpeg = native.library() is not None and images.sniff(data) == "jpeg" and not mask
    damage = find_damage(data, size, MAX_IMAGE_PIXELS) if jpeg else None
    if damage == "":
        return
    check_size((decode_mask(data) if mask else decode(data, channels)).shape[:2], size)
    if damage:
        raise BadSample(f"the jpeg image is damaged: {damage}")
