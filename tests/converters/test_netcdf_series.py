"""A series of NetCDF files, written by xarray: joined, stacked, cut to windows; odd files are right, refused, told."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
from _cli import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio.care.repair import repair
from shardio.containers import array_index
from shardio.containers.joined import joined_files
from shardio.errors import ConfigError, ShardCorrupt, SourceError

GRID = {"lat": np.linspace(90, -90, 5), "lon": np.arange(6.0) * 60}
PACKED: dict[str, Any] = {"dtype": "i2", "add_offset": np.float32(270), "_FillValue": np.int16(-9999)}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"dtype": ">f4"},
    {"chunksizes": (1, 5, 6), "zlib": True},
    {"chunksizes": (3, 2, 4), "zlib": True, "shuffle": True, "fletcher32": True},
    {"scale_factor": np.float32(0.01), **PACKED},
    {"scale_factor": np.float32(0.5), "chunksizes": (2, 5, 3), "zlib": True, **PACKED},
]


def write(
    path: Path,
    names: str,
    hours: Any,
    *,
    day: int = 1,
    time: str = "f8",
    units: str = "hours",
    encoding: dict[str, Any] | None = None,
    **grid: Any,
) -> Path:
    """Write a file of variables over `hours` of a day, a number each, with the coordinates of their grid."""
    coordinates = {**GRID, **grid}
    shape = (len(hours), *(len(values) for values in coordinates.values()))
    rng = np.random.default_rng(hash((names, day)) % 1000)
    values = {n: (("time", *coordinates), rng.random(shape).astype("f4") * 50 + 250) for n in names.split()}
    since = {"units": f"{units} since 2000-01-{day:02}"}
    times = {"time": ("time", np.asarray(hours, time), since)}
    made = xarray.Dataset({n: (*v, {"units": f"of {n}"}) for n, v in values.items()}, coords={**times, **coordinates})
    path.parent.mkdir(parents=True, exist_ok=True)
    made.to_netcdf(path, engine="h5netcdf", encoding=dict.fromkeys(names.split(), encoding or {}))
    return path


def read(*paths: Path) -> xarray.Dataset:
    """The files as xarray decodes them, one after the other."""
    parts = [xarray.open_dataset(path, engine="h5netcdf").load() for path in paths]
    return xarray.concat(parts, "time") if len(parts) > 1 else parts[0]


def index(paths: Any, out: Path, **options: Any) -> Any:
    """Index files, of which coordinates of the grid are left out; return the dataset and the notes."""
    notes = shardio.index(paths, out, tell=lambda note: None, decode_cf=True, **options).notes
    return shardio.open(out), [note for note in notes if "left out" not in note and "in chunks of" not in note]


DAYS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 3]), st.sampled_from(["hours", "minutes", "seconds"])),
    min_size=1,
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@given(DAYS, st.lists(st.integers(0, len(LAYOUTS) - 1), min_size=2, max_size=3), st.integers(2, 4), st.integers(0, 99))
def test_windows_of_joined_stacks_are_those_of_xarray(
    tmp_path_factory: pytest.TempPathFactory,
    days: list[tuple[int, int, str]],
    layouts: list[int],
    length: int,
    seed: int,
) -> None:
    """Windows over files of other units each, joined by variable and stacked, are xarray's, and cross no gap."""
    folder, rng, hour = tmp_path_factory.mktemp("series"), np.random.default_rng(seed), 0
    for number, (count, gap, units) in enumerate(days):
        hours = (hour + gap + np.arange(count)) * {"hours": 1, "minutes": 60, "seconds": 3600}[units]
        hour += gap + count
        for layout, name in zip(layouts, "abc", strict=False):
            # Each file has another layout of its own: chunks of one, none of the next.
            encoding = dict(LAYOUTS[(layout + number) % len(LAYOUTS)])
            if "chunksizes" in encoding:
                encoding["chunksizes"] = (min(encoding["chunksizes"][0], count), *encoding["chunksizes"][1:])
            write(folder / name / f"{number}.nc", name, hours, units=units, encoding=encoding)
    names = list("abc")[: len(layouts)]
    wanted = xarray.merge([read(*sorted((folder / name).iterdir())) for name in names])
    times = wanted["time"].values.astype("datetime64[s]").astype(np.int64)
    made, _ = index([folder / name for name in names], folder / "out", join=True, fields="time", stack={"x": names})
    assert made.fields["x"].attributes == {"variables": names, "units": [f"of {name}" for name in names]}
    stack = np.stack([wanted[name].values for name in names], axis=1)
    found = made.read(range(len(made)))
    assert np.array_equal(found["x"], stack)
    assert np.array_equal(found["time"], times)
    steps = np.diff(times)
    if not len(steps) or np.median(steps) != 3600:
        return
    windows = made.windows(length, contiguous="time")
    starts = [n for n in range(len(times) - length + 1) if (steps[n : n + length - 1] == 3600).all()]
    assert windows.origin(range(len(windows)))[:, 0].tolist() == starts
    some = rng.integers(0, max(len(starts), 1), 5 if starts else 0)
    rows = np.array(starts, np.int64)[some][:, None] + np.arange(length)
    assert np.array_equal(windows.selection(some).column("x"), stack[rows])


