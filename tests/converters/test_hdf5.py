"""HDF5 files of any layout become samples, and a downloaded file cannot make shardio read other files."""

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from _builders import overwrite, write_files
from _cli import python
from _datasets import packed
from _hdf5_files import chunk_of
from _hdf5_files import write_hdf5 as write
from _sources import COUNT, PICTURES, WORDS, check_kinds, numbers

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.system import helper_process
from shardio.testing.sources import check_source
from shardio_converters._source_base import rows_at_once
from shardio_converters.hdf5 import hdf5


def ragged(path: Path, name: str, values: list[bytes], **options: Any) -> Path:
    """Add a group of `data` and `offsets` to a file."""
    data = {"data": np.frombuffer(b"".join(values), np.uint8), **options}
    return write(path, "a", **{f"{name}/data": data, f"{name}/offsets": np.cumsum([0, *map(len, values)])})


def with_offset(path: Path, row: int, offset: int) -> Path:
    """A copy of a file with another offset in its group `x`."""
    copy = path.with_stem(f"{path.stem}b")
    with h5py.File(shutil.copy(path, copy), "a") as file:
        file["x/offsets"][row] = offset
    return copy


def rows(values: list[Any], dtype: Any) -> dict[str, Any]:
    """The arguments for a dataset of values of different lengths."""
    data = np.empty(len(values), object)
    data[:] = values
    return {"data": data, "dtype": dtype}


ENUM = h5py.enum_dtype({"dog": 1, "cat": 0}, "u1")
VALUES = [np.arange(length, dtype=np.float32) for length in (2, 0, 1, 5, 3)]
PAIRS = np.array([(i, (i / 2, b"s%d" % i), [[i, 1], [2, 3]]) for i in range(COUNT)], [
    ("id", "<u2"), ("in", [("half", ">f8"), ("name", "S4")]), ("box", "i1", (2, 2)),
])  # fmt: skip

KINDS: dict[str, tuple[Any, Field, list[Any]]] = {
    **{
        dtype: (numbers(dtype), Field("scalar", dtype=np.dtype(dtype).name), numbers(dtype).tolist())
        for dtype in ("u1", "i2", ">u4", "i8", "u8", "f2", ">f4", "f8", "?", "c8", ">c16")
    },
    "arrays": (numbers("u1", 2, 3), Field("array", dtype="uint8", shape=(2, 3)), list(numbers("u1", 2, 3))),
    "big-endian arrays": (numbers(">i4", 3), Field("array", dtype="int32", shape=(3,)), list(numbers("i4", 3))),
    "halves": (numbers("f2", 2), Field("array", dtype="float16", shape=(2,)), list(numbers("f2", 2))),
    "flags": (numbers("?", 2), Field("array", dtype="bool", shape=(2,)), list(numbers("?", 2))),
    "strings": ({"data": WORDS, "dtype": h5py.string_dtype()}, Field("text"), WORDS),
    "fixed strings": (
        {"data": [w.encode() for w in WORDS], "dtype": h5py.string_dtype(length=300)}, Field("text"), WORDS,
    ),
    "rows of strings": (
        {"data": [[w, "b"] for w in WORDS], "dtype": h5py.string_dtype()}, Field("json"), [[w, "b"] for w in WORDS],
    ),
    "bytes": (
        rows([np.frombuffer(w.encode(), "u1") for w in WORDS], h5py.vlen_dtype("u1")), Field("bytes"),
        [w.encode() for w in WORDS],
    ),
    "images": (rows([np.frombuffer(p, "u1") for p in PICTURES], h5py.vlen_dtype("u1")), Field("image"), PICTURES),
    "rows of numbers": (rows(VALUES, h5py.vlen_dtype("f4")), Field("array", dtype="float32", shape=(None,)), VALUES),
    "opaque": (np.array([b"%d\0\0" % i for i in range(5)], "V3"), Field("bytes"), [b"%d\0\0" % i for i in range(5)]),
    "enumeration": ({"data": [0, 1, 1, 0, 1], "dtype": ENUM}, Field("scalar", dtype="uint8"), [0, 1, 1, 0, 1]),
}  # fmt: skip


