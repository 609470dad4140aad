"""Transforms of colors: ColorJitter and RandomGrayscale, as in torchvision.transforms.v2.

Sources: Howard 2013, "Some Improvements on Deep Convolutional Neural Network Based Image Classification" (jitter);
Chen et al. 2020, "SimCLR" (greyscale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .random_generator import RandomGenerator
from .steps import BLACK, MEAN_GREY, OWN_GREY, Blend, Hue, Mask, SizePreservingStep, Sizes, restrict
from .validation import as_jitter_range, check_probability


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue by random amounts in random order, as torchvision's does.

    Args:
        brightness: (min, max) of the factor, at least 0; a number `b` stands for (max(0, 1 - b), 1 + b).
        contrast: likewise. A factor of 0 gives a uniformly grey image.
        saturation: likewise. A factor of 0 gives a black-and-white image.
        hue: (min, max) of the shift as a fraction of the full circle, within [-0.5, 0.5]; a number `h` stands for
            (-h, h).

    Raises:
        ConfigError: if a range is reversed or out of bounds.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            jitter_range = as_jitter_range(getattr(self, name), name, center=1.0, low=0.0, high=math.inf)
            object.__setattr__(self, name, jitter_range)
        object.__setattr__(self, "hue", as_jitter_range(self.hue, "hue", center=0.0, low=-0.5, high=0.5))

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        """Return a blend, a hue shift or both for each place in the images' orders of adjustments."""
        random = generator.uniform(8)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [low + (high - low) * random[:, i] for i, (low, high) in enumerate(ranges)]  # type: ignore[misc]  # pairs
        used = [i for i, pair in enumerate(ranges) if pair != ((0.0, 0.0) if i == 3 else (1.0, 1.0))]
        order = random[:, 4:].argsort(axis=1)
        # For each image, the adjustments that change something, in its own order: [B, len(used)].
        turns = order[np.isin(order, used)].reshape(len(sizes), len(used))
        steps: list[SizePreservingStep] = []
        for turn in turns.T:
            if used != [3]:
                steps.append(_blend_by_turn(turn, factors))
            if 3 in used:
                steps.append(hue(factors[3], turn == 3))
        return tuple(steps)


def _blend_by_turn(turn: NDArray[np.int64], factors: Sequence[NDArray[np.float64]]) -> Blend:
    """Adjust brightness where `turn` is 0, contrast where it is 1, saturation where it is 2."""
    kind = np.minimum(turn, 2)
    bases = np.array((BLACK, MEAN_GREY, OWN_GREY), np.uint8)[kind]
    return Blend(turn < 3, np.choose(kind, factors[:3]).astype(np.float32), bases)


def blend(base: int, factors: NDArray[np.float64]) -> Blend:
    """Return the step that blends all images with `BLACK`, `MEAN_GREY` or `OWN_GREY` by factors [B]."""
    count = len(factors)
    return Blend(np.ones(count, np.bool_), factors.astype(np.float32), np.full(count, base, np.uint8))


def hue(shifts: NDArray[np.float64], mask: Mask) -> Hue:
    """Return the step that rotates hues by a fraction of the full circle, [B], which torchvision cuts off to a byte."""
    return Hue(mask, (shifts * 255).astype(np.int64).astype(np.uint8))


@dataclass(frozen=True, slots=True)
class RandomGrayscale:
    """Convert an image to greyscale with probability `p`. It keeps its number of channels.

    Args:
        p: the probability, in [0, 1].

    Raises:
        ConfigError: if `p` is not in [0, 1].
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        check_probability(self.p)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        return (restrict(blend(OWN_GREY, np.zeros(len(sizes))), generator.uniform(1)[:, 0] < self.p),)