def test_join_from_the_command_line(tmp_path: Path) -> None:
    """Files of each variable are found by what they hold; the dataset verifies, loads, converts and is repaired."""
    for day in (1, 2):
        for name in ("u10", "v10"):
            write(tmp_path / "in" / f"{name}-{day}.nc", name, range(24), day=day)
    told = run("index", tmp_path / "in", "-o", out := tmp_path / "out", "--join", "--decode-cf")
    assert "left out 'lat': it is the coordinate of an axis that is not the rows" in told
    wanted = {name: read(*sorted((tmp_path / "in").glob(f"{name}*")))[name].values for name in ("u10", "v10")}
    made = shardio.open(out)
    assert set(made.fields) == {"time", "u10", "v10"}
    for batch in shardio.Loader(made.windows(3, contiguous="time"), 5, shuffle="block", seed=1, verify=True, threads=2):
        for name, values in wanted.items():
            assert np.array_equal(batch[name], values[np.asarray(batch["index"])[:, None] + np.arange(3)])
    assert shardio.verify(out, deep=True).found == ()
    options: dict[str, Any] = {"converter_options": {"join": True}, "decode_cf": True}
    shardio.convert(tmp_path / "in", tmp_path / "copy", converter="hdf5", tell=lambda note: None, **options)
    assert shardio.open(tmp_path / "copy").digest == made.digest
    array_index.path_of(out / "shard-000001.nc").unlink()
    assert repair(out).same
    assert shardio.open(out).digest == made.digest
    again, _ = index(tmp_path / "in", out, join=True, stack="x=v10,u10", overwrite=True)
    assert set(again.fields) == {"time", "x"}


def test_a_joined_file_that_changed_or_is_gone(tmp_path: Path) -> None:
    """Verifying and reading name the file that was joined, and an index chooses no file of its own."""
    for name in ("u10", "v10"):
        write(tmp_path / f"{name}.nc", name, range(4))
    index([tmp_path / "u10.nc", tmp_path / "v10.nc"], tmp_path / "out", join=True)
    (joined,) = joined_files(tmp_path / "out" / "shard-000000.nc")
    assert joined.name == "shard-000000.join1.nc"
    with pytest.raises(ConfigError, match=r"joined files .* is read from a folder, and without cache"):
        shardio.open(tmp_path / "out", cache=tmp_path / "cache")
    with open(tmp_path / "v10.nc", "r+b") as file:
        file.seek(-9, 2)
        file.write(b"x")
    (problem,) = shardio.verify(tmp_path / "out").found
    assert "shard-000000.nc" in str(problem)
    (tmp_path / "v10.nc").unlink()
    (problem,) = shardio.verify(tmp_path / "out").found
    assert "shard-000000.join1.nc is missing; it is a link to" in str(problem)
    with pytest.raises(ShardCorrupt, match=r"shard-000000.join1.nc: there is no such file"):
        shardio.open(tmp_path / "out")[0]
    joined.unlink()
    with pytest.raises(ShardCorrupt, match=r"join1.nc: there is no such file, which is to have 'v10'"):
        shardio.open(tmp_path / "out")[0]