class TestKinds:
    def test_every_kind(self, tmp_path: Path) -> None:
        """Datasets of every type that a field can hold give their values, through every container."""
        path = write(tmp_path / "a.h5", **{name: stored for name, (stored, *_) in KINDS.items()})
        check_kinds(hdf5, path, KINDS)

    def test_a_compound(self, tmp_path: Path) -> None:
        """Every member of a compound is a field, nested members too; nested arrays extend the shape."""
        source = hdf5(write(tmp_path / "a.h5", table=PAIRS))
        expected = [
            {
                "table.id": i, "table.in.half": i / 2, "table.in.name": f"s{i}",
                "table.box": np.array([[i, 1], [2, 3]], np.int8),
            }
            for i in range(COUNT)
        ]  # fmt: skip
        check_source(source, expected, tmp_path / "out", **{"table.box": Field("array", dtype="int8", shape=(2, 2))})
        chosen = hdf5(tmp_path / "a.h5", fields="name=table/in/name,label=table/id")
        assert [dict(chosen[i]) for i in range(COUNT)] == [{"name": f"s{i}", "label": i} for i in range(COUNT)]
        assert chosen.column("label").tolist() == list(range(COUNT))

    def test_a_compound_of_rows_that_vary(self, tmp_path: Path) -> None:
        """Members may be strings and variable-length rows; those never written are empty."""
        kind = np.dtype([("a", h5py.vlen_dtype("f4")), ("b", h5py.vlen_dtype("u1")), ("s", h5py.string_dtype())])
        with h5py.File(tmp_path / "a.h5", "w") as file:
            table = file.create_dataset("t", (2,), kind)
            table[1] = (np.arange(2, dtype="f4"), np.frombuffer(b"xyz", "u1"), "é")
        expected = [
            {"t.a": np.empty(0, "f4"), "t.b": b"", "t.s": ""},
            {"t.a": np.arange(2, dtype="f4"), "t.b": b"xyz", "t.s": "é"},
        ]
        check_source(hdf5(tmp_path / "a.h5"), expected, tmp_path / "out")

    @pytest.mark.parametrize("options", [{}, {"chunks": (1000,), "compression": "gzip"}])
    @pytest.mark.parametrize("values", [PICTURES, [b"", b"abc", b"", b"\xff" * 9000, b"z"]])
    def test_a_group_of_data_and_offsets(self, tmp_path: Path, values: list[bytes], options: dict[str, Any]) -> None:
        """A group of bytes and offsets is a field, whatever its chunks; its sizes are exact."""
        path = write(tmp_path / "a.h5", label=numbers("u1"))
        source = hdf5(ragged(path, "x", values, maxshape=(None,) if options else None, **options))
        kind = Field("image" if values is PICTURES else "bytes")
        check_source(source, [{"label": i, "x": v} for i, v in enumerate(values)], tmp_path / "out", x=kind)
        assert source.sizes().tolist() == [8 + len(value) for value in values]

    @pytest.mark.parametrize("dtype", ["<f4", ">i2", "?"])
    @pytest.mark.parametrize("entry", [(), (3,), (2, 2)])
    def test_a_group_of_numbers_and_offsets(self, dtype: str, entry: tuple[int, ...], tmp_path: Path) -> None:
        """Offsets count entries of numbers of any type and shape; values may be empty."""
        values = [numbers(dtype, 4, *entry)[n][: (0, 3, 1, 4, 0)[n]] for n in range(COUNT)]
        path = write(tmp_path / "a.h5", x__data=np.concatenate(values), x__offsets=np.cumsum([0, *map(len, values)]))
        field = ("bool" if dtype == "?" else np.dtype(dtype).name, (None, *entry))
        source = hdf5(path)
        check_source(source, [{"x": value} for value in values], tmp_path / "out", x=field)
        assert source.sizes().tolist() == [value.nbytes for value in values]
        with pytest.raises(BadSample, match=r"b.h5, x, row 1: offsets 0 to 99 are not within 8 entries"):
            hdf5(with_offset(path, 2, 99))[1]

    def test_shards_of_shardio(self, tmp_path: Path) -> None:
        """Shards of shardio are read without their hidden columns; ragged fields stay ragged."""
        fields: dict[str, Any] = {"tokens": ("uint16", (None,)), "points": ("float32", (None, 3)), "label": "int64"}
        samples = [
            {"image": picture, "label": i, "points": np.full((i, 3), i, "f4"), "tokens": np.arange(i % 3, dtype="u2")}
            for i, picture in enumerate(PICTURES)
        ]
        packed(tmp_path / "d", samples, container="hdf5", shard_size="1MB", fields={"image": "image", **fields})
        check_source(hdf5(tmp_path / "d" / "shard-000000.h5"), samples, tmp_path / "out", **fields)

    def test_labels(self, tmp_path: Path) -> None:
        """Integers named `label` are int64, and the names of an enumeration are the classes."""
        write(tmp_path / "a.h5", y={"data": [0, 1, 1, 0, 1], "dtype": ENUM})
        source = hdf5(tmp_path / "a.h5", fields={"label": "y"})
        check_source(source, [{"label": y} for y in (0, 1, 1, 0, 1)], tmp_path / "out", label="int64")
        assert source.metadata == {"source": "hdf5", "classes": ["cat", "dog"]}

    @pytest.mark.parametrize(("name", "reason"), [
        ("reference", "references"), ("region", "references"), ("bits", "bitfields"), ("dates", "datetimes"),
        ("time", "TypeTimeID"), ("long", "float128"), ("deep", "variable-length object"), ("one", "it has no rows"),
        ("none", "it has no rows"), ("wide", r"\[2\] of variable-length uint8"),
        ("swapped", "variable-length >f4: h5py confuses"),
    ])  # fmt: skip
    def test_what_no_field_holds(self, tmp_path: Path, name: str, reason: str) -> None:
        """A dataset that no field can hold is left out, and refused with the reason when it is chosen."""
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for other, kind in (("reference", h5py.ref_dtype), ("region", h5py.regionref_dtype), ("long", "g")):
                file.create_dataset(other, (COUNT,), kind)
            file.create_dataset("deep", (COUNT,), h5py.vlen_dtype(h5py.string_dtype()))
            file.create_dataset("wide", (COUNT, 2), h5py.vlen_dtype("u1"))
            file.create_dataset("swapped", (COUNT,), h5py.vlen_dtype(">f4"))
            dates = np.arange(COUNT).astype("M8[s]")
            file["dates"] = dates.astype(h5py.opaque_dtype(dates.dtype))
            file["one"], file["none"], file["x"] = 1.5, h5py.Empty("f4"), numbers("u1")
            for other, kind in (("bits", h5py.h5t.STD_B16LE), ("time", h5py.h5t.UNIX_D32LE)):
                h5py.h5d.create(file.id, other.encode(), kind, h5py.h5s.create_simple((COUNT,)))
            file["type"] = np.dtype("f4")
        assert list(hdf5(tmp_path / "a.h5").fields) == ["x"]
        with pytest.raises(SourceError, match=f"'{name}' cannot be taken: .*{reason}"):
            hdf5(tmp_path / "a.h5", fields={"x": "x", "y": name})


