"""Warnings about fields whose options seem wrong: drawn apart, boxes left behind, masks resized as images.

A transform's random parameters depend on the sample and the transform's position in its list, not on the field. So
lists with random crops, flips and rotations at the same positions move all fields alike, as an image and its mask need
it. Two views of one image need the contrary: they are two names of one stored field, with different sets of draws.
Only names of one set are compared.
"""

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...engines import whole_images
from ...errors import BadSample, MaskWarning, PairingWarning
from ...format import images
from ...format.fields import Field
from ...system.types import Buffer
from ...transforms import (
    ArrayRecipe,
    CenterCrop,
    CenterSpatialCrop,
    MultiHot,
    PadImages,
    RandAugment,
    RandomAxisFlip,
    RandomCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomRotate90,
    RandomRotation,
    RandomShortestSize,
    RandomSpatialCrop,
    RandomVerticalFlip,
    RandomWindow,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    TrivialAugmentWide,
)
from ...transforms.recipe import Recipe
from .field_names import FieldNames
from .instances import InstanceGroup

_FLIPS = (RandomHorizontalFlip, RandomVerticalFlip)
_RESIZES = (ScaleJitter, RandomShortestSize)
_MOVING = (
    *(*_FLIPS, *_RESIZES, RandomResizedCrop, RandomCrop, RandomIoUCrop, RandomZoomOut, RandomRotation),
    *(RandomSpatialCrop, RandomWindow, RandomAxisFlip, RandomRotate90),
)
_CROPS = tuple(kind.__name__ for kind in (RandomResizedCrop, RandomCrop, RandomIoUCrop, RandomSpatialCrop))
_MOVING_IMAGES = (*_MOVING, RandAugment, TrivialAugmentWide)
_PLACES = ("box", "boxes", "bbox", "bboxes", "keypoints", "landmarks")
_NOT_RANDOM = (CenterCrop, CenterSpatialCrop, MultiHot, PadImages, Resize)
_NO_DRAW = ("interpolation", "antialias", "offset", "fill")  # arguments that change no random parameter

MASK_SAMPLES = 64
"""The number of samples of a field that are looked at in case they are masks, unless the dataset has fewer."""

_MOST_MASK_VALUES = 32
_MASK_PIXELS = 1 << 16
"""The pixels of an image that are looked at, in evenly spaced rows: to sort more would hold up the first batches."""


def warn_of_unpaired(recipes: Mapping[str, Recipe | ArrayRecipe], names: FieldNames) -> None:
    """Warn of fields with random moves of the same kind that draw different ones; `recipes` by delivered name."""
    drawn = {name: _drawn(recipe) for name, recipe in recipes.items()}
    for one, other in _of_one_set(recipes, names):
        common = {draw["kind"] for draw in drawn[one]} & {draw["kind"] for draw in drawn[other]}
        if common and drawn[one] != drawn[other]:
            warnings.warn(
                f"fields {one!r} and {other!r} both have {' and '.join(sorted(common))}, but draw different places and "
                "turns: if they belong together, like an image and its mask, begin both lists with the same random "
                "crops, flips and turns, and give both the same axes behind the channels (see 'Fields that belong "
                "together' in docs/engines.md); if not, filter shardio.PairingWarning",
                PairingWarning,
                stacklevel=5,
            )


def warn_of_left_behind(fields: Mapping[str, Field], recipes: Mapping[str, Recipe | ArrayRecipe]) -> None:
    """Warn of fields named as boxes or points that stay where they are while the only image moves at random."""
    images = [name for name, kind in fields.items() if kind.is_image and kind.role is None]
    left = [n for n in fields if n in _PLACES and n not in images and fields[n].role is None]
    moving = {
        type(each).__name__ for name in images for each in _flat(recipes[name]) if isinstance(each, _MOVING_IMAGES)
    }
    if len(images) == 1 and left and moving:
        warnings.warn(
            f"field {left[0]!r} is delivered as it is stored, but {' and '.join(sorted(moving))} of {images[0]!r} move "
            f"what it may point at: a Field with role='boxes' or 'points' and on={images[0]!r} moves with the image; "
            "convert it so, or move both in a function of your own, map= (see 'Fields that belong together' in "
            "docs/engines.md), or filter shardio.PairingWarning if it doesn't lie on the image",
            PairingWarning,
            stacklevel=5,
        )


def warn_of_flipped_points(
    fields: Mapping[str, Field], groups: Sequence[InstanceGroup], recipes: Mapping[str, Recipe | ArrayRecipe]
) -> None:
    """Warn of points on images that flip at random, if nothing says which pairs of points a flip exchanges."""
    for name, image in [(name, group.image) for group in groups for name in group.names]:
        kind = fields[name]
        flips = sorted({type(each).__name__ for each in _flat(recipes[image]) if isinstance(each, _FLIPS)})
        if kind.role == "points" and kind.entry_shape[0] > 1 and kind.flip_pairs is None and flips:
            warnings.warn(
                f"With {' and '.join(flips)} of {image!r}, left points of {name!r} become right ones, and the field "
                "doesn't say which: give it attributes={'flip_pairs': [[1, 2], ...]}, the pairs of points that a flip "
                "exchanges, or [] if there are none",
                PairingWarning,
                stacklevel=5,
            )


def _flat(recipe: Recipe | ArrayRecipe) -> Iterator[object]:
    """Yield the transforms of a recipe, and those that they hold."""
    for transform in recipe.transforms:
        yield from getattr(transform, "transforms", (transform,))


