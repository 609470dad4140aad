"""Inspecting image files without decoding them: format, size, coding, orientation, and whether the file is complete.

This reads headers and end markers only, in a few microseconds per image. Sources: ITU-T T.81, T.871 (JFIF) and T.872
(Adobe's marker) for JPEG; RFC 2083 for PNG; RFC 9649 for WebP; Exif 2.32 (CIPA DC-008) and
ISO 16684-1 (XMP) for the orientation.
"""

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import BadSample
from ..system.types import Buffer

SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp", "bmp": "bmp"}
"""The file name suffix of each image format."""

MOST_SCANS = 100
"""Each scan of a JPEG takes a pass over all blocks, of 10 bytes of the file. Encoders write up to about 60."""

_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = (0xC0, 0xC1)
_SCAN = 0xDAFF  # the marker of a scan, as a little-endian number
_BARE_MARKERS = frozenset(range(0xD0, 0xD9)) | {0x01}
_MOST_STRAY = 32  # bytes between two segments of a JPEG: more are taken for a segment that damage has erased
_ONE_NUMBER = (0, 3)  # the colour types of PNG whose pixels are one number each: grey levels, and palette indices
_PNG_COLOURS = {2: "RGB colours", 4: "grey levels and alpha", 6: "RGB colours and alpha"}
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_PNG_METADATA = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
_PNG_XMP, _RAW_PROFILE = b"XML:com.adobe.xmp", b"Raw profile type exif"  # the second is ImageMagick's
_MOST_TEXT = 1 << 20  # bytes of a chunk
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_TIFF_NUMBERS = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
"""The last chunk of a PNG: length 0, name, CRC; the same 12 bytes in every file."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The properties that an image's header states.

    Attributes:
        format: `jpeg`, `png`, `webp` or `bmp`.
        height: in pixels.
        width: in pixels.
        channels: as stored: 1, 3 or 4.
    """

    format: str
    height: int
    width: int
    channels: int


