"""The manifest: `shardio.json`, which says what a dataset is made of.

It is written last and by rename, so a directory that has one is whole. The columns of very many shards stand in a file
beside it, `shardio.shards.npy`, which is memory-mapped: the processes of a node share its pages.
"""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from ..errors import ConfigError, ManifestError, NotADataset
from ..system import durable, npy
from .fields import Field, as_fields, fields_to_json
from .shard_table import Shards, TextColumn

FILE_NAME = "shardio.json"
TABLE_NAME = "shardio.shards.npy"
VERSION = 1
MOST_INLINE = 10_000
"""Shards that the manifest lists itself: that many are read faster than a second file is opened."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a dataset is made of.

    Attributes:
        container: `tar`, `hdf5`, `lmdb` (or `memory`).
        fields: name to Field, in order.
        shards: the shard files.
        digest: names the content: fields, values, their order; not container or shard size. `xxh3:` and 32 digits.
        metadata: whatever the source had to say (class names, where it came from).
        adopted: whether others wrote the shards' files, which are then never removed.
        conversion: what tells the conversion that made it from another one.
    """

    container: str
    fields: Mapping[str, Field]
    shards: Shards
    digest: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    adopted: bool = False
    conversion: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in the dataset: N."""
        return int(self.shards.starts[-1])

    def to_json(self, table: bytes | None = None) -> bytes:
        """The manifest as it is written; with `table`, the content of `shardio.shards.npy`, it refers to that."""
        value = {
            "format": "shardio",
            "version": VERSION,
            "container": self.container,
            "digest": self.digest,
            "samples": self.samples,
            "fields": fields_to_json(self.fields),
            "metadata": dict(self.metadata),
            **({"adopted": True} if self.adopted else {}),
            **({"conversion": dict(self.conversion)} if self.conversion else {}),
            "shards": self._listed() if table is None else {"count": len(self.shards), "checksum": _checksum(table)},
        }
        return msgspec.json.format(msgspec.json.encode(value), indent=1 if len(self.shards) < 1000 else 0) + b"\n"

    def _listed(self) -> dict[str, Any]:
        shards = self.shards
        return {
            "names": list(shards.names),
            "samples": shards.samples.tolist(),
            "bytes": shards.bytes.tolist(),
            "checksums": list(shards.checksums),
        }

    @classmethod
    def from_json(cls, data: bytes, place: str = FILE_NAME, table: Path | None = None) -> "Manifest":
        """Reads what `to_json` wrote, and the file `table` if it refers to one; ManifestError, naming `place`, if it is
        anything else."""
        try:
            head = msgspec.json.decode(data, type=_Head)
            if head.format != "shardio":
                raise ManifestError(f"format is {head.format!r}, not 'shardio'")
            if head.version != VERSION:
                raise ManifestError(f"version {head.version} was written by another release; this one reads {VERSION}")
            value = msgspec.json.decode(data, type=_File)
            shards = _listed(value.shards) if value.shards.count is None else _mapped(value.shards, table)
            fields = as_fields(value.fields)
            manifest = cls(
                value.container, fields, shards, value.digest, value.metadata, value.adopted, value.conversion
            )
            if manifest.samples != value.samples:
                raise ManifestError(f"samples is {value.samples}, but the shards hold {manifest.samples}")
        except (msgspec.MsgspecError, ConfigError, ManifestError, OverflowError, TypeError) as error:
            raise ManifestError(f"{place}: {error}") from error
        return manifest


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """ConfigError unless `metadata` is JSON, so that this does not show when all shards are written."""
    try:
        told = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"metadata must be JSON: {error}") from error
    if told.keys() != metadata.keys():
        raise ConfigError("metadata's keys must be text")


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


class _Shards(msgspec.Struct):
    """Either the columns, or how many there are in the file beside and its checksum."""

    names: list[str] = []
    samples: list[int] = []
    bytes: list[int] = []
    checksums: list[str] = []
    count: int | None = None
    checksum: str = ""


class _File(msgspec.Struct):
    container: str
    digest: str
    samples: int
    fields: dict[str, dict[str, Any]]
    shards: _Shards
    metadata: dict[str, Any] = {}
    adopted: bool = False
    conversion: dict[str, Any] = {}


def _listed(value: _Shards) -> Shards:
    samples, sizes = (np.array(column, np.int64) for column in (value.samples, value.bytes))
    return Shards(TextColumn(value.names), samples, sizes, TextColumn(value.checksums))


def _mapped(value: _Shards, table: Path | None) -> Shards:
    if table is None or not table.is_file():
        raise ManifestError(f"it refers to {TABLE_NAME}, which is missing")
    try:
        mapped = npy.guarded(lambda: np.load(table, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise ManifestError(f"{TABLE_NAME} is cut short or damaged: {error}") from error
    actual = _checksum(mapped.base)
    if actual != value.checksum:
        raise ManifestError(f"{TABLE_NAME}: checksum {actual} is not {value.checksum}")
    if len(mapped) != value.count:
        raise ManifestError(f"{TABLE_NAME} lists {len(mapped)} shards, not {value.count}")
    return Shards.from_table(mapped)


def _checksum(data: Any) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def load(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the dataset at `path`: its directory, or the `shardio.json` itself.

    Raises NotADataset where there is none, ManifestError if it cannot be trusted.
    """
    given = Path(path)
    place = given / FILE_NAME if given.is_dir() else given
    if given.is_dir() and not place.is_file():
        parts = sorted(found.parent.name for found in given.glob(f"*/{FILE_NAME}"))
        told = f"it holds the datasets {', '.join(parts)}" if parts else "a conversion may have been cut off"
        raise NotADataset(f"{given}: no {FILE_NAME} in this directory; {told}")
    if not place.is_file():
        raise NotADataset(f"{given}: no such directory or {FILE_NAME}")
    return Manifest.from_json(place.read_bytes(), str(place), place.with_name(TABLE_NAME))


def save(manifest: Manifest, directory: Path) -> None:
    """Writes `shardio.json` into `directory`: a temporary file, fsync, rename, fsync of the directory."""
    table: bytes | None = None
    if len(manifest.shards) > MOST_INLINE:
        stream = io.BytesIO()
        np.save(stream, manifest.shards.to_table(), allow_pickle=False)
        table = stream.getvalue()
        durable.write(directory / TABLE_NAME, table)
    durable.write(directory / FILE_NAME, manifest.to_json(table))
