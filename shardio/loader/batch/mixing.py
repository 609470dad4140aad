"""MixUp and CutMix in a loader: the field to mix, the mixers, and whether workers or the device mix."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...engines.torch_steps import mix_images
from ...errors import ConfigError
from ...format.fields import Field, describe_fields
from ...transforms import MixUp
from ...transforms.mixing import Mixer, MixParams, as_mixers
from ...transforms.recipe import Recipe

BatchFunction: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
LABEL = "label"


@dataclass(frozen=True, slots=True)
class MixingSpec:
    """A checked `mixing=` argument, with the image field that it applies to.

    Attributes:
        mixers: the mixers; one is chosen for each batch, all with the same probability.
        image: the image field.
        size: height and width of its images in pixels.
        on_device: whether the device mixes the images; workers do otherwise.
    """

    mixers: tuple[Mixer, ...]
    image: str
    size: tuple[int, int]
    on_device: bool

    @property
    def num_classes(self) -> int:
        """The number of classes, the same for all mixers."""
        return self.mixers[0].num_classes


def mixing_spec(
    mixing: Mixer | Sequence[Mixer] | None,
    fields: Mapping[str, Field],
    recipes: Mapping[str, Recipe],
    *,
    on_device: bool,
) -> MixingSpec | None:
    """Check `mixing=` against the delivered fields, and return its specification; None if nothing is mixed.

    Raises ConfigError if the fields or their transforms do not fit.
    """
    mixers = as_mixers(mixing)
    if not mixers:
        return None
    label = fields.get(LABEL)
    if label is None or label.kind != "scalar" or np.dtype(label.dtype).kind not in "iu":
        raise ConfigError(f"mixing needs a field {LABEL!r} of integers; there are {describe_fields(fields)}")
    if len(recipes) != 1:
        raise ConfigError(f"mixing needs exactly one image field, there are {list(recipes)}")
    ((image, recipe),) = recipes.items()
    if lacking := [name for name in (LABEL, image) if fields[name].optional]:
        raise ConfigError(f"mixing needs an image and a label of every sample, and {lacking[0]!r} is optional")
    if recipe.is_mask:
        raise ConfigError(f"mixing takes images, and {image!r} holds masks, whose numbers of classes cannot be mixed")
    if recipe.size is None:
        raise ConfigError("mixing needs transforms that give all images one size")
    if recipe.normalization is None and any(isinstance(mixer, MixUp) for mixer in mixers):
        raise ConfigError("MixUp needs images that are floats: end the transforms with ToFloat or Normalize")
    return MixingSpec(mixers, image, recipe.size, on_device)


def mix_field(batch: dict[str, Any], field: str, params: MixParams) -> dict[str, Any]:
    """Return a batch with the images of `field` mixed, on whatever device they are."""
    return batch | {field: mix_images(batch[field], params)}
