"""The manifest: `shardio.json`, which describes a dataset and lists its shards.

A writer creates it last, by rename, so a directory with one is complete. With more than `MOST_INLINE` shards, their
columns are in `shardio.shards.npy` next to it. The names of a large table stay in that file, which the processes of a
node share.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, ManifestError, NotADataset
from ..system import did_you_mean, strict_json
from ..system.directory import Directory
from ..system.local_path import local_path
from ..system.regular_files import open_regular
from .fields import CHECKSUM, CHECKSUM_BYTES, Field, as_fields, fields_to_json, with_hidden
from .file_table import TableFile, checksum_of
from .requires import GEOMETRY, check_requires
from .shard_table import ShardTable, TextColumn

FILE_NAME = "shardio.json"
TABLE_NAME = "shardio.shards.npy"
TABLE_PATTERN = re.compile(r"shardio\.shards(-[0-9a-f]{32})?\.npy")
"""Names of the table: in a store it has its checksum in its name."""

VERSION = 1
MOST_INLINE = 10_000
"""The most shards that the manifest itself lists: reading so many takes less time than opening a second file."""


MOST_EARLIER = 1000
"""The most datasets that a manifest remembers to have grown from: the newest ones."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a dataset.

    Attributes:
        container: `tar`, `hdf5`, `lmdb`, `indexed` or `memory`.
        fields: the fields by name, in order.
        shards: the shards, in order.
        digest: `xxh3:` and 32 hexadecimal digits that identify the content: fields, values and their order, but not
            container or shard size.
        metadata: what the source states about itself, as JSON values (class names, origin).
        adopted: whether the shards' files belong to others; shardio never removes them.
        unchecked: whether the samples have no checksums, because nobody has read them: of adopted stores alone. The
            digest is then that of their indexes, which say what files there were, and not of what is in them.
        conversion: what distinguishes the conversion that wrote this dataset from others, as JSON values.
        piece_bytes: the size in bytes of the pieces whose checksums each shard has in a table; None without tables.
        grew_from: the digests of the datasets that this one was before samples were appended, with their numbers of
            samples, the newest last: its first samples are theirs.
    """

    container: str
    fields: Mapping[str, Field]
    shards: ShardTable
    digest: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    adopted: bool = False
    conversion: Mapping[str, Any] = field(default_factory=dict)
    piece_bytes: int | None = None
    grew_from: Mapping[str, int] = field(default_factory=dict)
    unchecked: bool = False

    @property
    def samples(self) -> int:
        """The number of samples in the dataset."""
        return int(self.shards.starts[-1])

    @property
    def stored_fields(self) -> dict[str, Field]:
        """The fields of every shard, with hidden columns."""
        fields = with_hidden(self.fields)
        return {name: field for name, field in fields.items() if name != CHECKSUM} if self.unchecked else fields

    @property
    def lineage(self) -> Mapping[str, int]:
        """The `grew_from` of a dataset that grows from this one."""
        return dict([*self.grew_from.items(), (self.digest, self.samples)][-MOST_EARLIER:])

    def to_json(self, table: bytes | None = None, table_name: str = TABLE_NAME) -> bytes:
        """Return the content of `shardio.json`.

        Args:
            table: the content of `shardio.shards.npy`, to refer to instead of listing the shards.
            table_name: what that file is called, if not so.
        """
        shards = self.shards
        if table is None:
            columns: dict[str, Any] = {
                "names": list(shards.names),
                "samples": shards.samples.tolist(),
                "bytes": shards.bytes.tolist(),
                "checksums": list(shards.checksums),
            }
        else:
            columns = {"count": len(shards), "checksum": xxhash.xxh3_128_hexdigest(table)}
            columns |= {} if table_name == TABLE_NAME else {"file": table_name}
        earlier = [{"digest": digest, "samples": samples} for digest, samples in self.grew_from.items()]
        value = {
            "format": "shardio",
            "version": VERSION,
            "requires": [GEOMETRY] if any(f.on or f.per for f in self.fields.values()) else [],
            "container": self.container,
            "digest": self.digest,
            "samples": self.samples,
            "fields": fields_to_json(self.fields),
            "metadata": dict(self.metadata),
            **({"adopted": True} if self.adopted else {}),
            **({"unchecked": True} if self.unchecked else {}),
            **({"conversion": dict(self.conversion)} if self.conversion else {}),
            **({} if self.piece_bytes is None else {"piece_bytes": self.piece_bytes}),
            **({"grew_from": earlier} if earlier else {}),
            "shards": columns,
        }
        return msgspec.json.format(msgspec.json.encode(value), indent=1 if len(self.shards) < 1000 else 0) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, place: str = FILE_NAME, table: Path | None = None) -> Manifest:
        """Read what `to_json` returned.

        Args:
            data: the content of `shardio.json`.
            place: the path to name in errors.
            table: the path of `shardio.shards.npy`, in case `data` refers to it, or to another file in its folder.

        Raises ManifestError if `data` is not a valid manifest.
        """
        try:
            content = _parse(data)
            _check_head(msgspec.convert(content, type=_Head))
            value = msgspec.convert(content, type=_File)
            shards = _shards_inline(value.shards) if value.shards.count is None else _shards_mapped(value.shards, table)
            fields = as_fields(value.fields)
            manifest = cls(
                value.container, fields, shards, value.digest, value.metadata, value.adopted, value.conversion,
                value.piece_bytes, {one.digest: one.samples for one in value.grew_from}, value.unchecked,
            )  # fmt: skip
            if not value.unchecked:
                _check_sizes(shards)
            if manifest.samples != value.samples:
                raise ManifestError(f"samples is {value.samples}, but the shards hold {manifest.samples}")
            _check_growth([*(one.samples for one in value.grew_from), manifest.samples])
        except (msgspec.MsgspecError, ConfigError, ManifestError) as error:
            raise ManifestError(f"{place}: {error}") from error
        return manifest


def _check_head(head: _Head) -> None:
    """Refuse, before anything else is read, what this release doesn't know."""
    if head.format != "shardio":
        told = ": a view; give the dataset that it is of" if head.format == "shardio view" else ""
        raise ManifestError(f"format is {head.format!r}, not 'shardio'{told}")
    if head.version != VERSION:
        raise ManifestError(f"version {head.version} was written by another release; this one reads {VERSION}")
    check_requires(head.requires, "the dataset", ManifestError)


