"""A list of image files per sample: written, read, checked and delivered as lists of bytes."""

import tarfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import webdataset
from _builders import jpeg, png, spoiled
from _datasets import CONTAINERS, load, packed

import shardio
from shardio.care.verify import verify
from shardio.errors import BadSample, ShardCorrupt
from shardio.format.fields import as_field, describe, length_column

COUNT = 40
FIELDS = {"pages": ("image", (None,)), "label": "int64"}


def pages(number: int) -> list[bytes]:
    """The images of a sample: none, a few, or more than a header of one byte counts."""
    count = (0, 1, 2, 20)[number % 4]
    return [png(seed=number) if n % 2 else jpeg(8 + n, 9, seed=number) for n in range(count)]


def samples(count: int = COUNT) -> list[dict[str, Any]]:
    """Samples of such lists."""
    return [{"pages": pages(number), "label": number} for number in range(count)]


@pytest.mark.parametrize("container", [*CONTAINERS, "memory"])
def test_round_trip(container: str, tmp_path: Path) -> None:
    """They are read as they were written, by number and in batches, and a column has how many there are."""
    place = None if container == "memory" else tmp_path / "d"
    data = packed(place, samples(), FIELDS, container=container)
    assert [data[n]["pages"] for n in range(COUNT)] == [pages(n) for n in range(COUNT)]
    lengths = data.selection(np.arange(COUNT)).column(length_column("pages"))
    assert lengths.tolist() == [len(pages(n)) for n in range(COUNT)]
    for batch in load(data, 8):
        assert [len(images) for images in batch["pages"]] == [len(pages(n)) for n in batch["label"].tolist()]


def test_missing_lists(tmp_path: Path) -> None:
    """A sample that lacks the list has None, an empty list is one; masked samples have an empty one."""
    field = shardio.Field("images", optional=True)
    rows = [{"pages": pages(number) if number % 3 else None, "label": number} for number in range(8)]
    data = packed(tmp_path / "d", rows, FIELDS | {"pages": field})
    assert [data[n]["pages"] for n in range(8)] == [row["pages"] for row in rows]
    (batch,) = load(data, 8, shuffle=None)
    assert [images and len(images) for images in batch["pages"]] == [row["pages"] and len(row["pages"]) for row in rows]


def test_how_it_is_declared() -> None:
    """`("image", (None,))` and `"images"` are the same field."""
    assert as_field(("image", (None,))) == as_field("images") == shardio.Field("images")
    assert describe(as_field("images")) == "images"


def test_others_read_them(tmp_path: Path) -> None:
    """In a tar they are MessagePack, which webdataset decodes."""
    packed(tmp_path / "d", samples(8), FIELDS, shard_samples=8, shard_size="10MB")
    shard = tmp_path / "d" / "shard-000000.tar"
    with tarfile.open(shard) as tar:
        assert tar.getnames()[:2] == ["000000000000.pages.mp", "000000000000.cls"]
        stored = [tar.extractfile(member).read() for member in tar if member.name.endswith(".mp")]
    found = webdataset.autodecode.Decoder([])({"__key__": "0", "pages.mp": stored[2]})
    assert found["pages.mp"] == pages(2)


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    """A value that is no list of image files is a bad sample; its error names the image."""
    with shardio.create(tmp_path / "d", fields=FIELDS) as writer:
        for value, message in (
            (b"", "expected a list of bytes, got bytes"),
            ([jpeg(8, 8), "x"], "expected a list of bytes, got list"),
            ([jpeg(8, 8), b"no image"], "field 'pages': image 1: "),
        ):
            with pytest.raises(BadSample, match=message):
                writer.append({"pages": value, "label": 0})


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (msgspec.msgpack.encode([b"a", b"b"]), r"its 7 bytes are no value of length 1, which '_length.pages' states"),
        (msgspec.msgpack.encode({b"a": 1}), "no value of length 1"),
        (b"\xdd\xff\xff\xff\xff", "no value of length 1"),
        (b"\xdc\x00", "no value of length 1"),
        (b"", "its 0 bytes are no value of length 1"),
        (b"\x91\xc4\x05a", "not images: "),
        (b"\x91\x01", "not images: "),
        (msgspec.msgpack.encode([b"a"]) + b"b", "not images: "),
    ],
)
def test_damage(stored: bytes, message: str, tmp_path: Path) -> None:
    """Bytes that are no such list, or one of another length, are refused with shard, field and row."""
    whole = msgspec.msgpack.encode([jpeg(8, 8)])
    data = packed(tmp_path / "d", [{"pages": [jpeg(8, 8)], "label": n} for n in range(3)], FIELDS)
    tar, index = (tmp_path / "d" / f"shard-000000.{suffix}" for suffix in ("tar", "idx.npy"))
    table = np.lib.format.open_memmap(index, "r+")
    start = int(table["pages.offset"][1])
    content = tar.read_bytes()
    assert content[start : start + len(whole)] == whole
    tar.write_bytes(content[:start] + stored + content[start + len(stored) :])
    table["pages.size"][1] = len(stored)
    for read in (lambda: data.read([0, 1]), lambda: list(load(data, 3))):
        with pytest.raises(ShardCorrupt, match=message) as caught:
            read()
        assert "shard-000000.tar" in f"{caught.value}"
        assert "row 1" in f"{caught.value}"
        assert "'pages'" in f"{caught.value}"
    assert [problem.location.row for problem in verify(data, deep=True).found if problem.location] == [1]


def test_verify_decodes_them(tmp_path: Path) -> None:
    """An image that does not decode is named with its number in the list."""
    bad = spoiled(jpeg(40, 40))
    rows = [{"pages": [jpeg(8, 8), bad], "label": 0}]
    data = packed(tmp_path / "d", rows, FIELDS)
    (problem,) = verify(data, deep=True).found
    assert "field 'pages': image 1: " in problem.reason


def test_stats_and_notebooks(tmp_path: Path) -> None:
    """`stats` tells how many images the lists have, and a notebook shows them."""
    data = packed(tmp_path / "d", samples(8), FIELDS)
    found = shardio.stats(data).fields["pages"].lengths
    assert (found.count, found.min, found.max) == (8, 0, 20)
    assert data._repr_html_().count("<img") >= 3
