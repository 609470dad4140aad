"""WebDataset tars become samples: written by the webdataset library, by tarfile and by shardio itself."""

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import bmp, jpeg, npy, png, webp
from _foreign import write_tar
from _sources import all_of
from webdataset import TarWriter

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.tar import SUFFIXES
from shardio.format.fields import Field
from shardio.output.shard_writer import encode
from shardio.testing import check_source
from shardio_converters.webdataset import webdataset


class TestSamples:
    def test_written_by_the_library(self, tmp_path: Path) -> None:
        """Values of all kinds, encoded by webdataset, are read."""
        names = {"jpg": "image", "cls": "label", "caption.txt": "caption", "json": "json", "box.npy": "box"}
        names |= {"mask.png": "mask", "bin": "bytes"}
        expected = []
        with TarWriter(str(tmp_path / "a.tar")) as writer:
            for number in range(5):
                sample = {"jpg": jpeg(seed=number), "cls": number - 2, "caption.txt": f"größe {number}"}
                sample |= {"json": {"a": [number]}, "box.npy": np.arange(4, dtype=np.float32) + number}
                sample |= {"mask.png": png(seed=number), "bin": bytes([number])}
                writer.write({"__key__": f"dir/x{number}", **sample})
                # The library sorts the files of a sample by extension.
                expected.append({names[name]: sample[name] for name in sorted(sample)} | {"key": f"dir/x{number}"})
        source = webdataset(tmp_path / "a.tar")
        kinds: dict[str, Any] = {"caption": "text", "json": "json", "mask": "image", "bytes": "bytes"}
        kinds |= {"image": "image", "label": "int64", "box": ("float32", (4,)), "key": "text"}
        check_source(source, expected, tmp_path / "out", **kinds)
        assert source.metadata == {"source": "webdataset"}

    def test_written_by_shardio(self, tmp_path: Path) -> None:
        """Shards of shardio keep names and kinds, with scalars as int64, float64 or bool, and have no key."""
        fields = {"image": "image", "label": "int64", "caption": "text", "weight": "float32", "count": "uint8"}
        fields |= {"flag": "bool", "hash": "uint64", "box": ("float32", (2, 2))}
        fields |= {"tokens": ("int32", (None,))}
        fields |= {"meta": "json", "blob": "bytes", "mask": "image", "key": "text", "large": "float64"}
        expected = []
        with shardio.create(tmp_path / "data", fields=fields, container="tar", shard_size=2000) as writer:
            for number in range(6):
                sample = {"image": jpeg(seed=number), "label": number, "caption": f"ü {number}", "weight": number + 0.5}
                sample |= {"count": number, "flag": number % 2 == 0, "hash": 2**64 - 1 - number}
                sample |= {"box": np.full((2, 2), number, np.float32), "tokens": np.arange(number, dtype=np.int32)}
                sample |= {"meta": {"n": number}, "blob": b"\0\xff", "mask": png(seed=number), "key": f"k{number}"}
                writer.append({**sample, "large": 1e300})
                expected.append({**sample, "large": 1e300})
        source, made = webdataset(tmp_path / "data"), shardio.open(tmp_path / "data")
        check_source(source, expected, tmp_path / "out", label="int64", weight="float64", count="int64", flag="bool")
        kept = ("hash", "large", "box", "tokens")
        assert {n: source.fields[n] for n in kept} == {n: made.fields[n] for n in kept}
        assert list(source.fields) == list(fields)

    def test_large_members(self, tmp_path: Path) -> None:
        """A sample of more than a megabyte, whose headers are far apart, is read."""
        data = np.random.default_rng(0).bytes(3 << 20)
        write_tar(
            tmp_path / "a.tar", [("a.bin", data), ("a.cls", b"1"), ("a.txt", b"x"), ("b.bin", b""), ("b.cls", b"2")]
        )
        source = webdataset(tmp_path / "a.tar", fields="bin,cls,txt")
        assert source[0] == {"bin": data, "cls": 1, "txt": "x", "key": "a"}


