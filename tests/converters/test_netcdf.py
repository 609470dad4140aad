"""What attributes of netCDF say of numbers in HDF5 files and Zarr stores: applied as xarray does, or kept and compared.

`netcdf/make.py` wrote the files and what xarray and netCDF4-python read from them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr as zarr_library
from _cli import run
from numpy.typing import NDArray

import shardio
from shardio.care.repair import repair
from shardio.care.verify import verify
from shardio.containers import array_index, hdf5_index
from shardio.errors import ConfigError, ShardCorrupt, SourceError, SourceWarning
from shardio.format import cf
from shardio.system.directory import Directory
from shardio.testing.sources import check_source
from shardio_converters.hdf5 import hdf5
from shardio_converters.zarr import zarr

FILES = Path(__file__).parent / "netcdf"
EXPECTED = json.loads((FILES / "expected.json").read_text())
MONTHS = "t2m,time,time_bnds"
f4 = np.float32


def expected(described: dict[str, Any]) -> NDArray[Any]:
    """Values as xarray decoded them."""
    return np.frombuffer(bytes.fromhex(described["bytes"]), described["dtype"]).copy()


def assert_same_bits(found: Any, wanted: NDArray[Any]) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_equal(found, wanted)  # which shows what differs
    assert found.tobytes() == wanted.tobytes()


def write(path: Path, attributes: dict[str, Any], values: Any = (0, 1, 2), name: str = "x", **options: Any) -> Path:
    """An HDF5 file of one dataset, or one dataset more in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=np.asarray(values), **options).attrs.update(attributes)
    return path


def write_zarr(path: Path, attributes: dict[str, Any], values: Any = (0, 1, 2)) -> Path:
    """A Zarr store of one array called `x`."""
    data = np.asarray(values)
    group = zarr_library.open_group(path, mode="a")
    array = group.create_array("x", shape=data.shape, dtype=data.dtype)
    array[...] = data
    array.attrs.update({n: v.item() if isinstance(v, np.generic) else v for n, v in attributes.items()})
    return path


def values_of(path: Path) -> list[Any]:
    dataset = shardio.open(path)
    return [dataset[number] for number in range(len(dataset))]


class TestValues:
    @pytest.mark.parametrize("name", EXPECTED["packed"])
    def test_packed_numbers(self, name: str) -> None:
        """Numbers packed in any way are decoded as xarray does, bit for bit, to the dtype that it chooses."""
        source = hdf5(FILES / "packed.nc", fields=name, decode_cf=True)
        wanted = expected(EXPECTED["packed"][name])
        assert_same_bits(source.column(name), wanted)
        assert source.fields[name].dtype == wanted.dtype.name

    @pytest.mark.parametrize(("form", "name"), [(form, name) for form in "23" for name in EXPECTED["zarr"][form]])
    def test_packed_numbers_in_zarr(self, form: str, name: str) -> None:
        """So are those in Zarr stores of both formats, whose attributes have the types of JSON."""
        source = zarr(FILES / f"packed-{form}.zarr.zip", fields=name, decode_cf=True)
        assert_same_bits(source.column(name), expected(EXPECTED["zarr"][form][name]))

    @pytest.mark.parametrize("name", EXPECTED["valid"])
    def test_valid_ranges(self, name: str) -> None:
        """Numbers outside of valid_min, valid_max and valid_range are NaN where netCDF4-python masks them."""
        source = hdf5(FILES / "valid.nc", fields=name, decode_cf=True)
        values, masked = source.column(name), np.array(EXPECTED["masked"][name])
        wanted = expected(EXPECTED["valid"][name])
        assert np.array_equal(values[~masked], wanted[~masked].astype(values.dtype), equal_nan=True)
        assert np.isnan(values[masked]).all()

    def test_a_range_that_does_not_fit_is_told(self) -> None:
        """A valid_range that the stored numbers cannot have is passed over, as by netCDF4-python, which a note says."""
        source = hdf5(FILES / "valid.nc", fields="range_that_does_not_fit,range", decode_cf=True)
        (told,) = source.hints
        assert told == "of 'range_that_does_not_fit', valid_range=[-1.5, 100.0] does not fit int16 and has no effect"

    @pytest.mark.parametrize("name", EXPECTED["times"])
    def test_times(self, name: str) -> None:
        """Times are the seconds since 1970 of xarray's dates: of any units, zone and fraction, Julian ones too."""
        source = hdf5(FILES / "times.nc", fields=name, decode_cf=True)
        found, wanted = source.column(name), EXPECTED["times"][name]
        assert found.dtype == np.float64
        assert [None if np.isnan(second) else second for second in found.tolist()] == [
            None if nano is None else pytest.approx(nano / 1e9, rel=1e-16, abs=1e-9) for nano in wanted
        ]
        assert source.fields[name].attributes == {"units": "seconds since 1970-01-01 00:00:00"}

    def test_an_integer_scale(self) -> None:
        """An integer scale gives float64, where xarray multiplies int16 and wraps around."""
        how = cf.decoding({"scale_factor": np.int16(1000)}, np.dtype("i2"))
        assert how.apply(np.array([100], "i2")).tolist() == [100_000.0]

    def test_text_stays_as_it_is(self, tmp_path: Path) -> None:
        """Strings and characters are no numbers: their attributes change nothing."""
        path = write(tmp_path / "a.h5", {"_FillValue": "-", "units": "days since 2000-01-01"}, [b"a", b"-"], "s")
        with h5py.File(path, "a") as file:
            file.create_dataset("c", data=np.array([[b"a", b"b"], [b"-", b"d"]], "S1")).attrs["_FillValue"] = "-"
        plain, decoded = (hdf5(path, decode_cf=decode) for decode in (False, True))
        assert [decoded[n] for n in range(2)] == [plain[n] for n in range(2)]
        assert decoded.remarks == plain.remarks == ()


