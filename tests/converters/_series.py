"""Series of NetCDF files and of Zarr stores that xarray writes, how it reads them, and what `index` makes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.random import Generator

import shardio

GRID = {"lat": np.linspace(90, -90, 5), "lon": np.arange(6.0) * 60}


def write(
    path: Path,
    names: str,
    hours: Any,
    *,
    day: int = 1,
    time: str = "f8",
    units: str = "hours",
    form: Any = 3,
    encodings: Sequence[dict[str, Any]] = (),
    **grid: Any,
) -> Path:
    """Write variables over `hours` of a day, with the coordinates of their grid, to a file `.nc` or a store."""
    coordinates = {**GRID, **grid}
    shape = (len(hours), *map(len, coordinates.values()))
    rng = np.random.default_rng([day, int(sum(hours)), *names.encode()])
    values = {n: (("time", *coordinates), rng.integers(500, 600, shape).astype("f4") / 2) for n in names.split()}
    times = {"time": ("time", np.asarray(hours, time), {"units": f"{units} since 2000-01-{day:02}"})}
    made = xarray.Dataset({n: (*v, {"units": f"of {n}"}) for n, v in values.items()}, coords={**times, **coordinates})
    encoding = dict(zip(names.split(), map(dict, encodings), strict=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".nc":
        made.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    else:
        made.to_zarr(path, zarr_format=form, encoding=encoding, consolidated=False, write_empty_chunks=True)
    return path


def read(*paths: Path) -> xarray.Dataset:
    """The files or stores as xarray decodes them, one after the other."""
    how: dict[str, dict[str, Any]] = {".nc": {"engine": "h5netcdf"}, ".zarr": {"engine": "zarr", "consolidated": False}}
    parts = [xarray.load_dataset(path, **how[path.suffix]) for path in paths]
    return xarray.concat(parts, "time") if len(parts) > 1 else parts[0]


def index(paths: Any, out: Path, **options: Any) -> Any:
    """Index files, of which coordinates of the grid are left out; return the dataset and the other notes."""
    notes = shardio.index(paths, out, **{"decode_cf": True, "tell": lambda note: None, **options}).notes
    return shardio.open(out), [note for note in notes if "left out" not in note and "in chunks of" not in note]


def check_stack(made: Any, wanted: xarray.Dataset, names: list[str], length: int, rng: Generator) -> Any:
    """Assert that the stack `x`, times and windows are xarray's, and that windows cross no gap; return the stack."""
    times = wanted["time"].values.astype("datetime64[s]").astype(np.int64)
    stack = np.stack([wanted[name].values for name in names], axis=1)
    assert made.fields["x"].attributes == {"variables": names, "units": [f"of {name}" for name in names]}
    assert set(made.fields) == {"time", "x"}
    found = made.read(range(len(made)))
    assert np.array_equal(found["x"], stack)
    assert np.array_equal(found["time"], times)
    steps = np.diff(times)
    if len(steps) and np.median(steps) == 3600:
        windows = made.windows(length, contiguous="time")
        starts = [n for n in range(len(times) - length + 1) if (steps[n : n + length - 1] == 3600).all()]
        assert windows.origin(range(len(windows)))[:, 0].tolist() == starts
        some = rng.integers(0, max(len(starts), 1), 5 if starts else 0)
        rows = np.array(starts, np.int64)[some][:, None] + np.arange(length)
        assert np.array_equal(windows.selection(some).column("x"), stack[rows])
    return stack
