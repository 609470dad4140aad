"""Resource usage of the ranks' processes: processor time, waits for a processor, disk reads, memory. Linux only."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from ..system import cpus

PROC = Path("/proc")
INTERVAL = 0.2  # seconds between two samples
_MEMORY_EVERY = 1.0  # seconds at least
_MEMORY_SHARE = 0.005  # of the time: the kernel walks over all pages of a process, 30 ms for a gigabyte


@dataclass(frozen=True, slots=True)
class RankUsage:
    """The resources that a rank and its worker processes took during a time.

    Attributes:
        delay_seconds: seconds that threads were ready to run and waited for a processor.
        disk_bytes: bytes read from storage rather than from the page cache.
        peak_memory: the most memory that was seen at once, in bytes (PSS).
    """

    delay_seconds: float = 0.0
    disk_bytes: int = 0
    peak_memory: int = 0


@final
class UsageSampler:
    """Samples the usage of processes in the `with` block, on a thread.

    Args:
        pids: the process of each rank.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._rows: list[list[float]] = []  # time, busy seconds, then each rank's seconds of delay and bytes from disk
        self._memory: list[tuple[float, list[int]]] = []  # time, bytes of each rank
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardio bench sampler", daemon=True)

    def __enter__(self) -> "UsageSampler":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def rank(self, number: int, begun: float, ended: float) -> RankUsage:
        """Return what a rank took between two times of `time.monotonic`."""
        all_sizes = [(moment, sizes[number]) for moment, sizes in self._memory]
        held = [size for moment, size in all_sizes if begun <= moment <= ended] or [size for _, size in all_sizes]
        return RankUsage(
            delay_seconds=self._difference(2 + 2 * number, begun, ended),
            disk_bytes=round(self._difference(3 + 2 * number, begun, ended)),
            peak_memory=max(held, default=0),
        )

    def machine_busy(self, begun: float, ended: float) -> float:
        """Return the seconds that the usable processors were busy between two times, whoever kept them busy."""
        return self._difference(1, begun, ended)

    def _run(self) -> None:
        next_memory = time.monotonic()
        latest = [ProcessUsage({}, {}, {}) for _ in self._pids]  # the share of what has ended stays in it
        while True:
            row = [time.monotonic(), machine_busy()]
            for pid, usage in zip(self._pids, latest, strict=True):
                now = process_usage(pid)
                usage.delay.update(now.delay)
                usage.disk_bytes.update(now.disk_bytes)
                row += (sum(usage.delay.values()), sum(usage.disk_bytes.values()))
            if row[0] >= next_memory:
                self._memory.append((row[0], [memory(pid) for pid in self._pids]))
                next_memory = row[0] + max(_MEMORY_EVERY, (time.monotonic() - row[0]) / _MEMORY_SHARE)
            self._rows.append(row)
            if self._end.wait(INTERVAL):
                return

    def _difference(self, column: int, begun: float, ended: float) -> float:
        """Return how much a sum grew between two moments; between two samples, in proportion."""
        if not self._rows:
            return 0.0
        table = np.array(self._rows)
        before, after = np.interp((begun, ended), table[:, 0], table[:, column])
        return max(0.0, float(after - before))


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The resources that a process and all its descendants have used so far; 0 where the kernel does not say.

    Attributes:
        cpu: seconds on a processor, by thread identifier.
        delay: seconds that threads were ready to run and waited for a processor, by thread identifier.
        disk_bytes: bytes read from storage rather than from the page cache, by process.
    """

    cpu: dict[int, float]
    delay: dict[int, float]
    disk_bytes: dict[int, int]


def process_usage(pid: int) -> ProcessUsage:
    """Return what process `pid` and its descendants have taken so far. One that has ended has taken nothing."""
    cpu: dict[int, float] = {}
    delay: dict[int, float] = {}
    disk: dict[int, int] = {}
    for process in descendants(pid):
        for line in _lines(PROC / str(process) / "io"):
            if line.startswith("read_bytes: "):
                disk[process] = int(line.split()[1])
        for task in _entries(PROC / str(process) / "task"):
            words = " ".join(_lines(task / "schedstat")).split()
            if len(words) == 3:
                cpu[int(task.name)], delay[int(task.name)] = int(words[0]) / 1e9, int(words[1]) / 1e9
    return ProcessUsage(cpu, delay, disk)


def memory(pid: int) -> int:
    """Return the memory of process `pid` and its descendants in bytes (PSS: shared pages are divided)."""
    lines = (line for process in descendants(pid) for line in _lines(PROC / str(process) / "smaps_rollup"))
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss: "))


def descendants(pid: int) -> Iterator[int]:
    """Yield `pid`, its children, and theirs."""
    yield pid
    for child in children(pid):
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """Return the children of process `pid`."""
    tasks = _entries(PROC / str(pid) / "task")
    return [int(child) for task in tasks for line in _lines(task / "children") for child in line.split()]


def machine_busy() -> float:
    """Return the seconds that the processors which this process may use have been busy since the machine's start.

    Time that a hypervisor gave to other machines counts as busy.
    """
    ours = {f"cpu{number}" for number in cpus.affinity()}
    busy = 0
    for line in _lines(PROC / "stat"):
        name, *ticks = line.split()
        if name in ours:
            user, nice, system, _idle, _iowait, irq, soft, steal = map(int, ticks[:8])
            busy += user + nice + system + irq + soft + steal
    return busy / os.sysconf("SC_CLK_TCK")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # the process has ended
        return []


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # the process has ended, or the kernel does not say it
        return []
