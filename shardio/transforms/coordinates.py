"""Coordinates of boxes and points, moved by the steps of the image that they lie on.

Each step is carried out in float32 in the order of operations of torchvision.transforms.v2's kernels for BoundingBoxes
(XYXY, `clamping_mode="soft"`) and KeyPoints, and boxes are clamped where v2 clamps them. Points are at pixels, as v2's
are: a flip takes x to width - 1 - x, and the edge x of a box to width - x.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .steps import Crop, Flip, Mask, Scale, Sizes, Step, Warp

Boxes: TypeAlias = NDArray[np.float32]
"""Left, top, right and bottom edges of boxes in pixels, float32 [N, 4]."""
Points: TypeAlias = NDArray[np.float32]
"""(x, y) of K points per instance in pixels, and perhaps COCO's visibility, float32 [N, K, 2 or 3]."""
Owners: TypeAlias = NDArray[np.intp]
"""The row of the image that each box, or each instance's points, lies on, [N]."""
Matrices: TypeAlias = NDArray[np.float64]
"""Affine maps of (x, y, 1), edges at integers, float64 [B, 3, 3]."""


@dataclass(frozen=True, slots=True)
class Transpose:
    """Exchange rows and columns, as an EXIF orientation may: a step of coordinates alone.

    Attributes:
        mask: the images that are transposed, bool [B].
    """

    mask: Mask


PlaceStep: TypeAlias = Step | Transpose
"""A step that coordinates may follow; those that only change colours leave them where they are."""


def move_boxes(boxes: Boxes, owners: Owners, sizes: Sizes, steps: Sequence[PlaceStep], *, clamp: bool = True) -> Boxes:
    """Return boxes as they lie on the delivered images.

    Args:
        boxes: the boxes, float32 [N, 4].
        owners: the row of each box's image, [N].
        sizes: heights and widths of the images before the steps, int32 [B, 2].
        steps: the images' steps, with a row per image.
        clamp: whether boxes are clamped to their images by the steps that do so in v2. Without it, boxes whose centers
            a `Crop` cuts off stay, too.
    """
    corners: NDArray[np.float32] = boxes.reshape(-1, 2, 2).astype(np.float32)
    for step in steps:
        cut_off = _cut_off(corners, owners, step) if isinstance(step, Crop) and step.by_center and clamp else None
        if isinstance(step, Warp):
            rows = np.flatnonzero(step.mask[owners])
            four = corners[rows].reshape(-1, 4)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
            four = _moved(four, owners[rows], sizes, step, 0)
            corners[rows] = np.stack((four.min(axis=1), four.max(axis=1)), axis=1)
        else:
            corners = _moved(corners, owners, sizes, step, 0)
        if isinstance(step, Flip):
            rows, axis = np.flatnonzero(step.mask[owners]), int(step.vertical)
            corners[rows, :, axis] = corners[rows, ::-1, axis]
        sizes = sizes_after(step, sizes)
        if clamp and isinstance(step, Crop | Warp):
            rows = np.arange(len(corners)) if step.mask is None else np.flatnonzero(step.mask[owners])
            corners[rows] = corners[rows].clip(np.float32(0), sizes[owners[rows], None, ::-1].astype(np.float32))
        if cut_off is not None:
            corners[cut_off] = 0
    return corners.reshape(-1, 4)


def _cut_off(corners: NDArray[np.float32], owners: Owners, crop: Crop) -> Mask:
    """Return which boxes, on the images before a crop, have their centers outside of it, bool [N]."""
    low = crop.boxes[owners, 1::-1].astype(np.float32)
    outside = ~centers_inside(corners.reshape(-1, 4), low, low + crop.boxes[owners, :1:-1].astype(np.float32))
    return outside if crop.mask is None else outside & crop.mask[owners]


def centers_inside(boxes: Boxes, low: NDArray[np.float32], high: NDArray[np.float32]) -> Mask:
    """Return which boxes, [..., 4], have their centers between two corners (x, y), bool [...]."""
    centers = np.float32(0.5) * (boxes[..., :2] + boxes[..., 2:])
    inside: Mask = np.all((low < centers) & (centers < high), axis=-1)
    return inside


