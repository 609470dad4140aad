"""Images on their way into a shard: made of pixels, made smaller, or encoded anew for hardware decoders."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, ConfigError
from ..format.images import ImageInfo, jpeg_coding, orientation, probe
from ..native import recode

Recompress: TypeAlias = Literal["never", "if-needed", "always"]

Turn: TypeAlias = tuple[bool, bool, bool]

MOST_PIXELS = 1 << 29
"""Images that claim more pixels are refused: a header of a few bytes could ask for all memory."""
_LONGEST = 65500  # libjpeg's limit

_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 6)  # fixed, so that the same pixels always give the same bytes

# By EXIF orientation: whether rows are mirrored (bottom to top), columns (right to left), and then both swapped.
_TURNS: dict[int, Turn] = {
    1: (False, False, False),
    2: (False, True, False),
    3: (True, True, False),
    4: (True, False, False),
    5: (False, False, True),
    6: (True, False, True),
    7: (True, True, True),
    8: (False, True, True),
}


@final
@dataclass(frozen=True, slots=True)
class ReencodeOptions:
    """What becomes of the bytes of an image; without arguments nothing.

    An image is encoded anew if it has to shrink, or if `recompress` asks for it. It becomes a baseline JPEG: Huffman
    codes, YCbCr 4:2:0, or grey if it was grey; its EXIF orientation is applied to the pixels, and all metadata (EXIF,
    ICC profiles, comments) is left behind. Only a PNG stays a PNG when it just shrinks, with its transparency and bits.
    Pixels are averaged: masks that hold numbers of classes are no images to shrink. All else comes back byte for byte.

    A JPEG that is only coded in an unsuitable way (progressive, arithmetic, several scans) keeps every pixel: its
    coefficients are written in another order. Other JPEGs are shrunk without a detour over RGB, at twice the speed of
    OpenCV, and refused if some of their data is missing. Both need the compiled part of shardio (docs/install.md).
    Without it, and for CMYK and other rare JPEGs, OpenCV does it all: it encodes anew, and paints what is missing grey.

    The same bytes come out on every run, but others from another version of libjpeg-turbo or OpenCV.

    Args:
        resize_shorter: images whose shorter side has more pixels are shrunk to it.
        max_pixels: images with more pixels are shrunk to at most that many. With both the smaller size counts.
        quality: of JPEGs that are encoded anew, 1 to 100.
        recompress: `"never"`; `"if-needed"` for JPEGs that hardware decoders do not take: progressive, arithmetic,
            lossless, several scans, 12 bits, CMYK, RGB, or rotated by an EXIF tag; `"always"` for all images.

    Raises ConfigError for an argument that is none of these.
    """

    resize_shorter: int | None = None
    max_pixels: int | None = None
    quality: int = 92
    recompress: Recompress = "never"

    def __post_init__(self) -> None:
        for name in ("resize_shorter", "max_pixels"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not (isinstance(self.quality, int) and 1 <= self.quality <= 100):
            raise ConfigError(f"quality must be a whole number from 1 to 100, got {self.quality!r}")
        if self.recompress not in get_args(Recompress):
            raise ConfigError(f"recompress must be one of {', '.join(get_args(Recompress))}, got {self.recompress!r}")

    @property
    def idle(self) -> bool:
        """Whether it changes nothing at all."""
        return self.resize_shorter is None and self.max_pixels is None and self.recompress == "never"

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an upright image of `height` x `width` pixels comes to; neither is below 1."""
        shorter, longer = sorted((height, width))
        scale = 1.0
        if self.resize_shorter is not None:
            scale = min(scale, self.resize_shorter / shorter)
        if self.max_pixels is not None:
            scale = min(scale, math.sqrt(self.max_pixels / (height * width)))
        shorter, longer = max(1, round(shorter * scale)), max(1, round(longer * scale))
        if self.max_pixels is not None:  # which a side that was rounded up may exceed
            longer = min(longer, self.max_pixels // shorter)
        return (shorter, longer) if height <= width else (longer, shorter)

    def __call__(self, data: bytes) -> bytes:
        """The image file that `data` becomes; BadSample if it is none, or cannot be decoded where it has to be."""
        if self.idle:
            return data
        info, turned = probe(data), orientation(data)
        upright = (info.height, info.width) if turned < 5 else (info.width, info.height)
        size = self.size_of(*upright)
        need = self._need(data, info, turned, size != upright)
        if need == "nothing":
            return data
        if info.height * info.width > MOST_PIXELS:
            told = f"{info.height} x {info.width}"
            raise BadSample(f"the {info.format} image claims {told} pixels, at most {MOST_PIXELS} are taken")
        made = None
        if info.format == "jpeg" and native.library() is not None:
            made = recode.transcode(data) if need == "coding" else None
            made = made or recode.recode(data, size, _TURNS[turned], self.quality)
        return made or self._by_opencv(data, info, size, _TURNS[turned])

    def _need(self, data: bytes, info: ImageInfo, turned: int, shrinks: bool) -> Literal["nothing", "coding", "pixels"]:
        """What has to be made anew."""
        if shrinks or self.recompress == "always":
            return "pixels"
        if self.recompress == "never" or info.format != "jpeg":
            return "nothing"
        coding = jpeg_coding(data)
        if turned != 1 or not coding.transcodable:
            return "pixels"
        return "nothing" if coding.baseline else "coding"

    def _by_opencv(self, data: bytes, info: ImageInfo, size: tuple[int, int], turn: Turn) -> bytes:
        keeps = info.format == "png" and self.recompress != "always"
        if not keeps and max(size) > _LONGEST:
            raise BadSample(f"a JPEG has at most {_LONGEST} pixels a side, this image {size[0]} x {size[1]}")
        flags = cv2.IMREAD_UNCHANGED if keeps else cv2.IMREAD_ANYCOLOR | cv2.IMREAD_IGNORE_ORIENTATION
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
            if pixels is None:
                raise BadSample(f"the {info.format} image of {len(data)} bytes does not decode")
            if pixels.shape[:2] != (info.height, info.width):
                found, told = (" x ".join(map(str, shape)) for shape in (pixels.shape[:2], (info.height, info.width)))
                raise BadSample(f"the {info.format} image is {found} pixels, its header says {told}")
            done, made = _encode(_resized(pixels, size, turn), None if keeps else self.quality)
        except cv2.error as error:
            raise BadSample(f"the {info.format} image cannot be reworked: {error.err}") from error
        if not done:
            raise BadSample(f"the {info.format} image of {info.height} x {info.width} pixels cannot be encoded anew")
        return made.tobytes()


def png(pixels: NDArray[Any], place: object) -> bytes:
    """Grey [h, w] or RGB [h, w, 3] pixels, uint8 or uint16, as a PNG; BadSample, naming `place`, if there are none."""
    done = False
    if pixels.size:
        done, data = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels, _PNG)
    if not done:
        raise BadSample(f"{place}: cannot be stored as PNG: {list(pixels.shape)} of {pixels.dtype}")
    return bytes(data)


