"""Pixels are Pillow's, bit for bit: of any file, crop, filter and size, compiled or not; and bad images."""

import base64
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from _builders import resized
from _datasets import packed
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps, PngImagePlugin

import shardio
from shardio import World, native
from shardio.engines.cpu import CpuEngine, make_images
from shardio.engines.fused_images import FusedImages
from shardio.engines.jpeg_headers import orientations_of
from shardio.engines.resizing import resize
from shardio.errors import BadSample
from shardio.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    ToFloat,
    Transform,
)
from shardio.transforms.fuse import FusedSteps
from shardio.transforms.random_generator import RandomKeys
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Crop, Flip, Interpolation, Scale, Step

FILTERS: tuple[Interpolation, ...] = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
compiled_only = pytest.mark.skipif(native.library() is None, reason="not compiled here")
SAMPLINGS = [
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
]


REFERENCE = json.loads((Path(__file__).parent / "reference" / "torchvision_pil.json").read_text())


def noise(height: int, width: int, seed: int, grain: int = 4) -> NDArray[np.uint8]:
    """Smooth noise, in which a wrong pixel or a shift shows."""
    small = np.random.default_rng(seed).integers(0, 256, (height // grain + 1, width // grain + 1, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def encode(pixels: NDArray[np.uint8], kind: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def reference(
    data: bytes, channels: int, steps: tuple[Step, ...], row: int, *, upright: bool = False
) -> NDArray[np.uint8]:
    """Carry out steps with Pillow, as torchvision's transforms of PIL images do."""
    opened: Image.Image = Image.open(io.BytesIO(data))
    image = (ImageOps.exif_transpose(opened) if upright else opened).convert("RGB" if channels == 3 else "L")
    for step in steps:
        match step:
            case Crop(boxes):
                top, left, height, width = boxes[row].tolist()
                fill = tuple(np.broadcast_to(step.fill or 0, channels).tolist())
                canvas = Image.new(image.mode, (width, height), fill if channels > 1 else fill[0])
                canvas.paste(image, (-left, -top))
                image = canvas
            case Scale(sizes, interpolation, _):
                height, width = sizes[row].tolist()
                image = resized(image, (height, width), interpolation)
            case Flip(mask, vertical) if mask[row]:
                flip = Image.Transpose.FLIP_TOP_BOTTOM if vertical else Image.Transpose.FLIP_LEFT_RIGHT
                image = image.transpose(flip)
    return np.asarray(image).reshape(image.height, image.width, channels)


def made_by_cpu(
    files: list[bytes],
    sizes: NDArray[np.int32],
    transforms: list[Transform],
    channels: int,
    orientations: NDArray[np.uint8] | None = None,
    steps: tuple[Step, ...] | None = None,
) -> tuple[Any, tuple[Step, ...], Recipe]:
    """Return the CPU engine's images of files, as one batch if they get one size, the steps taken, and the recipe."""
    recipe = Recipe.of(transforms, channels=channels, size=None)
    engine, out = CpuEngine(recipe, channels=channels), None
    steps = steps or recipe.steps(sizes, RandomKeys(1, 0, np.arange(len(files))))
    if recipe.size is not None:
        out = np.empty((len(files), *engine.output_format.shape(recipe.size)), engine.output_format.dtype)
    made = engine(files, sizes, steps, out, orientations)
    return made if out is None else out, steps, recipe


def in_floats(pixels: NDArray[np.uint8], recipe: Recipe) -> NDArray[np.float32]:
    """Convert pixels to floats as torchvision's ToDtype and Normalize do, operation by operation."""
    mean, std = torch.from_numpy(recipe.normalization.T.copy())[:, :, None, None]
    floats = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).to(torch.float32).mul_(1.0 / 255)
    made: NDArray[np.float32] = floats.sub(mean).div_(std).numpy()
    return made


