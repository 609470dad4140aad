"""Masks in conversion and adoption: `mask=` keeps their files as they are, and refuses what holds no numbers."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _builders import jpeg, tiff, with_exif, write_files
from _builders import png as photo
from _foreign import write_tar
from _hdf5_files import write_hdf5
from _masks import grey_png, levels, palette_png
from numpy.typing import NDArray
from PIL import Image

import shardio
from shardio import Field, World
from shardio.errors import SourceError, SourceWarning
from shardio.format.images import probe

SIZE, COUNT = (30, 44), 5
NUMBERS = [levels(SIZE, 20, seed) for seed in range(COUNT)]
FILES = [palette_png(numbers) for numbers in NUMBERS]


PAIRS: dict[str, Any] = {"converter": "filelist", "converter_options": {"path": "image=image,mask=mask"}}
"""How the list of `pairs` is converted."""


def pairs(folder: Path, mask: Callable[[int], bytes] = FILES.__getitem__) -> Path:
    """Photos and masks as files, and a list that names them."""
    files: dict[str, Any] = {f"{n}.jpg": jpeg(*SIZE, seed=n) for n in range(COUNT)}
    files |= {f"{n}.png": mask(n) for n in range(COUNT)}
    files["pairs.csv"] = "image,mask\n" + "".join(f"{n}.jpg,{n}.png\n" for n in range(COUNT))
    return write_files(folder, files) / "pairs.csv"


def delivered(path: Any) -> list[NDArray[Any]]:
    (batch,) = shardio.Loader(path, COUNT, shuffle=None, world=World(), fields=["mask"])
    return [mask.numpy() for mask in batch["mask"]]


def filelist(folder: Path) -> tuple[Any, dict[str, Any]]:
    return pairs(folder), PAIRS


def webdataset(folder: Path) -> tuple[Any, dict[str, Any]]:
    folder.mkdir()
    photos = [(f"{number}.jpg", jpeg(*SIZE, seed=number)) for number in range(COUNT)]
    masks = [(f"{number}.mask.png", data) for number, data in enumerate(FILES)]
    tar = write_tar(folder / "a.tar", [member for pair in zip(photos, masks, strict=True) for member in pair])
    return tar, {"converter": "webdataset", "converter_options": {"fields": "image=jpg,mask=mask.png"}}


def hdf5(folder: Path) -> tuple[Any, dict[str, Any]]:
    masks = np.empty(COUNT, object)
    masks[:] = [np.frombuffer(data, np.uint8) for data in FILES]
    stored = {"data": masks, "dtype": h5py.vlen_dtype(np.uint8)}
    return write_hdf5(folder / "a.h5", mask=stored), {"converter": "hdf5"}


def torch(folder: Path) -> tuple[Any, dict[str, Any]]:
    pictures = [Image.open(io.BytesIO(data)) for data in FILES]
    return [{"mask": picture} for picture in pictures], {"converter": "torch"}


SOURCES = [filelist, webdataset, hdf5, torch]


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_masks_of_every_source(tmp_path: Path, make: Callable[[Path], tuple[Any, dict[str, Any]]]) -> None:
    """Wherever image fields come from, mask= makes masks of them, whose numbers are those in the files."""
    source, options = make(tmp_path / "in")
    made = shardio.convert(source, tmp_path / "out", mask="mask", **options)
    assert made.manifest.fields["mask"] == Field("image", shape=SIZE, role="mask")
    np.testing.assert_array_equal(delivered(made.path), NUMBERS)
    again = shardio.convert(made.path, tmp_path / "again", container="hdf5")  # which keeps the role
    assert again.manifest.fields["mask"] == made.manifest.fields["mask"]
    if make is not torch:  # whose images are saved anew
        assert [shardio.open(again.path)[number]["mask"] for number in range(COUNT)] == FILES


REFUSED: dict[str, tuple[Callable[[int], bytes], str]] = {
    "JPEG": (lambda n: jpeg(*SIZE, 1, seed=n), "got a JPEG"),
    "RGB": (lambda n: photo(*SIZE, seed=n), "got a PNG of RGB colours"),
    "alpha": (lambda n: photo(*SIZE, 4, seed=n), "got a PNG of RGB colours and alpha"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_holds_no_numbers_is_refused(tmp_path: Path, case: str) -> None:
    """A JPEG mask and a PNG of colours are bad samples, named by sample, field and reason; `skip` leaves them out."""
    make, message = REFUSED[case]
    source = pairs(tmp_path / "in", lambda number: make(number) if number == 2 else FILES[number])
    with pytest.raises(shardio.BadSample, match=f"sample 2 .*field 'mask': .*{message}"):
        shardio.convert(source, tmp_path / "out", mask="mask", **PAIRS)
    made = shardio.convert(source, tmp_path / "out", mask="mask", on_error="skip", max_bad=1, **PAIRS)
    assert (made.manifest.samples, len(made.skipped)) == (COUNT - 1, 1)


def test_fields_that_cannot_be_masks(tmp_path: Path) -> None:
    """A field that is missing, or holds no images, is refused by name and with what would do."""
    np.savez(tmp_path / "a.npz", mask=np.stack(NUMBERS), label=np.arange(COUNT))
    cases = {
        "no": "mask: there is no field 'no'; there are mask",
        "label": "'label' is scalar, int64",
        "mask": r"as_image=\['mask'\] makes images of arrays",
    }
    for name, message in cases.items():
        with pytest.raises(shardio.ConfigError, match=message):
            shardio.convert(tmp_path / "a.npz", tmp_path / "out", converter="numpy", mask=name)
    np.savez(tmp_path / "b.npz", mask=np.zeros((2, 20, 30, 3), np.uint8))
    with pytest.raises(shardio.ConfigError, match="one number per pixel"):
        shardio.convert(tmp_path / "b.npz", tmp_path / "out", converter="numpy", as_image="mask", mask="mask")


@pytest.mark.parametrize("largest", [20, 40000])
def test_arrays_as_masks(tmp_path: Path, largest: int) -> None:
    """Arrays of uint8 or uint16 become PNGs of 8 or 16 bits with as_image and mask."""
    numbers = np.stack([levels(SIZE, largest, seed) for seed in range(COUNT)])
    np.savez(tmp_path / "a.npz", mask=numbers)
    made = shardio.convert(tmp_path / "a.npz", tmp_path / "out", converter="numpy", as_image="mask", mask="mask")
    np.testing.assert_array_equal(delivered(made.path), numbers)


def test_grey_images_of_16_bits_are_told(tmp_path: Path) -> None:
    """A note says that a Loader cuts off their levels, unless they are masks; the first may have fewer bits."""
    source = pairs(tmp_path / "in", lambda number: grey_png(levels(SIZE, 40000 if number else 200, number)))
    (note,) = shardio.convert(source, tmp_path / "images", **PAIRS).notes
    assert note.startswith(f"field 'mask' holds {COUNT - 1} PNGs of 16 bits, of which a Loader takes 8 as Pillow does")
    assert shardio.convert(source, tmp_path / "masks", mask="mask", **PAIRS).notes == ()


def nearest(numbers: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    return np.asarray(Image.fromarray(numbers).resize(size[::-1], Image.Resampling.NEAREST))


CHANGES: dict[str, tuple[dict[str, Any], tuple[int, int] | None]] = {
    "shrunk": ({"resize_shorter": 11, "quality": 50}, (11, 16)),
    "fewer pixels": ({"max_pixels": 300}, (14, 21)),
    "never a JPEG": ({"recompress": "always"}, None),
    "pixels": ({"store_pixels": True}, None),
    "pixels of one size": ({"store_pixels": True, "resize": (40, 21)}, (40, 21)),
    "beside alpha": ({"store_pixels": True, "keep_alpha": True}, None),
}
"""Options that change images, and the size of masks after them."""


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("largest", [20, 60000])
def test_options_that_change_images(tmp_path: Path, case: str, largest: int) -> None:
    """Options that shrink or resize take a mask's nearest pixel, as Pillow does; none makes a JPEG of it."""
    options, size = CHANGES[case]
    numbers = [levels(SIZE, largest, seed) for seed in range(COUNT)]
    source = pairs(tmp_path / "in", lambda number: grey_png(numbers[number]))
    if options.get("store_pixels") and largest > 255:
        with pytest.raises(shardio.BadSample, match="store_pixels stores numbers of a mask up to 255, got 60000"):
            shardio.convert(source, tmp_path / "out", mask="mask", **PAIRS, **options)
        return
    made = shardio.convert(source, tmp_path / "out", mask="mask", **PAIRS, **options)
    wanted = [nearest(one, size) for one in numbers] if size else numbers
    np.testing.assert_array_equal(delivered(made.path), wanted)
    assert made.manifest.fields["mask"].role == "mask"
    if made.manifest.fields["mask"].kind == "image":
        assert probe(shardio.open(made.path)[0]["mask"]).format == "png"


