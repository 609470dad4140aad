"""What processes take from the machine: processor time, waits for a processor, bytes from disk, memory. Linux only."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process and all its descendants have taken so far; 0 where the kernel does not say it.

    Attributes:
        cpu: seconds on a processor, by thread identifier.
        delay: seconds that threads were ready to run and waited for a processor, by thread identifier.
        disk_bytes: bytes read from storage rather than from the page cache, by process.
    """

    cpu: dict[int, float]
    delay: dict[int, float]
    disk_bytes: dict[int, int]


def usage(pid: int) -> ProcessUsage:
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
    for task in _entries(PROC / str(pid) / "task"):
        for line in _lines(task / "children"):
            for child in line.split():
                yield from descendants(int(child))


def machine_busy() -> float:
    """Return the seconds that the processors which this process may use have been busy since the machine's start.

    Time that a hypervisor gave to other machines counts as busy.
    """
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
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
