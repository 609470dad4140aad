"""LMDB files become samples: Caffe's Datum messages and image files, written by the lmdb library."""

from pathlib import Path
from typing import Any

import lmdb as library
import numpy as np
import pytest
from _builders import decoded, jpeg, pixels, png, webp
from _foreign import Datum
from _sources import all_of

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.testing import check_source
from shardio_converters.lmdb import lmdb


def written(path: Path, entries: dict[bytes, bytes], **options: Any) -> Path:
    """Write an environment."""
    environment = library.open(str(path), map_size=1 << 28, **options)
    with environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    environment.close()
    return path


def datum(array: Any = None, label: int | None = None, data: bytes | None = None) -> bytes:
    """A Datum of raw uint8 or float [c, h, w], or of an encoded image."""
    message = Datum()
    if array is not None:
        message.channels, message.height, message.width = array.shape
        if array.dtype == np.uint8:
            message.data = array.tobytes()
        else:
            message.float_data.extend(array.reshape(-1).tolist())
    if data is not None:
        message.data, message.encoded = data, True
    if label is not None:
        message.label = label
    serialized: bytes = message.SerializeToString()
    return serialized


def as_caffe(rgb: Any) -> Any:
    """An RGB image in Caffe's layout: blue, green, red, each [h, w]."""
    return np.ascontiguousarray(rgb[..., ::-1].transpose(2, 0, 1))


class TestDatums:
    def test_encoded_images(self, tmp_path: Path) -> None:
        """Encoded images keep their bytes; samples are in the order of the keys."""
        images = [jpeg(seed=0), png(seed=1), webp(seed=2), jpeg(40, 60, seed=3)]
        entries = {b"%08d_a b.jpg" % (9 - n): datum(data=image, label=n - 1) for n, image in enumerate(images)}
        source = lmdb(written(tmp_path / "größe 1", entries))
        expected = [{"image": images[n], "label": n - 1, "key": f"{9 - n:08d}_a b.jpg"} for n in (3, 2, 1, 0)]
        check_source(source, expected, tmp_path / "out", image="image", label="int64", key="text")
        assert source.metadata == {"source": "lmdb"}
        assert source.sizes().tolist() == [len(entries[key]) for key in sorted(entries)]

    @pytest.mark.parametrize("bgr", [True, False])
    def test_raw_colors(self, tmp_path: Path, bgr: bool) -> None:
        """Raw pixels, blue first in Caffe, become PNG without loss."""
        pictures = [pixels(5 + n, 7, seed=n) for n in range(4)]
        stored = [as_caffe(rgb) if bgr else np.ascontiguousarray(rgb.transpose(2, 0, 1)) for rgb in pictures]
        pictures.append(grey := pixels(28, 28, 1))
        stored.append(grey[None])
        entries = {b"%02d" % n: datum(array, label=n) for n, array in enumerate(stored)}
        source = lmdb(written(tmp_path / "db", entries), bgr=bgr)
        for n, sample in enumerate(all_of(source)):
            np.testing.assert_array_equal(decoded(sample["image"]), pictures[n])
        check_source(source, all_of(source), tmp_path / "out", image="image", label="int64", key="text")

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    @pytest.mark.parametrize("alike", [True, False])
    def test_arrays(self, tmp_path: Path, dtype: type, alike: bool) -> None:
        """Floats, and other numbers of channels, are arrays, of fixed shape if the first and the last agree."""
        random = np.random.default_rng(0)
        arrays = [random.integers(0, 255, (5, 2, 3 if alike else 3 + n)).astype(dtype) for n in range(4)]
        entries = {b"%d" % n: datum(array, n) for n, array in enumerate(arrays)}
        source = lmdb(written(tmp_path / "db", entries))
        expected = [{"array": array, "label": n, "key": f"{n}"} for n, array in enumerate(arrays)]
        field = Field("array", dtype=np.dtype(dtype).name, shape=(5, 2, 3) if alike else None)
        check_source(source, expected, tmp_path / "out", array=field)


