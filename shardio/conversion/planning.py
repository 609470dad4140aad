"""The plan of a conversion: where shards begin and end, and values that distinguish it from other conversions.

Shards are cut by the source's own sizes before any is written, so each is a task of its own, and which process writes
it changes nothing.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, SourceError
from ..format import checksums, manifest
from ..output.shard_writer import Encoded, ShardWriter
from ..system.types import Indices
from .runners import portable_errors
from .source import Source
from .tasks import WriteTask, read_encoded

_FINGERPRINT_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated result of a conversion.

    Attributes:
        samples: the number of samples, bad ones included.
        shards: the number of shards.
        bytes: the size of the samples as the source estimates it, without what a container adds to each.
        container: the shards' container.
    """

    samples: int
    shards: int
    bytes: int
    container: str


def plan(
    source: Source, numbers: Indices | None, container: str, shard_size: int, options: Mapping[str, Any]
) -> tuple[Estimate, list[WriteTask], dict[str, Any]]:
    """Plan the conversion of some samples, None for all; this reads few samples, if any.

    Args:
        source: the samples.
        numbers: the numbers of those to take, in order.
        container: the container of the shards.
        shard_size: the bytes of samples at which a shard ends.
        options: options of the container.

    Returns:
        An estimate, the shards to write, and the plan: JSON values that distinguish this conversion from others.

    Raises ConfigError for metadata, numbers and options that do not fit, SourceError for a source without samples.
    """
    manifest.check_metadata(source.metadata)
    with tempfile.TemporaryDirectory() as folder:  # refuses options that do not fit
        ShardWriter(Path(folder), container, source.fields, 0, 0, options).discard()
    sizes = source.sizes()
    if numbers is not None:
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(sizes)):
            raise ConfigError(f"numbers must be in [0, {len(sizes)}), got {numbers.min()} to {numbers.max()}")
        sizes = sizes[numbers]
    if not len(sizes):
        raise SourceError("the source holds no samples" if numbers is None else "no samples are chosen")
    chosen = range(len(sizes)) if numbers is None else numbers
    cuts = enumerate(cut(sizes, shard_size))
    tasks = [WriteTask(number, start, chosen[start:stop]) for number, (start, stop) in cuts]
    content = xxhash.xxh3_128(np.ascontiguousarray(sizes).data)
    content.update(b"" if numbers is None else np.ascontiguousarray(numbers).data)
    with portable_errors():
        some_samples = fingerprint(source, chosen)
    return (
        Estimate(len(sizes), len(tasks), int(sizes.sum()), container),
        tasks,
        {
            "container": container,
            "options": {name: str(value) for name, value in options.items()},
            "fields": checksums.Digest(source.fields).text(),
            "metadata": xxhash.xxh3_128_hexdigest(repr(sorted(source.metadata.items())).encode()),
            "samples": len(sizes),
            "shard_size": shard_size,
            "shards": len(tasks),
            "sizes and order": content.hexdigest(),
            "some samples": some_samples,
            **getattr(
                source, "changes", {}
            ),  # what transforms or decodes, in case it changes none of the samples above
        },
    )


def cut(sizes: NDArray[np.int64], shard_size: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of each shard: it ends once it holds `shard_size` bytes or more."""
    ends = np.cumsum(sizes)
    cuts, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = min(len(sizes), int(np.searchsorted(ends, before + shard_size)) + 1)
        cuts.append((start, stop))
        start = stop
    return cuts


def fingerprint(source: Source, numbers: range | NDArray[np.int64]) -> list[str | None]:
    """Return checksums of some of these samples, None for bad ones: other sources and options have other checksums."""
    places = np.unique(np.linspace(0, len(numbers) - 1, _FINGERPRINT_SAMPLES).astype(np.int64))
    samples = read_encoded(source, np.sort([int(numbers[place]) for place in places.tolist()]))
    return [f"{sample.checksum:016x}" if isinstance(sample, Encoded) else None for _, sample in samples]
