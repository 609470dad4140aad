"""Files of NetCDF's classic formats, as scipy and netCDF's own library write them, read by the converter hdf5."""

import tempfile
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import scipy.io
from _builders import overwrite
from _sources import all_of
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.errors import BadSample, SourceError
from shardio.source import Source
from shardio.testing import check_source
from shardio_converters.hdf5 import hdf5

CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
OLD_TYPES = ("i1", "i2", "i4", "f4", "f8")
NEW_TYPES = ("u1", "u2", "u4", "i8", "u8")


def write(path: Path, form: str, *, rows: int = 5, unlimited: bool = True, types: tuple[str, ...] = OLD_TYPES) -> Any:
    """Write a variable of each type; return their values by name."""
    found = {}
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.title = "odd"
        file.createDimension("time", None if unlimited else rows)
        file.createDimension("x", 3)
        file.createDimension("length", 4)
        for number, kind in enumerate(types):
            shape = [(rows,), (rows, 3)][number % 2]
            values = np.random.default_rng(number).integers(0, 99, shape).astype(kind)
            file.createVariable(f"v{kind}", kind, ("time", "x")[: len(shape)])[:] = values
            found[f"v{kind}"] = values
        names = file.createVariable("name", "S1", ("time", "length"))
        names[:] = netCDF4.stringtochar(np.array([f"n{n}" for n in range(rows)], "S4"))
        file.createVariable("single", "f4", ())[...] = 3
    return {**found, "name": [f"n{n}" for n in range(rows)]}


def check(source: Source, expected: dict[str, Any]) -> None:
    """Assert that the fields of a source have these values."""
    for name, values in expected.items():
        found = [source[row][name] for row in range(len(values))]
        np.testing.assert_array_equal(found, values)
        if name != "name":
            assert source.fields[name].dtype == values.dtype.name


