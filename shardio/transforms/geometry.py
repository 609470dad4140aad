"""Transforms that move pixels: crops, resizes, flips and rotations, as in torchvision.transforms.v2.

RandomResizedCrop follows torchvision's definition of the crop of Szegedy et al. 2014, "Going Deeper with Convolutions".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .random_generator import RandomGenerator
from .steps import Crop, Flip, Interpolation, Scale, SizePreservingStep, Sizes, Step, Warp
from .validation import as_pair, as_positive_range, check_interpolation, check_probability, check_resize


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """Crop a box of random area and aspect ratio and resize it to `size`, as torchvision's RandomResizedCrop does.

    The first of ten random boxes that fits into the image is taken. If none fits, the box is the largest central one
    whose aspect ratio is within `ratio`.

    Args:
        size: height and width of the result in pixels; an integer gives a square.
        scale: (min, max) of the box's area as a fraction of the image's, drawn uniformly.
        ratio: (min, max) of the box's width over its height, drawn log-uniformly.
        interpolation: Pillow's filter: `"nearest"`, `"box"`, `"bilinear"`, `"hamming"`, `"bicubic"` or `"lanczos"`.
            None, the default, is `"bilinear"`, and `"nearest"` for masks, which take no other.
        antialias: whether a shrinking resize uses a filter as wide as the distance between source pixels, as
            torchvision and Pillow do. False interpolates between the nearest pixels, as OpenCV, tf.data and many fast
            loaders do; `"box"`, `"hamming"` and `"lanczos"` need True.

    Raises:
        ConfigError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_pair(self.size, "size"))
        as_positive_range(self.scale, "scale")
        as_positive_range(self.ratio, "ratio")
        check_resize(self.interpolation, self.antialias)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        boxes = random_boxes(sizes, generator, self.scale, self.ratio)
        targets = np.full_like(sizes, self.size)
        return Crop(boxes, inside=True), Scale(targets, self.interpolation or "bilinear", self.antialias)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


ATTEMPTS = 10
"""The number of random boxes that are tried per image."""


