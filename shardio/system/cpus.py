"""The CPUs that this process may use, by its affinity and its control groups (cgroups), and a rank's fair share."""

import math
import os
import platform
from pathlib import Path

from . import control_groups


def affinity() -> frozenset[int]:
    """Return the numbers of the CPUs that this process may use; where the system has no affinities, of all."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


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
    bound = len(affinity())
    part = bound if bound * local_size <= _node_cpus() else bound // local_size
    return max(1, math.ceil(min(part, control_groups.cpu_limit() / local_size)))


def _node_cpus() -> int:
    """The number of CPUs of the node, or of the part of it that this job's control group has."""
    for folder in control_groups.folders("cpu", "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if (ranges := control_groups.read(folder / name)) is not None:
                return sum(_width(part) for part in ranges.split(",") if part) or (os.cpu_count() or 1)
    return os.cpu_count() or 1


def _width(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def model() -> str:
    """Return the name of the processor."""
    lines = (control_groups.read(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