@pytest.mark.parametrize("form", CLASSIC)
@pytest.mark.parametrize("unlimited", [True, False])
def test_formats(form: str, unlimited: bool, tmp_path: Path) -> None:
    """Every type of every format, along the axis of records or another."""
    types = OLD_TYPES + (NEW_TYPES if form == CLASSIC[2] else ())
    expected = write(tmp_path / "a.nc", form, unlimited=unlimited, types=types)
    source = hdf5(tmp_path / "a.nc")
    check(source, expected)
    assert source.remarks == ("left out 'single': it has no rows",)
    check_source(source, all_of(source), tmp_path / "out")


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(OLD_TYPES), min_size=4, max_size=4),
    rows=st.integers(1, 6),
    unlimited=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_variables(shapes: list[list[int]], kinds: list[str], rows: int, unlimited: bool) -> None:
    """Values equal scipy's, for files with one record variable, whose records have no padding, and with several."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.nc")
        with scipy.io.netcdf_file(path, "w", version=1 + rows % 2) as file:
            file.createDimension("n", None if unlimited else rows)
            for number, shape in enumerate(shapes):
                axes = [f"d{number}_{axis}" for axis in range(len(shape))]
                for axis, side in zip(axes, shape, strict=True):
                    file.createDimension(axis, side)
                values = np.random.default_rng(number).integers(0, 99, (rows, *shape)).astype(kinds[number])
                file.createVariable(f"v{number}", kinds[number], ("n", *axes))[:] = values
        with scipy.io.netcdf_file(path, mmap=False) as file:
            read = {name: variable[:] for name, variable in file.variables.items()}
            expected = {name: values.astype(values.dtype.newbyteorder("=")) for name, values in read.items()}
        check(hdf5(path), expected)


@pytest.mark.parametrize("form", CLASSIC)
def test_attributes_are_those_of_the_same_file_in_hdf5(form: str, tmp_path: Path) -> None:
    """Packing, units and times give the values and the notes that they give in NetCDF-4 files."""
    for number, one in enumerate((form, "NETCDF4")):
        for month in (1, 2):
            with netCDF4.Dataset(tmp_path / f"{number}-{month}.nc", "w", format=one) as file:
                file.createDimension("time", None)
                file.createDimension("x", 4)
                packed = file.createVariable("t2m", "i2", ("time", "x"), fill_value=np.int16(-30))
                packed.set_auto_maskandscale(False)
                packed.scale_factor, packed.add_offset, packed.units = np.float32(0.01 * month), np.float32(273.15), "K"
                packed[:] = np.arange(-30, -10).reshape(5, 4)
                time = file.createVariable("time", "i4", ("time",))
                time.units, time.calendar = f"hours since 2020-0{month}-01", "standard"
                time[:] = np.arange(5)
    for decode in (True, False):
        patterns = [str(tmp_path / f"{number}-{'*' if decode else '1'}.nc") for number in (0, 1)]
        classic, later = (hdf5(pattern, fields="t2m,time", decode_cf=decode) for pattern in patterns)
        assert classic.fields == later.fields
        assert classic.remarks == later.remarks
        assert len(classic.sizes()) == (10 if decode else 5)
        for row in range(len(classic.sizes())):
            np.testing.assert_array_equal(classic[row]["t2m"], later[row]["t2m"])
            assert classic[row]["time"] == later[row]["time"]


def test_a_folder_of_both(tmp_path: Path) -> None:
    """Months in the classic and the new format are one series; a note names other files."""
    first = write(tmp_path / "1.nc", CLASSIC[1], types=("f4",))
    write(tmp_path / "2.nc", "NETCDF4_CLASSIC", types=("f4",))
    (tmp_path / "notes").write_text("a")
    source = hdf5(tmp_path, fields="vf4")
    assert len(source.sizes()) == 10
    check(source, {"vf4": first["vf4"]})
    assert source.remarks[0].startswith("left out 1 file beside the HDF5 files")


@pytest.mark.parametrize("unlimited", [True, False])
def test_cut_files(unlimited: bool, tmp_path: Path) -> None:
    """Rows that a cut file lacks are bad samples, and not the zeros that netCDF's library reads."""
    path = tmp_path / "a.nc"
    expected = write(path, CLASSIC[0], rows=9, unlimited=unlimited)
    data = path.read_bytes()
    source = hdf5(path)
    told = []
    for size in range(0, len(data), 11):
        path.write_bytes(data[:size])
        for row in range(9):
            try:
                found = hdf5(path)[row] if size % 2 else source[row]
            except (SourceError, BadSample) as error:
                told.append(str(error))
            else:
                for name, values in expected.items():
                    np.testing.assert_array_equal(found[name], values[row])
    assert len(told) > 20
    assert all("a.nc" in text for text in told)


def test_records_that_are_not_counted(tmp_path: Path) -> None:
    """A writer that streams leaves their number open."""
    expected = write(tmp_path / "a.nc", CLASSIC[0])
    overwrite(tmp_path / "a.nc", 4, b"\xff" * 4)
    check(hdf5(tmp_path / "a.nc"), expected)


def test_claims_take_no_memory(tmp_path: Path) -> None:
    """A file that states more records than it has bytes is refused."""
    write(tmp_path / "a.nc", CLASSIC[0])
    overwrite(tmp_path / "a.nc", 4, b"\x7f" * 4)
    with pytest.raises(SourceError, match=r"a\.nc cannot be read as NetCDF: its header is damaged: 'vi1' is \[2139"):
        hdf5(tmp_path / "a.nc")


def test_they_are_not_adopted(tmp_path: Path) -> None:
    """`index` names the command that converts them."""
    write(tmp_path / "a.nc", CLASSIC[0])
    with pytest.raises(SourceError, match=r"found no .*`shardio convert hdf5 .*a\.nc OUT` takes NetCDF files"):
        shardio.index(tmp_path / "a.nc", tmp_path / "out")
    with pytest.raises(SourceError, match="is a NetCDF-3 file, which cannot be read in place: convert it"):
        _ = hdf5(tmp_path / "a.nc", fields="vi1").adoption
