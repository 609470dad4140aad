"""The writer of one shard, which checks and encodes samples; and the manifest of shards that are written."""

import contextlib
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as with_default
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..containers import Columns, piece_sums
from ..errors import BadSample, Option
from ..foreign import video
from ..format import checksums, manifest
from ..format.fields import (
    CHECKSUM,
    Field,
    Missing,
    content_columns,
    facts_column,
    is_missing,
    length_column,
    packets_column,
    presence,
    present_column,
    shape_column,
    sum_column,
    with_hidden,
)
from ..format.keys import KEY, NO_KEYS, has_keys, hashes_of_stored
from ..format.packets import VideoFacts, sum_of
from ..format.pieces import PIECE
from ..format.shard_table import ShardTable, TextColumn
from ..system.directory import Directory
from ..system.types import Buffer, Sample

_SHAPE = struct.Struct("<2i")
_PRESENT = Field("scalar", dtype="bool")
WORKPLACE = ".writing-"
"""The prefix of the hidden folder that a shard is built in."""


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A finished shard.

    Attributes:
        name, samples, bytes, checksum: the shard's entry in the manifest.
        sample_checksums: the checksum of each sample, uint64 [samples]; [0] if they were not read.
        image_shapes: for each image field the (height, width) of all its images, or None if they differ.
        keys: the hash of each sample's key, uint64 [samples]; [0] if they have none, or were not read.
    """

    name: str
    samples: int
    bytes: int
    checksum: str
    sample_checksums: NDArray[np.uint64]
    image_shapes: Mapping[str, tuple[int, int] | None]
    keys: NDArray[np.uint64] = with_default(default_factory=lambda: NO_KEYS)


class ShardWriter:
    """Writes one shard.

    Args:
        directory: the folder to write to, or its path; for the container `memory`, the path that names the shards.
        container: `tar`, `hdf5`, `lmdb` or `memory`.
        fields: the samples' fields, without hidden columns.
        number: the shard's number, which names it.
        first: the index of its first sample.
        options: options of the container.
        rows: the number of samples that will be written, if it is known: HDF5 shards of fixed fields are then written
            in place, without a spool. Any other number raises ValueError.

    Attributes:
        samples: the number of samples written so far.
        payload: the size of their stored values in bytes.
    """

    def __init__(
        self,
        directory: Directory | Path,
        container: str,
        fields: Mapping[str, Field],
        number: int,
        first: int,
        options: Mapping[str, Any],
        rows: int | None = None,
    ) -> None:
        self.samples = 0
        self.payload = 0
        self._container = containers.get(container)
        self._fields = fields
        self._first = first
        self._name = f"shard-{number:06d}{self._container.suffix}"
        self._directory: Directory | None = None  # of a container on disk
        self._workplace: Directory | None = None
        path = Path("" if isinstance(directory, Directory) else directory, self._name)
        if self._container.on_disk:
            self._directory = directory if isinstance(directory, Directory) else Directory(directory)
            self._workplace = self._directory.make(f"{WORKPLACE}{secrets.token_hex(4)}-{number:06d}")
            path = self._workplace.place(self._name)
        try:
            self._writer = self._container.writer(path, with_hidden(fields), first, rows, **options)
        except OSError as error:
            self.discard()
            self._raise(error)
        except BaseException:
            self.discard()
            raise
        self._checksums: list[int] = []
        self._keys: list[Buffer] | None = [] if has_keys(fields) else None
        self._shapes: dict[str, set[tuple[int, int]]] = {n: set() for n, f in fields.items() if f.kind == "image"}

    def append(self, sample: Sample) -> None:
        """Encode and add one sample. BadSample names the sample and its field; the shard is then unchanged."""
        self.add(_encode_named(sample, self._fields, self._first + self.samples))

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Encode and add the samples of a batch; the shard is the same as if `append` had added each of them.

        Args:
            columns: for each field an array [n, *shape], which is fast for fixed fields, or a list of n values, with
                None where a value is missing. An optional field may have a column `NAME_present`, bool [n], as batches
                do: False where its value is missing.

        Raises BadSample, which names samples and field; the shard is then unchanged.
        """
        if not any(map(len, columns.values())):
            return
        stored, encoded = encode_columns(columns, self._fields, self._first + self.samples)
        sums = np.asarray(stored[CHECKSUM]).tolist()
        size = sum(c.nbytes if isinstance(c, np.ndarray) else sum(map(len, c)) for c in stored.values())
        keys = stored.get(KEY, ())
        each = keys.view(f"V{keys.itemsize}").tolist() if isinstance(keys, np.ndarray) else map(bytes, keys)
        self._put(self._writer.extend, stored, size, sums, encoded, each)

    def add(self, encoded: "Encoded") -> None:
        """Add a sample in stored form, from `encode` or from another dataset with the same fields."""
        size = sum(map(len, encoded.stored.values()))
        keys = map(bytes, [encoded.stored[KEY]] if self._keys is not None else ())
        self._put(self._writer.append, encoded.stored, size, [encoded.checksum], [encoded], keys)

    def _put(
        self,
        write: Callable[[Any], None],
        stored: Any,
        size: int,
        sums: list[int],
        encoded: "list[Encoded]",
        keys: Iterable[Buffer],
    ) -> None:
        try:
            write(stored)
        except OSError as error:
            self._raise(error)
        self.samples += len(sums)
        self.payload += size
        self._checksums += sums
        if self._keys is not None:
            self._keys += keys
        for sample in encoded:
            for field, shape in sample.image_shapes.items():
                self._shapes[field].add(shape)

    def finish(self) -> WrittenShard:
        """Close the shard and rename its files into place."""
        try:
            self._writer.close()
        except OSError as error:
            self._raise(error)
        size, checksum, _ = piece_sums.of_files(())  # of no files, in memory
        if self._directory is not None and self._workplace is not None:
            files = self._container.files(self._workplace.place(self._name))
            size, checksum, table = piece_sums.of_files(files, self._writer.begun)
            sums = piece_sums.path_of(Path(self._name))
            self._workplace.write(sums.name, table)
            for file in (sums, *files):
                self._workplace.rename(file.name, self._directory, file.name)
            self._directory.remove(self._workplace.path.name)
        shapes = {name: next(iter(sizes)) if len(sizes) == 1 else None for name, sizes in self._shapes.items()}
        keys = NO_KEYS if self._keys is None else hashes_of_stored(self._keys, self._fields[KEY])
        checksums = np.array(self._checksums, np.uint64)
        return WrittenShard(self._name, self.samples, size, checksum, checksums, shapes, keys)

    def discard(self) -> None:
        """Remove the unfinished files, as far as that is possible."""
        if self._directory is not None and self._workplace is not None:
            with contextlib.suppress(OSError):
                self._directory.remove(self._workplace.path.name)

    def _raise(self, error: OSError) -> NoReturn:
        """Raise an error of the system with the shard's path, which the writer knows by a descriptor only."""
        if self._workplace is None or error.errno is None:
            raise error
        reason = (error.strerror or "").replace(str(self._workplace.place()), str(self._workplace.path))
        raise OSError(error.errno, reason, str(self._workplace.path / self._name)) from error


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sample in stored form.

    Attributes:
        stored: its values and hidden columns.
        checksum: its checksum.
        image_shapes: the (height, width) of each image.
        rewritten: the number of its videos that are in another format than their source had.
    """

    stored: Mapping[str, Buffer]
    checksum: int
    image_shapes: Mapping[str, tuple[int, int]]
    rewritten: int = 0


def encode(sample: Sample, fields: Mapping[str, Field]) -> Encoded:
    """Check a sample against `fields` and encode it; BadSample names the field and the reason.

    An optional field may be missing, or its value None or `Missing`.
    """
    if sample.keys() != fields.keys() and (reason := _difference(sample, fields)):
        raise BadSample(reason)
    stored: dict[str, Buffer | None] = {}
    rewritten = 0
    for name, field in fields.items():
        value = sample.get(name)
        try:
            if field.optional and is_missing(value):
                stored[name] = None
            elif isinstance(value, Missing):
                raise BadSample("{}; {} lets samples lack it", value.reason, Option("optional", [name]))
            elif value is None and field.kind != "json":
                raise BadSample("there is no value, and the field is not optional")
            else:
                stored[name] = encoded = field.encode(value)
                if field.kind == "video":
                    stored[name] = file = video.indexable(encoded)
                    rewritten += file is not encoded
        except BadSample as error:
            raise BadSample(f"field {name!r}: {error}") from error
    encoded_sample = described(stored, fields)
    return replace(encoded_sample, rewritten=rewritten) if rewritten else encoded_sample


def described(values: Mapping[str, Buffer | None], fields: Mapping[str, Field]) -> Encoded:
    """Return a sample in stored form together with its hidden columns; raises BadSample as `encode`.

    None stands for the value of an optional field that the sample lacks.
    """
    shapes: dict[str, tuple[int, int]] = {}
    hidden: dict[str, bytes] = {}
    stored: dict[str, Buffer] = {}
    for name, field in fields.items():
        value = values[name]
        stored[name] = field.blank if value is None else value
        if field.optional:
            stored[present_column(name)] = b"\0" if value is None else b"\1"
        try:
            if field.has_lengths:
                hidden[length_column(name)] = field.length_of(stored[name]).to_bytes(8, "little")
            if field.kind == "images" and value is not None:
                field.check_images(value, field.probe)
            if field.kind == "video":
                facts, table = (VideoFacts(), b"") if value is None else video.described(value)
                hidden |= {facts_column(name): facts.stored, packets_column(name): table}
                hidden[sum_column(name)] = sum_of(stored[name]).to_bytes(8, "little")
                hidden[length_column(packets_column(name))] = len(table).to_bytes(8, "little")
            if field.kind == "image" and value is not None:
                info = field.probe(value)
                shapes[name] = (info.height, info.width)
                if field.image_size not in (None, shapes[name]):
                    raise BadSample(f"expected an image of {field.image_size} (height, width), got {shapes[name]}")
        except (BadSample, ValueError) as error:
            raise BadSample(f"field {name!r}: {error}") from error
    checksum = checksums.of_sample({**stored, **hidden}, content_columns(fields))
    for name in (name for name, field in fields.items() if field.kind == "image"):
        hidden[shape_column(name)] = _SHAPE.pack(*shapes.get(name, (0, 0)))
    return Encoded({**stored, **hidden, CHECKSUM: checksum.to_bytes(8, "little")}, checksum, shapes)


def _encode_named(sample: Sample, fields: Mapping[str, Field], number: int) -> Encoded:
    """Encode a sample; its number and key are in the BadSample that `encode` raises."""
    try:
        return encode(sample, fields)
    except BadSample as error:
        key = f" (key {sample['key']})" if isinstance(sample.get("key"), str) else ""
        raise BadSample(f"sample {number}{key}: {error}") from error


def encode_columns(
    columns: Mapping[str, Any], fields: Mapping[str, Field], first: int
) -> tuple[Columns, list[Encoded]]:
    """Check the columns of a batch and encode them.

    Args:
        columns: see `ShardWriter.extend`.
        fields: the samples' fields.
        first: the number of the first sample, for messages.

    Returns:
        The samples in stored form by column, with hidden columns. And each sample's fields that were encoded one by
        one; none if all are arrays of fixed fields.

    Raises BadSample, which names samples and field.
    """
    count = max(map(len, columns.values()), default=0)
    place, ones = f"samples {first} to {first + count - 1}", np.ones(count, np.bool_)
    masks = {name: presence(name) for name, field in fields.items() if field.optional and presence(name) in columns}
    expected = {**fields, **dict.fromkeys(masks.values(), _PRESENT)}
    if reason := _difference(columns, expected):
        raise BadSample(f"{place}: {reason}")
    arrays: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        try:
            if len(column) != count:
                raise BadSample(f"expected {count} values, as others have, got {len(column)}")
            if name not in fields or (fields[name].fixed and isinstance(column, np.ndarray)):
                arrays[name] = expected[name].encode_rows(column)
        except BadSample as error:
            raise BadSample(f"{place}: field {name!r}: {error}") from error
    present = {name: arrays.pop(mask) for name, mask in masks.items()}
    others = {name: field for name, field in fields.items() if name not in arrays}
    encoded: list[Encoded] = []
    for i in range(count if others else 0):
        sample = {n: columns[n][i] if present.get(n, ones)[i] else None for n in others if n in columns}
        encoded.append(_encode_named(sample, others, first + i))
    stored: dict[str, NDArray[Any] | Sequence[Buffer]] = dict(arrays)
    for name in encoded[0].stored if encoded else ():
        stored[name] = [sample.stored[name] for sample in encoded]
    for name, rows in arrays.items():
        if fields[name].optional:
            there = stored[present_column(name)] = present.get(name, ones)
            if not there.all():
                stored[name] = np.where(there.reshape(-1, *[1] * (rows.ndim - 1)), rows, rows.dtype.type(0))
    stored[CHECKSUM] = checksums.of_samples(stored, content_columns(fields))
    return stored, encoded


def common_shape(sizes: NDArray[np.int32]) -> tuple[int, int] | None:
    """Return the (height, width) that all images of a column [n, 2] have, (0, 0) standing for none; else None."""
    distinct = np.unique(sizes[sizes.any(axis=1)], axis=0)
    return (int(distinct[0][0]), int(distinct[0][1])) if len(distinct) == 1 else None


def _difference(sample: Sample, fields: Mapping[str, Field]) -> str:
    needed = {name for name, field in fields.items() if not field.optional}
    missing, extra = sorted(needed - sample.keys()), sorted(sample.keys() - fields.keys())
    return "; ".join(
        f"{word} {', '.join(names)}" for word, names in (("missing", missing), ("not a field:", extra)) if names
    )


@dataclass(frozen=True, slots=True)
class Before:
    """A dataset that shards are added to: its manifest, and the digest of its samples, to go on with."""

    manifest: manifest.Manifest
    digest: checksums.Digest


def describe(
    container: str,
    fields: Mapping[str, Field],
    written: Iterable[WrittenShard],
    metadata: Mapping[str, Any],
    *,
    adopted: bool = False,
    unchecked: bool = False,
    conversion: Mapping[str, Any] | None = None,
    has_sums: bool = False,
    after: "Before | None" = None,
) -> manifest.Manifest:
    """Return the manifest of some shards: compute their digest, and the shapes that their images have in common.

    Args:
        container: the container of the shards.
        fields: the fields of the samples.
        written: the shards, in order.
        metadata: JSON values that the manifest keeps.
        adopted: whether the shards are files of other programs.
        unchecked: whether their samples have no checksums.
        conversion: JSON values on how a conversion made the dataset.
        has_sums: whether each shard has a file with the checksums of its pieces.
        after: the dataset that the shards are added to, if there is one.
    """
    shards: list[WrittenShard] = []
    digest = checksums.Digest(fields) if after is None else after.digest
    before = None if after is None else after.manifest
    for shard in written:
        if unchecked:
            digest.update_unchecked(shard.checksum)
        else:
            digest.update(shard.sample_checksums)
        # To save memory: a dataset may have very many samples.
        shards.append(replace(shard, sample_checksums=np.empty(0, np.uint64), keys=NO_KEYS))
    described = dict(fields)
    for name, field in fields.items():
        if field.kind == "image":
            sizes: set[tuple[int, int] | None] = {shard.image_shapes[name] for shard in shards if shard.samples}
            sizes |= {before.fields[name].image_size} if before is not None and before.samples else set()
            described[name] = replace(field, shape=sizes.pop() if len(sizes) == 1 else None)
    table = ShardTable(
        names=TextColumn([shard.name for shard in shards]),
        samples=np.array([shard.samples for shard in shards], np.int64),
        bytes=np.array([shard.bytes for shard in shards], np.int64),
        checksums=TextColumn([shard.checksum for shard in shards]),
    )
    return manifest.Manifest(
        container=container,
        fields=described,
        shards=table if before is None else before.shards.followed_by(table),
        digest=digest.text(),
        metadata=metadata,
        adopted=adopted,
        conversion=conversion or {},
        piece_bytes=PIECE if has_sums else None,
        grew_from={} if before is None else before.lineage,
        unchecked=unchecked,
    )
