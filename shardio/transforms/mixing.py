"""Transforms of whole batches: MixUp and CutMix, as in torchvision.transforms.v2.

Each image is mixed with the one before it in its batch (the first with the last), and the labels in the same
proportions. Sources: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization"; Yun et al. 2019, "CutMix".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .random_generator import RandomGenerator
from .steps import Mask


@dataclass(frozen=True, slots=True)
class MixParams:
    """The parameters that mix one batch.

    Attributes:
        partners: the row of each image's partner, int64 [B]; its own row for an image that is not mixed.
        share: the fraction of an image that remains, in [0, 1]; the rest comes from its partner.
        box: top, left, height and width in pixels of the box that comes from the partner; None blends all pixels.
    """

    partners: NDArray[np.int64]
    share: float
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class _BetaMixing:
    """The arguments that MixUp and CutMix share."""

    num_classes: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.num_classes, int) or self.num_classes < 1:
            raise ConfigError(f"num_classes must be an integer of at least 1, got {self.num_classes!r}")
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"alpha must be above 0, got {self.alpha!r}")


@final
@dataclass(frozen=True, slots=True)
class MixUp(_BetaMixing):
    """Blend each image with the one before it: `share * image + (1 - share) * previous`.

    `share` is drawn from Beta(alpha, alpha), once per batch. Images must be floats: end the transforms with ToFloat or
    Normalize. Labels become class probabilities, float32 [B, num_classes].

    Args:
        num_classes: labels must be in 0..num_classes - 1.
        alpha: above 0. A small one leaves most batches nearly unmixed.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def draw(self, size: tuple[int, int], valid: Mask, generator: RandomGenerator) -> MixParams:
        """Draw how to mix those images of (height, width) pixels whose `valid`, bool [B], is true."""
        return MixParams(_partners(valid), float(generator.beta(self.alpha)[0]))


@final
@dataclass(frozen=True, slots=True)
class CutMix(_BetaMixing):
    """Replace a box of each image by that of the one before it.

    The fraction of the image that remains is drawn from Beta(alpha, alpha), once per batch, and the box's center
    uniformly. The box is clipped to the image. Labels become class probabilities, float32 [B, num_classes], in
    proportion to the clipped box's area.

    Args:
        num_classes: labels must be in 0..num_classes - 1.
        alpha: above 0.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def draw(self, size: tuple[int, int], valid: Mask, generator: RandomGenerator) -> MixParams:
        """Draw how to mix those images of (height, width) pixels whose `valid`, bool [B], is true."""
        half = 0.5 * math.sqrt(1 - float(generator.beta(self.alpha)[0]))
        centers = generator.child(2).uniform(2)[0]
        low, high = [], []
        for side, center in zip(size, centers.tolist(), strict=True):
            middle, reach = math.floor(center * side), int(half * side)
            low.append(max(middle - reach, 0))
            high.append(min(middle + reach, side))
        height, width = (b - a for a, b in zip(low, high, strict=True))
        return MixParams(_partners(valid), 1 - height * width / (size[0] * size[1]), (low[0], low[1], height, width))


Mixer: TypeAlias = MixUp | CutMix


def as_mixers(value: Mixer | Sequence[Mixer] | None) -> tuple[Mixer, ...]:
    """Return the mixers that each batch chooses from. Raise ConfigError unless they agree on the number of classes."""
    if value is None:
        return ()
    if not isinstance(value, Mixer | Sequence) or isinstance(value, str):
        raise ConfigError(f"mixing must be MixUp or CutMix or several of them, such as MixUp(10), got {value!r}")
    mixers = (value,) if isinstance(value, Mixer) else tuple(value)
    for number, mixer in enumerate(mixers):
        if not isinstance(mixer, Mixer):
            raise ConfigError(f"mixing must be MixUp or CutMix or several of them, number {number} is {mixer!r}")
    if len({mixer.num_classes for mixer in mixers}) != 1:
        raise ConfigError(f"mixing needs one number of classes, got {[mixer.num_classes for mixer in mixers]}")
    return mixers


def mixed_labels(labels: NDArray[Any], params: MixParams, num_classes: int) -> NDArray[np.float32]:
    """Return class probabilities, float32 [B, num_classes], for labels [B], integers from 0 to `num_classes` - 1."""
    rows, probabilities = np.arange(len(labels)), np.zeros((len(labels), num_classes), np.float32)
    classes = labels.astype(np.int64)
    np.add.at(probabilities, (rows, classes), params.share)
    np.add.at(probabilities, (rows, classes[params.partners]), 1 - params.share)
    return probabilities


def _partners(valid: Mask) -> NDArray[np.int64]:
    """Return the row of the previous valid image for each valid one, and an invalid one's own row."""
    rows = np.flatnonzero(valid)
    partners = np.arange(len(valid))
    partners[rows] = np.roll(rows, 1)
    return partners