class TestImages:
    def test_formats_may_differ(self, tmp_path: Path) -> None:
        """Images of one field may be JPEG and PNG, with extensions in any case."""
        files = {"a.jpg": jpeg(), "b.PNG": png(), "c.jpeg": jpeg(seed=1), "d.webp": webp(), "e.bmp": bmp()}
        write_tar(tmp_path / "0.tar", [])  # a tar without samples is skipped
        write_tar(tmp_path / "a.tar", files.items())
        expected = [{"image": data, "key": name[0]} for name, data in files.items()]
        check_source(webdataset(tmp_path / "?.tar"), expected, tmp_path / "out", image="image")
        assert all_of(webdataset(tmp_path / "a.tar", fields="photo=png"))[0] == {"photo": jpeg(), "key": "a"}

    def test_two_images_in_a_sample(self, tmp_path: Path) -> None:
        """Two images in one sample are two fields, and neither replaces the other."""
        files = {"a.jpg": jpeg(), "a.png": png(), "b.jpg": jpeg(seed=1)}
        write_tar(tmp_path / "a.tar", files.items())
        source = webdataset(tmp_path / "a.tar")
        assert source[0] == {"jpg": jpeg(), "png": png(), "key": "a"}
        with pytest.raises(BadSample, match=r"a.tar, key 'b': it has no .png, but .jpg"):
            encode(source[1], source.fields)
        assert webdataset(tmp_path / "a.tar", fields="image=jpg")[1] == {"image": jpeg(seed=1), "key": "b"}