def drawn_alike(
    fields: Mapping[str, Field], recipes: Mapping[str, Recipe | ArrayRecipe], names: FieldNames
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of fields of one kind that draw the same crops, flips and turns, or are transformed equally."""
    pairs = []
    for one, other in _of_one_set(recipes, names):
        (a, b), draws = (recipes[one], recipes[other]), _drawn(recipes[one])
        is_random = any(not isinstance(transform, _NOT_RANDOM) for transform in a.transforms)
        alike = draws == _drawn(b) if draws else is_random and a.transforms == b.transforms
        if alike and fields[one] == fields[other]:
            pairs.append((one, other))
    return tuple(pairs)


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """Two fields that draw the same crops.

    Attributes:
        names: their delivered names.
        scaled: whether crops depend on the aspect ratios of images alone, not on their sizes in pixels.
        resized: whether images are resized before they are cropped, which rounds their sizes.
    """

    names: tuple[str, str]
    scaled: bool
    resized: bool


def cropped_alike(recipes: Mapping[str, Recipe | ArrayRecipe], names: FieldNames) -> tuple[Pair, ...]:
    """Return the pairs of fields that draw the same random crops, as images and their masks do."""
    pairs = []
    for one, other in _of_one_set(recipes, names):
        both, draws = (recipes[one], recipes[other]), _drawn(recipes[one])
        if any(draw["kind"] in _CROPS for draw in draws) and draws == _drawn(recipes[other]):
            leads = [each.until_crop if isinstance(each, Recipe) else each.transforms[:1] for each in both]
            scaled = all(isinstance(lead[-1], (RandomResizedCrop, *_RESIZES)) for lead in leads)
            resized = any(isinstance(transform, Resize) for lead in leads for transform in lead)
            pairs.append(Pair((one, other), scaled, resized))
    return tuple(pairs)


def _of_one_set(recipes: Iterable[str], names: FieldNames) -> Iterator[tuple[str, str]]:
    """Yield the pairs of names that take the same set of draws, and so are of different stored fields."""
    return ((one, other) for one, other in combinations(recipes, 2) if names.draws[one] == names.draws[other])


def _drawn(recipe: Recipe | ArrayRecipe) -> list[dict[str, Any]]:
    """Return what determines a field's random moves: their positions, kinds and arguments, and the axes of arrays."""
    axes = _cropped_axes(recipe) if isinstance(recipe, ArrayRecipe) else {}
    draws = []
    for place, transform in enumerate(recipe.transforms):
        if isinstance(transform, _MOVING):
            draw = {"place": place, "kind": type(transform).__name__, **asdict(transform), **axes.get(place, {})}
            draws.append({name: value for name, value in draw.items() if name not in _NO_DRAW})
    return draws


def _cropped_axes(recipe: ArrayRecipe) -> dict[int, dict[str, Any]]:
    """Return, by position, the size of each random crop along the axes that it cuts, and their lengths."""
    found: dict[int, dict[str, Any]] = {}
    if (shape := recipe.seen) is None:
        return found
    for place, transform in enumerate(recipe.transforms):
        if isinstance(transform, RandomSpatialCrop):
            size = transform.block(len(shape))
            found[place] = {"size": size, "axes": shape[-len(size) :]}
        shape = transform.out_shape(shape)
    return found


@final
class UnmarkedMasks:
    """Looks at the first images of a field that is resized as images, and warns once if they hold few values.

    A filter between classes 1 and 3 makes class 2. Threads may share it.

    Args:
        field: the field's name, for the warning.
        channels: 3 if images are delivered as RGB, 1 if as grey.
        samples: the number of samples in the dataset.
        max_pixels: the most pixels of an image to look at.
    """

    def __init__(self, field: str, channels: int, samples: int, max_pixels: int) -> None:
        self._field, self._channels, self._max_pixels = field, channels, max_pixels
        self._left = min(MASK_SAMPLES, samples)
        self._values: NDArray[Any] = np.empty(0, np.uint32)
        self._lock = threading.Lock()

    def look(self, files: Sequence[Buffer]) -> None:
        """Look at some image files, until enough are known. A file that is no PNG, or holds many values, ends it."""
        if not self._left:
            return
        with self._lock:
            for file in files:
                if self._left and self._looks_like_mask(bytes(file)):
                    self._left -= 1
                    if not self._left:
                        self._warn()
                    continue
                self._left = 0
                return

    def _looks_like_mask(self, file: bytes) -> bool:
        if images.sniff(file) != "png":
            return False
        try:
            pixels = whole_images.decode(file, self._channels, self._max_pixels)
        except BadSample:  # reported where it is delivered
            return True
        step = -(-pixels.shape[0] * pixels.shape[1] // _MASK_PIXELS)
        channels = np.moveaxis(pixels[::step], 2, 0).astype(np.uint32)
        values = np.union1d(self._values, sum(channel << 8 * place for place, channel in enumerate(channels)))
        if len(values) > _MOST_MASK_VALUES:
            return False
        self._values = values
        return True

    def _warn(self) -> None:
        values = len(self._values)
        warnings.warn(
            f"the first PNGs of field {self._field!r} hold {values} different values, as masks do, and its transforms "
            "resize or turn them with a filter, which makes values between them: if they are masks, convert them with "
            f"mask={self._field!r}, or give interpolation='nearest'; if not, filter shardio.MaskWarning",
            MaskWarning,
            stacklevel=2,
        )
