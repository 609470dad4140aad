"""Transforms of an image's values: colour jitter, grey pictures, blur, erased boxes. As torchvision.transforms.v2's.

Sources: Howard 2013 (colour jitter); Chen et al. 2020, SimCLR (grey pictures, blur); Zhong et al. 2017 (erasing).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .checks import pair_of, probability_of, range_of, span_of
from .draws import Draws
from .geometry import ATTEMPTS, random_sides
from .steps import Blend, Blur, Erase, Hue, InPlace, Mask, Sizes


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue, each by a random factor, in random order.

    Args:
        brightness: factors are drawn from [1 - brightness, 1 + brightness], not below 0, or from (least, most).
        contrast: likewise; 0 would be a grey picture.
        saturation: likewise; 0 would be black and white.
        hue: shares of the whole circle, drawn from [-hue, hue] or (least, most), within [-0.5, 0.5].
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, span_of(getattr(self, name), name, 1.0, 0.0, math.inf))
        object.__setattr__(self, "hue", span_of(self.hue, "hue", 0.0, -0.5, 0.5))

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """As many blends and changes of hue as there are places in the order."""
        random = draws.uniform(8)
        spans = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [low + (high - low) * random[:, i] for i, (low, high) in enumerate(spans)]  # type: ignore[misc]  # pairs
        used = [i for i, span in enumerate(spans) if span != ((0.0, 0.0) if i == 3 else (1.0, 1.0))]
        order = random[:, 4:].argsort(axis=1)
        # The places of those that do something, in every image's own order.
        turns = order[np.isin(order, used)].reshape(len(sizes), len(used))
        made: list[InPlace] = []
        for turn in turns.T:
            if used != [3]:
                made.append(_blend(turn, factors))
            if 3 in used:
                made.append(Hue(turn == 3, factors[3].astype(np.float32)))
        return tuple(made)


def _blend(turn: NDArray[np.int64], factors: Sequence[NDArray[np.float64]]) -> Blend:
    """Brightness where `turn` is 0, contrast where it is 1, saturation where it is 2."""
    made = [blend(kind, factors[number]) for number, kind in enumerate(("brightness", "contrast", "saturation"))]
    parts = [np.choose(np.minimum(turn, 2), [getattr(one, part) for one in made]) for part in ("own", "grey", "mean")]
    return Blend(turn < 3, *parts)


def blend(kind: str, factors: NDArray[np.float64]) -> Blend:
    """The brightness, contrast or saturation of images times factors [B]."""
    factor = factors.astype(np.float32)
    none, rest = np.zeros_like(factor), 1 - factor
    grey, mean = {"brightness": (none, none), "contrast": (none, rest), "saturation": (rest, none)}[kind]
    return Blend(np.ones(len(factor), np.bool_), factor, grey, mean)


@dataclass(frozen=True, slots=True)
class RandomGrayscale:
    """Make an image grey with probability `p`; it keeps its channels."""

    p: float = 0.1

    def __post_init__(self) -> None:
        probability_of(self.p)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """A blend."""
        none, one = np.zeros(len(sizes), np.float32), np.ones(len(sizes), np.float32)
        return (Blend(draws.uniform(1)[:, 0] < self.p, none, one, none),)


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """A Gaussian filter of random width.

    Args:
        kernel_size: height and width of the filter in pixels, odd; one number for a square.
        sigma: the standard deviation in pixels is drawn from (least, most).
    """

    kernel_size: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        kernel = pair_of(self.kernel_size, "kernel_size")
        if any(side % 2 == 0 for side in kernel):
            raise ConfigError(f"kernel_size must be odd, got {self.kernel_size!r}")
        object.__setattr__(self, "kernel_size", kernel)
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, (int, float)) else self.sigma
        object.__setattr__(self, "sigma", range_of(sigma, "sigma"))

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[InPlace, ...]:
        """A blur."""
        low, high = self.sigma  # type: ignore[misc]  # a pair since __post_init__
        sigmas = (low + (high - low) * draws.uniform(1)[:, 0]).astype(np.float32)
        return (Blur(np.ones(len(sizes), np.bool_), sigmas, pair_of(self.kernel_size, "kernel_size")),)


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Set a box of random area, shape and place to `value` with probability `p`.

    Before ToFloat and Normalize `value` is a whole number from 0 to 255, behind them on their scale.

    Args:
        p: probability.
        scale: the box's share of the image's area, drawn uniformly.
        ratio: its height over its width, drawn log-uniformly.
        value: one number for all channels, or one for each.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        probability_of(self.p)
        range_of(self.scale, "scale")
        range_of(self.ratio, "ratio")
        try:
            value = [self.value] if np.ndim(self.value) == 0 else self.value
            numbers = tuple(float(one) for one in value)  # type: ignore[union-attr, arg-type]  # a sequence by now
            if isinstance(self.value, str):
                raise ValueError("text")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"value must be a number, or one for each channel, got {self.value!r}") from error
        object.__setattr__(self, "value", numbers)

    def steps(self, sizes: Sizes, draws: Draws) -> tuple[Erase, ...]:
        """The first of ten boxes that fits; none where none does."""
        random = draws.uniform(2 * ATTEMPTS + 3)
        height, width = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
        tall, wide = random_sides(height * width, random, self.scale, self.ratio)
        fits = (tall < height) & (wide < width) & (tall > 0) & (wide > 0)
        rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
        h, w = tall[rows, first], wide[rows, first]
        top = np.floor(random[:, -3] * (height[:, 0] - h + 1))
        left = np.floor(random[:, -2] * (width[:, 0] - w + 1))
        mask: Mask = (random[:, -1] < self.p) & fits.any(axis=1)
        boxes = np.where(mask[:, None], np.stack((top, left, h, w), axis=1), 0).astype(np.int32)
        return (Erase(mask, boxes, self.value),)  # type: ignore[arg-type]  # a tuple since __post_init__