@pytest.mark.filterwarnings("ignore::shardio.SourceWarning")
def test_orient_turns_masks(tmp_path: Path) -> None:
    """A mask that an EXIF tag turns is turned, by conversion and by a Loader, without other numbers."""
    source = pairs(tmp_path / "in", lambda number: with_exif(grey_png(NUMBERS[number]), tiff(6)))
    with pytest.warns(SourceWarning, match="an EXIF tag rotates or flips"):
        plain = shardio.convert(source, tmp_path / "plain", mask="mask", **PAIRS)
    turned = shardio.convert(source, tmp_path / "turned", mask="mask", orient=True, **PAIRS)
    wanted = [np.rot90(numbers, -1) for numbers in NUMBERS]
    np.testing.assert_array_equal(delivered(plain.path), NUMBERS)
    np.testing.assert_array_equal(delivered(turned.path), wanted)
    (batch,) = shardio.Loader(plain.path, COUNT, shuffle=None, world=World(), fields=["mask"], orient=True)
    np.testing.assert_array_equal([mask.numpy() for mask in batch["mask"]], wanted)


def test_only_the_role_changes(tmp_path: Path) -> None:
    """mask= changes no stored byte and no digest; the same conversion without it is another one to resume."""
    source = pairs(tmp_path / "in")
    images = shardio.convert(source, tmp_path / "images", **PAIRS)
    masks = shardio.convert(source, tmp_path / "masks", mask=["mask"], **PAIRS)
    assert masks.manifest.digest == images.manifest.digest
    again = shardio.convert(source, tmp_path / "masks", mask=["mask"], resume=True, **PAIRS)
    assert again.manifest == masks.manifest
    with pytest.raises(shardio.ConfigError, match="mask"):
        shardio.convert(source, tmp_path / "masks", resume=True, **PAIRS)


