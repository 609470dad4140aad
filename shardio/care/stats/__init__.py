"""What is in a dataset: sizes, labels and image sizes of all samples, pixels and values of some.

What the shards' indexes know is counted for every sample, in blocks and in bounded memory. Images, texts and arrays are
read of a random sample only.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from ...dataset.dataset import Dataset
from ...errors import ConfigError
from ...order.permutation import Permutation, derive
from ...system.threads import in_order
from ...system.types import Indices
from ..examine import blocks, threads
from ._counting import Counted, Seen, look
from .figures import BadValue as BadValue
from .figures import Channel as Channel
from .figures import Classes as Classes
from .figures import Contents as Contents
from .figures import FieldContents as FieldContents
from .figures import Grid as Grid
from .figures import Histogram as Histogram
from .figures import ImageStats as ImageStats
from .figures import Spread as Spread
from .figures import Values as Values

Progress = Callable[[str, int, int], None]
"""What is being done, how many samples, of how many."""

_COUNTED = 1 << 16  # samples at a time: a few columns of numbers of each
_LOOKED_AT = 32  # at a time: enough to read them together, few enough for every thread to have some
_KEY = 0x636F6E74656E7473  # so that the sample is not the loader's first batch of that seed


def stats(
    dataset: Dataset,
    *,
    sample: int = 1000,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Contents:
    """Tells what is in a dataset.

    Args:
        dataset: any.
        sample: samples, chosen at random, whose images, texts, JSON and arrays are read and decoded; 0 for none.
        seed: chooses them.
        workers: threads; one for each processor without it. They change nothing in the result.
        progress: called with `counting` or `decoding`, samples done and samples in all.

    Returns:
        All figures. Samples that can't be read or decoded are named in `bad`, if they were among those chosen.

    Raises ConfigError for a wrong argument, ShardCorrupt where a shard's index can't be read.
    """
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 0:
        raise ConfigError(f"sample must be a whole number of at least 0, got {sample!r}")
    told = progress or (lambda what, done, total: None)
    used = threads(workers)
    counted = _count(dataset, told)
    seen, sampled = _sample(dataset, _chosen(len(dataset), sample, seed), used, told)
    described = dataset.manifest
    return Contents(
        path=str(dataset.path),
        container=described.container,
        digest=described.digest,
        samples=described.samples,
        shards=len(described.shards),
        bytes=int(described.shards.bytes.sum()),
        sampled=sampled,
        seed=seed,
        bad=tuple(seen.bad),
        fields={name: column.contents(seen, described.metadata) for name, column in counted.items()},
    )


def _count(dataset: Dataset, progress: Progress) -> dict[str, Counted]:
    counted = {name: Counted(name, field, len(dataset)) for name, field in dataset.fields.items()}
    for first in range(0, len(dataset), _COUNTED):
        last = min(first + _COUNTED, len(dataset))
        selection = dataset.select(np.arange(first, last))
        for column in counted.values():
            column.add(selection)
        progress("counting", last, len(dataset))
    return counted


def _sample(dataset: Dataset, chosen: Indices, used: int, progress: Progress) -> tuple[Seen, int]:
    names = [n for n, field in dataset.fields.items() if field.kind not in ("scalar", "bytes")]
    seen = Seen(dataset.fields)
    if not names:
        return seen, 0
    done = 0
    for part in in_order(partial(look, dataset, names), _parts(dataset, chosen), used):
        seen.merge(part)
        done += part.samples
        progress("decoding", done, len(chosen))
    return seen, done


def _chosen(count: int, sample: int, seed: int) -> Indices:
    """The numbers of the samples to look at, ascending."""
    if sample >= count:
        return np.arange(count)
    return np.sort(Permutation(count, derive(seed, _KEY))(np.arange(sample)))


def _parts(dataset: Dataset, chosen: Indices) -> Iterator[Indices]:
    shards = dataset.manifest.shards.locate(chosen)[0]
    breaks = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(chosen)]
    for first, last in pairwise(breaks):
        if last > first:
            yield from blocks(dataset, int(shards[first]), chosen[first:last], _LOOKED_AT)
