"""`images.probe` returns the sizes that decoders find, and detects truncated files."""

import io
import math
import re
import struct
import zlib
from contextlib import suppress

import cv2
import numpy as np
import PIL
import pytest
from _builders import (
    CMYK_JPEG,
    SOS,
    bmp,
    encode,
    jpeg,
    of_many_scans,
    pixels,
    png,
    tiff,
    webp,
    with_exif,
    with_thumbnail,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import shardio
from shardio.engines.jpeg_headers import orientations_of
from shardio.engines.orientation import TRANSPOSITIONS, transpose
from shardio.errors import BadSample
from shardio.format.images import MOST_SCANS, ImageInfo, jpeg_coding, orientation, probe, sniff
from shardio.native.recode import find_damage

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
    """A BMP of 8 bits per pixel with one run per row."""
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
        (jpeg(1, 700), ImageInfo("jpeg", 1, 700, 3)),  # a side above 255 needs both bytes
        (with_thumbnail(jpeg(12, 16), jpeg(3, 4)), ImageInfo("jpeg", 12, 16, 3)),  # not the size of the thumbnail
        (png(12, 16), ImageInfo("png", 12, 16, 3)),
        (png(12, 16, 1), ImageInfo("png", 12, 16, 1)),
        (png(12, 16, 4), ImageInfo("png", 12, 16, 4)),
        (png(12, 16, dtype=np.uint16), ImageInfo("png", 12, 16, 3)),  # 16 bits a channel
        (webp(12, 16), ImageInfo("webp", 12, 16, 3)),  # VP8
        (webp(12, 16, quality=101), ImageInfo("webp", 12, 16, 3)),  # VP8L
        (webp(12, 16, 4), ImageInfo("webp", 12, 16, 4)),  # VP8X: lossy with separate alpha
        (webp(12, 16, 4, quality=101), ImageInfo("webp", 12, 16, 4)),  # VP8L includes alpha
        (webp(300, 400), ImageInfo("webp", 300, 400, 3)),
        (bmp(12, 16), ImageInfo("bmp", 12, 16, 3)),  # 24 bits
        (bmp(12, 15), ImageInfo("bmp", 12, 15, 3)),  # padded rows
        (bmp(12, 16, 4), ImageInfo("bmp", 12, 16, 4)),  # 32 bits, long header
        (bmp(12, 16, 1), ImageInfo("bmp", 12, 16, 3)),  # 8 bits and a palette, possibly of colours
        (core_bmp(3, 5), ImageInfo("bmp", 3, 5, 3)),
        (run_length_bmp(3, 5), ImageInfo("bmp", 3, 5, 3)),
        (CMYK_JPEG, ImageInfo("jpeg", 2, 3, 4)),  # which decoding turns into RGB
    ],
)
def test_probe_says_what_the_decoder_finds(data: bytes, expected: ImageInfo) -> None:
    """Format, size and channels come from the header, and OpenCV decodes that size."""
    assert probe(data) == expected
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded.shape[:2] == (expected.height, expected.width)


@pytest.mark.parametrize("data", [*FILES.values(), core_bmp(), run_length_bmp()], ids=[*FILES, "bmp core", "bmp runs"])
def test_every_truncation_is_found(data: bytes) -> None:
    """A truncated file is refused wherever it is cut, even before its last byte."""
    probe(data)
    for cut in range(len(data)):
        with pytest.raises(BadSample):
            probe(data[:cut])


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image() -> None:
    """A truncated JPEG is refused, although its thumbnail is complete."""
    data = with_thumbnail(jpeg(12, 16), thumbnail := jpeg(3, 4))
    assert thumbnail.endswith(b"\xff\xd9")
    for cut in range(data.index(thumbnail) + len(thumbnail), len(data)):
        with pytest.raises(BadSample, match="cut short"):
            probe(data[:cut])


def test_a_jpeg_has_so_many_scans() -> None:
    """Each is a pass over all blocks, of a few bytes; one more than the limit is refused, whole or not."""
    assert probe(of_many_scans(64, MOST_SCANS)).height == 64
    with pytest.raises(BadSample, match="more than 100 scans"):
        probe(of_many_scans(64, MOST_SCANS + 1))
    with pytest.raises(BadSample, match="more than 100 scans"):
        probe(of_many_scans(64, 2000), whole=False)


@pytest.mark.parametrize(
    "image",
    [
        jpeg(progressive=True) + (SOS + b"\0\x08") * 200,  # a video behind the photo
        with_thumbnail(jpeg(progressive=True), (SOS + b"\0\x08") * 200),
        jpeg(200, 300) + (SOS + b"\0\x08") * 200,
    ],
)
def test_markers_outside_of_scans_are_none(image: bytes) -> None:
    """Bytes of metadata, and behind the end, are no scans."""
    assert probe(image).format == "jpeg"


