"""The blocks and entries that rows are read for: crops are drawn from the random keys before any value is read."""

import numpy as np

from ...containers.extents import Blocks, Extent, Runs, Several
from ...format.fields import frames_column, length_column, packets_column, table_columns
from ...system.types import Indices
from ...transforms import ArrayRecipe, RandomWindow
from ...transforms.arrays import ArrayCrop, ArrayWindow, Move
from ...transforms.random_generator import RandomKeys
from ...views.readable import SelectedSamples
from .clip_plan import plan_clips
from .spec import BatchSpec


def extents(
    spec: BatchSpec, selection: SelectedSamples, keys: RandomKeys, indices: Indices | None = None
) -> dict[str, Extent]:
    """Return the blocks, and the entries of ragged fields, that selected samples are read for.

    Lengths are fetched, read and let go of here: whoever held them while they wait for the rest could be waited for.

    Args:
        spec: the batches that the samples are for.
        selection: the samples.
        keys: their random keys.
        indices: their numbers, see `plan_clips`.

    Returns:
        By stored field; those that are read whole are not in it.
    """
    found: dict[str, Extent] = {}
    lengths = [length_column(stored) for stored in spec.windowed]
    if lengths:
        with selection.fetch(lengths):
            for stored in spec.windowed:
                found[stored] = _entries(spec, stored, selection, keys)
    for stored in spec.videos:
        chosen = [frames_column(stored)] if spec.dataset.fields[stored].window else []
        with selection.fetch([*table_columns(stored), *chosen]):
            plan = plan_clips(spec, stored, selection, keys, indices)
            found |= {stored: plan.bytes, packets_column(stored): plan.tables}
    for stored, names in spec.names.delivered.items():
        if all(spec.reads_blocks(name) for name in names):
            blocks = tuple(_blocks(spec, name, keys) for name in names)
            found[stored] = Several(blocks) if len(blocks) > 1 else blocks[0]
    return found


def _blocks(spec: BatchSpec, name: str, keys: RandomKeys) -> Blocks:
    """Return the blocks that a name has of a field."""
    recipe = spec.arrays[name].recipe
    return blocks_of(recipe.moves(keys.draws(spec.names.draws[name]))[0], recipe)


def _entries(spec: BatchSpec, stored: str, selection: SelectedSamples, keys: RandomKeys) -> Runs:
    """Return the entries of a ragged field from the first to the last one that any of its names delivers."""
    lengths = np.maximum(selection.column(length_column(stored)), 0)
    entry = spec.dataset.fields[stored].entry_shape
    shapes = np.column_stack([lengths, *(np.full(len(lengths), size) for size in entry)])
    names = spec.names.delivered[stored]
    drawn = [spec.arrays[name].recipe.moves(keys.draws(spec.names.draws[name]), shapes)[0] for name in names]
    windows = [(first.begins, first.ends) for first in drawn if isinstance(first, ArrayWindow)]
    begins, ends = zip(*windows, strict=True)
    return Runs(np.minimum.reduce(begins), np.maximum.reduce(ends))


def blocks_of(first: Move, recipe: ArrayRecipe) -> Blocks:
    """Return the blocks that the first move, a crop or a window, leaves of arrays of one shape."""
    if isinstance(first, ArrayCrop):
        return Blocks(first.corners, first.size)
    assert isinstance(first, ArrayWindow)
    entries = max((each.entries for each in recipe.transforms[:1] if isinstance(each, RandomWindow)), default=1)
    _, *entry = recipe.seen or ()
    begins = np.zeros((len(first.begins), 1 + len(entry)), np.int64)
    begins[:, 0] = first.begins
    return Blocks(begins, tuple(size or 0 for size in (entries, *entry)))