@st.composite
def resizes(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int]]:
    """A size, and another: larger, smaller, much smaller in one direction, or the same."""
    sides = st.one_of(st.integers(1, 9), st.integers(1, 160))
    size = draw(sides), draw(sides)
    return size, (draw(st.one_of(sides, st.just(size[0]))), draw(st.one_of(sides, st.just(size[1]))))


@compiled_only
@settings(max_examples=400, deadline=None)
@given(resizes(), st.sampled_from(FILTERS), st.sampled_from([1, 3]), st.booleans(), st.data())
def test_any_crop_filter_and_size(
    sizes: tuple[tuple[int, int], tuple[int, int]], how: Interpolation, channels: int, flip: bool, data: st.DataObject
) -> None:
    """A region of an image, resized, of which a window is kept and perhaps mirrored, has Pillow's bytes.

    The window may extend beyond the resized region, as that of a crop with padding does: it is black there.
    """
    (height, width), size = sizes
    margins = [data.draw(st.integers(0, 20)) for _ in range(4)]
    seed = data.draw(st.integers(0, 2**32 - 1))
    shape = height + margins[0] + margins[1], width + margins[2] + margins[3], channels
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    box = [margins[0], margins[2], height, width]
    first = [data.draw(st.integers(-6, side - 1)) for side in size]
    kept = [data.draw(st.integers(max(1, 1 - at), side - at + 6)) for side, at in zip(size, first, strict=True)]
    rows = (np.array([row], np.int32) for row in (shape[:2], box, size, first, kept))
    guarded = np.full((kept[0] * kept[1] * channels + 64,), 77, np.uint8)
    out = guarded[32:-32].reshape(1, *kept, channels)
    assert FusedImages(channels).resize([image], FusedSteps(*rows, np.array([flip]), how), out) == []
    part = image[box[0] : box[0] + height, box[1] : box[1] + width]
    picture = Image.fromarray(part if channels == 3 else part[:, :, 0])
    whole = resized(picture, size, how)
    window = whole.crop((first[1], first[0], first[1] + kept[1], first[0] + kept[0]))
    wanted = np.asarray(window).reshape(*kept, channels)
    assert np.array_equal(out[0], wanted[:, ::-1] if flip else wanted)
    assert (guarded[:32] == 77).all()
    assert (guarded[-32:] == 77).all()


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("part")
def test_far_smaller_and_far_larger(interpolation: Interpolation, channels: int) -> None:
    """Steep resizes, whose filters span hundreds of pixels, have Pillow's bytes."""
    image = np.random.default_rng(5).integers(0, 256, (700, 900, channels), dtype=np.uint8)
    for size in ((3, 5), (1, 1), (700, 2), (2, 900), (31, 900), (1400, 30)):
        picture = Image.fromarray(image if channels == 3 else image[:, :, 0])
        wanted = np.asarray(resized(picture, size, interpolation))
        assert np.array_equal(resize(image, size, interpolation, True), wanted.reshape(*size, channels))


@compiled_only
@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("channels", [1, 3])
def test_crops_of_jpegs(sampling: int, progressive: int, restarts: int, channels: int) -> None:
    """A region of a JPEG, decoded alone, has the pixels of the whole file, down to one column at any edge."""
    rng = np.random.default_rng([sampling, progressive, restarts])
    images, files = FusedImages(channels), []
    for number in range(12):
        height, width = rng.integers(1, 40 if number % 2 else 180, 2)
        options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
        options += [cv2.IMWRITE_JPEG_RST_INTERVAL, restarts, cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(30, 97))]
        files.append(cv2.imencode(".jpg", noise(int(height), int(width), number, 2), options)[1].tobytes())
    for data in files:
        image = Image.open(io.BytesIO(data)).convert("RGB" if channels == 3 else "L")
        whole = np.asarray(image).reshape(image.height, image.width, channels)
        for number in range(20):
            height, width = (
                int(rng.integers(1, (side if number % 2 else min(side, 4)) + 1)) for side in whole.shape[:2]
            )
            top, left = int(rng.integers(whole.shape[0] - height + 1)), int(rng.integers(whole.shape[1] - width + 1))
            values = (whole.shape[:2], (top, left, height, width), (height, width), (0, 0), (height, width))
            rows = (np.array([row], np.int32) for row in values)
            out = np.empty((1, height, width, channels), np.uint8)
            fused = FusedSteps(*rows, np.zeros(1, np.bool_))
            assert images.make([data], [(images, fused, out)], None, encoded=True) == [{}]
            wanted = whole[top : top + height, left : left + width]
            assert np.array_equal(out[0], wanted), (values, np.abs(out[0].astype(int) - wanted).max())


