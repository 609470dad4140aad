"""Fields that draw the same crops: a sample whose sizes don't fit is a bad one, and all others show one place."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import _datasets
import numpy as np
import pytest
from _builders import encode, tiff, with_exif
from _masks import grey_png
from numpy.typing import NDArray
from PIL import Image

import shardio
from shardio import Field, World
from shardio.errors import BadSample
from shardio.transforms import Transform

FLIP = shardio.RandomHorizontalFlip()
SCALED: list[Transform] = [shardio.RandomResizedCrop(32), FLIP]
PIXELS: list[Transform] = [shardio.RandomCrop(32), FLIP]
load = partial(_datasets.load, shuffle=None)


def blobs(seed: int, height: int = 60, width: int = 80) -> NDArray[np.uint8]:
    """Overlapping squares, [height, width] of 0 and 1."""
    random, found = np.random.default_rng(seed), np.zeros((height, width), np.uint8)
    for _ in range(6):
        y, x = random.integers(0, height - 20), random.integers(0, width - 20)
        found[y : y + 20, x : x + 20] ^= 1
    return found


def pair(seed: int, size: tuple[int, int] | None = None, *, exif: int = 1, turned: bool = False) -> dict[str, bytes]:
    """A photo that shows `blobs`, and their mask, resized, or turned as EXIF 6 turns a photo."""
    found = blobs(seed)
    mask = Image.fromarray(found)
    mask = mask.transpose(Image.Transpose.ROTATE_270) if turned else mask
    mask = mask if size is None else mask.resize(size[::-1], Image.Resampling.NEAREST)
    photo = encode("jpg", np.repeat(found[..., None] * 255, 3, axis=2))
    return {"image": with_exif(photo, tiff(exif)), "mask": grey_png(np.asarray(mask))}


def dataset(rows: Sequence[dict[str, Any]], **fields: Any) -> shardio.Dataset:
    return shardio.from_samples(rows, {"image": "image", "mask": Field("image", role="mask")} | fields)


def agreement(batch: dict[str, Any]) -> float:
    """The share of pixels that photos and masks have in common."""
    return float(((batch["image"][..., 0] > 127) == (batch["mask"] > 0)).float().mean())


def alike(image: Sequence[Transform], mask: Sequence[Transform] | None = None) -> dict[str, Sequence[Transform]]:
    return {"image": image, "mask": image if mask is None else mask}


@pytest.mark.parametrize(
    ("size", "transforms", "fits"),
    [
        ((60, 80), PIXELS, True),
        ((60, 80), SCALED, True),
        ((30, 40), PIXELS, False),
        ((60, 81), PIXELS, False),
        ((30, 40), SCALED, True),
        ((20, 26), SCALED, True),  # 26.67 rounded down
        ((80, 60), SCALED, False),
        ((30, 60), SCALED, False),
        ((30, 60), [FLIP, shardio.Resize((32, 32))], True),  # flips alone fit in images of any size
        ((30, 60), [shardio.Resize(32), shardio.CenterCrop(32)], True),  # nothing is drawn
        ((31, 41), [shardio.Resize(40), *PIXELS], True),  # 52 instead of 53 pixels wide when they are cropped
        ((60, 60), [shardio.Resize(40), *PIXELS], False),
        ((30, 60), [shardio.Resize((40, 40)), *PIXELS], True),
        ((30, 40), [shardio.ScaleJitter(80, (1.0, 1.5)), *PIXELS], True),
        ((30, 60), [shardio.ScaleJitter(80, (1.0, 1.5)), *PIXELS], False),
        ((30, 40), [shardio.RandomShortestSize([48, 64]), *PIXELS], True),
        ((30, 60), [shardio.RandomZoomOut(p=1), shardio.Resize((64, 64))], True),  # a place in shares of the sides
        ((30, 40), [shardio.CenterCrop(40), *PIXELS], False),  # another place, whatever follows
        ((30, 60), [FLIP, shardio.RandomRotation(20), *SCALED], False),
    ],
)
def test_sizes_that_crops_need(size: tuple[int, int], transforms: list[Transform], fits: bool) -> None:
    """Equal ones for crops in pixels, equal aspect ratios for RandomResizedCrop, where these cut."""
    data = dataset([pair(0), pair(1, size), pair(2)])
    if fits:
        (batch,) = load(data, 3, transforms=alike(transforms))
        assert agreement(batch) > (0.75 if size == (60, 80) else 0.5)
        return
    with pytest.raises(BadSample, match=r"\(sample 1\): fields 'image' and 'mask' draw the same crops, and so must"):
        next(iter(load(data, 3, transforms=alike(transforms))))


@pytest.mark.parametrize(
    ("image", "mask", "fits"),
    [
        ([shardio.Resize((60, 80)), *PIXELS], [shardio.Resize((30, 40)), *PIXELS], False),
        ([shardio.Resize((60, 80)), *PIXELS], [shardio.CenterCrop((60, 80)), *PIXELS], True),
        ([*SCALED, shardio.ColorJitter(0.4), shardio.ToFloat()], SCALED, True),
    ],
)
def test_lists_that_differ(image: list[Transform], mask: list[Transform], fits: bool) -> None:
    """What counts is the sizes that the crops see."""
    loader = load(dataset([pair(0), pair(1)]), 2, transforms=alike(image, mask))
    if fits:
        assert len(list(loader)) == 1
        return
    with pytest.raises(BadSample, match="must have the same size, got"):
        next(iter(loader))


def test_a_turned_photo() -> None:
    """The error names both sizes and `orient`, with which the pixels agree."""
    data = dataset([pair(seed, exif=6, turned=True) for seed in range(16)])
    with pytest.raises(
        BadSample,
        match=r"must have the same aspect ratio, got 60 x 80 and 80 x 60, each other's transpose; orient=True turns",
    ):
        next(iter(load(data, 16, transforms=alike(SCALED))))
    (batch,) = load(data, 16, transforms=alike(SCALED), orient=True)
    assert agreement(batch) > 0.99


def test_a_mask_of_the_stored_pixels() -> None:
    """Without `orient` such a mask lies on its photo, and with it the error says so."""
    data = dataset([pair(seed, exif=6) for seed in range(16)])
    (batch,) = load(data, 16, transforms=alike(SCALED))
    assert agreement(batch) > 0.99
    with pytest.raises(BadSample, match=r"got 80 x 60 and 60 x 80, each other's transpose; without orient images stay"):
        next(iter(load(data, 16, transforms=alike(SCALED), orient=True)))


@pytest.mark.parametrize("orient", [False, True])
@pytest.mark.parametrize("engine", ["cpu", "dali", "nvimgcodec"])
@pytest.mark.parametrize("action", ["replace", "mask"])
def test_they_are_bad_samples(engine: Any, action: Any, orient: bool) -> None:
    """They are replaced or masked and recorded, by every engine, and ranks take the same steps."""
    if engine != "cpu":
        pytest.importorskip(f"nvidia.{engine}")
    bad = {1, 4, 5, 19}
    data = dataset([pair(n, exif=6 if n % 2 else 1, turned=n in bad or (orient and n % 2 == 1)) for n in range(24)])
    bad = {n for n in bad if not (orient and n % 2)}  # with orient, the photos of odd ones are turned too
    options: Any = {"transforms": alike(SCALED), "on_bad_sample": action, "max_bad": 1000, "engine": engine}
    steps, found, recorded = set(), set[int](), set[int]()
    for rank in range(2):
        loader = load(data, 6, world=World(rank, 2), orient=orient, **options)
        batches = list(loader)
        steps.add(len(batches))
        recorded |= {record.location.index for record in loader.quarantine()}
        for batch in batches:
            assert agreement({name: batch[name] for name in ("image", "mask")}) > 0.97
            valid = batch["valid"].tolist() if action == "mask" else [True] * 6
            found |= {index for index, there in zip(batch["index"].tolist(), valid, strict=True) if there}
    assert (steps, recorded) == ({2}, bad)
    assert found == set(range(24)) - bad


def test_processes_find_the_same() -> None:
    data = dataset([pair(n, (30, 30) if n == 5 else None) for n in range(8)])
    options: Any = {"transforms": alike(SCALED), "on_bad_sample": "replace", "max_bad": 8}
    here, there = (load(data, 4, threads=1, isolate=isolate, **options) for isolate in (False, True))
    for one, other in zip(here, there, strict=True):
        assert one["index"].tolist() == other["index"].tolist()
    assert [str(one) for one in here.quarantine()] == [str(one) for one in there.quarantine()] != []


def test_a_torch_dataset_finds_them() -> None:
    data = shardio.TorchDataset(dataset([pair(0), pair(1, (30, 30))]), transforms=alike(SCALED))
    assert data[0]["mask"].shape == (32, 32)
    with pytest.raises(BadSample, match="must have the same aspect ratio, got 60 x 80 and 30 x 30;"):
        data[1]


def test_names_that_draw_apart_are_not_compared() -> None:
    """The second name of a stored field has draws of its own, and so nothing that it must fit."""
    data = dataset([pair(n, (30, 30)) for n in range(4)])
    fields = {"first": "mask", "second": "mask", "image": "image"}
    load_two = partial(load, data, 4, fields=fields)
    assert len(list(load_two(transforms={"second": SCALED, "image": SCALED}))) == 1
    with pytest.raises(BadSample, match="fields 'first' and 'image' draw the same crops"):
        next(iter(load_two(transforms={"first": SCALED, "image": SCALED})))
    apart: list[Transform] = [shardio.RandomHorizontalFlip(0), *SCALED]  # as the page that the message names advises
    with pytest.warns(shardio.PairingWarning, match="but draw different places"):
        assert len(list(load_two(transforms={"first": SCALED, "image": apart}))) == 1


def test_missing_values_fit() -> None:
    """A sample without a mask has nothing that could differ."""
    data = dataset([pair(0), pair(1) | {"mask": None}, pair(2)], mask=Field("image", role="mask", optional=True))
    (batch,) = load(data, 3, transforms=alike(SCALED))
    assert batch["mask_present"].tolist() == [True, False, True]


def test_stored_pixels_and_files() -> None:
    """Pixels of one size are compared with the files beside them."""
    mask = Field("pixels", shape=(60, 80), channels=1, role="mask")
    rows = [pair(n)["image"] for n in range(3)] + [encode("jpg", np.zeros((60, 90, 3), np.uint8))]
    data = dataset([{"image": image, "mask": blobs(n)[..., None]} for n, image in enumerate(rows)], mask=mask)
    (batch,) = load(data.select(range(3)), 3, transforms=alike(SCALED))
    assert agreement(batch) > 0.97
    with pytest.raises(BadSample, match=r"\(sample 3\).* got 60 x 90 and 60 x 80;"):
        list(load(data, 4, transforms=alike(SCALED)))


def test_lists_of_images() -> None:
    """The n-th images of two lists draw alike, the first as a field of one image; surplus ones have no other."""
    whole, wide = pair(0)["image"], encode("jpg", np.zeros((60, 90, 3), np.uint8))
    rows = [
        {"one": [whole, whole], "other": [whole, whole, wide], "image": whole},
        {"one": [], "other": [wide], "image": whole},
        {"one": [whole, wide], "other": [whole, whole], "image": whole},
    ]
    data = shardio.from_samples(rows, {"one": "images", "other": "images", "image": "image"})
    with pytest.raises(BadSample, match=r"\(sample 2\): fields 'one' and 'other' .* got 60 x 90 and 60 x 80;"):
        list(load(data, 3, transforms={"one": PIXELS, "other": PIXELS}))
    with pytest.raises(BadSample, match=r"\(sample 1\): fields 'image' and 'other' "):
        list(load(data, 3, transforms={"other": PIXELS, "image": PIXELS}))
    assert len(list(load(data, 3, transforms={"one": PIXELS, "image": PIXELS}))) == 1


@pytest.mark.parametrize("crop", [4, (4, 4, 4)])
def test_volumes_of_several_shapes(crop: Any) -> None:
    """Arrays that crops cut must have equal lengths along these axes; channels may differ."""
    shapes = [(6, 7, 8), (9, 5, 6), (5, 5, 5)]
    rows = [{"image": np.zeros((4, *s), np.float32), "mask": np.zeros((1, *s), np.uint8)} for s in shapes]
    fields = {"image": Field("array", "float32", (4, None, None, None)), "mask": Field("array", "uint8")}
    moves = [shardio.RandomAxisFlip(), shardio.RandomSpatialCrop(crop)]
    fields["mask"] = Field("array", "uint8", (1, None, None, None))
    assert len(list(load(shardio.from_samples(rows, fields), 3, transforms=alike(moves)))) == 1
    rows[1]["mask"] = np.zeros((1, 9, 6, 5), np.uint8)
    with pytest.raises(BadSample, match=r"\(sample 1\).* must have the same size, got 9 x 5 x 6 and 9 x 6 x 5;"):
        list(load(shardio.from_samples(rows, fields), 3, transforms=alike(moves)))
