"""Images that an EXIF tag rotates: conversions count them, and `--orient` stores them upright."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import resized, tiff, write_files
from _cli import run
from _datasets import packed
from PIL import Image, ImageOps

import shardio
from shardio.errors import SourceWarning


def rotated(orientation: int, kind: str = "JPEG") -> bytes:
    """A gradient of 30 x 50 pixels with the tag."""
    y, x = np.mgrid[:30, :50]
    pixels = np.stack([5 * x, 8 * y, 255 - 5 * x], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, exif=b"Exif\0\0" + tiff(orientation), quality=95, subsampling=0)
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eight JPEGs and two PNGs in one class; tags rotate or flip eight of them."""
    files = {f"a/{number}.jpg": rotated(number) for number in range(1, 9)}
    return write_files(tmp_path / "photos", files | {f"a/{n + 10}.png": rotated(n, "PNG") for n in (1, 6)})


def test_they_are_counted(photos: Path, tmp_path: Path) -> None:
    """The command tells how many there are, once; resuming counts shards that stand, and adopted files count too."""
    told = run("convert", "imagefolder", photos, tmp_path / "out", "--shard-size", "2KB")
    assert told.count("note: an EXIF tag rotates or flips 8 images, which a Loader ignores") == 1
    assert "--orient stores them upright" in told
    assert "flips 8 images" in run("index", tmp_path / "out" / "*.tar", "-o", tmp_path / "adopted")
    assert "flips 8 images" in run("convert", "imagefolder", photos, tmp_path / "small", "--resize-shorter", "20")
    assert "EXIF" not in run("convert", "imagefolder", photos, tmp_path / "upright", "--orient")


def test_python_tells_of_them(photos: Path, tmp_path: Path) -> None:
    """The count is a note and goes to `tell`, or is a warning; pixels lose the tag, which it says. `orient` ends it."""
    told: list[str] = []
    made = shardio.convert(photos, tmp_path / "told", converter="imagefolder", tell=told.append)
    assert told == list(made.notes)
    assert re.search("flips 8 images, .* as torchvision does: orient=True stores them upright", told[-1])
    with pytest.warns(SourceWarning, match="flips 8 images"):
        shardio.index(tmp_path / "told", tmp_path / "adopted")
    assert not shardio.convert(photos, tmp_path / "upright", converter="imagefolder", orient=True).notes
    options: Any = {"converter": "imagefolder", "store_pixels": True, "resize": (30, 50)}
    with pytest.warns(SourceWarning, match="8 images, and pixels have no tag: orient=True stores them upright"):
        shardio.convert(photos, tmp_path / "pixels", **options)


def test_hugging_face_turns_them(photos: Path, tmp_path: Path) -> None:
    """The note of `convert huggingface` says that `datasets` itself turns such images."""
    datasets = pytest.importorskip("datasets")
    rows = {"image": [file.read_bytes() for file in sorted(photos.rglob("*.jpg"))]}
    with pytest.warns(SourceWarning, match="rotates or flips 7 images, which a Loader ignores, as datasets does not"):
        shardio.convert(datasets.Dataset.from_dict(rows), tmp_path / "out", converter="huggingface")


@pytest.mark.parametrize("options", [{}, {"store_pixels": True, "resize": (30, 50)}], ids=["files", "pixels"])
def test_they_are_stored_upright(photos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """`orient` bakes the rotation in; images without one stay as they are, byte for byte."""
    shardio.convert(photos, tmp_path / "out", converter="imagefolder", orient=True, **options)
    dataset = shardio.open(tmp_path / "out")
    for row in dataset:
        file, found = photos / row["key"], row["image"]
        upright = ImageOps.exif_transpose(Image.open(file))
        if options:
            made = Image.fromarray(found)
            upright = resized(upright, (30, 50), "bilinear")
        else:
            made = Image.open(io.BytesIO(found))
            assert not made.getexif().get(0x0112, 0) or file.name in ("1.jpg", "11.png")
            if file.name in ("1.jpg", "11.png"):
                assert found == file.read_bytes()
        assert np.abs(np.asarray(made).astype(int) - np.asarray(upright)).max() <= (0 if options else 12)


@pytest.mark.filterwarnings("ignore::shardio.SourceWarning")
def test_shrinking_turns_all_or_none(tmp_path: Path) -> None:
    """Photos that shrink lie as those do that are small already, and as their masks do."""
    rows = [{"image": rotated(6), "mask": rotated(1, "PNG")}, {"image": rotated(6), "mask": rotated(6, "PNG")}]
    source = tmp_path / "in"
    packed(source, rows, {"image": "image", "mask": "image"})
    for size in ((30, 50), (15, 25)):
        made = shardio.open(shardio.convert(source, tmp_path / f"{size[0]}", resize_shorter=size[0]).path)
        for row in made:
            found = [Image.open(io.BytesIO(row[field])) for field in ("image", "mask")]
            assert [one.size[::-1] for one in found] == [size] * 2
            assert found[0].getexif()[0x0112] == 6
    upright = shardio.open(shardio.convert(source, tmp_path / "upright", resize_shorter=15, orient=True).path)
    assert [Image.open(io.BytesIO(row["image"])).size for row in upright] == [(15, 25)] * 2