def clash(folder: Path) -> list[Path]:
    return [write(folder / f"{name}.nc", f"{name} mask", range(4)) for name in "ab"]


JOINS: dict[str, tuple[Callable[[Path], list[Path]], str]] = {
    "another time": (
        lambda f: [write(f / "a.nc", "a", range(4)), write(f / "b.nc", "b", [0, 1, 2, 4])],
        r"same coordinates: value 3 of 'time' is 946695600.0 in .*a.nc|value 3 of 'time' is .*b.nc, and .*a.nc",
    ),
    "another grid": (
        lambda f: [write(f / "a.nc", "a", range(4)), write(f / "b.nc", "b", range(4), lat=GRID["lat"][::-1])],
        r"same coordinates: value 0 of 'lat' is -90.0 in .*b.nc, and 90.0 in .*a.nc",
    ),
    "other rows": (
        lambda f: [write(f / "a.nc", "a", range(4)), write(f / "b.nc", "b", range(3))],
        r"same coordinates: 'time' has 3 values in .*b.nc, and 4 in .*a.nc",
    ),
    "a file missing": (
        lambda f: [*(write(f / f"a{n}.nc", "a", range(4)) for n in "01"), write(f / "b.nc", "b", range(4))],
        r"join: 2 files with the datasets of .*a0.nc, and 1 file with those of .*b.nc",
    ),
    "one series": (
        lambda f: [write(f / f"a{n}.nc", "a", range(4)) for n in "01"],
        r"join takes files of different datasets, and all hold those of .*a0.nc",
    ),
    "a variable in both": (clash, r"join: 'mask' is in .*a.nc and in .*b.nc, and is no coordinate"),
}


@pytest.mark.parametrize("name", JOINS)
def test_what_is_not_joined(tmp_path: Path, name: str) -> None:
    """Files of other rows, times or grids are refused with both files and the first difference."""
    make, message = JOINS[name]
    with pytest.raises(SourceError, match=message):
        index(make(tmp_path / "in"), tmp_path / "out", join=True)


def test_joined_files_have_a_place_of_their_own(tmp_path: Path) -> None:
    """Links to joined files are made in a folder of the dataset's own, not among the files."""
    clash(tmp_path)
    with pytest.raises(ConfigError, match="join makes links to the files that are joined: take another OUT"):
        index(tmp_path, tmp_path, join=True, fields="time,a,b")
    with pytest.raises(ConfigError, match="has no 'missing'; there are"):
        index(tmp_path, tmp_path / "out", join=True, fields="time,a,missing")
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"join is no choice for .*a.tfrecord, which is TFRecord"):
        shardio.index(tmp_path / "a.tfrecord", tmp_path / "out", join=True)


def test_grids_of_a_series_are_compared(tmp_path: Path) -> None:
    """A file with other latitudes than the first is refused with both; where no field has that axis, it is taken."""
    paths = [
        write(tmp_path / "0.nc", "a", range(4)),
        write(tmp_path / "1.nc", "a", range(4), day=2, lat=GRID["lat"] / 2),
    ]
    with pytest.raises(SourceError, match=r"on their grid: value 0 of 'lat' is 45.0 in .*1.nc, and 90.0 in .*0.nc"):
        index(paths, tmp_path / "out")
    made, _ = index(paths, tmp_path / "out", fields="time")
    assert len(made) == 8


def test_grids_that_differ_by_rounding_are_the_same(tmp_path: Path) -> None:
    """Latitudes of float32 and of float64 belong to one grid, which a hint says with the largest difference."""
    fine = np.linspace(10, 10.7, len(GRID["lat"]))
    paths = [
        write(tmp_path / f"{day}.nc", "a", range(4), day=day, lat=lat)
        for day, lat in ((1, fine.astype("f4")), (2, fine))
    ]
    made = shardio.index(paths, tmp_path / "out", fields="a", decode_cf=True, strict=True)
    (told,) = (note for note in made.notes if "rounding" in note)
    assert told.startswith(f"values of 'lat' differ by up to {np.abs(fine - fine.astype('f4')).max():.3g} between")
    write(tmp_path / "2.nc", "a", range(4), day=2, lat=fine + 1e-5)
    with pytest.raises(SourceError, match=r"on their grid: value 0 of 'lat' is 10\.00001"):
        shardio.index(paths, tmp_path / "other", fields="a", decode_cf=True)


