"""Samples read to be looked at, whatever is wrong with some of them: what `verify` and `contents` share."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ..dataset.dataset import Dataset
from ..engines import image_decoding
from ..errors import BadSample, ConfigError, DatasetError
from ..format.fields import Field
from ..loader.batch.bad_samples import is_bad_sample
from ..system import cpus
from ..system.types import Indices

BLOCK_SAMPLES = 1024
BLOCK_BYTES = 32 << 20

ReadBlock: TypeAlias = tuple[Indices, Mapping[str, Any] | Exception]
"""Some samples and their stored fields, or one sample and why it can't be read."""


def blocks(dataset: Dataset, shard: int, indices: Indices, most: int = BLOCK_SAMPLES) -> Iterator[Indices]:
    """Samples of one shard, not empty, in parts that fit in memory, of at most so many."""
    shards = dataset.manifest.shards
    size = int(shards.bytes[shard]) // int(shards.samples[shard])
    step = max(1, min(most, BLOCK_BYTES // max(1, size)))
    for first in range(0, len(indices), step):
        yield indices[first : first + step]


def readable(dataset: Dataset, indices: Indices, names: Iterable[str]) -> Iterator[ReadBlock]:
    """Fields of some samples, not empty, as `Selection.stored` gives them, in as few parts as can be read.

    Raises what says that this process is in trouble, not the samples.
    """
    names = list(names)
    part: ReadBlock
    try:
        selection = dataset.select(indices)
        part = indices, {name: selection.stored(name) for name in names}
    except (DatasetError, OSError) as error:
        if not is_bad_sample(error):
            raise
        part = indices, error
    if isinstance(part[1], Exception) and len(indices) > 1:
        middle = len(indices) // 2
        yield from readable(dataset, indices[:middle], names)
        yield from readable(dataset, indices[middle:], names)
    else:
        yield part


def value(field: Field, stored: bytes) -> Any:
    """What a stored value decodes to, an image to its pixels; BadSample says why it does not."""
    try:
        return image_decoding.decode(stored, field.channels or 3) if field.kind == "image" else field.decode(stored)
    except (ValueError, RecursionError) as error:  # what UTF-8, JSON and .npy raise
        raise BadSample(f"not {field.kind}: {error}") from error


def reason(error: Exception, dataset: Dataset, shard: str) -> str:
    """What an error says, less the path of the shard that it is told of anyway."""
    told = error.strerror or f"{error}" if isinstance(error, OSError) else f"{error}"
    place = f"{dataset.path / shard}"
    return told.removeprefix(f"{place}, ").removeprefix(f"{place}: ").replace(f"{dataset.path}{os.sep}", "")


def threads(workers: int | None) -> int:
    """Threads to use: `workers`, or one for each processor; ConfigError below 1."""
    if workers is None:
        return cpus.usable()
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers!r}")
    return workers
