"""A series of NetCDF files, written by xarray: merged, stacked, cut to windows; odd files are right, refused, told."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
from _builders import overwrite
from _cli import run
from _series import GRID, check_stack, index, read, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio.care.repair import repair
from shardio.containers import array_index
from shardio.containers.merged import merged_files
from shardio.errors import ConfigError, ShardCorrupt, SourceError

PACKED: dict[str, Any] = {"dtype": "i2", "add_offset": np.float32(270), "_FillValue": np.int16(-9999)}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"dtype": ">f4"},
    {"chunksizes": (1, 5, 6), "zlib": True},
    {"chunksizes": (3, 2, 4), "zlib": True, "shuffle": True, "fletcher32": True},
    {"scale_factor": np.float32(0.01), **PACKED},
    {"scale_factor": np.float32(0.5), "chunksizes": (2, 5, 3), "zlib": True, **PACKED},
]


DAYS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 3]), st.sampled_from(["hours", "minutes", "seconds"])),
    min_size=1,
    max_size=4,
)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@given(DAYS, st.lists(st.integers(0, len(LAYOUTS) - 1), min_size=2, max_size=3), st.integers(2, 4), st.integers(0, 99))
def test_windows_of_merged_stacks_are_those_of_xarray(
    tmp_path_factory: pytest.TempPathFactory,
    days: list[tuple[int, int, str]],
    layouts: list[int],
    length: int,
    seed: int,
) -> None:
    """Windows over files of other units each, merged by variable and stacked, are xarray's, and cross no gap."""
    folder, rng, hour = tmp_path_factory.mktemp("series"), np.random.default_rng(seed), 0
    for number, (count, gap, units) in enumerate(days):
        hours = (hour + gap + np.arange(count)) * {"hours": 1, "minutes": 60, "seconds": 3600}[units]
        hour += gap + count
        for layout, name in zip(layouts, "abc", strict=False):
            # Each file has another layout of its own: chunks of one, none of the next.
            encoding = dict(LAYOUTS[(layout + number) % len(LAYOUTS)])
            if "chunksizes" in encoding:
                encoding["chunksizes"] = (min(encoding["chunksizes"][0], count), *encoding["chunksizes"][1:])
            write(folder / name / f"{number}.nc", name, hours, units=units, encodings=[encoding])
    names = list("abc")[: len(layouts)]
    wanted = xarray.merge([read(*sorted((folder / name).iterdir())) for name in names])
    made, _ = index([folder / name for name in names], folder / "out", merge=True, fields="time", stack={"x": names})
    check_stack(made, wanted, names, length, rng)


def test_merge_from_the_command_line(tmp_path: Path) -> None:
    """Files of each variable are found by what they hold; the dataset verifies, loads, converts and is repaired."""
    for day in (1, 2):
        for name in ("u10", "v10"):
            write(tmp_path / "in" / f"{name}-{day}.nc", name, range(24), day=day)
    told = run("index", tmp_path / "in", "-o", out := tmp_path / "out", "--merge", "--decode-cf")
    assert "left out 'lat': it is the coordinate of an axis that is not the rows" in told
    wanted = {name: read(*sorted((tmp_path / "in").glob(f"{name}*")))[name].values for name in ("u10", "v10")}
    made = shardio.open(out)
    assert set(made.fields) == {"time", "u10", "v10"}
    for batch in shardio.Loader(made.windows(3, contiguous="time"), 5, shuffle="block", seed=1, verify=True, threads=2):
        for name, values in wanted.items():
            assert np.array_equal(batch[name], values[np.asarray(batch["index"])[:, None] + np.arange(3)])
    assert shardio.verify(out, deep=True).found == ()
    options: dict[str, Any] = {"converter_options": {"merge": True}, "decode_cf": True}
    shardio.convert(tmp_path / "in", tmp_path / "copy", converter="hdf5", tell=lambda note: None, **options)
    assert shardio.open(tmp_path / "copy").digest == made.digest
    array_index.path_of(out / "shard-000001.nc").unlink()
    assert repair(out).same
    assert shardio.open(out).digest == made.digest
    again, _ = index(tmp_path / "in", out, merge=True, stack="x=v10,u10", overwrite=True)
    assert set(again.fields) == {"time", "x"}


def test_a_merged_file_that_changed_or_is_gone(tmp_path: Path) -> None:
    """Verifying and reading name the file that was merged, and an index chooses no file of its own."""
    for name in ("u10", "v10"):
        write(tmp_path / f"{name}.nc", name, range(4))
    index([tmp_path / "u10.nc", tmp_path / "v10.nc"], tmp_path / "out", merge=True)
    (merged,) = merged_files(tmp_path / "out" / "shard-000000.nc")
    assert merged.name == "shard-000000.join1.nc"
    with pytest.raises(ConfigError, match=r"merged files .* is read from a folder, and without cache"):
        shardio.open(tmp_path / "out", cache=tmp_path / "cache")
    overwrite(tmp_path / "v10.nc", -9, b"x")
    (problem,) = shardio.verify(tmp_path / "out").found
    assert "shard-000000.nc" in str(problem)
    (tmp_path / "v10.nc").unlink()
    (problem,) = shardio.verify(tmp_path / "out").found
    assert "shard-000000.join1.nc is missing; it is a link to" in str(problem)
    with pytest.raises(ShardCorrupt, match=r"shard-000000.join1.nc: there is no such file"):
        shardio.open(tmp_path / "out")[0]
    merged.unlink()
    with pytest.raises(ShardCorrupt, match=r"join1.nc: there is no such file, which is to have 'v10'"):
        shardio.open(tmp_path / "out")[0]


def test_merged_files_have_a_place_of_their_own(tmp_path: Path) -> None:
    """Links to merged files are made in a folder of the dataset's own, not among the files."""
    for name in "ab":
        write(tmp_path / f"{name}.nc", f"{name} mask", range(4))
    with pytest.raises(ConfigError, match="merge makes links to the files that are merged: take another OUT"):
        index(tmp_path, tmp_path, merge=True, fields="time,a,b")
    with pytest.raises(ConfigError, match="has no 'missing'; there are"):
        index(tmp_path, tmp_path / "out", merge=True, fields="time,a,missing")
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"merge is no choice for .*a.tfrecord, which is TFRecord"):
        shardio.index(tmp_path / "a.tfrecord", tmp_path / "out", merge=True)


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


def test_levels_are_stacked(tmp_path: Path) -> None:
    """Variables on levels make [variables, levels, latitudes, longitudes]."""
    levels: dict[str, Any] = {"level": np.array([850.0, 500.0])}
    path = write(tmp_path / "a.nc", "u v", range(4), **levels)
    made, _ = index(path, tmp_path / "out", stack="x=u,v", fields="time")
    wanted: NDArray[Any] = np.stack([read(path)[name].values for name in ("u", "v")], axis=1)
    assert made.fields["x"].shape == wanted.shape[1:]
    assert np.array_equal(made.read([3, 1])["x"], wanted[[3, 1]])
