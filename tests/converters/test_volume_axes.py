"""Volumes of one row of a table, such as a scan and its mask: their axes, shapes and grids fit, or a note tells."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from _dicom_files import write_dicom
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, SourceError
from shardio_converters.arrayfolder import ArrayFolder, arrayfolder

PATHS = {"image": "image", "mask": "mask"}
RAS = np.diag([2.0, 1, 3, 1])


def volume(*shape: int, seed: int = 0) -> NDArray[np.int16]:
    return np.random.default_rng(seed).integers(0, 99, shape).astype(np.int16)


def nifti(path: Path, values: NDArray[Any], affine: NDArray[np.float64] = RAS, *, stated: bool = True) -> str:
    """Write a volume; without `stated` its header has a size of voxels alone."""
    image = nibabel.Nifti1Image(values, affine)
    if not stated:
        image.set_qform(None, 0)
        image.set_sform(None, 0)
    image.to_filename(path)
    return path.name


def turned(values: NDArray[Any], affine: NDArray[np.float64], codes: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The same volume with its axes in another order and direction."""
    image = nibabel.Nifti1Image(values, affine)
    wanted = nibabel.orientations.axcodes2ornt(codes)
    made = image.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(affine), wanted))
    return np.asarray(made.dataobj), made.affine


def table(folder: Path, rows: Sequence[tuple[str, str]]) -> Path:
    (folder / "t.csv").write_text("\n".join(["image,mask", *map(",".join, rows)]))
    return folder / "t.csv"


def read(path: Path, **options: Any) -> ArrayFolder:
    return arrayfolder(path, path=PATHS, **options)


@pytest.mark.parametrize("codes", ["LAS", "LPS", "SPR", "PIR"])
def test_other_axes_are_a_remark(codes: str, tmp_path: Path) -> None:
    """It names both codes; `strict` fails, and either value of the option ends it."""
    image = volume(4, 5, 6)
    rows = [(nifti(tmp_path / f"i{n}.nii.gz", image), nifti(tmp_path / f"m{n}.nii", image)) for n in range(2)]
    nifti(tmp_path / "m1.nii", *turned(image, RAS, codes))
    path = table(tmp_path, rows)
    (remark,) = read(path).remarks
    assert f"i1.nii.gz: the axes of field 'image' are RAS, of field 'mask' {codes}, as in 1 of 2 rows" in remark
    stored = np.asarray(nibabel.load(tmp_path / "m1.nii").dataobj)  # type: ignore[attr-defined]
    for options, mask in (({}, stored), ({"orientation": "stored"}, stored), ({"orientation": "RAS"}, image)):
        source = read(path, **options)  # type: ignore[arg-type]
        np.testing.assert_array_equal(source[1]["mask"], mask)
        assert bool(source.remarks) == (not options)
        convert = {"converter": "arrayfolder", "strict": True, "ragged": "mask=all"}
        if options:
            convert["converter_options"] = {"path": PATHS, **options}
            assert len(shardio.open(shardio.convert(path, tmp_path / "out", overwrite=True, **convert).path)) == 2
    with pytest.raises(SourceError, match=r"strict allows nothing .* 'image' are RAS"):
        shardio.convert(path, tmp_path / "out", converter="arrayfolder", converter_options={"path": PATHS}, strict=True)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SPR", "AIL"])
def test_axes_brought_to_ras(codes: str, tmp_path: Path) -> None:
    """Values, shape and affine are nibabel's `as_closest_canonical`, also with channels behind, scaled, and oblique."""
    angle = np.deg2rad(20)
    affine = RAS.copy()
    affine[:2, :2] = 2 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    image = nibabel.Nifti1Image(*turned(volume(4, 5, 6, 2), affine, codes))
    image.header.set_slope_inter(0.5, 3)
    image.to_filename(tmp_path / "a.nii")
    wanted = nibabel.as_closest_canonical(nibabel.load(tmp_path / "a.nii"))  # type: ignore[arg-type]
    sample = arrayfolder(tmp_path, orientation="RAS")[0]
    np.testing.assert_array_equal(sample["array"], wanted.get_fdata(dtype=np.float32))
    np.testing.assert_allclose(sample["affine"], wanted.affine)
    assert arrayfolder(tmp_path, orientation="RAS").changes == {"orientation": "RAS"}


