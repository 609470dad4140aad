"""The limits that control groups (cgroups, both versions) set to this process: processor time and memory."""

import math
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""The file that names the control groups of this process."""


def cpu_limit() -> float:
    """Return the tightest of the limits of processor time, in CPUs; infinity without a limit."""
    limit = math.inf
    for folder in folders("cpu", "cpuset"):
        period = read(folder / "cpu.cfs_period_us")
        words = (read(folder / "cpu.max") or f"{read(folder / 'cpu.cfs_quota_us') or 'max'} {period or 0}").split()
        if len(words) == 2 and words[0] not in ("max", "-1") and int(words[1]):
            limit = min(limit, int(words[0]) / int(words[1]))
    return limit


def memory_limit() -> float:
    """Return the tightest of the limits of memory in bytes; infinity without a limit."""
    limits = [
        int(text)
        for folder in folders("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := read(folder / name)) is not None and text.isdigit()
    ]
    return min((limit for limit in limits if limit < 1 << 62), default=math.inf)  # version 1 writes "none" as 2^63


def folders(*controllers: str) -> list[Path]:
    """Return the folders of this process's control groups, innermost first: version 2's, or those of `controllers`."""
    found = []
    for line in (read(MEMBERSHIP) or "").splitlines():
        _, names, path = line.split(":", 2)
        if names and not set(controllers) & set(names.split(",")):
            continue
        root = CONTROL_GROUPS / names
        inner = Path(path.lstrip("/"))
        found += [root / part for part in (inner, *inner.parents)]
    return found or [CONTROL_GROUPS]


def read(path: Path) -> str | None:
    """Return the text of a file of the kernel's, or None if it is absent or not readable."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
