"""Boxes and points are drawn at their places, with names of classes: in pictures, on pages, stored and delivered."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import encode
from numpy.typing import NDArray
from PIL import Image

import shardio
from shardio import Field, PadTo, Ragged, World
from shardio.care.browse.batch_page import batch_page
from shardio.care.browse.batches import Job
from shardio.care.browse.grid import grid
from shardio.care.browse.pictures import SIDE, picturable, small
from shardio.care.browse.sample import sample as sample_page
from shardio.care.browse.scan import Scans
from shardio.care.marks import MOST, Mark, draw, marks_of
from shardio.care.sheet import CAPTION_HEIGHT, GAP, TILE_SIZE
from shardio.care.show import contact_sheet
from shardio.format.fields import as_fields

CLASSES = ["cat", "<b>dog</b>", "owl"]
FIELDS: dict[str, Any] = {
    "boxes": Field("array", "float32", (None, 4), role="boxes", on="image"),
    "image": "image",
    "image_id": "int64",
    "labels": Field("array", "int64", (None,), per="boxes"),
    "points": Field(
        "array", "float32", (None, 2, 3), role="points", on="image", per="boxes", attributes={"flip_pairs": []}
    ),
}
GREY = np.tile(np.arange(48, 48 + TILE_SIZE, dtype=np.uint8)[:, None, None], (1, TILE_SIZE, 3))
FLIP = [shardio.RandomHorizontalFlip(1.0)]


def sample(number: int) -> dict[str, Any]:
    """A grey square with one box and two points, of which one is labelled; the first has none."""
    count = min(number, 1)
    return {
        "boxes": np.array([[8 + 4 * number, 20, 90, 100 + number]] * count, np.float32).reshape(-1, 4),
        "image": encode("png", GREY),
        "image_id": 70 + number,
        "labels": np.array([number % 3] * count, np.int64),
        "points": np.array([[[120, 130, 2], [10, 150, 0]]] * count, np.float32).reshape(-1, 2, 3),
    }


def dataset(count: int = 4) -> shardio.Dataset:
    return shardio.from_samples(map(sample, range(count)), FIELDS, metadata={"classes": CLASSES})


def extent(picture: NDArray[Any]) -> list[int]:
    """The left, top, right and bottom edges of what is coloured in a grey picture."""
    colored = np.ptp(picture.astype(int), axis=2) > 60
    rows, columns = np.flatnonzero(colored.any(axis=1)), np.flatnonzero(colored.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] if len(rows) else []


def tiles(path: Path, count: int) -> list[NDArray[Any]]:
    """The pictures of a sheet with a heading."""
    picture = np.asarray(Image.open(path))[CAPTION_HEIGHT + GAP :]
    return [picture[:TILE_SIZE, GAP + n * (TILE_SIZE + GAP) :][:, :TILE_SIZE] for n in range(count)]


@pytest.mark.parametrize("scale", [(1.0, 1.0), (2.0, 0.5), (0.25, 3.0)])
def test_an_edge_is_at_the_place_of_the_box(scale: tuple[float, float]) -> None:
    """A box ends before the pixel that its right and bottom edges begin, in pictures of any size."""
    x, y = scale
    image = Image.new("RGB", (round(100 * x), round(80 * y)))
    draw(image, [Mark((12, 20, 60, 48), (255, 0, 0))], scale)
    red = np.asarray(image)[..., 0] == 255
    edges = [round(12 * x), round(20 * y), round(60 * x), round(48 * y)]
    assert extent(np.asarray(image)) == edges
    left, top, right, bottom = edges
    assert red[top:bottom, [left, right - 1]].all()
    assert red[[top, bottom - 1], left:right].all()
    assert not red[top + 2 : bottom - 2, left + 2 : right - 2].any()


def test_marks_of_a_sample() -> None:
    """A box has the name or the number of its class, and its colour; points without a label and NaN are left out."""
    nan = float("nan")
    boxes = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [nan, 0, 1, 1], [0, 0, 2, 2]], np.float32)
    points = np.array([[[1, 2, 1], [3, 4, 0]], [[nan, 2, 2], [5, 6, 2]]] + [[[0, 0, 0]] * 2] * 2, np.float32)
    labels = np.array([1, 7, 0, 1])
    fields = as_fields(FIELDS)
    found = marks_of({"boxes": boxes, "labels": labels, "points": points}, fields, {"labels": CLASSES})
    named, placed = found[:3], found[3:]
    assert [(mark.place, mark.name) for mark in named] == [
        ((1, 2, 3, 4), "<b>dog</b>"),
        ((5, 6, 7, 8), "7"),
        ((0, 0, 2, 2), "<b>dog</b>"),
    ]
    assert named[0].color == named[2].color != named[1].color
    assert [(mark.place, mark.color) for mark in placed] == [((1, 2), named[0].color), ((5, 6), named[1].color)]
    assert [mark.name for mark in marks_of({"boxes": boxes, "labels": labels[:2]}, fields, {})] == [""] * 3
    assert marks_of({"boxes": None, "labels": None, "points": None}, fields, {}) == []
    assert len(marks_of({"boxes": np.ones((3 * MOST, 4), np.float32)}, fields, {})) == MOST


def test_marks_far_outside_do_no_harm() -> None:
    """Boxes of any size, and of edges in the wrong order, are drawn in no time."""
    image = Image.new("RGB", (40, 30))
    wild = [(-3e38, -3e38, 3e38, 3e38), (30.0, 20.0, 10.0, 10.0), (3e38, 3e38), (1e9, 1e9, 2e9, 2e9)]
    draw(image, [Mark(place, (255, 0, 0), "x" * 10_000) for place in wild], (1.0, 1.0))
    assert image.size == (40, 30)


@pytest.mark.parametrize(
    ("rule", "to"),
    [
        ([], "torch"),
        ([Ragged()], "torch"),
        ([Ragged(nested=True)], "torch"),
        ([PadTo(3)], "torch"),
        ([Ragged()], "numpy"),
    ],
)
def test_show_draws_what_moved(rule: list[Any], to: Any, tmp_path: Path) -> None:
    """Boxes are at their place on the delivered image, whatever form the batch gives them."""
    floats = [*FLIP, shardio.Normalize(0.5, 0.25)]
    loader = shardio.Loader(
        dataset(), 4, transforms={"image": floats, "boxes": rule}, shuffle=None, world=World(), geometry=True, to=to
    )
    assert shardio.show(loader, tmp_path / "s.png") == 4
    flipped = np.asarray(Image.open(tmp_path / "s.png"))
    assert flipped.shape[1] == 4 * (TILE_SIZE + GAP) + GAP  # nothing but the image is a picture
    for number, tile in enumerate(tiles(tmp_path / "s.png", 4)):
        if not number:
            assert extent(tile) == []
            continue
        boxes = tile.copy()
        boxes[120:] = 0  # without the point
        assert extent(tile[120:]) == [37, 8, 42, 13]  # around pixel 159 - 120
        assert extent(boxes) == [TILE_SIZE - 90, 20, TILE_SIZE - 8 - 4 * number, 100 + number]


def test_each_name_has_its_own_boxes(tmp_path: Path) -> None:
    """The n-th name of the boxes is drawn on the n-th name of the image."""
    names = {"a": "image", "b": "image", "a_boxes": "boxes", "b_boxes": "boxes", "a_labels": "labels"}
    loader = shardio.Loader(dataset(2)[1:], 1, fields=names, transforms={"a": FLIP}, world=World())
    shardio.show(loader, tmp_path / "s.png")
    first, second = tiles(tmp_path / "s.png", 2)
    assert extent(first) == [70, 20, 148, 101]
    assert extent(second) == [12, 20, 90, 101]


def test_a_contact_sheet_has_boxes(tmp_path: Path) -> None:
    """A dataset's sheet draws them, as they are stored or after transforms."""
    for transforms, expected in (({}, [12, 20, 90, 101]), ({"image": FLIP}, [70, 20, 148, 101])):
        contact_sheet(dataset(2)[1:], tmp_path / "s.png", transforms=transforms)
        tile = np.asarray(Image.open(tmp_path / "s.png"))[GAP:, GAP:][:TILE_SIZE, :TILE_SIZE].copy()
        tile[120:] = 0
        assert extent(tile) == expected


