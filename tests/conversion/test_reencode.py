"""Re-encoding images during conversion: which images change, what they become, and that all others stay the same."""

import base64
import io
import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from _builders import (
    CMYK_JPEG,
    DHT,
    bmp,
    encode,
    jpeg,
    pixels,
    png,
    spoiled,
    tiff,
    unsent,
    webp,
    with_exif,
    without,
    write_files,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

import shardio
from shardio import native
from shardio.conversion.reencode import ReencodeOptions
from shardio.errors import BadSample, ConfigError
from shardio.format.images import jpeg_coding, orientation, probe
from shardio.native import recode

compiled = pytest.mark.skipif(native.library() is None, reason="not compiled here")


def decode(data: bytes, flags: int = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_IGNORE_ORIENTATION) -> NDArray[Any]:
    """The pixels of an image file, without its orientation applied."""
    made = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    assert made is not None
    return np.asarray(made)


def photo(height: int, width: int, channels: int = 3, *, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth shapes in smooth colours that repeat nowhere: `[height, width]` or `[height, width, channels]`."""
    random = np.random.default_rng(seed)
    shapes = random.integers(0, 150, (height // 12 + 2, width // 12 + 2)).astype(np.float32)
    colors = random.integers(0, 100, (3, 3, channels)).astype(np.float32)
    shapes, colors = (cv2.resize(n, (width, height), interpolation=cv2.INTER_LINEAR) for n in (shapes, colors))
    return (shapes + colors if channels == 1 else shapes[..., None] + colors).astype(np.uint8)


def psnr(made: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The peak signal-to-noise ratio of two images in dB."""
    assert made.shape == wanted.shape
    return 10 * math.log10(255**2 / max(1e-9, float(np.mean((made.astype(float) - wanted) ** 2))))


def assert_plain(data: bytes, shape: tuple[int, ...]) -> None:
    """Check that `data` is a baseline JPEG of that shape, 4:2:0 or grey, without metadata."""
    assert jpeg_coding(data).baseline
    assert decode(data).shape == shape
    frame = data.index(b"\xff\xc0")
    assert data[frame + 11] == (0x22 if len(shape) == 3 else 0x11)
    assert b"Exif" not in data
    assert b"\xff\xe2" not in data[:frame]


# Files that OpenCV does not write: 11 x 13 pixels, made with libjpeg-turbo.
FORMS = {
    name: base64.b85decode(text)
    for name, text in {
        "arithmetic": (
            "|JeWF01!$>Nk#wx0RR9200961|JwjV01XKW3knDg3knMk4h;_zAQcl55)&sJ9v2`kDKRiEDJ?8BI!Zn>HbyrrEkIX6ModmpQ&KWM"
            "T47pHU`kO^PygEhLjevB4iga*CKVMXPc<zyPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPf!2J"
            "01*fP3jhrR0U`hb5di}c0sqVZ3IGrg1pyEd1^?Or3<CiG0ucid06zfETG=i>kO3dNtveh!{q-(Qm(E#KW)A}CnY4suSpV4"
        ),
        "several scans": (
            "|JeWF01!$>Nk#wx0RR9200961|JwjV01XKW3knDg3knMk4h;_zAQcl55)&sJ9v2`kDKRiEDJ?8BI!Zn>HbyrrEkIX6ModmpQ&KWM"
            "T47pHU`kO^PygEhLjevB4iga*CKVMXPc<zyPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPft%zPf!2A"
            "01*fP3jhrR0U`hb5di}c0sq7R761VO0RR910000000000000F82LHqW9S{Hk0|fy90000000000000010t5pRAtEs{|Jncu0RaF2"
            "KLD&*{K&l-`gFv_d$F>M(R-})r~kwN6afJM00000000000000000030!~hl%00RI300000000000000000I>M+5iXv0ucZ|078fV"
            "!~hfl0RR910000000000000000sq7R7!d#h0{{R30000000000000021O*ZQ+5iXv0}%i}04w4yAOG0"
        ),
        "rgb": (
            "|JeWT01iQ9Z(?NtWB>pF0095n07C!`2?`4e2n`Dg3l0tq4-+626A}^=CmbFZATB8}FfJ)AEHgSvJ~K8(H!LkcS3yQhPEu1+GCo>i"
            "T2Nq0QBqI;zyJ{l01E&O15yzHM-c!*5di<h02lxO0|5a50000000000000001qTKK|HJ?z5C8!I1_uEE0000000000000330|W&j"
            "F%lCMG(u8hBLCU|3<FXCM*u<q06zfE$as&nzhbypYfz!fcHyo28##vfu{@CRF!|3rsl+QON)$P6+%ukcQL~m)1&{yP"
        ),
        "coarse": (
            "|JeWF01!$>Nk#wx0RR9200961|JwkA5CEV6ZUA@yi~x85WB{N5i~xcFi~zI%ssNw>z5wt6kO2e$@BrKZ+yL+a>H%H>aseU%kOD*j"
            "{sLkGSOPi${sJ%pCIWy0&;ytQ3<7`xr~_sKvH~UoFasb2LIWxTW&^eZ)C2|u5CjGSYy$!WY6Q9jU<2p`umhL_@&pD0-v8SGgAo9#"
            "0JH$K0Pq0P0Pq3U0R#aA0oDWF0+a$U0+a*Z1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP"
            "1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1KtDP1K$6^01*fP3jhrR0U`hb5di}c0sq7R761VO0RR9100000"
            "00000000621OLPT6%YXd00000000000000000031|HJ?k0RaF20000000000000000095Q02UDe0RaF20000000000000000TKV&"
            "01N{G00I#M5dc2`hC^mbVI%+9"
        ),
    }.items()
}


def of(source: bytes, *, process: int = 0, bits: int = 8) -> bytes:
    """A baseline JPEG whose header claims another process or bit depth."""
    data, frame = bytearray(source), source.index(b"\xff\xc0")
    data[frame + 1], data[frame + 4] = 0xC0 + process, bits
    return bytes(data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resize_shorter": 0}, "resize_shorter must be .* of at least 1, got 0"),
        ({"max_pixels": -1}, "max_pixels must be .* of at least 1, got -1"),
        ({"quality": 0}, "quality must be an integer from 1 to 100, got 0"),
        ({"recompress": "yes"}, "recompress must be 'never', 'foreign', 'if-needed' or 'always', got 'yes'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        ReencodeOptions(**arguments)


@given(
    st.integers(1, 65500),
    st.integers(1, 65500),
    st.none() | st.integers(1, 70000),
    st.none() | st.integers(1, 2**33),
)
def test_the_size_rule(height: int, width: int, shorter: int | None, most: int | None) -> None:
    """A size is never larger than the original or empty, respects both limits, and is no smaller than they require."""
    made = ReencodeOptions(resize_shorter=shorter, max_pixels=most).size_of(height, width)
    assert 1 <= made[0] <= height
    assert 1 <= made[1] <= width
    over = [min(height, width) > (shorter or 2**40), height * width > (most or 2**40)]
    assert (made == (height, width)) == (not any(over))
    assert min(made) <= (shorter or 2**40)
    assert made[0] * made[1] <= (most or 2**40)
    scale = min(1.0, (shorter or 2**40) / min(height, width), math.sqrt((most or 2**40) / (height * width)))
    low, high = sorted(made)
    assert abs(low - max(1, min(height, width) * scale)) <= 0.5 + 1e-6 or low * high == most or high - low <= 1
    assert high <= max(height, width) * scale + 0.5 + 1e-6 or low * high <= 2


KEPT = {
    "jpeg": jpeg(90, 70),
    "jpeg, grey": jpeg(90, 70, 1),
    "jpeg, 4:4:4": encode("jpg", photo(90, 70), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    "jpeg, not turned": with_exif(jpeg(90, 70), tiff(1)),
    "png": png(90, 70),
    "png, turned": with_exif(png(90, 70), tiff(6)),
    "webp": webp(90, 70),
    "bmp": bmp(90, 70),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_nothing_is_given_back(name: str, part: str) -> None:
    """No byte changes if the image is small enough and is baseline or not a JPEG."""
    limits: dict[str, Any] = {"resize_shorter": 70, "max_pixels": 90 * 70}
    for options in (limits, {**limits, "recompress": "if-needed"}, {"recompress": "if-needed"}):
        assert ReencodeOptions(**options)(KEPT[name]) is KEPT[name]


def test_what_is_not_decoded_is_not_judged() -> None:
    """Pixels are examined only if the image must be re-encoded."""
    for data in (spoiled(jpeg(90, 70)), CMYK_JPEG, jpeg(90, 70, progressive=True), with_exif(jpeg(90, 70), tiff(6))):
        assert ReencodeOptions(resize_shorter=70)(data) is data


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((300, 420), 199),  # by less than two
        ((300, 420), 150),  # by exactly two
        ((301, 421), 67),  # decoded at half the scale
        ((423, 301), 33),  # at a quarter
        ((811, 613), 17),  # at an eighth
        ((7, 900), 3),
    ],
)
def test_shrunk_jpegs_look_as_opencv_has_them(size: tuple[int, int], to: int, channels: int, part: str) -> None:
    """Shrunk JPEGs match OpenCV's area average as closely as encoding allows, in grey and in colour."""
    data = encode("jpg", photo(*size, channels), cv2.IMWRITE_JPEG_QUALITY, 95)
    reencode = ReencodeOptions(resize_shorter=to, quality=95)
    made, wanted = reencode(data), reencode.size_of(*size)
    assert_plain(made, wanted if channels == 1 else (*wanted, 3))
    averaged = cv2.resize(decode(data), wanted[::-1], interpolation=cv2.INTER_AREA)
    again = decode(encode("jpg", averaged[..., ::-1] if channels == 3 else averaged, cv2.IMWRITE_JPEG_QUALITY, 95))
    assert psnr(decode(made), averaged) > min(38, psnr(again, averaged) - 1.5)
    assert psnr(decode(made), again) > 34
    bright = [cv2.cvtColor(p, cv2.COLOR_BGR2GRAY) if channels == 3 else p for p in (decode(made), averaged)]
    assert psnr(*bright) > 38


@compiled
@settings(max_examples=80, deadline=None)
@given(st.integers(1, 120), st.integers(1, 120), st.integers(1, 120), st.integers(0, 3))
def test_averages_are_opencvs(height: int, width: int, to: int, seed: int) -> None:
    """On hard noise, too, brightness differs from OpenCV's by rounding only, without bias or lost pixels."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    data = encode("jpg", noise, cv2.IMWRITE_JPEG_QUALITY, 100)
    least = min(height, width)
    reencode = ReencodeOptions(resize_shorter=max(1, min(to, least), -(-least // 3)), quality=100)
    size = reencode.size_of(height, width)
    wanted = cv2.resize(decode(data), size[::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(decode(reencode(data)).astype(int) - wanted).max() <= 3  # rounding, here and in the encoder


@pytest.mark.parametrize("sampling", ["411", "420", "422", "440", "444"])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (17, 33), (97, 141)])
@pytest.mark.parametrize("turned", [1, 6])
def test_any_sampling_and_size(sampling: str, size: tuple[int, int], turned: int, part: str) -> None:
    """Colours keep their places for any chroma subsampling and any image size."""
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    picture = np.stack([pixels(*size, 1, seed=n) for n in range(3)], -1) if min(size) < 12 else photo(*size)
    picture = cv2.GaussianBlur(picture, (31, 31), 0)
    options = cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor, cv2.IMWRITE_JPEG_QUALITY, 98
    data = with_exif(encode("jpg", picture, *options), tiff(turned))
    upright = np.rot90(decode(data), -1) if turned == 6 else decode(data)
    same = ReencodeOptions(recompress="always", quality=98, orient=True)(data)
    assert_plain(same, upright.shape)
    assert psnr(decode(same), upright) > 36
    reencode = ReencodeOptions(resize_shorter=max(1, min(size) * 2 // 3), orient=True)
    wanted = cv2.resize(upright, reencode.size_of(*upright.shape[:2])[::-1], interpolation=cv2.INTER_AREA)
    assert psnr(decode(reencode(data)), wanted) > 34


@pytest.mark.parametrize(
    ("channels", "sampling"), [(1, "420"), (3, "411"), (3, "420"), (3, "422"), (3, "440"), (3, "444")]
)
def test_a_progressive_jpeg_keeps_every_pixel(channels: int, sampling: str, part: str) -> None:
    """It is transcoded without loss, with its chroma subsampling; without the compiled part it is re-encoded."""
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    options = cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor
    data = encode("jpg", photo(123, 77, channels), *options)
    made = ReencodeOptions(recompress="if-needed")(data)
    assert jpeg_coding(made).baseline
    assert ReencodeOptions(recompress="if-needed")(made) is made
    if part == "compiled":
        np.testing.assert_array_equal(decode(made), decode(data))
    else:
        assert psnr(decode(made), decode(data)) > 35


@pytest.mark.parametrize("name", FORMS)
def test_unusual_jpegs_become_baseline_if_needed(name: str, part: str) -> None:
    """Unusual JPEGs become baseline, without loss where their coefficients can be kept."""
    data = FORMS[name]
    assert not jpeg_coding(data).baseline
    made = ReencodeOptions(recompress="if-needed", quality=98)(data)
    assert jpeg_coding(made).baseline
    if part == "compiled" and name not in ("rgb", "coarse"):
        np.testing.assert_array_equal(decode(made), decode(data))
    else:
        assert psnr(decode(made), decode(data)) > 35
        assert_plain(made, (11, 13, 3))


def test_a_cmyk_jpeg_becomes_ycbcr(part: str) -> None:
    """A CMYK JPEG becomes YCbCr, because hardware does not decode CMYK."""
    made = ReencodeOptions(recompress="if-needed", quality=100)(CMYK_JPEG)
    assert_plain(made, (2, 3, 3))
    assert psnr(decode(made), decode(CMYK_JPEG)) > 30
    assert_plain(ReencodeOptions(resize_shorter=1)(CMYK_JPEG), (1, 2, 3))


def test_extended_is_baseline_by_another_name(part: str) -> None:
    """An extended JPEG with eight bits and at most two tables of a kind counts as baseline."""
    data = of(jpeg(20, 30), process=1)
    made = ReencodeOptions(recompress="if-needed", quality=98)(data)
    assert jpeg_coding(made).baseline
    assert psnr(decode(made), decode(data)) > (90 if part == "compiled" else 38)


TURNS = {
    1: lambda p: p,
    2: lambda p: cv2.flip(p, 1),
    3: lambda p: cv2.rotate(p, cv2.ROTATE_180),
    4: lambda p: cv2.flip(p, 0),
    5: cv2.transpose,
    6: lambda p: cv2.rotate(p, cv2.ROTATE_90_CLOCKWISE),
    7: lambda p: cv2.rotate(cv2.transpose(p), cv2.ROTATE_180),
    8: lambda p: cv2.rotate(p, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


@pytest.mark.parametrize("turned", TURNS)
@pytest.mark.parametrize("size", [(60, 80), (61, 83), (9, 2)])
def test_an_orientation_is_applied_to_the_pixels(turned: int, size: tuple[int, int], part: str) -> None:
    """`orient` turns the pixels upright as OpenCV does and removes the orientation tag."""
    picture = photo(*size, 3 if min(size) > 2 else 1)  # the colours of so few pixels would be averaged away
    data = with_exif(encode("jpg", picture, cv2.IMWRITE_JPEG_QUALITY, 98), tiff(turned))
    upright = decode(data, cv2.IMREAD_ANYCOLOR)
    np.testing.assert_array_equal(upright, TURNS[turned](decode(data)))
    made = ReencodeOptions(orient=True, quality=98)(data)
    if turned == 1:
        assert made is data
    else:
        assert_plain(made, upright.shape)
        assert orientation(made) == 1
        assert psnr(decode(made), upright) > 38
    reencode = ReencodeOptions(resize_shorter=max(1, min(size) * 2 // 3), quality=98, orient=True)
    wanted = cv2.resize(upright, reencode.size_of(*upright.shape[:2])[::-1], interpolation=cv2.INTER_AREA)
    assert psnr(decode(reencode(data)), wanted) > 38


SMALLER: dict[str, Any] = {"resize_shorter": 20}
ANEW: dict[str, Any] = {"recompress": "always"}
PLAIN: dict[str, Any] = {"recompress": "if-needed"}


@pytest.mark.parametrize("turned", range(2, 9))
@pytest.mark.parametrize(
    ("kind", "options", "coding", "mask"),
    [
        ("jpg", SMALLER, (), False),
        ("jpg", ANEW, (), False),
        ("jpg", PLAIN, (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), False),
        ("png", SMALLER, (), False),
        ("png", SMALLER, (), True),
        ("png", ANEW, (), False),
        ("webp", SMALLER, (cv2.IMWRITE_WEBP_QUALITY, 95), False),
    ],
)
def test_without_orient_images_stay_as_stored(
    kind: str, options: dict[str, Any], coding: tuple[int, ...], mask: bool, turned: int, part: str
) -> None:
    """Whatever is re-encoded keeps its orientation, as what isn't does: the same pixels, turned by the same tag."""
    plain = encode(kind, photo(60, 80, 1 if mask else 3), *coding)
    data, reencode = with_exif(plain, tiff(turned)), ReencodeOptions(**options)
    made = reencode(data, mask=mask)
    assert (orientation(made), probe(made).format) == (turned, "png" if kind == "png" and options != ANEW else "jpeg")
    np.testing.assert_array_equal(decode(made), decode(reencode(plain, mask=mask)))
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(made)))
    assert upright.size == (decode(made).shape[:2] if turned >= 5 else decode(made).shape[1::-1])
    assert ReencodeOptions(recompress="if-needed")(made) is made


@pytest.mark.parametrize(("kind", "turned"), [("png", 6), ("webp", 6), ("bmp", 1)])
def test_other_formats(kind: str, turned: int) -> None:
    """Where other formats are turned and re-encoded, the new size counts; most become JPEGs."""
    plain = encode(kind, photo(60, 80), *((cv2.IMWRITE_WEBP_QUALITY, 95) if kind == "webp" else ()))
    data = plain if turned == 1 else with_exif(plain, tiff(turned))
    upright = TURNS[turned](decode(data))
    reencode = ReencodeOptions(max_pixels=600, orient=True)
    wanted = cv2.resize(upright, reencode.size_of(*upright.shape[:2])[::-1], interpolation=cv2.INTER_AREA)
    assert psnr(decode(reencode(data)), wanted) > 34
    assert probe(reencode(data)).format == ("png" if kind == "png" else "jpeg")
    assert_plain(ReencodeOptions(recompress="always", orient=True)(data), upright.shape)


@pytest.mark.parametrize(
    "picture",
    [
        photo(60, 80),
        photo(60, 80, 1),
        photo(60, 80, 4),
        photo(60, 80).astype(np.uint16) * 257,
        photo(60, 80, 1).astype(np.uint16) * 257,
    ],
    ids=["color", "grey", "alpha", "color 16", "grey 16"],
)
def test_a_png_that_shrinks_stays_a_png(picture: NDArray[Any]) -> None:
    """A shrunk PNG keeps its format, channels and bit depth; `always` makes it a JPEG."""
    data = encode("png", picture)
    made = ReencodeOptions(resize_shorter=20, recompress="if-needed")(data)
    assert probe(made).format == "png"
    stored = decode(data, cv2.IMREAD_UNCHANGED)
    assert stored.dtype == picture.dtype
    wanted = cv2.resize(stored, (27, 20), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(decode(made, cv2.IMREAD_UNCHANGED), wanted)
    assert_plain(ReencodeOptions(recompress="always")(data), (*picture.shape[:2], 3)[: picture.ndim])


DAMAGED = {
    "cut within the scan": lambda data: data[: len(data) // 2] + b"\xff\xd9",
    "cut in the last rows": lambda data: data[:-60] + b"\xff\xd9",
    "an end in its midst": lambda data: data[: len(data) // 2] + b"\xff\xd9" + data[len(data) // 2 :],
}


@compiled
@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("how", DAMAGED)
def test_missing_pixels_are_a_bad_sample(how: str, progressive: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Missing pixels, which decoders paint grey with a warning on stderr, make a bad sample, and nothing is printed."""
    whole = encode("jpg", photo(300, 400), cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    data = DAMAGED[how](whole)
    probe(data)
    for options in ({"resize_shorter": 100}, ANEW, *([PLAIN] if progressive else [])):
        with pytest.raises(BadSample, match=r"the jpeg image is damaged: Corrupt JPEG data"):
            ReencodeOptions(**options)(data)
    assert ReencodeOptions(recompress="always")(whole)  # the next image is unaffected
    assert capfd.readouterr().err == ""


def test_bytes_before_the_end_are_no_damage(part: str) -> None:
    """Padding before the end marker, which some cameras write, is no damage."""
    whole = encode("jpg", photo(100, 80))
    padded = whole[:-2] + b"\0" * 50 + whole[-2:]
    made = ReencodeOptions(resize_shorter=50)(padded)
    assert made == ReencodeOptions(resize_shorter=50)(whole)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b"", {"resize_shorter": 8}, "empty"),
        (b"no image at all", {"resize_shorter": 8}, "not a JPEG"),
        (jpeg(90, 70)[:500], {"resize_shorter": 8}, "cut short"),
        (spoiled(jpeg(90, 70)), {"resize_shorter": 8}, "does not decode"),
        (png(90, 70)[:60] + png(90, 70)[-12:], {"resize_shorter": 8}, "does not decode"),
        (struct.pack("<2sIHHIIHHHH", b"BM", 26, 0, 0, 26, 12, 0, 9, 1, 24), {"resize_shorter": 8}, "no pixels"),
        (of(jpeg(20, 30), process=3), {"recompress": "if-needed"}, "does not decode"),  # lossless
        (of(jpeg(20, 30), bits=12), {"recompress": "if-needed"}, "does not decode"),
        (encode("png", np.zeros((1, 65501), np.uint8)), {"recompress": "always"}, "a JPEG has at most 65500 pixels a"),
    ],
)
def test_what_cannot_be_decoded_is_a_bad_sample(data: bytes, options: dict[str, Any], message: str, part: str) -> None:
    """A file that does not decode, or cannot become a JPEG, is a bad sample where it must be re-encoded."""
    with pytest.raises(BadSample, match=message):
        ReencodeOptions(**options)(data)


@compiled
def test_unsent_bits_are_not_transcoded() -> None:
    """Decoders smooth a progressive JPEG whose bits are unsent: it is encoded anew, as they show it."""
    data = unsent(encode("jpg", photo(123, 77), cv2.IMWRITE_JPEG_PROGRESSIVE, 1))
    assert recode.transcode(data) is None
    made = ReencodeOptions(recompress="if-needed", quality=98)(data)
    assert_plain(made, (123, 77, 3))
    assert psnr(decode(made), decode(data)) > 35


def sized(data: bytes, height: int, width: int) -> bytes:
    """A JPEG whose header claims another size."""
    frame = re.search(rb"\xff[\xc0\xc2]", data)
    assert frame
    return data[: frame.start() + 5] + struct.pack(">HH", height, width) + data[frame.start() + 9 :]


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("recompress", ["never", "if-needed", "always"])
def test_a_header_that_claims_too_much(progressive: bool, recompress: Any, part: str) -> None:
    """A header that claims too large an image is refused before any memory is allocated."""
    data = sized(jpeg(90, 70, progressive=progressive), 65500, 65500)
    with pytest.raises(BadSample, match=f"claims 65500 x 65500 pixels, .* max_image_pixels allows {1 << 28}"):
        ReencodeOptions(resize_shorter=64, recompress=recompress)(data)
    with pytest.raises(BadSample, match="max_image_pixels allows 4000"):
        ReencodeOptions(resize_shorter=64, recompress=recompress, max_image_pixels=4000)(data)


@compiled
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_bytes_do_no_harm(progressive: bool, changes: list[tuple[int, int]]) -> None:
    """For any damaged JPEG the compiled part makes an image, leaves it to the caller, or refuses it."""
    data = bytearray(jpeg(40, 50, progressive=progressive))
    for place, value in changes:
        data[place % len(data)] = value
    for make in (recode.transcode, lambda data: recode.recode(data, (21, 13), (True, False, True), 90)):
        try:
            made = make(bytes(data))
        except BadSample:
            continue
        assert made is None or probe(made).format == "jpeg"


@compiled
def test_nothing_of_one_file_gets_into_the_next() -> None:
    """Tables of one JPEG do not leak into the next; a file without Huffman tables uses those of Motion JPEG."""
    data = encode("jpg", photo(200, 150))
    reencode = ReencodeOptions(resize_shorter=80)
    first = reencode(data)
    for name in FORMS:
        ReencodeOptions(recompress="if-needed")(FORMS[name])
        assert reencode(data) == first
        assert reencode(without(data, DHT)) == first


def foreign(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    """An image of a format that is not stored."""
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    made = Image.fromarray(pixels).convert("L") if mode.startswith("I") else Image.fromarray(pixels)
    made = Image.fromarray(np.asarray(made, np.uint16) * 257) if mode.startswith("I") else made.convert(mode)
    if mode == "RGBA":
        made.putalpha(128)
    made.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "mode", "format"),
    [
        ("GIF", "P", "png"),
        ("TIFF", "RGB", "png"),
        ("TIFF", "I;16", "png"),
        ("TIFF", "CMYK", "png"),
        ("PPM", "RGB", "png"),
        ("PPM", "L", "png"),
        ("AVIF", "RGB", "jpeg"),
        ("AVIF", "RGBA", "png"),
    ],
)
def test_formats_that_are_not_stored(kind: str, mode: str, format: str) -> None:
    """GIF, TIFF, PPM and AVIF are re-encoded: lossless ones as PNG with the same pixels, lossy ones as JPEG."""
    if kind == "AVIF" and ".avif" not in Image.registered_extensions():
        pytest.skip("this Pillow has no AVIF")
    data, counts = foreign(kind, mode), Counter[str]()
    made = ReencodeOptions(recompress="foreign")(data, stayed=counts)
    assert (probe(made).format, counts[f"from {kind}"], counts["first of several frames"]) == (format, 1, 0)
    before, after = (Image.open(io.BytesIO(one)) for one in (data, made))
    if format == "png":
        mode = "I;16" if mode == "I;16" else "RGBA" if mode == "RGBA" else "RGB"
        before, after = (one if mode == "I;16" else one.convert(mode) for one in (before, after))
        np.testing.assert_array_equal(before, after)
    with pytest.raises(BadSample, match=f"image but {kind}, which recompress='foreign' re-encodes"):
        probe(data)
    assert ReencodeOptions(recompress="foreign")(made) == made


def test_frames_tags_and_limits_of_other_formats() -> None:
    """The first of several frames is taken, a tag stays a tag, a mask keeps its numbers, and limits hold."""
    counts = Counter[str]()
    frames = [Image.new("L", (8, 8), n * 50) for n in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "TIFF", save_all=True, append_images=frames[1:])
    made = ReencodeOptions(recompress="foreign")(file.getvalue(), stayed=counts)
    assert (np.asarray(Image.open(io.BytesIO(made))).max(), counts["first of several frames"]) == (0, 1)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = foreign("TIFF", exif=exif)
    upright = ReencodeOptions(recompress="foreign")(turned)  # Pillow turns the pixels of TIFFs
    assert (orientation(upright), probe(upright).width) == (1, 20)
    numbers = np.arange(64, dtype=np.uint8).reshape(8, 8)
    palette = Image.fromarray(numbers, "P")
    palette.putpalette(bytes(range(192)))
    file = io.BytesIO()
    palette.save(file, "GIF")
    mask = ReencodeOptions(recompress="foreign")(file.getvalue(), mask=True)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask))), numbers)
    with pytest.raises(BadSample, match="the GIF image claims 64 pixels: max_image_pixels allows 63"):
        ReencodeOptions(recompress="foreign", max_image_pixels=63)(file.getvalue())
    with pytest.raises(BadSample, match="the TIFF image cannot be read, Pillow says"):
        ReencodeOptions(recompress="foreign")(turned[:60])
    with pytest.raises(BadSample, match="but HEIC, which Pillow does not read"):
        ReencodeOptions(recompress="foreign")(b"\0\0\0\x18ftypheic" + bytes(20))


def test_folders_of_other_formats(tmp_path: Path) -> None:
    """With recompress=foreign, a folder of photos and GIFs becomes a dataset, and a note counts them."""
    images = {"a.jpg": jpeg(3), "b.gif": foreign("GIF", "P"), "c.tif": foreign("TIFF")}
    folder = write_files(tmp_path / "in", images)
    told: list[str] = []
    options: dict[str, Any] = {"converter": "imagefolder", "converter_options": {"extensions": "jpg,gif,tif"}}
    with pytest.raises(BadSample, match=r"but GIF, which recompress='foreign' re-encodes"):
        shardio.convert(folder, tmp_path / "bad", **options, tell=told.append)
    made = shardio.convert(folder, tmp_path / "out", recompress="foreign", **options, tell=told.append)
    assert "recompress: re-encoded 1 image of GIF, 1 image of TIFF" in told
    assert [probe(one["image"]).format for one in shardio.open(made.path)] == ["jpeg", "png", "png"]