@pytest.mark.parametrize("name", ["jpeg", "png", "webp, lossy", "bmp"])
@pytest.mark.parametrize("extra", [b"\0", b"\n", b"padding " * 20])
def test_bytes_after_the_end_do_no_harm(name: str, extra: bytes) -> None:
    """Bytes after the end, which some programs append, are ignored."""
    assert probe(FILES[name] + extra) == probe(FILES[name])


@pytest.mark.parametrize("stray", [b"\x11", bytes(7), b"bytes between the segments", b"\xff\0", b"\xff\xd0"])
def test_stray_bytes_between_segments_of_a_jpeg(stray: bytes) -> None:
    """Bytes between two segments, which libjpeg and Pillow pass over, change neither pixels nor orientation."""
    data = with_exif(jpeg(40, 50), tiff(6))
    data = data[:2] + b"\xff\xfe\0\4hi" + data[2:]
    for marker in (b"\xff\xe1", b"\xff\xdb", b"\xff\xc0", b"\xff\xda"):
        place = data.index(marker)
        odd = data[:place] + stray + data[place:]
        assert probe(odd) == probe(data)
        assert orientation(odd) == orientations_of([odd])[0] == 6
        assert jpeg_coding(odd).scan == jpeg_coding(data).scan + len(stray)
        assert find_damage(odd, (40, 50), 2000) == ""
        samples = shardio.from_samples([{"image": odd}], fields={"image": "image"})
        batch = next(iter(shardio.Loader(samples, 1, to="numpy")))
        assert np.array_equal(batch["image"][0], np.asarray(Image.open(io.BytesIO(odd)).convert("RGB")))


def test_an_erased_segment_of_a_jpeg_is_damage() -> None:
    """Zeros instead of the first segments are no stray bytes, although markers follow."""
    data = jpeg(40, 50)
    with pytest.raises(BadSample, match="the jpeg image is corrupt: no marker at byte 2"):
        probe(data[:3] + bytes(40) + data[43:])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", r"empty \(0 bytes\)"),
        (b"not an image, whatever its name says", "not a JPEG, PNG, WebP or BMP image: it begins with b'not an i'"),
        (b"\0" * 1000, "not a JPEG"),  # zeros after a crash
        (b"GIF89a\x01\0\x01\0", "not a JPEG"),
        (b"BM", "not a JPEG"),  # only the BMP signature
        (b"\xff\xd8\xff\xe0\0\4ab12345678", "its header ends after 16 bytes"),
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


def check_probes(data: bytes) -> None:
    """Probe bytes in every way: they are an image of at least one pixel, or raise BadSample."""
    with suppress(BadSample):
        info = probe(data)
        assert min(info.height, info.width) > 0
    with suppress(BadSample):
        coding = jpeg_coding(data)
        assert coding.transcodable or not coding.baseline
    assert 1 <= orientation(data) <= 8


@given(
    st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\4\0\0\0WEBP", b"BM" + b"\0" * 8]),
    st.binary(max_size=80),
)
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_an_image_or_a_bad_sample(head: bytes, rest: bytes) -> None:
    """Any bytes that begin like an image are an image or raise BadSample only."""
    check_probes(head + rest)


@given(
    st.sampled_from([*FILES.values(), *(with_exif(FILES[name], tiff(6)) for name in ("jpeg", "png", "webp, lossy"))]),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1),
    st.integers(0, 200),
)
@settings(deadline=None, max_examples=300)
def test_a_damaged_image_is_an_image_or_a_bad_sample(whole: bytes, changes: list[tuple[int, int]], end: int) -> None:
    """Wrong bytes in a header, and files cut off there, raise BadSample or give a size, a coding and an orientation."""
    data = bytearray(whole)
    for place, byte in changes:
        data[place % len(data)] = byte
    check_probes(bytes(data))
    check_probes(bytes(data[:end]))


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("name", ["jpeg", "jpeg, progressive", "png", "webp, lossy"])
def test_orientations_are_read(name: str, kind: int, order: str, number: int) -> None:
    """EXIF orientations are read in every format, byte order and number type."""
    data = with_exif(FILES[name], tiff(number, order=order, kind=kind))
    assert orientation(data) == orientation(memoryview(data)) == number
    assert probe(memoryview(data)).format == sniff(bytearray(data)) == probe(FILES[name]).format


XMP_ATTRIBUTE = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
XMP_ELEMENT = b"<rdf:Description><tiff:Orientation>8</tiff:Orientation></rdf:Description>"


def app1(*bodies: bytes) -> bytes:
    """A JPEG with segments for metadata."""
    data = jpeg(9, 11)
    return data[:2] + b"".join(b"\xff\xe1" + struct.pack(">H", len(b) + 2) + b for b in bodies) + data[2:]


