"""Draws of every public transform equal recorded ones: a seed keeps its crops, flips and colours in each release."""

from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

import shardio
from shardio import transforms as t
from shardio.loader.batch import other_draws
from shardio.transforms.array_recipe import ArrayRecipe
from shardio.transforms.clips import chosen
from shardio.transforms.random_generator import RandomKeys
from shardio.transforms.recipe import Recipe

KEYS = RandomKeys(3, 5, np.array([0, 1, 2, 3, 40, 500, 10**6, 10**12, 1 << 62, -7, *range(100, 190)], np.int64))
SIZES = np.stack([np.arange(100, 200), np.arange(400, 200, -2)], axis=1).astype(np.int32)
SHAPES = np.stack([np.full(100, 4), np.arange(20, 120), np.arange(220, 120, -1)], axis=1)

JITTER = t.ColorJitter(0.4, 0.3, 0.2, 0.1)
IMAGES = {
    "RandomResizedCrop": ([t.RandomResizedCrop(64)], "b6339883"),
    "RandomCrop": ([t.RandomCrop(80, padding=4)], "01e87c37"),
    "CenterCrop": ([t.CenterCrop(80)], "367b5afb"),
    "Resize": ([t.Resize(80)], "85dd848c"),
    "RandomHorizontalFlip": ([t.RandomHorizontalFlip()], "04da7ecf"),
    "RandomVerticalFlip": ([t.RandomVerticalFlip()], "696e0499"),
    "ScaleJitter": ([t.ScaleJitter((320, 480))], "ac33d94e"),
    "RandomShortestSize": ([t.RandomShortestSize([160, 192, 224], max_size=300)], "d93b15cc"),
    "RandomZoomOut": ([t.RandomZoomOut(fill=7)], "9200d4b8"),
    "RandomIoUCrop": ([t.RandomIoUCrop()], "3f6151ea"),
    "PadImages": ([t.PadImages(400, place="center")], "c024cca1"),
    "RandomRotation": ([t.RandomRotation(30)], "b0317d90"),
    "ColorJitter": ([JITTER], "3b07c4c8"),
    "RandomGrayscale": ([t.RandomGrayscale(0.3)], "9982437f"),
    "GaussianBlur": ([t.GaussianBlur(5)], "0f832e8b"),
    "RandomErasing": ([t.RandomErasing(0.6)], "b6742703"),
    "RandomApply": ([t.RandomApply([JITTER, t.GaussianBlur(3)], 0.6)], "aea9fd49"),
    "RandomChoice": ([t.RandomChoice([t.RandomHorizontalFlip(), JITTER, t.RandomErasing(1.0)])], "b928cbbb"),
    "RandAugment": ([t.RandAugment()], "1fde9bb8"),
    "TrivialAugmentWide": ([t.TrivialAugmentWide()], "e20a005d"),
    "in turn": (
        [t.RandomResizedCrop(64), t.RandomHorizontalFlip(), JITTER, t.ToFloat(), t.RandomErasing(0.5)],
        "9c10df86",
    ),
    "for boxes": (
        [t.RandomZoomOut(), t.RandomHorizontalFlip(), t.RandomIoUCrop(0.2), t.ScaleJitter(320), t.PadImages(1024)],
        "ff2c5b43",
    ),
}
ARRAYS = {
    "RandomSpatialCrop": ([t.RandomSpatialCrop(16)], "7ea3d300"),
    "CenterSpatialCrop": ([t.CenterSpatialCrop(16)], "cdfdfda2"),
    "RandomAxisFlip": ([t.RandomAxisFlip(axes=(-2, -1))], "64a6f514"),
    "RandomRotate90": ([t.RandomRotate90()], "c5c7cac9"),
    "RandomWindow": ([t.RandomWindow(3)], "3cf734d0"),
    "RandomRow": ([t.RandomRow()], "3d4bfab7"),
    "in turn": ([t.RandomSpatialCrop(16), t.RandomAxisFlip(), t.RandomRotate90()], "26b2f998"),
}
MIXERS = {
    "MixUp": (
        [t.MixUp(10, alpha=0.4)],
        [([3, 0, 2, 1], 0.901188, None), ([3, 0, 2, 1], 0.983903, None), ([3, 0, 2, 1], 0.994977, None)],
    ),
    "CutMix": (
        [t.CutMix(10)],
        [
            ([3, 0, 2, 1], 0.813802, (0, 18, 13, 22)),
            ([3, 0, 2, 1], 0.889323, (0, 31, 10, 17)),
            ([3, 0, 2, 1], 0.628906, (0, 9, 15, 38)),
        ],
    ),
    "either": (
        [t.MixUp(10), t.CutMix(10)],
        [
            ([3, 0, 2, 1], 0.813802, (0, 18, 13, 22)),
            ([3, 0, 2, 1], 0.565466, None),
            ([3, 0, 2, 1], 0.628906, (0, 9, 15, 38)),
        ],
    ),
}
CLIPS = {
    "RandomClip": (t.RandomClip(4, stride=5), "e08734ed"),
    "in seconds": (t.RandomClip(4, stride_seconds=0.25), "66a050d4"),
}
DRAW_NOTHING = {
    "CenterClip",
    "FillMissing",
    "FramesAt",
    "MultiHot",
    "Normalize",
    "PadTo",
    "Ragged",
    "SanitizeBoundingBoxes",
    "ToFloat",
    "ToInt64",
    "Tokenize",
    "UniformFrames",
}

