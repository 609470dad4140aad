"""Two files of a series that differ as those of a centre do: right as xarray reads them, refused by name, or told."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _series
import numpy as np
import pytest
import xarray
from _cli import run
from _hdf5_files import write_hdf5
from _series import read

import shardio
from shardio.errors import ShardioError, SourceError

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore::shardio.SourceWarning")

GRID = np.linspace(90, -90, 6)
PACKED: dict[str, Any] = {"dtype": "i2", "_FillValue": np.int16(-9), "scale_factor": 0.1}


def write(
    path: Path, *, day: int = 1, rows: int = 4, dims: str = "time lat lon", lat: Any = GRID, kind: str = "f4",
    times: Any = None, units: str = "hours", calendar: str = "standard", attributes: Any = None,
    extra: Any = None, **encoding: Any,
) -> Path:  # fmt: skip
    """Write a file, or a store, of a variable `a` on a grid as many degrees wide as high."""
    numbers = np.random.default_rng(day).integers(0, 99, (rows, 6, 6)) / 2
    variables = {"a": (dims.split(), numbers.astype(kind), attributes or {}), **(extra or {})}
    since = {"units": f"{units} since 2000-01-{day:02}", "calendar": calendar}
    when = np.arange(float(rows)) if times is None else times
    made = xarray.Dataset(variables, coords={"time": ("time", when, since), "lat": lat, "lon": np.arange(6.0)})
    if path.suffix == ".nc":
        made.to_netcdf(path, engine="h5netcdf", encoding={"a": encoding}, unlimited_dims=["time"])
    else:
        made.to_zarr(path, encoding={"a": encoding}, consolidated=False)
    return path


ODD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # right
    "another scale": ({**PACKED}, {**PACKED, "scale_factor": 0.2}, ""),
    "another fill value": ({**PACKED}, {**PACKED, "_FillValue": np.int16(3)}, ""),
    "NaN for a fill value": ({"_FillValue": np.float32("nan")}, {"_FillValue": np.float32(7)}, ""),
    "another unit of time": ({}, {"units": "minutes", "times": np.arange(4.0) * 60}, ""),
    "a calendar of the same days": ({}, {"calendar": "proleptic_gregorian"}, ""),
    "another byte order": ({}, {"dtype": ">f4"}, ""),
    # refused
    "a calendar without leap days": ({}, {"calendar": "noleap"}, "of field 'time', units is 'hours since 2000-01-02"),
    "other units": ({"attributes": {"units": "K"}}, {"attributes": {"units": "degC"}}, "units is 'degC' in .*'K'"),
    "latitudes reversed": ({}, {"lat": GRID[::-1]}, "on their grid: value 0 of 'lat' is -90.0 in .*, and 90.0"),
    "another grid": ({}, {"lat": GRID / 2}, "on their grid: value 0 of 'lat' is 45.0"),
    "a variable transposed": ({}, {"dims": "time lon lat"}, "has the axes time, lon, lat in .*, and time, lat, lon in"),
    "another dtype": ({}, {"kind": "f8"}, "field 'a' is array, float64, .* and array, float32"),
    "packed in one": ({**PACKED}, {}, "field 'a' is array, float32, .* and array, float64"),
    "a variable more": ({}, {"extra": {"b": ("time", np.zeros(4))}}, "has 'b', .* has not"),
    # told
    "times twice": ({}, {"day": 1, "times": np.arange(3.0, 7)}, "told: 'time' does not go on"),
}  # fmt: skip


FORMS = pytest.mark.parametrize("form", [".nc", ".zarr"])


def axis(form: str) -> dict[str, Any]:
    """The option that names the axis of rows, where the files don't."""
    return {} if form == ".nc" else {"axis": "time"}


