"""Limits of what one sample may claim. Readers compare them with headers before they take memory."""

from dataclasses import dataclass, fields
from typing import final

from ..errors import ConfigError

MAX_IMAGE_PIXELS = 1 << 28
"""They take 768 MiB in RGB; photographs of 150 megapixels have about 2^27."""

MAX_VALUE_BYTES = 1 << 30
"""1 GiB, so that each thread of a process can hold such a value; LMDB and the chunks of HDF5 allow 4 GiB."""


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a sample may claim; it is a bad sample beyond that.

    Attributes:
        max_image_pixels: the pixels that decoding an image must hold at once: of the region that a crop shows if the
            decoder makes it without the rest, as from a JPEG of one scan with Huffman codes, else of the whole image.
        max_value_bytes: the bytes of a value that differs in size from others, such as an image file, and of the chunk
            that is decompressed for a value.

    Raises ConfigError unless both are integers of at least 1.
    """

    max_image_pixels: int = MAX_IMAGE_PIXELS
    max_value_bytes: int = MAX_VALUE_BYTES

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
                raise ConfigError(f"{field.name} must be an integer of at least 1, got {value!r}")
