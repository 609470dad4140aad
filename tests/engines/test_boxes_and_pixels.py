"""Boxes move as pixels do: a filled rectangle lies where its box does, whatever steps move both, on every engine."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from _masks import grey_png
from numpy.typing import NDArray

from shardio.engines.cpu import CpuEngine
from shardio.engines.dali import DaliEngine
from shardio.engines.masks import MaskEngine
from shardio.engines.nvimgcodec import NvImageCodecEngine
from shardio.engines.orientation import Orientations, upright_sizes
from shardio.loader.batch.instances import upright_steps
from shardio.transforms.coordinates import Boxes, PlaceStep, move_boxes, sizes_after
from shardio.transforms.recipe import Recipe
from shardio.transforms.steps import Crop, Flip, Interpolation, Scale, Sizes, Step

SIZE, IMAGES = (64, 56), 250
Carry = Callable[["Moved"], NDArray[Any]]


@dataclass(frozen=True)
class Moved:
    """Images of a filled rectangle each, and a stack of steps.

    Attributes:
        files: the images as PNGs, 255 in the rectangle and 0 elsewhere.
        sizes: their stored heights and widths, int32 [n, 2].
        boxes: the rectangles, float32 [n, 4].
        orientations: the images' EXIF orientations.
        steps: the steps of the upright images; the last gives all of them one size.
    """

    files: list[bytes]
    sizes: Sizes
    boxes: Boxes
    orientations: Orientations
    steps: tuple[Step, ...]

    @property
    def all_steps(self) -> tuple[PlaceStep, ...]:
        return *upright_steps(self.orientations), *self.steps


@cache
def drawn(seed: int, interpolation: Interpolation, *, turned: bool) -> Moved:
    """Images and a stack of up to four steps and a last one: crops, canvases, resizes and flips of either kind."""
    random = np.random.default_rng(seed)
    sizes = random.integers(16, 97, (IMAGES, 2)).astype(np.int32)
    first = (random.uniform(0, 0.7, (IMAGES, 2)) * sizes).astype(np.int32)
    last = np.minimum(sizes, first + 2 + (random.uniform(0, 1, (IMAGES, 2)) * (sizes - first)).astype(np.int32))
    files = []
    for (height, width), (top, left), (bottom, right) in zip(sizes, first, last, strict=True):
        image = np.zeros((height, width), np.uint8)
        image[top:bottom, left:right] = 255
        files.append(grey_png(image, compress_level=1))
    orientations = random.integers(1, 9 if turned else 2, IMAGES).astype(np.uint8)
    steps, current = list[Step](), upright_sizes(sizes, orientations)
    for kind in [*random.permutation(["crop", "canvas", "resize", "flip", "vertical flip"])[: seed % 5], "last"]:
        shares = random.uniform(0, 1, (IMAGES, 4))
        match str(kind):
            case "crop":
                kept = np.maximum(1, current * (0.4 + 0.6 * shares[:, :2]))
                steps.append(Crop(np.concatenate(((current - kept) * shares[:, 2:], kept), axis=1).astype(np.int32)))
            case "canvas":
                canvas = (current * (1 + shares[:, :1])).astype(np.int32)
                corners = ((canvas - current) * shares[:, 2:]).astype(np.int32)
                steps.append(Crop(np.concatenate((-corners, canvas), axis=1)))
            case "resize":
                steps.append(Scale((current * (0.5 + 1.5 * shares[:, :2])).astype(np.int32), interpolation, True))
            case "last" if seed % 2:
                steps.append(Scale(np.full((IMAGES, 2), SIZE, np.int32), interpolation, True))
            case "last":
                corners = ((current - SIZE) * shares[:, :2]).astype(np.int32)
                steps.append(Crop(np.concatenate((corners, np.full((IMAGES, 2), SIZE)), axis=1).astype(np.int32)))
            case _:
                steps.append(Flip(shares[:, 0] < 0.5, kind == "vertical flip"))
        current = sizes_after(steps[-1], current)
    boxes = np.concatenate((first[:, ::-1], last[:, ::-1]), axis=1).astype(np.float32)
    return Moved(files, sizes, boxes, orientations, tuple(steps))


def by_masks(moved: Moved) -> NDArray[Any]:
    """Make the images as masks."""
    engine = MaskEngine(Recipe.of([], channels=1, size=SIZE, mask=True))
    out = np.empty((IMAGES, *SIZE), np.int64)
    engine(moved.files, upright_sizes(moved.sizes, moved.orientations), moved.steps, out, moved.orientations)
    return out


def by_cpu(moved: Moved) -> NDArray[Any]:
    """Make the images with the CPU engine."""
    out = np.empty((IMAGES, *SIZE, 1), np.uint8)
    engine = CpuEngine(Recipe.of([], channels=1, size=SIZE), channels=1)
    engine(moved.files, upright_sizes(moved.sizes, moved.orientations), moved.steps, out, moved.orientations)
    return out[..., 0]


def by_dali(moved: Moved) -> NDArray[Any]:
    """Make the images with DALI's CPU operators."""
    recipe = Recipe.of([], channels=1, size=SIZE)
    return whole(DaliEngine(recipe, channels=1, batch_size=IMAGES, device=torch.device("cpu"), threads=1), moved)


