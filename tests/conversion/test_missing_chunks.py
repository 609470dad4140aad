"""Conversions and `index` count chunks and rows that are missing; `missing_chunks` decides about them."""

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import zarr
from _cli import run
from _hdf5_files import write_hdf5

import shardio
from shardio.errors import ConfigError, SourceError

pytestmark = pytest.mark.filterwarnings("ignore::shardio.SourceWarning")

VALUES = np.arange(1.0, 97).reshape(16, 6)


def store(path: Path, form: int = 3, **options: Any) -> Path:
    """A store of two arrays of 16 rows, in 8 and 16 chunks, none of them empty."""
    group = zarr.open_group(path, mode="w", zarr_format=form)
    group.create_array("x", data=VALUES, chunks=(2, 6), **options)
    group.create_array("y", data=VALUES, chunks=(2, 3), **options)
    return path


def hdf5(path: Path, rows: int, **options: Any) -> Path:
    """A file of two datasets of 16 rows, of which `rows` were written."""
    with h5py.File(path, "w") as file:
        for name in ("x", "y"):
            file.create_dataset(name, VALUES.shape, "f8", chunks=(2, 6), **options)[:rows] = VALUES[:rows]
    return path


def lose(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).unlink()
    return path


def all_of(path: Path, name: str) -> list[Path]:
    return [file for file in (path / name).rglob("*") if file.is_file() and not file.name.startswith(("zarr.", ".z"))]


def empty(path: Path) -> Path:
    """A store of which one array has no chunk."""
    return lose(path, *(str(file) for file in all_of(path, "x")))


def read(how: str, source: Path, out: Path, **options: Any) -> Sequence[str]:
    """Convert or index a source; return the notes on what is not there."""
    if how == "index":
        made = shardio.index(source, out, **options)
    else:
        shared = {name: options.pop(name) for name in ("strict",) if name in options}
        converter = "zarr" if source.suffix == ".zarr" else "hdf5"
        made = shardio.convert(source, out, converter=converter, container="hdf5", converter_options=options, **shared)
    return [note for note in made.notes if "are not there" in note]


HOWS = pytest.mark.parametrize("how", ["index", "convert"])

SPARSE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a chunk": (
        lambda f: lose(store(f / "a.zarr"), "x/c/1/0"),
        "field 'x': 1 of 8 chunks are not there, the first is c/1/0 of a.zarr",
    ),
    "the last chunk of one array": (
        lambda f: lose(store(f / "a.zarr"), "x/c/7/0"), "field 'x': 1 of 8 chunks are not there, the first is c/7/0",
    ),
    "half of a row": (
        lambda f: lose(store(f / "a.zarr", 2), "y/3.1"), "field 'y': 1 of 16 chunks are not there, the first is 3.1",
    ),
    "a shard": (
        lambda f: lose(store(f / "a.zarr", shards=(4, 6)), "x/c/0/0"),
        "field 'x': 1 of 4 shards are not there, the first is c/0/0",
    ),
}  # fmt: skip
"""Stores of which chunks may have been left out, as they are all fill values: what is said."""


@HOWS
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_chunks_are_a_hint(how: str, name: str, tmp_path: Path) -> None:
    """Chunks that are not there are counted; nothing speaks for a loss, so that `strict` passes."""
    make, told = SPARSE[name]
    note = read(how, make(tmp_path), tmp_path / "out", strict=True)[0]
    assert note.startswith(told)
    assert note.endswith("missing_chunks='fill' takes these, missing_chunks='refuse' none")


def swapped(path: Path, keep: int = 0) -> Path:
    """A store whose chunks have the names of another separator, but for the first `keep` of x."""
    for file in all_of(store(path, 2), "x"):
        if int(file.name.partition(".")[0]) >= keep:
            target = path / "x" / file.name.replace(".", "/")
            target.parent.mkdir(exist_ok=True)
            os.replace(file, target)
    return path


