"""MixUp and CutMix in a loader: which batches, fields and random numbers, and where it is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...engines.tensors import blend
from ...errors import ConfigError
from ...format.fields import Field, describe_fields
from ...transforms import Draws, MixUp
from ...transforms.mixing import Mixer, MixParams, mixed_labels, mixers_of, no_class
from ...transforms.recipe import Recipe

_PLACE = 1 << 20  # behind the places of all transforms in their list
LABEL = "label"


@dataclass(frozen=True, slots=True)
class MixingSpec:
    """What is mixed.

    Attributes:
        mixers: each batch gets one of them, all as likely.
        image: the field of images.
        size: their height and width in pixels.
        here: whether workers do it; else it is done on the device.
    """

    mixers: tuple[Mixer, ...]
    image: str
    size: tuple[int, int]
    here: bool

    @classmethod
    def of(
        cls,
        mixing: Mixer | Sequence[Mixer] | None,
        fields: Mapping[str, Field],
        recipes: Mapping[str, Recipe],
        *,
        here: bool,
    ) -> "MixingSpec | None":
        """Checks it against the fields that are delivered; None for None."""
        mixers = mixers_of(mixing)
        if not mixers:
            return None
        label = fields.get(LABEL)
        if label is None or label.kind != "scalar" or np.dtype(label.dtype).kind not in "iu":
            raise ConfigError(
                f"mixing needs a field {LABEL!r} of one whole number each; there are {describe_fields(fields)}"
            )
        if len(recipes) != 1:
            raise ConfigError(f"mixing needs exactly one image field, there are {list(recipes)}")
        ((image, recipe),) = recipes.items()
        if recipe.size is None:
            raise ConfigError("mixing needs transforms that give all images one size")
        if recipe.affine is None and any(isinstance(mixer, MixUp) for mixer in mixers):
            raise ConfigError("MixUp needs images that are floats: end the transforms with ToFloat or Normalize")
        return cls(mixers, image, recipe.size, here)

    def decide(self, seed: int, epoch: int, rng_keys: NDArray[np.int64], counts: NDArray[np.bool_]) -> MixParams:
        """How a batch is mixed: keyed by its first sample."""
        one = Draws(seed, epoch, _PLACE, rng_keys[:1])
        mixer = self.mixers[int(one.uniform(1)[0, 0] * len(self.mixers))]
        return mixer.draw(self.size, counts, one)

    def check(self, labels: NDArray[Any]) -> int | None:
        """The first row whose label is no class."""
        return no_class(labels, self.mixers[0].num_classes)

    def labels(self, labels: torch.Tensor, mix: MixParams) -> torch.Tensor:
        """Shares of classes, float32 [B, classes]."""
        return torch.from_numpy(mixed_labels(labels.numpy(), mix, self.mixers[0].num_classes))

    def images(self, mix: MixParams) -> "partial[dict[str, Any]]":
        """What mixes the images of a batch, wherever they are."""
        return partial(_mixed, name=self.image, mix=mix)


def _mixed(batch: dict[str, Any], name: str, mix: MixParams) -> dict[str, Any]:
    return batch | {name: blend(batch[name], mix)}