def odd_png(mode: str, *, seed: int, chunks: dict[bytes, bytes] | None = None, **options: Any) -> bytes:
    info = PngImagePlugin.PngInfo()
    for name, content in (chunks or {}).items():
        info.add(name, content)
    return encode(noise(90, 120, seed), "PNG", mode, pnginfo=info, **options)


FILES = {
    "jpeg": encode(noise(90, 120, 1), "JPEG"),
    "progressive jpeg": encode(noise(90, 120, 2), "JPEG", progressive=True),
    "jpeg 4:4:4": encode(noise(90, 120, 3), "JPEG", subsampling=0),
    "grey jpeg": encode(noise(90, 120, 4), "JPEG", "L"),
    "cmyk jpeg": encode(noise(90, 120, 5), "JPEG", "CMYK"),
    "png": encode(noise(90, 120, 6), "PNG"),
    "grey png": encode(noise(90, 120, 7), "PNG", "L"),
    "grey png with alpha": encode(noise(90, 120, 8), "PNG", "LA"),
    "png with alpha": encode(np.dstack([noise(90, 120, 9), noise(90, 120, 10)[:, :, :1]]), "PNG", "RGBA"),
    "palette png": encode(noise(90, 120, 11), "PNG", "P"),
    "bilevel png": encode(noise(90, 120, 12), "PNG", "1"),
    "16-bit png": cv2.imencode(".png", noise(90, 120, 13)[:, :, 0].astype(np.uint16) * 257 + 3)[1].tobytes(),
    "16-bit rgb png": cv2.imencode(".png", noise(90, 120, 14).astype(np.uint16) * 257 + 3)[1].tobytes(),
    "webp": encode(noise(90, 120, 15), "WEBP"),
    "lossless webp": encode(noise(90, 120, 16), "WEBP", lossless=True),
    "bmp": encode(noise(90, 120, 17), "BMP"),
    # PNGs with chunks that some decoders apply to pixels.
    "png with a transparent colour": odd_png("RGB", seed=18, transparency=(10, 20, 30)),
    "grey png with a transparent level": odd_png("L", seed=19, transparency=128),
    "png with gamma": odd_png("RGB", seed=20, chunks={b"gAMA": (220000).to_bytes(4, "big")}),
    "grey png with gamma": odd_png("L", seed=21, chunks={b"gAMA": (30000).to_bytes(4, "big"), b"sBIT": b"\x05"}),
    "png with a background": odd_png("RGB", seed=22, chunks={b"bKGD": bytes(6)}),
    "palette png of 4 bits": odd_png("P", seed=23, bits=4),
    "bmp in grey": encode(noise(90, 120, 24), "BMP", "L"),
}
LISTS: dict[str, list[Transform]] = {
    "nothing": [],
    "training": [RandomResizedCrop(48), RandomHorizontalFlip()],
    "evaluation": [Resize(64), CenterCrop(56)],
    "shorter side": [Resize(50)],
    "odd sizes": [Resize((33, 71), "lanczos")],
    "border": [CenterCrop(130)],
    "crop": [RandomCrop(40, padding=6)],
    "padding": [RandomCrop((90, 120), padding=30), RandomHorizontalFlip()],
    "resize and border": [Resize(40), CenterCrop(48), CenterCrop(44)],
    "border of a crop": [CenterCrop(60), RandomCrop(70), RandomCrop(76)],
    "flip, then crop": [RandomHorizontalFlip(), RandomCrop(50), CenterCrop(45), RandomHorizontalFlip()],
    "flip first": [RandomHorizontalFlip(), Resize((40, 50))],
    "twice": [Resize((60, 60), "bicubic"), CenterCrop(50), Resize((20, 30), "box")],
    "vertical flip": [RandomResizedCrop(48), RandomVerticalFlip()],
    "both flips and a border": [RandomVerticalFlip(), RandomHorizontalFlip(), CenterCrop(130), RandomVerticalFlip()],
    "on a canvas": [RandomZoomOut(114, p=0.7), RandomVerticalFlip(), RandomHorizontalFlip()],
    "on a canvas, then resized": [RandomZoomOut(114), RandomCrop(100, padding=30), Resize((50, 60))],
    "scales": [ScaleJitter((80, 90), (0.3, 1.5)), RandomShortestSize([40, 50], max_size=60)],
}