class TestImages:
    @pytest.mark.parametrize("layout", ["auto", "image"])
    def test_image_files(self, tmp_path: Path, layout: str) -> None:
        """Image files may have any keys, also such that are not text."""
        entries = {b"n01440764/x.JPEG": jpeg(), b"\xff\x00\xfe": png(), b"../../etc": jpeg(seed=4)}
        entries["größe".encode()] = webp()
        source = lmdb(written(tmp_path / "db", entries), layout=layout)
        names = ["../../etc", "größe", "n01440764/x.JPEG", "\\xff\0\\xfe"]
        expected = [{"image": entries[key], "key": name} for key, name in zip(sorted(entries), names, strict=True)]
        check_source(source, expected, tmp_path / "out", image="image", key="text")


class TestBadSamples:
    @pytest.mark.parametrize(
        ("value", "told"),
        [
            (b"\x0a\xff\xff", "not a Datum: byte 1: a number is cut short"),
            (datum(data=jpeg()[:-50]), "the jpeg image is cut short"),
            (datum(np.zeros((3, 2, 2), np.uint8))[:-3], "not a Datum"),
            (datum(np.zeros((4, 2, 2), np.uint8)), "its Datum holds an array, expected an image"),
            (
                Datum(channels=3, height=2, width=2, data=b"x").SerializeToString(),
                "a Datum of 3 x 2 x 2 holds 1 values",
            ),
            (Datum(channels=1, height=-1, width=-1, data=b"x").SerializeToString(), "1 x -1 x -1 holds 1 values"),
        ],
    )
    def test_among_images(self, tmp_path: Path, value: bytes, told: str) -> None:
        """A bad image is named by file and key, and its neighbours are read."""
        good = datum(data=jpeg(), label=1)
        source = lmdb(written(tmp_path / "db", {b"a": good, b"b": value, b"c": good}))
        with pytest.raises(BadSample, match=rf"data.mdb, key 'b': .*{told}"):
            source[1]
        assert source[2]["key"] == "c"

    def test_the_first_one(self, tmp_path: Path) -> None:
        """If the layout is given, a bad first value does not hide the others."""
        path = written(tmp_path / "db", {b"a": b"\xff", b"b": datum(np.zeros((5, 2, 2), np.uint8), 3)})
        with pytest.raises(
            SourceError, match=r"the first value is neither an image nor a Datum; .*key 'a': not a Datum"
        ):
            lmdb(path)
        assert lmdb(path, layout="datum")[1]["label"] == 3


class TestRefusals:
    def test_shards_of_shardio(self, tmp_path: Path) -> None:
        """Shards of shardio are refused with the command to use instead."""
        with shardio.create(tmp_path / "data", container="lmdb", fields={"image": "image"}) as writer:
            writer.append({"image": jpeg()})
        for path in (tmp_path / "data", tmp_path / "data" / "shard-000000.lmdb"):
            with pytest.raises(SourceError, match=r"was written by shardio; .* by `shardio reshard`"):
                lmdb(path)

    @pytest.mark.parametrize(
        ("entries", "layout", "told"),
        [
            ({}, "auto", "data.mdb holds no entries"),
            ({b"a": b"some text"}, "auto", "the first value is neither an image nor a Datum"),
            ({b"a": b""}, "auto", "not a Datum: it has no values"),
            ({b"a": b"\xff"}, "datum", r"no Datum can be read: .*key 'a': not a Datum"),
            (None, "auto", r"lmdb takes a directory that holds data.mdb, or a file; .*No such file"),
            ({}, "caffe", "layout must be one of auto, datum, image, got 'caffe'"),
        ],
    )
    def test_nothing_to_be_had(
        self, tmp_path: Path, entries: dict[bytes, bytes] | None, layout: str, told: str
    ) -> None:
        """An environment that is empty or has other values, a folder without one, and unknown layouts are refused."""
        with pytest.raises((SourceError, ConfigError), match=told):
            lmdb(tmp_path if entries is None else written(tmp_path / "db", entries), layout=layout)
