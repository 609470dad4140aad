"""Masks as other programs write them: PNGs of palette indices and of grey levels, by Pillow and by hand."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def levels(size: tuple[int, int], largest: int, seed: int = 0) -> NDArray[Any]:
    """Numbers from 0 to `largest`, in blocks as regions are, [height, width]; uint16 above 255."""
    height, width = size
    blocks = np.random.default_rng(seed).integers(0, largest + 1, (-(-height // 3), -(-width // 4)))
    numbers = np.repeat(np.repeat(blocks, 3, 0), 4, 1)[:height, :width]
    numbers[0, 0] = largest
    return np.ascontiguousarray(numbers, np.uint16 if largest > 255 else np.uint8)


def palette_png(numbers: NDArray[np.uint8], bits: int = 8, **options: Any) -> bytes:
    """A PNG whose palette has shuffled colours, so that an index is no grey level."""
    image = Image.fromarray(numbers).convert("L")
    image.putpalette(np.random.default_rng(7).permutation(256).astype(np.uint8).repeat(3).tobytes())
    return _saved(image, bits=bits, **options)


def grey_png(numbers: NDArray[Any], **options: Any) -> bytes:
    """A PNG of grey levels of 8 or 16 bits."""
    return _saved(Image.fromarray(numbers), **options)


def packed_grey_png(numbers: NDArray[np.uint8], bits: int) -> bytes:
    """A PNG of grey levels of 1, 2 or 4 bits, which Pillow does not write."""
    height, width = numbers.shape
    rows = (numbers[:, :, None] >> np.arange(bits - 1, -1, -1) & 1).reshape(height, -1).astype(np.uint8)
    lines = b"".join(b"\0" + np.packbits(row).tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _saved(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()
