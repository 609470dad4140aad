"""Odd files, as people have them: each is converted right, refused by name, or told in a note. Nothing else happens."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import jpeg, pixels, png
from PIL import Image

import shardio
from shardio.errors import ShardioError

PALETTE = np.arange(12, dtype=np.uint8).reshape(3, 4) % 5
LEVELS = (np.arange(12, dtype=np.uint16) * 300).reshape(3, 4)


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def palette_png() -> bytes:
    image = Image.fromarray(PALETTE, "P")
    image.putpalette([*range(255, 240, -1), *range(45)])
    return saved(image)


def image_of(data: bytes, suffix: str = "png") -> Callable[[Path], tuple[str, Path]]:
    def make(folder: Path) -> tuple[str, Path]:
        (folder / "in" / "a").mkdir(parents=True)
        (folder / "in" / "a" / f"0.{suffix}").write_bytes(data)
        return "imagefolder", folder / "in"

    return make


def images_called(*names: str) -> Callable[[Path], tuple[str, Path]]:
    def make(folder: Path) -> tuple[str, Path]:
        (folder / "in" / "a").mkdir(parents=True)
        for number, name in enumerate(names):
            (folder / "in" / "a" / name).write_bytes(png(seed=number))
        return "imagefolder", folder / "in"

    return make


def netcdf(*files: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]]) -> Callable[[Path], tuple[str, Path]]:
    """HDF5 files with a variable each, and its attributes."""

    def make(folder: Path) -> tuple[str, Path]:
        (folder / "in").mkdir()
        for number, variables in enumerate(files):
            with h5py.File(folder / "in" / f"{number}.h5", "w") as file:
                for name, (values, attributes) in variables.items():
                    file[name] = values
                    file[name].attrs.update(attributes)
        return "hdf5", folder / "in"

    return make


def parquet(**columns: Any) -> Callable[[Path], tuple[str, Path]]:
    def make(folder: Path) -> tuple[str, Path]:
        pq.write_table(pa.table(columns), folder / "in.parquet")
        return "parquet", folder / "in.parquet"

    return make


def npy(values: np.ndarray[Any, Any]) -> Callable[[Path], tuple[str, Path]]:
    def make(folder: Path) -> tuple[str, Path]:
        np.save(folder / "in.npy", values)
        return "numpy", folder / "in.npy"

    return make


def npz_folder(*arrays: np.ndarray[Any, Any]) -> Callable[[Path], tuple[str, Path]]:
    def make(folder: Path) -> tuple[str, Path]:
        (folder / "in").mkdir()
        for number, array in enumerate(arrays):
            np.savez(folder / "in" / f"{number}.npz", x=array)
        return "numpy", folder / "in"

    return make


class Right(NamedTuple):
    """The values of a field, as the dataset or its Loader delivers them."""

    name: str
    values: Any


class Refused(NamedTuple):
    """The end of the conversion, and what its message says."""

    reason: str


class Noted(NamedTuple):
    """What a note says; the conversion goes on."""

    note: str


class Odd(NamedTuple):
    """A source, the options of its conversion, and what becomes of it."""

    make: Callable[[Path], tuple[str, Path]]
    outcome: Right | Refused | Noted
    options: dict[str, Any] = {}


PACKED = np.array([[10, 20], [30, -99]], np.int16)
ODD = {
    # NetCDF, as climate stores deliver it
    "packed by file": Odd(
        netcdf({"t": (PACKED, {"scale_factor": 0.5})}, {"t": (PACKED, {"scale_factor": 0.25})}),
        Refused(r"0\.25 in .*0\.5 in .*decode_cf"),
    ),
    "packed by file, decoded": Odd(
        netcdf({"t": (PACKED, {"scale_factor": 0.5})}, {"t": (PACKED, {"scale_factor": 0.25})}),
        Right("t", [[5, 10], [15, -49.5], [2.5, 5], [7.5, -24.75]]),
        {"decode_cf": True},
    ),
    "packed alike": Odd(netcdf({"t": (PACKED, {"scale_factor": 0.5})}), Noted("scale_factor")),
    "masked": Odd(
        netcdf({"t": (PACKED, {"_FillValue": np.int16(-99)})}),
        Right("t", [[10, 20], [30, np.nan]]),
        {"decode_cf": True},
    ),
    "a year of 360 days": Odd(
        netcdf({"time": (np.arange(2), {"units": "days since 2000-01-01", "calendar": "360_day"})}),
        Refused("360_day"),
        {"decode_cf": True},
    ),
    # numbers
    "big-endian floats": Odd(netcdf({"t": (np.array([[1.5, 2]], ">f4"), {})}), Right("t", [[1.5, 2]])),
    "big-endian integers": Odd(npy(np.array([[1, 2]], ">i2")), Right("array", [[1, 2]])),
    "arrays of two shapes": Odd(npz_folder(np.zeros(2), np.ones(3)), Right("x", [[0, 0], [1, 1, 1]])),
    # nulls
    "a null": Odd(parquet(x=["a", None]), Refused("row 1, column 'x': null; optional=")),
    # images
    "a palette": Odd(image_of(palette_png()), Right("image", None)),
    "a palette that is a mask": Odd(image_of(palette_png()), Right("image", PALETTE), {"mask": "image"}),
    "16 bits": Odd(image_of(saved(Image.fromarray(LEVELS))), Noted("grey PNG of 16 bits")),
    "16 bits of a mask": Odd(image_of(saved(Image.fromarray(LEVELS))), Right("image", LEVELS), {"mask": "image"}),
    "CMYK": Odd(image_of(saved(Image.fromarray(pixels()).convert("CMYK"), "JPEG"), "jpg"), Right("image", None)),
    "an image that is cut short": Odd(image_of(jpeg()[:-99], "jpg"), Refused("cut short")),
    # names
    "numbers in another order": Odd(images_called("s_1.png", "s_10.png", "s_2.png"), Noted("sort")),
}  # fmt: skip


def delivered(dataset: shardio.Dataset, name: str) -> list[Any]:
    """The values of a field in all samples; of images the pixels that a Loader delivers."""
    if not dataset.fields[name].is_image:
        return [dataset[number][name] for number in range(len(dataset))]
    batches = shardio.Loader(dataset, 1, shuffle=None, threads=1)
    return [batch[name][0].numpy() for batch in batches]


@pytest.mark.filterwarnings("ignore::shardio.SourceWarning")
@pytest.mark.parametrize("name", ODD)
def test_what_becomes_of_it(name: str, tmp_path: Path) -> None:
    """Values are right, or a message names what is not."""
    odd, notes = ODD[name], list[str]()
    converter, source = odd.make(tmp_path)
    arguments = {"converter": converter, "tell": notes.append} | odd.options
    match odd.outcome:
        case Refused(reason):
            with pytest.raises(ShardioError, match=f"(?s){reason}"):
                shardio.convert(source, tmp_path / "out", **arguments)
            return
        case Noted(note):
            made = shardio.convert(source, tmp_path / "out", **arguments)
            assert note in "\n".join(made.notes)
            return
    made = shardio.convert(source, tmp_path / "out", **arguments)
    found = delivered(shardio.open(made.path), odd.outcome.name)
    if odd.outcome.values is None:  # Pillow's colours
        (path,) = source.rglob("*.*")
        expected: Any = [np.asarray(Image.open(path).convert("RGB"))]
    elif isinstance(odd.outcome.values, np.ndarray):
        expected = [odd.outcome.values]
    else:
        expected = odd.outcome.values
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, str) or one is None or other is None:
            assert one == other
        else:
            np.testing.assert_array_equal(one, other)
