"""Random images, boxes, points and parameters of geometric operations, for golden files and the tests that read them.

Needs NumPy alone: `make_golden_boxes.py` runs in an environment without shardio. RandomState's streams never change.
"""

from typing import Any

import numpy as np

IMAGES = 10_000
POINTS = 5
FLIP_PAIRS = [[1, 2], [3, 4]]

CASES: dict[str, list[str]] = {
    "crop": ["crop"],
    "pad and crop": ["padded crop"],
    "zoom out": ["pad"],
    "horizontal flip": ["flip"],
    "vertical flip": ["vertical flip"],
    "resize": ["resize"],
    "resized crop": ["crop", "resize"],
    "stack": ["flip", "pad", "crop", "resize", "vertical flip", "padded crop"],
    "rotate": ["rotate"],
    "affine": ["affine"],
    "stack with rotation": ["crop", "rotate", "flip", "resize"],
}
"""The operations of each case, in order."""
INEXACT = ("rotate", "affine", "stack with rotation")
"""The cases that sums in another order may change by up to a thousandth of a pixel."""


def inputs() -> dict[str, Any]:
    """Return `sizes` (height, width) int32 [B, 2], `owners` [N], `boxes` float32 [N, 4], `points` float32 [N, K, 2]."""
    random = np.random.RandomState(49)
    sizes = random.randint(8, 1200, (IMAGES, 2)).astype(np.int32)
    owners = np.repeat(np.arange(IMAGES), random.randint(0, 5, IMAGES))
    ends = sizes[owners][:, None, ::-1]
    # A tenth reaches over the edges, as boxes in the wild do.
    corners = np.sort(random.uniform(-0.1, 1.1, (len(owners), 2, 2)), axis=1).clip(
        *np.where(random.uniform(size=len(owners)) < 0.9, [[0.0], [1.0]], [[-1.0], [2.0]])[..., None, None]
    )
    points = random.uniform(0, 1, (len(owners), POINTS, 2)) * (ends - 1)
    boxes = (corners * ends).astype(np.float32).reshape(-1, 4)
    return {"sizes": sizes, "owners": owners, "boxes": boxes, "points": points.astype(np.float32)}


def parameters(case: str) -> list[dict[str, Any]]:
    """Return for each operation of a case its `kind`, and its parameters with a row per image.

    These are `box` (top, left, height, width) int [B, 4] of a crop, which may lie outside of the image, as a pad does;
    `size` [B, 2] of a resize; `mask` bool [B] of a flip; `angle` [B] in degrees of a rotation; and also `shift`
    [B, 2], `scale` [B] and `shear` [B, 2] of an affine map.
    """
    random = np.random.RandomState(sum(map(ord, case)))
    sizes, found = inputs()["sizes"].astype(np.int64), []
    for kind in CASES[case]:
        drawn, numbers = random.uniform(size=(IMAGES, 4)), {"kind": kind}
        if kind == "crop":
            kept = np.maximum(1, (sizes * (0.3 + 0.7 * drawn[:, :2])).astype(np.int64))
            numbers["box"] = np.concatenate(((drawn[:, 2:] * (sizes - kept + 1)).astype(np.int64), kept), axis=1)
        elif kind == "padded crop":
            corner = ((drawn[:, :2] - 0.5) * sizes).astype(np.int64)
            numbers["box"] = np.concatenate(
                (corner, np.maximum(1, (sizes * drawn[:, 2:] * 1.5).astype(np.int64))), axis=1
            )
        elif kind == "pad":
            canvas = (sizes * (1 + 3 * drawn[:, :1])).astype(np.int64)
            numbers["box"] = np.concatenate((-((canvas - sizes) * drawn[:, 2:]).astype(np.int64), canvas), axis=1)
        elif kind == "resize":
            numbers["size"] = np.maximum(1, (sizes * (0.1 + 1.9 * drawn[:, :2])).astype(np.int64))
        elif kind in ("flip", "vertical flip"):
            numbers["mask"] = drawn[:, 0] < 0.7
        else:
            numbers["angle"] = 360 * drawn[:, 0] - 180
        if kind == "affine":
            more = random.uniform(-1, 1, (IMAGES, 5))
            numbers |= {"shift": np.rint(more[:, :2] * sizes[:, ::-1] / 10), "scale": 1 + more[:, 2] / 2}
            numbers |= {"shear": more[:, 3:] * 20}
        sizes = numbers.get("size", numbers["box"][:, 2:] if "box" in numbers else sizes)
        found.append(numbers)
    return found


OPTIONS, TRIALS = 5, 40
DRAWS = OPTIONS * (1 + 4 * TRIALS)


def uniform(count: int) -> Any:
    """Return numbers in [0, 1) for the draws of each image, float64 [B, count]."""
    return np.random.RandomState(7).uniform(size=(IMAGES, count))
