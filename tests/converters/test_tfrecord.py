"""TFRecord files of Examples become samples: TensorFlow's own files, and edge cases written by protobuf."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, png
from _foreign import UnpackedExample, example, framed, write_tfrecord
from _sources import all_of

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.format.images import sniff
from shardio.output.shard_writer import encode
from shardio.testing import check_source
from shardio_converters.tfrecord import tfrecord

FILES = Path(__file__).parent / "files"
"""By make_tfrecords.py, which says what is in them."""


def written(folder: Path, *records: dict[str, Any], name: str = "a.tfrecord") -> Path:
    """Write a file of Examples."""
    return write_tfrecord(folder / name, [example(record) for record in records])


class TestTensorFlow:
    @pytest.mark.parametrize("name", ["examples", "examples-gzip", "examples-zlib"])
    def test_every_kind_of_feature(self, tmp_path: Path, name: str) -> None:
        """Features of every kind are read from TensorFlow's files, plain and compressed."""
        source = tfrecord(FILES / f"{name}.tfrecord")
        expected = []
        for number in range(5):
            image = source[number]["image.encoded"]
            assert sniff(image) == ("png" if number % 2 else "jpeg")
            expected.append(
                {
                    "box": np.array([0, 0.25, 0.5, number], np.float32),
                    "image.class.label": number - 2,
                    "image.class.text": f"größe {number}",
                    "image.encoded": image,
                    "large": np.array([2**63 - 1 - number, -(2**63) + number]),
                    "raw": b"\xff\xfe" + bytes([number]),
                    "score": float(np.float32(number + 0.1)),
                    "tags": [f"tag {tag}" for tag in range(number + 1)],
                    "tokens": np.arange(-1, number),
                }
            )
        kinds = {"box": ("float32", (4,)), "large": ("int64", (2,)), "score": "float32", "tags": "json", "raw": "bytes"}
        kinds |= {"image.encoded": "image", "image.class.label": "int64", "image.class.text": "text"}
        check_source(source, expected, tmp_path / "out", tokens=("int64", (None,)), **kinds)
        assert source.metadata == {"source": "tfrecord"}

    def test_features_that_are_missing(self) -> None:
        """A record whose feature is missing, empty, without a kind or of another kind is a bad sample."""
        source = tfrecord(FILES / "gaps.tfrecord")
        assert (source[0], source[5]) == ({"id": 0, "label": 7}, {"id": 0, "label": 8})
        none = "the record lacks it, or it has no values"
        for number, told in enumerate([none, none, none, "expected int64, got float"], 1):
            with pytest.raises(BadSample, match=rf"gaps.tfrecord, record {number}, feature 'label': {told}"):
                encode(source[number], source.fields)
        assert all_of(tfrecord(FILES / "gaps.tfrecord", fields="id")) == [{"id": 0}] * 6

    def test_sequence_examples(self) -> None:
        """Another message, refused by its name."""
        with pytest.raises(SourceError, match=r"sequences.tfrecord, record 0: a tf.train.SequenceExample"):
            tfrecord(FILES / "sequences.tfrecord")

    def test_a_folder(self, tmp_path: Path) -> None:
        """The TFRecords of a folder are joined by name, compressed and empty ones included; other files are ignored."""
        shutil.copy(FILES / "empty.tfrecord", tmp_path / "train-00000-of-00003")
        shutil.copy(FILES / "examples.tfrecord", tmp_path / "train-00001-of-00003")
        shutil.copy(FILES / "examples-gzip.tfrecord", tmp_path / "train-00002-of-00003")
        (tmp_path / "dataset_info.json").write_text("{}")
        labels = [sample["image.class.label"] for sample in all_of(tfrecord(tmp_path))]
        assert labels == [-2, -1, 0, 1, 2] * 2
        assert len(tfrecord(tmp_path / "train-*-of-00003").sizes()) == 10
        assert len(tfrecord(f"{tmp_path}/train-{{00000..00001}}-of-00003").sizes()) == 5