def test_empty_arrays_and_axes_of_matlab(tmp_path: Path) -> None:
    """An empty array is left out, not taken for its size; a hint says that axes are reversed."""
    numbers = np.arange(2 * 3 * 6).reshape(2, 3, 6)
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=512) as file:
        file["images"], file["x"] = numbers, np.zeros(2, "u8")
        file["x"].attrs["MATLAB_empty"] = np.uint8(1)
    plain = (tmp_path / "a.mat").read_bytes()
    assert not [*hdf5(tmp_path / "a.mat").remarks, *hdf5(tmp_path / "a.mat").hints]
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + plain[128:])
    source = hdf5(tmp_path / "a.mat")
    assert source.remarks == ("left out 'x': an empty array of MATLAB, of which it holds the size",)
    told = "'images', [2, 3, 6] here, is 6 x 3 x 2 in MATLAB, of which samples are along the last axis"
    assert told in source.hints[0]
    check_source(source, [{"images": row} for row in numbers], tmp_path / "out")
    assert hdf5(tmp_path / "a.mat", fields="images").remarks == ()
    with pytest.raises(SourceError, match="'x' cannot be taken: an empty array of MATLAB"):
        hdf5(tmp_path / "a.mat", fields="x")


class TestFields:
    def test_names(self, tmp_path: Path) -> None:
        """Without `fields` the path of a dataset becomes its name, with dots; `fields` chooses and names datasets."""
        odd = {"data__my label": numbers("i2"), "c=d": numbers("f4")}
        write(tmp_path / "a.h5", data__images=numbers("u1", 2), **odd)
        assert list(hdf5(tmp_path / "a.h5").fields) == ["c_d", "data.images", "data.my_label"]
        chosen = hdf5(tmp_path / "a.h5", fields="label=data/my label, c=d, data/images")
        assert list(chosen.fields) == ["label", "c_d", "data.images"]
        assert chosen[3]["label"] == 3

    def test_rows_must_agree(self, tmp_path: Path) -> None:
        """Datasets of several lengths are refused with a list, and some of one length can be chosen."""
        path = write(tmp_path / "a.h5", train__x=numbers("u1", 2), train__y=numbers("i8"), mean=np.zeros(2))
        with pytest.raises(SourceError, match=r"a.h5: what .* with fields: mean \[2\], train/x \[5, 2\], train/y"):
            hdf5(path)
        told = r"same number of rows; choose some with fields: mean \[2\], train/y \[5\]"
        with pytest.raises(SourceError, match=told):
            hdf5(path, fields="mean,train/y")
        assert len(hdf5(path, fields="train/x,train/y").sizes()) == COUNT


