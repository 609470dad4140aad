"""Folders and tables of files that the libraries of their fields wrote, compared with what these libraries read."""

import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from _builders import class_folders, encode, overwrite, png, write_files
from _sources import check_cuts, check_equal, column
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.testing import check_source
from shardio_converters.arrayfolder import arrayfolder
from shardio_converters.imagefolder import imagefolder

DEEP = "uint16"


def numbers(*shape: int, dtype: str = DEEP, seed: int = 0) -> NDArray[Any]:
    """Random numbers over the whole range of a dtype, or from 0 to 1 of floats."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return random.random(shape).astype(dtype)
    return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def only(path: Path, **options: Any) -> NDArray[Any]:
    """The array of the one file at a path."""
    (found,) = column(arrayfolder(path, **options), "array")
    return np.asarray(found)


TIFFS: dict[str, dict[str, Any]] = {
    "one page": {},
    "big-endian": {"byteorder": ">"},
    "several pages": {"data": numbers(5, 32, 48), "photometric": "minisblack"},
    "tiles": {"tile": (16, 16)},
    "tiles, deflate": {"tile": (16, 16), "compression": "zlib", "predictor": True},
    "LZW": {"compression": "lzw", "predictor": True},
    "zstd": {"compression": "zstd"},
    "BigTIFF": {"bigtiff": True},
    "colours": {"data": numbers(32, 48, 3), "photometric": "rgb"},
    "planes": {"data": numbers(3, 32, 48), "photometric": "rgb", "planarconfig": "separate"},
    "hyperstack": {"data": numbers(2, 3, 32, 48), "imagej": True, "metadata": {"axes": "ZCYX"}},
    "OME": {"data": numbers(2, 3, 32, 48), "metadata": {"axes": "CZYX"}, "ome": True},
    "floats": {"data": numbers(32, 48, dtype="float32"), "compression": "zlib", "predictor": 3},
}


def geotiff(path: Path, data: NDArray[Any], nodata: str, items: str, **options: Any) -> Path:
    """Write a TIFF with GDAL's tags."""
    metadata = f"<GDALMetadata>{items}</GDALMetadata>"
    tags = [(42113, "s", 0, nodata, True), (42112, "s", 0, metadata, True)]
    tifffile.imwrite(path, data, extratags=tags, metadata=None, **options)
    return path


def item(role: str, value: float, band: int = 0) -> str:
    """A scale or an offset in GDAL's metadata."""
    return f'<Item name="{role.upper()}" sample="{band}" role="{role}">{value}</Item>'