class TestFields:
    @pytest.mark.parametrize("suffix", ["pth", "pyd", "pickle", "pkl", "feat.pt"])
    def test_pickles(self, tmp_path: Path, suffix: str) -> None:
        """Pickles are never loaded, and the other fields are read without them."""
        harm = pickle.dumps({"a": 1})
        write_tar(tmp_path / "a.tar", [(f"a.{suffix}", harm), ("a.txt", b"x"), ("a.cls", b"1")])
        told = rf"a.tar, .{suffix}: a pickle, which is never loaded; "
        with pytest.raises(SourceError, match=told + "leave it out with fields, such as 'txt=txt,label=cls'"):
            webdataset(tmp_path / "a.tar")
        with pytest.raises(SourceError, match=told + "choose others with fields"):
            webdataset(tmp_path / "a.tar", fields=f"x={suffix}")
        assert webdataset(tmp_path, fields="txt,label=cls")[0] == {"txt": "x", "label": 1, "key": "a"}

    def test_names_of_classes(self, tmp_path: Path) -> None:
        """`.cls` files that hold names are text, in place too; numbers that are not whole stay bad samples."""
        write_tar(tmp_path / "a.tar", [("a.cls", b"dog"), ("b.cls", "käfer".encode())])
        source = webdataset(tmp_path)
        assert (source.fields["label"], source[1]["label"]) == (Field("text"), "käfer")
        shardio.index(tmp_path / "a.tar", tmp_path / "in-place")
        loader = shardio.Loader(tmp_path / "in-place", 2, shuffle=None)
        assert next(iter(loader))["label"] == ["dog", "käfer"]
        for data in (b"1.5", b"", b" "):
            write_tar(tmp_path / "a.tar", [("a.cls", data)])
            with pytest.raises(BadSample, match="not an integer"):
                webdataset(tmp_path / "a.tar")[0]

    def test_a_byte_order_mark_before_a_class(self, tmp_path: Path) -> None:
        """Numbers of classes are numbers after a byte order mark, too."""
        write_tar(tmp_path / "a.tar", [("a.cls", b"\xef\xbb\xbf7"), ("b.cls", b"8\r\n")])
        source = webdataset(tmp_path)
        assert [source[number]["label"] for number in range(2)] == [7, 8]

    def test_a_field_by_its_extension(self, tmp_path: Path) -> None:
        """Where a field is asked for by the name of its files, the message says what it is called."""
        write_tar(tmp_path / "a.tar", [("a.jpg", jpeg()), ("a.cls", b"1")])
        shardio.index(tmp_path / "a.tar", tmp_path / "in-place")
        told = r"no field 'jpg'; there are image, label; jpg is the field 'image' here$"
        with pytest.raises(ConfigError, match=told):
            shardio.Loader(tmp_path / "in-place", 1, fields=["jpg"])

    def test_names_that_would_be_one(self, tmp_path: Path) -> None:
        """Files whose field names would collide keep their whole extensions as names."""
        write_tar(tmp_path / "a.tar", [("a.cap.txt", b"x"), ("a.cap.json", b"{}"), ("a.a b.bin", b"y")])
        assert webdataset(tmp_path)[0] == {"cap.txt": "x", "cap.json": {}, "a_b": b"y", "key": "a"}
        write_tar(tmp_path / "a.tar", [("a.x y", b""), ("a.x_y", b"")])
        with pytest.raises(ConfigError, match="the files 'x y' and 'x_y' would both be the field 'x_y'; rename one"):
            webdataset(tmp_path)
        assert list(webdataset(tmp_path, fields="a=x y,b=x_y").fields) == ["a", "b", "key"]

    @pytest.mark.parametrize(
        ("first", "last", "field"),
        [
            (np.zeros((2, 3), "f4"), np.ones((2, 3), "f4"), Field("array", dtype="float32", shape=(2, 3))),
            (np.zeros((2, 3), ">i2"), np.ones((1, 3), ">i2"), Field("array", dtype="int16", shape=(None, 3))),
            (np.zeros(2, "f4"), np.ones(2, "f8"), Field("array", dtype="float64", shape=(2,))),
            (np.float32(1), np.float32(2), Field("scalar", dtype="float32")),
        ],
    )
    def test_arrays(self, tmp_path: Path, first: Any, last: Any, field: Field) -> None:
        """Arrays have a fixed shape if the first and the last sample agree."""
        write_tar(tmp_path / "a.tar", [("a.npy", npy(first)), ("b.x", b""), ("c.npy", npy(last))])
        source = webdataset(tmp_path)
        assert source.fields["npy"] == field
        np.testing.assert_array_equal(source[0]["npy"], first)
        np.testing.assert_array_equal(source[2]["npy"], last)

    @pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([{}], object), np.zeros(2, "f4,i4")])
    def test_arrays_of_no_numbers(self, tmp_path: Path, array: Any) -> None:
        """Arrays of objects, strings and structures are refused."""
        write_tar(tmp_path / "a.tar", [("a.npy", npy(array)), ("a.txt", b"")])
        with pytest.raises(SourceError, match=r"\.npy: .*; leave it out with fields, such as 'txt=txt'"):
            webdataset(tmp_path)

    def test_scalars_in_json(self, tmp_path: Path) -> None:
        """JSON with a name before the extension is a scalar if the first and last sample hold numbers of one kind."""
        values = {"n": [1, 2], "f": [1, 2.5], "b": [True, False], "mixed": [1, True], "none": [None, None]}
        members = [
            (f"{key}.{n}.json", json.dumps(v[i]).encode()) for i, key in enumerate("ab") for n, v in values.items()
        ]
        members.insert(len(values), ("a.json", b"7"))
        write_tar(tmp_path / "a.tar", [*members, ("b.json", b"8")])
        source = webdataset(tmp_path)
        kinds = {name: field.dtype or field.kind for name, field in source.fields.items()}
        scalars = {"n": "int64", "f": "float64", "b": "bool"}
        assert kinds == {**scalars, "mixed": "json", "none": "json", "json": "json", "key": "text"}
        assert source[0] == {name: values[0] for name, values in values.items()} | {"json": 7, "key": "a"}

    @pytest.mark.parametrize(
        ("name", "good", "bad", "told"),
        [
            ("jpg", jpeg(), jpeg()[:-50], ".*cut short"),
            ("cls", b" 12\n", b"1.5", "not an integer: b'1.5'"),
            ("cls", b"-1", b"", "not an integer: b''"),
            ("txt", b"", b"\xff", "not UTF-8"),
            ("json", b"[1]", b"[1", "not JSON"),
            ("json", b"[1]", b"[" * 100_000, "not JSON"),
            ("x.json", b"1", b"1.5", "expected int64, got b'1.5'"),
            ("x.json", b"true", b"1", "expected bool, got b'1'"),
            ("npy", npy(np.arange(2)), b"\x93NUMPY\1\0", "not a .npy file"),
            ("npy", npy(np.arange(2)), npy(np.arange(2))[:-1], "not a .npy file"),
        ],
    )
    def test_bad_values(self, tmp_path: Path, name: str, good: bytes, bad: bytes, told: str) -> None:
        """A bad value is named by tar, key and extension, and its neighbours are read."""
        write_tar(tmp_path / "ü 1.tar", [(f"a.{name}", good), (f"b.{name}", bad), (f"c.{name}", good)])
        source = webdataset(tmp_path)
        with pytest.raises(BadSample, match=rf"ü 1.tar, key 'b', .{name}: {told}"):
            source[1]
        assert source[2]["key"] == "c"


