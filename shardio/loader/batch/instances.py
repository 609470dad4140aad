"""Instances: boxes, points and what else is per instance. They follow their image, and are filtered together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...engines.orientation import Orientations, upright_steps
from ...errors import ConfigError
from ...format.fields import Field
from ...transforms import SanitizeBoundingBoxes, Transform
from ...transforms.coordinates import Boxes, Owners, PlaceStep, move_boxes, move_points, sizes_after
from ...transforms.random_generator import RandomKeys
from ...transforms.recipe import Recipe
from ...transforms.steps import Mask, Sizes, Step
from .collate import kept_name
from .field_names import FieldNames

_ROUNDED = 2.0**-20
"""The share of an image's longer side that resizes in float32 move an edge by at most."""


@final
@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """The fields of one instance axis, under the names that belong to one name of their image.

    Attributes:
        root: the stored field of boxes or points that has the axis.
        image: the name of the image.
        names: the names of the group's fields.
        rules: what instances must satisfy to be delivered.
        kept: the name of the column that says which of the stored instances are delivered, if batches have one.
    """

    root: str
    image: str
    names: tuple[str, ...]
    rules: tuple[SanitizeBoundingBoxes, ...]
    kept: str | None = None


def instance_groups(
    stored: Mapping[str, Field], names: FieldNames, transforms: Mapping[str, Sequence[Transform]]
) -> tuple[InstanceGroup, ...]:
    """Return the groups of a batch; ConfigError for boxes or points without their image.

    Args:
        stored: the fields of the dataset.
        names: the names to deliver.
        transforms: the transforms by name.
    """
    groups = []
    for root, kind in stored.items():
        if kind.on is None or kind.per is not None:
            continue
        members = [name for name, field in names.stored.items() if field == root or stored[field].per == root]
        images = {names.draws[image]: image for image in names.delivered.get(kind.on, ())}
        for number in sorted({names.draws[name] for name in members}):
            own = [name for name in members if names.draws[name] == number]
            own.sort(key=lambda name: names.stored[name] != root)  # the name whose column counts comes first
            lying = [name for name in own if stored[names.stored[name]].on]
            if number not in images and (lying or images):
                follows = f"lies on {kind.on!r}" if lying else f"is per {root!r} on {kind.on!r}"
                raise ConfigError(
                    f"{(lying or own)[0]!r} {follows}, which fields= must deliver under as many names: "
                    f"{{'image': {kind.on!r}, 'boxes': {root!r}}}"
                )
            if number in images:
                listed = [*transforms.get(images[number], ()), *(each for n in lying for each in transforms.get(n, ()))]
                rules = tuple(each for each in listed if isinstance(each, SanitizeBoundingBoxes))
                rules = rules if kind.role == "boxes" else ()
                kept = kept_name(own[0]) if any(rule.kept for rule in rules) else None
                if kept in names.stored:
                    raise ConfigError(f"kept=True adds a column {kept!r}, but a field has that name: rename the field")
                groups.append(InstanceGroup(root, images[number], (*own, *([kept] if kept else [])), rules, kept))
    return tuple(groups)