@FORMS
@pytest.mark.parametrize("name", ODD)
def test_a_series(tmp_path: Path, name: str, form: str) -> None:
    """Rows are those that xarray decodes of each file, or an error names both; what is doubtful is told."""
    one, other, message = ODD[name]
    paths = [write(tmp_path / f"0{form}", **one), write(tmp_path / f"1{form}", **{"day": 2, **other})]
    options = {"decode_cf": True, **axis(form)}
    if message and not message.startswith("told: "):
        with pytest.raises(ShardioError, match=message):
            shardio.index(paths, tmp_path / "out", **options)
        return
    notes = [note for note in shardio.index(paths, tmp_path / "out", **options).notes if "does not go on" in note]
    assert len(notes) == bool(message)
    found = shardio.open(tmp_path / "out").read(range(8))
    parts = [read(path) for path in paths]
    np.testing.assert_array_equal(found["a"], np.concatenate([part["a"].values for part in parts]))
    times = np.concatenate([part["time"].values for part in parts]).astype("datetime64[ns]").astype(np.int64)
    np.testing.assert_array_equal(found["time"], times / 1e9)


def test_months_without_rows_or_missing(tmp_path: Path) -> None:
    """A file without steps adds none; a month that is missing is a gap, at which windows end."""
    for day, rows in ((1, 4), (2, 0), (3, 4)):
        write(tmp_path / f"{day}.nc", day=day, rows=rows)
    shardio.index(tmp_path, tmp_path / "out", decode_cf=True)
    dataset = shardio.open(tmp_path / "out")
    assert len(dataset) == 8
    assert len(dataset.windows(3, contiguous="time")) == 4


def test_rows_along_several_axes_are_told(tmp_path: Path) -> None:
    """Variables whose first axes are others, of the same length, are told: their rows belong to different things."""
    extra = {"w": ("lat", np.arange(6.0))}
    path = write(tmp_path / "a.nc", rows=6, extra=extra)
    told = run("index", path, "-o", tmp_path / "out", "--decode-cf")
    axes = "those of 'a' are along 'time', those of 'w' are along 'lat'"
    assert f"rows of fields belong to different axes: {axes}" in told
    assert "different axes" not in run("index", path, "-o", tmp_path / "b", "--decode-cf", "--fields", "a,time")


def test_characters_are_refused_in_place(tmp_path: Path) -> None:
    """Characters [n, length] are no text in a file: they are refused by name, and converted."""
    path = write(tmp_path / "a.nc", extra={"s": ("time", np.array([b"ab", b"cd", b"ee", b"ff"]))})
    with pytest.raises(ShardioError, match=r"field 's': expected bytes or text .* convert it"):
        shardio.index(path, tmp_path / "out", decode_cf=True)


def test_groups_of_equal_names(tmp_path: Path) -> None:
    """Datasets of one name in several groups keep their paths; those that would be one field are refused."""
    shardio.index(write_hdf5(tmp_path / "a.h5", x__a=np.arange(4.0), y__a=np.arange(4.0) * 2), tmp_path / "out")
    assert shardio.open(tmp_path / "out")[3] == {"x.a": 3.0, "y.a": 6.0}
    write_hdf5(tmp_path / "a.h5", "a", **{"x.a": np.arange(4.0)})
    with pytest.raises(ShardioError, match=r"would both be the field 'x.a'; rename one"):
        shardio.index(tmp_path / "a.h5", tmp_path / "out2")


Made = Callable[[str, Any], Path]
"""Writes a file of one variable, which its name begins with."""

MERGES: dict[str, tuple[Callable[[Made], list[Path]], str]] = {
    "another time": (
        lambda made: [made("a", range(4)), made("b", [0, 1, 2, 4])],
        r"same coordinates: value 3 of 'time' is 946699200.0 in .*b.nc, and 946695600.0 in .*a.nc",
    ),
    "other rows": (
        lambda made: [made("a", range(4)), made("b", range(3))],
        r"same coordinates: 'time' has 3 values in .*b.nc, and 4 in .*a.nc",
    ),
    "a file missing": (
        lambda made: [made("a0", range(4)), made("a1", range(4)), made("b", range(4))],
        r"merge: 2 files with the datasets of .*a0.nc, and 1 file with those of .*b.nc",
    ),
    "one series": (
        lambda made: [made("a0", range(4)), made("a1", range(4))],
        r"merge takes files of different datasets, and all hold those of .*a0.nc",
    ),
}


