"""Several variables stacked in one field: of any layout, packed or not, equal to np.stack of what each is."""

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from _builders import overwrite
from _cli import run
from _hdf5_files import chunk_of, write_hdf5
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio import native
from shardio.care.repair import repair
from shardio.containers import array_index, hdf5_index
from shardio.containers.extents import Blocks
from shardio.containers.stacked_rows import StackedRows
from shardio.conversion.stacks import listed_stacks
from shardio.errors import ConfigError, ShardCorrupt
from shardio.system.directory import Directory

SHAPE = (3, 7, 9)
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "big-endian": {"dtype": ">f4"},
    "chunks of a row": {"chunks": (1, *SHAPE), "compression": "gzip"},
    "chunks of rows": {"chunks": (4, *SHAPE), **hdf5plugin.Zstd()},
    "parts of rows": {"chunks": (2, 2, 4, 5), "compression": "lzf"},
    "rows, unfiltered": {"chunks": (3, *SHAPE)},
    "left to libhdf5": {"chunks": (2, 3, 5, 5), "scaleoffset": 4},
    "packed": {"dtype": "i2", "chunks": (4, 3, 5, 5), "compression": "gzip"},
}


def months(folder: Path, layouts: dict[str, str], rows: tuple[int, ...] = (11, 8)) -> dict[str, NDArray[Any]]:
    """Write a file per month with a variable of each layout; return all values of each."""
    rng, values = np.random.default_rng(0), dict[str, list[NDArray[Any]]]()
    folder.mkdir()
    for month, count in enumerate(rows):
        with h5py.File(folder / f"{month}.nc", "w") as file:
            file["time"] = sum(rows[:month]) + np.arange(count)
            for name, layout in layouts.items():
                numbers = rng.integers(0, 1000, (count, *SHAPE))
                options = {"dtype": "f4", **LAYOUTS[layout]}
                dataset = file.create_dataset(name, data=numbers.astype(options.pop("dtype")), **options)
                scale = np.float32(month + 0.5) if layout == "packed" else np.float32(1)
                if layout == "packed":
                    dataset.attrs["scale_factor"] = scale
                dataset.attrs["units"] = f"of {name}"
                values.setdefault(name, []).append(numbers.astype("f4") * scale)
    return {name: np.concatenate(parts) for name, parts in values.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=4), st.integers(0, 99))
def test_a_stack_is_that_of_numpy(tmp_path_factory: pytest.TempPathFactory, chosen: list[str], seed: int) -> None:
    """Rows, windows and blocks of a stack are NumPy's, whichever layout each of its variables has."""
    folder, rng = tmp_path_factory.mktemp("stack"), np.random.default_rng(seed)
    values = months(folder / "in", {f"v{number}": layout for number, layout in enumerate(chosen)})
    wanted = np.stack(list(values.values()), axis=1)
    options: dict[str, Any] = {"fields": "time", "stack": {"x": [*values]}, "decode_cf": True}
    shardio.index(folder / "in", folder / "out", tell=lambda note: None, **options)
    dataset = shardio.open(folder / "out")
    assert dataset.fields["x"].shape == (len(values), *SHAPE)
    assert set(dataset.fields) == {"time", "x"}
    rows = rng.integers(0, len(dataset), 9)
    assert np.array_equal(dataset.selection(rows).column("x"), wanted[rows])
    windows = dataset.windows(3, contiguous="time")
    starts = rng.integers(0, len(windows), 4)
    assert np.array_equal(windows.selection(starts).column("x"), wanted[starts[:, None] + np.arange(3)])
    for size in ((4, 5), (2, 4, 5), (1, 2, 4, 5)):
        room = np.array(wanted.shape[1:][-len(size) :]) - size + 1
        blocks = Blocks(rng.integers(0, room, (len(rows), len(size))), size)
        out = np.empty((len(rows), *blocks.shape(wanted.shape[1:])), "f4")
        assert np.array_equal(dataset.selection(rows).blocks("x", blocks), blocks.cut(wanted[rows], out))
    assert shardio.verify(folder / "out", deep=True).found == ()


