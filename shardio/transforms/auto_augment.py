"""TrivialAugmentWide and RandAugment, as in torchvision.transforms.v2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .color import blend
from .geometry import rotation, warp
from .random_generator import RandomGenerator
from .steps import (
    BLACK,
    MEAN_GREY,
    OWN_GREY,
    AutoContrast,
    Equalize,
    Posterize,
    Sharpen,
    SizePreservingStep,
    Sizes,
    Solarize,
    Warp,
    restrict,
)
from .validation import check_interpolation

_CHOICES = 14  # thirteen operations, and none


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide:
    """Apply one of fourteen operations with random strength to each image, in torchvision's wide ranges.

    The operations are identity, shear and translation along x and y, rotation, brightness, saturation, contrast,
    sharpness, posterize, solarize, auto-contrast and equalize.

    Source: Müller and Hutter 2021, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation".

    Args:
        interpolation: of shears, translations and rotations: `"nearest"` or `"bilinear"`.

    Raises:
        ConfigError: if the interpolation is another one.
    """

    interpolation: str = "nearest"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation, ("nearest", "bilinear"))

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        """Return a step for each operation but identity, restricted to the images that drew it."""
        random = generator.uniform(3)
        strength = np.floor(random[:, 1] * 31) / 30
        signed = np.where(random[:, 2] < 0.5, strength, -strength)
        translation = np.full(sizes.shape, 32.0)
        steps = operations(_WIDE, translation, sizes, strength, signed, bilinear=self.interpolation == "bilinear")
        return _chosen(steps, random[:, 0])


@dataclass(frozen=True, slots=True)
class RandAugment:
    """Apply some of fourteen operations with one strength to each image, in torchvision's ranges.

    The operations are those of `TrivialAugmentWide`. Each is chosen anew, and may be chosen twice.

    Source: Cubuk et al. 2020, "RandAugment: Practical Automated Data Augmentation with a Reduced Search Space".

    Args:
        num_ops: how many operations to apply, one after the other.
        magnitude: their strength, from 0 to `num_magnitude_bins - 1`.
        num_magnitude_bins: the number of strengths.
        interpolation: of shears, translations and rotations: `"nearest"` or `"bilinear"`.

    Raises:
        ConfigError: if an argument is out of range.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation, ("nearest", "bilinear"))
        if self.num_ops < 0:
            raise ConfigError(f"num_ops must be at least 0, got {self.num_ops}")
        if self.num_magnitude_bins < 2:
            raise ConfigError(f"num_magnitude_bins must be at least 2, got {self.num_magnitude_bins}")
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ConfigError(f"magnitude must be from 0 to {self.num_magnitude_bins - 1}, got {self.magnitude}")

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        """Return steps for all operations, `num_ops` times, restricted to the images that drew each."""
        random = generator.uniform(2 * self.num_ops)
        strength = np.full(len(sizes), self.magnitude / (self.num_magnitude_bins - 1))
        translation = sizes.astype(np.float64) * 150 / 331
        steps: list[SizePreservingStep] = []
        for choice, sign in random.T.reshape(self.num_ops, 2, len(sizes)):
            signed = np.where(sign < 0.5, strength, -strength)
            bilinear = self.interpolation == "bilinear"
            steps += _chosen(operations(_USUAL, translation, sizes, strength, signed, bilinear=bilinear), choice)
        return tuple(steps)


def _chosen(steps: list[SizePreservingStep], random: NDArray[np.float64]) -> tuple[SizePreservingStep, ...]:
    """Restrict each step to the images whose random number chooses it."""
    chosen = np.floor(random * _CHOICES).astype(np.int64)
    return tuple(restrict(step, chosen == number) for number, step in enumerate(steps, 1))


@dataclass(frozen=True, slots=True)
class Ranges:
    """The operations of strength 1.

    Attributes:
        shear: the tangent of the angle.
        rotation: the angle in degrees.
        change: how far the factors of brightness, saturation, contrast and sharpness are from 1.
        dropped_bits: of each value, by posterize.
    """

    shear: float
    rotation: float
    change: float
    dropped_bits: int


_WIDE = Ranges(0.99, 135, 0.99, 6)
_USUAL = Ranges(0.3, 30, 0.9, 4)


def operations(
    ranges: Ranges,
    translation: NDArray[np.float64],
    sizes: Sizes,
    strength: NDArray[np.float64],
    signed: NDArray[np.float64],
    *,
    bilinear: bool,
) -> list[SizePreservingStep]:
    """Return the thirteen operations on all images. Their order decides which random number chooses which.

    Args:
        ranges: what strength 1 means.
        translation: the farthest translation along y and x in pixels, [B, 2].
        sizes: heights and widths in pixels, int32 [B, 2].
        strength: strengths in [0, 1], [B].
        signed: the same strengths, each with its sign, [B].
        bilinear: whether warps interpolate.
    """
    count = len(sizes)
    every = np.ones(count, np.bool_)
    factors = 1 + ranges.change * signed
    kept_bits = 255 << np.rint(ranges.dropped_bits * strength).astype(np.int64) & 255
    return [
        *(_shear(axis, ranges.shear * signed, bilinear) for axis in (0, 1)),
        *(_translate(axis, np.trunc(translation[:, 1 - axis] * signed), bilinear) for axis in (0, 1)),
        rotation(sizes, ranges.rotation * signed, bilinear=bilinear),
        *(blend(base, factors) for base in (BLACK, OWN_GREY, MEAN_GREY)),
        Sharpen(every, factors.astype(np.float32)),
        Posterize(every, kept_bits.astype(np.uint8)),
        Solarize(every, (255 * (1 - strength)).astype(np.float32)),
        AutoContrast(every),
        Equalize(every),
    ]


def _shear(axis: int, tangents: NDArray[np.float64], bilinear: bool) -> Warp:
    """Shear along x (0) or y (1), around the corner of the image."""
    linear = np.tile(np.eye(2), (len(tangents), 1, 1))
    linear[:, axis, 1 - axis] = tangents
    return warp(linear, 0, 0, bilinear=bilinear)


def _translate(axis: int, pixels: NDArray[np.float64], bilinear: bool) -> Warp:
    """Move along x (0) or y (1)."""
    shifts = np.zeros((len(pixels), 2))
    shifts[:, axis] = -pixels
    return warp(np.tile(np.eye(2), (len(pixels), 1, 1)), 0, shifts, bilinear=bilinear)
