"""The CPUs that this process may use, by its affinity and its control groups (cgroups), and a rank's fair share."""

import math
import os
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""The file that names the control groups of this process."""


def usable() -> int:
    """Return the number of CPUs that this process may use at once.

    That is its affinity, or the time limit of its control groups if that is less.
    """
    return share(1)


def share(local_size: int) -> int:
    """Return one rank's fair share of the CPUs, at least 1, where `local_size` ranks run on this node.

    If the affinities of all ranks together fit the node, the launcher has bound each rank to CPUs of its own, and the
    share is the whole affinity. Otherwise the ranks divide it. They always divide a time limit.
    """
    affinity = len(os.sched_getaffinity(0))
    part = affinity if affinity * local_size <= _node_cpus() else affinity // local_size
    return max(1, math.ceil(min(part, _time_limit() / local_size)))


def _node_cpus() -> int:
    """The number of CPUs of the node, or of the part of it that this job's control group has."""
    for folder in _folders():
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if (ranges := _read(folder / name)) is not None:
                return sum(_width(part) for part in ranges.split(",") if part) or (os.cpu_count() or 1)
    return os.cpu_count() or 1


def _width(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def _time_limit() -> float:
    """The tightest of the control groups' time limits, in CPUs; infinity without a limit."""
    limit = math.inf
    for folder in _folders():
        period = _read(folder / "cpu.cfs_period_us")
        words = (_read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us') or 'max'} {period or 0}").split()
        if len(words) == 2 and words[0] not in ("max", "-1") and int(words[1]):
            limit = min(limit, int(words[0]) / int(words[1]))
    return limit


def _folders() -> list[Path]:
    """The folders of this process's control groups, innermost first: version 2's, or version 1's for CPUs."""
    folders = []
    for line in (_read(MEMBERSHIP) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and not {"cpu", "cpuset"} & set(controllers.split(",")):
            continue
        root = CONTROL_GROUPS / controllers
        inner = Path(path.lstrip("/"))
        folders += [root / part for part in (inner, *inner.parents)]
    return folders or [CONTROL_GROUPS]


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # absent or not readable: no known limit
        return None
