"""Choosing with SPDL: DistributedRandomSampler and MergeIterator. Neither has a state to resume from."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from benchmarks._choosing import (
    CLASS_SIZES,
    LABELS,
    MIXED,
    PER_CLASS,
    SAMPLES,
    SCORES,
    SHARES,
    SOURCES,
    Feed,
    Place,
)

REQUIREMENTS = ("spdl-core==0.8.0", "numpy==2.4.6")  # its samplers; spdl-io, which decodes, needs FFmpeg
VERSIONS = ("spdl-core",)
IMPORTS = ("spdl.source",)
HOW = {
    "all": "DistributedRandomSampler",
    "weighted": "DistributedRandomSampler with weights",
    "balanced": "DistributedRandomSampler with weights",
    "mix": "MergeIterator with weights",
}


def prepare(folder: Path) -> None:
    """SPDL has no format of its own; its samplers yield numbers."""
    folder.mkdir(parents=True)


def grow(folder: Path) -> None:
    """Nothing grows: what a number means is up to the program."""


def feed(task: str, place: Place) -> Feed:
    """A sampler for a task."""
    if task == "mix":
        return _Feed(_merged(place), place)
    if task == "all":
        return _Feed(_sampled(SAMPLES, place, None, None), place)
    if task == "balanced":
        weights = [1 / CLASS_SIZES[label] for label in LABELS]
        return _Feed(_sampled(SAMPLES, place, weights, PER_CLASS * len(CLASS_SIZES)), place)
    return _Feed(_sampled(SAMPLES, place, SCORES.tolist(), SAMPLES), place)


def _sampled(count: int, place: Place, weights: list[float] | None, draws: int | None) -> Iterable[int]:
    from spdl.source import DistributedRandomSampler

    sampler: Iterable[int] = DistributedRandomSampler(
        count, rank=place.rank, world_size=place.world, weights=weights, num_draws=draws
    )
    return sampler


def _merged(place: Place) -> Iterable[int]:
    from spdl.source.utils import MergeIterator

    parts = [[source.start + int(n) for n in _sampled(len(source), place, None, None)] for source in SOURCES]
    merged: Iterable[int] = MergeIterator(parts, weights=SHARES, stop_after=MIXED // place.world, seed=place.rank)
    return merged


class _Feed(Feed):
    """The sampler's numbers in batches."""

    def __init__(self, numbers: Iterable[int], place: Place) -> None:
        self._numbers = iter(numbers)
        self._batch_size = place.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        while batch := [int(number) for number in islice(self._numbers, self._batch_size)]:
            yield batch
