"""Boxes and points move as torchvision.transforms.v2 moves them (`golden_boxes.npz`), and as the pixels move."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _box_cases import CASES, DRAWS, INEXACT, inputs, parameters, uniform

from shardio.transforms import coordinates, detection
from shardio.transforms.coordinates import geometry, move_boxes, move_points
from shardio.transforms.geometry import rotation, warp
from shardio.transforms.steps import Crop, Flip, Scale, Step

GOLDEN = np.load(Path(__file__).with_name("golden_boxes.npz"))


def steps_of(case: str) -> list[Step]:
    """The steps of a case."""
    sizes, steps = inputs()["sizes"], list[Step]()
    for numbers in parameters(case):
        match numbers["kind"]:
            case "crop" | "padded crop" | "pad":
                steps.append(Crop(numbers["box"].astype(np.int32)))
            case "resize":
                steps.append(Scale(numbers["size"].astype(np.int32), "bilinear", True))
            case "flip" | "vertical flip":
                steps.append(Flip(numbers["mask"], numbers["kind"] == "vertical flip"))
            case "rotate":
                steps.append(rotation(sizes, numbers["angle"], bilinear=True))
            case "affine":
                steps.append(affine(sizes, numbers))
        sizes = coordinates.sizes_after(steps[-1], sizes)
    return steps


def affine(sizes: Any, numbers: dict[str, Any]) -> Step:
    """The warp of v2's affine map: rotated, scaled and sheared about the center, then shifted."""
    angle, (x, y), scale = np.radians(numbers["angle"]), np.radians(numbers["shear"]).T, numbers["scale"]
    cos, sin, tan = np.cos(angle - y) / np.cos(y), np.sin(angle - y) / np.cos(y), np.tan(x)
    forward = np.stack((cos, -cos * tan - np.sin(angle), sin, -sin * tan + np.cos(angle)), axis=1) * scale[:, None]
    linear = np.linalg.inv(forward.reshape(-1, 2, 2))
    return warp(linear, sizes[:, ::-1] / 2, -np.einsum("bij,bj->bi", linear, numbers["shift"]), bilinear=True)


def check(case: str, name: str, moved: Any) -> None:
    """Compare with what torchvision made."""
    golden = GOLDEN[f"{case}/{name}"]
    if case in INEXACT:
        np.testing.assert_allclose(moved[: len(golden)], golden, rtol=0, atol=1e-3)
    else:
        moved = moved + np.float32(0)  # 0 of -0
        np.testing.assert_array_equal(moved[: len(golden)], golden)
        assert hashlib.sha256(moved.tobytes()).digest() == GOLDEN[f"{case}/{name}/sha256"].tobytes()


@pytest.mark.parametrize("case", CASES)
def test_torchvision_moves_them_alike(case: str) -> None:
    given, steps = inputs(), steps_of(case)
    check(case, "boxes", move_boxes(given["boxes"], given["owners"], given["sizes"], steps))
    check(case, "points", move_points(given["points"], given["owners"], given["sizes"], steps))


@pytest.mark.parametrize("case", CASES)
def test_boxes_are_where_the_geometry_says(case: str) -> None:
    """Without clamping, the matrix of all steps maps a box to within a thousandth of a pixel of where it is moved."""
    given, steps = inputs(), steps_of(case)
    matrices = geometry(given["sizes"], steps)[0][given["owners"]]
    ends = given["boxes"].astype(np.float64)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
    mapped = np.einsum("nij,nkj->nki", matrices[:, :2, :2], ends) + matrices[:, None, :2, 2]
    moved = move_boxes(given["boxes"], given["owners"], given["sizes"], steps, clamp=False)
    expected = np.concatenate((mapped.min(axis=1), mapped.max(axis=1)), axis=1)
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("vertical", [False, True])
def test_two_flips_are_none(vertical: bool) -> None:
    """A box that is flipped twice is within a thousandth of a pixel of where it was."""
    given = inputs()
    flip = Flip(np.ones(len(given["sizes"]), np.bool_), vertical)
    twice = move_boxes(given["boxes"], given["owners"], given["sizes"], [flip, flip])
    np.testing.assert_allclose(twice, given["boxes"], rtol=0, atol=1e-3)
    np.testing.assert_array_equal(
        geometry(given["sizes"], [flip, flip])[0], np.broadcast_to(np.eye(3), (len(given["sizes"]), 3, 3))
    )


class Draws:
    """Stands in for a RandomGenerator: gives the numbers that torchvision got."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def uniform(self, count: int) -> Any:
        return self.numbers[:, :count]


DRAWN = {
    "RandomIoUCrop": detection.RandomIoUCrop(),
    "RandomZoomOut": detection.RandomZoomOut(p=1),
    "ScaleJitter": detection.ScaleJitter((640, 480), (0.5, 2.0)),
    "RandomShortestSize": detection.RandomShortestSize([480, 512, 544], max_size=700),
}


@pytest.mark.parametrize("name", DRAWN)
def test_torchvision_draws_alike(name: str) -> None:
    """With the same random numbers, v2's transforms make the same sizes and boxes, and Sanitize keeps the same."""
    given, numbers = inputs(), uniform(DRAWS)
    more = (given["boxes"], given["owners"]) if name == "RandomIoUCrop" else ()
    steps = DRAWN[name].steps(given["sizes"], Draws(numbers), *more)
    _, sizes = geometry(given["sizes"], steps)
    np.testing.assert_array_equal(sizes, GOLDEN[f"{name}/sizes"])
    boxes = move_boxes(given["boxes"], given["owners"], given["sizes"], steps)
    check(name, "boxes", boxes)
    kept = detection.SanitizeBoundingBoxes(min_size=8, min_area=100).keeps(boxes, boxes, sizes[given["owners"]])
    np.testing.assert_array_equal(np.flatnonzero(kept), GOLDEN[f"{name}/kept"])
