"""Small pictures of stored images, of bounded cost whatever the file claims."""

import io
from typing import Any

import numpy as np
from PIL import Image

from ..format import images
from ..format.fields import Field
from ..format.mask_colors import colored

MOST_PIXELS = 1 << 25
"""The most pixels of an image that is decoded, and the most bytes of a stored one."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


def thumbnail(value: Any, field: Field, side: int) -> bytes:
    """Return an image, a file or pixels [height, width, channels], as a JPEG; a mask in colours.

    Args:
        value: the image.
        field: the field that holds it.
        side: the most pixels of the longer side.

    Raises BadSample for a file of more pixels than `MOST_PIXELS`; what Pillow raises for one that it cannot decode.
    """
    mode = "L" if field.channels == 1 and field.role is None else "RGB"
    if isinstance(value, np.ndarray):
        image = Image.fromarray(value if field.channels == 3 else value[..., 0])
    else:
        images.check_pixels(value, MOST_PIXELS)
        image = Image.open(io.BytesIO(value), formats=_FORMATS)
        image.draft(mode, (side, side))  # has libjpeg decode fewer pixels; other formats ignore it
    if field.role == "mask":
        image = Image.fromarray(colored(np.asarray(image).astype(np.uint16)))
    image = image.convert(mode)
    image.thumbnail((side, side), Image.Resampling.BICUBIC if field.role is None else Image.Resampling.NEAREST)
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=90)
    return encoded.getvalue()
