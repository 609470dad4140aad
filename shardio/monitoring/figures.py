"""How a loader did during an interval."""

from __future__ import annotations

from dataclasses import dataclass

from ..loader.stats import LoaderStats


@dataclass(frozen=True, slots=True)
class InputFigures(LoaderStats):
    """The statistics of a loader during an interval, whose length is `seconds`, and its settings at the end of it.

    Attributes:
        rank: the rank.
        epoch: the epoch at the end of the interval.
        total_samples: samples delivered since the monitor began.
        threads: working threads at the end of the interval.
        prefetch: batches made ahead at the end of the interval.
    """

    rank: int = 0
    epoch: int = 0
    total_samples: int = 0
    threads: int = 0
    prefetch: int = 0

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
