"""What a repair found and did, shard by shard."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import containers
from ..cache.pieces import PIECE
from ..containers import piece_sums
from ..format import manifest
from ..format.fields import CHECKSUM, Field, shape_column, with_hidden
from ..output.shard_writer import WrittenShard
from ..system.directory import Directory
from ..system.units import counted

DAMAGED_SUFFIX = ".damaged"
"""Appended to the name of a file that cannot be repaired."""


@dataclass(frozen=True, slots=True)
class ShardRepair:
    """What a repair did with one shard.

    Attributes:
        shard: the shard's name.
        kept: the number of its samples that the repaired dataset holds.
        lost: the number of those that it held before and holds no more; None where nothing tells how many it held.
        reasons: what was wrong, and what was done about it.
    """

    shard: str
    kept: int
    lost: int | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lost = "an unknown number" if self.lost is None else self.lost
        return f"{self.shard}: {'; '.join(self.reasons)}: {counted(self.kept, 'sample')} kept, {lost} lost"

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON."""
        return {"shard": self.shard, "kept": self.kept, "lost": self.lost, "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of `shardio.repair`.

    Attributes:
        manifest: the manifest of the repaired dataset.
        shards: each shard of which something was repaired or lost; the others are as they were.
        notes: what was repaired or lost of the dataset as a whole.
        same: whether the digest equals that of the old manifest; None if there was none.
    """

    manifest: manifest.Manifest
    shards: tuple[ShardRepair, ...]
    notes: tuple[str, ...]
    same: bool | None

    @property
    def done(self) -> tuple[str, ...]:
        """One line for each thing that was repaired, lost or set aside; empty if nothing was wrong."""
        return (*self.notes, *map(str, self.shards))

    @property
    def lost(self) -> int | None:
        """The number of samples that were lost in all; None if that of some shard is not known."""
        counts = [shard.lost for shard in self.shards if shard.lost is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "samples": self.manifest.samples,
            "lost": self.lost,
            "digest": self.manifest.digest,
            "same": self.same,
            "notes": list(self.notes),
            "shards": [shard.to_dict() for shard in self.shards],
        }


def summarize(
    path: Path, container: str, fields: Mapping[str, Field], known: tuple[int, str] | None = None
) -> tuple[WrittenShard, bytes | None]:
    """Return a shard's entry in the manifest, and its table of checksums; raise ShardCorrupt if it cannot be opened.

    Args:
        path: the shard.
        container: its container.
        fields: its fields.
        known: the size and checksum of its files, and no table is returned; None computes all three, for which the
            files are read.
    """
    kind = containers.get(container)
    reader = kind.reader(path, with_hidden(fields))
    rows = np.arange(len(reader))
    sample_checksums = np.asarray(reader.read(rows, CHECKSUM))
    shapes: dict[str, tuple[int, int] | None] = {}
    for name, field in fields.items():
        if field.kind == "image":
            sizes = np.unique(np.asarray(reader.read(rows, shape_column(name))), axis=0)
            sizes = sizes[sizes.any(axis=1)]  # a sample without an image of an optional field has (0, 0)
            shapes[name] = (int(sizes[0][0]), int(sizes[0][1])) if len(sizes) == 1 else None
    reader.close()
    size, checksum, table = piece_sums.of_files(kind.files(path)) if known is None else (*known, None)
    return WrittenShard(path.name, len(rows), size, checksum, sample_checksums, shapes), table


def has_sums(old: manifest.Manifest | None) -> bool:
    """Return whether the repaired dataset gets tables of checksums: as the old one had, or if its manifest is lost."""
    return old is None or old.piece_bytes == PIECE


def restore_sums(folder: Directory, shard: WrittenShard, table: bytes | None, files: Sequence[Path]) -> bool:
    """Write a shard's table of checksums unless it is right; return whether that was needed.

    Args:
        folder: the dataset's directory.
        shard: the shard's entry in the manifest.
        table: the table; None if the files have not been read, which is done only if the table cannot be right.
        files: the shard's files.
    """
    path = folder.path / shard.name
    if table is None:
        size = piece_sums.size_of([file.stat().st_size for file in files])
        found = piece_sums.load(path, size + 1)
        if found is not None and len(found) == size and piece_sums.is_whole(shard.checksum, found):
            return False
        *now, table = piece_sums.of_files(files)
        if now != [shard.bytes, shard.checksum]:  # the files have changed: checksums of what they are prove nothing
            return False
    elif piece_sums.matches(path, table):
        return False
    name = piece_sums.path_of(path).name
    if folder.kind(name) is not None and not piece_sums.looks_like_one(path):  # damaged, or another program wrote it
        folder.rename(name, folder, free_name(folder, name))
    folder.write(name, table)
    return True


SUMS_REWRITTEN = "its table of checksums was lost or damaged; written anew"


def unlike_manifest(shard: WrittenShard, samples: int, size: int) -> str:
    """Return the reason to give for a shard that the manifest does not describe, "" if it does.

    Args:
        shard: the shard as it is.
        samples, size: what the manifest says.
    """
    if (shard.samples, shard.bytes) == (samples, size):
        return ""
    return f"holds {shard.samples} samples in {shard.bytes} bytes, the manifest said {samples} in {size}"


def free_name(folder: Directory, name: str) -> str:
    """Return the first of `NAME.damaged`, `NAME.2.damaged` and so on that is not there yet."""
    numbers = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
    names = (f"{name}{number}{DAMAGED_SUFFIX}" for number in numbers)
    return next(free for free in names if folder.kind(free) is None)
