"""Preparation of image files for storage: made from pixels, shrunk, or re-encoded for hardware decoders."""

import io
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .. import native
from ..engines.orientation import TRANSPOSITIONS, Transposition, transpose
from ..engines.whole_images import decode_mask
from ..errors import BadSample, ConfigError, Message
from ..format.images import (
    ImageInfo,
    check_pixels,
    jpeg_coding,
    orientation,
    probe,
    sniff,
    sniff_foreign,
    with_orientation,
)
from ..format.limits import MAX_IMAGE_PIXELS, Limits
from ..native import recode
from ..system.optional import load
from ..system.rules import Count, check_fields
from .shrink import shrunk

Recompress: TypeAlias = Literal["never", "foreign", "if-needed", "always"]

FROM, FRAMES = "from ", "first of several frames"
"""Counted: images of other formats that are re-encoded, `from GIF`, and those of which only one frame is taken."""
DAMAGED, OTHER_CODING = "damaged", "of a coding that cannot be transcoded"
"""Why a JPEG is not transcoded."""

_Stale: TypeAlias = Literal["nothing", "coding", "pixels"]

_ORIENTATION = 0x0112  # the tag of EXIF
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_MODES = {"CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "PA": "RGBA", "RGBX": "RGB", "I;16B": "I;16"}
"""The modes of Pillow that a PNG holds, and those that others become."""

_LONGEST_JPEG_SIDE = 65500  # libjpeg's limit

_PNG_COMPRESSION = 6  # fixed, so that the same pixels always give the same bytes


@final
@dataclass(frozen=True, slots=True)
class ReencodeOptions:
    """Options for re-encoding image files; the default changes nothing.

    An image is re-encoded if it has to shrink or to be rotated, or if `recompress` asks for it. The result is a
    baseline JPEG: Huffman codes, YCbCr 4:2:0, or grey if the image was grey. It keeps the EXIF orientation, unless
    `orient` applies that to the pixels; all other metadata (EXIF, ICC profiles, comments) is dropped. Only a PNG that
    merely shrinks or is rotated stays a PNG, with its transparency and bit depth. Shrinking averages pixels, but of a
    mask, which only shrinks or is rotated, it takes the nearest pixel, as Pillow does; the result is a PNG of grey
    levels. All other images are returned byte for byte.

    A JPEG whose coding alone is unsuitable (progressive, arithmetic, several scans) keeps every pixel: its coefficients
    are written in another order. Other JPEGs are shrunk without a detour over RGB, at twice the speed of OpenCV;
    missing data raises BadSample. Both need the compiled part of shardio (docs/install.md). Without it, and for CMYK
    and other rare JPEGs, OpenCV does all of this: it re-encodes, and paints missing data grey.

    Last, `jpeg_restarts` transcodes what is a JPEG: the same coefficients, and so the same pixels in every decoder, in
    one baseline scan with restart markers, so that crops decode only a part of the file. The coefficients are compared,
    and metadata stays. A JPEG that cannot be transcoded stays byte for byte: one that is damaged, CMYK, of 12 bits,
    with arithmetic codes, lossless, progressive with bits unsent, or too large for libjpeg's memory (1 GiB).

    Every run gives the same bytes; another version of libjpeg-turbo or OpenCV may give others.

    Args:
        resize_shorter: shrink images whose shorter side has more pixels than this, to this.
        max_pixels: shrink images that have more pixels than this, to at most this many. With both arguments the smaller
            result counts.
        quality: the quality of re-encoded JPEGs, 1 to 100.
        recompress: `"never"`; `"foreign"` for images of formats that are not stored, GIF, TIFF, PPM and AVIF: the first
            frame, as a JPEG if the format is lossy, else as a PNG; `"if-needed"` for these, and for JPEGs that hardware
            decoders do not take: progressive, arithmetic, lossless, several scans, 12 bits, CMYK or RGB; `"always"` for
            all images.
        orient: re-encode images that an EXIF tag rotates or flips, upright.
        jpeg_restarts: transcode JPEGs to ones with restart markers, without loss; not masks.
        strip: drop the metadata of JPEGs that `jpeg_restarts` transcodes, unless an EXIF tag rotates or flips them.
        max_image_pixels: the most pixels to hold of one image at once: of the result, where the compiled part makes it
            while it decodes a JPEG of one scan with Huffman codes, else of the whole image. It changes no result.

    Raises ConfigError for an argument that breaks a rule, and if `jpeg_restarts` lacks the compiled part.
    """

    resize_shorter: Count | None = None
    max_pixels: Count | None = None
    quality: int = 92
    recompress: Recompress = "never"
    orient: bool = False
    jpeg_restarts: bool = False
    strip: bool = False
    max_image_pixels: int = MAX_IMAGE_PIXELS

    def __post_init__(self) -> None:
        check_fields(self)
        Limits(max_image_pixels=self.max_image_pixels)
        if not (isinstance(self.quality, int) and 1 <= self.quality <= 100):
            raise ConfigError("{quality} must be an integer from 1 to 100, got {!r}", self.quality)
        if self.strip and not self.jpeg_restarts:
            raise ConfigError(Message("{strip} goes with {jpeg_restarts}"))
        if self.jpeg_restarts:
            _check_compiled()

    @property
    def idle(self) -> bool:
        """Whether these options change no image."""
        return self.keeps_size and not self.jpeg_restarts and self.recompress == "never"

    @property
    def keeps_size(self) -> bool:
        """Whether these options change no image's height and width."""
        sizes = self.resize_shorter is None and self.max_pixels is None
        return sizes and self.recompress in ("never", "foreign") and not self.orient

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the new height and width, at least 1, of an image of `height` x `width` pixels."""
        return shrunk(height, width, self.resize_shorter, self.max_pixels)

    def __call__(self, data: bytes, *, mask: bool = False, stayed: Counter[str] | None = None) -> bytes:
        """Return the image file, or the mask's, that `data` becomes.

        Args:
            data: the image file.
            mask: whether it is a mask's.
            stayed: counts the JPEGs that could not be transcoded, by the reason, and images of other formats.

        Raises BadSample if it is no image, or if it has to be decoded and cannot be.
        """
        if self.recompress != "never" and sniff(data) is None and (kind := sniff_foreign(data)):
            data = self._of_foreign(data, kind, mask, Counter() if stayed is None else stayed)
        made = data if self.keeps_size else self._reencoded(data, mask)
        return made if mask or not self.jpeg_restarts else self._with_restarts(made, stayed)

    def _of_foreign(self, data: bytes, kind: str, mask: bool, counts: Counter[str]) -> bytes:
        """Return the first frame of an image of another format as a PNG, of a lossy one as a JPEG."""
        if kind == "HEIC":
            probe(data)  # raises
        file = io.BytesIO()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of many pixels, and of what is odd in metadata
                with Image.open(io.BytesIO(data), formats=[kind]) as image:
                    if (pixels := image.width * image.height) > self.max_image_pixels:
                        told = "the {} image claims {} pixels: {max_image_pixels} allows {}"
                        raise BadSample(told, kind, pixels, self.max_image_pixels)
                    frames = getattr(image, "n_frames", 1)
                    image.load()
                    tag = image.getexif().get(_ORIENTATION, 1)  # some are upright once they are loaded
                    mode = image.mode if image.mode in _PNG_MODES else _MODES.get(image.mode)
                    if mode is None:
                        told = f"the {kind} image has pixels of {image.mode}: `shardio convert arrayfolder` keeps them"
                        raise BadSample(told)
                    made = image if mode == image.mode else image.convert(mode)
                    if kind == "AVIF" and mode == "RGB" and not mask:
                        made.save(file, "JPEG", quality=self.quality, subsampling=2)
                    else:
                        made.save(file, "PNG")
        except BadSample:
            raise
        except Exception as error:  # each format has kinds of its own, and damage leads to any other
            raise BadSample(f"the {kind} image cannot be read, Pillow says: {str(error) or repr(error)}") from error
        counts[FROM + kind] += 1
        counts[FRAMES] += frames > 1
        return with_orientation(file.getvalue(), tag) if tag in range(2, 9) else file.getvalue()

    def _with_restarts(self, data: bytes, stayed: Counter[str] | None) -> bytes:
        if probe(data).format != "jpeg":
            return data
        _check_compiled()  # this may be another machine than the one that made the options
        try:
            made, reason = recode.restart(data, strip=self.strip and orientation(data) == 1), OTHER_CODING
        except BadSample:
            made, reason = None, DAMAGED
        if made is None and stayed is not None:
            stayed[reason] += 1
        return made or data

    def _reencoded(self, data: bytes, mask: bool) -> bytes:
        info, tag = probe(data), orientation(data)
        flips = TRANSPOSITIONS[tag if self.orient else 1]
        before = (info.width, info.height) if flips[2] else (info.height, info.width)
        size = self.size_of(*before)
        stale = self._stale_part(data, info, mask, changes=size != before or flips != TRANSPOSITIONS[1])
        if stale == "nothing":
            return data
        made = self._made(data, info, stale, size, flips, mask)
        return made if self.orient or tag == 1 else with_orientation(made, tag)

    def _made(
        self, data: bytes, info: ImageInfo, stale: _Stale, size: tuple[int, int], flips: Transposition, mask: bool
    ) -> bytes:
        """Return the image anew, of this size once it is upright, without metadata."""
        if mask:
            levels = decode_mask(data, self.max_image_pixels)[..., 0]
            return encode_png(_resized(levels, size, flips, nearest=True), "the mask")
        encoded = None
        if info.format == "jpeg" and native.library() is not None:
            check_pixels(data, self.max_image_pixels, size)
            encoded = recode.transcode(data) if stale == "coding" else None
            encoded = encoded or recode.recode(data, size, flips, self.quality)
        return encoded or self._by_opencv(data, info, size, flips)

    def _stale_part(self, data: bytes, info: ImageInfo, mask: bool, *, changes: bool) -> _Stale:
        """Return the part of the image that cannot stay: nothing, the coding of its coefficients, or its pixels."""
        if changes or (self.recompress == "always" and not mask):
            return "pixels"
        if mask or self.recompress in ("never", "foreign") or info.format != "jpeg":
            return "nothing"
        coding = jpeg_coding(data)
        if not coding.transcodable:
            return "pixels"
        return "nothing" if coding.baseline else "coding"

    def _by_opencv(self, data: bytes, info: ImageInfo, size: tuple[int, int], flips: Transposition) -> bytes:
        check_pixels(data, self.max_image_pixels)
        keeps = info.format == "png" and self.recompress != "always"
        if not keeps and max(size) > _LONGEST_JPEG_SIDE:
            raise BadSample(f"a JPEG has at most {_LONGEST_JPEG_SIDE} pixels a side, this image {size[0]} x {size[1]}")
        cv2 = _opencv(f"re-encoding a {info.format} image")
        flags = cv2.IMREAD_UNCHANGED if keeps else cv2.IMREAD_ANYCOLOR | cv2.IMREAD_IGNORE_ORIENTATION
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
            if pixels is None:
                raise BadSample(f"the {info.format} image of {len(data)} bytes does not decode")
            if pixels.shape[:2] != (info.height, info.width):
                found, stated = (" x ".join(map(str, shape)) for shape in (pixels.shape[:2], (info.height, info.width)))
                raise BadSample(f"the {info.format} image is {found} pixels, its header says {stated}")
            sampling = cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420
            options = () if keeps else (cv2.IMWRITE_JPEG_QUALITY, self.quality, *sampling)
            done, encoded = cv2.imencode(".png" if keeps else ".jpg", _resized(pixels, size, flips), options)
        except cv2.error as error:
            raise BadSample(f"the {info.format} image cannot be re-encoded: {error.err}") from error
        if not done:
            raise BadSample(f"the {info.format} image of {info.height} x {info.width} pixels cannot be re-encoded")
        return bytes(encoded)


def _opencv(purpose: str) -> Any:
    return load("cv2", purpose=purpose, extra="opencv")


def _check_compiled() -> None:
    if native.library() is None:
        why = "{jpeg_restarts} needs the compiled part of shardio, which is missing ({}): {}"
        raise ConfigError(why, native.load(), native.HOW_TO_GET)


def encode_png(pixels: NDArray[Any], place: object) -> bytes:
    """Encode grey [h, w] or RGB [h, w, 3] pixels, uint8 or uint16, as a PNG.

    Raises BadSample, which names `place`, if there are none.
    """
    done = False
    if pixels.size:
        cv2 = _opencv("storing pixels as PNG")
        level = (cv2.IMWRITE_PNG_COMPRESSION, _PNG_COMPRESSION)
        done, data = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels, level)
    if not done:
        raise BadSample(f"{place}: cannot be stored as PNG: {list(pixels.shape)} of {pixels.dtype}")
    return bytes(data)


def as_pixels(value: Any, *, mask: bool = False) -> NDArray[Any]:
    """Return a uint8 array [h, w], [h, w, 1 or 3] or [1 or 3, h, w] as grey pixels [h, w] or RGB pixels [h, w, 3].

    The array of a mask may also be uint16. An array that fits both of the latter forms is taken as [h, w, 1 or 3].

    Raises BadSample for any other value.
    """
    dtypes = ("uint8", "uint16") if mask else ("uint8",)
    if not isinstance(value, np.ndarray) or value.dtype.name not in dtypes:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise BadSample(f"{'the numbers of a mask' if mask else 'pixels'} must be {' or '.join(dtypes)}, got {kind}")
    if value.ndim == 3 and value.shape[2] not in (1, 3) and value.shape[0] in (1, 3):
        value = value.transpose(1, 2, 0)
    if value.ndim != 2 and not (value.ndim == 3 and value.shape[2] in (1, 3)):
        raise BadSample(f"pixels must be [h, w], [h, w, 1 or 3] or [1 or 3, h, w], got {list(value.shape)}")
    pixels: NDArray[Any] = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    return pixels


def _resized(
    pixels: NDArray[Any], size: tuple[int, int], flips: Transposition, *, nearest: bool = False
) -> NDArray[Any]:
    """Return `pixels` shrunk and transposed to `size`; with `nearest`, the levels of a mask, as Pillow resizes them."""
    height, width = size[::-1] if flips[2] else size
    if nearest:
        pixels = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST))
    elif pixels.shape[:2] != (height, width):
        cv2 = _opencv("shrinking an image")
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return transpose(pixels, flips)