@pytest.mark.parametrize("make", [webdataset, hdf5], ids=lambda make: make.__name__)
def test_masks_of_files_that_stay_in_place(tmp_path: Path, make: Callable[[Path], tuple[Any, dict[str, Any]]]) -> None:
    """`index` marks masks too, in processes as well, and repair keeps the mark of a dataset whose index is lost."""
    source, options = make(tmp_path / "in")
    fields = options.get("converter_options", {}).get("fields")
    out = tmp_path / "out"
    made = shardio.index(source, out, fields=fields, mask="mask", workers=2)
    assert made.fields["mask"].role == "mask"
    np.testing.assert_array_equal(delivered(out), NUMBERS)
    for index in out.glob("*.idx.*"):
        index.unlink()
    shardio.repair(out)
    assert shardio.open(out).fields["mask"].role == "mask"
    np.testing.assert_array_equal(delivered(out), NUMBERS)


@pytest.mark.parametrize("make", [webdataset, hdf5], ids=lambda make: make.__name__)
def test_index_refuses_what_is_no_mask(
    tmp_path: Path, make: Callable[[Path], tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`index` checks masks as conversion does, and names the file or sample, the field and the reason."""
    monkeypatch.setitem(globals(), "FILES", [*FILES[:3], photo(*SIZE), FILES[4]])
    source, options = make(tmp_path / "in")
    fields = options.get("converter_options", {}).get("fields")
    with pytest.raises(shardio.BadSample, match=r"(sample|row) 3, field 'mask': .*got a PNG of RGB colours"):
        shardio.index(source, tmp_path / "out", fields=fields, mask="mask")
    with pytest.raises(shardio.ConfigError, match="there is no field 'masks'"):
        shardio.index(source, tmp_path / "out", fields=fields, mask="masks")


def tagged(orientation: int, number: int, shape: tuple[int, int] = SIZE) -> bytes:
    """A photo of this stored size with an orientation tag."""
    return with_exif(jpeg(*shape, seed=number), tiff(orientation))


def unlike_pairs(number: int) -> tuple[bytes, bytes]:
    """A photo and a mask: alike, of other sizes, one turned, a tag that only one has, both with one tag."""
    mask, turned = FILES[number], palette_png(np.ascontiguousarray(NUMBERS[number].T))
    kinds = [
        (jpeg(*SIZE, seed=number), mask),
        (jpeg(60, 88, seed=number), mask),
        (jpeg(*SIZE, seed=number), turned),
        (tagged(6, number), turned),
        (tagged(3, number), mask),
    ]
    return kinds[number]


ENDS = ("jpg", "png")


@pytest.mark.parametrize("face", ["convert", "index"])
def test_images_and_masks_that_differ(tmp_path: Path, face: str) -> None:
    """Conversion and index count pairs that differ in size, by a turn or in their tags; with `strict` that fails."""
    files = [unlike_pairs(number) for number in range(COUNT)]
    members = [(f"{n}.{end}", data) for n, pair in enumerate(files) for end, data in zip(ENDS, pair, strict=True)]
    tar = write_tar(tmp_path / "a.tar", members)
    told: list[str] = []
    options: dict[str, Any] = {"mask": "mask", "tell": told.append}
    if face == "convert":
        run = partial(shardio.convert, converter="webdataset", converter_options={"fields": "image=jpg,mask=png"})
    else:
        run = partial(shardio.index, fields="image=jpg,mask=png")
    run(tar, tmp_path / "out", **options)
    (note,) = [note for note in told if "among images and their masks" in note]
    assert "are 1 pair of different sizes; 1 pair equal in size but for a rotation by 90 degrees" in note
    assert "2 pairs with different orientation tags, which orient=True applies" in note
    with pytest.raises(SourceError, match=r"strict.*among images and their masks are 1 pair of"):
        run(tar, tmp_path / "strict", strict=True, **options)
    assert not (tmp_path / "strict" / "shardio.json").exists()


def test_images_and_masks_that_fit(tmp_path: Path) -> None:
    """Pairs of one size and tag are no remark, nor are photos that `orient` turns to the size of their masks."""
    shardio.convert(pairs(tmp_path / "in"), tmp_path / "out", mask="mask", strict=True, **PAIRS)
    write_files(tmp_path / "in", {f"{n}.jpg": tagged(6, n, SIZE[::-1]) for n in range(COUNT)})
    with pytest.raises(SourceError, match="5 pairs with different orientation tags"):
        shardio.convert(tmp_path / "in" / "pairs.csv", tmp_path / "tags", mask="mask", strict=True, **PAIRS)
    options: dict[str, Any] = {"mask": "mask", "strict": True, "orient": True, **PAIRS}
    shardio.convert(tmp_path / "in" / "pairs.csv", tmp_path / "upright", **options)