# Two boxes on each image but the first: one that is a third of it, and a small one that moves from image to image.
OWNERS = np.repeat(np.arange(1, 100), 2)
SHARES = np.concatenate(
    (np.tile([0.1, 0.2, 0.6, 0.7], (99, 1)), np.linspace(0, 0.9, 99)[:, None] + [0, 0, 0.08, 0.1]), 1
)
BOXES = (SHARES.reshape(-1, 4) * SIZES[OWNERS][:, [1, 0, 1, 0]]).astype(np.float32)


def digest_of(decisions: Any) -> str:
    """A digest of steps or moves: their kinds and numbers; floats to five places, as platforms differ in the last."""
    found = xxhash.xxh32()
    for each in decisions:
        found.update(type(each).__name__.encode())
        for field in fields(each):
            value = getattr(each, field.name)
            if field.default is not MISSING and field.name != "inside" and np.array_equal(value, field.default):
                continue  # what steps didn't have when they were recorded
            values = np.asarray(value)
            if values.dtype.kind == "U":
                found.update(str(values).encode())
            else:
                rounded = np.round(values.astype(np.float64), 5) + 0.0  # no -0
                found.update(np.ascontiguousarray(rounded, "<f8").tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(("transforms", "recorded"), IMAGES.values(), ids=IMAGES)
def test_images(transforms: list[Any], recorded: str) -> None:
    """Crops, flips, colours and erased rectangles of 100 images, some of whose crops are drawn for boxes."""
    recipe = Recipe.of(transforms, channels=3, size=None)
    assert digest_of(recipe.steps(SIZES, KEYS, BOXES, OWNERS)) == recorded


@pytest.mark.parametrize(("transforms", "recorded"), ARRAYS.values(), ids=ARRAYS)
def test_arrays(transforms: list[Any], recorded: str) -> None:
    """Blocks, windows, flips and quarter turns of 100 arrays."""
    recipe = ArrayRecipe.of(transforms, None, np.dtype(np.float32))
    assert digest_of(recipe.moves(KEYS, SHAPES)) == recorded


@pytest.mark.parametrize(("mixers", "recorded"), MIXERS.values(), ids=MIXERS)
def test_mixing(mixers: list[Any], recorded: list[Any]) -> None:
    """Shares, boxes and partners of three batches, each determined by its first sample."""
    valid = np.array([True, True, False, True])
    found = [other_draws.mix_params(mixers, (32, 48), KEYS[first : first + 4], valid) for first in (0, 4, 12)]
    assert [(each.partners.tolist(), round(each.share, 6), each.box) for each in found] == recorded


@pytest.mark.parametrize(("clip", "recorded"), CLIPS.values(), ids=CLIPS)
def test_clips(clip: Any, recorded: str) -> None:
    """The frames, or times, of clips of videos of 1 to 100 frames or tenths of a second."""
    lengths = np.arange(1, 101) / (10 if clip.in_seconds else 1)
    found = np.round(chosen(clip, lengths, KEYS).astype("<f8"), 5)
    assert xxhash.xxh32(np.ascontiguousarray(found)).hexdigest() == recorded


def test_items_of_lists() -> None:
    """RandomItem chooses among five texts of each list."""
    texts = [*"abcde"]
    chosen = [t.RandomItem().choose(texts, draw) for draw in other_draws.chosen_items(KEYS)]
    assert "".join(chosen[:40]) == "daaedddecceebcdeaaeecccaaeeeadedccdedecd"


def test_functions() -> None:
    """The `rng` of a `map`, whose numbers are those of NumPy's default generator."""
    found = [other_draws.map_generator(KEYS[[row]]).integers(0, 1 << 20, 2).tolist() for row in (0, 4, 8, 9)]
    assert found == [[1003568, 1034628], [566260, 731449], [1047037, 541802], [747677, 499533]]


def test_parts_and_names() -> None:
    """Images of a list, and fields of several names, have draws of their own."""
    rows: NDArray[np.int64] = np.array([0, 0, 4, 4, 9])
    within = KEYS.within(rows, np.array([0, 1, 0, 1, 2]))
    assert within.samples.tolist() == [0, 6238072747940578789, 40, -5972462743635288576, 7727654491367580082]
    assert [KEYS.draws(number).seed for number in range(3)] == [3, 4168441387403944905, 5984071327032089079]


def test_every_transform_is_here() -> None:
    """A new transform is recorded, or draws nothing."""
    public = {
        name for name in shardio.__all__ if getattr(getattr(shardio, name), "__module__", "").startswith(t.__name__)
    }
    known = {*IMAGES, *ARRAYS, *MIXERS, *CLIPS, "RandomItem", *DRAW_NOTHING}
    assert public == known - {"in turn", "for boxes", "either", "in seconds"}
