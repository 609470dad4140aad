"""What a repair found and did, shard by shard."""

from dataclasses import dataclass
from typing import Any

from ..format import manifest
from ..system.units import counted


@dataclass(frozen=True, slots=True)
class ShardRepair:
    """What a repair did with one shard.

    Attributes:
        shard: the shard's name.
        kept: the number of its samples that the repaired dataset holds.
        lost: the number of those that it held before and holds no more; None if the manifest was lost.
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
        """One line for each thing that was repaired or lost; empty if nothing was wrong."""
        return (*self.notes, *map(str, self.shards))

    @property
    def lost(self) -> int | None:
        """The number of samples that were lost in all; None if that is not known."""
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