@FORMS
@pytest.mark.parametrize("name", MERGES)
def test_what_is_not_merged(tmp_path: Path, name: str, form: str) -> None:
    """Files of other rows, times or variables are refused with both files and the first difference."""
    make, message = MERGES[name]
    paths = make(lambda name, hours: _series.write(tmp_path / f"{name}{form}", name[0], hours))
    with pytest.raises(SourceError, match=message.replace(".nc", form)):
        _series.index(paths, tmp_path / "out", merge=True, **axis(form))


@FORMS
def test_variables_and_grids_that_are_not_merged(tmp_path: Path, form: str) -> None:
    """Neither are files of another grid, nor of a variable that both have."""
    paths = [_series.write(tmp_path / f"{name}{form}", f"{name} mask", range(4)) for name in "ab"]
    with pytest.raises(SourceError, match=f"merge: 'mask' is in .*a{form} and in .*b{form}, and is no coordinate"):
        _series.index(paths, tmp_path / "out", merge=True, **axis(form))
    paths[1] = _series.write(tmp_path / f"c{form}", "c", range(4), lat=_series.GRID["lat"][::-1])
    with pytest.raises(SourceError, match=f"same coordinates: value 0 of 'lat' is -90.0 in .*c{form}, and 90.0 in .*a"):
        _series.index(paths, tmp_path / "out", merge=True, **axis(form))


@FORMS
def test_grids_that_no_field_has_are_not_compared(tmp_path: Path, form: str) -> None:
    """A file with other latitudes than the first is taken where no field has that axis."""
    lat = _series.GRID["lat"]
    paths = [_series.write(tmp_path / f"{n}{form}", "a", range(4), day=n + 1, lat=lat / (n + 1)) for n in range(2)]
    made, _ = _series.index(paths, tmp_path / "out", fields="time", **axis(form))
    assert len(made) == 8


SERIES: dict[str, tuple[list[tuple[int, Any]], str, int]] = {
    "in order": ([(1, range(24)), (2, range(24))], "", 46),
    "descending": ([(2, range(23, -1, -1)), (1, range(23, -1, -1))], "", 46),
    "wrong order": (
        [(2, range(24)), (1, range(24))],
        r"'time' does not go on from .*0.nc, which ends at 946854000.0, to .*1.nc, which begins at 946684800.0",
        44,
    ),
    "overlap": ([(1, range(24)), (1, range(20, 44))], r"'time' does not go on from .*0.nc, .* to .*1.nc", 44),
    "a day missing": ([(1, range(24)), (3, range(24))], "", 44),
    "an hour twice": ([(1, [0, 1, 2, 2, 3, 4, 5])], "", 3),
    "one hour each": ([(1, [hour]) for hour in range(5)], "", 3),
}
"""The days and hours of the files of a series, what is told, and how many windows of three rows there are."""


@FORMS
@pytest.mark.parametrize("name", SERIES)
def test_windows_of_odd_series(tmp_path: Path, name: str, form: str) -> None:
    """Windows cross no gap, no repeated time and no step back; files in the wrong order are told by name."""
    days, message, count = SERIES[name]
    paths = [_series.write(tmp_path / f"{n}{form}", "a", hours, day=day) for n, (day, hours) in enumerate(days)]
    made, notes = _series.index(paths, tmp_path / "out", **axis(form))
    assert len(made.windows(3, contiguous="time")) == count
    assert len(notes) == bool(message)
    assert not message or re.search(message.replace(".nc", form), str(notes[0]))
