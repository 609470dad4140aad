"""Two files of a series that differ as those of a centre do: right as xarray reads them, refused by name, or told."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
from _cli import run

import shardio
from shardio.errors import ShardioError

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


@pytest.mark.parametrize("form", [".nc", ".zarr"])
@pytest.mark.parametrize("name", ODD)
def test_a_series(tmp_path: Path, name: str, form: str) -> None:
    """Rows are those that xarray decodes of each file, or an error names both; what is doubtful is told."""
    one, other, message = ODD[name]
    paths = [write(tmp_path / f"0{form}", **one), write(tmp_path / f"1{form}", **{"day": 2, **other})]
    options: dict[str, Any] = {"decode_cf": True, "axis": None if form == ".nc" else "time"}
    if message and not message.startswith("told: "):
        with pytest.raises(ShardioError, match=message):
            shardio.index(paths, tmp_path / "out", **options)
        return
    notes = [note for note in shardio.index(paths, tmp_path / "out", **options).notes if "does not go on" in note]
    assert len(notes) == bool(message)
    found = shardio.open(tmp_path / "out").read(range(8))
    how: dict[str, Any] = {".nc": {"engine": "h5netcdf"}, ".zarr": {"engine": "zarr", "consolidated": False}}[form]
    parts = [xarray.load_dataset(path, **how) for path in paths]
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
    assert (
        "rows of fields belong to different axes: those of 'a' are along 'time', those of 'w' are along 'lat'" in told
    )
    assert "different axes" not in run("index", path, "-o", tmp_path / "b", "--decode-cf", "--fields", "a,time")


def test_characters_are_refused_in_place(tmp_path: Path) -> None:
    """Characters [n, length] are no text in a file: they are refused by name, and converted."""
    path = write(tmp_path / "a.nc", extra={"s": ("time", np.array([b"ab", b"cd", b"ee", b"ff"]))})
    with pytest.raises(ShardioError, match=r"field 's': expected bytes or text .* convert it"):
        shardio.index(path, tmp_path / "out", decode_cf=True)


def test_groups_of_equal_names(tmp_path: Path) -> None:
    """Datasets of one name in several groups keep their paths; those that would be one field are refused."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x/a"], file["y/a"] = np.arange(4.0), np.arange(4.0) * 2
    shardio.index(tmp_path / "a.h5", tmp_path / "out")
    assert shardio.open(tmp_path / "out")[3] == {"x.a": 3.0, "y.a": 6.0}
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["x.a"] = np.arange(4.0)
    with pytest.raises(ShardioError, match=r"would both be the field 'x.a'; rename one"):
        shardio.index(tmp_path / "a.h5", tmp_path / "out2")
