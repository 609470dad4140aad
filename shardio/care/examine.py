"""Reading samples to examine them, whatever is wrong with some: what `verify` and `stats` share."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ..dataset.dataset import Dataset
from ..engines import whole_images
from ..errors import AccessDenied, BadSample, ConfigError, DatasetError, StoreUnavailable
from ..format.fields import Field
from ..loader.batch.quarantine import is_bad_sample
from ..system import cpus
from ..system.types import Indices
from ..views.view import BaseDataset

BLOCK_SAMPLES = 1024
BLOCK_BYTES = 32 << 20

ReadBlock: TypeAlias = tuple[Indices, Mapping[str, Any] | Exception]
"""Some samples and their stored fields, or one sample and the reason why it cannot be read."""


def blocks(dataset: BaseDataset, indices: Indices, most: int = BLOCK_SAMPLES) -> Iterator[Indices]:
    """Cut ascending sample indices into blocks of at most `most` samples and about 32 MiB, of a dataset's one shard."""
    known = sum(field.row_bytes for field in dataset.fields.values() if field.fixed)
    if not isinstance(dataset, Dataset):
        step = max(1, min(most, BLOCK_BYTES // max(1, known)))
        yield from (indices[first : first + step] for first in range(0, len(indices), step))
        return
    shards = dataset.manifest.shards
    shard_of = shards.locate(indices)[0]
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(shard_of)) + 1).tolist(), len(indices)]):
        if first == last:
            continue
        shard = int(shard_of[first])
        sample_bytes = max(known, int(shards.bytes[shard]) // int(shards.samples[shard]))
        step = max(1, min(most, BLOCK_BYTES // max(1, sample_bytes)))
        for start in range(first, last, step):
            yield indices[start : min(start + step, last)]


def read_blocks(dataset: BaseDataset, indices: Indices, names: Iterable[str]) -> Iterator[ReadBlock]:
    """Read fields of some samples as `Selection.stored` does, in as few blocks as can be read.

    An error that concerns this process and not the samples is raised.
    """
    names = list(names)
    block: ReadBlock
    try:
        selection = dataset.selection(indices)
        block = indices, {name: selection.stored(name) for name in names}
    except (DatasetError, OSError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or concerns_data(error)):
            raise
        block = indices, error
    if isinstance(block[1], Exception) and len(indices) > 1:
        middle = len(indices) // 2
        yield from read_blocks(dataset, indices[:middle], names)
        yield from read_blocks(dataset, indices[middle:], names)
    else:
        yield block


def decode(field: Field, stored: bytes) -> Any:
    """Decode a stored value, an image to its pixels; raise BadSample with the reason if it does not decode."""
    try:
        if field.kind == "images":
            field.check_images(stored, partial(whole_images.decode_as, Field("image")))
        return whole_images.decode_as(field, stored) if field.kind == "image" else field.decode(stored)
    except (ValueError, RecursionError) as error:  # raised alike for malformed UTF-8, JSON and .npy
        raise BadSample(f"not {field.kind}: {error}") from error


def concerns_data(error: BaseException) -> bool:
    """Return whether an error is about a dataset, and not about this process or the network."""
    return is_bad_sample(error) and not isinstance(error, (AccessDenied, StoreUnavailable))


def reason(error: Exception, dataset: BaseDataset, shard: str) -> str:
    """Return an error's message without the path of the shard, which the caller names separately."""
    message = error.strerror or f"{error}" if isinstance(error, OSError) else f"{error}"
    path = str(dataset.path / shard)
    return message.removeprefix(f"{path}, ").removeprefix(f"{path}: ").replace(f"{dataset.path}/", "")


def threads(workers: int | None) -> int:
    """Return the number of threads to use: `workers`, or one per core; raise ConfigError below 1."""
    if workers is None:
        return cpus.usable()
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError("{workers} must be at least 1, got {!r}", workers)
    return workers
