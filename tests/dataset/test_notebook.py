"""A dataset in a notebook: its fields, a few samples with pictures, and no exception whatever the samples hold."""

import base64
import io
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import bmp, jpeg, pixels, png, spoiled, webp
from _datasets import packed
from _masks import grey_png
from PIL import Image

import shardio
from shardio import Field
from shardio.dataset import notebook
from shardio.errors import ShardCorrupt

PICTURE = re.compile(r'<img src="data:image/jpeg;base64,([^"]*)"')


class Reader(HTMLParser):
    """Collects text and tags, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(data: shardio.Dataset) -> Reader:
    """What a notebook shows of a dataset."""
    return Reader(data._repr_html_())


def pictures(data: shardio.Dataset) -> list[Image.Image]:
    """The pictures in what a notebook shows."""
    return [Image.open(io.BytesIO(base64.b64decode(found))) for found in PICTURE.findall(data._repr_html_())]


def rows(count: int) -> list[dict[str, Any]]:
    """Samples with a field of many kinds."""
    makers = (jpeg, png, webp, bmp)
    return [
        {
            "image": makers[n % 4](300, 200, seed=n),
            "label": n % 2,
            "key": f"cats/{n}.jpg",
            "target": np.array([n, 0.5], np.float32),
            "volume": np.zeros((2, 9, 9), np.float32),
            "note": {"n": n},
            "blob": b"\x00" * 9,
        }
        for n in range(count)
    ]


def test_fields_and_samples_are_shown() -> None:
    """Each field with its kind, four samples spread over the dataset, class names, and undistorted pictures."""
    data = shardio.from_samples(rows(31), metadata={"classes": ["cat", "dog"]})
    text = shown(data).text
    for part in (
        "31",
        "classes: 2: cat, dog",
        "image, RGB",
        "array, float32, [2, 9, 9]",
        "cats/0.jpg",
        "cats/10.jpg",
        "cats/20.jpg",
        "cats/30.jpg",
        "0 (cat)",
        "[10.   0.5]",
        "{'n': 20}",
    ):
        assert part in text
    found = pictures(data)
    assert [image.size for image in found] == [(64, 96)] * 4
    for image, index in zip(found, (0, 10, 20, 30), strict=True):
        whole = Image.open(io.BytesIO(data[index]["image"])).convert("RGB").resize((64, 96), Image.Resampling.BOX)
        assert np.abs(np.asarray(image, float) - np.asarray(whole, float)).mean() < 12


def test_stored_and_grey_pixels_are_shown() -> None:
    """Images stored as pixels, grey ones too, are pictures; small ones are shown larger, pixel by pixel."""
    fields = {
        "color": shardio.Field("pixels", shape=(12, 16)),
        "grey": shardio.Field("pixels", shape=(12, 16), channels=1),
        "label": "int64",
    }
    samples = [{"color": pixels(), "grey": pixels(channels=1)[..., None], "label": 0}]
    data = shardio.from_samples(samples, fields=fields)
    assert [(image.mode, image.size) for image in pictures(data)] == [("RGB", (16, 12)), ("L", (16, 12))]
    assert 'width="96" height="72"' in data._repr_html_()


def test_masks_are_shown_in_colours() -> None:
    """Numbers of classes have colours that can be told apart, whether they are stored as files or as pixels."""
    numbers = np.zeros((96, 96), np.uint8)
    numbers[:48] = 2
    fields = {"file": Field("image", role="mask"), "pixels": Field("pixels", shape=(96, 96), role="mask")}
    sample = {"file": grey_png(numbers.astype(np.uint16)), "pixels": numbers[..., None]}
    for picture in pictures(shardio.from_samples([sample], fields)):
        assert picture.size == (96, 96)
        assert np.abs(np.array(picture.getpixel((50, 20))) - (0, 128, 0)).max() < 20
        assert np.array(picture.getpixel((50, 80))).max() < 20


def test_text_is_escaped() -> None:
    """Field values, class names, paths and errors are text, never tags, and UTF-8 can hold the result."""
    evil = "<script>alert(1)</script>"
    fields = {"label": "int64", "key": "text", "note": "json"}
    samples = [{"label": 0, "key": evil, "note": {evil: 1}}]
    data = shardio.from_samples(samples, fields=fields, metadata={"classes": [evil, 'b" onload="x']})
    read = shown(data)
    assert read.tags <= {"div", "strong", "br", "table", "thead", "tbody", "tr", "th", "td", "em", "p"}
    assert read.text.count(evil) >= 3
    half = shardio.from_samples([{"label": 0}], metadata={"classes": ["\ud800"]})
    half._repr_html_().encode()


def test_damaged_samples_are_named_in_their_place() -> None:
    """An image that does not decode is said so, and the other samples are shown."""
    samples = rows(4)
    samples[0]["image"] = spoiled(jpeg(300, 200))
    samples[2]["image"] = spoiled(jpeg(40, 40))
    text = shown(data := shardio.from_samples(samples)).text
    assert text.count("cannot be shown") == 2
    assert len(pictures(data)) == 2


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_lost_shards_are_named(tmp_path: Path, container: str) -> None:
    """Shards that are cut short or gone leave the fields and the reason."""
    packed(tmp_path / "d", rows(12), container=container, shard_size="100KB")
    shards = sorted(path for path in (tmp_path / "d").iterdir() if path.suffix in (".tar", ".h5", ".lmdb"))
    shards[0].write_bytes(shards[0].read_bytes()[:1000])
    shards[-1].unlink()
    read = shown(shardio.open(tmp_path / "d"))
    assert "int64" in read.text
    assert "cannot be shown" in read.text


def test_few_values_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four samples are read, no large array, and nothing once the time is up."""
    data = shardio.from_samples(rows(200))
    asked: list[tuple[int, ...]] = []
    select = type(data).select

    def counted(self: shardio.Dataset, indices: Any, *rest: Any) -> Any:
        asked.append(tuple(indices.tolist()))
        return select(self, indices, *rest)

    monkeypatch.setattr(type(data), "select", counted)
    data._repr_html_()
    assert set(asked) == {(0,), (66,), (132,), (199,)}
    assert len(asked) == 4 * 5  # fields that are shown
    asked.clear()
    clock = iter([0.0, *[9.0] * 99])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert "…" in data._repr_html_()
    assert not asked


