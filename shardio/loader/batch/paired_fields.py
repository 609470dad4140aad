"""Fields that belong together, such as an image and its mask: they draw alike only if their lists draw alike.

A transform's random parameters depend on the sample and the transform's place in its list, not on the field. So lists
whose random crops, flips and turns stand in the same places move all fields alike.
"""

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from typing import Any

from ...errors import PairingWarning
from ...transforms import (
    ArrayRecipe,
    RandomAxisFlip,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotate90,
    RandomRotation,
    RandomSpatialCrop,
)
from ...transforms.recipe import Recipe

_MOVING = (
    *(RandomResizedCrop, RandomCrop, RandomHorizontalFlip, RandomRotation),
    *(RandomSpatialCrop, RandomAxisFlip, RandomRotate90),
)
_NO_DRAW = ("interpolation", "antialias")  # arguments that change no random parameter


def warn_of_unpaired(recipes: Mapping[str, Recipe | ArrayRecipe]) -> None:
    """Warn of fields with random moves of the same kind that draw different ones; `recipes` by field."""
    drawn = {name: _drawn(recipe) for name, recipe in recipes.items()}
    for one, other in combinations(drawn, 2):
        common = {draw["kind"] for draw in drawn[one]} & {draw["kind"] for draw in drawn[other]}
        if common and drawn[one] != drawn[other]:
            warnings.warn(
                f"fields {one!r} and {other!r} both have {' and '.join(sorted(common))}, but draw different places and "
                "turns: if they belong together, like an image and its mask, begin both lists with the same random "
                "crops, flips and turns, and give both the same axes behind the channels (see 'Fields that belong "
                "together' in docs/engines.md); if not, filter shardio.PairingWarning",
                PairingWarning,
                stacklevel=4,
            )


def _drawn(recipe: Recipe | ArrayRecipe) -> list[dict[str, Any]]:
    """Return what determines the random moves of a field: each one's place, kind and arguments, and arrays' axes."""
    axes = _cropped_axes(recipe) if isinstance(recipe, ArrayRecipe) else {}
    draws = []
    for place, transform in enumerate(recipe.transforms):
        if isinstance(transform, _MOVING):
            draw = {"place": place, "kind": type(transform).__name__, **asdict(transform), **axes.get(place, {})}
            draws.append({name: value for name, value in draw.items() if name not in _NO_DRAW})
    return draws


def _cropped_axes(recipe: ArrayRecipe) -> dict[int, dict[str, Any]]:
    """Return, by place, the size of each random crop along the axes that it cuts, and their lengths."""
    found, shape = {}, recipe.shape
    for place, transform in enumerate(recipe.transforms):
        if isinstance(transform, RandomSpatialCrop):
            size = transform.block(shape)
            found[place] = {"size": size, "axes": shape[-len(size) :]}
        shape = transform.out_shape(shape)
    return found
