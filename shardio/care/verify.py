"""Verification: is a dataset on disk still what its manifest says?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..dataset.dataset import Dataset, Location
from ..engines import image_decoding
from ..errors import BadSample, ConfigError, DatasetError
from ..format import checksums
from ..format.fields import CHECKSUM, Field, shape_column
from ..loader.batch.bad_samples import is_bad_sample
from ..system.threads import in_order
from ..system.types import Indices
from .examine import blocks, readable, reason, threads, value

_NO_CHECKSUMS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        shard: its name; None where the dataset as a whole is meant.
        reason: what is wrong.
        location: of the sample, if it is one.
        count: problems that this stands for.
    """

    shard: str | None
    reason: str
    location: Location | None = None
    count: int = 1

    def __str__(self) -> str:
        if self.location is not None:
            return f"{self.location}: {self.reason}"
        stem = (self.shard or "").partition(".")[0]
        named = self.shard is None or self.reason.startswith(f"{stem}.")  # one of its files
        return self.reason if named else f"{self.shard}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: shard, row, sample and key (None where there is none), reason and count."""
        row, sample, key = (None,) * 3 if (at := self.location) is None else (at.row, at.index, at.key)
        return {
            "shard": self.shard, "row": row, "sample": sample, "key": key, "reason": self.reason, "count": self.count
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what is wrong.

    Attributes:
        shards: shards looked at.
        samples: samples whose own checksum was computed; 0 unless deep.
        found: what is wrong, in the order of the shards; empty if all is well.
    """

    shards: int
    samples: int
    found: tuple[Problem, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each, naming shard, sample, value and rule."""
        return tuple(map(str, self.found))

    @property
    def count(self) -> int:
        """How many things are wrong, those that are not listed too."""
        return sum(problem.count for problem in self.found)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = [problem.to_dict() for problem in self.found]
        return {"shards": self.shards, "samples": self.samples, "count": self.count, "problems": found}


def verify(
    dataset: Dataset,
    *,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    most: int = 20,
) -> Verification:
    """Compares every shard's files with the manifest.

    Args:
        dataset: on disk.
        deep: also read every sample through the container, compare its own checksum, decode its images, texts, JSON and
            arrays, compare the images' sizes with those that were stored, and compute the digest anew.
        progress: called with shards done and shards in all.
        workers: threads; one for each processor without it. They change nothing in the result.
        most: bad samples to list of each shard; the others are counted.

    Raises ConfigError for a wrong argument; what it finds is in the result.
    """
    if most < 0:
        raise ConfigError(f"most must be at least 0, got {most}")
    shards = dataset.manifest.shards
    digest = checksums.Digest(dataset.fields)
    found: list[Problem] = []
    samples, shard = 0, _Shard(most)
    for seen in in_order(partial(_look, dataset, most), _tasks(dataset, deep), threads(workers)):
        digest.update(seen.checksums)
        samples += len(seen.checksums)
        shard.add(seen)
        if not seen.last:
            continue
        found += shard.problems(shards.names[seen.shard])
        shard = _Shard(most)
        if progress is not None:
            progress(seen.shard + 1, len(shards))
    if deep and not found and digest.text() != dataset.digest:
        told = f"the digest of the samples is {digest.text()}, the manifest says {dataset.digest}"
        found.append(Problem(None, told))
    return Verification(len(shards), samples, tuple(found))


@dataclass(frozen=True, slots=True)
class _Task:
    """A shard's files, or a block of its samples."""

    shard: int
    indices: Indices | None
    last: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a task has found.

    Attributes:
        shard, last: the task's.
        wrong: what is wrong with the shard.
        bad: samples, as many as may be listed.
        more: further bad samples.
        checksums: as they were stored, uint64, of all samples that can be read.
    """

    shard: int
    last: bool
    wrong: tuple[str, ...] = ()
    bad: Sequence[Problem] = ()
    more: int = 0
    checksums: NDArray[np.uint64] = field(default_factory=lambda: _NO_CHECKSUMS)


@final
class _Shard:
    """What is wrong with one shard, of all that its tasks have found."""

    def __init__(self, most: int) -> None:
        self._wrong: dict[str, None] = {}  # a set in order: each of a shard's blocks may tell the same
        self._bad: list[Problem] = []
        self._most, self._more = most, 0

    def add(self, seen: _Seen) -> None:
        self._wrong |= dict.fromkeys(seen.wrong)
        self._bad += seen.bad
        self._more += seen.more + len(self._bad[self._most :])
        del self._bad[self._most :]

    def problems(self, name: str) -> list[Problem]:
        more = [Problem(name, f"and {self._more} more bad samples", count=self._more)] if self._more else []
        return [Problem(name, told) for told in self._wrong] + self._bad + more


def _tasks(dataset: Dataset, deep: bool) -> Iterator[_Task]:
    starts, samples = dataset.manifest.shards.starts, dataset.manifest.shards.samples
    for shard in range(len(samples)):
        stop = int(starts[shard + 1])
        whole_shard = deep and int(samples[shard]) > 0
        yield _Task(shard, None, not whole_shard)
        if whole_shard:
            for indices in blocks(dataset, shard, np.arange(int(starts[shard]), stop)):
                yield _Task(shard, indices, int(indices[-1]) == stop - 1)


def _look(dataset: Dataset, most: int, task: _Task) -> _Seen:
    name = dataset.manifest.shards.names[task.shard]
    files = containers.get(dataset.manifest.container).files(dataset.path / name)
    try:
        if task.indices is None:
            _check_files(dataset, task.shard, files)
            return _Seen(task.shard, task.last)
        if not all(file.is_file() for file in files):  # which the task of the files tells
            return _Seen(task.shard, task.last)
        dataset.reader(task.shard)
    except (DatasetError, OSError) as error:
        if not is_bad_sample(error):
            raise
        return _Seen(task.shard, task.last, (reason(error, dataset, name),))
    return _look_at_samples(dataset, most, task.shard, task.last, task.indices)


def _check_files(dataset: Dataset, shard: int, files: Sequence[Path]) -> None:
    if not files:
        return
    for file in files:
        if not file.is_file():
            raise DatasetError(f"{file.name} is missing")
    shards = dataset.manifest.shards
    size, checksum = checksums.of_files(files)
    if size != shards.bytes[shard]:
        raise DatasetError(f"{size} bytes, the manifest says {shards.bytes[shard]}")
    if checksum != shards.checksums[shard]:
        raise DatasetError(f"checksum {checksum} is not {shards.checksums[shard]}")


def _look_at_samples(dataset: Dataset, most: int, shard: int, last: bool, indices: Indices) -> _Seen:
    name = dataset.manifest.shards.names[shard]
    images = [shape_column(n) for n, field in dataset.fields.items() if field.kind == "image"]
    stored: list[NDArray[np.uint64]] = []
    faults: dict[int, list[str]] = {}
    for part, columns in readable(dataset, indices, [*dataset.fields, *images, CHECKSUM]):
        if isinstance(columns, Exception):
            faults[int(part[0])] = [reason(columns, dataset, name)]
            continue
        stored.append(columns[CHECKSUM])
        for row, told in _faults(dataset.fields, columns):
            faults.setdefault(int(part[row]), []).append(told)
    listed = [Problem(name, "; ".join(faults[index]), dataset.locate(index)) for index in sorted(faults)[:most]]
    checksums_stored = np.concatenate(stored) if stored else _NO_CHECKSUMS
    return _Seen(shard, last, (), listed, len(faults) - len(listed), checksums_stored)


def _faults(fields: Mapping[str, Field], columns: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """What is wrong with samples that can be read: rows and reasons."""
    names = sorted(fields)
    actual, expected = checksums.of_samples({n: columns[n] for n in names}, names), columns[CHECKSUM]
    for row in np.flatnonzero(actual != expected).tolist():
        yield row, f"checksum {int(actual[row]):016x} is not {int(expected[row]):016x}"
    for name, kind in fields.items():
        if kind.fixed or kind.kind == "bytes":  # any bytes of the right size are a value
            continue
        sizes = columns[shape_column(name)].tolist() if kind.kind == "image" else [None] * len(actual)
        for row, (one, size) in enumerate(zip(columns[name], sizes, strict=True)):
            if told := _fault(kind, bytes(one), size):
                yield row, f"field {name!r}: {told}"


def _fault(kind: Field, stored: bytes, size: Sequence[int] | None) -> str | None:
    """What is wrong with a stored value of a kind; of an image with that height and width."""
    try:
        if size is None:
            value(kind, stored)
        else:
            image_decoding.check(stored, kind.channels or 3, (size[0], size[1]))
    except BadSample as error:
        return f"{error}"
    if size is not None and kind.shape not in (None, tuple(size)):
        return f"the image is {tuple(size)} (height, width), the manifest says {kind.shape}"
    return None
