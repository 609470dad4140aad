"""Axes of volumes in the space that their headers state: which way they run, whether two volumes lie on one grid."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.source import load_optional

from ._opened_array import OpenedArray

NEAR = 1e-3
"""The difference in voxels, of origins and per voxel along an axis, up to which two grids count as one."""


def space_of(affine: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Return the affine of an array of this shape if it has three axes, which the affine tells apart; else None."""
    usable = len(shape) >= 3 and np.isfinite(affine).all() and np.linalg.matrix_rank(affine[:3, :3]) == 3
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
    """Whether two volumes have the same axes, shape and space."""
    a, b = one.space, other.space
    return one.shape[:3] == other.shape[:3] and a is not None and b is not None and np.array_equal(a, b)


def distance(one: OpenedArray, other: OpenedArray) -> float:
    """Return by how many voxels the origins of two volumes differ, or the voxels themselves, along RAS."""
    a, b = canonical(one).space, canonical(other).space
    return 0.0 if a is None or b is None else float(np.abs(np.linalg.solve(a, b) - np.eye(4)).max())


def _nibabel() -> Any:
    return load_optional("nibabel", purpose="comparing the axes of volumes", extra="imaging")
