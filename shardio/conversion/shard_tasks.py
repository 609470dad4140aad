"""Tasks: one shard each, whose samples are read, checked and written, in any process; and the plan of all of them.

Shards are cut by the source's own sizes before any is written, so each is a task of its own, and which process writes
it changes nothing.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, DatasetError, Message, Option, SourceError
from ..format import checksums, manifest
from ..format.fields import Field, as_ragged
from ..format.manifest import Manifest
from ..output import Run
from ..output.own_files import next_number
from ..output.records import GROWN, Record, Skipped
from ..output.shard_writer import Encoded, ShardWriter, WrittenShard, encode
from ..system.directory import Directory
from ..system.types import Indices, Sample
from . import image_counts, video_notes
from .runners import Advance, portable_errors
from .source import Source, Tally

_FINGERPRINT_SAMPLES = 8
BLOCK_SAMPLES = 256
"""The number of samples that are read together, and that one task of `where=` evaluates."""

NO_SHARD = WrittenShard("", 0, 0, "", np.empty(0, np.uint64), {})
"""The record of a shard whose samples were all left out: it has no file."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The data that all shard tasks of one conversion share.

    Attributes:
        source: the samples, or the files to adopt.
        container: the shards' container.
        container_options: options of the container.
        skip: whether to leave bad samples out.
        make_shard: `make_shard(context, task, folder, advance)` writes a shard that does not exist yet to a folder; a
            function at the top of a module, to be pickled. None for `write_samples`.
        knows_samples: whether the tasks' counts are samples. If not, those that are left out have numbers from the
            first sample of their shard on.
        adopted: whether the shards are files that others wrote.
        unchecked: whether their samples are not read, and have no checksums.
        beside: whether those files are already in the output.
    """

    source: Source
    container: str
    container_options: Mapping[str, Any] = field(default_factory=dict)
    skip: bool = False
    make_shard: "Callable[[TaskContext, Any, Directory, Advance], Record] | None" = None
    knows_samples: bool = True
    adopted: bool = False
    unchecked: bool = False
    beside: bool = False


class ShardTask(Protocol):
    """The task for one shard."""

    @property
    def number(self) -> int:
        """The shard's number."""

    @property
    def count(self) -> int:
        """The task's part of the whole work, in samples."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A shard to be written from a source's samples.

    Attributes:
        number: the shard's number.
        first: the index of its first sample in the dataset.
        samples: its samples' numbers in the source.
    """

    number: int
    first: int
    samples: range | NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.samples)


class TaskResult(NamedTuple):
    """The number of samples that a task has worked on and has left out, and the first of the latter."""

    samples: int
    skipped: int
    first_skipped: Skipped | None


def run_shard_task(context: TaskContext, run: Run, task: Any, advance: Advance) -> TaskResult:
    """Write a shard and its record to a run, unless both exist and are complete.

    Raises BadSample unless bad samples are skipped, OSError and StoreError. An unfinished shard is removed.
    """
    record = run.read(task.number)
    if record is not None and record.skipped and not context.skip:
        raise BadSample(record.skipped[0].reason)  # the interrupted run skipped it, this one must not
    if record is not None and run.is_whole(task.number, record):
        advance(record.shard.samples + len(record.skipped))
    else:
        with run.building() as folder:
            record = (context.make_shard or write_samples)(context, task, folder, advance)
            if record.shard.samples:
                record = run.put(task.number, record, folder)
        record = run.record(task.number, record)
    skipped = record.skipped
    return TaskResult(record.shard.samples + len(skipped), len(skipped), skipped[0] if skipped else None)


def write_samples(context: TaskContext, task: WriteTask, folder: Directory, advance: Advance) -> Record:
    """Write a shard of the source's samples to a folder; return its record."""
    fields = context.source.fields
    rows = None if context.skip else task.count
    writer = ShardWriter(folder, context.container, fields, task.number, task.first, context.container_options, rows)
    skipped: list[Skipped] = []
    entry_bytes = {name: field.entry_bytes for name, field in fields.items() if field.ragged}
    entries = dict.fromkeys(entry_bytes, 0)
    has_videos = any(field.kind == "video" for field in fields.values())
    tally = context.source.tally or Tally()
    tally.clear()  # of samples that were read for other purposes
    try:
        for number, encoded in _in_order(context.source, task.samples):
            if isinstance(encoded, Encoded):
                writer.add(encoded)
                for name, size in entry_bytes.items():
                    entries[name] += len(encoded.stored[name]) // size
                image_counts.count(encoded, fields, tally.counts)
                if has_videos:
                    video_notes.count(encoded, fields, tally.counts)
            elif context.skip:
                skipped.append(Skipped(number, encoded.wording))
            else:
                raise encoded
            advance(1)
        shard = writer.finish() if writer.samples else NO_SHARD
        return Record(shard, tuple(skipped), dict(tally.counts), rounded=dict(tally.rounded), entries=entries)
    finally:
        writer.discard()  # finds nothing to remove once the shard is in its place


