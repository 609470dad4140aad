"""The tar container: other programs read it, and its index detects damage."""

import gc
import subprocess
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from _builders import jpeg, png

from shardio import containers
from shardio.containers import tar as layout
from shardio.errors import BadSample, ConfigError
from shardio.format.fields import CHECKSUM, Field, as_fields, infer_fields, shape_column, with_hidden
from shardio.testing.samples import COUNT, FIELDS, FIRST, stored, write

from ._shards import written

TAR = containers.get("tar")


def write_tar(path: Path, samples: list[dict[str, Any]], fields: dict[str, Any], first: int = 0) -> Path:
    """A tar of the samples, whose hidden columns are zeros."""
    checked = as_fields(fields)
    hidden = with_hidden(checked)
    zeros = {name: bytes(field.row_bytes) for name, field in hidden.items() if name not in checked}
    stored = ({name: checked[name].encode(value) for name, value in sample.items()} | zeros for sample in samples)
    return written(TAR, path, hidden, stored, first)


def members(path: Path) -> list[str]:
    """The output of `tar tf`; a complaint of tar is a failure."""
    result = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout.split()


def test_member_names(tmp_path: Path) -> None:
    """Members are named by the WebDataset convention."""
    sample = {
        "image": (jpeg(), "image"),  # the main image: the extension alone
        "mask": (png(channels=1), "image"),  # another image: its name before the extension
        "label": (3, "int64"),  # the class
        "weight": (0.5, "float32"),  # a number that is not the class
        "txt": ("hello", "text"),  # fields named like their extension
        "caption": ("hallo", "text"),
        "json": ({"a": 1}, "json"),
        "raw.v2": (b"\0", "bytes"),  # a dot in the name
        "tensor": (np.zeros(3, np.int8), ("int8", (3,))),
        "npy": (np.zeros(2), Field("array", dtype="float64")),
    }
    values, fields = ({name: pair[i] for name, pair in sample.items()} for i in (0, 1))
    path = write_tar(tmp_path / "shard-000007.tar", [values], fields, first=42)
    expected = "jpg mask.png cls weight.json txt caption.txt json raw.v2.bin tensor.npy npy"
    assert members(path) == [f"000000000042.{extension}" for extension in expected.split()]


def test_extracted_files(tmp_path: Path) -> None:
    """`tar xf` extracts files of the types that their names state."""
    path = write(TAR, tmp_path / "s.tar")
    subprocess.run(["tar", "xf", path, "-C", tmp_path], check=True)
    key = tmp_path / f"{FIRST + 3:012d}"
    for suffix, name in ((".jpg", "image"), (".caption.txt", "caption"), (".blob.bin", "blob"), (".meta.json", "meta")):
        assert Path(f"{key}{suffix}").read_bytes() == stored(3)[name]
    for suffix, name in ((".tensor.npy", "tensor"), (".wide.npy", "wide"), (".points.npy", "points")):
        np.testing.assert_array_equal(np.load(f"{key}{suffix}"), FIELDS[name].decode(stored(3)[name]))
    for suffix, text in ((".cls", "-2"), (".good.json", "false"), (".weight.json", "1.0")):
        assert Path(f"{key}{suffix}").read_text() == text


def test_headers_are_those_of_tarfile(tmp_path: Path) -> None:
    """Headers are byte for byte those of the standard library for the same member."""
    path = write(TAR, tmp_path / "s.tar")
    data = path.read_bytes()
    with tarfile.open(path) as archive:
        for member in archive:
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
            assert (member.uname, member.gname) == ("", "")
            assert data[member.offset : member.offset + 512] == member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    assert len(data) % 512 == 0
    assert data[-1024:] == bytes(1024)


