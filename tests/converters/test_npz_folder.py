"""A folder of .npz files of one sample each, as the DLIO benchmark writes them, becomes samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio.errors import BadSample, SourceError
from shardio.testing import check_source
from shardio_converters.numpy import NpzFolder, numpy


def volumes(folder: Path, count: int = 5, *, packed: bool = False, **more: Any) -> list[dict[str, Any]]:
    """Write files as DLIO's generator for unet3d does, `img_0001_of_5.npz` with `x` and `y`; return the samples."""
    expected = []
    for number in range(count):
        name = f"img_{number + 1:04d}_of_{count}.npz"
        x = np.random.default_rng(number).integers(255, size=(8, 6, 1), dtype=np.uint8)
        (np.savez_compressed if packed else np.savez)(folder / name, x=x, y=np.array([number % 3]), **more)
        expected.append({"key": name, "x": x, "y": np.array([number % 3])})
    return expected


def source_of(folder: Path, **options: Any) -> NpzFolder:
    source = numpy(folder, **options)
    assert isinstance(source, NpzFolder)
    return source


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_a_sample(packed: bool, tmp_path: Path) -> None:
    """Arrays are whole values, of fixed shape where all files agree, compressed or not."""
    expected = volumes(tmp_path, packed=packed)
    kinds = {"x": ("uint8", (8, 6, 1)), "y": ("int64", (1,)), "key": "text"}
    check_source(numpy(tmp_path), expected, tmp_path / "out", **kinds)
    pattern = numpy(str(tmp_path / "img_000{1..2}_of_5.npz"))
    assert isinstance(pattern, NpzFolder)
    assert len(pattern.sizes()) == 2
    chosen = shardio.convert(tmp_path, tmp_path / "chosen", converter="numpy").manifest
    assert chosen.container == "hdf5"  # as for the arrays in one file


def test_values_of_every_kind(tmp_path: Path) -> None:
    """Shapes may differ; single numbers are scalars, strings text; byte order and Fortran's order are undone."""
    expected = []
    for number in range(3):
        x = np.asfortranarray(np.arange(6 * (number + 1), dtype=">f4").reshape(number + 1, 2, 3))
        np.savez(tmp_path / f"{number}.npz", x=x, label=np.uint8(number), name=f"größe {number}", raw=np.bytes_(b"a"))
        expected.append(
            {"key": f"{number}.npz", "x": x.astype("<f4"), "label": number, "name": f"größe {number}", "raw": "a"}
        )
    kinds = {"x": {"kind": "array", "dtype": "float32"}, "label": "int64", "name": "text", "raw": "text"}
    check_source(numpy(tmp_path), expected, tmp_path / "out", **kinds)


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Arrays that the first file lacks, and files beside .npy files, are named."""
    volumes(tmp_path, 2, energy=np.longdouble(1))
    more = {"energy": np.longdouble(1), "mask": np.zeros(3)}
    np.savez(tmp_path / "z.npz", x=np.zeros((8, 6, 1), np.uint8), y=np.array([1]), **more)
    assert source_of(tmp_path).remarks == (
        "left out 'energy': it holds [] of float128 (a long double, which differs from machine to machine: write it as "
        "float64), which no field holds",
        f"left out 'mask', which the first file lacks: {tmp_path}/z.npz is the first that has it",
    )
    with pytest.raises(SourceError, match="write it as float64"):
        numpy(tmp_path, fields="energy")
    np.save(tmp_path / "rows.npy", np.arange(3))
    assert numpy(tmp_path).remarks == ("left out 3 .npz files beside the .npy files",)


def test_files_that_lack_an_array_are_named_beforehand(tmp_path: Path) -> None:
    """A dry run tells how many files lack an array that the first file has, and names the first of them."""
    volumes(tmp_path, 3)
    np.savez(tmp_path / "z.npz", y=np.array([1]))
    told = f"bad samples, as they lack 'x': 1 file, {tmp_path}/z.npz"
    with pytest.warns(shardio.SourceWarning, match=told):
        assert told in shardio.convert(tmp_path, tmp_path / "out", converter="numpy", dry_run=True).notes
    np.savez(tmp_path / "zz.npz", y=np.array([1]))
    assert source_of(tmp_path).remarks == (f"bad samples, as they lack 'x': 2 files, {tmp_path}/z.npz, ...",)
    assert source_of(tmp_path, fields="y").remarks == ()


def test_bad_files_are_bad_samples(tmp_path: Path) -> None:
    """A damaged file, one that lacks an array and one that holds another kind of value are named, and no more."""
    volumes(tmp_path)
    _, *paths = sorted(tmp_path.glob("*.npz"))
    data = bytearray(paths[0].read_bytes())
    data[data.index(b"NUMPY") + 130] ^= 1  # a number of x, which the zip's checksum tells
    paths[0].write_bytes(data)
    paths[1].write_bytes(b"PK\3\4 no more")
    np.savez(paths[2], y=np.array([1]))
    np.savez(paths[3], x=np.array("words"), y=np.array([1]))
    source = source_of(tmp_path)
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
        ({"x": np.array(["a", "b"])}, r"holds \[2\] of <U1, which no field holds; others can be chosen with fields"),
        ({}, "holds no arrays"),
    ],
)
def test_what_no_field_holds(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Arrays that cannot be stored are refused at once, by file and array."""
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SourceError, match=message):
        numpy(tmp_path)
