"""GaussianBlur, as in torchvision.transforms.v2. Source: Chen et al. 2020, "SimCLR"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError
from .random_generator import RandomGenerator
from .steps import Blur, SizePreservingStep, Sizes
from .validation import as_pair, as_positive_range


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """Blur an image with a Gaussian filter of random standard deviation.

    Args:
        kernel_size: height and width of the filter in pixels, both odd; an integer gives a square.
        sigma: (min, max) of the standard deviation in pixels, drawn uniformly; a number fixes it.

    Raises:
        ConfigError: if an argument is out of range.
    """

    kernel_size: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        kernel = as_pair(self.kernel_size, "kernel_size")
        if any(side % 2 == 0 for side in kernel):
            raise ConfigError(f"kernel_size must be odd, got {self.kernel_size!r}")
        object.__setattr__(self, "kernel_size", kernel)
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, (int, float)) else self.sigma
        object.__setattr__(self, "sigma", as_positive_range(sigma, "sigma"))

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        low, high = self.sigma  # type: ignore[misc]  # a pair since __post_init__
        sigmas = (low + (high - low) * generator.uniform(1)[:, 0]).astype(np.float32)
        return (Blur(np.ones(len(sizes), np.bool_), sigmas, as_pair(self.kernel_size, "kernel_size")),)
