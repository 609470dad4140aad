"""Lists of images: several encoded images per sample, each decoded and transformed by itself."""

from functools import partial
from pathlib import Path
from typing import Any

import _datasets
import numpy as np
import pytest
import torch
from _builders import decoded, jpeg, spoiled
from _datasets import packed
from _device import device as device

import shardio
from shardio.errors import BadSample, ConfigError

COUNTS = (2, 0, 3, 1, 4, 1, 2, 0, 5, 3, 1, 2)
CROP = [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip(), shardio.ColorJitter(0.4)]
load = partial(_datasets.load, batch_size=4, seed=3)


def pictures(number: int) -> list[bytes]:
    """The images of a sample, of several sizes."""
    return [jpeg(20 + number, 24 + part, seed=100 * number + part) for part in range(COUNTS[number])]


def albums(place: Path | None = None, **options: Any) -> shardio.Dataset:
    """Samples of no image, one and several."""
    rows = [{"images": pictures(number), "label": number} for number in range(len(COUNTS))]
    return packed(place, rows, {"images": "images", "label": "int64"}, **options)


@pytest.mark.parametrize("container", ["memory", "tar", "hdf5", "lmdb"])
@pytest.mark.parametrize("verify", [False, True])
def test_without_a_size_there_are_lists_of_lists(container: str, verify: bool, tmp_path: Path) -> None:
    """Each sample has a list of uint8 tensors [H, W, C], the pixels of its files."""
    for batch in load(albums(tmp_path / "d", container=container), verify=verify):
        for number, images in zip(batch["label"].tolist(), batch["images"], strict=True):
            assert [image.dtype for image in images] == [torch.uint8] * COUNTS[number]
            for image, file in zip(images, pictures(number), strict=True):
                assert np.array_equal(image.numpy(), decoded(file))


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"threads": 4},
        {"device": True},
        {"map": dict},
        {"channels_last": True},
        {"map": dict, "map_by": "sample"},
        pytest.param({"isolate": True, "threads": 1}, marks=pytest.mark.slow),
    ],
)
def test_images_of_one_size_are_a_tensor(options: dict[str, Any], device: str) -> None:
    """A sample has a tensor [n, C, H, W]; PadTo makes one tensor of the batch, and Ragged lays all end to end."""
    options = {**options, **({"device": device} if "device" in options else {})}
    floats = [*CROP, shardio.ToFloat()]
    fields = {"listed": "images", "label": "label"}
    joined: Any = {"padded": [*floats, shardio.PadTo(6, value=-1)], "flat": [*floats, shardio.Ragged()]}
    for name, listed in joined.items():
        one = list(load(albums(), fields=fields, transforms={"listed": floats}, threads=2))
        other = list(load(albums(), fields={name: "images", "label": "label"}, transforms={name: listed}, **options))
        for lists, batch in zip(one, other, strict=True):
            assert lists["label"].tolist() == batch["label"].tolist()
            counts = [COUNTS[label] for label in lists["label"].tolist()]
            assert [images.shape for images in lists["listed"]] == [(count, 3, 8, 8) for count in counts]
            if name == "padded":
                assert batch["padded"].shape == (4, 6, 3, 8, 8)
                assert batch["padded_length"].tolist() == counts
                for row, images in zip(batch["padded"], lists["listed"], strict=True):
                    assert torch.equal(row[: len(images)], images)
                    assert (row[len(images) :] == -1).all()
            else:
                assert torch.equal(batch["flat"], torch.cat(lists["listed"]))
                assert batch["flat_offsets"].diff().tolist() == counts


def test_each_image_draws_for_itself() -> None:
    """The first image draws what a field of one image draws, and another one of the same pixels differs from it."""
    file = jpeg(40, 40, seed=1)
    rows = [{"image": file, "images": [file, file]} for _ in range(8)]
    data = shardio.from_samples(rows, {"image": "image", "images": "images"})
    for batch in load(data, fields=["image"], transforms={"image": CROP}):
        expected = batch["image"]
        break
    for batch in load(data, fields=["images"], transforms={"images": CROP}):
        assert torch.equal(torch.stack([images[0] for images in batch["images"]]), expected)
        assert all(not torch.equal(*images) for images in batch["images"])
        break


def test_missing_and_bad_lists() -> None:
    """A missing list has no images, and `_present` says so; an image that does not decode is named, and masked."""
    rows: list[dict[str, Any]] = [{"images": pictures(number % 4), "label": number} for number in range(8)]
    rows[2]["images"] = None
    data = shardio.from_samples(rows, {"images": shardio.Field("images", optional=True), "label": "int64"})
    rules = {"images": [shardio.CenterCrop(8), shardio.PadTo()]}
    for batch in load(data, transforms=rules, shuffle=None):
        counts = [0 if label == 2 else COUNTS[label % 4] for label in batch["label"].tolist()]
        assert batch["images_length"].tolist() == counts
        assert batch["images_present"].tolist() == [label != 2 for label in batch["label"].tolist()]
    rows[6]["images"] = [jpeg(), spoiled(jpeg()), jpeg()]
    data = shardio.from_samples(rows, {"images": shardio.Field("images", optional=True), "label": "int64"})
    with pytest.raises(BadSample, match=r"row 6 .*'images', image 1: "):
        list(load(data, transforms=rules))
    loader = load(data, transforms=rules, on_bad_sample="mask", max_bad=4, shuffle=None)
    lengths = [n for batch in loader for n in batch["images_length"].tolist()]
    assert lengths == [2, 0, 0, 1, 2, 0, 0, 1]
    (plain,) = (batch for batch in load(data, on_bad_sample="mask", max_bad=4, shuffle=None) if 6 in batch["index"])
    assert plain["images"][2] == []


def test_more_images_than_the_limit_allows_are_a_bad_sample() -> None:
    """A list whose results take more than max_value_bytes is not decoded."""
    with pytest.raises(BadSample, match=r"'images': 5 images of \(64, 64\) pixels are more than max_value_bytes=60000"):
        list(load(albums(), transforms={"images": [shardio.Resize((64, 64))]}, max_value_bytes=60_000))
    files = [jpeg(100, 100)] * 3
    data = shardio.from_samples([{"images": files}], {"images": "images"})
    with pytest.raises(BadSample, match=r"'images': 3 images are more than max_value_bytes=80000"):
        list(load(data, batch_size=1, max_value_bytes=80_000))
    for transforms in (None, {"images": [shardio.Resize(90)]}):
        (batch,) = load(data, batch_size=1, transforms=transforms, max_value_bytes=90_000)
        assert len(batch["images"][0]) == 3


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([shardio.PadTo()], "PadTo takes images of one size: crop or resize them to it before"),
        ([shardio.Ragged(), shardio.CenterCrop(8)], "transform 0 must be a shardio image transform"),
        ([shardio.CenterCrop(8), shardio.PadTo(value=-1)], "PadTo's value must be one that uint8 holds, got -1"),
        ([shardio.RandomWindow(2)], "transform 0 must be a shardio image transform"),
    ],
)
def test_what_does_not_suit_is_refused(transforms: Any, message: str) -> None:
    """Images of several sizes have no tensor, and other transforms are for other fields."""
    with pytest.raises(ConfigError, match=message):
        load(albums(), transforms=transforms)