def _parse(data: bytes) -> Any:
    try:
        content = strict_json.parse(data)
        if b"\\u" in data:  # an escape may stand for half a character, which UTF-8 cannot hold
            msgspec.json.encode(content)
    except ValueError as error:
        raise ManifestError(f"not JSON: {error}") from error
    return content


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Check, before any shard is written, that `metadata` is JSON with text keys; raise ConfigError otherwise."""
    try:
        decoded = strict_json.parse(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"metadata must be JSON: {error}") from error
    if decoded.keys() != metadata.keys():
        raise ConfigError("metadata's keys must be text")


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0
    requires: Any = None


class _Shards(msgspec.Struct):
    """Either the columns, or the number of rows, the checksum and the name of the table file."""

    names: list[str] = []
    samples: list[int] = []
    bytes: list[int] = []
    checksums: list[str] = []
    count: int | None = None
    checksum: str = ""
    file: str = TABLE_NAME


class _Earlier(msgspec.Struct):
    digest: str
    samples: int


class _File(msgspec.Struct):
    container: str
    digest: str
    samples: int
    fields: dict[str, dict[str, Any]]
    shards: _Shards
    metadata: dict[str, Any] = {}
    adopted: bool = False
    conversion: dict[str, Any] = {}
    piece_bytes: int | None = None
    grew_from: list[_Earlier] = []
    unchecked: bool = False


def _shards_inline(value: _Shards) -> ShardTable:
    samples, sizes = _int64("samples", value.samples), _int64("bytes", value.bytes)
    return ShardTable(TextColumn(value.names), samples, sizes, TextColumn(value.checksums))


def _int64(name: str, values: list[int]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        wrong = next(value for value in values if not -(1 << 63) <= value < 1 << 63)
        raise ManifestError(
            f"shards: {name} must be in [0, 2^62], got a number of {wrong.bit_length()} bits"
        ) from error


def _shards_mapped(value: _Shards, table: Path | None) -> ShardTable:
    name = _checked_table_name(value.file)
    table = None if table is None else table.with_name(name)
    if table is None or not table.is_file():
        raise ManifestError(f"it refers to {name}, which is missing")
    file = TableFile(open_regular(table, os.O_RDONLY), table, ManifestError)
    try:
        rows = file.table(*file.npy()[:3])
    except ValueError as error:
        raise ManifestError(f"{name} is cut short or damaged: {error}") from error
    actual = checksum_of(file.table(np.dtype(np.uint8), file.size))
    if actual != value.checksum:
        raise ManifestError(f"{name}: checksum {actual} is not {value.checksum}")
    if len(rows) != value.count:
        raise ManifestError(f"{name} lists {len(rows)} shards, not {value.count}")
    return ShardTable.from_array(rows)


def _check_sizes(shards: ShardTable) -> None:
    """Refuse counts that the files cannot hold, before memory is taken for so many samples."""
    if (excessive := shards.samples > shards.bytes // CHECKSUM_BYTES).any():
        number = int(np.flatnonzero(excessive)[0])
        raise ManifestError(
            f"shards: {shards.names[number]} cannot hold {shards.samples[number]} samples in {shards.bytes[number]} "
            f"bytes: each has a checksum of {CHECKSUM_BYTES} bytes"
        )


def _check_growth(samples: list[int]) -> None:
    """Refuse numbers of samples that do not grow, from the first dataset to the one that is there."""
    if any(later <= earlier for earlier, later in pairwise([-1, *samples])):
        raise ManifestError(f"grew_from: datasets grow, but their numbers of samples are {samples}")


def load(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a dataset.

    Args:
        path: the dataset's directory, or its `shardio.json`.

    Raises NotADataset if there is none, ManifestError if it cannot be trusted.
    """
    given = local_path(path)
    place = given / FILE_NAME if given.is_dir() else given
    if given.is_dir() and not place.is_file():
        raise NotADataset(f"{given}: no {FILE_NAME} in this directory; {did_you_mean.for_folder(given, FILE_NAME)}")
    if not place.is_file():
        pattern = did_you_mean.for_pattern(given)
        near = f"; {pattern}" if pattern else did_you_mean.near_path(given)
        raise NotADataset(f"{given}: no such directory or {FILE_NAME}{near}")
    if (other := did_you_mean.for_file(place, FILE_NAME)) is not None:
        raise NotADataset(f"{given}: a dataset is a directory with {FILE_NAME}; {other}")
    try:
        data = strict_json.read_bytes(place)
    except ValueError as error:
        raise ManifestError(f"{place}: {error}") from error
    return Manifest.from_json(data, str(place), place.with_name(TABLE_NAME))


