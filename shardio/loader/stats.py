"""Loader statistics: throughput and waiting times of an epoch on one rank. `care.stats` describes datasets."""

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..system.timing import StageClock


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Throughput and waiting times on one rank so far: of one epoch, or of all epochs together.

    Attributes:
        samples: the number of samples delivered.
        bytes: the stored bytes read for them.
        unpacked_bytes: the bytes decompressed for them, of whole chunks of HDF5 files: more than `bytes` where a chunk
            holds other samples' rows as well.
        seconds: wall time since the start of the epoch; of several epochs, without the time between them.
        wait_seconds: the part of `seconds` that the consumer waited for batches.
        device_seconds: the part of `wait_seconds` that engines for whole batches and copies to a device took.
        stage_seconds: seconds spent in each stage, summed over all threads and worker processes. The stages are `plan`,
            `fetch` (waiting for a store), `read`, `decompress` (chunks of HDF5 files), `verify`, `decode` (which
            includes transforms), `libavcodec` (decoding videos, apart from `decode`), `map`, `mix` and `assemble`.
        stage_cpu_seconds: the part of `stage_seconds` on a processor. The rest is waiting: for storage, for a
            processor, for the interpreter's lock (GIL), or inside a function of yours.
        sources: the number of samples delivered from each source of a mixture.
        fetched: the bytes fetched from stores, with the number of requests and retries and the seconds that threads
            waited for them. Worker processes don't report theirs; the parent fetches ahead for them.
        decoded_frames, wanted_frames: the frames of videos that were decoded, and those of them that clips show: they
            refer to the others.
    """

    samples: int = 0
    bytes: int = 0
    unpacked_bytes: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    device_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    stage_cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    fetched: FetchCounts = field(default_factory=FetchCounts)
    decoded_frames: int = 0
    wanted_frames: int = 0

    @property
    def starved(self) -> float:
        """The share of wall time that the consumer waited for input, 0 to 1."""
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second of wall time, on this rank."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes read per second of wall time, on this rank."""
        return self.bytes / self.seconds if self.seconds else 0.0

    def __add__(self, other: "LoaderStats") -> "LoaderStats":
        """Return the statistics of both together."""
        return self._combined(other, operator.add)

    def __sub__(self, earlier: "LoaderStats") -> "LoaderStats":
        """Return what came after `earlier`, which is contained in these statistics."""
        return self._combined(earlier, operator.sub)

    def _combined(self, other: "LoaderStats", operation: Callable[[Any, Any], Any]) -> "LoaderStats":
        combined: dict[str, Any] = {}
        for part in fields(LoaderStats):
            one, two = getattr(self, part.name), getattr(other, part.name)
            if isinstance(one, Mapping):
                combined[part.name] = {key: operation(one.get(key, 0), two.get(key, 0)) for key in {**one, **two}}
            else:
                combined[part.name] = operation(one, two)
        return LoaderStats(**combined)


@final
class Meter:
    """Measures one epoch for `LoaderStats`. It outlives the epoch's threads and buffers.

    Attributes:
        clock: measures the time that workers spend in each stage, including ahead of the epoch.
        on_device: the seconds of the consumer's waits that engines for whole batches and copies to a device took.
    """

    def __init__(self, sources: Sequence[str] = (), fetched: Callable[[], FetchCounts] = FetchCounts) -> None:
        self._fetched, self._fetched_before = fetched, fetched()
        self._fetched_in_all: FetchCounts | None = None
        self._sources = dict.fromkeys(sources, 0)
        self.clock = StageClock()
        self.on_device = 0.0
        # The seconds of the waits that are over, and when the one under way began: one value, for other threads.
        self._wait: tuple[float, float | None] = (0.0, None)
        self._begun = time.monotonic()
        self._ended: float | None = None
        self._samples = self._bytes = 0

    def count(self, samples: int, size: int, sources: NDArray[np.int64] | None = None) -> None:
        """Add a delivered batch: its samples, its stored bytes and, for a mixture, the source of each sample."""
        self._samples += samples
        self._bytes += size
        if sources is not None:
            for name, count in zip(self._sources, np.bincount(sources, minlength=len(self._sources)), strict=True):
                self._sources[name] += int(count)

    def begin_wait(self) -> None:
        self._wait = self._wait[0], time.monotonic()

    def end_wait(self) -> float:
        """Return the seconds of the wait that is over."""
        before = self._wait[0]
        self._wait = self._waited(time.monotonic()), None
        return self._wait[0] - before

    def _waited(self, now: float) -> float:
        seconds, begun = self._wait
        return seconds if begun is None else seconds + now - begun

    def end(self) -> None:
        """Stop the wall clock; may be called twice."""
        if self._ended is None:
            self._fetched_in_all = self._fetched()
            self._ended = time.monotonic()

    def read(self) -> LoaderStats:
        """Return the statistics so far."""
        end = time.monotonic() if self._ended is None else self._ended
        seconds, cpu_seconds, counts = self.clock.measured()
        return LoaderStats(
            samples=self._samples,
            bytes=self._bytes,
            unpacked_bytes=counts.get("unpacked_bytes", 0),
            decoded_frames=counts.get("decoded_frames", 0),
            wanted_frames=counts.get("wanted_frames", 0),
            seconds=end - self._begun,
            wait_seconds=self._waited(end),
            device_seconds=self.on_device,
            stage_seconds=seconds,
            stage_cpu_seconds=cpu_seconds,
            sources=dict(self._sources),
            fetched=(self._fetched_in_all or self._fetched()) - self._fetched_before,
        )
