"""Fields that draw alike and should not, and fields that should and do not.

A transform's random parameters depend on the sample and the transform's place in its list, not on the field. So lists
whose random crops, flips and turns stand in the same places move all fields alike, as an image and its mask need it.
Two views of one image, stored as two fields, need the contrary.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from ...dataset.readable import ReadableDataset
from ...errors import PairingWarning
from ...format.fields import Field
from ...format.limits import Limits
from ...system.types import Indices
from ...transforms import (
    ArrayRecipe,
    CenterCrop,
    CenterSpatialCrop,
    RandomAxisFlip,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotate90,
    RandomRotation,
    RandomSpatialCrop,
    Resize,
)
from ...transforms.recipe import Recipe
from .bad_samples import is_bad_sample

_MOVING = (
    *(RandomResizedCrop, RandomCrop, RandomHorizontalFlip, RandomRotation),
    *(RandomSpatialCrop, RandomAxisFlip, RandomRotate90),
)
_NOT_RANDOM = (CenterCrop, CenterSpatialCrop, Resize)
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


def drawn_alike(
    fields: Mapping[str, Field], recipes: Mapping[str, Recipe | ArrayRecipe]
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of fields of one kind that draw the same crops, flips and turns, or are transformed equally."""
    pairs = []
    for one, other in combinations(recipes, 2):
        (a, b), draws = (recipes[one], recipes[other]), _drawn(recipes[one])
        is_random = any(not isinstance(transform, _NOT_RANDOM) for transform in a.transforms)
        alike = draws == _drawn(b) if draws else is_random and a.transforms == b.transforms
        if alike and fields[one] == fields[other]:
            pairs.append((one, other))
    return tuple(pairs)


def warn_of_equal_views(
    dataset: ReadableDataset, pairs: Sequence[tuple[str, str]], indices: Indices, limits: Limits, *, stacklevel: int
) -> None:
    """Warn of fields in `pairs`, which draw alike, that hold the same stored bytes in all of the samples `indices`."""
    for one, other in pairs:
        # The first sample tells an image and its mask apart, so only fields that may be equal cost more than that.
        if all(_hold_the_same(dataset, one, other, part, limits) for part in (indices[:1], indices[1:])):
            warnings.warn(
                f"fields {one!r} and {other!r} hold the same bytes in every sample of the first batch, and their "
                "random transforms draw alike: both show one view of each sample. For two views, have the lists draw "
                "differently (see 'Two views of one image' in docs/engines.md); if one view is what you want, filter "
                "shardio.PairingWarning",
                PairingWarning,
                stacklevel=stacklevel,
            )


def _hold_the_same(dataset: ReadableDataset, one: str, other: str, indices: Indices, limits: Limits) -> bool:
    if not len(indices):
        return True
    try:
        selection = dataset.select(indices, limits.max_value_bytes)
        with selection.fetch([one, other]):
            first, second = selection.stored(one), selection.stored(other)
            if dataset.fields[one].fixed:
                return bool(first.tobytes() == second.tobytes())  # NaN too
            return all(memoryview(a) == memoryview(b) for a, b in zip(first, second, strict=True))
    except Exception as error:
        if not is_bad_sample(error):
            raise
        return False  # the loop says what is wrong with it


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
