"""The CPU engine: every format, decoder and transform gives correct pixels."""

import subprocess
import sys

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from shardio import native
from shardio.engines.cpu import BadImage, CpuEngine, Decoder
from shardio.transforms import (
    CenterCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToFloat,
    Transform,
)
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Interpolation

COMPILED = pytest.param("turbo", marks=pytest.mark.skipif(native.library() is None, reason="not compiled here"))
DECODERS = [COMPILED, "nvimgcodec", "opencv"]
SIZES = np.full((2, 2), (60, 80), np.int32)


def photo(height: int = 60, width: int = 80, channels: int = 3) -> NDArray[np.uint8]:
    """A smooth image without symmetry between left and right or top and bottom."""
    y, x = np.mgrid[:height, :width]
    planes = [255 * x / width, 255 * y / height, 255 * (1 - x / width)][:channels]
    return np.stack(planes, axis=2).astype(np.uint8)


def encode(pixels: NDArray[np.generic], suffix: str, *options: int) -> bytes:
    """Encode RGB, RGBA or grey pixels."""
    swapped = (
        pixels if pixels.ndim == 2 or pixels.shape[2] == 1 else pixels[:, :, [2, 1, 0, *range(3, pixels.shape[2])]]
    )
    return cv2.imencode(suffix, np.ascontiguousarray(swapped), options)[1].tobytes()


def run(
    data: list[bytes], transforms: list[Transform], *, channels: int = 3, decoder: Decoder = "auto", epoch: int = 0
) -> list[NDArray[np.generic]]:
    """Process some files with the engine: as one batch if their sizes are known, else one by one."""
    recipe = Recipe.of(transforms, channels=channels, size=None)
    engine = CpuEngine(recipe, channels=channels, decoder=decoder)
    shapes = [cv2.imdecode(np.frombuffer(d, np.uint8), cv2.IMREAD_UNCHANGED).shape[:2] for d in data]
    sizes = np.array(shapes, np.int32)
    steps = recipe.steps(sizes, seed=1, epoch=epoch, indices=np.arange(len(data)))
    if recipe.size is None:
        return engine(data, sizes, steps, None) or []
    out = np.full((len(data), *engine.output_format.shape(recipe.size)), 123, engine.output_format.dtype)
    engine(data, sizes, steps, out)
    return list(out)


RGBA = np.dstack([photo(), np.full((60, 80), 200, np.uint8)])
FINE = (
    *(cv2.IMWRITE_JPEG_QUALITY, 98),
    *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
)
GREY16 = (photo()[:, :, 0].astype(np.uint16) << 8) + 7


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("data", "expected", "tolerance"),
    [
        (encode(photo(), ".jpg", *FINE), photo(), 4),
        (encode(photo(), ".jpg", *FINE, cv2.IMWRITE_JPEG_PROGRESSIVE, 1), photo(), 4),
        (encode(photo()[:, :, 0], ".jpg"), photo()[:, :, [0, 0, 0]], 4),  # grey is repeated
        (encode(photo(), ".png"), photo(), 0),
        (encode(photo()[:, :, 0], ".png"), photo()[:, :, [0, 0, 0]], 0),
        (encode(RGBA, ".png"), photo(), 0),  # alpha is dropped
        (encode(GREY16, ".png"), photo()[:, :, [0, 0, 0]], 1),  # the upper 8 bits of 16
        (encode(photo(), ".webp", cv2.IMWRITE_WEBP_QUALITY, 101), photo(), 0),  # a quality of 101 is lossless
        (encode(photo(), ".bmp"), photo(), 0),
    ],
    ids=["jpeg", "progressive", "grey-jpeg", "png", "grey-png", "rgba-png", "png16", "webp", "bmp"],
)
def test_every_format_comes_out_as_rgb(
    decoder: Decoder, data: bytes, expected: NDArray[np.uint8], tolerance: int
) -> None:
    """A three-channel field delivers RGB for any file."""
    (found,) = run([data], [], decoder=decoder)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= tolerance