class TestKeys:
    @pytest.mark.parametrize(
        ("keys", "there"),
        [
            (["000000000041", "000000000042"], False),
            (["000000000000", "000000000002"], True),
            (["00000000000", "00000000001"], True),
            (["-00000000001", "000000000000"], True),
            (["d/000000000000", "d/000000000001"], True),
        ],
    )
    def test_running_numbers(self, tmp_path: Path, keys: list[str], there: bool) -> None:
        """Running numbers as keys, as shardio writes them, are left out unless requested."""
        write_tar(tmp_path / "a.tar", [(f"{key}.txt", b"") for key in keys])
        assert ("key" in webdataset(tmp_path).fields) == there
        assert [sample["key"] for sample in all_of(webdataset(tmp_path, key=True))] == keys
        assert "key" not in webdataset(tmp_path, key=False)[0]

    def test_a_field_called_key(self, tmp_path: Path) -> None:
        """A field named key is kept, and requesting keys as well is refused."""
        write_tar(tmp_path / "a.tar", [("a.key.txt", b"other")])
        assert webdataset(tmp_path)[0] == {"key": "other"}
        told = "there would be two fields called 'key'; rename one with fields, or pass key=False"
        with pytest.raises(ConfigError, match=told):
            webdataset(tmp_path, key=True)
        assert webdataset(tmp_path, fields="name=key.txt", key=True)[0] == {"name": "other", "key": "a"}


def test_compressed(tmp_path: Path) -> None:
    """Compressed tars of a folder, by all suffixes, are read like plain ones, and leave no temporary file."""
    plain = write_tar(tmp_path / "plain", [("a.txt", b"x")]).read_bytes()
    (tmp_path / "in").mkdir()
    for suffix in SUFFIXES:
        (tmp_path / "in" / f"a{suffix}").write_bytes(gzip.compress(plain))
    assert [sample["txt"] for sample in all_of(webdataset(tmp_path / "in"))] == ["x"] * len(SUFFIXES)
    assert len(os.listdir(tmp_path / "in")) == len(SUFFIXES)


def test_no_sample_can_be_read(tmp_path: Path) -> None:
    """Tars in which every sample is bad, or there is none, are refused."""
    write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("a.TXT", b"2")])
    with pytest.raises(SourceError, match=r"no sample can be read: .*two files"):
        webdataset(tmp_path)
    write_tar(tmp_path / "a.tar", [("README", b"")])
    with pytest.raises(SourceError, match="holds no samples"):
        webdataset(tmp_path)


class TestFilesThatAreApart:
    JPEGS = tuple((f"{n}.jpg", jpeg(seed=n)) for n in range(4))
    LABELS = tuple((f"{n}.cls", b"1") for n in range(4))

    @pytest.mark.parametrize(
        "members",
        [
            [*JPEGS, *LABELS],  # by kind
            [JPEGS[0], JPEGS[1], LABELS[1], LABELS[0]],  # one within another
        ],
    )
    def test_the_cause_is_told(self, tmp_path: Path, members: Any) -> None:
        """Halves of a sample that are not adjacent are named as such, instead of advice to let samples lack fields."""
        path = write_tar(tmp_path / "a.tar", members)
        source = webdataset(path)
        (remark,), (hint,) = source.remarks, source.hints
        assert remark.startswith("left out .cls, which ")
        assert all("not adjacent: `tar --sort=name` puts them together" in told for told in (remark, hint))
        assert "optional" not in remark
        with pytest.raises(BadSample, match=r"it has no .jpg, but .cls; .*not adjacent.*tar --sort=name"):
            shardio.convert(source, tmp_path / "out", tell=lambda note: None)
        both = webdataset(path, fields="image=jpg,label=cls", optional="image,label")
        assert "files of key '0' are in several samples" in both.hints[0]
        with pytest.raises(SourceError, match="tar --sort=name"):
            shardio.index(path, tmp_path / "index", strict=True)

    @pytest.mark.parametrize(
        "members",
        [
            [*zip(JPEGS, LABELS, strict=True), (JPEGS[0], LABELS[0])],  # a sample again, whole
            [(JPEGS[0],), (JPEGS[1], LABELS[1])],  # one that lacks a label
            [(("a.0.jpg", b""), ("a.1.jpg", b"")), (("b.0.jpg", b""), ("b.1.jpg", b""))],  # several views
        ],
    )
    def test_ordinary_tars(self, tmp_path: Path, members: Any) -> None:
        """Whole samples again, samples that lack a file and several images of a sample are no such halves."""
        files = [file for sample in members for file in sample]
        assert not webdataset(write_tar(tmp_path / "a.tar", files)).hints

    def test_keys_with_dots(self, tmp_path: Path) -> None:
        """Files that are one sample because their keys hold dots are named with the rule."""
        members = [(f"22.{n:02}.{kind}", data) for n in range(3) for kind, data in (("jpg", jpeg()), ("cls", b"1"))]
        (hint,) = webdataset(write_tar(tmp_path / "a.tar", members)).hints
        assert hint.startswith("the 6 files from '22.00.jpg' on are one sample, as a key ends at the first dot")
