"""Delivered boxes and points lie where the delivered pixels are, upright or not, whatever engine makes these."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from _builders import encode, spoiled, tiff, with_exif
from _detection import FIELDS, SANITIZE, TRAIN, by_image, corners, sample
from _masks import grey_png
from PIL import Image, ImageOps

import shardio
from shardio import Field, Loader

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
            assert len(target["boxes"]) == 1  # no crop cuts off the middle of the only box
            moved = corners(stored["boxes"], batch["image_geometry"][row].numpy())
            for box, own in zip(target["boxes"].numpy(), target["points"].numpy(), strict=True):
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


def test_masks_of_turned_photos_are_cropped_as_these() -> None:
    """A mask drawn on the upright photo gets the photo's crop, though boxes are in pixels of the stored one."""

    def row(number: int) -> dict[str, Any]:
        found = painted(number)
        with Image.open(io.BytesIO(found["image"])) as photo:
            upright = np.asarray(ImageOps.exif_transpose(photo))
        missing = {"image": None} if number % 9 == 4 else {}
        return {name: found[name] for name in ("image", "boxes")} | {"mask": grey_png(upright[..., 0])} | missing

    fields = {"image": Field("image", optional=True), "mask": Field("image", role="mask"), "boxes": FIELDS["boxes"]}
    data = shardio.from_samples(map(row, range(64)), fields)
    moves = [shardio.RandomIoUCrop(), shardio.RandomHorizontalFlip()]
    transforms = {"image": [*moves, SANITIZE], "mask": moves}
    cropped = 0
    for batch in Loader(data, 8, transforms=transforms, orient=True, seed=2):
        for image, mask, upright in zip(batch["image"], batch["mask"], map(row, batch["index"].tolist()), strict=True):
            if image is not None:
                assert torch.equal(image[..., 0] > 0, mask > 0)
                cropped += image.numel() < np.asarray(Image.open(io.BytesIO(upright["image"]))).size
    assert cropped > 20
    with pytest.raises(shardio.ConfigError, match="'mask': with orient=True RandomIoUCrop needs 'image' among"):
        Loader(data, 8, fields=["mask"], transforms={"mask": [shardio.RandomIoUCrop(), SANITIZE]}, orient=True)