def test_numbers_make_vectors(tmp_path: Path) -> None:
    """Numbers of each row are stacked to vectors, of which blocks are cut too."""
    ramp = np.arange(10.0)
    shardio.index(write_hdf5(tmp_path / "a.h5", a=ramp, b=2 * ramp, c=3 * ramp), tmp_path / "out", stack="x=c,a,y=b")
    dataset = shardio.open(tmp_path / "out")
    assert {name: field.shape for name, field in dataset.fields.items()} == {"x": (2,), "y": (1,)}
    assert dataset[3]["x"].tolist() == [9, 3]
    blocks = Blocks(np.array([[0], [1]]), (1,))
    assert dataset.selection(np.array([3, 4])).blocks("x", blocks).tolist() == [[9], [4]]


def test_what_a_stack_tells(tmp_path: Path) -> None:
    """The manifest keeps what the variables are called, and their units; a variable that is asked for stays."""
    months(tmp_path / "in", {"t2m": "packed", "u10": "contiguous"})
    given = "time,temperature=t2m"
    run("index", tmp_path / "in", "-o", tmp_path / "out", "--fields", given, "--stack", "x=u10,t2m", "--decode-cf")
    fields = shardio.open(tmp_path / "out").fields
    assert fields["x"].attributes == {"variables": ["u10", "t2m"], "units": ["of u10", "of t2m"]}
    assert set(fields) == {"time", "temperature", "x"}
    convert = ["convert", "hdf5", tmp_path / "in", tmp_path / "made", "--fields", given, "--stack", "x=u10,t2m"]
    run(*convert, "--decode-cf", "--to", "hdf5")
    one, other = shardio.open(tmp_path / "out"), shardio.open(tmp_path / "made")
    assert other.fields == one.fields
    assert other.digest == one.digest
    np.savez(tmp_path / "a.npz", a=np.ones((4, 2)), b=np.zeros((4, 2)))
    shardio.convert(tmp_path / "a.npz", tmp_path / "made2", converter="numpy", stack="x=a,b")
    assert shardio.open(tmp_path / "made2")[0]["x"].tolist() == [[1, 1], [0, 0]]


def test_a_lost_index_is_rebuilt(tmp_path: Path) -> None:
    """Repair finds the variables of stacks by the manifest, with their decoding."""
    months(tmp_path / "in", {"a": "packed", "b": "packed", "c": "contiguous"})
    shardio.index(tmp_path / "in", out := tmp_path / "out", fields="time", stack="x=c,b,a", decode_cf=True)
    before = shardio.open(out).read(range(19))["x"]
    array_index.path_of(out / "shard-000001.nc").unlink()
    assert repair(out).same
    assert np.array_equal(shardio.open(out).read(range(19))["x"], before)


def test_a_damaged_variable_is_a_bad_sample(tmp_path: Path) -> None:
    """A chunk of one variable that is damaged names the file, the variable and the row."""
    months(tmp_path / "in", {"a": "contiguous", "b": "chunks of a row"})
    shardio.index(tmp_path / "in", tmp_path / "out", fields="time", stack="x=a,b")
    overwrite(tmp_path / "in" / "0.nc", chunk_of(tmp_path / "in" / "0.nc", "b", 5).byte_offset + 4, bytes(20))
    dataset = shardio.open(tmp_path / "out")
    with pytest.raises(ShardCorrupt, match=r"shard-000000.nc, field 'b', row 5"):
        dataset.selection(np.arange(8)).column("x")
    assert dataset.selection(np.arange(5)).column("x").shape == (5, 2, *SHAPE)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x/0"], "no stack of 1 variables"),
        (["x/0", "x/2"], "has no field 'x/1'"),
        (["x/0", "x/1", "time/0"], "no stack of 1 variables"),
    ],
)
def test_an_index_that_names_other_stacks(tmp_path: Path, names: list[str], message: str) -> None:
    """An index whose stacks are not those of the manifest is damage, which names the file."""
    months(tmp_path / "in", {"a": "contiguous", "b": "contiguous"}, rows=(4,))
    shardio.index(tmp_path / "in", tmp_path / "out", fields="time", stack="x=a,b")
    shard = tmp_path / "out" / "shard-000000.nc"
    _, columns = hdf5_index.read(shard)
    hdf5_index.write(Directory(shard.parent), shard.name, hdf5_index.Layout(dict.fromkeys(names, "a")), columns)
    with pytest.raises(ShardCorrupt, match=message):
        shardio.open(tmp_path / "out")[0]


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("x=a,c", r"stack: there is no 'c'; there are a, b, .*time"),
        (
            "x=a,time",
            r"stack x: .*one shape and dtype, 'a' is array, float32, \[3, 7, 9\], and 'time' is scalar, int64",
        ),
        ("x=a,b", r"stack x: .*'a' is array, float32, .* and 'b' is array, int16"),
        ("x=a,text", r"stack x: variables are arrays of one shape or numbers, 'text' is text"),
        ("b=a,a", "stack: there is a field 'b' already"),
        ("a,b", r"stack takes FIELD=VARIABLE,VARIABLE, as in x=t2m,u10,v10, got 'a,b'"),
        ("x=", "stack takes FIELD=VARIABLE"),
        ("x/y=a", "stack takes FIELD=VARIABLE"),
    ],
)
def test_what_makes_no_stack(tmp_path: Path, stack: str, message: str) -> None:
    """Unknown variables, variables of two forms, and names that no field has are refused in words."""
    months(tmp_path / "in", {"a": "contiguous", "b": "packed"}, rows=(5,))
    write_hdf5(tmp_path / "in" / "0.nc", "a", text=["a"] * 5)
    with pytest.raises(ConfigError, match=message):
        shardio.index(tmp_path / "in", tmp_path / "out", stack=stack)


