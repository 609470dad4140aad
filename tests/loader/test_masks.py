"""Masks: the numbers of classes that a Loader delivers are those in the files, moved as their images are."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg, pixels
from _builders import png as photo
from _datasets import packed
from _masks import grey_png, levels, packed_grey_png, palette_png
from numpy.typing import NDArray
from PIL import Image

import shardio
from shardio import Field, World
from shardio.transforms import Transform
from shardio.transforms.random_generator import RandomKeys
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Crop, Erase, Flip, Scale, Warp

MASK = Field("image", role="mask")
SIZE = (37, 53)
FORMS: dict[str, tuple[int, Callable[[NDArray[Any]], bytes]]] = {
    "palette": (255, palette_png),
    "palette of 1 bit": (1, lambda numbers: palette_png(numbers, 1)),
    "palette of 2 bits": (3, lambda numbers: palette_png(numbers, 2)),
    "palette of 4 bits": (15, lambda numbers: palette_png(numbers, 4)),
    "palette with a transparent color": (20, lambda numbers: palette_png(numbers, transparency=3)),
    "grey": (255, grey_png),
    "grey with a transparent level": (20, lambda numbers: grey_png(numbers, transparency=3)),
    "grey of 1 bit": (1, lambda numbers: packed_grey_png(numbers, 1)),
    "grey of 2 bits": (3, lambda numbers: packed_grey_png(numbers, 2)),
    "grey of 4 bits": (15, lambda numbers: packed_grey_png(numbers, 4)),
    "grey of 16 bits": (65535, grey_png),
}
"""How a mask may be stored, and its largest number."""


def batch_of(
    path: Path, samples: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """All samples of a dataset, in order, in one batch."""
    packed(path, samples, fields)
    return load(path, **options)


def load(path: Path, **options: Any) -> dict[str, Any]:
    count = len(shardio.open(path))
    (batch,) = shardio.Loader(path, count, shuffle=None, world=World(), threads=1, **options)
    return batch


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_in_the_file(tmp_path: Path, form: str) -> None:
    """Palette indices and grey levels are delivered unscaled, as int64 [n, h, w], which cross_entropy takes."""
    largest, encode = FORMS[form]
    wanted = [levels(SIZE, largest, seed) for seed in range(3)]
    batch = batch_of(tmp_path / "data", [{"mask": encode(numbers)} for numbers in wanted], {"mask": MASK})
    assert (batch["mask"].dtype, tuple(batch["mask"].shape)) == (torch.int64, (3, *SIZE))
    np.testing.assert_array_equal(batch["mask"].numpy(), wanted)
    scores = torch.zeros(3, largest + 1, 2, 2)
    torch.nn.functional.cross_entropy(scores, batch["mask"][:, :2, :2])


def test_masks_of_several_sizes_are_a_list(tmp_path: Path) -> None:
    """Without a transform that gives them one size, masks come one by one, [h, w] each, and 8 beside 16 bits."""
    wanted = [levels((5, 7), 3), levels((8, 2), 4000), levels((1, 1), 255)]
    batch = batch_of(tmp_path / "data", [{"mask": grey_png(numbers)} for numbers in wanted], {"mask": MASK})
    for mask, numbers in zip(batch["mask"], wanted, strict=True):
        assert mask.dtype == torch.int64
        np.testing.assert_array_equal(mask.numpy(), numbers)


LISTS: dict[str, list[Transform]] = {
    "smaller": [shardio.Resize((17, 29))],
    "larger": [shardio.Resize(61)],
    "without antialias": [shardio.Resize((17, 29), antialias=False)],
    "named filter": [shardio.Resize((17, 29), interpolation="nearest")],
    "training": [shardio.RandomResizedCrop(24), shardio.RandomHorizontalFlip()],
    "padding": [shardio.RandomCrop((40, 60), padding=3), shardio.RandomHorizontalFlip()],
    "middle": [shardio.Resize(30), shardio.CenterCrop((21, 64))],
    "turned": [shardio.RandomHorizontalFlip(), shardio.RandomRotation(40), shardio.CenterCrop(20)],
    "nested": [shardio.RandomApply([shardio.RandomRotation((10, 80)), shardio.RandomHorizontalFlip()], 0.8)],
    "chosen": [shardio.RandomChoice([shardio.RandomRotation(90), shardio.RandomHorizontalFlip()])],
    "erased": [shardio.RandomCrop(30), shardio.RandomErasing(1.0, value=255)],
    "erased with a large number": [shardio.RandomErasing(1.0, value=40000), shardio.RandomCrop(30)],
}


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("largest", [20, 60000])
@pytest.mark.parametrize("name", LISTS)
def test_pixels_are_pillows(tmp_path: Path, name: str, largest: int) -> None:
    """Crops, flips, turns and resizes give what Pillow and NumPy give with the same choices, to the nearest pixel."""
    given = [levels(SIZE, largest, seed) for seed in range(4)]
    samples = [{"mask": grey_png(numbers)} for numbers in given]
    batch = batch_of(tmp_path / "data", samples, {"mask": MASK}, transforms=LISTS[name], seed=3)
    wanted = reference(LISTS[name], given, seed=3)
    for made, expected in zip(batch["mask"], wanted, strict=True):
        np.testing.assert_array_equal(made.numpy(), expected)


def reference(transforms: list[Transform], given: Sequence[NDArray[Any]], seed: int) -> list[NDArray[Any]]:
    """The results of the steps that are drawn for samples 0, 1, ..., by Pillow and NumPy."""
    sizes = np.array([numbers.shape for numbers in given], np.int32)
    recipe = Recipe.of(transforms, channels=1, size=SIZE, mask=True)
    steps = recipe.steps(sizes, RandomKeys(seed, 0, np.arange(len(given))))
    results = []
    for row, numbers in enumerate(given):
        made = numbers.astype(np.int32)
        for step in steps:
            match step:
                case Crop(boxes):
                    top, left, height, width = boxes[row].tolist()
                    made = np.pad(made, 100)[top + 100 : top + 100 + height, left + 100 : left + 100 + width]
                case Scale(targets, "nearest", _):
                    made = np.asarray(
                        Image.fromarray(made).resize(targets[row, ::-1].tolist(), Image.Resampling.NEAREST)
                    )
                case Flip(mask):
                    made = made[:, ::-1] if mask[row] else made
                case Warp(mask, matrices, False) if mask[row]:
                    size, matrix = made.shape[::-1], matrices[row].reshape(-1).tolist()
                    turned = Image.fromarray(made).transform(size, Image.Transform.AFFINE, matrix)
                    made = np.asarray(turned)
                case Erase(mask, boxes, value) if mask[row]:
                    top, left, height, width = boxes[row].tolist()
                    made = made.copy()
                    made[top : top + height, left : left + width] = value[0]
                case Warp() | Erase():
                    pass
                case _:
                    raise AssertionError(step)
        results.append(made)
    return results


GEOMETRY: list[Transform] = [shardio.RandomResizedCrop(24), shardio.RandomHorizontalFlip()]


def test_an_image_and_its_mask_move_alike(tmp_path: Path) -> None:
    """One list of geometric transforms, shared, draws the same for both; only the image is interpolated."""
    samples = []
    for seed in range(8):
        numbers = levels(SIZE, 1, seed)
        samples.append({"image": photo_of(numbers), "mask": palette_png(numbers)})
    transforms = {"image": [*GEOMETRY, shardio.ToFloat()], "mask": GEOMETRY}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", shardio.MaskWarning)
        batch = batch_of(tmp_path / "data", samples, {"image": "image", "mask": MASK}, transforms=transforms)
    assert set(batch["mask"].unique().tolist()) == {0, 1}
    image = batch["image"][:, 0]
    apart = image[(image < 0.1) | (image > 0.9)]
    assert len(apart) > 2000
    agrees = (image > 0.5) == (batch["mask"] == 1)
    assert agrees.float().mean() > 0.9  # but for pixels on edges, which the filter mixes
    other = batch["mask"].roll(1, 0)
    assert ((image > 0.5) == (other == 1)).float().mean() < 0.7


def photo_of(numbers: NDArray[np.uint8]) -> bytes:
    return grey_png(numbers * 255)


REFUSED: dict[str, tuple[list[Transform], str]] = {
    "a filter": ([shardio.Resize(8, interpolation="bilinear")], "transform 0: a mask is resized .*'nearest'.*bilinear"),
    "a turn's": ([shardio.RandomRotation(9, interpolation="bilinear")], "RandomRotation has interpolation='bilinear'"),
    "colours": ([shardio.Resize(8), shardio.ColorJitter(0.1)], "transform 1: .*numbers of classes, which ColorJitter"),
    "nested": ([shardio.RandomApply([shardio.GaussianBlur(3)])], "which GaussianBlur would change"),
    "floats": ([shardio.ToFloat()], "which ToFloat would change"),
    "an array's": ([shardio.RandomAxisFlip(0)], "must be a shardio image transform"),
    "no number": ([shardio.RandomErasing(value=-1)], "RandomErasing's value must be integers from 0 to 65535"),
    "colours to erase": ([shardio.RandomErasing(value=(1, 2, 3))], "must have 1 or 1 numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_numbers_is_refused(tmp_path: Path, case: str) -> None:
    """A filter, and a transform of colours, is refused with the reason, the field and its place in the list."""
    transforms, message = REFUSED[case]
    packed(tmp_path / "data", [{"mask": grey_png(levels(SIZE, 9))}], {"mask": MASK})
    with pytest.raises(shardio.ConfigError, match=message) as caught:
        shardio.Loader(tmp_path / "data", 1, transforms=transforms)
    assert "transforms for 'mask'" in str(caught.value)


def test_masks_are_not_mixed(tmp_path: Path) -> None:
    """MixUp and CutMix would make other numbers, and are refused."""
    packed(tmp_path / "data", [{"mask": grey_png(levels(SIZE, 9)), "label": 0}], {"mask": MASK, "label": "int64"})
    with pytest.raises(shardio.ConfigError, match="'mask' holds masks"):
        shardio.Loader(tmp_path / "data", 1, mixing=shardio.CutMix(num_classes=2))


def test_a_mask_that_is_stored_as_pixels(tmp_path: Path) -> None:
    """Pixels [h, w, 1] are delivered as a file's are, with transforms and without."""
    given = [levels(SIZE, 200, seed) for seed in range(4)]
    samples = [{"pixels": numbers[..., None], "file": grey_png(numbers)} for numbers in given]
    fields = {"pixels": Field("pixels", shape=SIZE, role="mask"), "file": MASK}
    batch = batch_of(tmp_path / "data", samples, fields)
    np.testing.assert_array_equal(batch["pixels"].numpy(), given)
    batch = load(tmp_path / "data", transforms={"pixels": GEOMETRY, "file": GEOMETRY})
    assert torch.equal(batch["pixels"], batch["file"])
    assert batch["pixels"].dtype == torch.int64


