"""Axes of volumes in the space that their headers state: which way they run, whether two volumes share a grid."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.source import load_optional

from ._opened_array import OpenedArray

NEAR = 1e-3  # of a voxel: how far origins, or neighbours along an axis, of two grids may differ, which count as one
_FLAT = 1e-6  # of a cube: what axes span at least that have a direction each


def space_of(affine: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Return the affine of an array of this shape if it distinguishes its three axes; else None."""
    x, y, z, _ = affine.T[:, :3].tolist()  # in Python, as every file that is read comes here
    cross = (y[1] * z[2] - y[2] * z[1], y[2] * z[0] - y[0] * z[2], y[0] * z[1] - y[1] * z[0])
    volume = abs(x[0] * cross[0] + x[1] * cross[1] + x[2] * cross[2])
    usable = len(shape) >= 3 and volume > _FLAT * math.hypot(*x) * math.hypot(*y) * math.hypot(*z)
    return affine if usable else None


def axis_codes(opened: OpenedArray) -> str:
    """Return where the axes of a volume run to, as nibabel names it: RAS is right, anterior, superior."""
    return "".join(_nibabel().aff2axcodes(opened.space))


def canonical(opened: OpenedArray) -> OpenedArray:
    """Return a volume with its axes in the order and direction nearest to RAS, as nibabel's `as_closest_canonical`.

    Arrays without a space stay as they are.
    """
    if opened.space is None:
        return opened
    orientations = _nibabel().orientations
    turn = orientations.io_orientation(opened.space)
    change = orientations.inv_ornt_aff(turn, opened.shape[:3])
    shape = (*(opened.shape[axis] for axis in np.argsort(turn[:, 0])), *opened.shape[3:])
    affine = None if opened.affine is None else opened.affine @ change
    found = replace(opened, shape=shape, affine=affine, space=opened.space @ change)
    return replace(found, read=lambda: orientations.apply_orientation(opened.read(), turn))


def on_one_grid(one: OpenedArray, other: OpenedArray) -> bool:
    """Return whether two volumes have the same axes, shape and space."""
    a, b = one.space, other.space
    return a is not None and b is not None and one.shape[:3] == other.shape[:3] and bool((a == b).all())


def distance(one: OpenedArray, other: OpenedArray) -> float:
    """Return by how many voxels the origins of two volumes differ, or the voxels themselves, along RAS."""
    a, b = canonical(one).space, canonical(other).space
    return 0.0 if a is None or b is None else float(np.abs(np.linalg.solve(a, b) - np.eye(4)).max())


def _nibabel() -> Any:
    return load_optional("nibabel", purpose="comparing the axes of volumes", extra="imaging")