def test_webdataset_reads_it(tmp_path: Path) -> None:
    """The webdataset library groups and decodes the samples."""
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    sample = {"image": jpeg(), "label": 7, "tensor": tensor, "meta": {"a": [1]}, "caption": "grüße", "score": 0.25}
    fields = {name: infer_fields({name: value})[name] for name, value in sample.items()}
    path = write_tar(tmp_path / "s.tar", [sample, {**sample, "label": 8}], fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset does not close the tar
        found = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
        gc.collect()
    assert [(one["__key__"], one["cls"]) for one in found] == [("000000000000", 7), ("000000000001", 8)]
    for one in found:
        assert one["jpg"] == sample["image"]
        np.testing.assert_array_equal(one["tensor.npy"], tensor)
        assert (one["meta.json"], one["caption.txt"], one["score.json"]) == ({"a": [1]}, "grüße", 0.25)


def test_index_is_a_plain_array(tmp_path: Path) -> None:
    """numpy.load reads the index, and its offsets are those of the values in the tar."""
    path = write(TAR, tmp_path / "shard-000000.tar")
    index, data = np.load(tmp_path / "shard-000000.idx.npy"), path.read_bytes()
    assert len(index) == COUNT
    for name in ("image", "tensor", "points", "caption"):
        start, size = int(index[f"{name}.offset"][5]), int(index[f"{name}.size"][5])
        assert data[start : start + size] == stored(5)[name]
    for name in ("label", "weight", "good", CHECKSUM, shape_column("image")):
        assert index[name][5].tobytes() == stored(5)[name]


@pytest.mark.parametrize(
    "fields",
    [
        {"image": "image", "jpg": "image"},  # both KEY.jpg for a JPEG
        {"image": "image", "bin": "bytes"},  # both KEY.bin if the image has no known format
        {"Caption": "text", "caption": "text"},  # webdataset lower-cases extensions
        {"a": "bytes", "a.size": "int8"},  # two columns of the index
    ],
)
def test_fields_that_collide(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Fields whose members or index columns would have the same name are refused before anything is written."""
    with pytest.raises(ConfigError, match="rename"):
        TAR.writer(tmp_path / "s.tar", with_hidden(as_fields(fields)), 0)
    assert list(tmp_path.iterdir()) == []


def test_long_names(tmp_path: Path) -> None:
    """A field whose member name exceeds a ustar header is refused; the longest that fits is accepted."""
    longest = "n" * (100 - 12 - len("..txt"))
    (name,) = members(write_tar(tmp_path / "s.tar", [{longest: "x"}], {longest: "text"}))
    assert len(name) == 100
    with pytest.raises(ConfigError, match="100 letters"):
        TAR.writer(tmp_path / "s.tar", with_hidden(as_fields({longest + "n": "text"})), 0)


def test_value_too_large_for_ustar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value too large for a ustar header is a bad sample, and the shard continues without it."""
    monkeypatch.setattr(layout, "LARGEST_MEMBER", 10)
    writer = TAR.writer(tmp_path / "s.tar", as_fields({"blob": "bytes"}), 5)
    writer.append({"blob": b"0123456789"})
    with pytest.raises(BadSample, match=r"s\.tar, sample 6, field 'blob': .* at most 10 bytes, got 11"):
        writer.append({"blob": b"0123456789a"})
    writer.close()
    assert members(tmp_path / "s.tar") == ["000000000005.blob.bin"]


@pytest.mark.parametrize(
    ("field", "value", "suffix", "stored"),
    [
        ("image", jpeg(), "jpg", jpeg()),
        ("image", png(), "png", png()),
        ("image", b"RIFF....WEBP", "webp", b"RIFF....WEBP"),
        ("image", b"BM" + bytes(30), "bmp", b"BM" + bytes(30)),
        ("image", b"what", "bin", b"what"),
        ("complex64", 1 + 2j, "x.json", b"[1.0, 2.0]"),  # JSON has no complex numbers
        ("uint64", 2**64 - 1, "x.json", b"18446744073709551615"),
        ("float16", 0.5, "x.json", b"0.5"),
        ("bool", True, "x.json", b"true"),
    ],
)
def test_members_of_values(tmp_path: Path, field: str, value: Any, suffix: str, stored: bytes) -> None:
    """The first bytes of an image determine its extension; the member of a scalar holds its value as JSON."""
    name = "image" if field == "image" else "x"
    path = write_tar(tmp_path / "s.tar", [{name: value}], {name: field})
    with tarfile.open(path) as archive:
        assert archive.getnames() == [f"000000000000.{suffix}"]
        assert archive.extractfile(archive.getnames()[0]).read() == stored
