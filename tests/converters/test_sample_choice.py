"""A sample of HDF5, NetCDF and Zarr is a row, a file or a group; a remark tells of files that look otherwise."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr as zarr_library
from _cli import run
from numpy.typing import ArrayLike

import shardio
from shardio.care.repair import repair
from shardio.errors import ConfigError, SourceError
from shardio_converters._series import looks_like_a_sample, sample_groups
from shardio_converters.hdf5 import hdf5
from shardio_converters.zarr import zarr

Layout = Mapping[str, ArrayLike]


def write_hdf5(path: Path, arrays: Layout, **options: Any) -> Path:
    """An HDF5 file of datasets by path."""
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **(options if np.ndim(values) else {}))
    return path


def write_zarr(path: Path, arrays: Layout, form: Any = 3) -> Path:
    """A Zarr store of arrays by path."""
    group = zarr_library.open_group(path, mode="w", zarr_format=form)
    for name, values in arrays.items():
        made = np.asarray(values)
        dtype: Any = str if made.dtype.kind == "U" else made.dtype
        chunks = tuple(-(-n // 2) for n in made.shape)
        group.create_array(name, shape=made.shape, dtype=dtype, chunks=chunks)[...] = made
    return path


def climate(number: int) -> dict[str, Any]:
    """A file that is one sample, as DeepCAM has them: an image of 16 channels and its mask."""
    data = np.random.default_rng(number).random((48, 72, 16)).astype("f4")
    return {"climate/data": data, "climate/labels_0": np.full((48, 72), number, "f4")}


def demos(count: int, *, length: Callable[[int], int] = lambda n: 6, beside: bool = True) -> dict[str, Any]:
    """Groups that are one sample each, two levels down, as recordings of robots are; and an array that is in none."""
    rows = {n: np.arange(length(n) * 3, dtype="f4").reshape(-1, 3) + n for n in range(count)}
    found: dict[str, Any] = {f"data/demo_{n}/obs/x": values for n, values in rows.items()}
    found |= {f"data/demo_{n}/id": np.int64(n) for n in rows}
    return found | ({"mask/train": np.arange(2)} if beside else {})


def same(sample: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return sample.keys() == expected.keys() and all(np.array_equal(sample[name], expected[name]) for name in expected)


class TestFiles:
    @pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
    def test_a_file_is_a_sample(self, tmp_path: Path, options: Any) -> None:
        """Each file gives one sample of whole datasets, with the values that h5py reads, single values too."""
        for n in range(3):
            arrays = {**climate(n), "year": np.int64(2000 + n), "place": f"sea {n}"}
            write_hdf5(tmp_path / "in" / f"{n}.h5", arrays, **options)
        source = hdf5(tmp_path / "in", sample="file", fields="x=climate/data,y=climate/labels_0,year,place")
        assert source.fields["x"].shape == (48, 72, 16)
        for n in range(3):
            data, labels = climate(n).values()
            assert same(source[n], {"x": data, "y": labels, "year": 2000 + n, "place": f"sea {n}"})
        made = shardio.convert(source, tmp_path / "out", where="year > 2000")
        assert same(shardio.open(made.path)[1], source[2])

    def test_in_place(self, tmp_path: Path) -> None:
        """`index` reads whole datasets where they are, and `repair` makes a lost index of them again."""
        for n in range(3):
            write_hdf5(tmp_path / "in" / f"{n}.h5", {**climate(n), "year": np.int64(n)})
        options = ("--sample", "file", "--fields", "x=climate/data,year", "--strict")
        run("index", tmp_path / "in", "-o", tmp_path / "out", *options)
        expected = [{"x": climate(n)["climate/data"], "year": n} for n in range(3)]
        assert all(same(shardio.open(tmp_path / "out")[n], expected[n]) for n in range(3))
        indexes = list((tmp_path / "out").glob("*.h5.idx.npy"))
        assert len(indexes) == 3
        for index in indexes:
            index.unlink()
        assert repair(tmp_path / "out").same
        assert all(same(shardio.open(tmp_path / "out")[n], expected[n]) for n in range(3))

    @pytest.mark.parametrize(("name", "options"), [("x", {"chunks": (2, 2)}), ("text", {})])
    def test_what_is_not_in_one_piece_is_to_be_converted(self, tmp_path: Path, name: str, options: Any) -> None:
        """Chunks and text of whole datasets are not read in place, and the refusal says what to do."""
        path = write_hdf5(tmp_path / "a.h5", {"x": np.ones((4, 4), "f4"), "text": "a"}, **options)
        with pytest.raises(SourceError, match=f"'{name}' cannot be read in place as part of one sample.*: convert it"):
            shardio.index(path, tmp_path / "out", sample="file", fields=name)
        assert shardio.convert(hdf5(path, sample="file", fields=name), tmp_path / "out").manifest.samples == 1

    @pytest.mark.parametrize("unlimited", [[], ["time"]])
    def test_classic_netcdf(self, tmp_path: Path, unlimited: list[str]) -> None:
        """A NetCDF-3 file is one sample as well, also where its records are not in one piece."""
        values = {"x": np.arange(24.0).reshape(4, 3, 2), "y": np.arange(4, dtype="i4")}
        made = xarray.Dataset({"x": (("time", "a", "b"), values["x"]), "y": ("time", values["y"]), "z": ((), 7.0)})
        made.to_netcdf(tmp_path / "a.nc", format="NETCDF3_64BIT", unlimited_dims=unlimited)
        assert same(hdf5(tmp_path / "a.nc", sample="file")[0], {**values, "z": 7.0})
        with pytest.raises(SourceError, match="NetCDF-3 file, which cannot be read in place: convert it"):
            _ = hdf5(tmp_path / "a.nc", sample="file").adoption

    def test_packed_numbers_are_decoded(self, tmp_path: Path) -> None:
        """`decode_cf` applies attributes to whole datasets as it does to rows."""
        made = xarray.Dataset({"x": (("a", "b"), np.array([[0.5, np.nan]]))})
        made.to_netcdf(tmp_path / "a.nc", encoding={"x": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -1}})
        value = hdf5(tmp_path / "a.nc", sample="file", decode_cf=True)[0]["x"]
        np.testing.assert_array_equal(value, [[0.5, np.nan]])

    def test_files_of_several_shapes(self, tmp_path: Path) -> None:
        """Where files differ along their first axis, the refusal of rows names `sample`, and `ragged` takes them."""
        for n in (2, 3):
            write_hdf5(tmp_path / "in" / f"{n}.h5", {"x": np.full((n, n, 3), n, "u1")})
        with pytest.raises(SourceError, match="sample='file' takes each file as a sample"):
            hdf5(tmp_path / "in")
        source = hdf5(tmp_path / "in", sample="file", ragged="x=all")
        assert [source[n]["x"].shape for n in range(2)] == [(2, 2, 3), (3, 3, 3)]


class TestGroups:
    @pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
    def test_a_group_is_a_sample(self, tmp_path: Path, options: Any) -> None:
        """Groups beside each other become samples of one set of fields, in the order of their names or numbers."""
        path = write_hdf5(tmp_path / "a.h5", demos(12), **options)
        source = hdf5(path, sample="group", sort="natural")
        assert len(source.sizes()) == 12
        assert all(same(source[n], {"id": n, "obs.x": demos(12)[f"data/demo_{n}/obs/x"]}) for n in range(12))
        (told,) = [remark for remark in source.remarks if "left out" in remark]
        assert told == "left out 'mask/train': it is in no group of a sample"
        (hint,) = hdf5(path, sample="group").hints
        assert hint.startswith("the groups are in the order of their names, where demo_11 comes before demo_2")

    def test_in_place(self, tmp_path: Path) -> None:
        """`index` reads groups of several files where they are; a lost index is made again."""
        for name in "ab":
            write_hdf5(tmp_path / "in" / f"{name}.h5", demos(9))
        shardio.index(tmp_path / "in", tmp_path / "out", sample="group", fields="x=obs/x,id")
        next((tmp_path / "out").glob("shard-000001.h5.idx.npy")).unlink()
        assert repair(tmp_path / "out").same
        dataset = shardio.open(tmp_path / "out")
        assert [dataset[n]["id"] for n in range(18)] == [*range(9), *range(9)]
        assert np.array_equal(dataset[17]["x"], demos(9)["data/demo_8/obs/x"])

    def test_groups_that_differ(self, tmp_path: Path) -> None:
        """A group that lacks an array is named; lengths that differ are refused by rows with the way to read them."""
        lacking = {name: values for name, values in demos(9).items() if name != "data/demo_5/id"}
        with pytest.raises(SourceError, match=r"groups must agree: .*a\.h5/data/demo_5 has no 'id'"):
            hdf5(write_hdf5(tmp_path / "a.h5", lacking), sample="group")
        path = write_hdf5(tmp_path / "b.h5", demos(9, length=lambda n: n + 1))
        with pytest.raises(SourceError, match=r"same number of rows.*; .*sample='group' takes each group as a sample"):
            hdf5(path)
        assert hdf5(path, sample="group", ragged="obs.x")[8]["obs.x"].shape == (9, 3)

    def test_a_file_without_groups(self, tmp_path: Path) -> None:
        """Arrays that are in no group are a sample of files, as the refusal says."""
        with pytest.raises(SourceError, match="has no groups: sample='file'"):
            hdf5(write_hdf5(tmp_path / "a.h5", {"x": np.zeros((2, 2))}), sample="group")


class TestZarr:
    @pytest.mark.parametrize("form", [2, 3])
    def test_stores_and_groups(self, tmp_path: Path, form: int) -> None:
        """A store or a group is one sample, with the values that zarr reads; in place are only rows."""
        path = write_zarr(tmp_path / "a.zarr", {**demos(9), "data/demo_0/name": "a"}, form)
        source = zarr(path, sample="group", fields="x=obs/x,id")
        assert all(same(source[n], {"id": n, "x": demos(9)[f"data/demo_{n}/obs/x"]}) for n in range(9))
        whole = zarr(path, sample="file", fields="x=data/demo_1/obs/x,id=data/demo_1/id,name=data/demo_0/name")
        assert same(whole[0], {"x": demos(9)["data/demo_1/obs/x"], "id": 1, "name": "a"})
        out = shardio.convert(source, tmp_path / "out").path
        assert same(shardio.open(out)[8], source[8])
        told = "only rows of Zarr stores can be read in place, not samples that are groups"
        with pytest.raises(SourceError, match=told):
            shardio.index(path, tmp_path / "index", sample="group", fields="x=obs/x")

    @pytest.mark.parametrize("options", [{"axis": "0"}, {"merge": True}])
    def test_options_of_rows(self, tmp_path: Path, options: Any) -> None:
        """Options about rows do not go with samples that are files or groups."""
        with pytest.raises(ConfigError, match="does not go with sample='file'"):
            zarr(write_zarr(tmp_path / "a.zarr", {"x": np.zeros((2, 2))}), sample="file", **options)
        with pytest.raises(ConfigError, match="sample must be one of file, group, row, got 'store'"):
            zarr(tmp_path / "a.zarr", sample="store")  # type: ignore[arg-type]


SUSPECTS: list[tuple[str, Callable[[Path], Path], str]] = [
    ("file", lambda out: [write_hdf5(out / f"{n}.h5", climate(n)) for n in range(3)].pop().parent, "hdf5"),
    ("group", lambda out: write_hdf5(out / "a.h5", demos(9, beside=False)), "hdf5"),
    # A value that rows leave out is a second sign for a few groups.
    ("group", lambda out: write_hdf5(out / "a.h5", demos(2, beside=False)), "hdf5"),
    ("file", lambda out: [write_zarr(out / f"{n}.zarr", climate(n)) for n in range(3)].pop().parent, "zarr"),
    ("group", lambda out: write_zarr(out / "a.zarr", demos(9, beside=False)), "zarr"),
]


@pytest.mark.parametrize(("what", "make", "converter"), SUSPECTS)
def test_what_looks_like_samples_is_told(
    tmp_path: Path, what: str, make: Callable[[Path], Path], converter: str
) -> None:
    """Files or groups that look like samples are a remark, and an error with `strict`; either `sample` ends it."""
    (tmp_path / "in").mkdir()
    made, read = make(tmp_path / "in"), {"hdf5": hdf5, "zarr": zarr}[converter]
    (remark,) = [one for one in read(made).remarks if "sample=" in one]
    assert f"sample='{what}' takes" in remark
    assert "sample='row' keeps" in remark
    with pytest.raises(SourceError, match=r"may be one sample|groups of the same"):
        shardio.convert(read(made), tmp_path / "out", strict=True)
    for given in (what, "row"):
        assert not [one for one in read(made, sample=given).remarks if "sample=" in one]  # type: ignore[operator]


ORDINARY: list[tuple[str, list[Layout]]] = [
    ("rows with labels", [{"x": np.zeros((32, 32, 3)), "y": np.zeros(32)}] * 2),
    ("one file", [{"x": np.zeros((32, 32, 3)), "mask": np.zeros((32, 32))}]),
    ("images and masks", [{"x": np.zeros((100, 16, 16, 3), "u1"), "mask": np.zeros((100, 16, 16), "u1")}] * 2),
    ("sequences", [{"x": np.zeros((100, 20, 6)), "y": np.zeros((100, 20))}] * 2),
    ("embeddings", [{"x": np.zeros((100, 64))}] * 3),
    ("a last file that is shorter", [{"x": np.zeros((n, 24, 24, 24))} for n in (24, 10)]),
    ("splits of one file", [{f"{part}/{name}": np.zeros(10) for part in ("train", "test") for name in "xy"}]),
    ("a few sensors", [{f"sensor_{n}/{name}": np.zeros(10) for n in range(8) for name in "xy"}]),
    ("groups of other arrays", [{f"g{n}/{'xyz'[n % 3]}{n}": np.zeros(10) for n in range(20)}]),
]


@pytest.mark.parametrize(("name", "files"), ORDINARY, ids=[name for name, _ in ORDINARY])
def test_ordinary_layouts_get_no_line(tmp_path: Path, name: str, files: list[Layout]) -> None:
    """One sign alone is no suspicion."""
    for n, arrays in enumerate(files):
        write_hdf5(tmp_path / "in" / f"{n}.h5", arrays)
        write_zarr(tmp_path / "stores" / f"{n}.zarr", arrays)
    found = hdf5(tmp_path / "in"), zarr(tmp_path / "stores")
    assert [remark for one in found for remark in one.remarks if "sample=" in remark] == []


def test_axes_that_a_file_names_are_no_sample(tmp_path: Path) -> None:
    """A dimension scale, or an axis of time, says that the first axis is one of rows."""
    for n in range(2):
        values = xarray.DataArray(np.zeros((24, 24, 3)), dims=("time", "y", "x"))
        xarray.Dataset({"x": values}).to_zarr(tmp_path / "stores" / f"{n}.zarr", consolidated=False)
        write_hdf5(tmp_path / "in" / f"{n}.h5", {"x": values})
        with h5py.File(tmp_path / "in" / f"{n}.h5", "a") as file:
            file["steps"] = np.zeros((24, 2))
            file["steps"].make_scale()
            file["x"].dims[0].attach_scale(file["steps"])
    assert not [one for one in (*zarr(tmp_path / "stores").remarks, *hdf5(tmp_path / "in").remarks) if "sample=" in one]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["s_0/x", "s_1/x", "s_1/y"], {"s_0": ["x"], "s_1": ["x", "y"]}),
        (["data/d0/o/x", "data/d1/o/x", "mask/a"], {"data/d0": ["o/x"], "data/d1": ["o/x"]}),
        (["x", "y"], {}),  # in no group
    ],
)
def test_the_groups_that_are_samples(names: list[str], expected: dict[str, list[str]]) -> None:
    """They are those beside each other of which the most hold the same names."""
    assert {group: list(inner) for group, inner in sample_groups(names).items()} == expected


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(48, 72, 16), (48, 72)], True),  # an image of channels and its mask
        ([(128, 128, 128, 4)], True),
        ([(128, 128, 128, 4), (4,)], False),  # with a vector of labels
        ([(1000, 128, 6), (1000, 128)], False),  # sequences: far from a picture's sides
        ([(100, 64)], False),
    ],
)
def test_shapes_that_may_be_a_sample(shapes: list[tuple[int, ...]], expected: bool) -> None:
    """The signs of a sample are in the shapes alone."""
    assert looks_like_a_sample(shapes) is expected