class TestFiles:
    def test_a_directory(self, tmp_path: Path) -> None:
        """The HDF5 files of a directory are joined by name, whatever their suffix; hidden and others are ignored."""
        parts = {"-b é.hdf5": [3, 4], "a b": [5], "c.HE5": [], "d.nc": [6, 7, 8]}
        for name, labels in parts.items():
            texts = {"data": [f"{n}" for n in labels], "dtype": h5py.string_dtype()}
            write(tmp_path / "in" / name, label=np.array(labels, "u1"), x=texts)
        write_files(tmp_path / "in", {"notes.txt": "words", "._d.h5": "a Mac was here", "folder.h5/file": ""})
        source = hdf5(tmp_path / "in")
        assert source.remarks == (f"left out 1 file beside the HDF5 files in {tmp_path / 'in'}: notes.txt",)
        check_source(source, [{"label": n, "x": f"{n}"} for n in range(3, 9)], tmp_path / "out")

    def test_one_file_is_open_at_a_time(self, tmp_path: Path) -> None:
        """One file of many is open at a time."""
        for number in range(4):
            write(tmp_path / f"{number}.h5", x=numbers("u1"))

        def opened() -> int:
            links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
            return sum(link.resolve().parent == tmp_path for link in links)

        source = hdf5(tmp_path)
        assert [source[i]["x"] for i in (0, 19, 7, 13)] == [0, 4, 2, 3]
        assert opened() == 1
        del source
        assert opened() == 0

    @pytest.mark.parametrize(("other", "reason"), [
        ({"y": numbers("u1")}, "b.h5 has 'y', .*a.h5 has not$"),
        ({"x": numbers("u2")}, r"'x' is scalar, uint16 in .*b.h5, and scalar, uint8 in .*a.h5$"),
        ({"x": numbers("u1", 2)}, r"uint8, \[2\] in .*b.h5, and scalar, uint8 in .*a.h5$"),
    ])  # fmt: skip
    def test_files_must_agree(self, tmp_path: Path, other: dict[str, Any], reason: str) -> None:
        """Files that differ in a field are refused with the file and the field."""
        write(tmp_path / "a.h5", x=numbers("u1"))
        write(tmp_path / "b.h5", **other)
        with pytest.raises(SourceError, match=f"files must agree: .*{reason}"):
            hdf5(tmp_path)


