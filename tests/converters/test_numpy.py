"""NumPy files become samples without loss, memory-mapped or whole; pickles and damaged files are refused."""

import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import flip, npy
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, SourceError
from shardio.format.file_table import FileTable
from shardio.testing import check_source
from shardio_converters.numpy import numpy

ARRAYS: Mapping[str, NDArray[Any]] = {
    "x": np.arange(24, dtype=np.float32).reshape(4, 2, 3) / 7,
    "big": np.arange(12, dtype=">i2").reshape(4, 3) - 5,
    "fortran": np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(4, 3, 2)),
    "labels": np.array([3, 1, 4, 1], np.uint8),
    "wide": np.array([1.5, -np.inf, 0, 1e300], ">f8"),
    "flag": np.array([True, False, False, True]),
    "complex": np.array([1 + 2j, 0, -1j, 3], np.complex64),
    "names": np.array(["a", "größe", "", "\U0001f600 x"]),
    "codes": np.array([b"a", "größe".encode(), b"", b"xyz"]),
}


def sample(arrays: Mapping[str, NDArray[Any]], row: int) -> dict[str, Any]:
    """A row as a sample: Python numbers and strings, arrays in native byte order."""
    found = {}
    for name, array in arrays.items():
        value = array[row]
        found[name] = value.astype(value.dtype.newbyteorder("=")) if value.ndim else value.item()
        if isinstance(found[name], bytes):
            found[name] = found[name].decode()
    return found


