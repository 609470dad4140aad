"""TrivialAugmentWide, as in torchvision.transforms.v2."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .color import blend
from .geometry import rotation, warp
from .random_generator import RandomGenerator
from .steps import AutoContrast, Equalize, Posterize, Sharpen, SizePreservingStep, Sizes, Solarize, restrict
from .validation import check_interpolation

_STRENGTHS = 31


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide:
    """Apply one of fourteen operations with random strength to each image, in torchvision's wide ranges.

    The operations are identity, shear and translation along x and y, rotation, brightness, saturation, contrast,
    sharpness, posterize, solarize, auto-contrast and equalize. Unlike torchvision's, sharpness filters an image's
    border as well, and equalize is OpenCV's equalizeHist.

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
        """Return a step for each operation but identity, restricted to the images for which it was chosen."""
        random = generator.uniform(3)
        strength = np.floor(random[:, 1] * _STRENGTHS) / (_STRENGTHS - 1)
        signed = np.where(random[:, 2] < 0.5, strength, -strength)
        chosen = np.floor(random[:, 0] * (1 + len(OPERATIONS))).astype(np.int64)
        bilinear = self.interpolation == "bilinear"
        steps = [operation(sizes, strength, signed, bilinear) for operation in OPERATIONS]
        return tuple(restrict(step, chosen == number) for number, step in enumerate(steps, 1))


_Strengths: TypeAlias = NDArray[np.float64]
# From sizes, strengths in [0, 1], the same strengths with a random sign, and whether to interpolate.
_Operation: TypeAlias = Callable[[Sizes, _Strengths, _Strengths, bool], SizePreservingStep]
_MAX_TRANSLATION = 32.0  # pixels


def _shear(axis: int) -> _Operation:
    def steps(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
        linear = np.tile(np.eye(2), (len(sizes), 1, 1))
        linear[:, axis, 1 - axis] = 0.99 * signed
        return warp(linear, -0.5, 0, bilinear=bilinear)  # around the corner of the first pixel

    return steps


def _translate(axis: int) -> _Operation:
    def steps(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
        shifts = np.zeros((len(sizes), 2))
        shifts[:, axis] = -np.trunc(_MAX_TRANSLATION * signed)
        return warp(np.tile(np.eye(2), (len(sizes), 1, 1)), 0, shifts, bilinear=bilinear)

    return steps


def _rotate(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
    return rotation(sizes, 135 * signed, bilinear=bilinear)


def _adjust(kind: str) -> _Operation:
    def steps(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
        return blend(kind, 1 + 0.99 * signed)

    return steps


def _sharpen(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
    return Sharpen(np.ones(len(sizes), np.bool_), (1 + 0.99 * signed).astype(np.float32))


def _posterize(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
    dropped_bits = np.rint(6 * strength).astype(np.int64)  # 8 to 2 bits are kept
    return Posterize(np.ones(len(sizes), np.bool_), (255 << dropped_bits & 255).astype(np.uint8))


def _solarize(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
    return Solarize(np.ones(len(sizes), np.bool_), (255 * (1 - strength)).astype(np.float32))


def _autocontrast(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
    return AutoContrast(np.ones(len(sizes), np.bool_))


def _equalize(sizes: Sizes, strength: _Strengths, signed: _Strengths, bilinear: bool) -> SizePreservingStep:
    return Equalize(np.ones(len(sizes), np.bool_))


OPERATIONS: tuple[_Operation, ...] = (
    *(_shear(0), _shear(1), _translate(0), _translate(1), _rotate),
    *(_adjust("brightness"), _adjust("saturation"), _adjust("contrast")),
    *(_sharpen, _posterize, _solarize, _autocontrast, _equalize),
)
"""The operations of TrivialAugmentWide but identity; their order decides which random number chooses which."""