def test_a_palette_png_comes_out_as_rgb() -> None:
    """A PNG with a palette of 256 colours, which OpenCV cannot write, is decoded to the palette's colours."""
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    palette = np.random.default_rng(0).integers(0, 256, (4, 3), dtype=np.uint8)
    pixels = np.array([[0, 1, 2], [3, 2, 1]], np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", 3, 2, 8, 3, 0, 0, 0)
    parts = [
        chunk(b"IHDR", header),
        chunk(b"PLTE", palette.tobytes()),
        chunk(b"IDAT", zlib.compress(rows)),
        chunk(b"IEND", b""),
    ]
    (found,) = run([b"\x89PNG\r\n\x1a\n" + b"".join(parts)], [])
    assert np.array_equal(found, palette[pixels])


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp"])
def test_a_grey_field_delivers_one_channel(decoder: Decoder, suffix: str) -> None:
    """A one-channel field delivers the brightness of colour files, HWC with C = 1."""
    (found,) = run([encode(photo(), suffix)], [], channels=1, decoder=decoder)
    weights = photo() @ np.array([0.299, 0.587, 0.114])
    assert found.shape == (60, 80, 1)
    assert np.abs(found[:, :, 0] - weights).max() < 6


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_a_crop_is_that_part_of_the_image(decoder: Decoder, channels: int, suffix: str) -> None:
    """Decoding only a crop and resizing it equals decoding the image, cropping and resizing."""
    data = encode(photo(200, 300), suffix, *([cv2.IMWRITE_JPEG_QUALITY, 97] if suffix == ".jpg" else []))
    transforms: list[Transform] = [RandomResizedCrop(64), RandomHorizontalFlip()]
    recipe = Recipe.of(transforms, channels=channels, size=None)
    crop, _, flip = recipe.steps(np.full((4, 2), (200, 300), np.int32), seed=1, epoch=0, indices=np.arange(4))
    (whole,) = run([data], [], channels=channels, decoder=decoder)
    found = run([data] * 4, transforms, channels=channels, decoder=decoder)
    assert 0 < flip.mask.sum() < 4  # both cases occur
    for image, (top, left, height, width), flipped in zip(found, crop.boxes, flip.mask, strict=True):
        expected = cv2.resize(whole[top : top + height, left : left + width], (64, 64)).reshape(64, 64, channels)
        expected = expected[:, ::-1] if flipped else expected
        # Chroma at the edge of a region is interpolated from fewer neighbours.
        assert np.abs(image.astype(int) - expected).mean() < 1.5


def test_both_decoders_choose_the_same_crops() -> None:
    """OpenCV and nvImageCodec give the same crops, whose pixels differ by decoding noise only."""
    data = [encode(photo(150 + 10 * n, 200), ".jpg", cv2.IMWRITE_JPEG_QUALITY, 97) for n in range(6)]
    transforms: list[Transform] = [RandomResizedCrop(32), RandomHorizontalFlip()]
    for a, b in zip(run(data, transforms, decoder="nvimgcodec"), run(data, transforms, decoder="opencv"), strict=True):
        assert np.abs(a.astype(int) - b.astype(int)).mean() < 2


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        ([Resize(30)], lambda image: cv2.resize(image, (40, 30))),
        ([CenterCrop(20)], lambda image: image[20:40, 30:50]),
        ([Resize(30), CenterCrop(20)], lambda image: cv2.resize(image, (40, 30))[5:25, 10:30]),
        ([CenterCrop(100)], lambda image: cv2.copyMakeBorder(image, 20, 20, 10, 10, cv2.BORDER_CONSTANT)),
        ([RandomHorizontalFlip(1.0)], lambda image: image[:, ::-1]),
        ([RandomHorizontalFlip(1.0), RandomHorizontalFlip(1.0)], lambda image: image),
        ([Resize((50, 50)), CenterCrop((50, 50))], lambda image: cv2.resize(image, (50, 50))),
        (
            [Resize((40, 40)), CenterCrop(20), Resize((40, 40))],
            lambda i: cv2.resize(cv2.resize(i, (40, 40))[10:30, 10:30], (40, 40)),
        ),
        (
            [RandomHorizontalFlip(1.0), Resize((8, 8), "nearest")],
            lambda i: cv2.resize(i[:, ::-1].copy(), (8, 8), interpolation=0),
        ),
        # enlarging needs no filter
        ([Resize((90, 90), antialias=True)], lambda image: cv2.resize(image, (90, 90))),
        ([Resize((90, 90), "bicubic")], lambda image: cv2.resize(image, (90, 90), interpolation=cv2.INTER_CUBIC)),
    ],
    ids=[
        "resize",
        "center",
        "resize-center",
        "border",
        "flip",
        "flip-flip",
        "same-size",
        "again",
        "nearest",
        "antialias",
        "cubic",
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("decoder", "suffix"), [("opencv", ".png"), pytest.param(*COMPILED.values, ".jpg", marks=COMPILED.marks)]
)
def test_transforms_one_after_the_other(
    transforms: list[Transform], expected: object, decoder: Decoder, suffix: str, channels: int
) -> None:
    """A list of transforms applies them in order, compiled or not."""
    data = encode(photo(), suffix, *(FINE if suffix == ".jpg" else ()))
    (whole,) = run([data], [], decoder=decoder, channels=channels)
    (found,) = run([data], transforms, decoder=decoder, channels=channels)
    wanted = expected(whole).reshape(*expected(whole).shape[:2], channels)  # type: ignore[operator]
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
def test_floats_are_channels_first_and_normalized(channels: int) -> None:
    """ToFloat gives x / 255 as CHW float32, and Normalize (x / 255 - mean) / std by channel."""
    data = encode(photo(), ".png")
    (plain,) = run([data], [], channels=channels)
    mean, std = (0.5, 0.25, 0.75)[:channels], (0.5, 0.2, 0.1)[:channels]
    for size in ([], [Resize((60, 80))]):  # a list if sizes are unknown, else a batch
        (floats,) = run([data], [*size, ToFloat()], channels=channels)
        (normal,) = run([data], [*size, Normalize(mean, std)], channels=channels)
        assert floats.dtype == normal.dtype == np.float32
        assert floats == pytest.approx(plain.transpose(2, 0, 1) / 255, abs=1e-6)
        wanted = (plain.transpose(2, 0, 1) / 255 - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
        assert normal == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"this is text" * 20, "not a JPEG"),
        (encode(photo(), ".jpg")[:400], "cut short"),
        (encode(photo(), ".png")[:100], "cut short"),
    ],
    ids=["empty", "text", "jpeg", "png"],
)
def test_bad_images_are_named(decoder: Decoder, data: bytes, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """An image that does not decode is reported with its position in the batch, and never delivered as grey."""
    good = encode(photo(), ".jpg")
    engine = CpuEngine(Recipe.of([], channels=3, size=(60, 80)), channels=3, decoder=decoder)
    with pytest.raises(BadImage, match=message) as caught:
        engine([good, data], SIZES, (), np.empty((2, 60, 80, 3), np.uint8))
    assert caught.value.place == 1


def test_an_image_of_another_size_than_the_batch_is_refused() -> None:
    """With a common image size, an image of another size is bad."""
    engine = CpuEngine(Recipe.of([], channels=3, size=(60, 80)), channels=3)
    with pytest.raises(BadImage, match="the image is 30 x 40 pixels, 60 x 80 were stored"):
        engine([encode(photo(30, 40), ".png")], SIZES[:1], (), np.empty((1, 60, 80, 3), np.uint8))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_antialias_leaves_no_pattern(interpolation: Interpolation, channels: int) -> None:
    """A fine checkerboard shrinks to uniform grey with antialias, and to a coarser pattern without."""
    board = np.indices((64, 80)).sum(0) % 2 * 255
    data = encode(np.dstack([board.astype(np.uint8)] * 3), ".png")
    (smooth,) = run([data], [Resize((19, 27), interpolation, antialias=True)], channels=channels)
    (rough,) = run([data], [Resize((19, 27), interpolation)], channels=channels)
    assert smooth.shape == rough.shape == (19, 27, channels)
    assert np.abs(smooth[2:-2, 2:-2].astype(int) - 127).max() <= 12
    assert rough.std() > 3 * smooth[2:-2, 2:-2].std()


def test_antialias_keeps_the_middle_in_place() -> None:
    """The filter is centred: shrinking a gradient by four gives the mean of each 4 x 4 block."""
    (found,) = run([encode(photo(), ".png")], [Resize((15, 20), antialias=True)])
    means = photo().reshape(15, 4, 20, 4, 3).mean((1, 3))
    assert np.abs(found[1:-1, 1:-1] - means[1:-1, 1:-1]).max() <= 1


def test_a_missing_decoder_says_how_to_get_it() -> None:
    """Without nvImageCodec, `auto` uses OpenCV, and a request by name says what to install."""
    code = """
import sys
sys.modules["nvidia"] = None
from shardio.engines.cpu import CpuEngine
from shardio.transforms.steps import Interpolation
from shardio.errors import MissingDependency
from shardio.transforms.recipe import Recipe
CpuEngine(Recipe.of([], channels=3, size=None), channels=3)
try:
    CpuEngine(Recipe.of([], channels=3, size=None), channels=3, decoder="nvimgcodec")
except MissingDependency as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the decoder 'nvimgcodec' needs nvidia.nvimgcodec: pip install 'shardio-data[cpu]'\n"