LOST: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an array without chunks": (lambda f: empty(store(f / "a.zarr")), "; a.zarr has none;"),
    "the last rows of all arrays": (
        lambda f: lose(store(f / "a.zarr"), "x/c/7/0", "y/c/7/0", "y/c/7/1", "y/c/6/0", "y/c/6/1"),
        "in a.zarr no field has any from row 14 on",
    ),
    "some under another name": (
        lambda f: swapped(f / "a.zarr", 3), "a.zarr has chunks under other names, such as 3/0",
    ),
    "rows of HDF5 that were never written": (
        lambda f: hdf5(f / "a.h5", 10), "field 'x': 3 of 8 chunks are not there, the first is at [10, 0] of a.h5",
    ),
    "compressed rows of HDF5 that were never written": (
        lambda f: hdf5(f / "a.h5", 10, compression="lzf"), "in a.h5 no field has any from row 10 on",
    ),
}  # fmt: skip
"""Files of which something was lost, and what says so."""


@HOWS
@pytest.mark.parametrize("name", LOST)
def test_a_loss_is_a_remark(how: str, name: str, tmp_path: Path) -> None:
    """Where something speaks for a loss, `strict` fails; the option that the remark names ends it, or refuses."""
    make, told = LOST[name]
    source = make(tmp_path)
    assert told in " ".join(read(how, source, tmp_path / "out"))
    with pytest.raises(SourceError, match=r"strict allows nothing to be left out .* are not there"):
        read(how, source, tmp_path / "strict", strict=True)
    assert not read(how, source, tmp_path / "fill", strict=True, missing_chunks="fill")
    with pytest.raises(SourceError, match="are not there, the first is"):
        read(how, source, tmp_path / "refuse", missing_chunks="refuse")
    assert not (tmp_path / "refuse" / "shardio.json").exists()


@HOWS
def test_chunks_under_other_names_alone(how: str, tmp_path: Path) -> None:
    """An array that has chunks of another separator alone is refused, unless its fill values are wanted."""
    source = swapped(tmp_path / "a.zarr")
    told = r"8 of 8 chunks are not there, .* such as 0/0; correct its metadata, or take fill values by missing_chunks"
    with pytest.raises(SourceError, match=told):
        read(how, source, tmp_path / "out")
    assert not read(how, source, tmp_path / "out", missing_chunks="fill", strict=True)
    assert not shardio.open(tmp_path / "out").read([0])["x"].any()


@pytest.mark.parametrize("zipped", [False, True])
def test_chunks_within_shards(zipped: bool, tmp_path: Path) -> None:
    """`convert`, and `index` with checksums, tell of chunks missing within a shard; listing alone does not."""
    data = VALUES.copy()
    data[6:8] = 0
    source = tmp_path / ("b.zarr.zip" if zipped else "a.zarr")
    target = zarr.storage.ZipStore(source, mode="w") if zipped else zarr.storage.LocalStore(source)
    with contextlib.closing(target) as made:
        zarr.create_array(made, name="x", data=data, chunks=(2, 6), shards=(8, 6), fill_value=0)
    told = f"field 'x': 1 of 8 chunks of shards are not there, the first is [3, 0] in c/0/0 of {source.name}"
    convert = shardio.convert(source, tmp_path / "out", converter="zarr", container="hdf5", strict=True)
    assert any(note.startswith(told) for note in convert.notes)
    assert read("index", source, tmp_path / "checked", checksums=True, strict=True)[0].startswith(told)
    assert not read("index", source, tmp_path / "listed")


@HOWS
def test_whole_files_are_not_told(how: str, tmp_path: Path) -> None:
    for source in (store(tmp_path / "a.zarr"), store(tmp_path / "b.zarr", 2), hdf5(tmp_path / "a.h5", 16)):
        assert not read(how, source, tmp_path / f"out{source.name}", missing_chunks="refuse")


def test_the_command(tmp_path: Path) -> None:
    """The option is one of `index` and of both converters, in the words of the command line."""
    source = hdf5(tmp_path / "a.h5", 10)
    assert "--missing-chunks fill takes these" in run("index", source, "-o", tmp_path / "a")
    assert "are not there" not in run("index", source, "-o", tmp_path / "b", "--strict", "--missing-chunks", "fill")
    lines = run("convert", "hdf5", source, tmp_path / "c", "--missing-chunks", "refuse", code=1)
    assert "field 'x': 3 of 8 chunks are not there" in lines
    with pytest.raises(ConfigError, match="missing_chunks must be fill or refuse, got 'drop'"):
        read("convert", source, tmp_path / "d", missing_chunks="drop")


