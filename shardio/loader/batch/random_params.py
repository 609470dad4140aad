"""The random parameters of a batch: every crop, flip, erased box, move and mix is drawn here, and nowhere else.

They depend on the seed, the epoch, the sample and the transform's place alone (see `transforms`), so threads, batch
composition, container and engine change none of them. A mix depends on the first sample of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...transforms import ArrayRecipe, RandomGenerator
from ...transforms.arrays import Move
from ...transforms.mixing import Mixer, MixParams
from ...transforms.recipe import Recipe
from ...transforms.steps import Erase, Sizes, Step

_MIXING = 1 << 20  # beyond the places of all transforms in their list


@final
@dataclass(frozen=True, slots=True)
class RandomKeys:
    """What the random parameters of some rows depend on.

    Attributes:
        seed, epoch: of the loader.
        samples: for each row the key of its sample, int64 [n]; its index, except in mixtures, where a sample that comes
            twice gets other crops.
    """

    seed: int
    epoch: int
    samples: NDArray[np.int64]

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> "RandomKeys":
        return RandomKeys(self.seed, self.epoch, self.samples[rows])


def image_steps(recipe: Recipe, sizes: Sizes, keys: RandomKeys) -> tuple[Step, ...]:
    """Draw the crops, flips and colours of images of these sizes, int32 [n, 2]."""
    return recipe.steps(sizes, seed=keys.seed, epoch=keys.epoch, indices=keys.samples)


def erased_boxes(recipe: Recipe, keys: RandomKeys) -> tuple[Erase, ...]:
    """Draw the boxes that RandomErasing blanks, for images whose last transforms run on the device."""
    return recipe.erase_steps(seed=keys.seed, epoch=keys.epoch, indices=keys.samples)


def array_moves(recipe: ArrayRecipe, keys: RandomKeys) -> Sequence[Move]:
    """Draw the crops, mirrorings and quarter turns of arrays."""
    return recipe.moves(seed=keys.seed, epoch=keys.epoch, indices=keys.samples)


def mix_params(
    mixers: Sequence[Mixer], image_size: tuple[int, int], keys: RandomKeys, valid: NDArray[np.bool_]
) -> MixParams:
    """Choose one of `mixers` for a batch and draw its partners and shares; rows that are not valid stay as they are."""
    generator = RandomGenerator(keys.seed, keys.epoch, _MIXING, keys.samples[:1])
    mixer = mixers[int(generator.uniform(1)[0, 0] * len(mixers))]
    return mixer.draw(image_size, valid, generator)
