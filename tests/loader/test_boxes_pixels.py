"""Delivered boxes and points lie where the delivered pixels are, upright or not, whatever engine makes these."""

from typing import Any

import numpy as np
import pytest
import torch
from _builders import encode, spoiled, tiff, with_exif
from _detection import FIELDS, SANITIZE, TRAIN, by_image, corners, sample

import shardio
from shardio import Loader

UPRIGHT: dict[str, list[Any]] = {
    "as it is": [],
    "flipped": [shardio.RandomHorizontalFlip(1), shardio.RandomVerticalFlip(0.5)],
    "cropped": [shardio.RandomIoUCrop(), SANITIZE, shardio.RandomHorizontalFlip()],
    "on a canvas": [shardio.RandomZoomOut(p=1), shardio.RandomVerticalFlip()],
    "padded": [shardio.RandomHorizontalFlip(), shardio.PadImages(160, place="center")],
}
POINTS = (60, 120, 180)
"""The green of the points of a box, whose red is 255."""


def painted(number: int) -> dict[str, Any]:
    """A PNG with an EXIF orientation, on which a rectangle is red and three pixels in it are green."""
    random, orientation = np.random.default_rng(number), 1 + number % 8
    height, width = random.integers(40, 90, 2).tolist()
    (top, bottom), (left, right) = (
        np.add(np.sort(random.choice(side - 8, 2, replace=False)), [0, 8]) for side in (height, width)
    )
    image = np.zeros((height, width, 3), np.uint8)
    image[top:bottom, left:right, 0] = 255
    places = random.choice((bottom - top) * (right - left), len(POINTS), replace=False)
    y, x = top + places // (right - left), left + places % (right - left)
    image[y, x, 1] = POINTS
    return {
        "image": with_exif(encode("png", image), tiff(orientation)),
        "boxes": np.array([[left, top, right, bottom]], np.float32),
        "labels": np.array([orientation]),
        "points": np.stack((x, y, np.full(3, 2)), axis=1)[None].astype(np.float32),
    }


@pytest.mark.parametrize("orient", [True, False])
@pytest.mark.parametrize("transforms", UPRIGHT.values(), ids=UPRIGHT)
def test_boxes_and_points_are_on_what_they_mark(transforms: list[Any], orient: bool) -> None:
    """To the pixel, for images of all orientations, upright or as they are stored."""
    no_pairs = shardio.Field(
        "array", "float32", (None, 3, 3), role="points", on="image", per="boxes", attributes={"flip_pairs": []}
    )
    data = shardio.from_samples(map(painted, range(64)), FIELDS | {"points": no_pairs})
    kept, points, orientations = 0, 0, set()
    for batch in Loader(data, 8, transforms={"image": transforms}, orient=orient, geometry=True, seed=2):
        for row, target in enumerate(by_image(batch)):
            image, stored = batch["image"][row].numpy(), painted(int(target["image_id"]))
            moved = corners(stored["boxes"], batch["image_geometry"][row].numpy())
            for box, own in zip(target["boxes"].numpy(), target["points"].numpy()[0:], strict=True):
                red = np.argwhere(image[..., 0])
                np.testing.assert_array_equal(box, [*red.min(axis=0)[::-1], *red.max(axis=0)[::-1] + 1])
                np.testing.assert_allclose(box, moved[0].clip(0, [*image.shape[1::-1], *image.shape[1::-1]]), atol=1e-3)
                for (x, y, visible), green in zip(own.astype(int).tolist(), POINTS, strict=True):
                    assert visible == 0 or image[y, x, 1] == green
                    points += visible > 0
                kept += 1
                orientations.add(int(target["labels"][0]))
    assert kept > 30
    assert points > 60
    assert orientations == {*range(1, 9)}


@pytest.mark.parametrize("bad", ["raise", "replace"])
@pytest.mark.parametrize("engine", ["dali", "nvimgcodec"])
def test_engines_for_whole_batches_crop_for_boxes(engine: Any, bad: Any) -> None:
    """They make the crops that the boxes are moved by, also where some images are turned or bad."""
    samples = [sample(number, exif=1 + number % 3 * 5 % 8) for number in range(40)]
    if bad == "replace":
        samples[7]["image"] = spoiled(samples[7]["image"])
    data = shardio.from_samples(samples, FIELDS, shard_samples=7)
    options: dict[str, Any] = {"orient": True, "geometry": True, "seed": 2, "on_bad_sample": bad, "max_bad": 2}
    options["transforms"] = {"image": [shardio.RandomZoomOut(fill=9), *TRAIN]}
    found = (Loader(data, 8, threads=2, engine=each, **options) for each in ("cpu", engine))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one["image_geometry"], other["image_geometry"])
        for mine, theirs in zip(by_image(one), by_image(other), strict=True):
            assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
        apart = (one["image"].float() - other["image"].float()).abs().mean(dim=(1, 2, 3))
        assert apart.max() < 2