def table_named_in(data: bytes) -> str | None:
    """Return the name of the file that lists a manifest's shards; None if the manifest does, or is none.

    Raises ManifestError for what is not JSON, and for a name that shardio gives to no such file.
    """
    content = _parse(data)
    shards = content.get("shards") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or "count" not in shards:
        return None
    return _checked_table_name(shards.get("file", TABLE_NAME))


def _checked_table_name(name: object) -> str:
    if not isinstance(name, str) or not TABLE_PATTERN.fullmatch(name):
        raise ManifestError(f"shards: {name!r} is not the name of a table of shards")
    return name


def in_store(manifest: Manifest) -> tuple[bytes, tuple[str, bytes] | None]:
    """Return the content of `shardio.json`, and the name and content of the table that it refers to, None without one.

    Each table has a name of its own, which its content decides: so replacing `shardio.json` alone replaces a dataset.
    """
    if len(manifest.shards) <= MOST_INLINE:
        return manifest.to_json(), None
    stream = io.BytesIO()
    np.save(stream, manifest.shards.to_array(), allow_pickle=False)
    table = stream.getvalue()
    name = TABLE_NAME.replace(".npy", f"-{xxhash.xxh3_128_hexdigest(table)}.npy")
    return manifest.to_json(table, name), (name, table)


def save(manifest: Manifest, directory: Directory) -> None:
    """Write `shardio.json` into `directory` durably and by rename, after the table of shards if it needs that file.

    That is `shardio.shards.npy`, or for a dataset that has grown a name as in a store: the old table stays for readers.
    """
    content, table = in_store(manifest)
    if table is not None and not manifest.grew_from:
        table = TABLE_NAME, table[1]
        content = manifest.to_json(table[1])
    if table is not None:
        directory.write(*table)
    directory.write(FILE_NAME, content)