def as_pixels(value: Any) -> NDArray[np.uint8]:
    """A uint8 array [h, w], [h, w, 1 or 3] or [1 or 3, h, w] as grey [h, w] or RGB [h, w, 3]; BadSample if it is none.

    What could be both of the latter is taken as [h, w, 1 or 3].
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        told = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise BadSample(f"pixels must be uint8, got {told}")
    if value.ndim == 3 and value.shape[2] not in (1, 3) and value.shape[0] in (1, 3):
        value = value.transpose(1, 2, 0)
    if value.ndim != 2 and not (value.ndim == 3 and value.shape[2] in (1, 3)):
        raise BadSample(f"pixels must be [h, w], [h, w, 1 or 3] or [1 or 3, h, w], got {list(value.shape)}")
    pixels: NDArray[np.uint8] = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    return pixels


def _resized(pixels: NDArray[Any], size: tuple[int, int], turn: Turn) -> NDArray[Any]:
    """`pixels` shrunk and turned to `size`."""
    rows, columns, swapped = turn
    height, width = size[::-1] if swapped else size
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    pixels = pixels[:: -1 if rows else 1, :: -1 if columns else 1]
    return np.ascontiguousarray(pixels.swapaxes(0, 1) if swapped else pixels)


def _encode(pixels: NDArray[Any], quality: int | None) -> tuple[bool, NDArray[np.uint8]]:
    """A JPEG of that quality, or a PNG."""
    if quality is None:
        return cv2.imencode(".png", pixels)
    sampling = cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420
    return cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_QUALITY, quality, *sampling))
