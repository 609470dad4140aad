"""The plan of a conversion: where shards begin and end, and values that distinguish it from other conversions.

Shards are cut by the source's own sizes before any is written, so each is a task of its own, and which process writes
it changes nothing.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..dataset.writer import DEFAULT_SHARD_SIZE, on_disk
from ..errors import ConfigError, SourceError
from ..format import checksums, manifest
from ..format.fields import Field
from ..output.shard_writer import Encoded, ShardWriter
from ..system.types import Indices
from ..system.units import parse_size
from .runners import portable_errors
from .source import Source
from .tasks import WriteTask, read_encoded

_FINGERPRINT_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """The files that samples become. `conversion.convert` has the same keywords.

    Raises ConfigError for a container that does not exist or writes no files, and for text that is no size.
    """

    container: str = "tar"
    shard_size: int | str = DEFAULT_SHARD_SIZE
    container_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_size(self.shard_size, "shard_size")
        on_disk(self.container)

    @property
    def shard_bytes(self) -> int:
        return parse_size(self.shard_size, "shard_size")

    def check(self, fields: Mapping[str, Field]) -> None:
        """Raise ConfigError if no shard of these fields can be written with the container's options."""
        with tempfile.TemporaryDirectory() as folder:
            ShardWriter(Path(folder), self.container, fields, 0, 0, self.container_options).discard()


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


def estimate(source: Source, numbers: Indices | None, shards: ShardOptions) -> Estimate:
    """Return an estimate of what converting these samples would write. It reads few samples, if any.

    Raises ConfigError for options that do not fit, SourceError for a source without samples.
    """
    shards.check(source.fields)
    sizes = _sizes(source, numbers)
    return Estimate(len(sizes), len(cut(sizes, shards.shard_bytes)), int(sizes.sum()), shards.container)


def plan(source: Source, numbers: Indices | None, shards: ShardOptions) -> tuple[list[WriteTask], dict[str, Any]]:
    """Return the shards to write, and the plan: JSON values that distinguish this conversion from others.

    Raises ConfigError for metadata and options that do not fit, SourceError for a source without samples.
    """
    manifest.check_metadata(source.metadata)
    shards.check(source.fields)
    sizes = _sizes(source, numbers)
    chosen = range(len(sizes)) if numbers is None else numbers
    cuts = cut(sizes, shards.shard_bytes)
    tasks = [WriteTask(number, start, chosen[start:stop]) for number, (start, stop) in enumerate(cuts)]
    content = xxhash.xxh3_128(np.ascontiguousarray(sizes).data)
    content.update(b"" if numbers is None else np.ascontiguousarray(numbers).data)
    with portable_errors():
        some_samples = fingerprint(source, chosen)
    return tasks, {
        "container": shards.container,
        "options": {name: str(value) for name, value in shards.container_options.items()},
        "fields": checksums.Digest(source.fields).text(),
        "metadata": xxhash.xxh3_128_hexdigest(repr(sorted(source.metadata.items())).encode()),
        "samples": len(sizes),
        "shard_size": shards.shard_bytes,
        "shards": len(tasks),
        "sizes and order": content.hexdigest(),
        "some samples": some_samples,
        **getattr(source, "changes", {}),  # what transforms or decodes, in case it changes none of the samples above
    }


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


def _sizes(source: Source, numbers: Indices | None) -> NDArray[np.int64]:
    """Return the estimated bytes of each sample that is converted, int64 [n].

    Raises ConfigError for numbers that the source does not have, SourceError if no samples are left.
    """
    sizes = source.sizes()
    if numbers is not None:
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(sizes)):
            raise ConfigError(f"numbers must be in [0, {len(sizes)}), got {numbers.min()} to {numbers.max()}")
        sizes = sizes[numbers]
    if not len(sizes):
        raise SourceError("the source holds no samples" if numbers is None else "no samples are chosen")
    return sizes
