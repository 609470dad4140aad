"""Transforms that move pixels: crops, resizes, mirrors, rotations. Names and meaning follow torchvision.transforms.v2.

Sources: He et al. 2015 / Szegedy et al. 2014 for RandomResizedCrop as torchvision defines it.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .checks import interpolation_of, pair_of, probability_of, range_of
from .draws import Draws
from .steps import Crop, Flip, InPlace, Interpolation, Scale, Sizes, Step, Warp


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A crop of random area and aspect ratio, resized to `size`, as torchvision's.

    Args:
        size: height and width of the result in pixels; one number for a square.
        scale: the crop's share of the image's area, drawn uniformly.
        ratio: the crop's width over height, drawn log-uniformly.
        interpolation: `"nearest"`, `"bilinear"` or `"bicubic"`.
        antialias: filter as wide as the step between source pixels when shrinking, as torchvision does by default. Off
            here, because it doubles to triples the cost of resizing; OpenCV, tf.data and most fast loaders do without.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair_of(self.size, "size"))
        range_of(self.scale, "scale")
        range_of(self.ratio, "ratio")
        interpolation_of(self.interpolation)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """A crop and a resize."""
        boxes = random_boxes(sizes, draws, self.scale, self.ratio)
        return Crop(boxes, inside=True), Scale(np.full_like(sizes, self.size), self.interpolation, self.antialias)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Always `size`."""
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


ATTEMPTS = 10


def random_sides(
    pixels: NDArray[np.float64], random: NDArray[np.float64], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sides of ten boxes per image, each float64 [B, 10] in whole pixels: shares `scale` of `pixels` [B, 1], the first
    side over the second in `ratio`. Takes the first twenty of `random` [B, ...]."""
    area = pixels * (scale[0] + (scale[1] - scale[0]) * random[:, :ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = np.exp(low + (high - low) * random[:, ATTEMPTS : 2 * ATTEMPTS])
    return np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))


def random_boxes(
    sizes: Sizes, draws: Draws, scale: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.int32]:
    """Boxes of random area and ratio, int32 [B, 4]: the first of ten tries that fits, else the largest central one."""
    height, width = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
    random = draws.uniform(2 * ATTEMPTS + 2)
    wide, tall = random_sides(height * width, random, scale, ratio)
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
    h, w = tall[rows, first], wide[rows, first]
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
    """The middle `size` pixels, as torchvision's; an image that is smaller gets a black border.

    Args:
        size: height and width in pixels; one number for a square.
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair_of(self.size, "size"))

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """A crop."""
        size = np.full_like(sizes, self.size)
        space = sizes - size
        # torchvision pads a small image first, the smaller half before it; a crop rounds half to even.
        corner = np.where(space < 0, -(-space // 2), np.rint(space / 2)).astype(np.int32)
        return (Crop(np.concatenate((corner, size), axis=1)),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Always `size`."""
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize, as torchvision's: one number sets the shorter side and keeps the ratio, two set height and width.

    Args:
        size: in pixels.
        interpolation: `"nearest"`, `"bilinear"` or `"bicubic"`.
        antialias: see RandomResizedCrop.
    """

    size: int | tuple[int, int]
    interpolation: Interpolation = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        pair = pair_of(self.size, "size")
        object.__setattr__(self, "size", self.size if isinstance(self.size, int) else pair)
        interpolation_of(self.interpolation)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """A resize."""
        return (Scale(self._targets(sizes), self.interpolation, self.antialias),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """`size` if it is a pair, else what the shorter side makes of a known size."""
        if not isinstance(self.size, int):
            return self.size
        if size is None:
            return None
        height, width = self._targets(np.array([size], np.int32))[0].tolist()
        return height, width

    def _targets(self, sizes: Sizes) -> Sizes:
        if not isinstance(self.size, int):
            return np.full_like(sizes, self.size)
        long = (self.size * sizes.max(axis=1).astype(np.int64) // sizes.min(axis=1)).astype(np.int32)
        portrait = sizes[:, 0] > sizes[:, 1]
        short = np.full_like(long, self.size)
        return np.stack((np.where(portrait, long, short), np.where(portrait, short, long)), axis=1)


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirror an image left to right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        probability_of(self.p)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """A flip."""
        return (Flip(draws.uniform(1)[:, 0] < self.p),)


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A crop of `size` at a random place, as torchvision's; an image that is too small gets a black border.

    Args:
        size: height and width in pixels; one number for a square.
        padding: black pixels around the image before it is cropped.
    """

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", pair_of(self.size, "size"))
        if not isinstance(self.padding, int) or self.padding < 0:
            raise ConfigError(f"padding must be a whole number of at least 0, got {self.padding!r}")

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """A crop."""
        size = np.full_like(sizes, self.size)
        border = np.maximum(self.padding, -(-(size - sizes) // 2))
        places = np.floor(draws.uniform(2) * (sizes + 2 * border - size + 1)).astype(np.int32) - border
        return (Crop(np.concatenate((places, size), axis=1).astype(np.int32)),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Always `size`."""
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """Turn an image around its middle, counter-clockwise, as torchvision's. It keeps its size; corners are black.

    Args:
        degrees: (least, most) to turn by; one number stands for (-degrees, degrees).
        interpolation: `"nearest"` or `"bilinear"`.
    """

    degrees: float | tuple[float, float]
    interpolation: Literal["nearest", "bilinear"] = "nearest"

    def __post_init__(self) -> None:
        degrees = self.degrees
        pair = (-degrees, degrees) if isinstance(degrees, (int, float)) else tuple(degrees)
        if len(pair) != 2 or not -math.inf < pair[0] <= pair[1] < math.inf:
            raise ConfigError(f"degrees must be a number of at least 0 or (least, most), got {self.degrees!r}")
        object.__setattr__(self, "degrees", pair)
        if self.interpolation not in ("nearest", "bilinear"):
            raise ConfigError(f"interpolation must be 'nearest' or 'bilinear', got {self.interpolation!r}")

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """A warp."""
        low, high = self.degrees  # type: ignore[misc]  # a pair since __post_init__
        angles = low + (high - low) * draws.uniform(1)[:, 0]
        return (rotation(sizes, angles, bilinear=self.interpolation == "bilinear"),)


def rotation(sizes: Sizes, degrees: NDArray[np.float64], *, bilinear: bool) -> Warp:
    """Images of these sizes turned around their middles, counter-clockwise, float64 [B]."""
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return warp(
        np.stack((cos, -sin, sin, cos), axis=1).reshape(-1, 2, 2), (sizes[:, ::-1] - 1) / 2, 0, bilinear=bilinear
    )


def warp(
    linear: NDArray[np.float64],
    centres: NDArray[np.float64] | float,
    shifts: NDArray[np.float64] | float,
    *,
    bilinear: bool,
) -> Warp:
    """The pixel at `p` (x, y) of the result from `linear @ (p - centre) + centre + shift`; [B, 2, 2] and [B, 2]."""
    centres = np.broadcast_to(np.asarray(centres, np.float64), linear.shape[:2])
    offsets = centres + shifts - np.einsum("bij,bj->bi", linear, centres)
    matrices = np.concatenate((linear, offsets[:, :, None]), axis=2).astype(np.float32)
    return Warp(np.ones(len(linear), np.bool_), matrices, bilinear)
