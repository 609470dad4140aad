"""What is decided of rows before their values are read: where these are, and every crop, flip and move.

A job decides once for all of its rows, in arrays; its tasks take parts. So a task's Python hardly depends on what it
makes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ...engines.base import rows_of
from ...format.fields import shape_column
from ...transforms.arrays import Move
from ...transforms.fuse import EngineStep
from ...transforms.steps import Sizes
from ...views.readable import SelectedSamples
from .random_params import RandomKeys, array_moves, image_steps
from .spec import BatchSpec


@final
@dataclass(frozen=True, slots=True)
class Decisions:
    """What is decided of some rows.

    Attributes:
        selection: their samples, located.
        sizes: by stored field, the heights and widths of images as they are stored, int32 [n, 2].
        steps: by name, the steps of images that the CPU engine makes of all rows, and that are stored upright.
        moves: by name, the moves of arrays and numbers of one shape.
    """

    selection: SelectedSamples
    sizes: Mapping[str, Sizes]
    steps: Mapping[str, Sequence[EngineStep]]
    moves: Mapping[str, Sequence[Move]]

    def __getitem__(self, part: slice) -> "Decisions":
        sizes = {name: each[part] for name, each in self.sizes.items()}
        steps = {name: [rows_of(step, part) for step in each] for name, each in self.steps.items()}
        moves = {name: [rows_of(move, part) for move in each] for name, each in self.moves.items()}
        return Decisions(self.selection[part], sizes, steps, moves)


def decide(spec: BatchSpec, selection: SelectedSamples, keys: RandomKeys) -> Decisions:
    """Locate samples, read the sizes of their images, and draw from their random keys."""
    selection.locate(spec.columns)
    sizes: dict[str, Sizes] = {}
    steps: dict[str, Sequence[EngineStep]] = {}
    for stored, names in spec.names.delivered.items():
        kind = spec.fields[names[0]]
        if not kind.is_image:
            continue
        if kind.fixed:
            found: Sizes = np.full((len(keys.samples), 2), kind.shape, np.int32)
        else:
            found = selection.column(shape_column(stored))
        sizes[stored] = found
        turns = spec.options.orient and kind.kind == "image"
        for name in names if not (turns or kind.optional) else ():
            image = spec.images[name]
            if image.batch_engine is None:
                drawn = image_steps(image.cpu_engine.recipe, found, keys.draws(spec.names.draws[name]))
                steps[name] = image.cpu_engine.fuse(drawn, found)
    moves = {
        name: array_moves(array.recipe, keys.draws(spec.names.draws[name]))
        for name, array in spec.arrays.items()
        if spec.fields[name].fixed
    }
    return Decisions(selection, sizes, steps, moves)