class TestLinks:
    @pytest.fixture
    def linked(self, tmp_path: Path) -> Path:
        """A file with every kind of link."""
        write(tmp_path / "other.h5", x=numbers("u1") + 100, g__y=numbers("u1") + 50)
        with h5py.File(write(tmp_path / "a.h5", g__x=numbers("u1")), "a") as file:
            file["again"] = file["g/x"]
            file["soft"], file["g/relative"] = h5py.SoftLink("/g"), h5py.SoftLink("x")
            file["soft2"], file["nowhere"] = h5py.SoftLink("soft/relative"), h5py.SoftLink("/nothing")
            file["round"], file["g/up"] = h5py.SoftLink("/round"), file["/"]
        return tmp_path / "a.h5"

    def test_within_the_file(self, linked: Path) -> None:
        """A dataset with several names is taken once, can be chosen by each name, and loops of links end."""
        assert list(hdf5(linked).fields) == ["again"]
        for name in ("again", "g/x", "soft/x", "g/relative", "soft/relative", "soft2"):
            assert hdf5(linked, fields={"x": name})[3]["x"] == 3
        for name in ("nowhere", "round", "round/x"):
            with pytest.raises(ConfigError, match=f"has no '{name}'"):
                hdf5(linked, fields={"x": name})

    @staticmethod
    def external(path: Path) -> None:
        with h5py.File(path, "a") as file:
            file["e"] = h5py.ExternalLink("other.h5", "/")

    @staticmethod
    def through_a_soft_link(path: Path) -> None:
        with h5py.File(path, "a") as file:
            file["f"] = h5py.ExternalLink("other.h5", "/")
            file["e"] = h5py.SoftLink("f")

    @staticmethod
    def virtual(path: Path, name: str = "e/x", source: str = "other.h5", of: str = "x") -> None:
        layout = h5py.VirtualLayout((COUNT,), "u1")
        layout[:] = h5py.VirtualSource(source, of, (COUNT,))
        with h5py.File(path, "a") as file:
            file.create_virtual_dataset(name, layout)

    @staticmethod
    def raw(path: Path) -> None:
        other = path.parent / "other.raw"
        other.write_bytes(bytes(range(100, 105)))
        write(path, "a", e__x={"shape": (COUNT,), "dtype": "u1", "external": [(str(other), 0, COUNT)]})

    OUTSIDE = [external, through_a_soft_link, virtual, raw]

    @pytest.mark.parametrize("outside", OUTSIDE)
    def test_other_files_are_not_read(self, linked: Path, outside: Callable[[Path], None]) -> None:
        """Data in another file is refused by name, and datasets in the file itself can still be chosen."""
        outside(linked)
        told = r"keeps data in other files: '[ef].*other"
        with pytest.raises(SourceError, match=told + r".* \(external_links=True\) reads"):
            hdf5(linked)
        with pytest.raises(ConfigError, match=f"has no 'e/x'.*{told}"):
            hdf5(linked, fields="e/x")
        assert hdf5(linked, fields="x=again")[1]["x"] == 1

    def test_virtual_datasets_of_the_file_itself(self, linked: Path) -> None:
        """A virtual dataset of the same file is refused too, as what it consists of may be in other files in turn."""
        self.raw(linked)
        self.virtual(linked, "v", ".", "e/x")
        with pytest.raises(ConfigError, match=r"has no 'v'.*'v' \(a virtual dataset of others in this file\)"):
            hdf5(linked, fields="v")
        with h5py.File(linked, "a") as file:
            del file["e/x"]
        with pytest.raises(ConfigError, match=r"the file has virtual datasets, which may lead to other files: 'v' \("):
            hdf5(linked, fields="v")
        self.raw(linked)
        assert hdf5(linked, fields="v", external_links=True)[4]["v"] == 104

    @pytest.mark.parametrize("outside", OUTSIDE)
    def test_other_files_are_read_when_told(self, linked: Path, outside: Callable[[Path], None]) -> None:
        """With external_links data of other files is read."""
        outside(linked)
        source = hdf5(linked, fields="x=e/x,y=again", external_links=True)
        assert dict(pickle.loads(pickle.dumps(source))[4]) == {"x": 104, "y": 4}  # noqa: S301
        assert {"again", "e.x"} & set(hdf5(linked, external_links=True).fields)

    @pytest.mark.parametrize("outside", [external, virtual, raw])
    def test_other_files_that_are_missing(self, linked: Path, outside: Callable[[Path], None]) -> None:
        """A virtual dataset whose file is missing is refused; HDF5 itself would return zeros."""
        outside(linked)
        for path in linked.parent.glob("other.*"):
            path.unlink()
        why = "No such file|is missing|can't open file|unable to open external"
        with pytest.raises(SourceError, match=f"keeps data in other files: 'e.*({why})"):
            hdf5(linked, external_links=True)

    def test_files_that_link_to_each_other(self, linked: Path) -> None:
        """A loop of links through two files ends."""
        self.external(linked)
        with h5py.File(linked.parent / "other.h5", "a") as file:
            file["back"] = h5py.ExternalLink("a.h5", "/")
        assert set(hdf5(linked, external_links=True).fields) == {"again", "e.g.y", "e.x"}


