"""Samples that have what clips need: the others are left out of every epoch, as a view leaves samples out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...format.fields import facts_column, length_column, present_column
from ...format.packets import VideoFacts
from ...system.types import Indices
from ...transforms.clips import Clip
from ...views.columns import in_parts
from ...views.readable import ReadableDataset
from ...views.view import Weighted
from ...views.weighing import Weights


def video_lengths(facts: NDArray[np.int64]) -> Mapping[bool, NDArray[Any]]:
    """Return the lengths of videos of some facts, in frames under False and in seconds under True."""
    columns = VideoFacts(*facts.T)
    # The product first: seconds that are rounded twice may be more than a clip of this very length takes.
    seconds = np.asarray(columns.span, np.float64) * columns.ticks / np.maximum(columns.per, 1)
    return {False: columns.frames, True: seconds}


def without_short(dataset: ReadableDataset, stored: Mapping[str, str], clips: Mapping[str, Clip]) -> ReadableDataset:
    """Return a dataset whose order leaves out the samples that are too short for clips that drop these.

    Samples keep their numbers. It is the dataset itself if no sample is too short.

    Args:
        dataset: the dataset.
        stored: the stored fields by name.
        clips: the clips by name.

    Raises:
        ConfigError: all samples are too short; or some are, and the dataset has an order of its own.
    """
    dropping = [(stored[name], clip) for name, clip in clips.items() if clip.short == "drop"]
    if not dropping or not dataset.numbers:
        return dataset

    def long_enough(numbers: Indices) -> NDArray[np.bool_]:
        selection, enough = dataset.selection(numbers), np.ones(len(numbers), np.bool_)
        for name, clip in dropping:
            kind = dataset.fields[name]
            column, there = facts_column(name) if kind.kind == "video" else length_column(name), present_column(name)
            with selection.fetch([column, *([there] if kind.optional else [])]):
                values, absent = selection.column(column), ~selection.column(there) if kind.optional else False
            lengths = values if kind.kind == "images" else video_lengths(values)[clip.in_seconds]
            enough &= (lengths > clip.span) | absent
        return enough

    enough = np.concatenate([*in_parts(long_enough, dataset.numbers)])
    count = int(enough.sum())
    if count == len(enough):
        return dataset
    told = f"{len(enough) - count} of {len(enough)} samples of {dataset.path} are too short for {dropping[0][1]!r}"
    if not count:
        raise ConfigError(f"{told}: take fewer frames, a smaller stride, or short='pad'")
    if dataset.orders_itself:
        raise ConfigError(
            f"{told}, and {dataset!r} draws its samples by an order of its own: weigh or mix `dataset.clips(...)`, or "
            "take short='pad'"
        )
    return Weighted(dataset, Weights(enough.astype(np.uint8), count, replacement=False))