class TestKinds:
    @pytest.mark.parametrize(
        ("values", "field"),
        [
            ([[1], [2]], Field("scalar", dtype="int64")),
            ([*[[1, 2]] * 150, [1, 2, 3]], Field("array", dtype="int64", shape=(None,))),
            ([[1, 2], [3, 4]], Field("array", dtype="int64", shape=(2,))),
            ([[0.5], [1.5]], Field("scalar", dtype="float32")),
            ([[0.5, 1.0], [2.0]], Field("array", dtype="float32", shape=(None,))),
            ([[b"a"], [b""]], Field("text")),
            ([[b"a"], [b"\xff"]], Field("bytes")),
            ([[b"a"], [b"b", b"c"]], Field("json")),
            ([[b"\x0e\x01"], [b"\n\x13"]], Field("bytes")),  # masks that happen to be UTF-8
            ([[b"one\ttwo\r\n"], [b""]], Field("text")),
            ([[b"GIF89a" + bytes(60)], [jpeg()], [jpeg()]], Field("image")),
            ([[jpeg()], [png()]], Field("image")),
            ([[b"BMW, a car in the street, red"], [b"a tree"]], Field("text")),
            ([[jpeg()], [jpeg()], [b""]], Field("image")),
        ],
    )
    @pytest.mark.parametrize("message", [None, UnpackedExample])
    def test_by_the_first_records_and_the_last(self, tmp_path: Path, values: Any, field: Field, message: Any) -> None:
        """The first records and the last determine whether a feature is a scalar, a fixed or a variable array."""
        made = [example({"a": each}, message) if message else example({"a": each}) for each in values]
        source = tfrecord(write_tfrecord(tmp_path / "a.tfrecord", made))
        assert source.fields == {"a": field}
        if field.kind != "image":
            for each, sample in zip(values, all_of(source), strict=True):
                found = sample["a"]
                flat = [v.decode() if field.kind in ("text", "json") else v for v in each]
                assert (found if field.kind == "json" else np.atleast_1d(found).tolist()) == flat

    def test_what_differs_later(self, tmp_path: Path) -> None:
        """A record in between that does not match its field is a bad sample."""
        first: dict[str, Any] = {"a": [1], "b": [b"x"], "c": [b"x", b"y"]}
        other: list[dict[str, Any]] = [{"a": [1, 2]}, {"b": [b"\xff"]}, {"c": [b"\xff", b""]}]
        source = tfrecord(written(tmp_path, *[first] * 100, *({**first, **each} for each in other), first))
        for number, told in enumerate(["'a': expected one value, got 2", "'b': not UTF-8", "'c': not UTF-8"], 100):
            with pytest.raises(BadSample, match=f"record {number}, feature {told}"):
                source[number]

    def test_a_first_record_of_another_kind(self, tmp_path: Path) -> None:
        """Most of the first records decide the kind of a feature; others are bad samples by name."""
        source = tfrecord(written(tmp_path, {"a": [1]}, *[{"a": [0.5]}] * 3))
        assert source.fields["a"] == Field("scalar", dtype="float32")
        with pytest.raises(BadSample, match="record 0, feature 'a': expected float, got int64"):
            source[0]

    def test_several_values_of_bytes(self, tmp_path: Path) -> None:
        """A feature with several values of bytes, such as a list of images, is refused."""
        path = written(tmp_path, {"a": [jpeg(), jpeg()], "b": [1]})
        with pytest.raises(SourceError, match=r"feature 'a': it has 2 bytes values .*; leave it out with fields"):
            tfrecord(path)
        assert all_of(tfrecord(path, fields="b")) == [{"b": 1}]

    def test_names(self, tmp_path: Path) -> None:
        """Feature names become valid field names, and those that would collide must be renamed."""
        path = written(tmp_path, {"image/a b": [1], "größe": [2]})
        assert list(tfrecord(path).fields) == ["gr_e", "image.a_b"]
        assert list(tfrecord(path, fields="x=image/a b,größe").fields) == ["x", "gr_e"]
        with pytest.raises(ConfigError, match="would both be the field 'a_b'"):
            tfrecord(written(tmp_path, {"a b": [1], "a-b": [1], "a_b": [2]}, name="b.tfrecord"))
        with pytest.raises(ConfigError, match="has no 'label'; there are größe, image/a b"):
            tfrecord(path, fields="label")


class TestDamage:
    def test_a_wrong_checksum(self, tmp_path: Path) -> None:
        """A wrong checksum is one bad sample, even in the first record; crc=False ignores it."""
        data = bytearray(b"".join(framed(example({"a": [number]})) for number in range(3)))
        data[12 + len(example({"a": [0]})) - 1] ^= 1
        (tmp_path / "ü 1.tfrecord").write_bytes(data)
        source = tfrecord(tmp_path / "ü 1.tfrecord")
        told = r"ü 1.tfrecord, record 0: damaged: its checksum is [0-9a-f]{8}, it must be"
        with pytest.raises(BadSample, match=told):
            source[0]
        assert all_of(tfrecord(tmp_path / "ü 1.tfrecord", crc=False)) == [{"a": 1}, {"a": 1}, {"a": 2}]
        assert source[2] == {"a": 2}

    def test_a_record_that_is_no_example(self, tmp_path: Path) -> None:
        """A record that is not an Example is a bad sample; a file without any Example is refused."""
        path = write_tfrecord(tmp_path / "a.tfrecord", [b"\x0a\xff\xff", example({"a": [1]})])
        source = tfrecord(path)
        with pytest.raises(BadSample, match=r"record 0: not a tf.train.Example: byte 1: a number is cut short"):
            source[0]
        assert source[1] == {"a": 1}
        write_tfrecord(path, [b"\x0a\xff\xff"])
        with pytest.raises(SourceError, match=r"no record can be read: .*record 0: not a tf.train.Example"):
            tfrecord(path)
        write_tfrecord(path, [b"", b""])
        with pytest.raises(SourceError, match="its records have no features"):
            tfrecord(path)

    @pytest.mark.parametrize(
        ("data", "told"),
        [
            (b"", "holds no records"),
            (gzip.compress(b"", mtime=0), "holds no records"),
            (b"some words, no records", "byte 0: not a"),
        ],
    )
    def test_nothing_there(self, tmp_path: Path, data: bytes, told: str) -> None:
        """Files without records, and other files, are refused."""
        (tmp_path / "a.tfrecord").write_bytes(data)
        with pytest.raises(SourceError, match=told):
            tfrecord(tmp_path / "a.tfrecord")