def write(folder: Path, form: str, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write arrays with NumPy to a directory or one file."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "directory":
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        return folder
    path = folder / "all.npz"
    {"stored": np.savez, "compressed": np.savez_compressed}[form](path, **arrays)  # type: ignore[arg-type]
    return path


class TestArrays:
    @pytest.mark.parametrize("form", ["directory", "stored", "compressed"])
    def test_every_kind(self, tmp_path: Path, form: str) -> None:
        """Numbers of any size and byte order, strings and booleans survive from each kind of file."""
        source = numpy(write(tmp_path / "-in ö", form, ARRAYS))
        names = sorted(ARRAYS) if form == "directory" else list(ARRAYS)
        assert list(source.fields) == names
        assert source.metadata == {"source": "numpy"}
        bytes_of_row = sum(array.nbytes // 4 for array in ARRAYS.values())
        assert source.sizes().tolist() == [bytes_of_row] * 4
        expected = [sample({name: ARRAYS[name] for name in names}, row) for row in range(4)]
        kinds = {"x": ("float32", (2, 3)), "big": ("int16", (3,)), "fortran": ("uint8", (3, 2)), "labels": "uint8"}
        kinds |= {"wide": "float64", "flag": "bool", "complex": "complex64", "names": "text", "codes": "text"}
        check_source(source, expected, tmp_path / "out", **kinds)

    @pytest.mark.parametrize(
        ("array", "name"), [(ARRAYS["x"], "array"), (ARRAYS["labels"], "scalar"), (ARRAYS["names"], "text")]
    )
    def test_a_lone_array(self, tmp_path: Path, array: NDArray[Any], name: str) -> None:
        """A single array is named after its content, or after its file in a directory."""
        np.save(tmp_path / "lone.npy", array)
        source = numpy(tmp_path / "lone.npy")
        expected = [sample({name: array}, row) for row in range(4)]
        check_source(source, expected, tmp_path / "out")
        assert list(numpy(tmp_path).fields) == ["lone"]

    @pytest.mark.parametrize("form", ["directory", "stored", "compressed"])
    def test_structured_arrays(self, tmp_path: Path, form: str) -> None:
        """Each member of a structured array is a field, at any depth, with subarrays and names in any script."""
        inner = np.dtype([("a b", "<u2"), ("größe", ">f4")])
        table = np.zeros(
            3, [("id", "<i8"), ("pos", ">f4", (2, 2)), ("in", inner), ("name", "U4"), ("pair", inner, (2,))]
        )
        table["id"] = [7, -8, 9]
        table["pos"] = np.arange(12).reshape(3, 2, 2) / 3
        table["in"]["größe"] = [0.5, 1.5, 2.5]
        table["name"] = ["ü", "", "abcd"]
        table["pair"]["a b"] = [[1, 2], [3, 4], [5, 6]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy warns that old versions cannot read such names
            source = numpy(write(tmp_path / "in", form, {"t": table}))
        expected = [
            {
                "t.id": int(row["id"]),
                "t.pos": row["pos"].astype(np.float32),
                "t.in.a_b": 0,
                "t.in.gr_e": float(row["in"]["größe"]),
                "t.name": str(row["name"]),
                "t.pair.a_b": row["pair"]["a b"],
                "t.pair.gr_e": np.zeros(2, np.float32),
            }
            for row in table
        ]
        check_source(source, expected, tmp_path / "out")
        assert source.sizes().tolist() == [table.itemsize] * 3

    def test_only_what_is_chosen_must_fit(self, tmp_path: Path) -> None:
        """Arrays that are not chosen may have other lengths or hold objects."""
        arrays = {"x": np.arange(5), "meta": np.array([{"a": 1}], object), "n": np.array(3), "t": np.zeros(5, "M8[s]")}
        path = write(tmp_path, "stored", arrays)
        assert numpy(path, fields={"value": "x"})[4] == {"value": 4}
        with pytest.raises(SourceError, match=r"the same number of rows; choose some with fields: x \[5\], y \[4\]"):
            numpy(write(tmp_path, "stored", {"x": np.zeros(5), "y": np.zeros(4)}))


class TestMapping:
    @pytest.mark.parametrize("form", ["directory", "stored", "compressed"])
    def test_a_row_is_read_without_the_rest(self, tmp_path: Path, form: str) -> None:
        """Reading a row opens the file, or a temporary one, without loading the array."""
        source = numpy(write(tmp_path, form, {"x": np.arange(3_000_000).reshape(-1, 3)}))
        assert source[999_999]["x"].tolist() == [2_999_997, 2_999_998, 2_999_999]
        (found,) = source._opened.values()
        assert isinstance(found.table, FileTable)

    def test_compressed_members_are_unpacked_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Columns of one structured array share one unpacked copy, and no temporary file is left."""
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        monkeypatch.setattr("tempfile.tempdir", None)
        (tmp_path / "tmp").mkdir()
        path = write(tmp_path, "compressed", {"t": np.zeros(9, [("a", "i4"), ("b", "i4")])})
        opened = []
        real = zipfile.ZipFile.open
        monkeypatch.setattr(
            zipfile.ZipFile, "open", lambda self, name, *a: (opened.append(name), real(self, name, *a))[1]
        )
        source = numpy(path)
        opened.clear()
        for row in (8, 0, 3):
            assert source[row] == {"t.a": 0, "t.b": 0}
        assert opened == ["t.npy"]
        assert os.listdir(tmp_path / "tmp") == []

    def test_a_zip_with_more_in_front(self, tmp_path: Path) -> None:
        """Members are located by their own headers, with extra fields in them and other bytes before the zip."""
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("readme.txt", "words")
            with archive.open(zipfile.ZipInfo("näh/x.npy"), "w", force_zip64=True) as member:
                member.write(npy(ARRAYS["x"]))
        np.testing.assert_array_equal(numpy(tmp_path / "a.npz", fields="x=näh/x")[2]["x"], ARRAYS["x"][2])


class TestRefusals:
    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.array(["a", None], object), "holds Python objects, which are pickles and never loaded"),
            (np.zeros(2, [("a", "i4"), ("b", object)]), "holds Python objects"),
            (
                np.array(["2020-01-01", "2021"], "M8[D]"),
                r"of datetime64\[D\] \(x.astype\('int64'\) makes numbers",
            ),
            (np.zeros(2, "m8[s]"), r"holds \[2\] of timedelta64\[s\]"),
            (np.zeros(2, [("at", "M8[s]")]), r".at holds \[2\] of datetime64\[s\]"),
            (np.array(3.0), "is a single value, it has no rows"),
            (np.zeros((0, 3)), r"holds no rows, or empty ones: \[0, 3\] of float64"),
            (np.zeros((3, 0)), r"holds no rows, or empty ones: \[3, 0\] of float64"),
            (np.array([["a"], ["b"]]), r"holds \[2, 1\] of <U1, which no field holds"),
            (np.zeros(2, "V3"), r"holds \[2\] of \|V3, which no field holds"),
            (np.zeros(2, np.longdouble), "which no field holds"),
        ],
    )
    def test_what_no_field_holds(self, tmp_path: Path, array: NDArray[Any], message: str) -> None:
        """An array that no field can hold is refused with its name and the reason."""
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(SourceError, match=f"a.npy.*{message}.*; others can be chosen with fields"):
            numpy(tmp_path / "a.npy")

    def test_what_no_field_holds_is_left_out_beside_others(self, tmp_path: Path) -> None:
        """Beside other arrays, those of a type that no field holds are left out and named; so are single values."""
        more = {"energy": np.zeros(3, np.longdouble), "at": np.zeros(3, "M8[s]"), "version": np.array(7)}
        np.savez(tmp_path / "a.npz", x=np.arange(3), **more)
        found = numpy(tmp_path / "a.npz")
        assert list(found.fields) == ["x"]
        assert [remark.partition(":")[0] for remark in found.remarks] == [f"left out {name!r}" for name in more]
        assert "write it as float64" in found.remarks[0]
        with pytest.raises(SourceError, match=r"energy.npy holds .* write it as float64"):
            numpy(tmp_path / "a.npz", fields="energy")

    def test_a_pickle_is_not_run(self, tmp_path: Path) -> None:
        """A pickle, within a .npy or in its place, is refused and not run."""

        class Trap:
            def __reduce__(self) -> Any:
                return (tmp_path / "ran").touch, ()

        np.save(tmp_path / "a.npy", np.array([Trap()], object))
        np.savez(tmp_path / "b.npz", a=np.array([Trap()], object))
        (tmp_path / "c.npy").write_bytes(pickle.dumps(Trap()))
        for name in ("a.npy", "b.npz", "c.npy"):
            with pytest.raises(SourceError):
                numpy(tmp_path / name)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda data: data[:-1], r"a.npy must hold 224 bytes, it holds 223"),
            (lambda data: data + b"x", r"a.npy must hold 224 bytes, it holds 225"),
            (lambda data: data[:100], "a.npy cannot be read: EOF"),
            (lambda data: b"", "a.npy cannot be read: EOF"),
            (lambda data: b"PK\3\4" + data, "a.npy cannot be read: File is not a zip file"),
            (lambda data: b"<html>" + data, "a.npy cannot be read: the magic string is not correct"),
            (lambda data: data.replace(b"(4, 3)", b"(-4,3)"), r"its header is damaged: shape \(-4, 3\)"),
            (lambda data: data.replace(b"(4, 3), }  ", b"(True, 3), }"), r"its header is damaged: shape \(True, 3\)"),
            (lambda data: data.replace(b"(4, 3), }" + b" " * 8, b"(4, 2**62, 3), }"), "a.npy cannot be read: "),
            (lambda data: data.replace(b"(4, 3), }" + b" " * 9, b"(4, 99999999999999)}"), "a.npy must hold"),
            (lambda data: data.replace(b"'<i8'", b"'<q9'"), "a.npy cannot be read: "),
            (lambda data: data.replace(b"(4, 3)", b"9**99 "), "a.npy cannot be read: "),
            (lambda data: data.replace(b"\x01\x00v", b"\x07\x00v"), "a.npy cannot be read: "),
            (lambda data: data.replace(b"{'descr'", b"[[[[[[[["), "a.npy cannot be read: "),
        ],
    )
    def test_a_damaged_npy(self, tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
        """A file shorter or longer than its header says is refused."""
        path = tmp_path / "a.npy"
        np.save(path, np.arange(12).reshape(4, 3))
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(SourceError, match=message):
            numpy(path)

    def test_an_encrypted_npz(self, tmp_path: Path) -> None:
        """An encrypted member is refused by name."""
        path = write(tmp_path, "stored", {"x": np.zeros(3)})
        for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            flip(path, path.read_bytes().index(mark) + at)
        with pytest.raises(SourceError, match=r"all.npz, x.npy cannot be read: .*encrypted, password required"):
            numpy(path)

    def test_text_that_is_none(self, tmp_path: Path) -> None:
        """Bytes that are not UTF-8 and invalid code points are bad samples, named by row."""
        codes = np.array([65, 0x7FFFFFFF, 0x110000], "<u4")
        texts = {"u": codes.view("<U1"), "v": codes.byteswap().view(">U1")}
        np.savez(tmp_path / "a.npz", s=np.array([b"a", b"\xff", b""]), **texts)
        source = numpy(tmp_path / "a.npz")
        assert source[0] == {"s": "a", "u": "A", "v": "A"}
        with pytest.raises(BadSample, match=r"a.npz, s.npy, row 1: not UTF-8"):
            source[1]
        for name, row in (("u", 1), ("u", 2), ("v", 1), ("v", 2)):
            told = rf"a.npz, {name}.npy, row {row}: not a string: 0x\w+ is not the code point of a"
            with pytest.raises(BadSample, match=told):
                numpy(tmp_path / "a.npz", fields=name)[row]


def volumes(folder: Path, count: int = 5, *, packed: bool = False, **more: Any) -> list[dict[str, Any]]:
    """Write files as DLIO's generator for unet3d does, `img_0001_of_5.npz` with `x` and `y`; return the samples."""
    expected = []
    for number in range(count):
        name = f"img_{number + 1:04d}_of_{count}.npz"
        x = np.random.default_rng(number).integers(255, size=(8, 6, 1), dtype=np.uint8)
        (np.savez_compressed if packed else np.savez)(folder / name, x=x, y=np.array([number % 3]), **more)
        expected.append({"key": name, "x": x, "y": np.array([number % 3])})
    return expected


class TestFolders:
    """Folders of .npz files of one sample each, as the DLIO benchmark writes them."""

    @pytest.mark.parametrize("packed", [False, True])
    def test_a_file_is_a_sample(self, packed: bool, tmp_path: Path) -> None:
        """Arrays are whole values, of fixed shape where all files agree, compressed or not."""
        expected = volumes(tmp_path, packed=packed)
        kinds = {"x": ("uint8", (8, 6, 1)), "y": ("int64", (1,)), "key": "text"}
        check_source(numpy(tmp_path), expected, tmp_path / "out", **kinds)
        pattern = numpy(str(tmp_path / "img_000{1..2}_of_5.npz"))
        assert len(pattern.sizes()) == 2
        chosen = shardio.convert(tmp_path, tmp_path / "chosen", converter="numpy").manifest
        assert chosen.container == "hdf5"  # as for the arrays in one file

    def test_values_of_every_kind(self, tmp_path: Path) -> None:
        """Shapes may differ; single numbers are scalars, strings text; byte order and Fortran's order are undone."""
        expected = []
        for number in range(3):
            x = np.asfortranarray(np.arange(6 * (number + 1), dtype=">f4").reshape(number + 1, 2, 3))
            stored = {"x": x, "label": np.uint8(number), "name": f"größe {number}", "raw": np.bytes_(b"a")}
            np.savez(tmp_path / f"{number}.npz", **stored)
            expected.append({"key": f"{number}.npz", **stored, "x": x.astype("<f4"), "label": number, "raw": "a"})
        kinds = {"x": ("float32", (None, 2, 3)), "label": "int64", "name": "text", "raw": "text"}
        check_source(numpy(tmp_path), expected, tmp_path / "out", **kinds)

    def test_what_is_left_out_is_named(self, tmp_path: Path) -> None:
        """Arrays that the first file lacks, and files beside .npy files, are named."""
        volumes(tmp_path, 2, energy=np.longdouble(1))
        more = {"energy": np.longdouble(1), "mask": np.zeros(3)}
        np.savez(tmp_path / "z.npz", x=np.zeros((8, 6, 1), np.uint8), y=np.array([1]), **more)
        energy, mask = numpy(tmp_path).remarks
        assert energy.startswith("left out 'energy': it holds [] of float128 (a long double, ")
        assert mask == f"left out 'mask', which the first file lacks: {tmp_path}/z.npz is the first that has it"
        with pytest.raises(SourceError, match="write it as float64"):
            numpy(tmp_path, fields="energy")
        np.save(tmp_path / "rows.npy", np.arange(3))
        assert numpy(tmp_path).remarks == ("left out 3 .npz files beside the .npy files",)

    def test_files_that_lack_an_array_are_named_beforehand(self, tmp_path: Path) -> None:
        """A dry run tells how many files lack an array that the first file has, and names the first of them."""
        volumes(tmp_path, 3)
        np.savez(tmp_path / "z.npz", y=np.array([1]))
        told = f"bad samples, as they lack 'x': 1 file, {tmp_path}/z.npz"
        with pytest.warns(shardio.SourceWarning, match=told):
            assert told in shardio.convert(tmp_path, tmp_path / "out", converter="numpy", dry_run=True).notes
        np.savez(tmp_path / "zz.npz", y=np.array([1]))
        assert numpy(tmp_path).remarks == (f"bad samples, as they lack 'x': 2 files, {tmp_path}/z.npz, ...",)
        assert numpy(tmp_path, fields="y").remarks == ()

    def test_bad_files_are_bad_samples(self, tmp_path: Path) -> None:
        """A damaged file, one that lacks an array and one that holds another kind of value are named, and no more."""
        volumes(tmp_path)
        _, *paths = sorted(tmp_path.glob("*.npz"))
        flip(paths[0], paths[0].read_bytes().index(b"NUMPY") + 130)  # a number of x, which the zip's checksum tells
        paths[1].write_bytes(b"PK\3\4 no more")
        np.savez(paths[2], y=np.array([1]))
        np.savez(paths[3], x=np.array("words"), y=np.array([1]))
        source = numpy(tmp_path)
        for number, reason in enumerate(("x.npy cannot be read: Bad CRC-32", "cannot be read", "it has no array 'x'")):
            with pytest.raises(BadSample, match=f"{paths[number].name}.*{reason}"):
                source[number + 1]
        with pytest.raises(BadSample, match=r"0005_of_5.npz, x: expected array, got \[\] of <U5"):
            source[4]
        with pytest.warns(shardio.SourceWarning, match="they lack 'x'"):
            made = shardio.convert(tmp_path, tmp_path / "out", converter="numpy", on_error="skip", max_bad=4)
        assert len(made.skipped) == 4
        assert len(shardio.open(made.path)) == 1

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"x": np.array([None])}, "holds Python objects, which are pickles and never loaded"),
            (
                {"x": np.array(["a", "b"])},
                r"holds \[2\] of <U1, which no field holds; others can be chosen with fields",
            ),
            ({}, "holds no arrays"),
        ],
    )
    def test_what_no_field_holds(self, arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
        """Arrays that cannot be stored are refused at once, by file and array."""
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(SourceError, match=message):
            numpy(tmp_path)
