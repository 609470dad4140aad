"""Zarr stores of both formats become samples, and nothing in them is executed."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr as library
from _builders import zipped
from _sources import COUNT, PICTURES, WORDS, check_kinds, numbers
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, SourceError
from shardio.format.fields import Field
from shardio.testing.sources import check_source
from shardio_converters.zarr import zarr

FORMATS = (2, 3)


def write(path: Path, form: int = 3, **arrays: Any) -> Path:
    """A group with one array per name, `__` for a slash; a dict holds arguments of create_array, with `data`."""
    library.open_group(path, mode="w", zarr_format=form)
    for name, value in arrays.items():
        write_array(path, form, path=name.replace("__", "/"), **(value if isinstance(value, dict) else {"data": value}))
    return path


def write_array(root: Path, form: int = 3, *, data: Any, path: str = "", **arguments: Any) -> Path:
    """An array at `path` in the store `root`."""
    data = np.asarray(data)
    arguments = {"dtype": data.dtype, "chunks": (2, *data.shape[1:]), **arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for types that the Zarr 3 specification does not define yet
        array = library.create_array(root, name=path or None, shape=data.shape, zarr_format=form, **arguments)
        array[...] = data
    return root


def objects(values: list[Any]) -> NDArray[Any]:
    """Values of different lengths."""
    data = np.empty(len(values), object)
    data[:] = values
    return data


BLOBS = [b"", b"abc", b"\0\0", b"\xff" * 9000, b"z"]
BYTES_TYPE = library.core.dtype.VariableLengthBytes()

KINDS: dict[str, tuple[dict[str, Any], Field, list[Any]]] = {
    **{
        dtype: ({"data": numbers(dtype)}, Field("scalar", dtype=np.dtype(dtype).name), numbers(dtype).tolist())
        for dtype in ("u1", ">u4", "i8", "f2", ">f4", "?", "c8")
    },
    "arrays": ({"data": numbers("u1", 2, 3)}, Field("array", dtype="uint8", shape=(2, 3)), list(numbers("u1", 2, 3))),
    "big-endian": ({"data": numbers(">i4", 3)}, Field("array", dtype="int32", shape=(3,)), list(numbers("i4", 3))),
    "many chunks beside each other": (
        {"data": numbers("i4", 7), "chunks": (2, 3)}, Field("array", dtype="int32", shape=(7,)), list(numbers("i4", 7)),
    ),
    "strings": ({"data": objects(WORDS), "dtype": str}, Field("text"), WORDS),
    "fixed strings": ({"data": np.array(WORDS)}, Field("text"), WORDS),
    "fixed bytes": ({"data": np.array([w.encode() for w in WORDS])}, Field("text"), WORDS),
    "rows of strings": ({"data": np.array([[w, "b"] for w in WORDS])}, Field("json"), [[w, "b"] for w in WORDS]),
    "bytes": ({"data": objects(BLOBS), "dtype": BYTES_TYPE}, Field("bytes"), BLOBS),
    "images": ({"data": objects(PICTURES), "dtype": BYTES_TYPE}, Field("image"), PICTURES),
    "void": (
        {"data": np.array([b"%d\0\0" % i for i in range(5)], "V3")}, Field("bytes"), [b"%d\0\0" % i for i in range(5)],
    ),
}  # fmt: skip


class TestKinds:
    @pytest.mark.parametrize("form", FORMATS)
    def test_every_kind(self, tmp_path: Path, form: int) -> None:
        """Arrays of every type that a field can hold give their values, through every container."""
        path = write(tmp_path / "a.zarr", form, **{name: stored for name, (stored, *_) in KINDS.items()})
        check_kinds(zarr, path, KINDS)

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("pack", [lambda path: path, zipped])
    def test_a_group(self, tmp_path: Path, form: int, pack: Callable[[Path], Path]) -> None:
        """Arrays at any depth of a folder or a zip file are fields; those without rows are left out."""
        write(tmp_path / "-a é", form, label=numbers("u1"), data__x=numbers("f4", 2), data__deep__t=np.array(WORDS))
        library.create_array(tmp_path / "-a é", name="crs", shape=(), dtype="i4", zarr_format=form)
        source = zarr(pack(tmp_path / "-a é"))
        expected = [
            {"data.deep.t": WORDS[i], "data.x": numbers("f4", 2)[i], "label": int(numbers("u1")[i])} for i in range(5)
        ]
        check_source(source, expected, tmp_path / "out", label=Field("scalar", dtype="int64"))
        assert source.column("label").tolist() == list(range(COUNT))

    def test_shards(self, tmp_path: Path) -> None:
        """Sharded arrays of Zarr 3 are read."""
        data = np.arange(64, dtype="f4").reshape(16, 4)
        source = zarr(write_array(tmp_path / "a", data=data, chunks=(2, 4), shards=(8, 4)))
        check_source(source, [{"array": row} for row in data], tmp_path / "out")

    def test_a_zip_of_the_folder_itself(self, tmp_path: Path) -> None:
        """Arrays are found in a zip file whose entries begin with the folder's name."""
        write(tmp_path / "in" / "a.zarr", x=numbers("i4"))
        assert zarr(zipped(tmp_path / "in"))[3] == {"a.zarr.x": 3}

    def test_missing_chunks(self, tmp_path: Path) -> None:
        """A chunk that was never written holds the fill value."""
        write_array(tmp_path / "a", data=numbers("i4"), fill_value=7)
        (tmp_path / "a" / "c" / "1").unlink()
        assert [zarr(tmp_path / "a")[i]["array"] for i in range(COUNT)] == [0, 1, 7, 7, 4]

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("dtype", ["<M8[s]", ">M8[h]", "<M8[ns]", "<M8[D]"])
    def test_dates_are_seconds_since_1970(self, tmp_path: Path, form: int, dtype: str) -> None:
        """datetime64 becomes float64 with or without decode_cf, NaT and missing chunks NaN; windows end at gaps."""
        dates = np.array(["2020-01-01", "2020-01-02", "2020-01-03", "NaT", "2020-01-04", "2020-01-05"], dtype)
        write(tmp_path / "a", form, dates={"data": dates, "fill_value": np.datetime64("NaT", dtype[4:-1])})
        for chunk in (tmp_path / "a/dates/2", tmp_path / "a/dates/c/2"):
            chunk.unlink(missing_ok=True)
        wanted = [1577836800.0, 1577923200.0, 1578009600.0, np.nan, np.nan, np.nan]
        for out, decode_cf in (("plain", False), ("decoded", True)):
            shardio.index(tmp_path / "a", tmp_path / out, decode_cf=decode_cf, tell=print)
            dataset = shardio.open(tmp_path / out)
            np.testing.assert_array_equal(dataset.read(range(6))["dates"], wanted)
            assert dataset.fields["dates"].attributes == {"units": "seconds since 1970-01-01 00:00:00"}
        np.testing.assert_array_equal(zarr(tmp_path / "a").column("dates"), wanted)
        assert len(dataset.windows(2, contiguous="dates")) == 2

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize(("data", "reason"), [
        (np.zeros(3, "m8[s]"), r"no field holds \[\] of timedelta64\[s\] \(x.astype.*"),
        (np.zeros(3, "M8[M]"), r"no field holds \[\] of datetime64\[M\] \(x.astype.*"),  # of no fixed length
        (np.zeros(3, [("a", "i4"), ("b", "f4")]), r"no field holds \[\] of \[\('a'.*"),
        (np.zeros((3, 2), "V3"), r"no field holds \[2\] of \|V3"),
    ])  # fmt: skip
    def test_what_no_field_holds(self, tmp_path: Path, data: Any, reason: str, form: int) -> None:
        """An array that no field can hold is left out with the reason, and refused if it is chosen."""
        write(tmp_path / "a", form, x=data, y=np.arange(3))
        with pytest.raises(SourceError, match=f"a: 'x' cannot be taken: {reason}; choose others with fields"):
            zarr(tmp_path / "a", fields="x")
        source = zarr(tmp_path / "a")
        assert (list(source.fields), len(source.remarks)) == (["y"], 1)
        assert re.search(f"^left out 'x': {reason}", source.remarks[0])
        assert zarr(tmp_path / "a", fields="y")[2] == {"y": 2}