def test_many_fields_and_classes_are_cut_short() -> None:
    """Thirty fields and ten classes are listed, and the rest is counted."""
    names = [f"class {n}" for n in range(1000)]
    data = shardio.from_samples([{f"f{n}": n for n in range(40)}], metadata={"classes": names})
    text = shown(data).text
    assert "1,000: class 0" in text
    assert "class 9 and 990 more" in text
    assert "f29" in text
    assert "f30" not in text
    assert "and 10 more fields" in text


def test_an_empty_dataset_is_shown() -> None:
    """Without samples there are fields only."""
    assert "int64" in shown(shardio.from_samples([], fields={"label": "int64"})).text


def test_an_interrupt_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are shown, whatever they are; an interrupt ends the call."""
    data = shardio.from_samples(rows(2))
    for error in (ShardCorrupt("x"), MemoryError("x"), RuntimeError("x")):
        monkeypatch.setattr(notebook, "_picture", lambda *_, error=error: (_ for _ in ()).throw(error))
        assert f"{type(error).__name__}: x" in shown(data).text
    monkeypatch.setattr(notebook, "_picture", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        data._repr_html_()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"classes": ["cat", "dog"]}, ["cat", "dog"]),
        ({"classes": []}, None),
        ({"classes": [1, 2]}, None),  # no names
        ({"classes": "cat"}, None),
        ({}, None),
    ],
)
def test_classes_are_names_by_label(metadata: dict[str, Any], expected: Any) -> None:
    """`classes` is the list of names in the metadata; None without one."""
    data = shardio.from_samples([{"label": 1}], metadata=metadata)
    assert data.classes == expected
    assert shown(data)
    if data.classes:
        data.classes.append("bird")
        assert data.classes == expected