SERIES: dict[str, tuple[Callable[[Path], list[Path]], str, int]] = {
    "in order": (lambda f: [write(f / f"{d}.nc", "a", range(24), day=d) for d in (1, 2)], "", 46),
    "descending": (lambda f: [write(f / f"{9 - d}.nc", "a", np.arange(24)[::-1], day=d) for d in (2, 1)], "", 46),
    "wrong order": (
        lambda f: [write(f / f"{d}.nc", "a", range(24), day=3 - d) for d in (1, 2)],
        r"'time' does not go on from .*1.nc, which ends at 946854000.0, to .*2.nc, which begins at 946684800.0",
        44,
    ),
    "overlap": (
        lambda f: [write(f / "1.nc", "a", range(24)), write(f / "2.nc", "a", range(20, 44))],
        r"'time' does not go on from .*1.nc, .* to .*2.nc",
        44,
    ),
    "a day missing": (lambda f: [write(f / f"{d}.nc", "a", range(24), day=d) for d in (1, 3)], "", 44),
    "an hour twice": (lambda f: [write(f / "1.nc", "a", [0, 1, 2, 2, 3, 4, 5])], "", 3),
    "one hour each": (lambda f: [write(f / f"{h}.nc", "a", [h]) for h in range(5)], "", 3),
}


@pytest.mark.parametrize("name", SERIES)
def test_windows_of_odd_series(tmp_path: Path, name: str) -> None:
    """Windows cross no gap, no repeated time and no step back; files in the wrong order are told by name."""
    make, message, count = SERIES[name]
    made, notes = index(make(tmp_path / "in"), tmp_path / "out")
    assert len(made.windows(3, contiguous="time")) == count
    assert len(notes) == bool(message)
    assert not message or re.search(message, str(notes[0]))


def test_times_too_coarse(tmp_path: Path) -> None:
    """Times stored as float32 that cannot hold their steps are told by name; finer ones are not."""
    fine = write(tmp_path / "fine.nc", "a", np.arange(0, 600, 5), time="f4", units="minutes")
    assert not index(fine, tmp_path / "out")[1]
    with h5py.File(tmp_path / "coarse.nc", "w") as file:
        file["time"] = (3.1e9 + 300 * np.arange(50)).astype("f4")
        file["time"].attrs["units"] = "seconds since 1900-01-01"
        file["time"].make_scale()
        file["a"] = np.zeros((50, 2))
        file["a"].dims[0].attach_scale(file["time"])
    _, (note,) = index(tmp_path / "coarse.nc", tmp_path / "out2")
    assert "'time' of" in note
    assert "coarse.nc is stored in numbers up to 256 apart, too coarse" in note


def test_undecoded_times_of_other_units(tmp_path: Path) -> None:
    """Without decoding, files that count from other days are refused, with what decodes them."""
    paths = [write(tmp_path / f"{day}.nc", "a", range(4), day=day) for day in (1, 2)]
    with pytest.raises(SourceError, match=r"'time', units is .* in .*2.nc, .* in .*1.nc; decode_cf=True applies"):
        shardio.index(paths, tmp_path / "out", tell=lambda note: None)


def test_levels_are_stacked(tmp_path: Path) -> None:
    """Variables on levels make [variables, levels, latitudes, longitudes]."""
    levels: dict[str, Any] = {"level": np.array([850.0, 500.0])}
    path = write(tmp_path / "a.nc", "u v", range(4), **levels)
    made, _ = index(path, tmp_path / "out", stack="x=u,v", fields="time")
    wanted: NDArray[Any] = np.stack([read(path)[name].values for name in ("u", "v")], axis=1)
    assert made.fields["x"].shape == wanted.shape[1:]
    assert np.array_equal(made.read([3, 1])["x"], wanted[[3, 1]])
