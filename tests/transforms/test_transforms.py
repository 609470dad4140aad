"""Random parameters are data: determined by (seed, epoch, sample), with the distributions of torchvision."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardio import transforms as t
from shardio.errors import ConfigError
from shardio.transforms import (
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    Normalize,
    PadImages,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGenerator,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomZoomOut,
    Resize,
    ToFloat,
)
from shardio.transforms.geometry import random_boxes
from shardio.transforms.recipe import Recipe


def random_generator(count: int, **overrides: int) -> RandomGenerator:
    """The random generator of samples 0..count-1 with seed 0, epoch 0 and the first transform."""
    return RandomGenerator(**{"seed": 0, "epoch": 0, "stream": 0, "indices": np.arange(count)} | overrides)  # type: ignore[arg-type]


def sizes(height: int, width: int, count: int) -> np.ndarray:
    return np.tile(np.array([height, width], np.int32), (count, 1))


def test_uniform_is_uniform() -> None:
    """Mean, variance and correlation of neighbours are those of independent uniform numbers."""
    found = random_generator(20_000).uniform(4)
    assert found.min() >= 0
    assert found.max() < 1
    assert found.mean() == pytest.approx(0.5, abs=0.005)
    assert found.var() == pytest.approx(1 / 12, abs=0.002)
    assert abs(np.corrcoef(found[:-1, 0], found[1:, 0])[0, 1]) < 0.03
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 0.03


@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=20),
    st.integers(1, 90),
    st.integers(0, 40),
    st.integers(0, 2**32),
)
def test_boxes_lie_where_they_may(shapes: list[tuple[int, int]], side: int, padding: int, seed: int) -> None:
    """Whatever the sizes, crops lie within their images, or their padding, and erased boxes too, or are empty."""
    size, generator = np.array(shapes, np.int32), random_generator(len(shapes), seed=seed)
    boxes = random_boxes(size, generator, (0.08, 1.0), (3 / 4, 4 / 3))
    (erase,) = RandomErasing(0.8).steps(size, generator)
    for found, within in ((boxes, size), (erase.boxes[erase.mask], size[erase.mask])):
        assert (found[:, :2] >= 0).all()
        assert (found[:, 2:] >= 1).all()
        assert (found[:, :2] + found[:, 2:] <= within).all()
    assert not erase.boxes[~erase.mask].any()
    (crop,) = RandomCrop(side, padding).steps(size, generator)
    border = np.maximum(padding, -(-(side - size) // 2))
    assert (crop.boxes[:, :2] >= -border).all()
    assert (crop.boxes[:, :2] + crop.boxes[:, 2:] <= size + border).all()


def test_random_boxes_have_the_asked_areas_and_ratios() -> None:
    """Areas are uniform in the requested range where they fit, and ratios lie in (3/4, 4/3) up to rounding."""
    box = random_boxes(sizes(500, 500, 5000), random_generator(5000), (0.08, 0.5), (3 / 4, 4 / 3))
    areas = box[:, 2] * box[:, 3] / 250_000
    ratios = box[:, 3] / box[:, 2]
    assert areas.min() == pytest.approx(0.08, abs=0.003)
    assert areas.mean() == pytest.approx(0.29, abs=0.01)
    assert ratios.min() > 0.74
    assert ratios.max() < 1.345
    assert np.log(ratios).mean() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((10, 1000), [0, 493, 10, 13]),  # far too wide: the centre, as wide as the ratio allows
        ((1000, 10), [493, 0, 13, 10]),  # far too tall
    ],
)
def test_random_boxes_fall_back_to_the_middle(size: tuple[int, int], expected: list[int]) -> None:
    """If no try fits, the crop is the largest central one of an allowed ratio, as in torchvision."""
    box = random_boxes(sizes(*size, 1), random_generator(1), (1.0, 1.0), (3 / 4, 4 / 3))[0]
    assert box[2:].tolist() == expected[2:]
    assert np.abs(box[:2] - expected[:2]).max() <= 1


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ((100, 100), [38, 38, 24, 24]),  # centred
        ((25, 27), [0, 2, 24, 24]),  # halves are rounded to even, as in torchvision
        ((10, 100), [-7, 38, 24, 24]),  # smaller than the crop: padded above and below
    ],
)
def test_center_crop(image: tuple[int, int], expected: list[int]) -> None:
    """The crop is the centre of the image, or the image is centred in the crop."""
    (step,) = CenterCrop(24).steps(sizes(*image, 1), random_generator(1))
    assert step.boxes[0].tolist() == expected


@pytest.mark.parametrize(
    ("size", "image", "expected"),
    [
        (256, (375, 500), (256, 341)),  # the shorter side is set, the longer one rounded down
        (256, (500, 375), (341, 256)),
        (256, (300, 300), (256, 256)),
        ((64, 32), (500, 375), (64, 32)),  # two numbers set both sides
    ],
)
def test_resize(size: int | tuple[int, int], image: tuple[int, int], expected: tuple[int, int]) -> None:
    """The sizes after Resize, as planned for the batch and as applied."""
    (step,) = Resize(size).steps(sizes(*image, 1), random_generator(1))
    assert tuple(step.sizes[0].tolist()) == expected == Resize(size).out_size(image)


def test_flips_are_as_frequent_as_asked() -> None:
    """p is the share of flipped images, exactly for 0 and 1."""
    for p in (0.0, 0.3, 1.0):
        (step,) = RandomHorizontalFlip(p).steps(sizes(8, 8, 4000), random_generator(4000))
        assert step.mask.mean() == pytest.approx(p, abs=0.03 if 0 < p < 1 else 0)


def test_recipe_works_out_the_result_size() -> None:
    """A batch has one size if the last transforms fix it, or if all images have one size."""
    assert Recipe.of([RandomResizedCrop(224), RandomHorizontalFlip()], channels=3, size=None).size == (224, 224)
    assert Recipe.of([Resize(256)], channels=3, size=None).size is None
    assert Recipe.of([Resize(256)], channels=3, size=(375, 500)).size == (256, 341)
    assert Recipe.of([Resize(256), CenterCrop(224)], channels=3, size=None).size == (224, 224)
    assert Recipe.of([], channels=3, size=(28, 28)).size == (28, 28)


@pytest.mark.parametrize("dtype", [torch.float16, np.float16, np.dtype("f2"), "half", "fp16", "torch.float16"])
def test_values_of_other_libraries(dtype: Any) -> None:
    """A dtype may be torch's or NumPy's own, or a short name that both know; numbers may be in arrays."""
    assert ToFloat(dtype) == ToFloat("float16")
    assert Normalize(0, 1, dtype) == Normalize(0, 1, "float16")
    assert ColorJitter(np.array([0.8, 1.2])) == ColorJitter((0.8, 1.2))  # type: ignore[arg-type]
    assert Normalize(0, 1, torch.bfloat16).dtype == ToFloat("bf16").dtype == "bfloat16"  # type: ignore[arg-type, comparison-overlap]


def recipe_of(*transforms: Any) -> Recipe:
    return Recipe.of(transforms, channels=3, size=None)


@pytest.mark.parametrize(
    ("make", "message"),
    [  # ignored arg-types are what users type, and what is refused
        (lambda: RandomResizedCrop(0), "size must be one or two integers of at least 1, got 0"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.1)), "scale must be"),  # upside down
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), "ratio must be"),  # no width
        (lambda: Resize(8, interpolation="area"), "got 'area'"),  # type: ignore[arg-type]
        (lambda: RandomHorizontalFlip(1.5), r"p must be a probability in \[0, 1\], got 1.5"),
        (lambda: Normalize(0.5, 0.0), "std must be above 0"),
        (lambda: recipe_of(Normalize((123.7, 116.3, 103.5), 58.0)), "transform 0: Normalize's mean .* got .123.7"),
        (lambda: recipe_of(Normalize(0.0, 255)), r"std of images is on .* 0 to 1, got \(255.0,\): divide it by 255"),
        (lambda: Normalize(math.nan, 1), "mean must be a finite number"),
        (lambda: recipe_of(Normalize((0.5, 0.5), 1)), "1 or 3 numbers, got 2"),
        (lambda: recipe_of(ToFloat(), CenterCrop(8)), "CenterCrop must come before"),
        (lambda: recipe_of(RandomErasing(value=(1, 2))), "must have 1 or 3 numbers"),
        (lambda: PadImages(value=0.5), "value must be integers from 0 to 255, one per channel or one for all, got 0.5"),  # type: ignore[arg-type]  # a wrong type
        (lambda: RandomZoomOut(fill=None), "fill must be integers from 0 to 255"),  # type: ignore[arg-type]  # a wrong type
        (lambda: RandomShortestSize(480.5), "min_size must be an integer, got 480.5"),  # type: ignore[arg-type]  # a wrong type
        (lambda: recipe_of(RandomZoomOut(fill=(1, 2))), r"RandomZoomOut's fill must have 1 or 3 numbers, got \(1, 2\)"),
        (lambda: recipe_of(PadImages(value=(1, 2))), r"PadImages' value must have 1 or 3 numbers, got \(1, 2\)"),
        (lambda: recipe_of(RandomErasing(value=300)), "integers from 0 to 255 before"),
        (lambda: recipe_of(RandomErasing(value=0.5), ToFloat()), r"before ToFloat .* got \(0.5,"),
        (lambda: recipe_of(RandomApply([RandomErasing(value=-1)])), "from 0 to 255 before"),
        (lambda: recipe_of(MixUp(5)), "transform 0: MixUp goes to mixing="),
        (lambda: recipe_of(print), "transform 0 must be a shardio image transform, got"),
        (lambda: RandomErasing(value="random"), "value must be a number, or one for each channel, got 'random'"),  # type: ignore[arg-type]
        (lambda: RandomApply([RandomResizedCrop(8)]), "RandomApply, transform 0 must be one of"),  # type: ignore[list-item]
        (lambda: RandomApply(ColorJitter(0.5)), "RandomApply takes a list of transforms, got ColorJitter"),  # type: ignore[arg-type]
        (lambda: RandomChoice([]), "RandomChoice needs at least one transform"),
        (lambda: ColorJitter(brightness=-1), "brightness must be a number of at least 0"),
        (lambda: ColorJitter(hue=0.7), "hue must be"),
        (lambda: GaussianBlur(4), "kernel_size must be odd, got 4"),
        (lambda: RandomRotation((30, 10)), "degrees must be"),
        (lambda: RandomCrop(8, padding=-1), "padding must be"),
        (lambda: MixUp(0), "num_classes must be an integer of at least 1, got 0"),
        (lambda: CutMix(5, alpha=0), "alpha must be above 0, got 0"),
        (lambda: Normalize(0, 1, torch.float64), "dtype must be one of .*, got torch.float64"),  # type: ignore[arg-type]
        (lambda: ToFloat(np.int8), "dtype must be one of .*, got <class 'numpy.int8'>"),  # type: ignore[arg-type]
        (lambda: Normalize("a", 1), "mean must be a finite number, or one for each channel, got 'a'"),  # type: ignore[arg-type]
        (lambda: Normalize(1e39, 1), "mean must be a finite number"),  # float32 ends at 3.4e38
        (lambda: Normalize(0, 1e-50), "std must be above 0"),  # which is 0 as float32
        (lambda: t.FillMissing("median"), "value must be a number, or one for each channel, or 'mean', got 'median'"),  # type: ignore[arg-type]
        (lambda: t.FillMissing(math.nan), "value must be a finite number"),
        (lambda: t.FillMissing(mask=1), "mask must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: t.FillMissing(missing="nan"), "missing must be a number, or several, got 'nan'"),  # type: ignore[arg-type]
        (lambda: t.RandomSpatialCrop(0), "size must be integers of at least 1, got 0"),
        (lambda: t.RandomAxisFlip(axes=(1,)), "axes must be different integers below 0"),
        (lambda: t.RandomAxisFlip(axes=np.zeros((2, 1))), "axes must be different integers below 0"),  # type: ignore[arg-type]
        (lambda: t.RandomAxisFlip((-1, -2)), r"p must be a probability in \[0, 1\], got \(-1, -2\)"),  # type: ignore[arg-type]
        (lambda: t.RandomRotate90(axes=-1), "axes must be two"),  # type: ignore[arg-type]
        (lambda: t.RandomWindow(0), "n must be at least 1, got 0"),
        (lambda: t.RandomWindow(3, offset="yes"), "offset must be True or False, got 'yes'"),  # type: ignore[arg-type]
        (lambda: t.RandomRow("yes"), "offset must be True or False, got 'yes'"),  # type: ignore[arg-type]
        (lambda: t.PadTo(0), "length must be at least 1, got 0"),
        (lambda: t.PadTo(2.5), "length must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: t.PadTo(multiple_of=0), "multiple_of must be at least 1"),
        (lambda: t.PadTo(value="a"), "value must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: t.PadTo(side="top"), "side must be 'right' or 'left', got 'top'"),  # type: ignore[arg-type]
        (lambda: t.PadTo(cut="end"), "cut='end' needs a length to cut to"),
        (lambda: t.PadTo(4, cut="both"), "cut must be 'end', 'start' or None, got 'both'"),  # type: ignore[arg-type]
        (lambda: t.Ragged(nested="yes"), "nested must be True or False, got 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
