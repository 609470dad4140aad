"""Write months of weather as NetCDF files, one a month, as reanalyses are distributed: packed int16, compressed.

python examples/make_months.py months --months 3

Each file has the temperature at 2 m and the wind at 10 m (t2m, u10, v10) every six hours, and the coordinates time, lat
and lon. The weather is a wind of large waves that carries the temperature along.
"""

import argparse
from datetime import datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

SINCE = datetime(1900, 1, 1)
HOURS = 6
UNITS = {"t2m": "K", "u10": "m s**-1", "v10": "m s**-1"}


def weather(hour: float, lat: NDArray[np.float64], lon: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The three variables at an hour, each [lat, lon]."""
    y, x = np.radians(lat)[:, None], np.radians(lon)[None, :]
    drift = 2 * np.pi * hour / 240
    return {
        "t2m": 285 - 40 * np.sin(y) ** 2 + 6 * np.sin(4 * x + 3 * y - drift) + 3 * np.sin(9 * x - 2 * drift),
        "u10": 8 * np.cos(3 * y) + 5 * np.sin(5 * x + 2 * y - drift),
        "v10": 5 * np.cos(4 * x - 2 * y - drift) * np.cos(y),
    }


def write(path: Path, begin: datetime, end: datetime, shape: tuple[int, int]) -> None:
    """Write the steps from `begin` until before `end` to a NetCDF file."""
    lat, lon = np.linspace(90, -90, shape[0]), np.arange(shape[1]) * 360 / shape[1]
    first, last = ((day - SINCE) // timedelta(hours=1) for day in (begin, end))
    hours = np.arange(first, last, HOURS, dtype=np.int32)
    with h5py.File(path, "w") as file:
        file.attrs["Conventions"] = "CF-1.7"
        axes = {"time": hours, "lat": lat, "lon": lon}
        units = (f"hours since {SINCE:%Y-%m-%d}", "degrees_north", "degrees_east")
        for (name, values), unit in zip(axes.items(), units, strict=True):
            file.create_dataset(name, data=values).make_scale(name)
            file[name].attrs["units"] = unit
        steps = [weather(hour - first, lat, lon) for hour in hours.tolist()]
        for name, unit in UNITS.items():
            values = np.stack([step[name] for step in steps])
            offset, scale = np.float32(values.mean()), np.float32(np.ptp(values) / 60_000)
            packed = np.round((values - offset) / scale).astype(np.int16)
            stored = file.create_dataset(name, data=packed, chunks=(1, *shape), compression="gzip", shuffle=True)
            stored.attrs.update({"scale_factor": scale, "add_offset": offset, "units": unit})
            stored.attrs["_FillValue"] = np.array([-32_768], np.int16)
            for dimension, axis in zip(stored.dims, axes, strict=True):
                dimension.attach_scale(file[axis])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--months", type=int, default=3, help="of 2024")
    parser.add_argument("--grid", type=int, nargs=2, default=(73, 144), metavar=("LAT", "LON"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for month in range(args.months):
        begin, end = (datetime(2024 + n // 12, n % 12 + 1, 1) for n in (month, month + 1))
        path = args.folder / f"{begin:%Y-%m}.nc"
        write(path, begin, end, tuple(args.grid))
        print(f"{path}: {(end - begin) // timedelta(hours=HOURS)} steps")


if __name__ == "__main__":
    main()
