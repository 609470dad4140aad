"""A series of Zarr stores, written by xarray: stacked, cut to windows; odd stores are right, refused or told."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import _series
import numpy as np
import pytest
import xarray
import zarr
from _builders import zipped
from _series import check_stack, read, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardio
from shardio.containers.extents import Blocks
from shardio.errors import ConfigError, ShardCorrupt
from shardio_converters.zarr import zarr as converter

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Numcodecs codecs")

PACKED: dict[str, Any] = {"dtype": "i2", "add_offset": 270, "scale_factor": 0.5, "_FillValue": np.int16(-9999)}
ENCODINGS: list[dict[str, Any]] = [
    {},
    {"dtype": ">f4"},
    {"chunks": (1, 5, 6)},
    {"chunks": (3, 2, 4)},
    {"chunks": (2, 5, 3)},
]


index = partial(_series.index, axis="time")
MONTHS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 3])), min_size=1, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5, deadline=None)
@given(
    MONTHS,
    st.lists(st.sampled_from(ENCODINGS), min_size=1, max_size=3),
    st.sampled_from([2, 3]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 99),
)
def test_windows_of_stacks_are_those_of_xarray(
    tmp_path_factory: pytest.TempPathFactory,
    months: list[tuple[int, int]],
    encodings: list[dict[str, Any]],
    form: int,
    ways: tuple[bool, bool, bool],
    seed: int,
) -> None:
    """Rows, blocks and windows over stores, merged by variable or not, are xarray's, and cross no gap."""
    folder, rng, hour = tmp_path_factory.mktemp("series"), np.random.default_rng(seed), 0
    names, (packed, checksums, merge) = list("abc")[: len(encodings)], ways
    encodings = [{**encoding, **(PACKED if packed else {})} for encoding in encodings]
    for number, (count, gap) in enumerate(months):
        hours = (hour + gap + np.arange(count)).tolist()
        hour = hours[-1] + 1
        turned = encodings[number % len(encodings) :] + encodings[: number % len(encodings)]
        for together in names if merge else [" ".join(names)]:
            write(folder / together[0] / f"{number}.zarr", together, hours, form=form, encodings=turned)
    folders = sorted(folder.iterdir())
    wanted = xarray.merge([read(*sorted(one.iterdir())) for one in folders])
    options: dict[str, Any] = {"stack": {"x": names}, "checksums": checksums, "merge": len(folders) > 1}
    made, _ = index(folders, folder / "out", fields="time", **options)
    stack = check_stack(made, wanted, names, 3, rng)
    rows = rng.integers(0, len(made), 9)
    for size in ((4, 5), (1, 2, 3)):
        room = np.array(stack.shape[1:][-len(size) :]) - size + 1
        blocks = Blocks(rng.integers(0, room, (len(rows), len(size))), size)
        out = np.empty((len(rows), *blocks.shape(stack.shape[1:])), stack.dtype)
        assert np.array_equal(made.selection(rows).blocks("x", blocks), blocks.cut(stack[rows], out))
    assert shardio.verify(folder / "out", deep=True).found == ()


def test_a_default_fill_value_is_no_attribute(tmp_path: Path) -> None:
    """Zarr's default fill_value 0 is not told as an attribute to apply; with decode_cf, zeros are NaN as in xarray."""
    rain = np.array([[0, 1.5], [0, 2]], np.float32)
    group = zarr.open_group(tmp_path / "a", mode="w", zarr_format=2)
    for name, fill in (("rain", 0), ("level", -1)):
        made = group.create_array(name, data=rain, chunks=(1, 2), fill_value=fill)
        made.attrs["_ARRAY_DIMENSIONS"] = ["time", "x"]
    stored = converter(tmp_path / "a")
    (remark,) = stored.remarks
    assert "the values of 'level' are taken as they are stored: its attributes _FillValue=-1.0 are not" in remark
    assert stored.fields["rain"].attributes is None
    np.testing.assert_array_equal([sample["rain"] for sample in (stored[0], stored[1])], rain)
    decoded = converter(tmp_path / "a", decode_cf=True)
    assert decoded.hints[-1].startswith("zeros of 'rain' become NaN by decode_cf=True, as in xarray")
    expected = xarray.open_zarr(tmp_path / "a", consolidated=False)["rain"].to_numpy()
    np.testing.assert_array_equal([sample["rain"] for sample in (decoded[0], decoded[1])], expected)
    assert np.isnan(expected[:, 0]).all()


