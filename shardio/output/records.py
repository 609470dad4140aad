"""The notes of a conversion: its plan, and a record of each finished shard, so that resume knows what is there."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import xxhash

from ..errors import ConfigError, Message, Option, ShardioError
from ..foreign.locations import LOST_END
from .shard_writer import WrittenShard

NamedState: TypeAlias = tuple[str, int, str | None]
"""An object as it was written: its name beside the manifest, its size in bytes, and its ETag."""

JOURNAL = ".converting"
"""The hidden folder of unfinished conversions, below a dataset's place."""

PLAN = "plan.json"
"""The file in it that describes the conversion; one with another plan does not resume it."""

GROWN = "grown from"
"""The key of a plan whose shards are added to a dataset; its value names that dataset, and the first new shard."""

COMPLETE = "{}: this append is complete, and was killed before it had tidied up: {resume} does that"
"""The error of an append that would add the samples of such an append once more; it takes the place."""

RECORD_NAME = re.compile(r"([0-9]{6,18})\.done")
RUN_NAME = re.compile(r"run-[0-9a-f]{8}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,249}")
_CHECKSUM = 16  # bytes of XXH3-128 before a record


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out.

    Attributes:
        number: the sample's number in the source.
        reason: why it cannot be stored; a `Message` if it names options.
    """

    number: int
    reason: str

    @property
    def ends_file(self) -> bool:
        """Whether it stands for all samples that damage has lost at the end of a file."""
        return self.reason.endswith(LOST_END)


@dataclass(frozen=True, slots=True)
class Record:
    """A finished shard. One without samples has no file.

    Attributes:
        shard: the shard.
        skipped: the samples that were left out of it.
        counts: by words for them, numbers of its images, see `conversion.image_counts`.
        objects: in a store, the shard's objects as they were written.
        rounded: by field, the largest change that a cast has made to a number.
        entries: by ragged field, the number of entries of all its values.
    """

    shard: WrittenShard
    skipped: tuple[Skipped, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    objects: tuple[NamedState, ...] = ()
    rounded: Mapping[str, float] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)


class _File(msgspec.Struct):
    name: str
    samples: int
    size: int
    checksum: str
    sample_checksums: bytes
    image_shapes: dict[str, tuple[int, int] | None]
    skipped: list[tuple[int, str | list[str | tuple[str, Any]]]]
    counts: dict[str, int]
    objects: list[NamedState]
    rounded: dict[str, float]
    entries: dict[str, int]
    keys: bytes = b""


def name_of(number: int) -> str:
    """Return the name of the record of shard `number`."""
    return f"{number:06d}.done"


def numbers_in(names: Iterable[str]) -> set[int]:
    """Return the numbers of the shards whose records are among some names."""
    return {int(found[1]) for name in names if (found := RECORD_NAME.fullmatch(name))}


def encode_record(record: Record) -> bytes:
    """Return the stored form of a record: its checksum, and then what it says."""
    shard = record.shard
    file = _File(
        shard.name, shard.samples, shard.bytes, shard.checksum, shard.sample_checksums.astype("<u8").tobytes(),
        dict(shard.image_shapes), [(bad.number, _stored(bad.reason)) for bad in record.skipped], dict(record.counts),
        list(record.objects), dict(record.rounded), dict(record.entries), shard.keys.astype("<u8").tobytes(),
    )  # fmt: skip
    data = msgspec.msgpack.encode(file)
    return xxhash.xxh3_128_digest(data) + data


def decode_record(data: bytes, place: str) -> Record:
    """Return the record that `encode_record` has stored; ShardioError, which names `place`, if it is damaged."""
    checksum, data = data[:_CHECKSUM], data[_CHECKSUM:]
    if checksum != xxhash.xxh3_128_digest(data):  # the shard itself does not tell a damaged image size
        raise ShardioError("{} is damaged: it does not begin with its checksum; start over with {overwrite}", place)
    try:
        file = msgspec.msgpack.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ShardioError(f"{place} is damaged: {error}") from error
    if not (0 <= file.samples == len(file.sample_checksums) / 8 or not file.sample_checksums):  # or unchecked
        raise ShardioError(f"{place} is damaged: {len(file.sample_checksums)} bytes for {file.samples} checksums")
    if len(file.keys) not in (0, 8 * file.samples):
        raise ShardioError(f"{place} is damaged: {len(file.keys)} bytes for the keys of {file.samples} samples")
    for name in [*([file.name] if file.samples else []), *(name for name, _, _ in file.objects)]:
        if not _FILE_NAME.fullmatch(name):
            raise ShardioError(f"{place}: {name!r} is not the name of a file")
    values, keys = (np.frombuffer(each, "<u8").astype(np.uint64) for each in (file.sample_checksums, file.keys))
    shard = WrittenShard(file.name, file.samples, file.size, file.checksum, values, file.image_shapes, keys)
    skipped = tuple(Skipped(number, _reason(stored)) for number, stored in file.skipped)
    return Record(shard, skipped, file.counts, tuple(file.objects), file.rounded, file.entries)


def _stored(reason: str) -> str | list[str | tuple[str, Any]]:
    """Return a reason as a record stores it: in parts if some are options, so that each interface spells them."""
    parts = reason.parts if isinstance(reason, Message) else ()
    if not any(isinstance(part, Option) for part in parts):
        return str(reason)
    return [(part.name, part.value) if isinstance(part, Option) else part for part in parts]


def _reason(stored: str | list[str | tuple[str, Any]]) -> str:
    if isinstance(stored, str):
        return stored
    return Message.of(part if isinstance(part, str) else Option(*part) for part in stored)


def decode_plan(text: bytes, place: str) -> dict[str, Any]:
    """Return a plan as it was written; ShardioError, which names `place`, if it is damaged."""
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShardioError("{} is damaged: {}; start over with {overwrite}", place, error) from error
    if not isinstance(plan, dict):
        raise ShardioError("{} is damaged: not an object; start over with {overwrite}", place)
    return plan


def compare(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError unless two plans are of the same conversion; `what` names the origin of `found`."""
    for key, one, other in _differences(found, wanted):
        raise ConfigError(
            "{} has {} {!r}, not {!r}: give the same source and options, or start over with {overwrite}",
            what,
            key,
            one,
            other,
        )


def is_of(found: Mapping[str, Any], conversion: Mapping[str, Any]) -> bool:
    """Return whether a plan is that of the conversion that a manifest names as its last."""
    return next(_differences(found, conversion), None) is None


def appends_the_same(conversion: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Return whether the last conversion of a manifest has appended what a plan appends, to whatever dataset."""
    return GROWN in conversion and is_of({**conversion, GROWN: plan.get(GROWN)}, plan)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys whose values differ in two plans, with both values; within an object, the keys that differ."""
    for key in sorted({*found, *wanted} - {"job", "run", "begun", "replaces"}):
        one, other = found.get(key), wanted.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other)
        elif not _agree(one, other):
            yield key, one, other


def _agree(found: Any, wanted: Any) -> bool:
    """Return whether two values of a plan are equal; None in a list, for a bad sample, equals anything."""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return all(a == b or a is None or b is None for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted)