def test_a_mask_that_a_sample_lacks(tmp_path: Path) -> None:
    """An optional mask is zeros where it is missing, beside a column that says so; without one size it is None."""
    wanted = levels(SIZE, 20)
    samples = [{"mask": grey_png(wanted)}, {"mask": None}]
    fields = {"mask": Field("image", role="mask", optional=True)}
    batch = batch_of(tmp_path / "data", samples, fields, transforms=[shardio.Resize((8, 9))])
    assert batch["mask_present"].tolist() == [True, False]
    assert batch["mask"].dtype == torch.int64
    assert batch["mask"][0].any()
    assert not batch["mask"][1].any()
    (path := tmp_path / "more").mkdir()
    batch = batch_of(path / "data", [*samples, {"mask": grey_png(levels((3, 3), 9))}], fields)
    np.testing.assert_array_equal(batch["mask"][0], wanted)
    assert batch["mask"][1] is None


def test_masks_for_a_device_travel_narrow_and_arrive_wide(tmp_path: Path) -> None:
    """Workers hand 16 bits per number to a device, which makes int64 of them; `meta` stands for a GPU."""
    from shardio.engines.torch_steps import convert_and_erase
    from shardio.loader.batch.spec import BatchOptions, DeviceOptions, batch_spec

    packed(tmp_path / "data", [{"mask": grey_png(levels(SIZE, 65535))}], {"mask": MASK})
    options = BatchOptions(transforms=[shardio.Resize(8)])
    spec = batch_spec(shardio.open(tmp_path / "data"), options, DeviceOptions(torch.device("meta")))
    image = spec.images["mask"]
    assert image.finished_on_device
    assert spec.array_layout(1)["mask"] == ((1, 8, 53 * 8 // 37), np.dtype(np.uint16))
    narrow = torch.tensor([[0, 1, 32768, 65535]], dtype=torch.int32).to(torch.uint16)
    assert convert_and_erase(narrow, image.recipe, (), channels_last=False).tolist() == [[0, 1, 32768, 65535]]


def test_the_engine_for_a_gpu_gets_no_masks(tmp_path: Path) -> None:
    """An engine for whole batches makes the images; masks of the same loader are made by the CPU engine."""
    from shardio.loader.batch.spec import BatchOptions, DeviceOptions, batch_spec

    samples = [{"image": jpeg(*SIZE), "mask": grey_png(levels(SIZE, 9))}]
    packed(tmp_path / "data", samples, {"image": "image", "mask": MASK})
    options = BatchOptions(transforms={"image": GEOMETRY, "mask": GEOMETRY})
    for engine in ("dali", "nvimgcodec"):
        spec = batch_spec(shardio.open(tmp_path / "data"), options, DeviceOptions(torch.device("cuda"), engine))
        assert (spec.images["image"].batch_engine, spec.images["mask"].batch_engine) == (engine, None)


def test_a_mask_that_does_not_decode_is_a_bad_sample(tmp_path: Path) -> None:
    """A damaged mask is raised, replaced or masked as a damaged image is; a blank one is all 0."""
    good = grey_png(levels(SIZE, 9))
    at = good.index(b"IDAT") + 4
    damaged = good[:at] + bytes(len(good) - at - 12) + good[-12:]
    packed(tmp_path / "data", [{"mask": data} for data in (good, damaged, good)], {"mask": MASK})
    with pytest.raises(shardio.BadSample, match=r"field 'mask': the png image .* does not decode"):
        load(tmp_path / "data")
    masked = load(tmp_path / "data", on_bad_sample="mask", transforms=[shardio.Resize((9, 9))])
    assert masked["valid"].tolist() == [True, False, True]
    assert not masked["mask"][1].any()
    (problem,) = shardio.verify(tmp_path / "data", deep=True).problems
    assert "(sample 1)" in problem


FEW: dict[str, tuple[Callable[[int], bytes], list[Transform], bool]] = {
    "grey masks": (lambda n: grey_png(levels(SIZE, 20, n)), [shardio.Resize((8, 8))], True),
    "palette": (lambda n: palette_png(levels(SIZE, 20, n)), [shardio.RandomResizedCrop(8)], True),
    "turned": (lambda n: grey_png(levels(SIZE, 1, n)), [shardio.RandomRotation(9, "bilinear")], True),
    "nearest": (lambda n: grey_png(levels(SIZE, 20, n)), [shardio.Resize(8, interpolation="nearest")], False),
    "only cropped": (lambda n: grey_png(levels(SIZE, 20, n)), [shardio.CenterCrop(8)], False),
    "photos": (lambda n: photo(*SIZE, seed=n), [shardio.Resize((8, 8))], False),
    "JPEGs of few values": (lambda n: jpeg(8, 8, 1, seed=n), [shardio.Resize((8, 8))], False),
    # 33 values in all, though each image has one
    "many values in all": (lambda n: grey_png(np.full(SIZE, n % 33, np.uint8)), [shardio.Resize((8, 8))], False),
}
"""Images, transforms, and whether they are warned of."""


@pytest.mark.parametrize("case", FEW)
def test_images_that_look_like_masks(tmp_path: Path, case: str) -> None:
    """A PNG field whose first 64 samples have at most 32 values is warned of once if it is resized with a filter."""
    make, transforms, warned = FEW[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batch_of(
            tmp_path / "data", [{"seg": make(n)} for n in range(70)], {"seg": "image"}, transforms={"seg": transforms}
        )
    told = [str(warning.message) for warning in caught if warning.category is shardio.MaskWarning]
    assert len(told) == int(warned)
    if warned:
        assert "mask='seg'" in told[0]
        assert "interpolation='nearest'" in told[0]


def test_create_refuses_what_is_no_mask(tmp_path: Path) -> None:
    """JPEGs, RGB and grey with alpha are refused by what they are, and the writer goes on."""
    refused = {
        "a JPEG": jpeg(*SIZE, 1),
        "RGB colours": photo(*SIZE),
        "RGB colours and alpha": photo(*SIZE, 4),
        "grey levels and alpha": grey_png(np.zeros((4, 4, 2), np.uint8)),
    }
    with shardio.create(tmp_path / "data", fields={"mask": MASK}) as writer:
        for found, data in refused.items():
            with pytest.raises(shardio.BadSample, match=f"field 'mask': .*numbers of classes.*{found}"):
                writer.append({"mask": data})
        writer.append({"mask": grey_png(levels(SIZE, 9))})
    assert shardio.open(tmp_path / "data").fields["mask"].role == "mask"


def test_mixtures_of_masks_and_images_are_refused(tmp_path: Path) -> None:
    """A field that is a mask in one source and a grey image in another has no common meaning."""
    for name, role in (("a", "mask"), ("b", None)):
        rows = [{"m": grey_png(pixels(*SIZE, 1))}, {"m": grey_png(pixels(*((9, 9) if role else SIZE), 1))}]
        packed(tmp_path / name, rows, {"m": Field("image", channels=1, role=role)})
    with pytest.raises(shardio.ConfigError, match="image, mask"):
        shardio.mix({"a": tmp_path / "a", "b": tmp_path / "b"})
