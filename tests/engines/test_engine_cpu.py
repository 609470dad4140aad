"""The CPU engine: bad images, and resizes without antialiasing. For exact pixels see `test_exact_pixels.py`."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from shardio import native
from shardio.engines.cpu import BadImage, CpuEngine
from shardio.transforms import (
    Resize,
    Transform,
)
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Interpolation

SIZES = np.full((2, 2), (60, 80), np.int32)


@pytest.fixture(params=["compiled", "Pillow"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the compiled part is there."""
    if request.param == "Pillow":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("not compiled here")  # the parameter "Pillow" runs everywhere
    return request.param


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
    data: list[bytes], transforms: list[Transform], *, channels: int = 3, epoch: int = 0
) -> list[NDArray[np.generic]]:
    """Process some files with the engine: as one batch if their sizes are known, else one by one."""
    recipe = Recipe.of(transforms, channels=channels, size=None)
    engine = CpuEngine(recipe, channels=channels)
    shapes = [cv2.imdecode(np.frombuffer(d, np.uint8), cv2.IMREAD_UNCHANGED).shape[:2] for d in data]
    sizes = np.array(shapes, np.int32)
    steps = recipe.steps(sizes, seed=1, epoch=epoch, indices=np.arange(len(data)))
    if recipe.size is None:
        return engine(data, sizes, steps, None) or []
    out = np.full((len(data), *engine.output_format.shape(recipe.size)), 123, engine.output_format.dtype)
    engine(data, sizes, steps, out)
    return list(out)


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
def test_bad_images_are_named(part: str, data: bytes, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """An image that does not decode is reported with its position in the batch, and never delivered as grey."""
    good = encode(photo(), ".jpg")
    engine = CpuEngine(Recipe.of([], channels=3, size=(60, 80)), channels=3)
    with pytest.raises(BadImage, match=message) as caught:
        engine([good, data], SIZES, (), np.empty((2, 60, 80, 3), np.uint8))
    assert caught.value.place == 1


def test_an_image_of_another_size_than_the_batch_is_refused() -> None:
    """With a common image size, an image of another size is bad."""
    engine = CpuEngine(Recipe.of([], channels=3, size=(60, 80)), channels=3)
    with pytest.raises(BadImage, match="the image is 30 x 40 pixels, 60 x 80 were stored"):
        engine([encode(photo(30, 40), ".png")], SIZES[:1], (), np.empty((1, 60, 80, 3), np.uint8))


@pytest.mark.parametrize(("interpolation", "flag"), [("bilinear", cv2.INTER_LINEAR), ("bicubic", cv2.INTER_CUBIC)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(19, 27), (90, 131), (30, 200), (60, 17), (1, 1)])
def test_without_antialias(
    part: str, interpolation: Interpolation, flag: int, channels: int, size: tuple[int, int]
) -> None:
    """A resize without antialiasing interpolates between the nearest pixels, as OpenCV does, whatever the scale.

    The pixels leave room for what bicubic overshoots: OpenCV does not cut that off between the two directions.
    """
    pixels = np.random.default_rng(3).integers(40, 216, (60, 80), dtype=np.uint8)
    data = encode(pixels, ".png")
    (found,) = run([data], [Resize(size, interpolation, antialias=False)], channels=channels)
    wanted = cv2.resize(pixels, size[::-1], interpolation=flag)
    assert found.shape == (*size, channels)
    assert np.abs(found.astype(int) - wanted.reshape(*size, 1)).max() <= (1 if interpolation == "bilinear" else 2)
