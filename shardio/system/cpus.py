"""How many processors this process may use: its affinity, its control group's limits, and its fair share of them."""

import math
import os
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable() -> int:
    """Processors that this process may use at once: its affinity, or its control group's time limit if that is less."""
    return share(1)


def share(local_size: int) -> int:
    """One rank's fair part, at least 1, where `local_size` ranks run on this node.

    A launcher may have given each rank processors of its own: then the affinities of all ranks together fit the node,
    and the part is all that this process may use. A limit of time holds for the ranks together.
    """
    mine = len(os.sched_getaffinity(0))
    part = mine if mine * local_size <= _node() else mine // local_size
    return max(1, math.ceil(min(part, _time_limit() / local_size)))


def _node() -> int:
    """Processors of the node, or of the part of it that this job's control group has."""
    for folder in _folders():
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if (found := _read(folder / name)) is not None:
                return sum(_width(part) for part in found.split(",") if part) or (os.cpu_count() or 1)
    return os.cpu_count() or 1


def _width(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def _time_limit() -> float:
    """Processors' worth of time that the tightest of the control groups grants; infinity without a limit."""
    limit = math.inf
    for folder in _folders():
        period = _read(folder / "cpu.cfs_period_us")
        words = (_read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us') or 'max'} {period or 0}").split()
        if len(words) == 2 and words[0] not in ("max", "-1") and int(words[1]):
            limit = min(limit, int(words[0]) / int(words[1]))
    return limit


def _folders() -> list[Path]:
    """The control groups that this process is in, innermost first: version 2's, or version 1's for processors."""
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
    except OSError:  # not there, or not ours to read: then it limits nothing that we know of
        return None
