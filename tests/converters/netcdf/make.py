"""Write the files beside this script, and what xarray and netCDF4-python read from them: `python make.py`.

The versions that wrote them are in `expected.json`. Bytes are those of the values, little-endian, in hexadecimal
digits; times are whole nanoseconds since 1970, None for no time. `masked` says which values netCDF4-python masks.
"""

# ruff: noqa: E501  a line for each variable

import datetime
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import cftime
import netCDF4
import numpy as np
import xarray
import zarr

HERE = Path(__file__).parent
warnings.simplefilter("ignore")
EPOCH = datetime.datetime(1970, 1, 1)

f4, f8 = np.float32, np.float64
INT16 = [-32768, -32767, -1, 0, 1, 32767]
# name: (dtype, values, attributes)
PACKED: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "float32_scale": ("i2", INT16, {"scale_factor": f4(0.01), "add_offset": f4(273.15), "_FillValue": np.int16(-32768)}),
    "float64_scale": ("i2", INT16, {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32768)}),
    "mixed_scale": ("i2", INT16, {"scale_factor": f4(0.01), "add_offset": 273.15}),
    "scale_alone": ("i2", INT16, {"scale_factor": f4(0.1)}),
    "offset_alone": ("i2", INT16, {"add_offset": f4(0.1)}),
    "whole_offset": ("i2", INT16, {"scale_factor": f4(0.5), "add_offset": np.int16(7)}),
    "unsigned": ("i1", [-128, -1, 0, 1, 126, 127], {"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": np.int8(-1)}),
    "unsigned_alone": ("i1", [-128, -1, 0, 1, 126, 127], {"_Unsigned": "true"}),
    "signed": ("u1", [0, 1, 127, 128, 254, 255], {"_Unsigned": "false", "_FillValue": np.uint8(255)}),
    "two_fills": ("i2", INT16, {"_FillValue": np.int16(-32768), "missing_value": np.int16(32767), "scale_factor": 0.1}),
    "many_fills": ("i2", INT16, {"missing_value": np.array([-1, 0], np.int16), "scale_factor": f4(2)}),
    "uint16": ("u2", [0, 1, 2, 32768, 65534, 65535], {"scale_factor": f4(0.25), "add_offset": f4(-5), "_FillValue": np.uint16(65535)}),
    "big_endian": (">i2", INT16, {"scale_factor": f4(0.01), "add_offset": f4(1), "_FillValue": np.int16(-32768)}),
    "int32_scale": ("i4", [-(2**31), -1, 0, 1, 16777217, 2**31 - 1], {"scale_factor": f4(0.1), "add_offset": f4(1), "_FillValue": np.int32(-(2**31))}),
    "int32_scale_alone": ("i4", [-(2**31), -1, 0, 1, 16777217, 2**31 - 1], {"scale_factor": f4(0.1), "_FillValue": np.int32(-(2**31))}),
    "fill_alone_16": ("i2", INT16, {"_FillValue": np.int16(-1)}),
    "fill_alone_32": ("i4", [-1, 0, 1, 2, 3, 16777217], {"_FillValue": np.int32(-1)}),
    "fill_alone_64": ("i8", [-1, 0, 1, 2, 3, 2**53 + 1], {"_FillValue": np.int64(-1)}),
    "float_fill": ("f4", [1e20, -1, 0, 1, np.nan, np.inf], {"_FillValue": f4(1e20)}),
    "float_nan_fill": ("f4", [1.5, np.nan, 0, 1, 2, 3], {"_FillValue": f4(np.nan)}),
    "float_nan_fill_scaled": ("f4", [1.5, np.nan, 0.1, 1, 2, 3], {"_FillValue": f4(np.nan), "scale_factor": 0.1}),
    "float_missing_64": ("f4", [1e20, -1, 0, 1, 2, 3], {"missing_value": f8(1e20)}),
    "float64_scale_32": ("f8", [0.1, 0.2, 0.3, 1e9, -1, 0], {"scale_factor": f4(0.1), "add_offset": f4(0.1)}),
    "nan_fill_of_ints": ("i2", INT16, {"missing_value": f4(np.nan)}),
    "plain": ("i2", INT16, {"units": "m"}),
    "big_endian_plain": (">f8", [1, 2, 3, 4, 5, 6], {"units": "K"}),
}  # fmt: skip
IN_ZARR = ["float32_scale", "scale_alone", "unsigned", "fill_alone_32", "float_fill", "float_nan_fill_scaled", "plain"]
# Those in which netCDF4-python masks what xarray does not.
VALID: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "range": ("i2", INT16, {"valid_range": np.array([-1, 100], np.int16), "scale_factor": 0.5, "_FillValue": np.int16(0)}),
    "range_alone": ("i2", INT16, {"valid_range": np.array([-1, 100], np.int16)}),
    "range_before_bounds": ("i2", INT16, {"valid_range": np.array([-1, 100], np.int16), "valid_min": np.int16(0)}),
    "bounds": ("f4", [-1, 0, 0.5, 1, 2, np.nan], {"valid_min": f4(0), "valid_max": f4(1)}),
    "range_of_other_type": ("i2", INT16, {"valid_range": np.array([-1.0, 100.0]), "scale_factor": f4(0.5), "add_offset": f4(1)}),
    "range_that_does_not_fit": ("i2", INT16, {"valid_range": np.array([-1.5, 100.0]), "scale_factor": 0.5, "_FillValue": np.int16(-32767)}),
    "range_unsigned": ("i1", [-128, -1, 0, 1, 126, 127], {"_Unsigned": "true", "valid_range": np.array([1, -2], np.int8), "_FillValue": np.int8(127)}),
}  # fmt: skip
TIMES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "hours": ("i4", [0, 1, 2, 3, 4, 1_000_000], {"units": "hours since 1900-01-01 00:00:00.0"}),
    "zone": ("i4", [0, 1, 2, 3, 4, 5], {"units": "days since 2000-01-01 00:00 +01:00", "calendar": "gregorian"}),
    "fractions": ("f8", [0.5, 0.25, 1 / 24, 1 / 3, 1000.75, np.nan], {"units": "days since 2000-1-1", "calendar": "standard"}),
    "float32_hours": ("f4", [0, 0.5, 1, 1.25, 2, 3], {"units": "hours since 2020-02-29T12:30:15Z"}),
    "proleptic": ("i8", [0, 1, 59, 365, 577_735, 730_000], {"units": "days since 0001-01-01", "calendar": "proleptic_gregorian"}),
    "before_the_reform": ("i4", [693_598, 700_000, 719_164, 730_000, 737_791, 740_000], {"units": "days since 1-1-1 00:00:00"}),
    "across_the_reform": ("i4", [0, 1, 59, 365, 577_736, 577_737], {"units": "days since 0001-01-01"}),
    "filled": ("i4", [-1, 0, 60, 3600, 86400, 5], {"units": "seconds since 1970-01-01", "_FillValue": np.int32(-1)}),
    "packed": ("i2", [0, 1, 2, 3, 4, 5], {"units": "hours since 1999-12-31", "scale_factor": 0.5, "add_offset": 6.0}),
    "microseconds": ("i8", [0, 1, 10**6, 10**15, 86_400_000_000, 7], {"units": "microseconds since 1980-01-06"}),
    "short_unit": ("i4", [0, 1, 2, 3, 4, 5], {"units": "hrs since 2000-01-01"}),
    "minutes": ("i4", [0, 1, 2, 3, 4, 60], {"units": "Minutes since 2000-01-01 06:30"}),
}  # fmt: skip


