"""Transforms that choose among others, named and meant as in torchvision.transforms.v2."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .checks import probability_of
from .colour import ColorJitter, GaussianBlur, RandomErasing, RandomGrayscale, blend
from .draws import Draws
from .geometry import RandomHorizontalFlip, RandomRotation, rotation, warp
from .steps import (
    AutoContrast,
    Equalize,
    InPlace,
    Mask,
    Posterize,
    Sharpen,
    Sizes,
    Solarize,
    only,
)

Simple: TypeAlias = RandomHorizontalFlip | RandomRotation | ColorJitter | RandomGrayscale | GaussianBlur | RandomErasing
"""A transform that keeps an image's size, and that others may hold."""


def _simple(transforms: Sequence[Simple], what: str) -> tuple[Simple, ...]:
    if not isinstance(transforms, Sequence):
        raise ConfigError(f"{what} takes a list of transforms, got {transforms!r}")
    for place, transform in enumerate(transforms):
        if not isinstance(transform, Simple):
            names = ", ".join(kind.__name__ for kind in Simple.__args__)
            raise ConfigError(f"{what}, transform {place} must be one of {names}, got {transform!r}")
    if not transforms:
        raise ConfigError(f"{what} needs at least one transform")
    return tuple(transforms)


@dataclass(frozen=True, slots=True)
class RandomApply:
    """Apply some transforms, all or none, with probability `p`. Of which kinds: see `Simple`."""

    transforms: Sequence[Simple]
    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _simple(self.transforms, "RandomApply"))
        probability_of(self.p)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """Those of its transforms, for some images."""
        mask: Mask = draws.uniform(1)[:, 0] < self.p
        return tuple(
            only(step, mask)
            for number, transform in enumerate(self.transforms)
            for step in transform.steps(sizes, draws.within(number))
        )


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """Apply one of some transforms to each image, all as likely. Of which kinds: see `Simple`."""

    transforms: Sequence[Simple]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _simple(self.transforms, "RandomChoice"))

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """Those of its transforms, each for some images."""
        chosen = np.floor(draws.uniform(1)[:, 0] * len(self.transforms))
        return tuple(
            only(step, chosen == number)
            for number, transform in enumerate(self.transforms)
            for step in transform.steps(sizes, draws.within(number))
        )


_STRENGTHS = 31


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide:
    """One of fourteen operations per image, of random strength. As torchvision's, in its wide range.

    None, shear and shift along x and y, rotation, brightness, saturation, contrast, sharpness, posterize, solarize,
    auto-contrast and equalize. Unlike torchvision's, sharpness treats borders like the rest, and equalize is OpenCV's.

    Source: Mueller and Hutter 2021, "TrivialAugment".

    Args:
        interpolation: of shears, shifts and rotations: `"nearest"` or `"bilinear"`.
    """

    interpolation: str = "nearest"

    def __post_init__(self) -> None:
        if self.interpolation not in ("nearest", "bilinear"):
            raise ConfigError(f"interpolation must be 'nearest' or 'bilinear', got {self.interpolation!r}")

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """A step for each kind of operation, for the images that got it."""
        random = draws.uniform(3)
        strength = np.floor(random[:, 1] * _STRENGTHS) / (_STRENGTHS - 1)
        signed = np.where(random[:, 2] < 0.5, strength, -strength)
        chosen = np.floor(random[:, 0] * (1 + len(OPERATIONS))).astype(np.int64)
        bilinear = self.interpolation == "bilinear"
        made = [operation(sizes, strength, signed, bilinear) for operation in OPERATIONS]
        return tuple(only(step, chosen == number) for number, step in enumerate(made, 1))


_Numbers: TypeAlias = NDArray[np.float64]
_Operation: TypeAlias = Callable[[Sizes, _Numbers, _Numbers, bool], InPlace]
_MOST_SHIFT = 32.0  # pixels


def _shear(axis: int) -> _Operation:
    def steps(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
        linear = np.tile(np.eye(2), (len(sizes), 1, 1))
        linear[:, axis, 1 - axis] = 0.99 * signed
        return warp(linear, -0.5, 0, bilinear=bilinear)  # around the corner of the first pixel

    return steps


def _shift(axis: int) -> _Operation:
    def steps(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
        shifts = np.zeros((len(sizes), 2))
        shifts[:, axis] = -np.trunc(_MOST_SHIFT * signed)
        return warp(np.tile(np.eye(2), (len(sizes), 1, 1)), 0, shifts, bilinear=bilinear)

    return steps


def _rotate(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
    return rotation(sizes, 135 * signed, bilinear=bilinear)


def _adjust(kind: str) -> _Operation:
    def steps(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
        return blend(kind, 1 + 0.99 * signed)

    return steps


def _sharpen(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
    return Sharpen(np.ones(len(sizes), np.bool_), (1 + 0.99 * signed).astype(np.float32))


def _posterize(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
    dropped = np.rint(6 * strength).astype(np.int64)  # bits: 8 to 2 are kept
    return Posterize(np.ones(len(sizes), np.bool_), (255 << dropped & 255).astype(np.uint8))


def _solarize(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
    return Solarize(np.ones(len(sizes), np.bool_), (255 * (1 - strength)).astype(np.float32))


def _autocontrast(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
    return AutoContrast(np.ones(len(sizes), np.bool_))


def _equalize(sizes: Sizes, strength: _Numbers, signed: _Numbers, bilinear: bool) -> InPlace:
    return Equalize(np.ones(len(sizes), np.bool_))


OPERATIONS: tuple[_Operation, ...] = (
    *(_shear(0), _shear(1), _shift(0), _shift(1), _rotate),
    *(_adjust("brightness"), _adjust("saturation"), _adjust("contrast")),
    *(_sharpen, _posterize, _solarize, _autocontrast, _equalize),
)