def test_a_converted_stack_has_the_same_digest(tmp_path: Path) -> None:
    """A stack in place, read for its checksums, is the one that converting makes; numbers make vectors."""
    store = write(tmp_path / "a.zarr", "a b", range(5), encodings=ENCODINGS[3:])
    options: dict[str, Any] = {"stack": "x=b,a,when=time,time", "decode_cf": True}
    made, _ = index(store, tmp_path / "out", checksums=True, **options)
    options |= {"converter_options": {"axis": "time"}, "tell": lambda note: None}
    shardio.convert(store, tmp_path / "copy", converter="zarr", container="hdf5", **options)
    assert shardio.open(tmp_path / "copy").digest == made.digest
    assert {name: field.shape for name, field in made.fields.items()} == {"x": (2, 5, 6), "when": (2,)}
    assert made[2]["when"].tolist() == [946692000, 946692000]
    cached = shardio.open(tmp_path / "out", cache=tmp_path / "cache")
    assert np.array_equal(cached.read([4, 1])["x"], made.read([4, 1])["x"])


def test_axes_of_a_stack(tmp_path: Path) -> None:
    """Variables whose axes have another order are refused; those on other axes of the same size are told."""
    for form in (2, 3):
        group = zarr.open_group(tmp_path / f"{form}.zarr", mode="w", zarr_format=form)
        for name, axes in (("u", "time y xu"), ("v", "time yv x"), ("t", "time x y"), ("w", "time y x")):
            named: dict[str, Any] = {"dimension_names": axes.split()}
            if form == 2:
                named = {"attributes": {"_ARRAY_DIMENSIONS": axes.split()}}
            group.create_array(name, shape=(4, 3, 3), chunks=(2, 3, 3), dtype="f4", fill_value=-1, **named)[...] = 1
        with pytest.raises(ConfigError, match="stack x: 't' has the axes time, x, y, and 'w' has time, y, x"):
            index(tmp_path / f"{form}.zarr", tmp_path / "out", stack="x=t,w")
        made, (note,) = index(tmp_path / f"{form}.zarr", tmp_path / f"out{form}", stack="x=u,v", axis="time")
        axes = "'u' has the axes time, y, xu, and 'v' has time, yv, x"
        assert note == f"stack x: {axes}, so their values may be of other locations"
        assert made.fields["x"].shape == (2, 3, 3)


def test_a_merged_store_that_changed_or_is_gone(tmp_path: Path) -> None:
    """A folder and a zip file are merged; verifying and reading name the store, and the dataset is replaced whole."""
    stores = [write(tmp_path / "u.zarr", "u", range(4)), zipped(write(tmp_path / "v.zarr", "v", range(4)))]
    made, _ = index(stores, out := tmp_path / "out", merge=True)
    before = made.read(range(4))
    assert set(made.fields) == {"time", "u", "v"}
    assert sorted(path.name for path in out.iterdir() if path.is_symlink()) == [
        "shard-000000.join1.zarr", "shard-000000.zarr"
    ]  # fmt: skip
    made, _ = index(stores[::-1], out, merge=True, stack="x=u,v", overwrite=True)
    wanted = [read(tmp_path / "u.zarr")["u"].values, np.asarray(before["v"])]
    assert np.array_equal(made.read(range(4))["x"], np.stack(wanted, axis=1))
    assert shardio.verify(out, deep=True).found == ()
    chunk = next(path for path in (tmp_path / "u.zarr" / "u").rglob("0") if path.is_file())
    chunk.write_bytes(chunk.read_bytes() + b" ")
    (problem,) = shardio.verify(out).found
    assert "field 'u'" in str(problem)
    assert "was written anew" in str(problem)
    shutil.rmtree(tmp_path / "u.zarr")
    with pytest.raises(ConfigError, match=r"merged files .* is read from a folder, and without cache"):
        shardio.open(out, cache=tmp_path / "cache")
    with pytest.raises(ShardCorrupt, match=r"shard-000000.join1.zip"):
        shardio.open(out)[0]