def by_torch(moved: Moved) -> NDArray[Any]:
    """Make the images with torch, as nvImageCodec's engine does what it has decoded."""
    recipe = Recipe.of([], channels=1, size=SIZE)
    return whole(NvImageCodecEngine(recipe, channels=1, device=torch.device("cpu"), threads=1), moved)


def whole(engine: Any, moved: Moved) -> NDArray[Any]:
    engine.begin(moved.files, moved.sizes, moved.steps)
    made, failed = engine.end()
    assert not len(failed)
    return np.asarray(made)[..., 0]


def extents(images: NDArray[Any]) -> NDArray[np.float64]:
    """The edges of what is at least half as bright as the rectangle, [n, 4]; NaN where nothing is."""
    bright, found = images >= 128, np.full((len(images), 4), np.nan)
    there = bright.any(axis=(1, 2))
    for axis in (0, 1):  # x, y
        lines = bright[there].any(axis=1 + axis)
        found[there, axis] = lines.argmax(axis=1)
        found[there, 2 + axis] = lines.shape[1] - lines[:, ::-1].argmax(axis=1)
    return found


def tolerance(moved: Moved) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How far from its box a rectangle may be, [n, 4] in delivered pixels: half a pixel of each resize.

    Also which rectangles count, bool [n]: those whose sides have at least two pixels after every step.
    """
    allowed, counted = np.zeros((IMAGES, 2)), np.ones(IMAGES, np.bool_)
    boxes, sizes = moved.boxes, moved.sizes
    for step in moved.all_steps:
        boxes = move_boxes(boxes, np.arange(IMAGES), sizes, [step])
        if isinstance(step, Scale):
            allowed = allowed * (step.sizes / sizes)[:, ::-1] + 0.5
        sizes = sizes_after(step, sizes)
        counted &= (boxes[:, 2:] - boxes[:, :2] >= 2).all(axis=1)
    return np.tile(allowed, 2), counted


@pytest.mark.long
@pytest.mark.parametrize(
    ("carry", "interpolation", "seeds"),
    [
        (by_masks, "nearest", range(46)),
        (by_cpu, "bilinear", range(15)),
        (by_dali, "nearest", range(15)),
        (by_dali, "bilinear", range(15)),
        (by_torch, "nearest", range(2, 5)),
        (by_torch, "bilinear", range(2, 5)),
    ],
)
def test_a_rectangle_lies_where_its_box_does(carry: Carry, interpolation: Interpolation, seeds: range) -> None:
    """Within half a pixel of each resize, and to the pixel without one; over 10,000 rectangles drawn as masks."""
    seen = exact = 0
    for seed in seeds:
        moved = drawn(seed, interpolation, turned=carry in (by_masks, by_cpu))
        allowed, counted = tolerance(moved)
        exact += int(counted.sum()) if not allowed.any() else 0
        if interpolation == "bilinear":  # edges less than a filter apart blur into each other
            allowed[allowed > 0] += 0.1
        boxes = move_boxes(moved.boxes, np.arange(IMAGES), moved.sizes, moved.all_steps)
        apart = np.abs(extents(carry(moved)) - boxes)[counted]
        assert (apart <= allowed[counted] + 1e-3).all()
        seen += len(apart)
    assert seen >= 200 * len(seeds)
    assert exact >= 10 * len(seeds)
    assert seen >= 10_000 or carry is not by_masks