def write(path: Path, variables: dict[str, tuple[str, list[Any], dict[str, Any]]]) -> None:
    """Write a NetCDF-4 file of variables of six values, as netCDF4-python stores them."""
    with netCDF4.Dataset(path, "w") as file:
        file.set_auto_maskandscale(False)
        file.createDimension("n", 6)
        for name, (dtype, values, attributes) in variables.items():
            fill = attributes.get("_FillValue")
            variable = file.createVariable(
                name, dtype, ("n",), fill_value=fill, endian="big" if dtype[0] == ">" else "little"
            )
            variable.set_auto_maskandscale(False)
            variable.setncatts({n: v for n, v in attributes.items() if n != "_FillValue"})
            variable[:] = np.array(values, dtype)


def described(values: Any) -> dict[str, Any]:
    array = np.asarray(values)
    return {"dtype": array.dtype.name, "bytes": array.astype(array.dtype.newbyteorder("<")).tobytes().hex()}


def decoded(path: Path, names: list[str]) -> dict[str, Any]:
    with xarray.open_dataset(path, decode_times=False) as dataset:
        return {name: described(dataset[name].values) for name in names}


def masked(path: Path, names: list[str]) -> dict[str, list[bool]]:
    with netCDF4.Dataset(path) as file:
        return {name: np.ma.getmaskarray(file[name][:]).tolist() for name in names}