def test_shapes_must_fit(tmp_path: Path) -> None:
    """Others are bad samples, unless the volumes are taken as they are stored."""
    path = table(tmp_path, [(nifti(tmp_path / "i.nii", volume(4, 5, 6)), nifti(tmp_path / "m.nii", volume(4, 5, 7)))])
    with pytest.raises(BadSample, match=r"m\.nii: fields 'image' and 'mask' are \[4, 5, 6\] and \[4, 5, 7\] along"):
        read(path)[0]
    assert read(path, orientation="stored")[0]["mask"].shape == (4, 5, 7)
    nifti(tmp_path / "m.nii", volume(4, 5, 6, 3))  # channels are no place
    assert read(path)[0]["mask"].shape == (4, 5, 6, 3)


def test_a_row_that_was_not_looked_at(tmp_path: Path) -> None:
    """If the rows that decide the fields fit, another one that doesn't is a bad sample."""
    image = volume(4, 4, 4)
    rows = [(nifti(tmp_path / "i.nii", image), nifti(tmp_path / "m.nii", image))] * 60
    rows[1] = rows[1][0], nifti(tmp_path / "odd.nii", *turned(image, RAS, "LAS"))
    source = read(table(tmp_path, rows))
    assert source.remarks == ()
    with pytest.raises(BadSample, match=r"odd\.nii: the axes of field 'image' are RAS, of field 'mask' LAS; orient"):
        source[1]
    assert len(source[2]) == 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (np.zeros((4, 4)), None),
        (np.diag([1e-6, 0, 0, 0]), None),
        (np.diag([0, 0.02, 0, 0]), "0.02"),
        (np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1.5], [0, 0, 0, 0]]), "0.5"),
    ],
)
def test_other_grids_are_a_hint(change: NDArray[np.float64], told: str | None, tmp_path: Path) -> None:
    """Origins and spacings that differ by more than a thousandth of a voxel, with the largest difference."""
    image = volume(4, 5, 6)
    rows = [(nifti(tmp_path / "i.nii", image), nifti(tmp_path / f"m{n}.nii", image, RAS + change)) for n in range(2)]
    nifti(tmp_path / "m1.nii", image, RAS + change / 2)
    source = read(table(tmp_path, rows))
    assert (source.remarks, len(source.hints)) == ((), int(told is not None))
    if told is not None:
        grids = "the grids of fields 'image' and 'mask' differ"
        assert f"i.nii: {grids} by {told} voxels, the most of 2" in source.hints[0]


def test_what_states_no_space_is_not_compared(tmp_path: Path) -> None:
    """A header that has a size of voxels alone, and arrays of other formats."""
    np.save(tmp_path / "a.npy", volume(3, 4, 5))
    rows = [(nifti(tmp_path / "i.nii", volume(4, 5, 6)), nifti(tmp_path / "m.nii", volume(6, 5, 4), stated=False))]
    for path in (table(tmp_path, rows), table(tmp_path, [("i.nii", "a.npy")])):
        assert read(path).remarks == read(path).hints == ()
        assert read(path)[0]["image"].shape == (4, 5, 6)


def test_several_orientations_are_a_hint(tmp_path: Path) -> None:
    """Volumes of one folder may not be meant to differ, and so are told of, until the option is given."""
    for number, codes in enumerate(["RAS", "RAS", "LPS"]):
        nifti(tmp_path / f"{number}.nii", *turned(volume(4, 4, 4), RAS, codes))
    (hint,) = arrayfolder(tmp_path).hints
    assert "field 'array': volumes have several orientations, RAS (" in hint
    assert "0.nii), LPS (" in hint
    assert arrayfolder(tmp_path).remarks == arrayfolder(tmp_path, orientation="RAS").hints == ()


def test_a_dicom_series_and_its_nifti_mask(tmp_path: Path) -> None:
    """Slices, rows and columns have their places in NIfTI's space, so that the mask's axes can be told from them."""
    (tmp_path / "s").mkdir()
    slices = volume(4, 6, 5)
    for k in range(4):
        tags = {"ImagePositionPatient": [-10, 5, 3 * k], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        write_dicom(tmp_path / "s" / f"{k}", slices[k], PixelSpacing=[0.5, 0.25], InstanceNumber=k + 1, **tags)
    space = np.array([[0, 0, -0.25, 10], [0, -0.5, 0, -5], [3, 0, 0, 0], [0, 0, 0, 1]])
    mask, affine = turned(slices, space, "RAS")
    path = table(tmp_path, [("s", nifti(tmp_path / "m.nii", mask, affine))])
    source = read(path)
    assert "the axes of field 'image' are SPL, of field 'mask' RAS" in source.remarks[0]
    assert source.hints == ()
    both = read(path, orientation="RAS")[0]
    np.testing.assert_array_equal(both["image"], both["mask"])
    np.testing.assert_array_equal(both["image"], slices.transpose(2, 1, 0)[::-1, ::-1])
