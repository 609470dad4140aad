"""Samples what the ranks' processes take from the machine, while they run."""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import final

from ..system import process_usage

INTERVAL = 0.2  # seconds between two samples
_MEMORY_EVERY = 1.0  # seconds at least
_MEMORY_SHARE = 0.005  # of the time: the kernel walks over all pages of a process, 30 ms for a gigabyte


@dataclass(frozen=True, slots=True)
class RankUsage:
    """What a rank and its worker processes took during a time.

    Attributes:
        delay_seconds: seconds that threads were ready to run and waited for a processor.
        disk_bytes: bytes read from storage rather than from the page cache.
        peak_memory: the most memory that was seen at once, in bytes (PSS).
    """

    delay_seconds: float = 0.0
    disk_bytes: int = 0
    peak_memory: int = 0


@dataclass(slots=True)
class _Series:
    """The sums of one rank over time; a thread's or process's share stays in them after it ends."""

    delay: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    latest_delay: dict[int, float] = field(default_factory=dict)
    latest_disk: dict[int, int] = field(default_factory=dict)

    def add(self, usage: process_usage.ProcessUsage) -> None:
        """Add a sample."""
        self.latest_delay |= usage.delay
        self.latest_disk |= usage.disk_bytes
        self.delay.append(sum(self.latest_delay.values()))
        self.disk.append(float(sum(self.latest_disk.values())))


@final
class UsageSampler:
    """Samples the usage of processes in the `with` block, on a thread.

    Args:
        pids: the process of each rank.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._times: list[float] = []
        self._busy: list[float] = []
        self._ranks = [_Series() for _ in pids]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardio bench sampler", daemon=True)

    def __enter__(self) -> "UsageSampler":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def rank(self, number: int, begun: float, ended: float) -> RankUsage:
        """Return what a rank took between two times of `time.monotonic`."""
        series = self._ranks[number]
        held = [size for moment, size in series.memory if begun <= moment <= ended] or [s for _, s in series.memory]
        return RankUsage(
            delay_seconds=self._difference(series.delay, begun, ended),
            disk_bytes=round(self._difference(series.disk, begun, ended)),
            peak_memory=max(held, default=0),
        )

    def machine_busy(self, begun: float, ended: float) -> float:
        """Return the seconds that the usable processors were busy between two times, whoever kept them busy."""
        return self._difference(self._busy, begun, ended)

    def _run(self) -> None:
        next_memory = time.monotonic()
        while True:
            moment, busy = time.monotonic(), process_usage.machine_busy()
            for series, pid in zip(self._ranks, self._pids, strict=True):
                series.add(process_usage.usage(pid))
            if moment >= next_memory:
                for series, pid in zip(self._ranks, self._pids, strict=True):
                    series.memory.append((moment, process_usage.memory(pid)))
                next_memory = moment + max(_MEMORY_EVERY, (time.monotonic() - moment) / _MEMORY_SHARE)
            self._busy.append(busy)
            self._times.append(moment)  # last: it says how many samples are whole
            if self._end.wait(INTERVAL):
                return

    def _difference(self, sums: Sequence[float], begun: float, ended: float) -> float:
        return max(0.0, self._at(sums, ended) - self._at(sums, begun))

    def _at(self, sums: Sequence[float], moment: float) -> float:
        """The sum at a moment, between two samples in proportion."""
        times = self._times
        if not times:
            return 0.0
        after = min(bisect_left(times, moment), len(times) - 1)
        if after == 0:
            return sums[0]
        before = after - 1
        part = min(1.0, (moment - times[before]) / max(times[after] - times[before], 1e-9))
        return sums[before] + part * (sums[after] - sums[before])
