"""What an epoch has cost: counted while it runs, read as a value."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..system.timing import StageClock


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What one epoch of one rank has cost so far.

    Attributes:
        samples: samples delivered.
        bytes: stored bytes read for them.
        seconds: wall time since the epoch was begun.
        wait_seconds: of that, how long the consumer waited for batches.
        device_seconds: of that, how long for engines of whole batches and copies to a device; 0 without.
        sources: of a mixture, samples delivered of each source.
        stage_seconds: time spent in each stage (`read`, `decode`, ...), added up over all threads.
    """

    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    device_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)

    @property
    def starved(self) -> float:
        """The share of wall time that the consumer waited for input, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second of wall time, on this rank."""
        return self.samples / self.seconds if self.seconds else 0.0


@final
class Meter:
    """Counts what an epoch costs. Outlives the epoch's threads and buffers."""

    def __init__(self, sources: Sequence[str] = ()) -> None:
        self._sources = dict.fromkeys(sources, 0)
        self.clock = StageClock()
        self.waited = self.on_device = 0.0
        self._begun = time.monotonic()
        self._ended: float | None = None
        self._samples = self._bytes = 0

    def count(self, samples: int, size: int, sources: NDArray[np.int64] | None = None) -> None:
        """Adds a batch that was delivered: its samples, stored bytes, and of a mixture each sample's source."""
        self._samples += samples
        self._bytes += size
        if sources is not None:
            for name, met in zip(self._sources, np.bincount(sources, minlength=len(self._sources)), strict=True):
                self._sources[name] += int(met)

    def end(self) -> None:
        """Stops the wall clock; may be called twice."""
        if self._ended is None:
            self._ended = time.monotonic()

    def read(self) -> LoaderStats:
        """The figures so far."""
        end = time.monotonic() if self._ended is None else self._ended
        return LoaderStats(
            samples=self._samples,
            bytes=self._bytes,
            seconds=end - self._begun,
            wait_seconds=self.waited,
            device_seconds=self.on_device,
            stage_seconds=self.clock.seconds(),
            sources=dict(self._sources),
        )