def damage_chunk(path: Path, name: str, number: int) -> None:
    """Overwrite the middle of a chunk."""
    info = chunk_of(path, name, number)
    overwrite(path, info.byte_offset + info.size // 2, b"\xff" * (info.size // 2))


class TestDamage:
    def test_no_hdf5(self, tmp_path: Path) -> None:
        """A file that is not HDF5, or cut short, a folder without HDF5 files and a broken link are refused by name."""
        with pytest.raises(SourceError, match=r"holds no HDF5 files"):
            hdf5(tmp_path)
        with pytest.raises(SourceError, match="holds no datasets with rows that can be taken: none"):
            hdf5(write(tmp_path / "a.h5"))
        whole = write(tmp_path / "a.h5", x=np.zeros((100, 100))).read_bytes()
        for data in (b"", b"\x89HDF\r\n\x1a\n", b"words" * 1000, whole[:8000], whole[:-800]):
            (tmp_path / "a.h5").write_bytes(data)
            told = r"a.h5 cannot be read as HDF5: " + ".*truncated" * (len(data) > 6000)
            with pytest.raises(SourceError, match=told):
                hdf5(tmp_path)
        (tmp_path / "a.h5").unlink()
        (tmp_path / "away.h5").symlink_to("nowhere")
        with pytest.raises(SourceError, match=r"away.h5 does not exist"):
            hdf5(tmp_path)

    @pytest.mark.parametrize("shape", [(1 << 31,), (1 << 40, 1000)])
    def test_more_rows_than_there_is_room_for(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        """A small file that claims billions of rows is refused before memory is allocated."""
        path = write(tmp_path / "a.h5", x={"shape": shape, "dtype": "u1", "chunks": True})
        told = rf"a.h5 claims {shape[0]} rows, more than its {path.stat().st_size} bytes have room for"
        with pytest.raises(SourceError, match=told):
            hdf5(path)

    def test_rows_that_nobody_wrote(self, tmp_path: Path) -> None:
        """Millions of rows that were never written take no room and hold the fill value."""
        path = write(tmp_path / "a.h5", x={"shape": 5_000_000, "dtype": "i2", "chunks": True, "fillvalue": 7})
        assert hdf5(path)[4_999_999] == {"x": 7}

    def test_a_damaged_chunk(self, tmp_path: Path) -> None:
        """Only the rows of a damaged chunk are bad, and they are named; the column is not offered for conditions."""
        data = np.random.default_rng(0).integers(0, 255, (8, 10), np.uint8)
        zipped = {"data": data[:, 0], "chunks": (2,), "compression": "gzip"}
        path = write(tmp_path / "a.h5", x={"data": data, "chunks": (2, 10), "compression": "gzip"}, y=zipped)
        source = hdf5(path)
        damage_chunk(path, "x", 1)
        damage_chunk(path, "y", 1)
        assert [source[i]["x"].tolist() for i in (0, 1, 4, 5, 6, 7)] == data[[0, 1, 4, 5, 6, 7]].tolist()
        for row in (2, 3):
            with pytest.raises(BadSample, match=rf"a.h5, x, row {row}: damaged: deflate: "):
                source[row]
        assert source.column("y") is None
        assert hdf5(path).sizes().tolist() == [11] * 8

    def test_a_damaged_part_of_bytes(self, tmp_path: Path) -> None:
        """A damaged chunk of bytes and offsets beyond the data make bad samples."""
        values = [bytes([i]) * 500 for i in range(COUNT)]
        path = ragged(tmp_path / "a.h5", "x", values, chunks=(500,), compression="gzip")
        damage_chunk(path, "x/data", 2)
        source = hdf5(path := with_offset(path, 5, 9999))
        assert [source[i]["x"] for i in (0, 1, 3)] == [values[0], values[1], values[3]]
        with pytest.raises(BadSample, match=r"b.h5, x, row 2: damaged"):
            source[2]
        with pytest.raises(BadSample, match=r"b.h5, x, row 4: offsets 2000 to 9999 are not within 2500 bytes"):
            source[4]
        assert source.sizes().tolist() == [500, 500, 500, 500, 7999]
        backwards = hdf5(with_offset(path, 1, 3000))
        with pytest.raises(BadSample, match=r"b.h5, x, row 1: offsets 3000 to 1000"):
            backwards[1]
        assert backwards.sizes().tolist() == [3000, 0, 500, 500, 7999]

    @pytest.mark.parametrize("kind", [h5py.string_dtype(), h5py.string_dtype(length=4)])
    def test_text_that_is_not_utf8(self, tmp_path: Path, kind: Any) -> None:
        """Text that is not UTF-8 makes its row bad, not the file."""
        source = hdf5(write(tmp_path / "a.h5", x={"data": [b"a", b"caf\xe9"], "dtype": kind}))
        assert source[0] == {"x": "a"}
        with pytest.raises(BadSample, match=r"x, row 1: not UTF-8: .*0xe9"):
            source[1]

    def test_an_image_that_is_none(self, tmp_path: Path) -> None:
        """If the first value is an image, any later value that is not is a bad sample."""
        source = hdf5(ragged(tmp_path / "a.h5", "x", [b"", PICTURES[0], b"words", PICTURES[1][:-1]]))
        assert source.fields == {"x": Field("image")}
        for row, reason in ((0, "the image is empty"), (2, "not a JPEG"), (3, "the png image is cut short")):
            with pytest.raises(BadSample, match=f"a.h5, x, row {row}: {reason}"):
                source[row]

    def test_a_file_that_is_being_written(self, tmp_path: Path) -> None:
        """A file that another process has locked is no damage: the message says what it is, and what to wait for."""
        code = "import h5py, sys; file = h5py.File('a.h5', 'w'); print('open', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout.readline() == "open\n"
            with pytest.raises(SourceError, match=r"a\.h5 cannot .*: another process has locked the file"):
                hdf5(tmp_path / "a.h5")
            writer.communicate("")

    def test_random_damage(self, tmp_path: Path) -> None:
        """With any damaged byte, the file is refused, a sample is bad, or a value differs."""
        zipped = {"data": numbers("u1", 9), "chunks": (2, 9), "compression": "gzip"}
        path = ragged(write(tmp_path / "a.h5", x=zipped, t=PAIRS, s=KINDS["strings"][0]), "b", PICTURES)
        whole, random = path.read_bytes(), np.random.default_rng(0)
        refused = 0
        for _ in range(60):
            spoiled = bytearray(whole)
            spoiled[random.integers(len(spoiled) if random.random() < 0.5 else 4096)] ^= 1 << random.integers(8)
            path.write_bytes(spoiled)
            try:
                source = hdf5(path)
                for index in range(len(source.sizes())):
                    source[index]
            except (SourceError, BadSample, ConfigError):
                refused += 1
        assert refused > 5


class TestFilters:
    @pytest.mark.slow
    def test_a_plugin_is_loaded_when_it_is_needed(self, tmp_path: Path) -> None:
        """A worker process loads hdf5plugin when a file needs it."""
        path = write(tmp_path / "a.h5", x={"data": numbers("u1", 50), **hdf5plugin.Zstd()})
        code = "import sys; from shardio_converters.hdf5 import hdf5; print(hdf5(sys.argv[1])[4]['x'].sum())"
        found = python("-c", code, path)
        assert int(found.stdout) == numbers("u1", 50)[4].sum()

    def test_a_missing_filter_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error about a missing filter says what to install."""
        path = write(tmp_path / "a.h5", x={"data": numbers("u1", 50), **hdf5plugin.Zstd()})
        monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
        with pytest.raises(SourceError, match=r"a.h5, x needs HDF5 filter 32015 \(.*\): pip install"):
            hdf5(path)


def test_chunks_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ascending order each chunk is decompressed once, and members of a compound are read together."""
    data = np.zeros(4000, [("a", "u1", (1000,)), ("b", "i4")])
    source = hdf5(write(tmp_path / "a.h5", t={"data": data, "chunks": (500,), "compression": "gzip"}))
    counted: list[tuple[int, int]] = []
    original = helper_process.call

    def call(function: str, arguments: Mapping[str, Any], limit: float) -> list[bytearray]:
        if "start" in arguments:
            counted.append((arguments["start"], arguments["stop"]))
        return original(function, arguments, limit)

    monkeypatch.setattr(helper_process, "call", call)
    for index in range(4000):
        source[index]
    assert counted == [(low, low + 1000) for low in range(0, 4000, 1000)]
    assert rows_at_once(1 << 20, (100, 1024), (9999, 1 << 20)) == 16  # not whole bands


@pytest.mark.parametrize("chunks", [None, (2, 3, 4)])
@pytest.mark.parametrize("axis", ["time", "2"])
def test_samples_along_another_axis(tmp_path: Path, axis: str, chunks: Any) -> None:
    """Rows are along the axis of a dimension scale, or of a number; datasets that lack it are left out."""
    data = np.random.default_rng(0).random((4, 5, 12), np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t2m", data=data, chunks=chunks, compression=None if chunks is None else "gzip")
        for number, (name, size) in enumerate({"lat": 4, "lon": 5, "time": 12}.items()):
            file[name] = np.arange(size, dtype="f8")
            file[name].make_scale(name)
            file["t2m"].dims[number].attach_scale(file[name])
    source = hdf5(tmp_path / "a.h5", axis=axis, fields=None if axis == "time" else "t2m")
    samples = [{"t2m": data[..., n], "time": float(n)} for n in range(12)]
    check_source(source, [{name: one[name] for name in source.fields} for one in samples], tmp_path / "out")
    if axis == "time":
        assert {remark.partition(":")[2] for remark in source.remarks} == {" it has no axis 'time'"}
    with pytest.raises(SourceError, match="'t2m' is read along another axis than its first: convert it"):
        shardio.index(tmp_path / "a.h5", tmp_path / "index", axis=axis, fields="t2m")