class TestTiff:
    """Files of tifffile, in all its layouts."""

    def test_what_gdal_states(self, tmp_path: Path) -> None:
        """The scale, the offset and nodata of a GeoTIFF are a remark; `rescale` applies them."""
        data = np.array([[0, 100], [-9999, 250]], np.int16)
        path = geotiff(tmp_path / "a.tif", data, "-9999", item("scale", 0.1) + item("offset", 2))
        (remark,) = arrayfolder(path).remarks
        assert "their headers' nodata=-9999.0 and scale=0.1 and offset=2.0 is not applied, which rescale=True" in remark
        check_equal(only(path), data)
        check_equal(only(path, rescale=False), data)
        assert not [*arrayfolder(path, rescale=False).remarks, *arrayfolder(path, rescale=True).remarks]
        check_equal(only(path, rescale=True), np.array([[2, 12], [np.nan, 27]], np.float32))

    @pytest.mark.parametrize("planar", [False, True])
    def test_bands_have_scales_of_their_own(self, planar: bool, tmp_path: Path) -> None:
        data = numbers(3, 8, 9)
        shown: Any = data if planar else np.moveaxis(data, 0, -1)
        kind: Any = {"photometric": "rgb", "planarconfig": "separate" if planar else "contig"}
        scales = [1, 0.5, 2]
        path = geotiff(tmp_path / "a", shown, "nan", "".join(item("scale", s, b) for b, s in enumerate(scales)), **kind)
        expected = (data * np.array(scales)[:, None, None]).astype(np.float32)
        check_equal(only(path, rescale=True), expected if planar else np.moveaxis(expected, 0, -1))

    @pytest.mark.parametrize("nodata", ["nan", "-1", "1.5", "none", "1e99", "inf", ""])
    def test_what_changes_nothing_is_not_told(self, nodata: str, tmp_path: Path) -> None:
        """Neither is what is no number, or no number of the dtype."""
        items = item("scale", 1) + item("offset", 0)
        items += '<Item sample="9" role="scale">2</Item><Item role="scale">x</Item>'
        assert not arrayfolder(geotiff(tmp_path / "a", numbers(4, 5), nodata, items)).remarks

    @pytest.mark.parametrize("layout", TIFFS)
    def test_layouts(self, layout: str, tmp_path: Path) -> None:
        """Arrays are those of tifffile.imread, and those that were written."""
        options = dict(TIFFS[layout])
        data = options.pop("data", numbers(32, 48))
        tifffile.imwrite(tmp_path / "any name", data, **options)
        found = only(tmp_path)
        check_equal(found, tifffile.imread(tmp_path / "any name"))
        np.testing.assert_array_equal(found, data)

    @given(
        data=arrays.arrays(
            st.sampled_from(["uint8", "int16", "uint16", "uint32", "float32", "float64"]),
            arrays.array_shapes(min_dims=2, max_dims=3, max_side=20),
        ),
        little=st.booleans(),
        compressed=st.booleans(),
    )
    @settings(max_examples=25, deadline=None)
    def test_any_array(self, data: NDArray[Any], little: bool, compressed: bool) -> None:
        """Any dtype, shape and byte order comes back as it was."""
        with tempfile.TemporaryDirectory() as folder:
            compression = "zlib" if compressed else None
            byteorder: Any = "<" if little else ">"
            path = Path(folder, "a.tif")
            tifffile.imwrite(path, data, compression=compression, byteorder=byteorder, photometric="minisblack")
            check_equal(only(path), tifffile.imread(path))
            np.testing.assert_array_equal(only(path).ravel(), data.ravel())

    def test_other_files_that_metadata_names_are_not_read(self, tmp_path: Path) -> None:
        """An OME file of a set gives its own pages, as long as the user does not name the others."""
        (tmp_path / "set").mkdir()
        tifffile.imwrite(tmp_path / "secret.tif", numbers(32, 48, seed=9))
        xml = (
            '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels ID="Pixels:0" '
            'DimensionOrder="XYZCT" Type="uint16" SizeX="48" SizeY="32" SizeZ="2" SizeC="1" SizeT="1">'
            '<Channel ID="Channel:0:0" SamplesPerPixel="1"/>'
            '<TiffData IFD="0" FirstZ="0" PlaneCount="1"><UUID FileName="a.ome.tif">urn:uuid:1</UUID></TiffData>'
            '<TiffData IFD="0" FirstZ="1" PlaneCount="1"><UUID FileName="../secret.tif">urn:uuid:2</UUID></TiffData>'
            "</Pixels></Image></OME>"
        )
        tifffile.imwrite(tmp_path / "set" / "a.ome.tif", numbers(32, 48), description=xml, metadata=None)
        check_equal(only(tmp_path / "set"), numbers(32, 48))

    def test_directories_in_a_circle(self, tmp_path: Path) -> None:
        """A file whose pages never end is a bad sample."""
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, numbers(150, 4, 4), photometric="minisblack", metadata=None)
        with tifffile.TiffFile(path) as file:
            pages = [page.offset for page in file.pages]
        entries = int.from_bytes(path.read_bytes()[pages[-1] : pages[-1] + 2], "little")
        overwrite(path, pages[-1] + 2 + 12 * entries, pages[120].to_bytes(4, "little"))
        with pytest.raises(SourceError, match=r"a.tif: the TIFF file's directories lead in a circle"):
            arrayfolder(path)

    def test_a_header_that_claims_too_much(self, tmp_path: Path) -> None:
        """No memory is taken for an array that the file cannot hold."""
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, numbers(16, 16), compression="zlib", metadata=None)
        with tifffile.TiffFile(path, mode="r+b") as file:
            for name, value in (("ImageWidth", 1 << 30), ("ImageLength", 1 << 10), ("RowsPerStrip", 1 << 10)):
                file.pages.first.tags[name].overwrite(value)
        with pytest.raises(SourceError, match=r"header states \[1024, 1073741824\] of uint16, 2199023255552 bytes"):
            arrayfolder(path)

    def test_a_mask_of_zeros(self, tmp_path: Path) -> None:
        """Tiles of zstd hold thousands of zeros in a byte of the file, and are read."""
        data = np.zeros((1 << 13, 9 << 10), np.uint8)
        tifffile.imwrite(tmp_path / "a.tif", data, tile=(1024, 1024), compression="zstd")
        assert data.nbytes > max(64 << 20, 4096 * (tmp_path / "a.tif").stat().st_size)
        assert not only(tmp_path / "a.tif").any()


