"""NIfTI, DICOM, FITS and MATLAB files that nibabel, pydicom, astropy and scipy wrote, compared with what these read."""

import tempfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import scipy.io
from _dicom_files import write_dicom
from _sources import check_cuts, check_equal
from astropy.io import fits
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.uid import (
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    MediaStorageDirectoryStorage,
    RLELossless,
    RTStructureSetStorage,
)

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.source import Missing, Source
from shardio.testing import check_source
from shardio_converters.arrayfolder import arrayfolder

AFFINE = np.array([[2, 0, 0, -90], [0, -2, 0, 126], [0, 0, 3, -72], [0, 0, 0, 1]], np.float64)
VOLUMES = arrays.arrays(
    st.sampled_from(["uint8", "int16", "int32", "float32", "float64"]),
    arrays.array_shapes(min_dims=3, max_dims=4, max_side=6),
)


def numbers(*shape: int, dtype: str = "int16", seed: int = 0) -> NDArray[Any]:
    """Random numbers from -500 or 0 to 500."""
    low = 0 if dtype.startswith("u") else -500
    return np.random.default_rng(seed).integers(low, 500, shape).astype(dtype)


def only(path: Path, **options: Any) -> dict[str, Any]:
    """The sample of the one file at a path."""
    source = arrayfolder(path, **options)
    assert len(source.sizes()) == 1
    return dict(source[0])


class TestNifti:
    """Volumes with their affines."""

    @pytest.mark.parametrize("kind", ["Nifti1Image", "Nifti2Image", "Nifti1Pair", "Nifti2Pair"])
    @pytest.mark.parametrize("packed", ["", ".gz"])
    @pytest.mark.parametrize("slope", [None, (0.5, 3)])
    def test_kinds(self, kind: str, packed: str, slope: tuple[float, float] | None, tmp_path: Path) -> None:
        """Values are those of get_fdata in float32, or the stored ones, where nothing scales these."""
        image = getattr(nibabel, kind)(numbers(3, 4, 5), AFFINE)
        if slope:
            image.header.set_slope_inter(*slope)
        path = tmp_path / ("a.img" if "Pair" in kind else "a.nii")
        nibabel.save(image, f"{path}{packed}")
        found = only(tmp_path)
        read = nibabel.load(f"{path}{packed}")
        check_equal(found["array"], read.get_fdata(dtype=np.float32) if slope else np.asarray(read.dataobj))
        check_equal(found["affine"], AFFINE)
        assert arrayfolder(tmp_path).remarks == ()

    @given(data=VOLUMES, slope=st.sampled_from([None, 2.0, 0.1]), big=st.booleans())
    @settings(max_examples=25, deadline=None)
    def test_any_array(self, data: NDArray[Any], slope: float | None, big: bool) -> None:
        """Any dtype, shape and byte order; numbers that float32 cannot hold are scaled in float64."""
        header = nibabel.Nifti1Header(endianness=">" if big else "<")
        header.set_data_dtype(data.dtype)
        image = nibabel.Nifti1Image(np.abs(data) if slope else data, AFFINE, header)
        image.header.set_slope_inter(slope, 1 if slope else None)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.nii")
            with np.errstate(all="ignore"):
                nibabel.save(image, path)
                read = nibabel.load(path)
                wide = data.dtype.itemsize >= 4 and data.dtype != np.float32
                kind: Any = np.float64 if wide else np.float32
                expected = read.get_fdata(dtype=kind) if slope else np.asarray(read.dataobj)
                check_equal(only(path)["array"], expected)

    def test_volumes_with_labels(self, tmp_path: Path) -> None:
        expected = []
        for number, name in enumerate(["ill/a.nii", "well/b.nii.gz"]):
            (tmp_path / "in" / name).parent.mkdir(parents=True)
            nibabel.save(nibabel.Nifti1Image(numbers(3, 4, 5, seed=number), AFFINE), tmp_path / "in" / name)
            array = numbers(3, 4, 5, seed=number)
            expected.append({"array": array, "affine": AFFINE, "label": number, "key": name})
        check_source(arrayfolder(tmp_path / "in"), expected, tmp_path / "out", affine=("float64", (4, 4)))

    @pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
    def test_cut_files(self, name: str, tmp_path: Path) -> None:
        nibabel.save(nibabel.Nifti1Image(numbers(3, 4, 5), AFFINE), tmp_path / name)
        check_cuts(arrayfolder, tmp_path, 37)

    def test_labels_that_were_scaled(self, tmp_path: Path) -> None:
        """Labels that nibabel has scaled are within 1e-3 of integers: a remark, and `round` makes them whole."""
        labels, floats = np.arange(60).reshape(3, 4, 5) % 5, np.linspace(0, 3, 60).reshape(3, 4, 5)

        def write(folder: str, *volumes: NDArray[Any]) -> Path:
            (tmp_path / folder).mkdir()
            for number, data in enumerate(volumes):
                image = nibabel.Nifti1Image(data.astype("f8"), AFFINE)
                image.header.set_data_dtype("i2")
                image.to_filename(tmp_path / folder / f"{number}.nii")
            return tmp_path / folder

        both = write("labels", labels, labels[::-1], 0 * labels)
        (remark,) = arrayfolder(both).remarks
        assert "integers but for up to 3.1e-05, as scaled labels: round=True rounds them" in remark
        assert not arrayfolder(both, round=False).remarks
        source = arrayfolder(both, round=True)
        assert not source.remarks
        check_equal(source[1]["array"], labels[::-1].astype(np.float32))
        assert not arrayfolder(write("floats", floats)).remarks
        with pytest.raises(ConfigError, match="round takes labels within 1e-3 of integers"):
            arrayfolder(tmp_path / "floats", round=True)
        mixed = arrayfolder(write("mixed", labels, floats, *[labels] * 3), round=True)
        with pytest.raises(BadSample, match=r"1\.nii: round takes labels within 1e-3 of integers"):
            mixed[1]

    def test_a_header_without_values(self, tmp_path: Path) -> None:
        nibabel.save(nibabel.Nifti1Pair(numbers(3, 4, 5), AFFINE), tmp_path / "a.img")
        (tmp_path / "a.img").unlink()
        with pytest.raises(SourceError, match=r"a\.hdr: a NIfTI header needs its values beside it, there is no a\.img"):
            arrayfolder(tmp_path)


