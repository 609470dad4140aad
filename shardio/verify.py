"""Verification: is a dataset on disk still what its manifest says?"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import checksums, containers
from .dataset import Dataset
from .errors import DatasetError
from .fields import CHECKSUM

BLOCK_SAMPLES = 1024


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what is wrong.

    Attributes:
        shards: shards looked at.
        samples: samples whose own checksum was computed; 0 unless deep.
        problems: a line each, naming shard, value and rule; empty if all is well.
    """

    shards: int
    samples: int
    problems: tuple[str, ...]


def verify(dataset: Dataset, *, deep: bool = False, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Compares every shard's files with the manifest.

    Args:
        dataset: on disk.
        deep: also read every sample through the container, compare its own checksum, and compute the digest anew.
        progress: called with shards done and shards in all.
    """
    shards = dataset.manifest.shards
    problems: list[str] = []
    digest = checksums.Digest(dataset.fields)
    samples = 0
    for number, name in enumerate(shards.names):
        try:
            if deep:  # first: it can tell which samples are damaged
                samples += _shard_samples(dataset, number, digest)
            _shard_files(dataset, number)
        except (DatasetError, OSError) as error:
            told = str(error) if isinstance(error, DatasetError) else f"{error.strerror or error}"
            problems.append(told if name in told else f"{name}: {told}")
        if progress is not None:
            progress(number + 1, len(shards))
    if deep and not problems and digest.text() != dataset.digest:
        problems.append(f"the digest of the samples is {digest.text()}, the manifest says {dataset.digest}")
    return Verification(len(shards), samples, tuple(problems))


def _shard_files(dataset: Dataset, number: int) -> None:
    shards = dataset.manifest.shards
    path: Path = dataset.path / shards.names[number]
    files = containers.get(dataset.manifest.container).files(path)
    if not files:
        return
    for file in files:
        if not file.is_file():
            raise DatasetError(f"{file.name} is missing")
    size, checksum = checksums.of_files(files)
    if size != shards.bytes[number]:
        raise DatasetError(f"{path.name}: {size} bytes, the manifest says {shards.bytes[number]}")
    if checksum != shards.checksums[number]:
        raise DatasetError(f"{path.name}: checksum {checksum} is not {shards.checksums[number]}")


def _shard_samples(dataset: Dataset, number: int, digest: checksums.Digest) -> int:
    start, stop = (int(dataset.manifest.shards.starts[number + i]) for i in (0, 1))
    for first in range(start, stop, BLOCK_SAMPLES):
        indices = np.arange(first, min(first + BLOCK_SAMPLES, stop))
        dataset.check(indices, {})
        digest.update(dataset.select(indices).column(CHECKSUM))
    return stop - start