def boxes_of(stored: Mapping[str, Field], recipe: Recipe, sanitized: bool) -> str | None:
    """Return the stored field of the boxes that a recipe draws crops for; None if it needs none.

    Args:
        stored: the fields of the dataset.
        recipe: the recipe of an image, or of a mask that is cropped as one.
        sanitized: whether there is a SanitizeBoundingBoxes.
    """
    if not recipe.needs_boxes:
        return None
    boxes = [name for name, field in stored.items() if field.role == "boxes"]
    if len(boxes) != 1:
        raise ConfigError(f"RandomIoUCrop needs exactly one field with role='boxes', the dataset has {boxes}")
    if not sanitized:
        raise ConfigError("RandomIoUCrop leaves empty boxes: put SanitizeBoundingBoxes() behind it")
    return boxes[0]


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """How the delivered images of some rows lie on the stored ones.

    Attributes:
        sizes: heights and widths of the stored images, int32 [n, 2]; (1, 1) where there is none.
        there: which rows have an image, bool [n].
        turns: the steps that make them upright.
        steps: the steps of the upright images.
        padded: whether the last of these pads the images to a given size.
    """

    sizes: Sizes
    there: Mask
    turns: tuple[PlaceStep, ...]
    steps: tuple[Step, ...]
    padded: bool

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        keys: RandomKeys,
        stored: Sizes,
        orientations: Orientations | None,
        there: NDArray[np.int64],
        boxes: tuple[Boxes, Owners] | tuple[()],
        drawn: Sequence[Step] | None,
    ) -> "Placement":
        """Place images, by steps that are drawn unless they are known.

        Args:
            recipe: the images' transforms.
            keys: the random keys of all n rows.
            stored: the heights and widths of the k images that there are, int32 [k, 2].
            orientations: their EXIF orientations, uint8 [k]; None leaves them as stored.
            there: their rows, [k].
            boxes: the boxes on the upright images, and the row of each, if the recipe needs them.
            drawn: the steps of all n upright images, if they were drawn before.
        """
        count = len(keys.samples)
        sizes, present, turned = np.ones((count, 2), np.int32), np.zeros(count, np.bool_), np.ones(count, np.uint8)
        sizes[there], present[there] = stored, True
        if orientations is not None:
            turned[there] = orientations
        turns = () if orientations is None else upright_steps(turned)
        current = sizes
        for turn in turns:
            current = sizes_after(turn, current)
        padded = recipe.padding is not None and recipe.padding.size is not None
        steps = recipe.steps(current, keys, *boxes) if drawn is None else tuple(drawn)
        return cls(sizes, present, turns, steps, padded)

    @property
    def all_steps(self) -> tuple[PlaceStep, ...]:
        """The steps from the stored images to the delivered ones."""
        return *self.turns, *self.steps

    @property
    def unpadded_steps(self) -> tuple[PlaceStep, ...]:
        """The same without padding to a given size."""
        return self.all_steps[: -1 if self.padded else None]

    @property
    def delivered_sizes(self) -> Sizes:
        """Heights and widths of the delivered images, without padding to a given size, int32 [n, 2]."""
        sizes = self.sizes
        for step in self.unpadded_steps:
            sizes = sizes_after(step, sizes)
        return sizes

    def boxes(self, boxes: Boxes, owners: Owners, *, clamp: bool = True, padded: bool = True) -> Boxes:
        """Return boxes on the stored images as they lie on the delivered ones; where there is no image they stay."""
        steps = self.all_steps if padded else self.unpadded_steps
        moved = move_boxes(boxes, owners, self.sizes, steps, clamp=clamp)
        return np.where(self.there[owners, None], moved, boxes)

    def points(
        self, points: NDArray[np.float32], owners: Owners, pairs: Sequence[Sequence[int]]
    ) -> NDArray[np.float32]:
        """Return points likewise."""
        turned = move_points(points, owners, self.sizes, self.turns)
        sizes = self.sizes
        for turn in self.turns:
            sizes = sizes_after(turn, sizes)
        moved = move_points(turned, owners, sizes, self.steps, pairs)
        return np.where(self.there[owners, None, None], moved, points)


def kept(group: InstanceGroup, boxes: Boxes, placement: Placement, owners: Owners) -> tuple[Boxes, Mask]:
    """Return a group's boxes on the delivered images, and which of them are delivered, bool [N]."""
    moved = placement.boxes(boxes, owners)
    stays = np.ones(len(boxes), np.bool_)
    # PadImages may put an image into the middle: the rules are on the image within, at (0, 0).
    within = placement.boxes(boxes, owners, padded=False) if group.rules and placement.padded else moved
    if group.rules:
        sizes = placement.delivered_sizes[owners]
        inside = within.clip(0, sizes[:, [1, 0, 1, 0]])
        # A resize may round an edge of an image to just outside of it.
        within = np.where(np.abs(within - inside) <= _ROUNDED * sizes.max(axis=1, keepdims=True), inside, within)
    for rule in group.rules:
        unclamped = placement.boxes(boxes, owners, clamp=False, padded=False) if rule.min_visibility else within
        stays &= rule.keeps(within, unclamped, sizes) | ~placement.there[owners]
    return moved, stays
