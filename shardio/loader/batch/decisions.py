"""Decides on rows before their values are read: once for all rows of a job. Its tasks take parts of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ...engines.base import rows_of
from ...format.fields import shape_column
from ...transforms.random_generator import RandomKeys
from ...transforms.steps import Sizes
from ...views.readable import SelectedSamples
from .spec import BatchSpec


@final
@dataclass(frozen=True, slots=True)
class Decisions:
    """Holds the decisions on some rows.

    Attributes:
        selection: their samples, located.
        sizes: by stored field, the heights and widths of images as they are stored, int32 [n, 2].
        drawn: by name, the steps of images that the CPU engine makes of all rows, and that are stored upright; and the
            moves of arrays and numbers of one shape.
        placed: by name, these steps of images that other fields follow, one by one.
    """

    selection: SelectedSamples
    sizes: Mapping[str, Sizes]
    drawn: Mapping[str, Sequence[Any]]
    placed: Mapping[str, Sequence[Any]]

    def __getitem__(self, part: slice) -> "Decisions":
        sizes = {name: each[part] for name, each in self.sizes.items()}
        drawn = {name: [rows_of(step, part) for step in each] for name, each in self.drawn.items()}
        placed = {name: [rows_of(step, part) for step in each] for name, each in self.placed.items()}
        return Decisions(self.selection[part], sizes, drawn, placed)


def decide(spec: BatchSpec, selection: SelectedSamples, keys: RandomKeys) -> Decisions:
    """Locate samples, read the sizes of their images, and draw from their random keys."""
    selection.locate(spec.columns)
    sizes, own_keys = dict[str, Sizes](), {name: keys.draws(number) for name, number in spec.names.draws.items()}
    fixed = [name for name in spec.arrays if spec.fields[name].fixed]
    placed: dict[str, Sequence[Any]] = {}
    drawn: dict[str, Sequence[Any]] = {n: spec.arrays[n].recipe.moves(own_keys[n]) for n in fixed}
    for stored, names in spec.names.delivered.items():
        kind = spec.fields[names[0]]
        if not kind.is_image:
            continue
        all_alike = np.full((len(keys.samples), 2), kind.shape, np.int32) if kind.fixed else None
        found = sizes[stored] = selection.column(shape_column(stored)) if all_alike is None else all_alike
        turns = spec.options.orient and kind.kind == "image"
        for name in names if not (turns or kind.optional or spec.images[names[0]].batch_engine) else ():
            if name not in spec.cropped_for:
                engine = spec.images[name].cpu_engine
                steps = engine.recipe.steps(found, own_keys[name])
                drawn[name] = engine.fuse(steps, found)
                if name in spec.placed:
                    placed[name] = steps
    return Decisions(selection, sizes, drawn, placed)