def png_chunk(name: bytes, body: bytes, *, at_end: bool = False) -> bytes:
    """A PNG with a chunk for metadata, before or after its pixels."""
    data = png(9, 11)
    at = len(data) - 12 if at_end else 33
    return (
        data[:at] + struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) + data[at:]
    )


def webp_xmp(xmp: bytes) -> bytes:
    """A WebP with XMP alone."""
    file = io.BytesIO()
    Image.fromarray(pixels(9, 11)).save(file, "WEBP", xmp=xmp)
    return file.getvalue()


def raw_profile(exif: bytes) -> bytes:
    """Exif data as ImageMagick writes them into texts of PNGs."""
    return b"\nexif\n%8d\n" % len(exif) + exif.hex().encode() + b"\n"


EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
ELSEWHERE = {
    "doubled prefix": app1(EXIF + EXIF + tiff(6)),
    "split": app1(EXIF + tiff(6)[:20], EXIF + tiff(6)[20:]),
    "split, with a second whole one": app1(EXIF + tiff(3), EXIF + tiff(6)),
    "XMP attribute": app1(XMP + XMP_ATTRIBUTE),
    "XMP element": app1(XMP + XMP_ELEMENT),
    "XMP, the last of two": app1(XMP + XMP_ATTRIBUTE, XMP + XMP_ELEMENT),
    "Exif without the tag, XMP": app1(EXIF + tiff(6)[:22] + b"\x13\x01" + tiff(6)[24:], XMP + XMP_ATTRIBUTE),
    "Exif upright, XMP": app1(EXIF + tiff(1), XMP + XMP_ATTRIBUTE),
    "Exif undefined, XMP": app1(EXIF + tiff(9), XMP + XMP_ATTRIBUTE),
    "XMP undefined": app1(XMP + XMP_ATTRIBUTE.replace(b"6", b"9")),
    "signed": app1(EXIF + tiff(6, kind=8)),
    "bytes": app1(EXIF + tiff(6, kind=1), XMP + XMP_ATTRIBUTE),
    "other TIFF mark": app1(EXIF + b"MM*\0" + tiff(6, order=">")[4:]),
    "PNG, prefix": png_chunk(b"eXIf", EXIF + tiff(6)),
    "PNG, at its end": png_chunk(b"eXIf", tiff(6), at_end=True),
    "PNG, XMP": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP_ATTRIBUTE),
    "PNG, packed XMP": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP_ATTRIBUTE)),
    "PNG, raw profile": png_chunk(b"tEXt", b"Raw profile type exif\0" + raw_profile(EXIF + tiff(6))),
    "PNG, packed profile": png_chunk(
        b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw_profile(EXIF + tiff(5))), at_end=True
    ),
    "PNG, damaged profile": png_chunk(b"zTXt", b"Raw profile type exif\0\0" + b"no zlib"),
    "WebP, prefix": with_exif(FILES["webp, lossy"], EXIF + tiff(6)),
    "WebP, XMP": webp_xmp(XMP_ATTRIBUTE),
}


@pytest.mark.skipif(int(PIL.__version__.partition(".")[0]) < 13, reason="older ones look in fewer places")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_orientation_is_where_pillow_finds_it(name: str) -> None:
    """In XMP, split or prefixed Exif data and raw profiles it counts as for `exif_transpose`; compiled code agrees."""
    data = ELSEWHERE[name]
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    made = transpose(np.array(Image.open(io.BytesIO(data))), TRANSPOSITIONS[orientation(data)])
    np.testing.assert_array_equal(made, np.array(upright))
    assert orientations_of([data]).tolist() == [orientation(data)]


def test_a_raw_profile_that_is_no_profile() -> None:
    """Raw profiles whose digits are none, and texts that are too large, count as upright."""
    for text in (b"\nexif\n 4\nzz", b"\nexif", b"\xff\n\n\n\xff", b" " * (2 << 20)):
        assert orientation(png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))) == 1


@pytest.mark.parametrize("data", [*FILES.values(), with_thumbnail(jpeg(9, 11), jpeg(3, 4)), b"", b"no image"])
def test_no_orientation_is_upright(data: bytes) -> None:
    """An image without EXIF data, or without the orientation tag, is upright."""
    assert orientation(data) == 1


