"""The CPU engine: bad images, and resizes without antialiasing. For exact pixels see `test_exact_pixels.py`."""

import cv2
import numpy as np
import pytest
from _builders import encode, jpeg, png

from shardio.engines.cpu import BadImage, CpuEngine
from shardio.transforms import Resize
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Interpolation

SIZES = np.full((2, 2), (60, 80), np.int32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"this is text" * 20, "not a JPEG"),
        (jpeg(60, 80)[:400], "cut short"),
        (png(60, 80)[:100], "cut short"),
    ],
    ids=["empty", "text", "jpeg", "png"],
)
@pytest.mark.usefixtures("part")
def test_bad_images_are_named(data: bytes, message: str) -> None:
    """An image that does not decode is reported with its position in the batch, and never delivered as grey."""
    engine = CpuEngine(Recipe.of([], channels=3, size=(60, 80)), channels=3)
    with pytest.raises(BadImage, match=message) as caught:
        engine([jpeg(60, 80), data], SIZES, (), np.empty((2, 60, 80, 3), np.uint8))
    assert caught.value.place == 1


def test_an_image_of_another_size_than_the_batch_is_refused() -> None:
    """With a common image size, an image of another size is bad."""
    engine = CpuEngine(Recipe.of([], channels=3, size=(60, 80)), channels=3)
    with pytest.raises(BadImage, match="the image is 30 x 40 pixels, 60 x 80 were stored"):
        engine([png(30, 40)], SIZES[:1], (), np.empty((1, 60, 80, 3), np.uint8))


@pytest.mark.parametrize(("interpolation", "flag"), [("bilinear", cv2.INTER_LINEAR), ("bicubic", cv2.INTER_CUBIC)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(19, 27), (90, 131), (30, 200), (60, 17), (1, 1)])
@pytest.mark.usefixtures("part")
def test_without_antialias(interpolation: Interpolation, flag: int, channels: int, size: tuple[int, int]) -> None:
    """A resize without antialiasing interpolates between the nearest pixels, as OpenCV does, whatever the scale.

    The pixels leave room for what bicubic overshoots: OpenCV does not cut that off between the two directions.
    """
    pixels = np.random.default_rng(3).integers(40, 216, (60, 80), dtype=np.uint8)
    recipe = Recipe.of([Resize(size, interpolation, antialias=False)], channels=channels, size=None)
    found = np.empty((1, *size, channels), np.uint8)
    steps = recipe.steps(SIZES[:1], seed=1, epoch=0, indices=np.arange(1))
    CpuEngine(recipe, channels=channels)([encode("png", pixels)], SIZES[:1], steps, found)
    wanted = cv2.resize(pixels, size[::-1], interpolation=flag)
    assert np.abs(found[0].astype(int) - wanted.reshape(*size, 1)).max() <= (1 if interpolation == "bilinear" else 2)
