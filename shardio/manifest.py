"""The manifest: `shardio.json`, which says what a dataset is made of.

It is written last and by rename, so a directory that has one is whole. Shards stand as columns (names, samples, bytes,
checksums), so that a million of them are four arrays and not a million objects.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from . import durable
from .errors import ConfigError, ManifestError, NotADataset
from .fields import Field, as_fields
from .types import Indices

FILE_NAME = "shardio.json"
VERSION = 1
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Shards:
    """A dataset's shards, as columns of one length.

    Attributes:
        names: file names, all in the dataset's directory.
        samples: samples in each, int64.
        bytes: size of each shard's files together, int64.
        checksums: XXH3-128 over each shard's files, 32 hexadecimal digits.
        starts: the index of each shard's first sample, and N last, int64 [shards + 1]; computed.
    """

    names: tuple[str, ...]
    samples: NDArray[np.int64]
    bytes: NDArray[np.int64]
    checksums: tuple[str, ...]
    starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.samples) == len(self.bytes) == len(self.checksums):
            raise ManifestError("shards: names, samples, bytes and checksums must be equally many")
        if len(self.samples) and (self.samples.min() < 0 or self.bytes.min() < 0):
            raise ManifestError("shards: samples and bytes must not be negative")
        if len(set(self.names)) != len(self.names):
            raise ManifestError("shards: a name stands twice")
        for name in self.names:
            # A name comes from a file and ends in a path, so it must be one plain name and nothing else.
            if not _SHARD_NAME.fullmatch(name):
                raise ManifestError(f"shards: not the name of a file in the dataset's directory: {name!r}")
        object.__setattr__(self, "starts", np.concatenate(([0], np.cumsum(self.samples))).astype(np.int64))

    def __len__(self) -> int:
        return len(self.names)

    def locate(self, indices: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shard number and the row within it of each sample, int64 [n] each."""
        shard = np.searchsorted(self.starts, indices, side="right") - 1
        return shard, indices - self.starts[shard]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a dataset is made of.

    Attributes:
        container: `tar`, `hdf5`, `lmdb` (or `memory`).
        fields: name to Field, in order.
        shards: the shard files.
        digest: names the content: fields, values, their order; not container or shard size. `xxh3:` and 32 digits.
        metadata: whatever the source had to say (class names, where it came from).
    """

    container: str
    fields: Mapping[str, Field]
    shards: Shards
    digest: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in the dataset: N."""
        return int(self.shards.starts[-1])

    def to_json(self) -> bytes:
        """The manifest as it is written."""
        fields = {
            name: {k: v for k in ("kind", "dtype", "shape", "channels") if (v := getattr(f, k)) is not None}
            for name, f in self.fields.items()
        }
        value = {
            "format": "shardio",
            "version": VERSION,
            "container": self.container,
            "digest": self.digest,
            "samples": self.samples,
            "fields": fields,
            "metadata": dict(self.metadata),
            "shards": {
                "names": self.shards.names,
                "samples": self.shards.samples.tolist(),
                "bytes": self.shards.bytes.tolist(),
                "checksums": self.shards.checksums,
            },
        }
        return msgspec.json.format(msgspec.json.encode(value), indent=1 if len(self.shards) < 1000 else 0) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, place: str = FILE_NAME) -> "Manifest":
        """Reads what `to_json` wrote; ManifestError, naming `place`, if it is anything else."""
        try:
            head = msgspec.json.decode(data, type=_Head)
            if head.format != "shardio":
                raise ManifestError(f"format is {head.format!r}, not 'shardio'")
            if head.version != VERSION:
                raise ManifestError(f"version {head.version} was written by another release; this one reads {VERSION}")
            value = msgspec.json.decode(data, type=_File)
            shards = Shards(
                tuple(value.shards.names),
                np.array(value.shards.samples, np.int64),
                np.array(value.shards.bytes, np.int64),
                tuple(value.shards.checksums),
            )
            manifest = cls(value.container, as_fields(value.fields), shards, value.digest, value.metadata)
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


class _ShardColumns(msgspec.Struct):
    names: list[str]
    samples: list[int]
    bytes: list[int]
    checksums: list[str]


class _File(msgspec.Struct):
    container: str
    digest: str
    samples: int
    fields: dict[str, dict[str, Any]]
    shards: _ShardColumns
    metadata: dict[str, Any] = {}


def load(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the dataset at `path`: its directory, or the `shardio.json` itself.

    Raises NotADataset where there is none, ManifestError if it cannot be trusted.
    """
    given = Path(path)
    place = given / FILE_NAME if given.is_dir() else given
    if given.is_dir() and not place.is_file():
        raise NotADataset(f"{given}: no {FILE_NAME} in this directory; a conversion may have been cut off")
    if not place.is_file():
        raise NotADataset(f"{given}: no such directory or {FILE_NAME}")
    return Manifest.from_json(place.read_bytes(), str(place))


def save(manifest: Manifest, directory: Path) -> None:
    """Writes `shardio.json` into `directory`: a temporary file, fsync, rename, fsync of the directory."""
    durable.write(directory / FILE_NAME, manifest.to_json())