def tags(**values: Any) -> Dataset:
    """A dataset of these elements."""
    made = Dataset()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def write_series(folder: Path, places: list[float], series: str = "1.2.3", **tags: Any) -> NDArray[Any]:
    """Write a slice for each place along the axis, in shuffled files; return the slices in order."""
    found = numbers(len(places), 6, 5)
    names = np.random.default_rng(1).permutation(len(places))
    for number, place in enumerate(places):
        where = {"ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "ImagePositionPatient": [-10, 5, place]}
        path = folder / f"{series}-{names[number]}"
        write_dicom(path, found[number], series, **{**where, "InstanceNumber": int(names[number]), **tags})
    return found


class TestDicom:
    """Files of one or several frames, and series of slices."""

    @pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16"])
    @pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless])
    def test_single_files(self, dtype: str, syntax: str, tmp_path: Path) -> None:
        if syntax == RLELossless and dtype == "int16":
            dtype = "int8"
        write_dicom(tmp_path / "a", numbers(6, 5, dtype=dtype), syntax=syntax)
        check_equal(only(tmp_path)["array"], pydicom.dcmread(tmp_path / "a").pixel_array)
        np.testing.assert_array_equal(only(tmp_path)["array"], numbers(6, 5, dtype=dtype))

    def test_colours_and_frames(self, tmp_path: Path) -> None:
        write_dicom(tmp_path / "a" / "x", numbers(6, 5, 3, dtype="uint8"))
        write_dicom(tmp_path / "b" / "x", numbers(4, 6, 5), NumberOfFrames=4)
        check_equal(only(tmp_path / "a")["array"], numbers(6, 5, 3, dtype="uint8"))
        check_equal(only(tmp_path / "b")["array"], numbers(4, 6, 5))

    def test_rescaling(self, tmp_path: Path) -> None:
        """Values are those of pydicom's modality transform in float32; a rescale of nothing leaves integers."""
        write_dicom(tmp_path / "a" / "x", numbers(6, 5), RescaleSlope="1.5", RescaleIntercept="-1024")
        write_dicom(tmp_path / "b" / "x", numbers(6, 5), RescaleSlope="1", RescaleIntercept="0")
        read = pydicom.dcmread(tmp_path / "a" / "x")
        expected = pydicom.pixels.apply_modality_lut(read.pixel_array, read).astype(np.float32)
        check_equal(only(tmp_path / "a")["array"], expected)
        check_equal(only(tmp_path / "b")["array"], numbers(6, 5))

    @pytest.mark.parametrize("dtype", ["int16", "uint8"])
    @pytest.mark.parametrize(("entries", "bits"), [(600, 16), (200, 8)])
    def test_lookup_tables(self, dtype: str, entries: int, bits: int, tmp_path: Path) -> None:
        """A table of a file gives its values; numbers before and behind it give its first and its last one."""
        first = -99 if dtype == "int16" else 3
        data = np.random.default_rng(2).integers(0, 1 << bits, entries).tolist()
        table = tags(LUTDescriptor=[entries, first, bits], LUTData=data)
        table["LUTDescriptor"].VR = table["LUTData"].VR = "SS" if bits < 16 and dtype == "int16" else "US"
        if dtype == "int16" and bits == 16:
            table["LUTDescriptor"].VR = "SS"
        stored = numbers(6, 5, dtype=dtype)
        write_dicom(tmp_path / "a", stored, ModalityLUTSequence=[table])
        expected = np.array(table.LUTData, f"u{bits // 8}")[np.clip(stored.astype(int) - first, 0, entries - 1)]
        check_equal(only(tmp_path)["array"], expected)

    def test_rescaling_of_frames(self, tmp_path: Path) -> None:
        """Enhanced files state it for each frame."""
        values = [tags(RescaleSlope=str(frame + 1), RescaleIntercept="0.5") for frame in range(4)]
        groups = [tags(PixelValueTransformationSequence=[each]) for each in values]
        frames = numbers(4, 6, 5)
        write_dicom(tmp_path / "a", frames, NumberOfFrames=4, PerFrameFunctionalGroupsSequence=groups)
        expected = (frames * np.arange(1, 5)[:, None, None] + 0.5).astype(np.float32)
        check_equal(only(tmp_path)["array"], expected)

    def test_doses(self, tmp_path: Path) -> None:
        """Numbers stay, and a remark names their scaling; `rescale` makes doses of them, or ends the remark."""
        stored = numbers(2, 6, 5, dtype="uint16")
        for name, scaling in (("a", 1e-4), ("b", 2e-4)):
            write_dicom(tmp_path / "in" / name, stored, NumberOfFrames=2, DoseGridScaling=scaling)
        source = arrayfolder(tmp_path / "in")
        check_equal(source[1]["array"], stored)
        (remark,) = source.remarks
        assert "their headers' DoseGridScaling=0.0001, 0.0002 is not applied, which rescale=True does" in remark
        options: Any = {"converter": "arrayfolder", "container": "hdf5"}
        with pytest.raises(SourceError, match="DoseGridScaling"):
            shardio.convert(tmp_path / "in", tmp_path / "out", strict=True, **options)
        for rescale in (False, True):
            options["converter_options"] = {"rescale": rescale}
            made = shardio.convert(tmp_path / "in", tmp_path / f"{rescale}", strict=True, **options)
            expected = (stored * 2e-4).astype(np.float32) if rescale else stored
            check_equal(shardio.open(made.path)[1]["array"], expected)

    def test_frames_come_in_order_of_their_places(self, tmp_path: Path) -> None:
        """Frames of an enhanced file are sorted as slices are; where places are alike they stay, which a hint tells."""

        def write(name: str, places: list[float]) -> NDArray[Any]:
            groups = [tags(PlanePositionSequence=[tags(ImagePositionPatient=[0, 0, place])]) for place in places]
            shared = tags(PlaneOrientationSequence=[tags(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])])
            of = {"PerFrameFunctionalGroupsSequence": groups, "SharedFunctionalGroupsSequence": [shared]}
            frames = numbers(4, 6, 5)
            write_dicom(tmp_path / name / "x", frames, NumberOfFrames=4, **of)
            return frames

        frames = write("a", [3, 9, 0, 6])
        check_equal(only(tmp_path / "a")["array"], frames[[2, 0, 3, 1]])
        assert not arrayfolder(tmp_path / "a").hints
        frames = write("b", [0, 3, 0, 3])  # two echoes
        check_equal(only(tmp_path / "b")["array"], frames)
        (hint,) = arrayfolder(tmp_path / "b").hints
        assert "frames lie at the same positions, or in several directions, and stay in their order" in hint
        frames = write("c", [0, 1, 2, 3])
        check_equal(only(tmp_path / "c")["array"], frames)

    def test_a_series_is_sorted_by_place(self, tmp_path: Path) -> None:
        """The order of files and of InstanceNumber does not matter; each folder and each series is a sample."""
        first = write_series(tmp_path / "in" / "ann" / "ct", [3.0 * n for n in range(9)])
        second = write_series(tmp_path / "in" / "bob", [2.5 * n - 100 for n in range(9)], "1.2.4", RescaleSlope="2")
        source = arrayfolder(tmp_path / "in", label=False)
        expected = [{"array": first.astype(np.float32), "key": "ann/ct"}]
        expected.append({"array": (second * 2).astype(np.float32), "key": "bob"})
        check_source(source, expected, tmp_path / "out", array=("float32", (9, 6, 5)))
        told = [str(hint) for hint in source.hints]
        assert any("18 files are 2 DICOM series" in text for text in told)
        assert len(arrayfolder(tmp_path / "in", series=False).sizes()) == 18

    def test_two_series_in_a_folder(self, tmp_path: Path) -> None:
        first = write_series(tmp_path, [0, 1, 2], "1.1")
        second = write_series(tmp_path, [0, 1, 2, 3], "2.1")
        source = arrayfolder(tmp_path)
        check_equal(source[0]["array"], first)
        check_equal(source[1]["array"], second)
        assert source.column("key") == ["1.1-0", "2.1-0"]

    def test_series_without_places(self, tmp_path: Path) -> None:
        """InstanceNumber orders them."""
        for number in (2, 0, 1):
            write_dicom(tmp_path / f"{5 - number}", numbers(6, 5, seed=number), InstanceNumber=number + 1)
        expected = np.stack([numbers(6, 5, seed=number) for number in range(3)])
        check_equal(only(tmp_path)["array"], expected)

    @pytest.mark.parametrize(
        ("places", "tags", "message"),
        [
            (
                [0, 3, 6, 12, 15],
                {},
                r"missing between 6 and 12 mm, others are 3 mm apart; series=False takes each file",
            ),
            ([0, 3, 3, 6], {}, "has two slices at 3 mm; series=False"),
            ([0, 3, 6], {"PixelSpacing": None}, "differ in direction or PixelSpacing"),
        ],
    )
    def test_series_that_are_not_whole(
        self, places: list[float], tags: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        write_series(tmp_path, places)
        if tags:
            write_dicom(
                tmp_path / "1.2.3-0", numbers(6, 5), PixelSpacing=[9, 9], ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
                ImagePositionPatient=[-10, 5, 9],
            )  # fmt: skip
        with pytest.raises(SourceError, match=message.replace("series=False", ".*series.*")):
            arrayfolder(tmp_path)

    @pytest.mark.parametrize("series", [True, False])
    def test_files_without_an_image_are_left_out(self, series: bool, tmp_path: Path) -> None:
        """A DICOMDIR or an RTSTRUCT beside a series costs no sample: a hint counts them."""
        expected = write_series(tmp_path / "in", [0, 1, 2])
        for name, kind in (("DICOMDIR", MediaStorageDirectoryStorage), ("rt.dcm", RTStructureSetStorage)):
            write_dicom(tmp_path / "in" / name, numbers(1, 1))
            head = pydicom.dcmread(tmp_path / "in" / name)
            head.file_meta.MediaStorageSOPClassUID = head.SOPClassUID = kind
            for tag in ("Rows", "Columns", "PixelData"):
                del head[tag]
            head.save_as(tmp_path / "in" / name, enforce_file_format=True)
        source = arrayfolder(tmp_path / "in", label=False, series=series)
        assert len(source.sizes()) == (1 if series else 3)
        told = "left out 2 DICOM files that hold no image, such as a DICOMDIR, an RTSTRUCT or a report; the first is"
        assert source.hints[0] == f"{told} {tmp_path / 'in/DICOMDIR'}"
        assert not source.remarks
        (tmp_path / "list.csv").write_text("path\nin\n")
        check_equal(arrayfolder(tmp_path / "list.csv")[0]["array"], expected)
        head.save_as(tmp_path / "rt.dcm", enforce_file_format=True)
        with pytest.raises(SourceError, match="holds no files of arrays; left out 1 DICOM file that holds no image"):
            arrayfolder(str(tmp_path / "*.dcm"))

    def test_a_table_of_folders(self, tmp_path: Path) -> None:
        """A row may name the folder of a series."""
        expected = write_series(tmp_path / "ann", [0, 1, 2])
        (tmp_path / "list.csv").write_text("path,age\nann,61\n")
        source = arrayfolder(tmp_path / "list.csv")
        check_source(source, [{"array": expected, "age": 61, "key": "ann"}], tmp_path / "out")

    def test_inverted_images_are_told(self, tmp_path: Path) -> None:
        write_dicom(tmp_path / "a", numbers(6, 5), PhotometricInterpretation="MONOCHROME1")
        (hint,) = arrayfolder(tmp_path).hints
        assert hint.endswith("a: MONOCHROME1: larger numbers are darker, and stay as they are")

    def test_cut_files(self, tmp_path: Path) -> None:
        write_dicom(tmp_path / "a", numbers(16, 16))
        check_cuts(arrayfolder, tmp_path, 61)


class TestFits:
    """Images of astropy."""

    @given(
        data=arrays.arrays(
            st.sampled_from(["uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"]),
            arrays.array_shapes(max_dims=4, max_side=6),
        )
    )
    @settings(max_examples=25, deadline=None)
    def test_any_array(self, data: NDArray[Any]) -> None:
        """Unsigned integers, which FITS has by BZERO alone, stay unsigned."""
        with tempfile.TemporaryDirectory() as folder:
            fits.PrimaryHDU(data).writeto(Path(folder, "a.fits"))
            check_equal(only(Path(folder))["array"], data)

    def test_scaled_numbers(self, tmp_path: Path) -> None:
        unit = fits.PrimaryHDU(numbers(4, 5).astype(np.float32) * 0.25 + 10)
        unit.scale("int16", bscale=0.25, bzero=10)
        unit.writeto(tmp_path / "a.fits")
        check_equal(only(tmp_path)["array"], fits.getdata(tmp_path / "a.fits"))
        assert only(tmp_path)["array"].dtype == np.float32

    def test_several_units(self, tmp_path: Path) -> None:
        """The first with an array is taken, also a compressed one, and a hint names the option that chooses."""
        table = fits.BinTableHDU.from_columns([fits.Column("x", "J", array=np.arange(3))])
        images = [fits.CompImageHDU(numbers(32, 33, seed=seed)) for seed in range(2)]
        fits.HDUList([fits.PrimaryHDU(), table, *images]).writeto(tmp_path / "a.fits.gz")
        check_equal(only(tmp_path)["array"], numbers(32, 33))
        check_equal(only(tmp_path, hdu=3)["array"], numbers(32, 33, seed=1))
        (hint,) = arrayfolder(tmp_path).hints
        assert hint.endswith("the first of 2 HDUs with an array is taken, 2; hdu chooses")
        with pytest.raises(SourceError, match="holds no array in HDU 1; those with arrays are 2, 3"):
            arrayfolder(tmp_path, hdu=1)

    def test_cut_files(self, tmp_path: Path) -> None:
        fits.PrimaryHDU(numbers(40, 60)).writeto(tmp_path / "a.fits")
        check_cuts(arrayfolder, tmp_path, 401)


class TestMatlab:
    """Files of scipy, which has MATLAB's own readers as its model."""

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float64", "complex128"])
    @pytest.mark.parametrize("packed", [True, False])
    def test_dtypes(self, dtype: str, packed: bool, tmp_path: Path) -> None:
        """The dtype is that of MATLAB's class, however few bytes a number takes in the file; complex ones stay."""
        data = numbers(4, 5, dtype="uint8").astype(dtype)
        data = data * (1 - 2j) if dtype == "complex128" else data
        scipy.io.savemat(tmp_path / "a.mat", {"x": data, "note": "text", "cells": {"a": 1}}, do_compression=packed)
        check_equal(only(tmp_path)["array"], data)

    def test_a_variable_is_chosen(self, tmp_path: Path) -> None:
        scipy.io.savemat(tmp_path / "a.mat", {"x": numbers(4, 5), "y": numbers(2, 3)})
        with pytest.raises(SourceError, match=r"holds 2 arrays, .*variable.* must choose one; its variables are 'x'"):
            arrayfolder(tmp_path)
        check_equal(only(tmp_path, variable="y")["array"], numbers(2, 3))
        with pytest.raises(SourceError, match=r"holds no array 'z'; its variables are 'x' \(int16\), 'y' \(int16\)"):
            arrayfolder(tmp_path, variable="z")

    def test_version_7_3_is_left_to_hdf5(self, tmp_path: Path) -> None:
        (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n")
        with pytest.raises(SourceError, match="an HDF5 file, which `shardio convert hdf5` takes"):
            arrayfolder(tmp_path)

    def test_cut_files(self, tmp_path: Path) -> None:
        scipy.io.savemat(tmp_path / "a.mat", {"x": numbers(16, 16)}, do_compression=True)
        check_cuts(arrayfolder, tmp_path, 23)


def test_a_later_file_without_an_affine(tmp_path: Path) -> None:
    """It is a bad sample by name, as the field is there."""
    for number in range(60):
        nibabel.save(nibabel.Nifti1Image(numbers(2, 3, 4), AFFINE), tmp_path / f"{number:02d}.nii")
    (tmp_path / "01.nii").unlink()
    np.save(tmp_path / "01.npy", numbers(2, 3, 4))
    source = arrayfolder(tmp_path)
    assert source[1]["affine"] == Missing(f"{tmp_path}/01.npy: states no affine")


def test_several_formats_in_one_folder(tmp_path: Path) -> None:
    """A value that only some files state, such as an affine, becomes no field."""
    nibabel.save(nibabel.Nifti1Image(numbers(4, 5, 6), AFFINE), tmp_path / "a.nii")
    np.save(tmp_path / "b.npy", numbers(4, 5, 6))
    source: Source = arrayfolder(tmp_path)
    assert list(source.fields) == ["array", "key"]