def move_points(
    points: Points,
    owners: Owners,
    sizes: Sizes,
    steps: Sequence[PlaceStep],
    flip_pairs: Sequence[Sequence[int]] = (),
) -> Points:
    """Return points as they lie on the delivered images.

    Points with visibility that come to lie outside of their image get visibility 0 and keep their place. Points without
    a label, (0, 0, 0), stay as they are. Points without visibility aren't clamped, as in v2.

    Args:
        points: the points, float32 [N, K, 2] or [N, K, 3].
        owners: the row of each instance's image, [N].
        sizes: heights and widths of the images before the steps, int32 [B, 2].
        steps: the images' steps, with a row per image.
        flip_pairs: the pairs of points that a flip exchanges.
    """
    points = points.astype(np.float32)
    unlabelled: Mask = np.all(points == 0, axis=2) & (points.shape[2] == 3)
    exchanged = np.arange(points.shape[1])
    for one, other in flip_pairs:
        exchanged[[one, other]] = other, one
    for step in steps:
        points[..., :2] = _moved(points[..., :2], owners, sizes, step, 1)
        if isinstance(step, Flip):
            rows = np.flatnonzero(step.mask[owners])
            points[rows], unlabelled[rows] = points[rows][:, exchanged], unlabelled[rows][:, exchanged]
        sizes = sizes_after(step, sizes)
        if points.shape[2] == 3 and isinstance(step, Crop | Warp):
            inside = (points[..., :2] >= 0) & (points[..., :2] < sizes[owners, None, ::-1])
            points[..., 2] *= inside.all(axis=2)
    points[unlabelled] = 0
    return points


def _moved(
    places: NDArray[np.float32], owners: Owners, sizes: Sizes, step: PlaceStep, last: int
) -> NDArray[np.float32]:
    """Return places (x, y), float32 [N, K, 2], after a step; a flip takes 0 to `last` before the end of the side."""
    moved: NDArray[np.float32] = places
    match step:
        case Crop():
            moved = places - step.boxes[owners, None, 1::-1].astype(np.float32)
        case Scale():
            moved = places * (step.sizes / sizes)[owners, None, ::-1].astype(np.float32)
        case Flip(mask, vertical):
            axis, rows, moved = int(vertical), np.flatnonzero(mask[owners]), places.copy()
            ends = (sizes[owners[rows], 1 - axis, None] - last).astype(np.float32)
            moved[rows, :, axis] = -(places[rows, :, axis] - ends)
        case Transpose(mask):
            moved = np.where(mask[owners, None, None], places[..., ::-1], places)
        case Warp(mask):
            maps = np.where(mask[:, None, None], inverses(step.matrices), np.eye(3))[owners, None].astype(np.float32)
            moved = places[..., :1] * maps[..., :2, 0] + places[..., 1:] * maps[..., :2, 1] + maps[..., :2, 2]
    return moved


def sizes_after(step: PlaceStep, sizes: Sizes) -> Sizes:
    """Return the heights and widths, int32 [B, 2], of images of these sizes after a step."""
    match step:
        case Crop():
            return step.boxes[:, 2:]
        case Scale():
            return step.sizes
        case Transpose(mask):
            return np.where(mask[:, None], sizes[:, ::-1], sizes)
    return sizes


def inverses(maps: NDArray[np.float64]) -> Matrices:
    """Return the inverses of affine maps, [B, 2, 3], as [B, 3, 3]."""
    last = np.broadcast_to(np.array([0.0, 0.0, 1.0]), (len(maps), 1, 3))
    return np.linalg.inv(np.concatenate((maps, last), axis=1))


def geometry(sizes: Sizes, steps: Sequence[PlaceStep]) -> tuple[Matrices, Sizes]:
    """Return the maps of images before the steps to the delivered ones, and these images' heights and widths."""
    maps = np.broadcast_to(np.eye(3), (len(sizes), 3, 3)).copy()
    for step in steps:
        own = np.broadcast_to(np.eye(3), maps.shape).copy()
        match step:
            case Crop():
                own[:, :2, 2] = -step.boxes[:, 1::-1]
            case Scale():
                own[:, [0, 1], [0, 1]] = (step.sizes / sizes)[:, ::-1]
            case Flip(mask, vertical):
                axis = int(vertical)
                own[mask, axis, axis], own[mask, axis, 2] = -1, sizes[mask, 1 - axis]
            case Transpose(mask):
                own[mask, :2, :2] = [[0, 1], [1, 0]]
            case Warp(mask):
                own[mask] = inverses(step.matrices[mask])
        maps, sizes = own @ maps, sizes_after(step, sizes)
    return maps, sizes
