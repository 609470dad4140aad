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
from shardio.care import notebook

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
            "volume": np.zeros((2, 90, 90), np.float32),
            "note": {"n": n},
            "blob": b"\x00" * 9,
        }
        for n in range(count)
    ]


def test_fields_and_samples_are_shown() -> None:
    """Each field with its kind, four samples spread over the dataset, class names, and undistorted pictures."""
    data = shardio.from_samples(rows(31), metadata={"classes": ["cat", "dog"]})
    text = shown(data).text
    parts = ["31 samples in 1 memory shards", "image, RGB", "array, float32, [2, 90, 90]", "0 (cat)", "[10.   0.5]"]
    for part in [*parts, "{'n': 20}", *(f"cats/{n}.jpg" for n in (0, 10, 20, 30))]:
        assert part in text
    found = pictures(data)
    assert [image.size for image in found] == [(64, 96)] * 4
    for image, index in zip(found, (0, 10, 20, 30), strict=True):
        whole = Image.open(io.BytesIO(data[index]["image"])).convert("RGB").resize((64, 96), Image.Resampling.BOX)
        assert np.abs(np.asarray(image, float) - np.asarray(whole, float)).mean() < 12


def test_pixels_and_masks_are_shown() -> None:
    """Images stored as pixels, grey ones too, are pictures; masks have colours, as files and as pixels."""
    numbers = np.zeros((96, 96), np.uint8)
    numbers[:48] = 2
    fields = {
        "color": Field("pixels", shape=(12, 16)),
        "grey": Field("pixels", shape=(12, 16), channels=1),
        "file": Field("image", role="mask"),
        "mask": Field("pixels", shape=(96, 96), role="mask"),
    }
    sample = {"color": pixels(), "grey": pixels(channels=1)[..., None], "mask": numbers[..., None]}
    sample["file"] = grey_png(numbers.astype(np.uint16))
    color, grey, *masks = pictures(shardio.from_samples([sample], fields))
    assert [(image.mode, image.size) for image in (color, grey)] == [("RGB", (16, 12)), ("L", (16, 12))]
    for picture in masks:
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
    assert read.tags <= {"div", "strong", "br", "table", "tr", "td", "em"}
    assert read.text.count(evil) >= 3
    half = shardio.from_samples([{"label": 0}], metadata={"classes": ["\ud800"]})
    assert "0 (?)" in shown(half).text


def test_damaged_and_lost_samples_are_named_in_their_place(tmp_path: Path) -> None:
    """An image that does not decode, and a shard that is cut short or gone, are said so; the rest is shown."""
    samples = rows(12)
    samples[3]["image"] = spoiled(jpeg(300, 200))
    data = packed(tmp_path / "d", samples, shard_size="100KB")
    shards = sorted((tmp_path / "d").glob("*.tar"))
    assert (shown(data).text.count("cannot be shown"), len(pictures(data))) == (1, 3)
    shards[0].write_bytes(shards[0].read_bytes()[:1000])
    shards[-1].unlink()
    read = shown(shardio.open(tmp_path / "d"))
    assert "int64" in read.text
    assert read.text.count("cannot be shown") > 3


def test_few_values_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four samples are read, no large array, and nothing once the time is up."""
    data = shardio.from_samples(rows(200))
    asked: list[tuple[int, ...]] = []
    selection = type(data).selection

    def counted(self: shardio.Dataset, indices: Any, *rest: Any) -> Any:
        asked.append(tuple(indices.tolist()))
        return selection(self, indices, *rest)

    monkeypatch.setattr(type(data), "selection", counted)
    data._repr_html_()
    assert set(asked) == {(0,), (66,), (132,), (199,)}
    assert len(asked) == 4 * 6  # fields that are shown
    asked.clear()
    clock = iter([0.0, *[9.0] * 99])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert "…" in data._repr_html_()
    assert not asked


def test_an_interrupt_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are shown, whatever they are; an interrupt ends the call."""
    data = shardio.from_samples(rows(2))
    monkeypatch.setattr(notebook, "_picture", lambda *_: (_ for _ in ()).throw(MemoryError("x")))
    assert "MemoryError: x" in shown(data).text
    monkeypatch.setattr(notebook, "_picture", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        data._repr_html_()


def test_classes_are_names_by_label() -> None:
    """`classes` is the list of names in the metadata; None without one."""
    for classes, expected in ((["cat", "dog"], ["cat", "dog"]), ([], None), ([1, 2], None), ("cat", None)):
        data = shardio.from_samples([{"label": 1}], metadata={"classes": classes})
        assert data.classes == expected
        assert shown(data)
