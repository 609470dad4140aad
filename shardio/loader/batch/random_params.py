"""The random parameters of a batch: this module alone has the transforms draw their crops, flips, moves and mixes.

It also seeds the generators of functions given as `map`. Everything depends only on the seed, the epoch, the sample
and the transform's place in its list (see `transforms`), so threads, batch composition, container and engine change
nothing. A mix, and the generator of a function of batches, depend on the first sample of their batch. A stored field
that is delivered under several names has a set of draws for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...containers.extents import Blocks
from ...order.permutation import derive, splitmix64
from ...transforms import ArrayRecipe, RandomGenerator, RandomWindow
from ...transforms.arrays import ArrayCrop, ArrayWindow, Move, Shapes
from ...transforms.mixing import Mixer, MixParams
from ...transforms.recipe import Recipe
from ...transforms.steps import Erase, Sizes, Step

_MIXING = 1 << 20  # larger than the place of any transform in its list
_MAP = _MIXING + 1
_DRAWS = _MIXING + 2


@final
@dataclass(frozen=True, slots=True)
class RandomKeys:
    """The numbers that determine the random parameters of some rows.

    Attributes:
        seed: the seed of the loader, or the one that `draws` derives from it.
        epoch: the epoch of the loader.
        samples: the random key of each row's sample, int64 [n]. It is the sample's index, except in mixtures, where a
            sample that comes twice in an epoch gets different crops.
    """

    seed: int
    epoch: int
    samples: NDArray[np.int64]

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> "RandomKeys":
        return RandomKeys(self.seed, self.epoch, self.samples[rows])

    def within(self, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> "RandomKeys":
        """Return the keys of parts of samples, each of a row, with its number there; number 0 has its sample's key."""
        samples = self.samples[rows]
        others = splitmix64(splitmix64(samples.astype(np.uint64)) + numbers.astype(np.uint64)).astype(np.int64)
        return replace(self, samples=np.where(numbers == 0, samples, others))

    def draws(self, number: int) -> "RandomKeys":
        """Return the keys of another set of random draws, independent of this one; set 0 is this one."""
        return replace(self, seed=derive(self.seed, number, _DRAWS)) if number else self


def image_steps(recipe: Recipe, sizes: Sizes, keys: RandomKeys) -> tuple[Step, ...]:
    """Draw the crops, flips and colours of images; `sizes` are their heights and widths in pixels, int32 [n, 2]."""
    return recipe.steps(sizes, seed=keys.seed, epoch=keys.epoch, indices=keys.samples)


def erased_boxes(recipe: Recipe, keys: RandomKeys) -> tuple[Erase, ...]:
    """Draw the boxes that RandomErasing blanks, for images whose last transforms run on the device."""
    return recipe.erase_steps(seed=keys.seed, epoch=keys.epoch, indices=keys.samples)


def array_moves(recipe: ArrayRecipe, keys: RandomKeys, shapes: Shapes | None = None) -> Sequence[Move]:
    """Draw the moves of arrays, such as crops and flips; `shapes` are theirs, int64 [n, axes], if they differ."""
    return recipe.moves(seed=keys.seed, epoch=keys.epoch, indices=keys.samples, shapes=shapes)


def blocks_of(first: Move, recipe: ArrayRecipe) -> Blocks:
    """Return the blocks that the first move, a crop or a window, leaves of arrays of one shape."""
    if isinstance(first, ArrayCrop):
        return Blocks(first.corners, first.size)
    (window,) = (each for each in recipe.transforms[:1] if isinstance(each, RandomWindow))
    assert isinstance(first, ArrayWindow)
    _, *entry = recipe.seen or ()
    begins = np.zeros((len(first.begins), 1 + len(entry)), np.int64)
    begins[:, 0] = first.begins
    return Blocks(begins, tuple(size or 0 for size in (window.n, *entry)))


def mix_params(
    mixers: Sequence[Mixer], image_size: tuple[int, int], keys: RandomKeys, valid: NDArray[np.bool_]
) -> MixParams:
    """Choose one of `mixers` for a batch, and draw its partners and shares; invalid rows stay unmixed."""
    generator = RandomGenerator(keys.seed, keys.epoch, _MIXING, keys.samples[:1])
    mixer = mixers[int(generator.uniform(1)[0, 0] * len(mixers))]
    return mixer.draw(image_size, valid, generator)


def chosen_items(keys: RandomKeys) -> list[float]:
    """Return a number in [0, 1) for each sample, by which RandomItem, the first of its transforms, chooses a text."""
    drawn: list[float] = RandomGenerator(keys.seed, keys.epoch, 0, keys.samples).uniform(1)[:, 0].tolist()
    return drawn


def map_generator(keys: RandomKeys) -> np.random.Generator:
    """Return the generator for a call of the user's function with these samples; the first one determines it."""
    sample = int(keys.samples[0]) & 0xFFFFFFFFFFFFFFFF  # NumPy refuses seeds below 0
    return np.random.default_rng([derive(keys.seed, keys.epoch, _MAP), sample])