def test_the_orientation_is_the_images_own() -> None:
    """EXIF data of a thumbnail, or after the image, is ignored."""
    thumbnail = with_exif(jpeg(3, 4), tiff(6))
    assert orientation(with_thumbnail(jpeg(9, 11), thumbnail)) == 1
    assert orientation(jpeg(9, 11) + thumbnail) == 1
    assert orientation(with_exif(with_thumbnail(jpeg(9, 11), thumbnail), tiff(3))) == 3


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        tiff(0),
        tiff(9),
        tiff(6, kind=5),  # a fraction
        b"XX" + tiff(6)[2:],  # no byte order
        tiff(6)[:4] + struct.pack("<I", 2**32 - 1) + tiff(6)[8:],  # a directory beyond the end
        tiff(6)[:4] + struct.pack("<I", 30) + tiff(6)[8:],
        tiff(6)[:8] + struct.pack("<H", 1) + tiff(6)[10:],  # the tag is missing
        tiff(6)[:22] + b"\x13\x01" + tiff(6)[24:],  # the directory claims more tags than it has
        tiff(6)[:30],
    ],
)
@pytest.mark.parametrize("name", ["jpeg", "png", "webp, lossy"])
def test_a_damaged_orientation_is_none(name: str, exif: bytes) -> None:
    """Damaged EXIF data and undefined orientations count as upright."""
    assert orientation(with_exif(FILES[name], exif)) == 1


def adobe(image: bytes, transform: int) -> bytes:
    """A JPEG with Adobe's marker instead of JFIF's."""
    assert image[2:4] == b"\xff\xe0"
    body = b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform)
    return image[:2] + b"\xff\xee" + struct.pack(">H", len(body) + 2) + body + image[20:]


def named(image: bytes, names: bytes) -> bytes:
    """A JPEG without JFIF's marker and with other component names, in the frame and scan headers."""
    image = image[:2] + image[2 + 2 + int.from_bytes(image[4:6]) :] if image[2:4] == b"\xff\xe0" else image
    frame, scan = image.index(b"\xff\xc0") + 10, image.index(b"\xff\xda") + 5
    data = bytearray(image)
    data[frame : frame + 9 : 3] = data[scan : scan + 6 : 2] = names
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "process", "colors"),
    [
        (jpeg(9, 11), 0, "ycbcr"),
        (jpeg(9, 11, 1), 0, "grey"),
        (jpeg(9, 11, progressive=True), 2, "ycbcr"),
        (with_thumbnail(jpeg(9, 11, progressive=True), jpeg(3, 4)), 2, "ycbcr"),
        (CMYK_JPEG, 0, "cmyk"),
        (adobe(jpeg(9, 11), 0), 0, "rgb"),
        (adobe(jpeg(9, 11), 1), 0, "ycbcr"),
        (adobe(jpeg(9, 11), 2), 0, "ycbcr"),
        (named(jpeg(9, 11), b"RGB"), 0, "rgb"),
        (named(jpeg(9, 11), b"\0\1\2"), 0, "ycbcr"),
        (named(adobe(jpeg(9, 11), 1), b"RGB"), 0, "ycbcr"),
        (jpeg(9, 11)[:20] + adobe(jpeg(9, 11), 0)[2:], 0, "ycbcr"),
    ],
)
def test_how_a_jpeg_is_coded(data: bytes, process: int, colors: str) -> None:
    """The coding is that of the image, not of a thumbnail, and its colours are those that OpenCV takes them for."""
    coding = jpeg_coding(data)
    assert (coding.process, coding.bits, coding.colors, coding.several_scans) == (process, 8, colors, False)
    plain = colors in ("ycbcr", "grey")
    assert (coding.baseline, coding.transcodable) == (plain and not process, plain)
    if colors in ("ycbcr", "rgb"):
        decoded, usual = (cv2.imdecode(np.frombuffer(d, np.uint8), cv2.IMREAD_COLOR) for d in (data, jpeg(9, 11)))
        assert (decoded == usual).all() == (colors == "ycbcr")


@pytest.mark.parametrize("interval", [0, 3])
@pytest.mark.parametrize(
    ("sampling", "unit"), [("411", (8, 32)), ("420", (16, 16)), ("422", (8, 16)), ("440", (16, 8)), ("444", (8, 8))]
)
def test_how_a_jpeg_is_divided(sampling: str, unit: tuple[int, int], interval: int) -> None:
    """The size of what is coded together, and how often a marker stands between, are those that were asked for."""
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    options = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor, cv2.IMWRITE_JPEG_RST_INTERVAL, interval)
    for channels in (1, 3):
        data = encode("jpg", pixels(65, 130, channels), *options)
        coding = jpeg_coding(data)
        assert (coding.unit, coding.restart_interval) == (unit if channels == 3 else (8, 8), interval)
        units = math.prod(-(-side // step) for side, step in zip((65, 130), coding.unit, strict=True))
        markers = len(re.findall(rb"\xff[\xd0-\xd7]", data[coding.scan :]))
        assert markers == ((units - 1) // interval if interval else 0)


@pytest.mark.parametrize("cut", [0, 2, 3, 40, 160, 200])
def test_a_jpeg_without_headers_has_no_coding(cut: int) -> None:
    """A JPEG that is truncated within its headers is a bad sample."""
    with pytest.raises(BadSample, match="headers end before any scan"):
        jpeg_coding(jpeg(9, 11)[:cut])