class TestOtherStores:
    def test_resolutions_of_one_image(self, tmp_path: Path) -> None:
        """The resolutions of an OME-Zarr image are fields, and a hint names the option that takes one."""
        write(tmp_path / "a", **{str(n): np.zeros((3, 16 >> n, 16 >> n), "u1") for n in range(3)})
        (hint,) = zarr(tmp_path / "a").hints
        assert str(hint) == "the arrays look like one image in several resolutions; fields='image=0' takes the finest"
        assert not zarr(tmp_path / "a", fields="image=0").hints
        group = library.open_group(tmp_path / "a", mode="r+")
        levels = [{"path": str(n)} for n in range(3)]
        group.attrs["multiscales"] = [{"axes": [{"name": name} for name in "zyx"], "datasets": levels}]
        assert zarr(tmp_path / "a", fields="image=0", axis="x").fields["image"].shape == (3, 16)
        assert zarr(tmp_path / "a", fields="image=0").dimensions == {"image": ("z", "y", "x")}

    def test_an_icechunk_repository(self, tmp_path: Path) -> None:
        """An Icechunk repository, which holds no arrays of Zarr, is called one."""
        for name in ("refs", "snapshots", "manifests", "chunks"):
            (tmp_path / "a" / name).mkdir(parents=True)
        with pytest.raises(SourceError, match="holds no Zarr arrays, but an Icechunk repository"):
            zarr(tmp_path / "a")