def rectangles(page: str) -> list[list[float]]:
    """The edges of the boxes that a page draws."""
    found = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)" stroke', page)
    boxes = [[float(number) for number in each] for each in found]
    return [[x, y, x + width, y + height] for x, y, width, height in boxes]


def test_the_page_of_a_sample() -> None:
    """The image has its boxes with names as text, and its labelled points; numbers of classes have their names."""
    page = sample_page(dataset(), Scans(), 1, {}, None)
    assert rectangles(page) == [[12, 20, 90, 101]]
    assert f'<svg viewBox="0 0 {TILE_SIZE} {TILE_SIZE}"' in page
    assert "<title>&lt;b&gt;dog&lt;/b&gt;</title>" in page
    assert re.findall(r'<path d="M([^"]*)h', page) == ["120 130"]
    assert "<b>dog" not in page
    assert "1 (&lt;b&gt;dog&lt;/b&gt;)" in page
    assert "<pre>12 20 90 101</pre>" in page
    assert 'class="bears"' not in sample_page(dataset(), Scans(), 0, {}, None)


def test_a_page_shows_an_image_whose_boxes_are_too_many() -> None:
    """Boxes that cannot be read take away no picture."""
    many = sample(1) | {"boxes": np.zeros((1 << 19, 4), np.float32)}
    page = sample_page(shardio.from_samples([many], FIELDS), Scans(), 0, {}, None)
    assert 'src="/image/image/0"' in page
    assert 'role="alert"' in page


def test_small_pictures_have_boxes() -> None:
    """Thumbnails of the grid have them in their scale; boxes have no pictures of their own."""
    with Image.open(io.BytesIO(small(dataset(), "image", 3))) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (SIDE, SIDE, 3)
    found = np.array(extent(pixels[:120]))
    assert np.abs(found - np.array([20, 20, 90, 103]) * SIDE / TILE_SIZE).max() <= 2  # a JPEG blurs it
    assert not picturable(as_fields(FIELDS)["boxes"])
    assert "/small/image/3" in grid(dataset(), Scans(), {})


def test_the_page_of_a_batch() -> None:
    """Each rank's picture has the boxes where its batch has them."""
    data, crop = dataset(), {"image": [shardio.RandomResizedCrop(64), shardio.RandomHorizontalFlip()]}
    page = batch_page(data, Job(batch_size=4, seed=5, augment=True), crop, {})
    (batch,) = shardio.Loader(data, 4, transforms=crop, seed=5, world=World())
    expected = [box for boxes in batch["boxes"] for box in boxes.tolist()]
    np.testing.assert_allclose(rectangles(page), expected, atol=1e-4)
    assert f'viewBox="0 0 {64} {64}"' in page
    assert "Not shown" not in page


def test_classes_of_boxes_have_names() -> None:
    """`classes` names those of labels per box, beside other integers; datasets that name them differently say so."""
    other = shardio.from_samples([sample(1)], FIELDS, metadata={"classes": ["cow"]})
    with pytest.raises(shardio.ConfigError, match="the classes of 'labels' differ: class 0 is 'cat'"):
        shardio.concat({"one": dataset(), "other": other})
    assert len(shardio.concat({"one": dataset(), "other": dataset()})) == 8