@pytest.mark.parametrize("transforms", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("floats", [False, True], ids=["bytes", "floats"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("part")
def test_every_file_and_list(transforms: list[Transform], floats: bool, channels: int) -> None:
    """Files of all kinds have torchvision's pixels on Pillow through usual lists of transforms, as bytes and floats."""
    end: list[Transform] = [ToFloat(), Normalize((0.485, 0.456, 0.406)[:channels], (0.229, 0.224, 0.225)[:channels])]
    sizes = np.full((len(FILES), 2), (90, 120), np.int32)
    made, steps, recipe = made_by_cpu(list(FILES.values()), sizes, [*transforms, *(end if floats else [])], channels)
    for row, (name, data) in enumerate(FILES.items()):
        wanted: NDArray[Any] = reference(data, channels, steps, row)
        wanted = in_floats(wanted, recipe) if floats else wanted
        assert made[row].dtype == wanted.dtype
        assert np.array_equal(made[row], wanted), name


def steps_of(name: str, arguments: list[Any]) -> tuple[list[Transform], tuple[Step, ...] | None]:
    """Return the transforms of a case of the reference, or its steps where the case states their numbers."""
    match name, arguments:
        case "Resize", [target, how]:
            return [Resize(target if isinstance(target, int) else (target[0], target[1]), how)], None
        case "CenterCrop", [target]:
            return [CenterCrop(target)], None
        case "Resize, CenterCrop", [target, crop]:
            return [Resize(target), CenterCrop(crop)], None
        case "normalize", [mean, std]:
            return [ToFloat(), Normalize(tuple(mean), tuple(std))], None
        case "horizontal_flip", []:
            return [RandomHorizontalFlip(1.0)], None
        case "resized_crop", [box, target, how]:
            return [], (Crop(np.array([box], np.int32)), Scale(np.array([target], np.int32), how, True))
        case "crop", [box]:
            return [], (Crop(np.array([box], np.int32)),)
    raise ValueError(name)


@pytest.mark.parametrize("number", range(len(REFERENCE["files"])))
@pytest.mark.usefixtures("part")
def test_results_of_torchvision(number: int) -> None:
    """Transforms of torchvision on PIL images gave these bytes, wherever they round a size or a place."""
    data, cases = base64.b64decode(REFERENCE["files"][number]), [c for c in REFERENCE["cases"] if c["file"] == number]
    sizes = np.array([Image.open(io.BytesIO(data)).size[::-1]], np.int32)
    assert len(cases) > 30
    for case in cases:
        transforms, steps = steps_of(case["name"], case["arguments"])
        (found,), _, _ = made_by_cpu([data], sizes, transforms, 3, steps=steps)
        assert list(found.shape) == case["shape"], case
        assert zlib.crc32(np.ascontiguousarray(found).tobytes()) == case["crc"], case


def with_orientation(pixels: NDArray[np.uint8], kind: str, orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(pixels, kind, exif=exif.tobytes(), **options)


ROTATED = {
    (kind, orientation): with_orientation(noise(90, 121, orientation), kind, orientation)
    for kind, orientations in (("JPEG", range(1, 9)), ("PNG", (3, 6)), ("WEBP", (5, 8)))
    for orientation in orientations
}


@pytest.mark.parametrize("transforms", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("part")
def test_upright(transforms: list[Transform], channels: int) -> None:
    """With orientations, the pixels are those of `exif_transpose`, whatever part of an image is decoded."""
    files = list(ROTATED.values())
    orientations = orientations_of(files)
    assert orientations.tolist() == [orientation for _, orientation in ROTATED]
    sizes = np.array([(121, 90) if orientation >= 5 else (90, 121) for orientation in orientations], np.int32)
    made, steps, _ = made_by_cpu(files, sizes, transforms, channels, orientations)
    for row, (name, data) in enumerate(ROTATED.items()):
        assert np.array_equal(made[row], reference(data, channels, steps, row, upright=True)), name


@compiled_only
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_and_fast(orientation: int) -> None:
    """A gradient that the decoder shrinks and the engine turns keeps its values to within 4 of 255."""
    y, x = np.mgrid[:403, :611]
    image = np.stack([255 * x / 611, 255 * y / 403, 255 - 255 * x / 611], axis=2).astype(np.uint8)
    data = with_orientation(image, "JPEG", orientation, quality=98)
    recipe = Recipe.of([Resize((40, 50))], channels=3, size=None)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    sizes, out = np.array([upright.size[::-1]], np.int32), np.empty((1, 40, 50, 3), np.uint8)
    steps = recipe.steps(sizes, RandomKeys(2, 0, np.arange(1)))
    CpuEngine(recipe, channels=3, decode="fast")([data], sizes, steps, out, np.array([orientation], np.uint8))
    wanted = np.asarray(upright.resize((50, 40), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(out[0] - wanted).max() <= 4


def _crops(size: int, scale: tuple[float, float], floats: bool) -> list[Transform]:
    normalize: list[Transform] = [Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))] if floats else []
    return [RandomResizedCrop(size, scale=scale), RandomHorizontalFlip(), *normalize]


@compiled_only
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.builds(_crops, st.integers(1, 60), st.sampled_from([(0.01, 0.1), (0.08, 1.0), (1.0, 1.0)]),
                       st.booleans()), min_size=2, max_size=5),
    st.sampled_from(["exact", "fast"]),
    st.booleans(),
)  # fmt: skip
def test_several_crops_of_a_file_are_those_of_each_alone(
    lists: list[list[Transform]], decode: Any, upright: bool
) -> None:
    """However near each other crops are, decoding a file once for all of them changes no pixel of any."""
    pixels = noise(97, 140, seed=len(lists))
    files = [
        encode(pixels, "jpeg", quality=90),
        encode(pixels, "jpeg", quality=90, restart_marker_blocks=1),
        encode(pixels, "jpeg", quality=90, progressive=True),
        encode(pixels, "jpeg", mode="L", restart_marker_rows=1),
        encode(pixels, "png"),
    ]
    sizes = np.full((len(files), 2), (97, 140), np.int32)
    orientations = np.array([1, 6, 3, 8, 1], np.uint8) if upright else None
    if upright:
        sizes[[1, 3]] = sizes[[1, 3], ::-1]
    recipes = [Recipe.of(transforms, channels=3, size=None) for transforms in lists]
    engines = [CpuEngine(recipe, channels=3, decode=decode) for recipe in recipes]
    steps = [recipe.steps(sizes, RandomKeys(number, 0, np.arange(len(files)))) for number, recipe in enumerate(recipes)]

    def empty() -> list[NDArray[Any]]:
        formats = [engine.output_format for engine in engines]
        shapes = [(len(files), *form.shape(recipe.size)) for form, recipe in zip(formats, recipes, strict=True)]
        return [np.zeros(shape, form.dtype) for shape, form in zip(shapes, formats, strict=True)]

    alone, together = empty(), empty()
    for engine, own, out in zip(engines, steps, alone, strict=True):
        engine(files, sizes, own, out, orientations)
    make_images(engines, files, sizes, steps, together, orientations)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("engine", ["cpu", "nvimgcodec"])
def test_a_loader_turns_images(tmp_path: Path, engine: Any) -> None:
    """`orient=True` gives upright images, on an engine for whole batches too; uncropped, they differ in size."""
    if engine == "nvimgcodec":
        pytest.importorskip("nvidia.nvimgcodec")
    packed(tmp_path / "out", [{"image": data} for data in ROTATED.values()], shard_size="1MB")
    for transforms in ([Resize((48, 40))], []) if engine == "cpu" else ([Resize((48, 40))],):
        options: dict[str, Any] = {"transforms": transforms, "shuffle": None, "world": World(), "engine": engine}
        (batch,) = shardio.Loader(tmp_path / "out", len(ROTATED), orient=True, **options)
        for found, (name, data) in zip(batch["image"], ROTATED.items(), strict=True):
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
            wanted = np.asarray(upright.resize((40, 48), Image.Resampling.BILINEAR) if transforms else upright)
            exact = engine == "cpu" or name != ("JPEG", 1)
            assert np.abs(found.numpy().astype(int) - wanted).max() <= (0 if exact else 12), name
    (plain,) = shardio.Loader(tmp_path / "out", len(ROTATED), shuffle=None, world=World())
    assert all(image.shape == (90, 121, 3) for image in plain["image"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"this is text" * 20, "not a JPEG"),
        (FILES["jpeg"][:400], "cut short"),
        (FILES["png"][:100], "cut short"),
        (encode(noise(30, 40, 1), "PNG"), "the image is 30 x 40 pixels, 90 x 120 were stored"),
    ],
    ids=["empty", "text", "jpeg", "png", "another size"],
)
@pytest.mark.usefixtures("part")
def test_bad_images_are_named(data: bytes, message: str) -> None:
    """An image that does not decode is reported with its position in the batch, and never delivered as grey."""
    engine = CpuEngine(Recipe.of([], channels=3, size=(90, 120)), channels=3)
    given = [FILES["jpeg"], data], np.full((2, 2), (90, 120)), (), np.empty((2, 90, 120, 3), np.uint8)
    failed: dict[int, BadSample] = {}
    engine(*given, failed=failed)
    assert [*failed] == [1]
    with pytest.raises(BadSample, match=message):
        engine(*given)
    assert re.search(message, str(failed[1]))


@pytest.mark.parametrize(("interpolation", "flag"), [("bilinear", cv2.INTER_LINEAR), ("bicubic", cv2.INTER_CUBIC)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(19, 27), (90, 131), (30, 200), (60, 17), (1, 1)])
@pytest.mark.usefixtures("part")
def test_without_antialias(interpolation: Interpolation, flag: int, channels: int, size: tuple[int, int]) -> None:
    """A resize without antialiasing interpolates between the nearest pixels, as OpenCV does, whatever the scale.

    The pixels leave room for what bicubic overshoots: OpenCV does not cut that off between the two directions.
    """
    pixels = np.random.default_rng(3).integers(40, 216, (60, 80), dtype=np.uint8)
    resized: list[Transform] = [Resize(size, interpolation, antialias=False)]
    (found,), _, _ = made_by_cpu([encode(pixels, "PNG", "L")], np.array([[60, 80]], np.int32), resized, channels)
    wanted = cv2.resize(pixels, size[::-1], interpolation=flag)
    assert found.shape == (*size, channels)
    assert np.abs(found.astype(int) - wanted.reshape(*size, 1)).max() <= (1 if interpolation == "bilinear" else 2)
