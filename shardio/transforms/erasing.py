"""RandomErasing, as in torchvision.transforms.v2. Source: Zhong et al. 2017, "Random Erasing Data Augmentation"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError
from .geometry import ATTEMPTS, random_sides
from .random_generator import RandomGenerator
from .steps import Erase, Mask, Sizes
from .validation import as_positive_range, check_probability


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Set a box of random area, aspect ratio and place to `value` with probability `p`.

    Before ToFloat and Normalize, `value` is an integer from 0 to 255; after them, it is on the scale of their results.
    Of a mask it is a number from 0 to 65,535, such as the one that a loss ignores.
    The first of ten random boxes that fits into the image is taken; if none fits, the image stays as it is.

    Args:
        p: the probability, in [0, 1].
        scale: (min, max) of the box's area as a fraction of the image's, drawn uniformly.
        ratio: (min, max) of the box's height over its width, drawn log-uniformly.
        value: one number for all channels, or one for each channel.

    Raises:
        ConfigError: if an argument is out of range. The loader raises it for a `value` that does not suit the images.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        check_probability(self.p)
        as_positive_range(self.scale, "scale")
        as_positive_range(self.ratio, "ratio")
        try:
            value = [self.value] if np.ndim(self.value) == 0 else self.value
            channel_values = tuple(float(number) for number in value)  # type: ignore[union-attr, arg-type]  # a sequence by now
            if isinstance(self.value, str):
                raise ValueError("text")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"value must be a number, or one for each channel, got {self.value!r}") from error
        object.__setattr__(self, "value", channel_values)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Erase, ...]:
        random = generator.uniform(2 * ATTEMPTS + 3)
        height, width = (sizes[:, i, None].astype(np.float64) for i in (0, 1))
        heights, widths = random_sides(height * width, random, self.scale, self.ratio)
        fits = (heights < height) & (widths < width) & (heights > 0) & (widths > 0)
        rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
        h, w = heights[rows, first], widths[rows, first]
        top = np.floor(random[:, -3] * (height[:, 0] - h + 1))
        left = np.floor(random[:, -2] * (width[:, 0] - w + 1))
        mask: Mask = (random[:, -1] < self.p) & fits.any(axis=1)
        boxes = np.where(mask[:, None], np.stack((top, left, h, w), axis=1), 0).astype(np.int32)
        return (Erase(mask, boxes, self.value),)  # type: ignore[arg-type]  # a tuple since __post_init__
