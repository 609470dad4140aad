"""Transforms and their random choices, as data: an engine only carries out what stands here.

Names and meaning follow torchvision.transforms.v2. Each transform turns the images' sizes and a source of random
numbers into steps (crop, resize, flip), arrays with a row per sample. The numbers come from (seed, epoch, sample index,
place of the transform in the list) by a counter-based generator, so every engine and every number of threads chooses
the same crops. Sources: He et al. 2015 / Szegedy et al. 2014 for RandomResizedCrop as torchvision defines it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .permutation import derive, mix
from .types import Indices

Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
Sizes: TypeAlias = NDArray[np.int32]
"""Heights and widths in pixels, int32 [B, 2]."""


@dataclass(frozen=True, slots=True)
class Crop:
    """Cut a box: int32 [B, 4] of top, left, height, width in pixels. What lies outside of the image is black."""

    boxes: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Scale:
    """Resize to heights and widths int32 [B, 2]."""

    sizes: Sizes
    interpolation: Interpolation
    antialias: bool


@dataclass(frozen=True, slots=True)
class Flip:
    """Mirror left to right where bool [B] is true."""

    mask: NDArray[np.bool_]


Step: TypeAlias = Crop | Scale | Flip


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of some samples in some epoch, for one place in the list of transforms."""

    seed: int
    epoch: int
    place: int
    indices: Indices

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` numbers in [0, 1) per sample, float64 [B, count]."""
        key = np.uint64(derive(self.seed, self.epoch, self.place, 0xA06))
        sample = mix(self.indices.astype(np.uint64) + key)
        counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (mix(sample[:, None] + counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Geometry(Protocol):
    """A transform that moves pixels."""

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """The steps for images of these sizes."""

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """The (height, width) of what comes out, given what goes in; None where samples differ."""


def _pair(value: int | Sequence[int], name: str) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(not isinstance(v, int) or v < 1 for v in pair):
        raise ConfigError(f"{name} must be one or two whole numbers of at least 1, got {value!r}")
    return pair


def _range(value: tuple[float, float], name: str) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1]:
        raise ConfigError(f"{name} must be (low, high) with 0 < low <= high, got {value!r}")


def _interpolation(value: str) -> None:
    if value not in ("nearest", "bilinear", "bicubic"):
        raise ConfigError(f"interpolation must be 'nearest', 'bilinear' or 'bicubic', got {value!r}")


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
        object.__setattr__(self, "size", _pair(self.size, "size"))
        _range(self.scale, "scale")
        _range(self.ratio, "ratio")
        _interpolation(self.interpolation)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """A crop and a resize."""
        boxes = random_boxes(sizes, draws, self.scale, self.ratio)
        return Crop(boxes), Scale(np.full_like(sizes, self.size), self.interpolation, self.antialias)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Always `size`."""
        return self.size  # type: ignore[return-value]  # a pair since __post_init__


ATTEMPTS = 10


def random_boxes(
    sizes: Sizes, draws: Draws, scale: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.int32]:
    """Boxes of random area and ratio, int32 [B, 4]: the first of ten tries that fits, else the largest central one."""
    height, width = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
    random = draws.uniform(2 * ATTEMPTS + 2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * random[:, :ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = np.exp(low + (high - low) * random[:, ATTEMPTS : 2 * ATTEMPTS])
    wide, tall = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
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
        object.__setattr__(self, "size", _pair(self.size, "size"))

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
        pair = _pair(self.size, "size")
        object.__setattr__(self, "size", self.size if isinstance(self.size, int) else pair)
        _interpolation(self.interpolation)

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
        if not 0 <= self.p <= 1:
            raise ConfigError(f"p must be in [0, 1], got {self.p!r}")

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Step, ...]:
        """A flip."""
        return (Flip(draws.uniform(1)[:, 0] < self.p),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """The same as came in."""
        return size


@dataclass(frozen=True, slots=True)
class ToFloat:
    """uint8 [B, H, W, C] to float32 [B, C, H, W], divided by 255."""


@dataclass(frozen=True, slots=True)
class Normalize:
    """`(x / 255 - mean) / std` by channel, uint8 [B, H, W, C] to float32 [B, C, H, W].

    Args:
        mean: one number per channel, or one for all, on the scale 0 to 1.
        std: likewise, above 0.
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            object.__setattr__(
                self, name, (float(value),) if isinstance(value, (int, float)) else tuple(map(float, value))
            )
        if not self.std or any(not s > 0 for s in self.std):  # type: ignore[union-attr]
            raise ConfigError(f"std must be above 0, got {self.std!r}")


Transform: TypeAlias = RandomResizedCrop | CenterCrop | Resize | RandomHorizontalFlip | ToFloat | Normalize
