"""Datasets of MosaicML Streaming become samples: files by its own writer, and damage that is told in words."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from _sources import changed

import shardio
from shardio.errors import BadSample, SourceError
from shardio.format.images import sniff
from shardio.testing import check_source
from shardio_converters.mds import Mds, mds

FILES = Path(__file__).parent / "files" / "mds"
"""By make_mds.py, which says what is in them."""

ROWS = ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
"""The shard of each sample, and its number there."""


def expected_of(source: Mds) -> list[dict[str, Any]]:
    """The samples that make_mds.py wrote; encoded images as the source gives them, after a look at their pixels."""
    found = []
    for number in range(5):
        given = source[number]
        images = {name: given[name] for name in ("image", "lossless", "pixels")}
        assert [sniff(image) for image in images.values()] == ["jpeg", "png", "png"]
        decoded = {n: cv2.imdecode(np.frombuffer(i, np.uint8), cv2.IMREAD_UNCHANGED) for n, i in images.items()}
        assert decoded["image"].shape == (6, 8, 3)
        np.testing.assert_array_equal(decoded["lossless"], np.full((4, 5, 3), (3, 2, number)))
        grey = np.full((3, 7), number)
        wanted = grey if number % 2 else np.dstack([grey * 0, grey * 0, grey])  # Pillow's colour `n` is red
        np.testing.assert_array_equal(decoded["pixels"], wanted)
        found.append(
            {
                "arrays": np.arange(2 * (number + 1), dtype=np.int16).reshape(2, -1) - np.int16(number),
                "bool": number % 2,
                "double": number / 3,
                "fixed": np.full((2, 3), number / 7, np.float32),
                "id": number - 2,
                "image": images["image"],
                "lossless": images["lossless"],
                "meta": {"boxes": [number, {"a": 0.5}]},
                "pixels": images["pixels"],
                "raw": bytes([255, number]),
                "str_int": 10**15 + number,
                "text": f"größe {number}",
                "tokens": np.arange(number + 1),
            }
        )
    return found


@pytest.mark.parametrize("name", ["plain", "zstd", "gz"])
def test_every_encoding(name: str, tmp_path: Path) -> None:
    """Columns of every encoding are read from Streaming's files, plain and compressed."""
    source = mds(FILES / name)
    kinds = {"arrays": {"kind": "array", "dtype": "int16"}, "bool": "uint8", "double": "float64", "raw": "bytes"}
    kinds |= {"fixed": ("float32", (2, 3)), "id": "int64", "image": "image", "lossless": "image", "pixels": "image"}
    kinds |= {"meta": "json", "str_int": "int64", "text": "text", "tokens": ("int64", (None,))}
    check_source(source, expected_of(source), tmp_path / "out", **kinds)
    assert source.metadata == {"source": "mds"}


def test_a_shard_that_lies_there_unpacked_is_taken(tmp_path: Path) -> None:
    """Streaming keeps shards that it has unpacked beside the compressed ones, or instead of them."""
    out = Path(shutil.copytree(FILES / "zstd", tmp_path / "out"))
    for number in range(3):
        shutil.copy(FILES / "plain" / f"shard.{number:05d}.mds", out)
        (out / f"shard.{number:05d}.mds.zstd").unlink()
    assert mds(out)[4]["text"] == "größe 4"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.update(version=1), "the version must be 2, got 1"),
        (lambda i: i.pop("shards"), "not an index of MDS: KeyError"),
        (lambda i: i.update(shards=[]), "lists no shards"),
        (lambda i: i["shards"][0].update(format="csv"), "not an index of MDS: ValueError: format 'csv'"),
        (lambda i: i["shards"][1]["column_names"].reverse(), "shards must have the same columns, shard 1 has others"),
        (lambda i: i["shards"][0]["raw_data"].update(basename="../../x.mds"), "a file called '../../x.mds'"),
        (lambda i: i["shards"][0].update(samples=10**12), "1000000000000 samples"),
        (lambda i: i["shards"][0].update(samples=3), "does not begin with the offsets of 3 samples"),
        (lambda i: i["shards"][0]["raw_data"].update(basename="none.mds"), "none.mds cannot be read: No such file"),
        (lambda i: [s["column_encodings"].__setitem__(0, "ndarray:object") for s in i["shards"]], "no field holds it"),
        (lambda i: [s["column_encodings"].__setitem__(0, "list[jpeg]") for s in i["shards"]], "'list.jpeg.': no field"),
    ],
)
def test_indexes_that_are_refused(change: Callable[[Any], object], message: str, tmp_path: Path) -> None:
    """What an index says wrongly is refused with the file and the rule, and no file outside is opened."""
    with pytest.raises(SourceError, match=message):
        mds(changed(FILES / "plain", tmp_path, change))


def test_what_is_no_mds(tmp_path: Path) -> None:
    """Other directories, splits, pickles and other compressions are refused in words."""
    with pytest.raises(SourceError, match=r"index.json cannot be read: No such file"):
        mds(tmp_path)
    with pytest.raises(SourceError, match="holds the splits br, gz, pickle, plain, zstd: name one of them"):
        mds(FILES)
    with pytest.raises(SourceError, match="the column 'x' is 'pkl': pickles are never loaded; choose others with"):
        mds(FILES / "pickle")
    assert mds(FILES / "pickle", fields="y")[0] == {"y": 2}
    with pytest.raises(SourceError, match=r"shard.00000.mds.br is compressed by br; shardio unpacks gz, bz2, zstd"):
        mds(FILES / "br")


def test_damage_is_named(tmp_path: Path) -> None:
    """A cut shard is refused; a damaged sample is a bad one, named by shard, number and column."""
    out = Path(shutil.copytree(FILES / "plain", tmp_path / "out"))
    path = out / "shard.00001.mds"
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with pytest.raises(SourceError, match=r"shard.00001.mds: damaged or cut off: its samples are not within its"):
        mds(out)
    path.write_bytes(data.replace(b'{"boxes": [3, {"a": 0.5}]}', b'{"boxes": [3, {"a": NaN}]}'))
    message = r"shard.00001.mds, sample 1, column 'meta': not json: NaN is not JSON"
    with pytest.raises(BadSample, match=message):
        mds(out)[3]
    first = out / "shard.00000.mds"
    first.write_bytes(first.read_bytes().replace(b"\x11\x08\x02\x01", b"\xff\x08\x02\x01", 1))  # an unknown dtype
    with pytest.raises(BadSample, match=r"shard.00000.mds, sample 0, column 'arrays': damaged: not an array"):
        mds(out)[0]
    made = shardio.convert(out, tmp_path / "made", converter=mds, on_error="skip", max_bad=2)
    assert len(shardio.open(made.path)) == 3
