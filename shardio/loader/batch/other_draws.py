"""Random draws other than those of transforms' steps and moves: mixes of batches, items of lists, seeds of `map`.

All draws depend only on the seed, the epoch, the sample and the transform's position in its list (see `transforms`), so
threads, batch composition, container and engine change nothing. A mix, and the generator of a function of batches,
depend on the first sample of their batch. A stored field that is delivered under several names has a set of draws for
each.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...order.permutation import derive
from ...transforms.mixing import Mixer, MixParams
from ...transforms.random_generator import RandomKeys

_MIXING = 1 << 20  # larger than the place of any transform in its list
_MAP = _MIXING + 1


def mix_params(
    mixers: Sequence[Mixer], image_size: tuple[int, int], keys: RandomKeys, valid: NDArray[np.bool_]
) -> MixParams:
    """Choose one of `mixers` for a batch, and draw its partners and shares; invalid rows stay unmixed."""
    generator = keys[:1].generator(_MIXING)
    mixer = mixers[int(generator.uniform(1)[0, 0] * len(mixers))]
    return mixer.draw(image_size, valid, generator)


def chosen_items(keys: RandomKeys) -> list[float]:
    """Return a number in [0, 1) for each sample; RandomItem, the first transform, chooses a string by it."""
    drawn: list[float] = keys.generator(0).uniform(1)[:, 0].tolist()
    return drawn


def map_generator(keys: RandomKeys) -> np.random.Generator:
    """Return the generator for a call of the user's function with these samples; the first one determines it."""
    sample = int(keys.samples[0]) & 0xFFFFFFFFFFFFFFFF  # NumPy refuses seeds below 0
    return np.random.default_rng([derive(keys.seed, keys.epoch, _MAP), sample])
