"""The CPUs that a rank may use: affinity, control groups of both versions, and a fair share; memory."""

import math
import os
from pathlib import Path

import pytest

from shardio.system import control_groups, cpus


def machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    affinity: int,
    own: str = "0::/job/step\n",
    files: dict[str, str] | None = None,
) -> None:
    """Simulate a node of 64 CPUs, of which this process may use `affinity`, with these control group files."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    (tmp_path / "own").write_text(own)
    for name, content in (files or {}).items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "own")
    monkeypatch.setattr(control_groups, "CONTROL_GROUPS", tmp_path / "groups")


@pytest.mark.parametrize(
    ("affinity", "own", "files", "expected"),
    [
        (64, "0::/\n", {}, 64),  # no limits
        (16, "0::/\n", {}, 16),  # affinity
        (64, "0::/job/step\n", {"job/cpu.max": "800000 100000"}, 8),  # quota of an outer group
        (64, "0::/job/step\n", {"job/cpu.max": "max 100000", "job/step/cpu.max": "250000 100000"}, 3),  # rounded up
        (2, "0::/job\n", {"job/cpu.max": "800000 100000"}, 2),  # the lesser of the two
        (64, "0::/job\n", {"job/cpu.max": "1000 100000"}, 1),  # at least one
        (64, "3:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
                                      "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, 4),  # version 1
        (64, "3:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
                                      "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, 64),  # version 1 without a limit
    ],
)  # fmt: skip
def test_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, own: str, files: dict[str, str], expected: int
) -> None:
    """The tightest of all limits counts."""
    machine(tmp_path, monkeypatch, affinity=affinity, own=own, files=files)
    assert cpus.usable() == expected


@pytest.mark.parametrize(
    ("affinity", "local_size", "files", "expected"),
    [
        (64, 1, {}, 64),  # a single rank
        (64, 4, {}, 16),  # not bound, and shared
        (16, 4, {}, 16),  # bound by the launcher, each rank to its own
        (64, 100, {}, 1),  # more ranks than CPUs
        (16, 4, {"job/step/cpuset.cpus.effective": "0-15"}, 4),  # a container of 16 that the ranks share
        (4, 4, {"job/step/cpuset.cpus.effective": "0-7,16-23"}, 4),  # bound within a container
        (64, 4, {"job/cpu.max": "800000 100000"}, 2),  # a quota is shared, too
    ],
)
def test_share(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    affinity: int,
    local_size: int,
    files: dict[str, str],
    expected: int,
) -> None:
    """Ranks divide the CPUs that they share; a rank that is bound to CPUs of its own uses all of them."""
    machine(tmp_path, monkeypatch, affinity=affinity, files=files)
    assert cpus.share(local_size) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/job/step\n", {}, math.inf),
        ("0::/job/step\n", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("4:memory:/job\n1:cpu:/\n", {"memory/job/memory.limit_in_bytes": "8192", "cpu/memory.max": "1"}, 8192),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "9223372036854771712"}, math.inf),  # no limit
    ],
)
def test_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], expected: float
) -> None:
    """The tightest limit of the control groups counts, of either version."""
    machine(tmp_path, monkeypatch, affinity=64, own=own, files=files)
    assert control_groups.memory_limit() == expected