class Bomb:
    """An object that runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["filter", "compressor", "behind a group of the third format"])
def test_nothing_is_unpickled(tmp_path: Path, place: str) -> None:
    """An array of pickled objects is refused before zarr opens it, wherever the codec is declared."""
    write(tmp_path / "a", 2, x=numbers("i4"), y={"data": numbers("i4"), "compressors": None})
    metadata = json.loads((tmp_path / "a" / "y" / ".zarray").read_text())
    if place == "compressor":
        metadata["compressor"] = {"id": "pickle"}
    else:
        metadata |= {"dtype": "|O", "filters": [{"id": "pickle"}], "fill_value": "gASVAAAAAA=="}
    if "group" in place:
        (tmp_path / "a" / "y" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "a" / "y" / ".zarray").write_text(json.dumps(metadata))
    (tmp_path / "a" / "y" / "0").write_bytes(numcodecs.Pickle().encode([Bomb(tmp_path / "ran")]))
    with pytest.raises(SourceError, match="'y' cannot be taken: pickled objects may run code"):
        zarr(tmp_path / "a", fields="y")
    assert zarr(tmp_path / "a").remarks == ("left out 'y': pickled objects may run code",)
    with pytest.raises(SourceError, match="can be taken: 'array': pickled"):
        zarr(tmp_path / "a" / "y")
    assert zarr(tmp_path / "a", fields="x")[1] == {"x": 1}
    assert not (tmp_path / "ran").exists()


def spoil(chunk: Path) -> None:
    """Overwrite the second half."""
    data = chunk.read_bytes()
    chunk.write_bytes(data[: len(data) // 2] + b"\xff" * (len(data) - len(data) // 2))


def cut(chunk: Path) -> None:
    """Drop the end."""
    chunk.write_bytes(chunk.read_bytes()[:-3])


def empty(chunk: Path) -> None:
    """Drop everything."""
    chunk.write_bytes(b"")


CODECS = {"none": None, "blosc": numcodecs.Blosc(cname="zstd"), "zstd": numcodecs.Zstd()} | {
    codec.codec_id: codec() for codec in (numcodecs.GZip, numcodecs.Zlib, numcodecs.LZMA)
}


class TestDamage:
    @pytest.mark.parametrize("damage", [spoil, cut, empty])
    @pytest.mark.parametrize("codec", CODECS)
    def test_a_damaged_chunk(self, tmp_path: Path, codec: str, damage: Callable[[Path], None]) -> None:
        """Only the rows of a damaged chunk are bad, and they are named; the column is not offered for conditions."""
        data = np.random.default_rng(0).integers(0, 4, (6, 4000), np.uint8)
        write(tmp_path / "a", 2, x={"data": data, "compressors": CODECS[codec]})
        write_array(tmp_path / "a", 2, path="y", data=data[:, 0] + 1.5, compressors=CODECS[codec])
        source = zarr(tmp_path / "a")
        if (codec, damage) == ("none", spoil):
            pytest.skip("without a checksum these are other numbers")
        damage(tmp_path / "a" / "x" / "1.0")
        empty(tmp_path / "a" / "y" / "1")
        assert [source[i]["x"].tolist() for i in (0, 1, 4, 5)] == data[[0, 1, 4, 5]].tolist()
        for row in (2, 3):
            with pytest.raises(BadSample, match=rf"a, x, row {row}: the chunk 1\.0 "):
                source[row]
        assert source.column("y") is None

    @pytest.mark.parametrize("kind", ["strings", "bytes"])
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("damage", [spoil, cut, empty])
    def test_a_damaged_chunk_of_objects(
        self, tmp_path: Path, kind: str, form: int, damage: Callable[[Path], None]
    ) -> None:
        """A damaged chunk of variable-length texts and bytes makes bad samples, too."""
        if (kind, damage) == ("bytes", spoil):
            pytest.skip("without a checksum these are other bytes")
        write_array(tmp_path / "a", form, **KINDS[kind][0] | {"compressors": None})
        source = zarr(tmp_path / "a")
        damage(tmp_path / "a" / ("c/1" if form == 3 else "1"))
        assert source[0]["array"] == KINDS[kind][2][0]
        with pytest.raises(BadSample, match=r"a, row 3: "):
            source[3]

    def test_missing(self, tmp_path: Path) -> None:
        """A folder without arrays, and a file that is not a zip, are refused."""
        with pytest.raises(SourceError, match="holds no Zarr arrays"):
            zarr(tmp_path)
        whole = zipped(write(tmp_path / "b", x=numbers("i4"))).read_bytes()
        for data in (b"words", b"", whole[:-10]):
            (tmp_path / "a.zip").write_bytes(data)
            with pytest.raises(SourceError, match=r"a.zip cannot be read: "):
                zarr(tmp_path / "a.zip")
        with pytest.raises(SourceError, match="holds no arrays with rows"):
            zarr(library.create_array(tmp_path / "c", shape=(), dtype="i4") and tmp_path / "c")

    def test_a_damaged_part_of_a_zip(self, tmp_path: Path) -> None:
        """A damaged member of a zip file fails its checksum."""
        path = zipped(write(tmp_path / "a", x={"data": numbers("i4"), "compressors": None}))
        path.write_bytes(path.read_bytes().replace(numbers("i4")[:2].tobytes(), b"\xff" * 8, 1))
        source = zarr(path, fields="x")
        with pytest.raises(BadSample, match=r"a.zip, x, row 1: .*CRC"):
            source[1]
        assert source[2] == {"x": 2}

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("text", ["", "[]", '{"node_type": "array"}', '{"shape": [3], "shape": [4]}', "\xff"])
    def test_damaged_metadata(self, tmp_path: Path, form: int, text: str) -> None:
        """Invalid metadata is refused by name."""
        write(tmp_path / "a", form, x=numbers("i4"), y=numbers("i4"))
        (tmp_path / "a" / "x" / (".zarray" if form == 2 else "zarr.json")).write_text(text, "latin-1")
        told = r"cannot be taken: cannot be read|\.zarray: not JSON: |zarr\.json: not |not Zarr metadata|occurs twice"
        with pytest.raises(SourceError, match=told):
            zarr(tmp_path / "a", fields="x")

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize(
        ("shape", "chunks", "message"),
        [
            ([10, 2**62], None, r"'x': must have sizes of at least 0 and less than 2\^62, it has \[10, 4611686018"),
            ([10, 2**60], None, r"can be taken: 'x': no field holds \[1152921504606846976\] of int32"),
            ([0, 2**60], None, "no field holds"),
            ([2**70, 3], None, r"less than 2\^62, it has \[1180591620717411303424, 3\]"),
            ([-1, 3], None, r"sizes of at least 0 and less than 2\^62, it has \[-1, 3\]"),
            ([10, 3], [2**61, 3], r"has chunks \[2305843009213693952, 3\] of int32, more than 1073741824 bytes"),
            ([10, *[1] * 64], [10, *[1] * 64], r"'x': has a shape \[10, 1"),
            ([10, 1 << 15], [10, 1], "can be taken: 'x': a row lies in 32768 chunks, more than 16384"),
            ([10, 3], [0, 3], r"'x': must have chunks of at least one element, it has \[0, 3\]"),
            ([10, 3], [10, 0], "chunks of at least one element"),
        ],
    )
    def test_claims_that_nothing_can_hold(
        self, tmp_path: Path, form: int, shape: Any, chunks: Any, message: str
    ) -> None:
        """Shapes and chunks that no array can have are refused in words, before memory is taken."""
        write(tmp_path / "a", form, x=np.arange(30, dtype="i4").reshape(10, 3))
        path = tmp_path / "a" / "x" / (".zarray" if form == 2 else "zarr.json")
        metadata = json.loads(path.read_text()) | {"shape": shape}
        if chunks is not None and form == 2:
            metadata["chunks"] = chunks
        elif chunks is not None:
            metadata["chunk_grid"]["configuration"]["chunk_shape"] = chunks
        path.write_text(json.dumps(metadata))
        with pytest.raises(SourceError, match=message):
            zarr(tmp_path / "a").sizes()

    def test_a_folder_that_links_to_itself(self, tmp_path: Path) -> None:
        """A folder that links to itself is searched once."""
        write(tmp_path / "a", x=numbers("i4"))
        (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
        assert zarr(tmp_path / "a")[1] == {"x": 1}
