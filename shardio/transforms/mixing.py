"""Transforms of whole batches: each image mixed with another one, and their labels in the same shares.

Named and meant as in torchvision.transforms.v2: what an image is mixed with is the one before it in its batch.
Sources: Zhang et al. 2018, "mixup"; Yun et al. 2019, "CutMix".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError
from .draws import Draws
from .steps import Mask


@dataclass(frozen=True, slots=True)
class MixParams:
    """How a batch is mixed.

    Attributes:
        partners: for each image the other one, int64 [B]; itself where it stays as it is.
        share: of an image that remains, 0 to 1; the rest is its partner's.
        box: top, left, height, width in pixels of what is taken from the partner; None mixes every pixel.
    """

    partners: NDArray[np.int64]
    share: float
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class MixUp:
    """Each image `share * it + (1 - share) * the one before it`, share drawn for the batch from Beta(alpha, alpha).

    Images must be floats. Labels become float32 [B, num_classes].

    Args:
        num_classes: labels are 0 to num_classes - 1.
        alpha: above 0; small ones leave most batches nearly as they are.
    """

    num_classes: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check(self.num_classes, self.alpha)

    def draw(self, size: tuple[int, int], counts: Mask, draws: Draws) -> MixParams:
        """For images of (height, width) in pixels, those that count, bool [B]."""
        return MixParams(_partners(counts), float(draws.beta(self.alpha)[0]))


@dataclass(frozen=True, slots=True)
class CutMix:
    """A box of each image is that of the one before it; its share of the area is drawn from Beta(alpha, alpha).

    Labels become float32 [B, num_classes], by the area that the box really has within the image.

    Args:
        num_classes: labels are 0 to num_classes - 1.
        alpha: above 0.
    """

    num_classes: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check(self.num_classes, self.alpha)

    def draw(self, size: tuple[int, int], counts: Mask, draws: Draws) -> MixParams:
        """For images of (height, width) in pixels, those that count, bool [B]."""
        half = 0.5 * math.sqrt(1 - float(draws.beta(self.alpha)[0]))
        middles = draws.within(2).uniform(2)[0]
        low, high = [], []
        for side, middle in zip(size, middles.tolist(), strict=True):
            at, reach = math.floor(middle * side), int(half * side)
            low.append(max(at - reach, 0))
            high.append(min(at + reach, side))
        height, width = (b - a for a, b in zip(low, high, strict=True))
        return MixParams(_partners(counts), 1 - height * width / (size[0] * size[1]), (low[0], low[1], height, width))


Mixer: TypeAlias = MixUp | CutMix


def mixers_of(value: Mixer | Sequence[Mixer] | None) -> tuple[Mixer, ...]:
    """The mixers that batches choose from; ConfigError for anything else."""
    if value is None:
        return ()
    given = (value,) if isinstance(value, Mixer) else tuple(value)
    for place, mixer in enumerate(given):
        if not isinstance(mixer, Mixer):
            raise ConfigError(f"mixing must be MixUp or CutMix or several of them, number {place} is {mixer!r}")
    if len({mixer.num_classes for mixer in given}) != 1:
        raise ConfigError(f"mixing needs one number of classes, got {[mixer.num_classes for mixer in given]}")
    return given


def no_class(labels: NDArray[Any], num_classes: int) -> int | None:
    """The first row of whole-number labels [B] that is not in 0 to num_classes - 1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    return int(wrong[0]) if len(wrong) else None


def mixed_labels(labels: NDArray[Any], mix: MixParams, num_classes: int) -> NDArray[np.float32]:
    """Shares of classes, float32 [B, num_classes], of whole-number labels [B]."""
    if (wrong := no_class(labels, num_classes)) is not None:
        raise BadSample(f"mixing is for labels from 0 to {num_classes - 1}, one is {labels[wrong]}")
    rows, made = np.arange(len(labels)), np.zeros((len(labels), num_classes), np.float32)
    own, other = labels.astype(np.int64), labels.astype(np.int64)[mix.partners]
    np.add.at(made, (rows, own), mix.share)
    np.add.at(made, (rows, other), 1 - mix.share)
    return made


def _partners(counts: Mask) -> NDArray[np.int64]:
    """The one before each that counts, of those that count; the others stay."""
    rows = np.flatnonzero(counts)
    made = np.arange(len(counts))
    made[rows] = np.roll(rows, 1)
    return made


def _check(num_classes: int, alpha: float) -> None:
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ConfigError(f"num_classes must be a whole number of at least 1, got {num_classes!r}")
    if not 0 < alpha < math.inf:
        raise ConfigError(f"alpha must be above 0, got {alpha!r}")
