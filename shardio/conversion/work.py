"""The work on one shard: its samples read, checked and written, or found standing already. Any process may do it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..dataset.shard_writer import Encoded, ShardWriter, WrittenShard, encode
from ..errors import BadSample, DatasetError
from ..system.types import Sample
from .journal import Journal, Record, Skipped
from .source import HasBlocks, Source

Advance: TypeAlias = Callable[[int], None]
"""Called with a number of samples that are done."""

BLOCK_SAMPLES = 256
_PROBED = 8  # samples that tell one source from another
TOGETHER = 256  # samples that a source is asked for at once


@runtime_checkable
class HasEncoded(Protocol):
    """A source whose samples are stored bytes already: a dataset of shardio's own."""

    def encoded(self, numbers: NDArray[np.int64]) -> Iterator[Encoded | DatasetError]:
        """Samples in the order asked for; what is damaged comes as the error that says so."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every task of one job shares.

    Attributes:
        source: the samples, or the files to be adopted.
        out: the dataset's directory.
        container: of the shards.
        options: the container's own.
        skip: whether bad samples are left out.
        make: `make(settings, task, journal, advance)` writes a shard, which is not there yet: a module's function.
        doing: a word for it.
        knows_samples: whether the tasks' counts are samples.
        adopted: whether the shards' files are those of others.
        beside: whether those files are in `out` already.
        run: the journal's run that the tasks are of.
    """

    source: Any
    out: Path
    container: str
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: bool = False
    make: "Callable[[Settings, Any, Journal, Advance], Record] | None" = None
    doing: str = "writing"
    knows_samples: bool = True
    adopted: bool = False
    beside: bool = False
    run: str = ""

    @property
    def threads(self) -> bool:
        """Whether threads of one process may have copies of it each."""
        return bool(getattr(self.source, "threads", False))


class Task(Protocol):
    """One shard's task: its number, and how much is to be done, in samples or files."""

    @property
    def number(self) -> int:
        """The shard's."""

    @property
    def count(self) -> int:
        """How much of the whole it is."""


@dataclass(frozen=True, slots=True)
class Samples:
    """A shard to be written: its number, its first sample's index, and its samples' numbers in the source."""

    number: int
    first: int
    samples: range | NDArray[np.int64]

    @property
    def count(self) -> int:
        """Its samples."""
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a task: how much was done, how many of its samples were left out, and the first of them."""

    number: int
    count: int
    skipped: int
    first: Skipped | None


def write(settings: Settings, task: Task, advance: Advance) -> Done:
    """Writes a shard and its record, unless both are there and whole.

    Raises BadSample unless such are skipped, and OSError. What was begun is removed.
    """
    journal = Journal(settings.out, settings.container, settings.run)
    record = journal.read(task.number)
    if record is not None and record.skipped and not settings.skip:
        raise BadSample(record.skipped[0].reason)  # it was skipped before, and is not to be now
    if record is None or not journal.is_whole(record):
        record = (settings.make or packed)(settings, task, journal, advance)
        journal.write(task.number, record)
    else:
        advance(task.count)
    skipped = record.skipped
    return Done(task.number, task.count, len(skipped), skipped[0] if skipped else None)


def packed(settings: Settings, task: Any, journal: Journal, advance: Advance) -> Record:
    """A shard of the source's samples."""
    fields = settings.source.fields
    builder = ShardWriter(journal.shards, settings.container, fields, task.number, task.first, settings.options)
    skipped: list[Skipped] = []
    try:
        for number, encoded in _in_order(settings.source, task.samples):
            if isinstance(encoded, Encoded):
                builder.add(encoded)
            elif settings.skip:
                skipped.append(Skipped(number, str(encoded)))
            else:
                raise encoded
            advance(1)
        shard = builder.finish() if builder.samples else NOTHING
        return Record(shard, tuple(skipped))
    finally:
        builder.discard()  # finds nothing to remove once the shard stands


NOTHING = WrittenShard("", 0, 0, "", np.empty(0, np.uint64), {})
"""Stands for a shard whose samples were all left out: there is no file."""


def _in_order(source: Source, numbers: range | NDArray[np.int64]) -> Iterator[tuple[int, Encoded | DatasetError]]:
    """A shard's samples. They are read in the source's own order, which is what sources are quick at."""
    order = np.asarray(numbers)
    if (np.diff(order) > 0).all():
        yield from read(source, order)
        return
    places = np.argsort(order, kind="stable")
    found: list[Any] = [None] * len(order)  # one shard's samples
    for place, one in zip(places.tolist(), read(source, order[places]), strict=True):
        found[place] = one
    yield from found


def read(source: Source, numbers: NDArray[np.int64]) -> Iterator[tuple[int, Encoded | DatasetError]]:
    """Samples as they are stored, by number; what is bad comes as the error that says so."""
    if isinstance(source, HasEncoded):
        yield from zip(numbers.tolist(), source.encoded(numbers), strict=True)
        return
    fields = source.fields
    samples = _in_blocks(source, numbers) if isinstance(source, HasBlocks) else _one_by_one(source, numbers)
    for number, sample in zip(numbers.tolist(), samples, strict=True):
        if isinstance(sample, BadSample):
            yield number, sample
            continue
        try:
            yield number, encode(sample, fields)
        except BadSample as error:
            yield number, BadSample(f"{_name(number, sample)}: {error}")


def _in_blocks(source: HasBlocks, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
    for start in range(0, len(numbers), TOGETHER):
        yield from source.block(numbers[start : start + TOGETHER])


def _one_by_one(source: Source, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
    for number in numbers.tolist():
        try:
            sample: Sample | BadSample = source[number]
        except BadSample as error:
            sample = error
        yield sample


def fingerprint(source: Source, numbers: range | NDArray[np.int64]) -> list[str | None]:
    """The checksums of some of these samples, None for bad ones: another source or other options give others."""
    places = np.unique(np.linspace(0, len(numbers) - 1, _PROBED).astype(np.int64))
    found = read(source, np.sort([int(numbers[place]) for place in places.tolist()]))
    return [f"{one.checksum:016x}" if isinstance(one, Encoded) else None for _, one in found]


def _name(number: int, sample: Sample) -> str:
    key = sample.get("key")
    return f"sample {number} of the source" + (f" (key {key})" if isinstance(key, str) else "")


def tasks(numbers: range | NDArray[np.int64], cuts: Sequence[tuple[int, int]]) -> list[Samples]:
    """The shards to be written of samples `numbers`, cut at `cuts`."""
    return [Samples(number, start, numbers[start:stop]) for number, (start, stop) in enumerate(cuts)]
