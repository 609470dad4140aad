"""The CPUs that a rank may use: affinity, control groups of both versions, and a fair share; memory."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardio.system import control_groups, cpus

V2 = "0::/job/step\n"
V1 = "3:cpu,cpuacct:/job\n4:memory:/job\n1:pids:/job\n"
QUOTA, PERIOD = (f"cpu,cpuacct/job/cpu.cfs_{name}_us" for name in ("quota", "period"))
BOUND, MEMORY = "job/step/cpuset.cpus.effective", "memory/job/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("found", "affinity", "own", "files", "expected"),
    [
        # The tightest of all limits on CPUs counts.
        (cpus.usable, 64, "0::/\n", {}, 64),  # no limits
        (cpus.usable, 16, "0::/\n", {}, 16),  # affinity
        (cpus.usable, 64, V2, {"job/cpu.max": "800000 100000"}, 8),  # quota of an outer group
        (cpus.usable, 64, V2, {"job/cpu.max": "max 100000", "job/step/cpu.max": "250000 100000"}, 3),  # rounded up
        (cpus.usable, 2, V2, {"job/cpu.max": "800000 100000"}, 2),  # the lesser of the two
        (cpus.usable, 64, V2, {"job/cpu.max": "1000 100000"}, 1),  # at least one
        (cpus.usable, 64, V1, {QUOTA: "400000", PERIOD: "100000"}, 4),
        (cpus.usable, 64, V1, {QUOTA: "-1", PERIOD: "100000"}, 64),  # without a limit
        # Ranks divide the CPUs that they share; a rank that is bound to CPUs of its own uses all of them.
        (lambda: cpus.share(1), 64, V2, {}, 64),  # a single rank
        (lambda: cpus.share(4), 64, V2, {}, 16),  # not bound, and shared
        (lambda: cpus.share(4), 16, V2, {}, 16),  # bound by the launcher, each rank to its own
        (lambda: cpus.share(100), 64, V2, {}, 1),  # more ranks than CPUs
        (lambda: cpus.share(4), 16, V2, {BOUND: "0-15"}, 4),  # a container of 16 that the ranks share
        (lambda: cpus.share(4), 4, V2, {BOUND: "0-7,16-23"}, 4),  # bound within a container
        (lambda: cpus.share(4), 64, V2, {"job/cpu.max": "800000 100000"}, 2),  # a quota is shared, too
        # The tightest limit on memory counts, of either version.
        (control_groups.memory_limit, 64, V2, {}, math.inf),
        (control_groups.memory_limit, 64, V2, {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        (control_groups.memory_limit, 64, V1, {MEMORY: "8192", "pids/memory.max": "1"}, 8192),
        (control_groups.memory_limit, 64, V1, {MEMORY: "9223372036854771712"}, math.inf),  # no limit
    ],
)
def test_limits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: Callable[[], float],
    affinity: int,
    own: str,
    files: dict[str, str],
    expected: float,
) -> None:
    """On a node of 64 CPUs, what a process may use follows from its affinity and its control groups' files."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "own")
    monkeypatch.setattr(control_groups, "CONTROL_GROUPS", tmp_path / "groups")
    assert found() == expected