REFUSED: list[tuple[dict[str, Any], str]] = [
    # units of no fixed length, and what is no date
    ({"units": "months since 2000-01-01"}, "its units are 'months since 2000-01-01': times are in nanoseconds, "),
    ({"units": "days since launch"}, "'launch' is no date such as 2000-01-01 00:00:00"),
    ({"units": "days since 2001-02-29"}, "there is no such date in the calendar standard"),
    ({"units": "days since 1582-10-10", "calendar": "gregorian"}, "no such date in the calendar gregorian"),
    ({"units": "days since 0-1-1"}, "no such date in the calendar standard"),
    # attributes that are no numbers, or too many
    ({"scale_factor": "0.1"}, "its scale_factor='0.1' is no number"),
    ({"add_offset": [1.0, 2.0]}, "must be one number, it has 2"),
    ({"_FillValue": "none"}, "its _FillValue='none' is no number"),
]


@pytest.mark.parametrize(("attributes", "message"), REFUSED)
@pytest.mark.parametrize("make", [write, write_zarr], ids=["hdf5", "zarr"])
def test_what_cannot_be_decoded(
    make: Callable[..., Path], attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Calendars and attributes from which no values follow are refused by name; without decoding they are kept."""
    source = {write: hdf5, write_zarr: zarr}[make]
    path = make(tmp_path / "a.h5", attributes)
    with pytest.raises(SourceError) as refused:
        source(path, decode_cf=True)
    assert f"{path}: 'x' cannot be decoded: " in str(refused.value)
    assert message in str(refused.value)
    assert source(path).fields["x"].attributes is not None


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
@pytest.mark.parametrize("make", [write, write_zarr], ids=["hdf5", "zarr"])
def test_calendars_without_leap_days(make: Callable[..., Path], calendar: str, tmp_path: Path) -> None:
    """Their times stay as numbers with their units, which a hint says; windows end at gaps between these."""
    path = make(tmp_path / "a.h5", {"units": "days since 2000-01-01", "calendar": calendar})
    made = shardio.index(path, tmp_path / "out", decode_cf=True, strict=True)
    (told,) = (note for note in made.notes if "calendar" in note)
    assert told.startswith(f"of 'x', its calendar is {calendar!r}: its numbers stay 'days since 2000-01-01'")
    found, stored = shardio.open(tmp_path / "out"), {write: hdf5, write_zarr: zarr}[make](path)
    assert found.read(range(len(found)))["x"].tolist() == stored.column("x").tolist()
    assert found.fields["x"].attributes == {"units": "days since 2000-01-01", "calendar": calendar}
    assert len(found.windows(2, contiguous="x")) == len(found) - 1


def test_records_are_refused(tmp_path: Path) -> None:
    """Attributes of a compound dataset apply to none of its members: with decode_cf they are refused."""
    path = write(tmp_path / "a.h5", {"scale_factor": 0.1}, np.zeros(3, [("a", "i2"), ("b", "i2")]), "pair")
    with pytest.raises(SourceError, match=r"'pair/a' cannot be decoded: its attributes scale_factor=0.1 are for"):
        hdf5(path, decode_cf=True)
    assert "scale_factor=0.1 are not applied" in hdf5(path).remarks[-1]


class TestSeries:
    """Two months as climate stores deliver them, each packed by its own scale, offset and fill value."""

    t2m = np.concatenate([expected(month) for month in EXPECTED["months"]["t2m"]]).reshape(10, 2, 3)
    time = np.array(EXPECTED["months"]["time"]) / 1e9
    bounds = (np.array(EXPECTED["months"]["time_bnds"]) / 1e9).reshape(10, 2)

    def check(self, path: Path) -> None:
        found = values_of(path)
        assert_same_bits(np.stack([sample["t2m"] for sample in found]), self.t2m)
        assert [sample["time"] for sample in found] == self.time.tolist()
        assert np.array_equal([sample["time_bnds"] for sample in found], self.bounds)
        assert shardio.open(path).fields["t2m"].attributes == {"units": "K"}

    @pytest.mark.slow
    def test_converted(self, tmp_path: Path) -> None:
        """Each file is decoded by its own attributes, and the bounds of times as these; workers and ranks alike."""
        source = self.source()
        wanted = zip(self.t2m, self.time.tolist(), self.bounds, strict=True)
        check_source(source, [{"t2m": t, "time": s, "time_bnds": b} for t, s, b in wanted], tmp_path / "checked")
        options = {"fields": MONTHS}
        months = str(FILES / "months" / "*.nc")
        shardio.convert(months, tmp_path / "a", converter="hdf5", converter_options=options, decode_cf=True)
        self.check(tmp_path / "a")
        run("convert", "hdf5", months, tmp_path / "b", "--fields", MONTHS, "--decode-cf", "--workers", 2)
        assert shardio.open(tmp_path / "a").digest == shardio.open(tmp_path / "b").digest

    def source(self) -> Any:
        """The series."""
        return hdf5(str(FILES / "months" / "*.nc"), fields=MONTHS, decode_cf=True)

    @pytest.mark.slow
    def test_indexed(self, tmp_path: Path) -> None:
        """Files in place are decoded when they are read: the dataset is the converted one, by its digest too."""
        shardio.index(FILES / "months", tmp_path / "in-place", fields=MONTHS, decode_cf=True)
        self.check(tmp_path / "in-place")
        run("index", FILES / "months", "-o", tmp_path / "cli", "--fields", MONTHS, "--decode-cf")
        shardio.convert(self.source(), tmp_path / "converted", container="hdf5")
        assert len({shardio.open(tmp_path / name).digest for name in ("in-place", "cli", "converted")}) == 1
        assert verify(shardio.open(tmp_path / "in-place"), deep=True).problems == ()
        loader = shardio.Loader(tmp_path / "in-place", 4, seed=1, tail="pad", verify=True)
        for batch in loader:
            assert_same_bits(np.asarray(batch["t2m"]), self.t2m[np.asarray(batch["index"])])
        shardio.convert(tmp_path / "in-place", tmp_path / "resharded", container="tar")
        self.check(tmp_path / "resharded")

    def test_choices_see_decoded_values(self, tmp_path: Path) -> None:
        """Conditions and splits on times and other numbers compare what is decoded."""
        february = self.time[5]
        made = shardio.convert(self.source(), tmp_path / "a", where=f"time >= {february:.0f}")
        assert made.manifest.samples == 5
        assert [sample["time"] for sample in values_of(tmp_path / "a")] == self.time[5:].tolist()

    def test_resumed_otherwise(self, tmp_path: Path) -> None:
        """Neither a conversion nor an index of stored numbers is taken for one of decoded numbers."""
        path = write(tmp_path / "a.h5", {"_FillValue": f4(9)}, np.array([1, 2, 3], f4))  # NaN would occur nowhere
        works: list[Callable[..., Any]] = [shardio.index, partial(shardio.convert, converter="hdf5")]
        for number, work in enumerate(works):
            with pytest.warns(SourceWarning, match="_FillValue=9.0 are not applied"):
                work(path, tmp_path / f"{number}")
            with pytest.raises(ConfigError, match="decode_cf"):
                work(path, tmp_path / f"{number}", decode_cf=True, resume=True)

    def test_files_that_differ_are_refused(self, tmp_path: Path) -> None:
        """Without decoding, files whose attributes give equal numbers other meanings are an error with both values."""
        months = str(FILES / "months" / "*.nc")
        one, two = FILES / "months" / "month-1.nc", FILES / "months" / "month-2.nc"
        with pytest.raises(SourceError) as packed:
            hdf5(months, fields="t2m")
        with h5py.File(one) as first, h5py.File(two) as second:
            scales = [file["t2m"].attrs["scale_factor"].item() for file in (first, second)]
        assert f"of field 't2m', scale_factor is {scales[1]} in {two}, and {scales[0]} in {one}" in str(packed.value)
        told = run("index", FILES / "months", "-o", tmp_path / "out", "--fields", "time", code=1)
        assert f"units is 'hours since 2020-02-01' in {two}, and 'hours since 2020-01-01' in {one}; --decode-cf" in told
        with pytest.raises(SourceError, match="of field 'time_bnds', units is 'hours since 2020-02-01'"):
            hdf5(months, fields="time_bnds")  # which has the units of the times that it bounds

    @pytest.mark.parametrize(
        ("one", "other", "message"),
        [
            # attributes that change nothing are as good as none
            ({"scale_factor": 1.0, "add_offset": 0.0}, {}, ""),
            ({"calendar": "standard", "units": "days since 2000-01-01"}, {"units": "days since 2000-01-01"}, ""),
            # those that only one file has
            ({"_FillValue": np.int64(7)}, {}, "_FillValue is not stated in B, and 7 in A; decode_cf=True applies"),
            ({"valid_max": 1}, {"valid_max": 2}, "valid_max is 2 in B, and 1 in A; decode_cf=True applies"),
            # units that are not those of times stay apart, decoded or not
            ({"units": "K"}, {"units": "degC"}, "units is 'degC' in B, and 'K' in A"),
            ({"units": "days since 2000-01-01"}, {"units": "days"}, "units is 'days' in B, and "),
        ],
    )
    def test_differences(self, one: dict[str, Any], other: dict[str, Any], message: str, tmp_path: Path) -> None:
        """Files may differ in attributes that change nothing, and in no others."""
        paths = [write(tmp_path / name, attributes) for name, attributes in (("a.h5", one), ("b.h5", other))]
        if not message:
            assert hdf5(paths).fields["x"].attributes == (cf.stated(one) or None)
            return
        with pytest.raises(SourceError) as differ:
            hdf5(paths)
        assert message in str(differ.value).replace(str(paths[0]), "A").replace(str(paths[1]), "B")
        assert ("decode_cf" in str(differ.value)) == ("decode_cf" in message)
        if one.keys() | other.keys() == {"units"}:
            with pytest.raises(SourceError, match="files must agree"):
                hdf5(paths, decode_cf=True)

    def test_datasets_that_differ(self, tmp_path: Path) -> None:
        """Datasets of numbers in other units are neither merged nor mixed."""
        for name, units in (("a", "K"), ("b", "degC")):
            shardio.convert(hdf5(write(tmp_path / f"{name}.h5", {"units": units})), tmp_path / name)
        message = r"of field 'x', units is 'K' in .*a.?, and 'degC' in "
        with pytest.raises(ConfigError, match=message):
            shardio.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
        with pytest.raises(ConfigError, match=message):
            shardio.mix({"a": tmp_path / "a", "b": tmp_path / "b"})


@pytest.mark.parametrize("make", [write, write_zarr], ids=["hdf5", "zarr"])
def test_attributes_are_kept(make: Callable[..., Path], tmp_path: Path) -> None:
    """The manifest keeps the meaning of numbers, with NaN as a string, and `info` shows it."""
    fill = "AAAAAAAA+H8=" if make is write_zarr else f4("nan")  # as xarray does
    attributes = {"scale_factor": 0.5, "_FillValue": fill, "units": "mm", "long_name": "rain"}
    path = make(tmp_path / "a.h5", attributes, np.ones(3, f4))
    converter = "hdf5" if make is write else "zarr"
    with pytest.raises(SourceError, match=r"scale_factor=0\.5 are not applied"):
        shardio.convert(path, tmp_path / "strict", converter=converter, strict=True)
    with pytest.warns(SourceWarning, match="scale_factor=0.5 are not applied, which decode_cf=True does"):
        shardio.convert(path, tmp_path / "out", converter=converter)
    kept = {"units": "mm", "scale_factor": 0.5, "_FillValue": "NaN"}
    assert shardio.open(tmp_path / "out").fields["x"].attributes == kept
    assert "scalar, float32; units='mm', scale_factor=0.5, _FillValue='NaN'" in run("info", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "shardio.json").read_text())["fields"]["x"]["attributes"] == kept


class TestInPlace:
    """Files that `index` decodes."""

    def test_large_rows(self, tmp_path: Path) -> None:
        """Rows that are read one by one are decoded."""
        rows = np.arange(4 * 4096, dtype="<i4").reshape(4, 4096)
        shardio.index(write(tmp_path / "a.h5", {"add_offset": 1.5}, rows), tmp_path / "out", decode_cf=True)
        for batch in shardio.Loader(tmp_path / "out", 2, threads=1):
            assert np.array_equal(batch["x"], rows[np.asarray(batch["index"])] + 1.5)

    def test_repair(self, tmp_path: Path) -> None:
        """A lost index is rebuilt with the decoding, and rows before a cut are still decoded."""
        rows = np.arange(40_000, dtype="i2").reshape(100, 400)
        for number in range(2):
            write(tmp_path / "in" / f"{number}.h5", {"scale_factor": f4(number + 1)}, rows)
        shardio.index(tmp_path / "in", out := tmp_path / "out", decode_cf=True)
        before = values_of(out)
        array_index.path_of(out / "shard-000001.h5").unlink()
        assert repair(out).same
        np.testing.assert_equal(values_of(out), before)

    def test_a_damaged_index(self, tmp_path: Path) -> None:
        """An index that holds other packing than netCDF's, or that gives another dtype, is damage with its file."""
        path = write(tmp_path / "a.h5", {"scale_factor": 0.5}, np.zeros((3, 2), "i2"))
        shardio.index(path, tmp_path / "out", decode_cf=True)
        shard = tmp_path / "out" / "shard-000000.h5"
        layout, columns = hdf5_index.read(shard)
        for attributes in (
            {"scale_factor": ["float32", [0.5]]},  # float32 where the manifest says float64
            {"scale_factor": ["object", [0.5]]},
            {"scale_factor": ["float64", []]},
            {"units": "days since 2000-01-01", "calendar": "noleap"},
            [],
            7,
        ):
            other: Any = {"x": attributes}
            hdf5_index.write(Directory(shard.parent), shard.name, replace(layout, packing=other), columns)
            with pytest.raises(ShardCorrupt, match=r"shard-000000\.h5"):
                shardio.open(tmp_path / "out")[0]

    def test_what_holds_no_netcdf(self, tmp_path: Path) -> None:
        """decode_cf is refused for files and converters that know no attributes."""
        np.save(tmp_path / "a.npy", np.arange(3))
        (tmp_path / "a.tfrecord").write_bytes(b"")
        with pytest.raises(ConfigError, match=r"decode_cf is no choice for .*a.tfrecord, which is TFRecord"):
            shardio.index(tmp_path / "a.tfrecord", tmp_path / "out", decode_cf=True)
        with pytest.raises(ConfigError, match=r"converter 'numpy' has the options .*, got decode_cf"):
            shardio.convert(tmp_path / "a.npy", tmp_path / "out", converter="numpy", decode_cf=True)
        with pytest.raises(ConfigError, match="decode_cf goes with converter"):
            shardio.convert(tmp_path / "dataset", tmp_path / "out", decode_cf=True)
        with pytest.raises(ConfigError, match="decode_cf of HDF5 files, are for files that are adopted"):
            shardio.index("s3://bucket/a.tar", "s3://bucket", decode_cf=True)
