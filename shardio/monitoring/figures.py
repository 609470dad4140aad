"""How a loader did during an interval, from two of its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..loader.stats import LoaderStats


@dataclass(frozen=True, slots=True)
class InputFigures:
    """How a loader did during an interval.

    Attributes:
        rank: the rank.
        epoch: the epoch at the end of the interval.
        seconds: the length of the interval.
        samples, bytes: samples delivered, and the stored bytes read for them.
        wait_seconds: the part of the interval that the training loop waited for batches.
        total_samples: samples delivered since the monitor began.
        threads: working threads at the end of the interval.
        prefetch: batches made ahead at the end of the interval.
        stage_seconds: seconds that workers spent in each stage, summed over threads.
    """

    rank: int
    epoch: int
    seconds: float
    samples: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    total_samples: int = 0
    threads: int = 0
    prefetch: int = 0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second, on this rank."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes read per second, on this rank."""
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def starved(self) -> float:
        """The share of the interval that the training loop waited for input, 0 to 1."""
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the figures as plain values."""
        return {
            "rank": self.rank,
            "epoch": self.epoch,
            "seconds": round(self.seconds, 3),
            "samples": self.samples,
            "samples_per_second": round(self.samples_per_second, 1),
            "bytes_per_second": round(self.bytes_per_second),
            "starved": round(self.starved, 4),
            "threads": self.threads,
            "prefetch": self.prefetch,
            "total_samples": self.total_samples,
            "stage_seconds": {name: round(spent, 3) for name, spent in self.stage_seconds.items()},
        }


def difference(before: LoaderStats, after: LoaderStats) -> LoaderStats:
    """Return what came between two statistics of all epochs of a loader."""
    stages = {name: spent - before.stage_seconds.get(name, 0.0) for name, spent in after.stage_seconds.items()}
    return LoaderStats(
        samples=after.samples - before.samples,
        bytes=after.bytes - before.bytes,
        seconds=after.seconds - before.seconds,
        wait_seconds=after.wait_seconds - before.wait_seconds,
        stage_seconds=stages,
        fetched=after.fetched - before.fetched,
    )