def random_sides(
    pixels: NDArray[np.float64], random: NDArray[np.float64], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the two sides of ten boxes per image in whole pixels, each float64 [B, 10].

    Args:
        pixels: the images' areas in pixels, [B, 1].
        random: uniform random numbers, [B, 20 or more]; only the first twenty columns are used.
        scale: (min, max) of the box's area as a fraction of the image's.
        ratio: (min, max) of the first side over the second.
    """
    area = pixels * (scale[0] + (scale[1] - scale[0]) * random[:, :ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = np.exp(low + (high - low) * random[:, ATTEMPTS : 2 * ATTEMPTS])
    return np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))


def random_boxes(
    sizes: Sizes, generator: RandomGenerator, scale: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.int32]:
    """Draw the boxes of RandomResizedCrop: top, left, height and width in pixels, int32 [B, 4].

    The first of ten attempts that fits is taken, else the largest central box whose aspect ratio is within `ratio`.
    """
    height, width = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
    random = generator.uniform(2 * ATTEMPTS + 2)
    widths, heights = random_sides(height * width, random, scale, ratio)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
    h, w = heights[rows, first], widths[rows, first]
    top, left = (np.floor(random[:, -2 + i] * (side + 1)) for i, side in enumerate((height[:, 0] - h, width[:, 0] - w)))

    none = ~fits.any(axis=1)
    if none.any():
        full_h, full_w = height[none, 0], width[none, 0]
        w[none] = np.where(full_w / full_h > ratio[1], np.rint(full_h * ratio[1]), full_w)
        h[none] = np.where(full_w / full_h < ratio[0], np.rint(full_w / ratio[0]), full_h)
        h[none], w[none] = np.maximum(h[none], 1), np.maximum(w[none], 1)
        top[none], left[none] = (full_h - h[none]) // 2, (full_w - w[none]) // 2
    return np.stack((top, left, h, w), axis=1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Crop the center of an image, as torchvision's CenterCrop does. A smaller image is padded with black.

    Args:
        size: height and width in pixels; an integer gives a square.

    Raises:
        ConfigError: if `size` is not one or two integers of at least 1.
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_pair(self.size, "size"))

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        size = np.full_like(sizes, self.size)
        space = sizes - size
        # torchvision pads a small image first, with the smaller half before it; a crop rounds half to even.
        corner = np.where(space < 0, -(-space // 2), np.rint(space / 2)).astype(np.int32)
        return (Crop(np.concatenate((corner, size), axis=1)),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize an image, as torchvision's Resize does.

    Args:
        size: (height, width) in pixels. An integer is the length of the shorter side; the aspect ratio stays.
        interpolation: Pillow's filter, as in RandomResizedCrop.
        antialias: as in RandomResizedCrop.

    Raises:
        ConfigError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    interpolation: Interpolation | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        pair = as_pair(self.size, "size")
        object.__setattr__(self, "size", self.size if isinstance(self.size, int) else pair)
        check_resize(self.interpolation, self.antialias)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        return (Scale(self.targets(sizes), self.interpolation or "bilinear", self.antialias),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the size of the results in pixels; None for an integer `size` if the images' size is unknown."""
        if not isinstance(self.size, int):
            return self.size
        if size is None:
            return None
        height, width = self.targets(np.array([size], np.int32))[0].tolist()
        return height, width

    def targets(self, sizes: Sizes) -> Sizes:
        """Return the sizes of the results of images of these heights and widths, int32 [n, 2]."""
        if not isinstance(self.size, int):
            return np.full_like(sizes, self.size)
        long = (self.size * sizes.max(axis=1).astype(np.int64) // sizes.min(axis=1)).astype(np.int32)
        portrait = sizes[:, 0] > sizes[:, 1]
        short = np.full_like(long, self.size)
        return np.stack((np.where(portrait, long, short), np.where(portrait, short, long)), axis=1)


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Flip an image left to right with probability `p`.

    Args:
        p: the probability, in [0, 1].

    Raises:
        ConfigError: if `p` is not in [0, 1].
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        return (Flip(generator.uniform(1)[:, 0] < self.p),)


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip:
    """Flip an image top to bottom with probability `p`.

    Args:
        p: the probability, in [0, 1].

    Raises:
        ConfigError: if `p` is not in [0, 1].
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        return (Flip(generator.uniform(1)[:, 0] < self.p, vertical=True),)


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Crop `size` at a random place, as torchvision's RandomCrop does.

    A smaller image gets a black border on both sides, just wide enough for the crop.

    Args:
        size: height and width in pixels; an integer gives a square.
        padding: the width in pixels of a black border that is added to each side before cropping.

    Raises:
        ConfigError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_pair(self.size, "size"))
        if not isinstance(self.padding, int) or self.padding < 0:
            raise ConfigError(f"padding must be an integer of at least 0, got {self.padding!r}")

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        size = np.full_like(sizes, self.size)
        border = np.maximum(self.padding, -(-(size - sizes) // 2))
        corners = np.floor(generator.uniform(2) * (sizes + 2 * border - size + 1)).astype(np.int32) - border
        return (Crop(np.concatenate((corners, size), axis=1).astype(np.int32)),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """Rotate an image around its center by a random angle, as torchvision's RandomRotation does.

    The image keeps its size; pixels that come from outside of it are black.

    Args:
        degrees: (min, max) of the angle in degrees, counter-clockwise; a number stands for (-degrees, degrees).
        interpolation: `"nearest"` or `"bilinear"`.

    Raises:
        ConfigError: if an argument is out of range.
    """

    degrees: float | tuple[float, float]
    interpolation: Literal["nearest", "bilinear"] = "nearest"

    def __post_init__(self) -> None:
        degrees = self.degrees
        pair = (-degrees, degrees) if isinstance(degrees, (int, float)) else tuple(degrees)
        if len(pair) != 2 or not -math.inf < pair[0] <= pair[1] < math.inf:
            raise ConfigError(f"degrees must be a number of at least 0 or (min, max), got {self.degrees!r}")
        object.__setattr__(self, "degrees", pair)
        check_interpolation(self.interpolation, ("nearest", "bilinear"))

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        low, high = self.degrees  # type: ignore[misc]  # a pair since __post_init__
        angles = low + (high - low) * generator.uniform(1)[:, 0]
        return (rotation(sizes, angles, bilinear=self.interpolation == "bilinear"),)


def rotation(sizes: Sizes, degrees: NDArray[np.float64], *, bilinear: bool) -> Warp:
    """Return the rotation of images of these sizes around their centers, counter-clockwise by `degrees` [B]."""
    angles = np.deg2rad(degrees % 360).tolist()
    cos, sin = (np.array([round(f(a), 15) for a in angles]) for f in (math.cos, math.sin))  # as Pillow rounds them
    return warp(np.stack((cos, -sin, sin, cos), axis=1).reshape(-1, 2, 2), sizes[:, ::-1] / 2, 0, bilinear=bilinear)


def warp(
    linear: NDArray[np.float64],
    centers: NDArray[np.float64] | float,
    shifts: NDArray[np.float64] | float,
    *,
    bilinear: bool,
) -> Warp:
    """Return the warp that takes the position `p` (x, y) of the result from `linear @ (p - center) + center + shift`.

    Args:
        linear: the linear maps, [B, 2, 2].
        centers: (x, y) of the fixed points, [B, 2].
        shifts: (x, y) in pixels, [B, 2].
        bilinear: interpolate between the four nearest pixels; otherwise take the nearest one.
    """
    centers = np.broadcast_to(np.asarray(centers, np.float64), linear.shape[:2])
    offsets = centers + shifts - np.einsum("bij,bj->bi", linear, centers)
    matrices = np.concatenate((linear, offsets[:, :, None]), axis=2)
    return Warp(np.ones(len(linear), np.bool_), matrices, bilinear)