class TestNpyAndPng:
    """Files that shardio reads without another library than OpenCV."""

    @pytest.mark.parametrize("array", [numbers(4, 5).astype(">u2"), np.asfortranarray(numbers(4, 5, dtype="float64"))])
    def test_npy(self, array: NDArray[Any], tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", array)
        check_equal(only(tmp_path), array)

    @pytest.mark.parametrize("shape", [(9, 11), (9, 11, 3), (9, 11, 4)])
    def test_png_of_16_bits(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        """All bits are kept, and colours are in the order red, green, blue."""
        (tmp_path / "a.png").write_bytes(encode("png", numbers(*shape)))
        check_equal(only(tmp_path), numbers(*shape))

    def test_objects_are_refused(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
        with pytest.raises(SourceError, match=r"a\.npy: holds Python objects, which are pickles and never loaded"):
            arrayfolder(tmp_path)

    def test_gzip(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", numbers(4, 5))
        (tmp_path / "a.npy").write_bytes(gzip.compress((tmp_path / "a.npy").read_bytes()))
        check_equal(only(tmp_path), numbers(4, 5))


def scans(folder: Path, names: tuple[str, ...] = ("cat/2.tif", "cat/10.npy", "dog/1.png")) -> list[dict[str, Any]]:
    """Files of several formats in class folders, and the samples that they are."""
    found = []
    for seed, name in enumerate(sorted(names)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        array = numbers(6, 7, seed=seed)
        write: dict[str, Callable[[Path], Any]] = {
            ".tif": lambda path, array=array: tifffile.imwrite(path, array),
            ".npy": lambda path, array=array: np.save(path, array),
            ".png": lambda path, array=array: cv2.imwrite(str(path), array),
        }
        write[Path(name).suffix](folder / name)
        found.append({"array": array, "label": ["cat", "dog"].index(name.partition("/")[0]), "key": name})
    return found


class TestFolders:
    """A folder's files become samples with keys and labels."""

    def test_class_folders(self, tmp_path: Path) -> None:
        expected = scans(tmp_path / "in")
        source = arrayfolder(tmp_path / "in")
        check_source(source, expected, tmp_path / "out", array=(DEEP, (6, 7)), label="int64", key="text")
        assert source.metadata == {"source": "arrayfolder", "classes": ["cat", "dog"]}
        natural = arrayfolder(tmp_path / "in", sort="natural")
        assert natural.column("key") == ["cat/2.tif", "cat/10.npy", "dog/1.png"]

    def test_hidden_folders(self, tmp_path: Path) -> None:
        """Hidden folders, and those that systems add, are left out and named; `hidden` takes them."""
        for folder in ("cat", "@eaDir"):
            (tmp_path / folder).mkdir()
            np.save(tmp_path / folder / "a.npy", np.zeros((2, 3)))
        (remark,) = arrayfolder(tmp_path).remarks
        assert remark.startswith("left out @eaDir, hidden or added by a system")
        assert arrayfolder(tmp_path).metadata["classes"] == ["cat"]
        assert [arrayfolder(tmp_path, hidden=taken).remarks for taken in (False, True)] == [(), ()]
        assert arrayfolder(tmp_path, hidden=True).metadata["classes"] == ["@eaDir", "cat"]

    def test_without_labels(self, tmp_path: Path) -> None:
        """Folders need not be classes; a hint says so where each holds one sample."""
        scans(tmp_path, ("cat/a.npy", "dog/b.npy"))
        (hint,) = arrayfolder(tmp_path).hints
        assert hint.startswith("each folder holds one sample")
        source = arrayfolder(tmp_path, label=False, field="scan")
        assert list(source.fields) == ["scan", "key"]
        assert source.metadata == {"source": "arrayfolder"}

    def test_patterns_and_lists(self, tmp_path: Path) -> None:
        scans(tmp_path)
        assert arrayfolder(str(tmp_path / "*" / "*.npy")).column("key") == ["10.npy"]
        files = [tmp_path / "dog" / "1.png", tmp_path / "cat" / "2.tif"]
        assert arrayfolder(files).column("key") == ["dog/1.png", "cat/2.tif"]

    def test_what_is_left_out_is_told(self, tmp_path: Path) -> None:
        """Other files are counted, and images of 8 bits are left to the converters of images."""
        scans(tmp_path)
        write_files(tmp_path, {"cat/notes.txt": "a", "cat/photo.png": png(), "beside.npy": b""})
        unknown, images, beside = arrayfolder(tmp_path).remarks
        assert unknown == "left out 1 file of no known format: .txt 1"
        assert images.startswith("left out 1 file: each is an image of 8 bits: `shardio convert imagefolder`")
        assert beside == "left out 1 file beside the class folders, of no class"

    def test_folders_without_arrays_are_no_classes(self, tmp_path: Path) -> None:
        scans(tmp_path)
        (tmp_path / "bills").mkdir()
        source = arrayfolder(tmp_path)
        assert source.metadata["classes"] == ["cat", "dog"]
        assert source.remarks == ("left out folders without files of arrays, which are no classes: bills",)

    def test_images_of_8_bits_alone(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"holds no files of arrays$"):
            arrayfolder(tmp_path)
        class_folders(tmp_path)
        with pytest.raises(SourceError, match=r"holds no files of arrays; left out .*`shardio convert imagefolder`"):
            arrayfolder(tmp_path)

    @pytest.mark.parametrize(
        ("shapes", "expected"),
        [([(3, 4), (3, 4)], (3, 4)), ([(3, 4), (5, 4)], (None, 4)), ([(3, 4), (3, 5)], None)],
    )
    def test_shapes(self, shapes: list[tuple[int, ...]], expected: Any, tmp_path: Path) -> None:
        for number, shape in enumerate(shapes):
            np.save(tmp_path / f"{number}.npy", numbers(*shape))
        source = arrayfolder(str(tmp_path / "*.npy"))
        assert source.fields["array"].shape == expected
        expected_samples = [{"array": numbers(*shape), "key": f"{number}.npy"} for number, shape in enumerate(shapes)]
        check_source(source, expected_samples, tmp_path / "out")

    def test_a_later_file_of_another_shape(self, tmp_path: Path) -> None:
        """It is a bad sample, whose message names the option that lets it pass, and then it does."""
        (tmp_path / "in").mkdir()
        for number in range(60):
            np.save(tmp_path / "in" / f"{number:02d}.npy", numbers(3 + (number == 1), 4, dtype="uint8"))
        out = tmp_path / "out"
        with pytest.raises(BadSample, match=r"01\.npy.*ragged='array'"):
            shardio.convert(tmp_path / "in", out, converter="arrayfolder")
        made = shardio.convert(tmp_path / "in", out, converter="arrayfolder", ragged="array", overwrite=True)
        assert made.fields["array"].shape == (None, 4)

    def test_several_dtypes(self, tmp_path: Path) -> None:
        """All are stored in the dtype that holds each of them, and a hint says so."""
        np.save(tmp_path / "a.npy", numbers(3, 4, dtype="uint8"))
        np.save(tmp_path / "b.npy", numbers(3, 4, dtype="int16"))
        source = arrayfolder(tmp_path)
        assert source.fields["array"].dtype == "int16"
        (hint,) = source.hints
        assert "a.npy is uint8" in hint
        assert hint.endswith("all are stored as int16")
        made = shardio.convert(source, tmp_path / "out", container="hdf5")
        np.testing.assert_array_equal(shardio.open(made.path)[0]["array"], numbers(3, 4, dtype="uint8"))


class TestTables:
    """Rows that name files."""

    def test_columns(self, tmp_path: Path) -> None:
        expected = scans(tmp_path)
        rows = [f"{sample['key']},{('cat', 'dog')[sample['label']]},{n / 4}" for n, sample in enumerate(expected)]
        (tmp_path / "list.csv").write_text("\n".join(["path,label,score", *rows]))
        source = arrayfolder(tmp_path / "list.csv", classes="auto")
        rest = [{"label": one["label"], "score": n / 4, "key": one["key"]} for n, one in enumerate(expected)]
        samples = [{"array": one["array"], **other} for one, other in zip(expected, rest, strict=True)]
        check_source(source, samples, tmp_path / "out")
        assert source.metadata["classes"] == ["cat", "dog"]
        with pytest.raises(ConfigError, match="has no 'no such'; there are label, score"):
            arrayfolder(tmp_path / "list.csv", fields="no such")

    def test_images_and_masks(self, tmp_path: Path) -> None:
        """A row may name several files; named in a table, a PNG of 8 bits is an array as well."""
        mask = np.arange(42, dtype=np.uint8).reshape(6, 7)
        np.save(tmp_path / "a.npy", numbers(6, 7))
        write_files(tmp_path, {"m.png": encode("png", mask), "list.jsonl": '{"scan": "a.npy", "mask": "m.png"}\n'})
        source = arrayfolder(tmp_path / "list.jsonl", path="image=scan,mask=mask")
        check_source(source, [{"image": numbers(6, 7), "mask": mask}], tmp_path / "out")

    def test_rows_without_a_file(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", numbers(6, 7))
        (tmp_path / "list.csv").write_text("path,n\n,1\na.npy,2\n")
        source = arrayfolder(tmp_path / "list.csv", field="scan", optional="scan")
        samples = [{"scan": None, "n": 1, "key": ""}, {"scan": numbers(6, 7), "n": 2, "key": "a.npy"}]
        check_source(source, samples, tmp_path / "o")

    def test_options_of_tables_are_refused_for_folders(self, tmp_path: Path) -> None:
        scans(tmp_path)
        with pytest.raises(ConfigError, match="classes goes with a table"):
            arrayfolder(tmp_path, classes="auto")


class TestDamage:
    """Files that are cut off or changed."""

    @pytest.mark.parametrize("name", ["cat/a.tif", "cat/a.npy", "cat/a.png"])
    def test_cut_files_are_bad_samples(self, name: str, tmp_path: Path) -> None:
        """Wherever a file is cut, it is refused by name, or its values are whole."""
        scans(tmp_path, (name,))
        check_cuts(arrayfolder, tmp_path, 7)

    def test_skipped_within_a_budget(self, tmp_path: Path) -> None:
        names = tuple(f"cat/{number}.tif" for number in range(8))
        scans(tmp_path / "in", names)
        (tmp_path / "in" / "cat" / "3.tif").write_bytes(b"II*\0\0\0\0\0")
        made = shardio.convert(tmp_path / "in", tmp_path / "out", converter="arrayfolder", on_error="skip", max_bad=0.5)
        assert made.manifest.samples == 7
        (skipped,) = made.datasets[""].skipped
        assert "3.tif: " in skipped.reason

    def test_a_pipe_is_no_file(self, tmp_path: Path) -> None:
        scans(tmp_path)
        os.mkfifo(tmp_path / "cat" / "pipe")
        assert len(arrayfolder(tmp_path).sizes()) == 3


class TestImagesOfSixteenBits:
    """Fields of images hold 8 bits, so that whoever takes them for one is told."""

    @pytest.mark.parametrize("shape", [(12, 12), (12, 12, 3)])
    def test_a_note_names_this_converter(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        write_files(tmp_path / "in", {"cat/a.png": encode("png", numbers(*shape))})
        (note,) = shardio.convert(tmp_path / "in", tmp_path / "out", converter="imagefolder").notes
        assert "`shardio convert arrayfolder` keeps all bits" in note
        with pytest.raises(BadSample, match="store_pixels stores 8 bits, the image has 16"):
            shardio.convert(imagefolder(tmp_path / "in"), tmp_path / "pixels", store_pixels=True)

    def test_lists_of_tiffs(self, tmp_path: Path) -> None:
        """The converter takes such files as bytes, and a note says so."""
        tifffile.imwrite(tmp_path / "a.tif", numbers(6, 7))
        (tmp_path / "list.csv").write_text("path\na.tif\n")
        (note,) = shardio.convert(tmp_path / "list.csv", tmp_path / "out", converter="filelist").notes
        assert note.startswith("a.tif and other files are taken as bytes, field 'bytes': `shardio convert arrayfolder`")