def sniff(data: Buffer) -> str | None:
    """Return the format that the first bytes show: `jpeg`, `png`, `webp` or `bmp`; None for any other."""
    head = bytes(data[:16])
    if head[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[:2] == b"BM" and len(data) >= 26:
        return "bmp"
    return None


def sniff_foreign(data: Buffer) -> str | None:
    """Return the format of an image file that is not stored as it is: `GIF`, `TIFF`, `PPM`, `AVIF` or `HEIC`."""
    head = bytes(data[:12])
    if head[4:8] == b"ftyp":
        return {b"av": "AVIF", b"he": "HEIC", b"mi": "HEIC"}.get(head[8:10])
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "PPM"
    return {b"GIF8": "GIF", b"II*\0": "TIFF", b"MM\0*": "TIFF"}.get(head[:4])


def check(data: Buffer) -> None:
    """Raise BadSample as `probe` does, but not for an image that conversion may re-encode, see `sniff_foreign`."""
    if sniff(data) is not None or sniff_foreign(data) is None:
        probe(data)


def probe(data: Buffer, *, whole: bool = True) -> ImageInfo:
    """Read the header of an image file; with `whole`, check that the file is complete.

    Raises BadSample if `data` is no image, has no pixels, is cut short, or is a JPEG of more than `MOST_SCANS` scans.
    """
    if not len(data):
        raise BadSample("the image is empty (0 bytes)")
    kind = sniff(data)
    if kind is None:
        told = "not a JPEG, PNG, WebP or BMP image"
        if (name := sniff_foreign(data)) == "HEIC":
            raise BadSample(f"{told} but HEIC, which Pillow does not read: convert it first")
        if name is not None:
            raise BadSample("{} but {}, which {recompress:foreign} re-encodes", told, name)
        raise BadSample(f"{told}: it begins with {bytes(data[:8])!r}")
    try:
        info = {"jpeg": _jpeg, "png": _png, "webp": _webp, "bmp": _bmp}[kind](bytes(data), whole)
    except (struct.error, IndexError) as error:
        raise BadSample(f"the {kind} image is cut short: its header ends after {len(data)} bytes") from error
    if info.height < 1 or info.width < 1:
        raise BadSample(f"the {kind} image has no pixels: {info.height} x {info.width}")
    return info


def check_mask(data: Buffer) -> None:
    """Raise BadSample unless an image file holds one number per pixel: a PNG of grey levels or of a palette.

    Other files hold colours, or, as JPEGs, levels that are only near those that were saved.
    """
    kind = sniff(data)
    if kind is not None and (kind != "png" or data[25] not in _ONE_NUMBER):
        found = f"PNG of {_PNG_COLOURS.get(data[25], 'unknown colours')}" if kind == "png" else kind.upper()
        raise BadSample(
            "the pixels of a mask are numbers of classes, so it must be a PNG of grey levels or of a palette, got a "
            f"{found}"
        )


def is_deep(data: Buffer) -> bool:
    """Return whether an image file is a PNG of 16 bits per channel."""
    head = bytes(data[:25])
    return head.startswith(b"\x89PNG") and head[24:] == b"\x10"


def check_pixels(data: Buffer, most: int, region: tuple[int, int] | None = None) -> None:
    """Raise BadSample if decoding an image file must hold more than `most` pixels, or its header cannot be read.

    Args:
        data: the file.
        most: `Limits.max_image_pixels`.
        region: height and width of the only part to decode, by a decoder that makes it of a JPEG without the rest.
    """
    info = probe(data, whole=False)
    pixels = info.height * info.width
    if pixels > most and region is not None and info.format == "jpeg" and jpeg_coding(data).streams:
        pixels = min(pixels, region[0] * region[1])
    if pixels > most:
        size = f"{info.height} x {info.width}"
        raise BadSample(
            "the {} image claims {} pixels, of which {} must be held at once: {max_image_pixels} allows {}",
            info.format,
            size,
            pixels,
            most,
        )


def _jpeg(data: bytes, whole: bool) -> ImageInfo:
    position, size, several = 2, None, False
    while True:
        before, position = position, _next_marker(data, position)
        if len(data[before:position].strip(b"\xff")) > _MOST_STRAY:
            raise BadSample(f"the jpeg image is corrupt: no marker at byte {before}")
        marker = data[position + 1]
        if marker == 0xD9:
            raise BadSample("the jpeg image holds no pixels: it ends before any scan")
        length = struct.unpack_from(">H", data, position + 2)[0]
        if marker in _SIZE_MARKERS:
            size = struct.unpack_from(">HHB", data, position + 5)
            several = marker not in _SEQUENTIAL
        if marker == 0xDA:
            several = several or (size is not None and data[position + 4] < size[2])
        position += 2 + length
        if marker == 0xDA:
            break
    if size is None:
        raise BadSample("the jpeg image is corrupt: no frame header before the first scan")
    if several:
        _check_scans(data, position)
    # Within a scan, 0x00 or a restart marker always follows 0xFF, so this marker is the real end. Search from the back,
    # where it nearly always is, but never before the scan: thumbnails in the header have end markers of their own.
    if whole and data.rfind(b"\xff\xd9", position) < 0:
        raise BadSample(f"the jpeg image is cut short: no end marker in {len(data)} bytes")
    height, width, channels = size
    return ImageInfo("jpeg", height, width, channels)


def _check_scans(data: bytes, position: int) -> None:
    """Raise BadSample for a JPEG of more than MOST_SCANS scans; the first begins at `position`."""
    words = (np.frombuffer(data, "<u2", (len(data) - first) // 2, first) for first in (0, 1) if len(data) > first)
    if sum(np.count_nonzero(each == _SCAN) for each in words) <= MOST_SCANS:  # a tenth of the price
        return
    scans = 1
    while 0 <= (position := data.find(b"\xff", position)) < len(data) - 3 and (marker := data[position + 1]) != 0xD9:
        scans += marker == 0xDA
        if scans > MOST_SCANS:
            raise BadSample(
                f"the jpeg image has more than {MOST_SCANS} scans, each of which takes a pass over all its pixels; "
                "encode it anew"
            )
        segment = 0xC0 <= marker < 0xFF and marker not in _BARE_MARKERS
        position += 2 + int.from_bytes(data[position + 2 : position + 4]) if segment else 1 + (marker != 0xFF)


def _png(data: bytes, whole: bool) -> ImageInfo:
    width, height, _, color = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR":
        raise BadSample(f"the png image is corrupt: it begins with the chunk {data[12:16]!r}")
    if whole and data.rfind(PNG_END, 33) < 0:
        raise BadSample(f"the png image is cut short: no end marker in {len(data)} bytes")
    return ImageInfo("png", height, width, {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}.get(color, 3))


def _webp(data: bytes, whole: bool) -> ImageInfo:
    (declared,) = struct.unpack_from("<I", data, 4)
    if whole and len(data) < declared + 8:
        raise BadSample(f"the webp image is cut short: {len(data)} of {declared + 8} bytes")
    match data[12:16]:
        case b"VP8 ":
            width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
            return ImageInfo("webp", height, width, 3)
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return ImageInfo("webp", (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
            return ImageInfo("webp", height, width, 4 if data[20] & 0x10 else 3)
    raise BadSample(f"the webp image is corrupt: unknown chunk {data[12:16]!r}")


def _bmp(data: bytes, whole: bool) -> ImageInfo:
    start, header = struct.unpack_from("<II", data, 10)
    if header == 12:  # the OS/2 header
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        compression, declared = 0, 0
    else:
        width, height, _, bits, compression, declared = struct.unpack_from("<iiHHII", data, 18)
    # Rows are padded to 4 bytes; only run-length coding (1 and 2) must declare its length.
    length = declared if compression in (1, 2) else (abs(width) * bits + 31) // 32 * 4 * abs(height)
    if whole and len(data) < start + length:
        raise BadSample(f"the bmp image is cut short: {len(data)} of {start + length} bytes")
    return ImageInfo("bmp", abs(height), abs(width), 4 if bits == 32 else 3)


@dataclass(frozen=True, slots=True)
class JpegCoding:
    """The coding of a JPEG, as its headers state it.

    Attributes:
        process: the frame marker minus 0xC0: 0 baseline, 1 extended, 2 progressive, 3 lossless, 9 and 10 arithmetic.
        bits: the bits per sample of a component.
        colors: `grey`, `ycbcr`, `rgb`, `cmyk` (also YCCK), or `other`.
        several_scans: whether the first scan lacks components.
        unit: height and width in pixels of what a scan of all components codes together (MCU).
        restart_interval: how many of these there are from one restart marker to the next; 0 without markers.
        scan: where the first scan's data begin, in bytes.
    """

    process: int
    bits: int
    colors: str
    several_scans: bool
    unit: tuple[int, int]
    restart_interval: int
    scan: int

    @property
    def baseline(self) -> bool:
        """Whether hardware decoders accept it: baseline with Huffman codes, 8 bits, YCbCr or grey, in one scan."""
        return self.process == 0 and not self.several_scans and self._plain

    @property
    def streams(self) -> bool:
        """Whether decoders can make a region without holding all: Huffman codes, coefficients in order, in one scan."""
        return self.process in (0, 1) and not self.several_scans

    @property
    def transcodable(self) -> bool:
        """Whether a baseline file can hold its coefficients: a lossless change of coding."""
        return self.process in (0, 1, 2, 9, 10) and self._plain

    @property
    def _plain(self) -> bool:
        return self.bits == 8 and self.colors in ("grey", "ycbcr")


def jpeg_coding(data: Buffer) -> JpegCoding:
    """Read how a JPEG is coded from its headers.

    Raises BadSample if they end before the first scan.
    """
    data = bytes(data)
    frame, jfif, adobe, interval = None, False, None, 0
    for marker, start, stop in _segments(data):
        if marker in _SIZE_MARKERS and stop - start >= 6:
            frame = (
                marker - 0xC0,
                data[start],
                data[start + 6 : stop : 3],  # 3 bytes per component: its name, its sampling, its table
                data[start + 7 : stop : 3] if data[start + 5] > 1 else b"\x11",  # one alone is coded block by block
            )
        elif marker == 0xE0 and data[start : start + 5] == b"JFIF\0" and stop - start >= 14:
            jfif = True
        elif marker == 0xEE and data[start : start + 5] == b"Adobe" and stop - start >= 12:
            adobe = data[start + 11]
        elif marker == 0xDD and stop - start >= 2:
            interval = int.from_bytes(data[start : start + 2])
        elif marker == 0xDA and frame is not None:
            process, bits, names, factors = frame
            down, across = (max((both >> shift & 15 for both in factors), default=1) for shift in (0, 4))
            colors = _colors(names, jfif, adobe)
            return JpegCoding(process, bits, colors, data[start] < len(names), (8 * down, 8 * across), interval, stop)
    raise BadSample("the jpeg image is corrupt: its headers end before any scan")


def _colors(names: bytes, jfif: bool, adobe: int | None) -> str:
    """The color space that decoders assume: by the JFIF marker, else Adobe's, else the components' names."""
    if len(names) != 3:
        return {1: "grey", 4: "cmyk"}.get(len(names), "other")
    rgb = not jfif and (names == b"RGB" if adobe is None else adobe == 0)
    return "rgb" if rgb else "ycbcr"


def _next_marker(data: bytes, position: int) -> int:
    """Return where the next marker of a JPEG that begins a segment or ends the file is; the file's end for none.

    Bytes that belong to no segment are passed over, as libjpeg does; so are fill bytes.
    """
    while (position := data.find(b"\xff", position)) >= 0 and position + 1 < len(data):
        if (marker := data[position + 1]) and marker != 0xFF and marker not in _BARE_MARKERS:
            return position
        position += 1
    return len(data)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop) of each complete segment of a JPEG, up to and including the first scan's header."""
    position = 2
    while (position := _next_marker(data, position)) + 4 <= len(data):
        marker = data[position + 1]
        start, position = position + 4, position + 2 + int.from_bytes(data[position + 2 : position + 4])
        if marker == 0xD9 or not start < position <= len(data):
            return
        yield marker, start, position
        if marker == 0xDA:
            return


def orientation(data: Buffer) -> int:
    """Return an image's orientation, by which viewers rotate or flip it: 1 (upright) to 8.

    It is the one that `PIL.ImageOps.exif_transpose` applies: of the Exif data, else of XMP. An absent or damaged one
    counts as 1.
    """
    data = bytes(data)
    metadata = {"jpeg": _jpeg_metadata, "png": _png_metadata, "webp": _webp_metadata}.get(sniff(data) or "")
    exif, xmp = (b"", b"") if metadata is None else metadata(data)
    found = _exif_orientation(exif)
    if found is None and (match := _XMP_ORIENTATION.search(xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else 1


def with_orientation(data: bytes, orientation: int) -> bytes:
    """Return a JPEG or PNG file without metadata with an EXIF orientation, 1 to 8."""
    tags = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    if sniff(data) == "png":
        chunk, at = b"eXIf" + tags, 33  # behind the header
        return data[:at] + struct.pack(">I", len(tags)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[at:]
    exif = b"Exif\0\0" + tags
    at = next((stop for marker, _, stop in _segments(data) if marker == 0xE0), 2)  # behind JFIF's, the first one
    return data[:at] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[at:]


def _jpeg_metadata(data: bytes) -> tuple[bytes, bytes]:
    """Return the Exif data, which may be split over several segments, and the XMP."""
    exif = xmp = b""
    for marker, start, stop in _segments(data):
        if marker == 0xE1 and data.startswith(_EXIF, start, stop):
            exif += data[start + len(_EXIF) * bool(exif) : stop]
            if _exif_orientation(exif) is not None:
                break
        elif marker == 0xE1 and data.startswith(_XMP, start, stop):
            xmp = data[start + len(_XMP) : stop]
    return exif, xmp


def _png_metadata(data: bytes) -> tuple[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    position = 8
    while position + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length] if name in _PNG_METADATA else b""
        keyword, _, text = body.partition(b"\0")
        if name == b"eXIf":
            found[name] = body
        elif keyword in (_RAW_PROFILE, _PNG_XMP):
            found[keyword] = _png_text(name, text)
        position += length + 12
    exif = found.get(b"eXIf")
    if exif is None:
        with contextlib.suppress(ValueError):  # three lines before the hexadecimal digits: empty, the name, the length
            exif = bytes.fromhex(b"".join(found.get(_RAW_PROFILE, b"").split(b"\n")[3:]).decode("ascii"))
    return exif or b"", found.get(_PNG_XMP, b"")


def _png_text(name: bytes, text: bytes) -> bytes:
    """The text of a chunk, without its keyword; b"" if it is damaged or too large for Pillow."""
    compressed = name == b"zTXt" or (name == b"iTXt" and text[:1] == b"\1")
    text = text[1:] if name == b"zTXt" else text[2:].split(b"\0", 2)[-1] if name == b"iTXt" else text
    try:
        return zlib.decompressobj().decompress(text, _MOST_TEXT) if compressed else text
    except zlib.error:
        return b""


def _webp_metadata(data: bytes) -> tuple[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    position = 12
    while position + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, position)
        if name in (b"EXIF", b"XMP "):
            found.setdefault(name, data[position + 8 : position + 8 + length])
        position += 8 + length + length % 2
    return found.get(b"EXIF", b""), found.get(b"XMP ", b"")


def _exif_orientation(exif: bytes) -> int | None:
    """The value of tag 0x0112 in the first directory of Exif data; None without it, 0 if it is no number."""
    tiff = exif.removeprefix(_EXIF).removeprefix(_EXIF)  # some writers repeat it
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or tiff[2:4] not in (b"*\0", b"\0*"):
        return None
    with contextlib.suppress(struct.error):  # it ends before the tag
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == 0x0112 and count:
                if (number := _TIFF_NUMBERS.get(kind)) is None:
                    return 0
                at = entry + 8
                if count * struct.calcsize(order + number) > 4:
                    (at,) = struct.unpack_from(order + "I", tiff, at)
                return int(struct.unpack_from(order + number, tiff, at)[0])
    return None
