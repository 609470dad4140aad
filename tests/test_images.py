"""`images.probe` reads sizes as the decoders do, and finds files that are cut short."""

import struct

import cv2
import numpy as np
import pytest
from _builders import CMYK_JPEG, bmp, jpeg, png, webp, with_thumbnail
from hypothesis import given, settings
from hypothesis import strategies as st

from shardio.errors import BadSample
from shardio.images import SUFFIXES, ImageInfo, probe, sniff
from shardio.types import Buffer

# 3 x 2 pixels in four inks, as image editors write for print.

FILES = {
    "jpeg": jpeg(9, 11),
    "jpeg, progressive": jpeg(9, 11, progressive=True),
    "png": png(9, 11),
    "webp, lossy": webp(9, 11),
    "webp, lossless": webp(9, 11, quality=101),
    "webp, lossy with alpha": webp(9, 11, 4),
    "bmp": bmp(9, 11),
}


def core_bmp(height: int = 3, width: int = 5) -> bytes:
    """A BMP with the 12-byte header of OS/2, 24 bits a pixel."""
    rows = bytes(range(height * ((width * 3 + 3) // 4 * 4)))
    return (
        struct.pack("<2sIHHI", b"BM", 26 + len(rows), 0, 0, 26) + struct.pack("<IHHHH", 12, width, height, 1, 24) + rows
    )


def run_length_bmp(height: int = 3, width: int = 5) -> bytes:
    """A BMP of 8 bits a pixel, whose rows are one run each."""
    runs = b"".join(bytes([width, row, 0, 0]) for row in range(height)) + b"\0\1"
    palette = b"".join(bytes([i, i, i, 0]) for i in range(256))
    start = 54 + len(palette)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return struct.pack("<2sIHHI", b"BM", start + len(runs), 0, 0, start) + head + palette + runs


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (jpeg(12, 16), ImageInfo("jpeg", 12, 16, 3)),
        (jpeg(12, 16, 1), ImageInfo("jpeg", 12, 16, 1)),  # grey
        (jpeg(12, 16, progressive=True), ImageInfo("jpeg", 12, 16, 3)),  # several scans
        (jpeg(1, 700), ImageInfo("jpeg", 1, 700, 3)),  # sides above 255 need both bytes
        (with_thumbnail(jpeg(12, 16), jpeg(3, 4)), ImageInfo("jpeg", 12, 16, 3)),  # the size is not the thumbnail's
        (png(12, 16), ImageInfo("png", 12, 16, 3)),
        (png(12, 16, 1), ImageInfo("png", 12, 16, 1)),
        (png(12, 16, 4), ImageInfo("png", 12, 16, 4)),
        (png(12, 16, dtype=np.uint16), ImageInfo("png", 12, 16, 3)),  # 16 bits a channel
        (webp(12, 16), ImageInfo("webp", 12, 16, 3)),  # VP8
        (webp(12, 16, quality=101), ImageInfo("webp", 12, 16, 3)),  # VP8L
        (webp(12, 16, 4), ImageInfo("webp", 12, 16, 4)),  # VP8X: lossy, alpha apart
        (webp(12, 16, 4, quality=101), ImageInfo("webp", 12, 16, 4)),  # VP8L holds alpha itself
        (webp(300, 400), ImageInfo("webp", 300, 400, 3)),
        (bmp(12, 16), ImageInfo("bmp", 12, 16, 3)),  # 24 bits
        (bmp(12, 15), ImageInfo("bmp", 12, 15, 3)),  # rows padded
        (bmp(12, 16, 4), ImageInfo("bmp", 12, 16, 4)),  # 32 bits, long header
        (bmp(12, 16, 1), ImageInfo("bmp", 12, 16, 3)),  # 8 bits and a palette, which may hold colours
        (core_bmp(3, 5), ImageInfo("bmp", 3, 5, 3)),
        (run_length_bmp(3, 5), ImageInfo("bmp", 3, 5, 3)),
    ],
)
def test_probe_says_what_the_decoder_finds(data: bytes, expected: ImageInfo) -> None:
    """Format, size and channels come from the header; OpenCV decodes the same size from the same bytes."""
    assert probe(data) == expected
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    assert decoded.shape[:2] == (expected.height, expected.width)


def test_a_cmyk_jpeg_has_four_channels() -> None:
    """A JPEG made for print is accepted: it becomes RGB where it is decoded."""
    assert probe(CMYK_JPEG) == ImageInfo("jpeg", 2, 3, 4)


@pytest.mark.parametrize("data", [*FILES.values(), core_bmp(), run_length_bmp()], ids=[*FILES, "bmp core", "bmp runs"])
def test_every_truncation_is_found(data: bytes) -> None:
    """A file that lost its end is refused wherever it was cut, down to the last byte."""
    probe(data)
    for cut in range(len(data)):
        with pytest.raises(BadSample):
            probe(data[:cut])


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image() -> None:
    """A JPEG with a whole thumbnail is refused wherever its own pixels are cut."""
    data = with_thumbnail(jpeg(12, 16), thumbnail := jpeg(3, 4))
    assert thumbnail.endswith(b"\xff\xd9")
    for cut in range(data.index(thumbnail) + len(thumbnail), len(data)):
        with pytest.raises(BadSample, match="cut short"):
            probe(data[:cut])


@pytest.mark.parametrize("name", ["jpeg", "png", "webp, lossy", "bmp"])
@pytest.mark.parametrize("extra", [b"\0", b"\n", b"padding " * 20])
def test_bytes_after_the_end_do_no_harm(name: str, extra: bytes) -> None:
    """Cameras and downloads append bytes that every decoder ignores."""
    assert probe(FILES[name] + extra) == probe(FILES[name])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", r"empty \(0 bytes\)"),
        (b"not an image, whatever its name says", "not a JPEG, PNG, WebP or BMP image: it begins with b'not an i'"),
        (b"\0" * 1000, "not a JPEG"),  # a hole that a crash left
        (b"GIF89a\x01\0\x01\0", "not a JPEG"),
        (b"BM", "not a JPEG"),  # two letters are no BMP
        (b"\xff\xd8\xff\xe0\0\4ab12345678", "no marker at byte 8"),
        (b"\xff\xd8\xff\xd9", "ends before any scan"),
        (b"\xff\xd8\xff\xda\0\2\0\0\xff\xd9", "no frame header before the first scan"),
        (FILES["png"][:12] + b"IDAT" + FILES["png"][16:], "begins with the chunk b'IDAT'"),
        (FILES["png"][:16] + b"\0" * 8 + FILES["png"][24:], "no pixels: 0 x 0"),
        (FILES["webp, lossy"][:12] + b"VPXX" + FILES["webp, lossy"][16:], "unknown chunk b'VPXX'"),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    """The message says what is wrong with the bytes."""
    with pytest.raises(BadSample, match=reason):
        probe(data)


@given(
    st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\4\0\0\0WEBP", b"BM" + b"\0" * 8]),
    st.binary(max_size=80),
)
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_an_image_or_a_bad_sample(head: bytes, rest: bytes) -> None:
    """Nothing but BadSample comes out of bytes that only begin like an image."""
    try:
        info = probe(head + rest)
    except BadSample:
        return
    assert info.height > 0
    assert info.width > 0


@given(st.sampled_from(sorted(FILES)), st.integers(0, 120), st.integers(0, 255))
@settings(deadline=None, max_examples=300)
def test_a_damaged_byte_is_an_image_or_a_bad_sample(name: str, place: int, byte: int) -> None:
    """One wrong byte in a header gives no error but BadSample, and a size of at least one pixel."""
    data = bytearray(FILES[name])
    data[place % len(data)] = byte
    try:
        info = probe(data)
    except BadSample:
        return
    assert info.height > 0
    assert info.width > 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type[Buffer]) -> None:
    """Readers hand out memory they don't own; it is looked at as it is."""
    assert sniff(kind(FILES["jpeg"])) == "jpeg"
    assert probe(kind(FILES["jpeg"])).format == "jpeg"


def test_every_format_has_a_suffix() -> None:
    """The formats that `sniff` knows are those that have a suffix."""
    assert {sniff(data) for data in FILES.values()} == set(SUFFIXES)