def times(dataset: Any, names: list[str]) -> dict[str, list[int | None]]:
    return {name: [nanoseconds(value) for value in dataset[name].values] for name in names}


def nanoseconds(value: Any) -> int | None:
    if isinstance(value, cftime.datetime):
        since = cftime.date2num(value, "microseconds since 1970-01-01", value.calendar)
        return int(since) * 1000
    found = value.astype("datetime64[ns]")
    return None if np.isnat(found) else int(found.astype(np.int64))


def months(folder: Path) -> dict[str, Any]:
    """Two months as climate stores deliver them: each file is packed by a scale, offset and fill value of its own."""
    folder.mkdir(exist_ok=True)
    expected: dict[str, Any] = {"t2m": [], "time": [], "time_bnds": []}
    for month in (1, 2):
        rng = np.random.default_rng(month)
        start = np.datetime64(f"2020-0{month}-01", "ns")
        time = start + np.arange(5) * np.timedelta64(6, "h")
        values = (250 + 20 * month + 10 * rng.random((5, 2, 3))).astype(f4)
        values[month, 0, 0] = np.nan
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        bounds = np.stack([time - np.timedelta64(6, "h"), time], 1)
        dataset = xarray.Dataset(
            {"t2m": (("time", "y", "x"), values, {"units": "K"}), "time_bnds": (("time", "edge"), bounds)},
            {"time": ("time", time, {"bounds": "time_bnds"})},
        )
        scale = (high - low) / 60000
        packing = {
            "dtype": "i2",
            "scale_factor": scale,
            "add_offset": (high + low) / 2,
            "_FillValue": np.int16(-32768 + month),
        }
        since = {"dtype": "i4", "units": f"hours since 2020-0{month}-01", "calendar": "proleptic_gregorian"}
        path = folder / f"month-{month}.nc"
        dataset.to_netcdf(path, engine="netcdf4", encoding={"t2m": packing, "time": since})
        with xarray.open_dataset(path) as read:
            expected["t2m"].append(described(read["t2m"].values))
            expected["time"] += times(read, ["time"])["time"]
            expected["time_bnds"] += [nanoseconds(v) for v in read["time_bnds"].values.ravel()]
    return expected


def zarrs(folder: Path, source: Path, names: list[str]) -> dict[str, Any]:
    """The variables of a NetCDF file as xarray writes them to stores of both formats, and reads them from there."""
    expected: dict[str, Any] = {}
    with xarray.open_dataset(source, decode_cf=False) as dataset:
        for version in (2, 3):
            path = folder / f"packed-{version}.zarr.zip"
            path.unlink(missing_ok=True)
            with zarr.storage.ZipStore(path, mode="w") as store:
                plain = dataset[names].copy(deep=True)
                for variable in plain.variables.values():
                    variable.encoding = {}
                plain.to_zarr(store, zarr_format=version, consolidated=False)
            with zarr.storage.ZipStore(path, mode="r") as store:
                read = xarray.open_zarr(store, consolidated=False, decode_times=False)
                expected[str(version)] = {name: described(read[name].values) for name in names}
    return expected


write(HERE / "packed.nc", PACKED)
write(HERE / "valid.nc", VALID)
write(HERE / "times.nc", TIMES)
shutil.rmtree(HERE / "months", ignore_errors=True)
with xarray.open_dataset(HERE / "times.nc") as opened:
    decoded_times = times(opened, list(TIMES))
result = {
    "versions": {m.__name__: m.__version__ for m in (xarray, netCDF4, np, zarr, cftime)},
    "packed": decoded(HERE / "packed.nc", list(PACKED)),
    "valid": decoded(HERE / "valid.nc", list(VALID)),
    "masked": masked(HERE / "valid.nc", list(VALID)),
    "times": decoded_times,
    "months": months(HERE / "months"),
    "zarr": zarrs(HERE, HERE / "packed.nc", IN_ZARR),
}
(HERE / "expected.json").write_text(json.dumps(result, indent=1) + "\n")
print(*result["versions"].items(), file=sys.stderr)
