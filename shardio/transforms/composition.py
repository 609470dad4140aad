"""Transforms that hold other transforms: RandomApply and RandomChoice, as in torchvision.transforms.v2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..errors import ConfigError
from .blur import GaussianBlur
from .color import ColorJitter, RandomGrayscale
from .erasing import RandomErasing
from .geometry import RandomHorizontalFlip, RandomRotation, RandomVerticalFlip
from .random_generator import RandomGenerator
from .steps import Mask, SizePreservingStep, Sizes, restrict
from .validation import check_probability

ChildTransform: TypeAlias = (
    RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomRotation
    | ColorJitter
    | RandomGrayscale
    | GaussianBlur
    | RandomErasing
)
"""The transforms that RandomApply and RandomChoice accept: those that preserve an image's size and hold no others."""


def _as_children(transforms: Sequence[ChildTransform], parent: str) -> tuple[ChildTransform, ...]:
    if not isinstance(transforms, Sequence):
        raise ConfigError(f"{parent} takes a list of transforms, got {transforms!r}")
    for number, transform in enumerate(transforms):
        if not isinstance(transform, ChildTransform):
            names = ", ".join(kind.__name__ for kind in ChildTransform.__args__)
            raise ConfigError(f"{parent}, transform {number} must be one of {names}, got {transform!r}")
    if not transforms:
        raise ConfigError(f"{parent} needs at least one transform")
    return tuple(transforms)


@dataclass(frozen=True, slots=True)
class RandomApply:
    """Apply all of some transforms with probability `p`, or none of them.

    Args:
        transforms: any of RandomHorizontalFlip, RandomVerticalFlip, RandomRotation, ColorJitter, RandomGrayscale,
            GaussianBlur and RandomErasing, applied in this order.
        p: the probability, in [0, 1].

    Raises:
        ConfigError: if the list is empty or holds another transform, or `p` is not in [0, 1].
    """

    transforms: Sequence[ChildTransform]
    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _as_children(self.transforms, "RandomApply"))
        check_probability(self.p)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        """Return the steps of all transforms, restricted to the chosen images."""
        mask: Mask = generator.uniform(1)[:, 0] < self.p
        return tuple(
            restrict(step, mask)
            for number, transform in enumerate(self.transforms)
            for step in transform.steps(sizes, generator.child(number))
        )


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """Apply one of some transforms to each image, each with the same probability.

    Args:
        transforms: any of RandomHorizontalFlip, RandomVerticalFlip, RandomRotation, ColorJitter, RandomGrayscale,
            GaussianBlur and RandomErasing.

    Raises:
        ConfigError: if the list is empty or holds another transform.
    """

    transforms: Sequence[ChildTransform]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _as_children(self.transforms, "RandomChoice"))

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[SizePreservingStep, ...]:
        """Return the steps of each transform, restricted to the images that drew it."""
        chosen = np.floor(generator.uniform(1)[:, 0] * len(self.transforms))
        return tuple(
            restrict(step, chosen == number)
            for number, transform in enumerate(self.transforms)
            for step in transform.steps(sizes, generator.child(number))
        )
