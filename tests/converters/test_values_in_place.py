"""Arrays of others give the numbers of h5py, xarray, zarr and nibabel: rows, windows and patches of any layout."""

import shutil
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import nibabel
import numcodecs
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr import codecs

import shardio
from shardio import native
from shardio.containers.extents import Blocks

pytestmark = pytest.mark.filterwarnings(
    "ignore::shardio.SourceWarning", "ignore:Numcodecs codecs", "ignore:Consolidated"
)

PROPERTY = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
TYPES = ["u1", ">i2", "<i4", "i8", ">f4", "<f8", "f2", "?", ">u8"]
FILTERS: list[dict[str, Any]] = [
    {}, {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"}, {**hdf5plugin.Zstd()},
    {**hdf5plugin.Blosc()}, {"scaleoffset": 3},
]  # fmt: skip
NUMCODECS: list[Any] = [
    None, numcodecs.Blosc("zstd"), numcodecs.Blosc("lz4", shuffle=2), numcodecs.Zstd(), numcodecs.GZip(),
    numcodecs.Zlib(), numcodecs.LZ4(), numcodecs.BZ2(), numcodecs.LZMA(),
]  # fmt: skip
CODECS: list[Any] = [
    None, [codecs.BloscCodec(cname="zstd")], [codecs.ZstdCodec()], [codecs.GzipCodec()],
    [codecs.ZstdCodec(), codecs.Crc32cCodec()], [{"name": "numcodecs.lz4", "configuration": {}}],
]  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn, types: list[str] = TYPES, axes: int = 4) -> tuple[NDArray[Any], tuple[int, ...], int]:
    """Numbers, samples first; the shape of a chunk; how many samples are written, others being left to the fill."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=axes))
    chunk = tuple(draw(st.integers(1, side)) for side in shape)
    numbers = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 100, shape)
    return numbers.astype(draw(st.sampled_from(types))), chunk, draw(st.sampled_from([shape[0], shape[0] // 2]))


def check(path: Any, expected: NDArray[Any], data: st.DataObject, name: str = "x", **options: Any) -> None:
    """Index what lies at a path; compare rows, windows of them and blocks of both with the field that is expected."""
    out = path.parent / "out"
    if options.pop("convert", ""):
        shardio.convert(path, out, **options)
    else:
        shardio.index(path, out, **options)
    dataset: Any = shardio.open(out)
    assert len(dataset) == len(expected)
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # without compiled code
            patch.setattr(native, "library", lambda: None)
        length, step = data.draw(st.integers(1, len(expected))), data.draw(st.integers(1, 2))
        starts = [n for n in range(len(expected)) if n + (length - 1) * step < len(expected)]
        for view, wanted in (
            (dataset, expected),
            (
                dataset.windows(length, step=step, within="dataset") if starts else dataset,
                np.stack([expected[n : n + (length - 1) * step + 1 : step] for n in starts]) if starts else expected,
            ),
        ):
            rows = np.array(data.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=6)), np.int64)
            found = view.selection(rows).column(name)
            assert found.dtype == wanted.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found, wanted[rows])
            if wanted.ndim == 1:
                continue
            size = tuple(data.draw(st.integers(1, side)) for side in wanted.shape[1:])
            shares = np.array(data.draw(st.lists(st.floats(0, 0.999), min_size=len(rows), max_size=len(rows))))
            room = np.array(wanted.shape[1:]) - size + 1
            blocks = Blocks(np.floor(shares[:, None] * room).astype(np.int64), size)
            cut = np.stack([wanted[row][blocks.place(number)] for number, row in enumerate(rows)])
            np.testing.assert_array_equal(view.selection(rows).blocks(name, blocks), cut)
    assert not shardio.verify(dataset, deep=True).found
    dataset.close()
    shutil.rmtree(path.parent)


@PROPERTY
@given(arrays(), st.sampled_from(["contiguous", "chunked", "unlimited"]), st.sampled_from(FILTERS), st.data())
def test_h5py(tmp_path_factory: Any, made: Any, layout: str, filters: dict[str, Any], data: st.DataObject) -> None:
    """Contiguous, chunked and compressed datasets, of any byte order, with rows that were never written."""
    numbers, chunk, written = made
    path = tmp_path_factory.mktemp("h5") / "x.h5"
    options: dict[str, Any] = {}
    if layout != "contiguous" and not ("scaleoffset" in filters and numbers.dtype.char in "?e"):
        options = {"chunks": chunk, **filters}
        if layout == "unlimited":
            options["maxshape"] = (None,) * numbers.ndim
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", numbers.shape, numbers.dtype, fillvalue=numbers.dtype.type(1), **options)
        x[:written] = numbers[:written]
    with h5py.File(path) as file:
        expected = file["x"][...]
    check(path, expected, data)


@PROPERTY
@given(
    arrays(["u1", "<i2", ">i2", "<i4"]),
    st.fixed_dictionaries(
        {},
        optional={
            "scale_factor": st.sampled_from([np.float32(0.25), 0.1]),
            "add_offset": st.sampled_from([np.float32(7), -3.5]),
            "_FillValue": st.integers(0, 9),
            "missing_value": st.integers(0, 9),
            "zlib": st.just(True),
            "fletcher32": st.just(True),
        },
    ),
    st.sampled_from(["netcdf", "zarr2", "zarr3"]),
    st.booleans(),
    st.data(),
)
def test_xarray(
    tmp_path_factory: Any, made: Any, packing: dict[str, Any], form: str, unlimited: bool, data: st.DataObject
) -> None:
    """Packed numbers with fill values, of NetCDF and of Zarr, with an unlimited axis or not."""
    numbers, chunk, _ = made
    axes = ["time", "level", "lat", "lon"][: numbers.ndim]
    stated = {n: v for n, v in packing.items() if n not in ("zlib", "fletcher32")}
    for name in ("_FillValue", "missing_value"):
        if name in stated:
            stated[name] = numbers.dtype.newbyteorder("=").type(stated.get("_FillValue", stated[name]))
    file = xarray.Dataset({"x": (axes, numbers, {n: v for n, v in stated.items() if n != "_FillValue"})})
    encoding: dict[str, Any] = {"_FillValue": stated.get("_FillValue")}
    if form == "netcdf":
        path = tmp_path_factory.mktemp("nc") / "x.nc"
        filters = {name: True for name in ("zlib", "fletcher32") if name in packing}
        file.to_netcdf(
            path, engine="h5netcdf", unlimited_dims=["time"] * unlimited,
            encoding={"x": {**encoding, **filters, **({"chunksizes": chunk} if filters or unlimited else {})}},
        )  # fmt: skip
        expected = xarray.load_dataset(path, engine="h5netcdf")["x"].values
        check(path, expected, data, decode_cf=True)
        return
    path = tmp_path_factory.mktemp("zarr") / "x.zarr"
    file.to_zarr(path, zarr_format=int(form[-1]), consolidated=False, encoding={"x": {**encoding, "chunks": chunk}})
    expected = xarray.load_dataset(path, engine="zarr", consolidated=False)["x"].values
    check(path, expected, data, decode_cf=True)


@PROPERTY
@given(arrays([*TYPES, "c8"]), st.sampled_from([2, 3]), st.data())
def test_zarr(tmp_path_factory: Any, made: Any, form: int, data: st.DataObject) -> None:
    """Both formats, shards, zip files, codecs, orders of axes; samples along any axis; chunks that are not there."""
    numbers, chunk, written = made
    root, dtype = tmp_path_factory.mktemp("zarr"), numbers.dtype
    name = "v2" if form == 2 else data.draw(st.sampled_from(["v2", "default"]))
    options: dict[str, Any] = {
        "chunk_key_encoding": {"name": name, "separator": data.draw(st.sampled_from("./"))},
        "compressors": data.draw(st.sampled_from(NUMCODECS if form == 2 else CODECS)),
        "fill_value": dtype.type(1),
    }
    if form == 2:
        options["order"] = data.draw(st.sampled_from("CF"))
        filters = [None, (numcodecs.CRC32(), numcodecs.Fletcher32(), numcodecs.Adler32())]
        filters += [(numcodecs.Delta("<i4"),)] if dtype == "<i4" else []
        filters += [(numcodecs.Shuffle(4),)] if dtype.itemsize % 4 == 0 else []
        options["filters"] = data.draw(st.sampled_from(filters))
    else:
        if data.draw(st.booleans()):
            options["shards"] = tuple(data.draw(st.integers(1, 3)) * side for side in chunk)
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(numbers.ndim)))
            options["filters"] = [codecs.TransposeCodec(order=order)]
    group = zarr.open_group(root / "x.zarr", mode="w", zarr_format=form)
    array = group.create_array("x", shape=numbers.shape, chunks=chunk, dtype=dtype, **options)
    array[:written] = numbers[:written]
    axis = data.draw(st.integers(0, numbers.ndim - 1))
    expected = np.moveaxis(np.asarray(array[...]), axis, 0)
    path = root / "x.zarr"
    if data.draw(st.booleans()):
        path = Path(shutil.make_archive(str(root / "x"), "zip", path)) if "shards" not in options else path
    check(path, expected, data, axis=str(axis), checksums=data.draw(st.booleans()))


@PROPERTY
@given(
    arrays(["u1", "<i2", ">i2", "<f4", ">f8"]).filter(lambda made: made[0].ndim > 2),
    st.sampled_from([None, 0.5, 0.1]),
    st.sampled_from([".nii", ".nii.gz"]),
    st.sampled_from(["hdf5", "tar", "lmdb"]),
    st.data(),
)
def test_nibabel(
    tmp_path_factory: Any, made: Any, slope: float | None, suffix: str, container: str, data: st.DataObject
) -> None:
    """Volumes of NIfTI, scaled or not, of either byte order, compressed or not, once they are converted."""
    numbers, folder = made[0], tmp_path_factory.mktemp("nifti") / "in"
    folder.mkdir()
    expected = []
    for number, volume in enumerate(numbers):
        header = nibabel.Nifti1Header(endianness=">" if numbers.dtype.byteorder == ">" else "<")
        header.set_data_dtype(numbers.dtype)
        image = nibabel.Nifti1Image(volume, np.eye(4), header)
        image.header.set_slope_inter(slope, 1 if slope else None)
        nibabel.save(image, path := folder / f"{number}{suffix}")
        read: Any = nibabel.load(path)
        wide = np.float64 if numbers.dtype.itemsize == 8 else np.float32
        expected.append(read.get_fdata(dtype=wide) if slope else np.asarray(read.dataobj))
    options = {"converter": "arrayfolder", "container": container}
    check(folder, np.stack(expected), data, "array", convert="yes", **options)