def virtual(folder: Path, sources: dict[int, tuple[str, str]], rows: int = 4) -> Path:
    """A virtual dataset of rows of other files, each by its file and dataset."""
    write_hdf5(folder / "row.h5", d=np.arange(1.0, 7))
    layout = h5py.VirtualLayout((rows, 6), "f8")
    for row, (name, inner) in sources.items():
        layout[row] = h5py.VirtualSource(name, inner, shape=(6,))
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=-7)
    return folder / "a.h5"


def test_rows_that_no_source_maps(tmp_path: Path) -> None:
    """Rows of a virtual dataset that no source maps are counted; the last ones are taken for a loss."""
    here = ("row.h5", "d")
    source = virtual(tmp_path, {0: here, 3: here})
    (note,) = read("convert", source, tmp_path / "out", external_links=True, strict=True)
    assert note.startswith("field 'x': 2 of 4 rows are not there, the first is row 1 of a.h5: their values are the")
    source = virtual(tmp_path, {0: here, 1: here})
    with pytest.raises(SourceError, match=r"in a\.h5 no field has any from row 2 on"):
        read("convert", source, tmp_path / "tail", external_links=True, strict=True)


def test_virtual_datasets_without_their_source(tmp_path: Path) -> None:
    """A source that lacks the dataset, or whose own source is gone, is refused by name: HDF5 reads fill values."""
    here = ("row.h5", "d")
    source = virtual(tmp_path, {0: here, 1: here, 2: ("row.h5", "none"), 3: here})
    with pytest.raises(SourceError, match=r"'x' \(kept in none of row.h5, which is missing\)"):
        read("convert", source, tmp_path / "out", external_links=True)
    (tmp_path / "inner").mkdir()
    between = virtual(tmp_path / "inner", {0: here}, rows=1)
    outer = virtual(tmp_path, dict.fromkeys(range(4), (f"inner/{between.name}", "x")))
    assert not read("convert", outer, tmp_path / "whole", external_links=True, missing_chunks="fill")
    (tmp_path / "inner/row.h5").unlink()
    with pytest.raises(SourceError, match=r"'x' \(kept in row.h5, which is missing\)"):
        read("convert", outer, tmp_path / "gone", external_links=True)


@HOWS
def test_fill_values_of_netcdf(how: str, tmp_path: Path) -> None:
    """Values that netCDF takes for ones never written, and no attribute names, are told under decode_cf."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", 10), file.createDimension("lat", 3)
        file.createVariable("x", "f4", ("time", "lat"))[:] = 1
        file["x"].units = "K"
        data = file["x"][:].filled()
        data[9, 1] = 9.969209968386869e36
        file["x"][:] = data
    (note,) = read(how, tmp_path / "a.nc", tmp_path / "out", decode_cf=True)
    assert note.startswith("field 'x': 1 of 8 rows looked at are not there, the first is row 9 of a.nc")
    assert "9.96921e+36" in note
    assert not read(how, tmp_path / "a.nc", tmp_path / "filled", decode_cf=True, missing_chunks="fill")


@HOWS
def test_missing_dates_of_anemoi(how: str, tmp_path: Path) -> None:
    """Dates that a store itself calls missing are told."""
    group = zarr.open_group(store(tmp_path / "a.zarr", 2), mode="r+")
    group.attrs["missing_dates"] = ["2020-01-02T18:00:00", "2020-01-03T00:00:00"]
    convert = {"index": shardio.index, "convert": partial(shardio.convert, converter="zarr")}[how]
    made: Any = convert(tmp_path / "a.zarr", tmp_path / "out", strict=True)
    told = "its attribute missing_dates names 2 dates without data, which are samples; the first is 2020-01-02T18:00:00"
    assert any(note.endswith(told) for note in made.notes)
