"""Image files looked at without decoding: the format, the size, and whether the file is whole.

Only headers and end marks are read, a few microseconds an image. JPEG: ITU-T T.81; PNG: RFC 2083; WebP: RFC 9649.
"""

import struct
from dataclasses import dataclass

from .errors import BadSample
from .types import Buffer

SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp", "bmp": "bmp"}
"""Image formats and the file name suffix of each."""

_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset(range(0xD0, 0xD9)) | {0x01}
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"  # no data, the name, and the checksum of that: always the same 12 bytes


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What a header says: format, height and width in pixels, channels as stored (1, 3 or 4)."""

    format: str
    height: int
    width: int
    channels: int


def sniff(data: Buffer) -> str | None:
    """The format by its first bytes: `jpeg`, `png`, `webp`, `bmp`, or None."""
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


def probe(data: Buffer) -> ImageInfo:
    """Reads the header and looks for the end; BadSample if this is no image, has no pixels or is cut short."""
    if not len(data):
        raise BadSample("the image is empty (0 bytes)")
    kind = sniff(data)
    if kind is None:
        raise BadSample(f"not a JPEG, PNG, WebP or BMP image: it begins with {bytes(data[:8])!r}")
    try:
        info = {"jpeg": _jpeg, "png": _png, "webp": _webp, "bmp": _bmp}[kind](bytes(data))
    except (struct.error, IndexError) as error:
        raise BadSample(f"the {kind} image is cut short: its header ends after {len(data)} bytes") from error
    if info.height < 1 or info.width < 1:
        raise BadSample(f"the {kind} image has no pixels: {info.height} x {info.width}")
    return info


def _jpeg(data: bytes) -> ImageInfo:
    position, size = 2, None
    while True:
        if data[position] != 0xFF:
            raise BadSample(f"the jpeg image is corrupt: no marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _BARE_MARKERS:
            position += 2
            continue
        if marker == 0xD9:
            raise BadSample("the jpeg image holds no pixels: it ends before any scan")
        length = struct.unpack_from(">H", data, position + 2)[0]
        if marker in _SIZE_MARKERS:
            size = struct.unpack_from(">HHB", data, position + 5)
        position += 2 + length
        if marker == 0xDA:
            break
    if size is None:
        raise BadSample("the jpeg image is corrupt: no frame header before the first scan")
    # Within a scan 0xFF is always followed by 0x00 or a restart mark, so this is the real end. Looked for from the
    # back, where it nearly always is, but never before the scan: thumbnails in the header have an end of their own.
    if data.rfind(b"\xff\xd9", position) < 0:
        raise BadSample(f"the jpeg image is cut short: no end mark in {len(data)} bytes")
    height, width, channels = size
    return ImageInfo("jpeg", height, width, channels)


def _png(data: bytes) -> ImageInfo:
    width, height, _, color = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR":
        raise BadSample(f"the png image is corrupt: it begins with the chunk {data[12:16]!r}")
    if data.rfind(_PNG_END, 33) < 0:
        raise BadSample(f"the png image is cut short: no end mark in {len(data)} bytes")
    return ImageInfo("png", height, width, {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}.get(color, 3))


def _webp(data: bytes) -> ImageInfo:
    (declared,) = struct.unpack_from("<I", data, 4)
    if len(data) < declared + 8:
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


def _bmp(data: bytes) -> ImageInfo:
    start, header = struct.unpack_from("<II", data, 10)
    if header == 12:  # the oldest header, of OS/2
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        compression, declared = 0, 0
    else:
        width, height, _, bits, compression, declared = struct.unpack_from("<iiHHII", data, 18)
    # Rows are padded to 4 bytes; only run-length coding (1 and 2) has to say how long it is.
    length = declared if compression in (1, 2) else (abs(width) * bits + 31) // 32 * 4 * abs(height)
    if len(data) < start + length:
        raise BadSample(f"the bmp image is cut short: {len(data)} of {start + length} bytes")
    return ImageInfo("bmp", abs(height), abs(width), 4 if bits == 32 else 3)