def test_stacks_are_listed() -> None:
    """Each name with an equals sign begins another stack."""
    assert listed_stacks("x=t2m, u10,y=msl") == {"x": ("t2m", "u10"), "y": ("msl",)}
    assert listed_stacks({"x": ["a=b", "c"]}) == {"x": ("a=b", "c")}
    assert listed_stacks(None) == {}


def test_only_hdf5_and_zarr_are_stacked_in_place(tmp_path: Path) -> None:
    """Files of other formats are refused by name."""
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"stack is for HDF5 files and Zarr stores, .*a.tfrecord is TFRecord"):
        shardio.index(tmp_path / "a.tfrecord", tmp_path / "out", stack="x=a,b")


def test_stacks_of_many_files_are_read_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and blocks of plain variables come by locators, over files and merged files, large and small, or none."""
    rng = np.random.default_rng(0)
    values = rng.random((3, 4, 5, 40, 50)).astype("f4")
    small = rng.random((3, 4, 5, 6)).astype("f4")
    found = [
        write_hdf5(tmp_path / f"{name}{month}.nc", **{name: values[n, month], f"{name}s": small[n, month]})
        for n, name in enumerate("abc")
        for month in range(4)
    ]
    shardio.index(found, tmp_path / "out", merge=True, stack="x=c,a,b,y=as,bs,cs")
    dataset = shardio.open(tmp_path / "out")
    if native.library() is not None:
        monkeypatch.setattr(StackedRows, "read", None)
    wanted = values.reshape(3, 20, 40, 50)[[2, 0, 1]].swapaxes(0, 1)
    others = small.reshape(3, 20, 6).swapaxes(0, 1)
    for rows in (rng.integers(0, 20, 13), np.empty(0, np.int64)):
        selection = dataset.selection(rows)
        assert np.array_equal(selection.column("x"), wanted[rows])
        assert np.array_equal(selection.column("y"), others[rows])
        for size in ((1, 1), (3, 50), (40, 50), (2, 40, 50), (3, 40, 50), (2, 3, 4), (1, 40, 50)):
            begins = rng.integers(0, np.array(wanted.shape[-len(size) :]) - size + 1, (len(rows), len(size)))
            blocks = Blocks(begins, size)
            out = np.empty((len(rows), *blocks.shape((3, 40, 50))), "f4")
            assert np.array_equal(selection.blocks("x", blocks), blocks.cut(wanted[rows], out))
        blocks = Blocks(rng.integers(0, 3, (len(rows), 2)) % 2, (2, 5))
        out = np.empty((len(rows), 2, 5), "f4")
        assert np.array_equal(selection.blocks("y", blocks), blocks.cut(others[rows], out))