def _in_order(source: Source, numbers: range | NDArray[np.int64]) -> Iterator[tuple[int, Encoded | DatasetError]]:
    """Yield a shard's samples in the order of `numbers`; they are read in ascending order, which is faster."""
    order = np.asarray(numbers)
    if (np.diff(order) > 0).all():
        yield from read_encoded(source, order)
        return
    places = np.argsort(order, kind="stable")
    samples: list[Any] = [None] * len(order)  # the samples of one shard
    for place, sample in zip(places.tolist(), read_encoded(source, order[places]), strict=True):
        samples[place] = sample
    yield from samples


def read_encoded(source: Source, numbers: Indices) -> Iterator[tuple[int, Encoded | DatasetError]]:
    """Yield each sample's number and the sample in stored form; a bad sample yields its error."""
    if (stored := source.encoded(numbers)) is not None:
        yield from zip(numbers.tolist(), stored, strict=True)
        return
    fields = source.fields
    has_instances = any(field.on or field.per for field in fields.values())
    starts = range(0, len(numbers), BLOCK_SAMPLES)
    samples = chain.from_iterable(source.block(numbers[start : start + BLOCK_SAMPLES]) for start in starts)
    for number, sample in zip(numbers.tolist(), samples, strict=True):
        if isinstance(sample, BadSample):
            yield number, sample
            continue
        try:
            encoded = encode(sample, fields)
            if has_instances:
                image_counts.check_instances(encoded, fields)
            yield number, encoded
        except BadSample as error:
            odd = find_odd_shape(sample, fields)
            advice = Message("; shapes may differ with {}", Option("ragged", ",".join(odd))) if odd else ""
            key = f" (key {sample['key']})" if isinstance(sample.get("key"), str) else ""
            named = BadSample("sample {} of the source{}: {}{}", number, key, error, advice)
            named.storable = bool(odd)
            yield number, named


def find_odd_shape(sample: Sample, fields: Mapping[str, Field]) -> list[str]:
    """Return the fields whose arrays break their shape, in the form of the option `ragged` that allows it.

    Nothing else may be wrong with these arrays.
    """
    odd = {
        name: value.shape
        for name, field in fields.items()
        if field.kind == "array" and isinstance(value := sample.get(name), np.ndarray) and not field.fits(value.shape)
    }
    return [name if as_ragged(shape) == as_ragged(fields[name].shape) else f"{name}=all" for name, shape in odd.items()]


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
    source: Source,
    numbers: Indices | None,
    container: str,
    shard_size: int,
    options: Mapping[str, Any],
    grows: Manifest | None = None,
) -> tuple[Estimate, list[WriteTask], dict[str, Any]]:
    """Plan the conversion of some samples, None for all; this reads few samples, if any.

    Args:
        source: the samples.
        numbers: the numbers of those to take, in order.
        container: the container of the shards.
        shard_size: the bytes of samples at which a shard ends.
        options: options of the container.
        grows: the dataset that the shards are added to; None if they make one.

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
    shard, sample = (0, 0) if grows is None else (next_number(grows.shards.names), grows.samples)
    cuts = enumerate(shard_boundaries(sizes, shard_size), shard)
    tasks = [WriteTask(number, sample + start, chosen[start:stop]) for number, (start, stop) in cuts]
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
            **({} if grows is None else {GROWN: f"{grows.digest}, at shard {shard}"}),
            **source.changes,  # what transforms or decodes, in case it changes none of the samples above
        },
    )


def shard_boundaries(sizes: NDArray[np.int64], shard_size: int) -> list[tuple[int, int]]:
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
    samples = encode_some(source, numbers, _FINGERPRINT_SAMPLES)
    return [f"{sample.checksum:016x}" if isinstance(sample, Encoded) else None for sample in samples]


def encode_some(source: Source, numbers: range | NDArray[np.int64], count: int) -> Iterator[Encoded | DatasetError]:
    """Yield `count` of these samples throughout, or all, in the source's order; a bad sample yields its error."""
    for _, sample in read_encoded(source, np.sort([int(numbers[place]) for place in throughout(len(numbers), count)])):
        yield sample


def throughout(count: int, most: int) -> list[int]:
    """Return up to `most` numbers in [0, count), ascending and evenly spaced, the first and the last one among them."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64)).tolist() if count else []
