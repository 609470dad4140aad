"""The processors, memory and GPUs of this machine, within the limits of its control groups, and the job's ranks."""

import math
import os
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..bench.machine import physical_memory
from ..errors import ConfigError
from ..order.world import World, launcher_variables
from ..system import control_groups, cpus
from ..system.units import format_size

SHARED_MEMORY = Path("/dev/shm")
DRIVER = Path("/proc/driver/nvidia/version")
SMALL_SHARED_MEMORY = 64 << 20
"""What Docker gives unless it is asked for more."""

State = Literal["ok", "note", "none", "optional", "missing", "broken"]
"""ok: works; note: works, and `advice` makes it better; none: this machine has none and needs none; optional: a package
that is not installed and that few people need; missing: anything else that is absent and not required; broken: absent
and required, or present and not working.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `shardio doctor`: a part of the environment and its state.

    Attributes:
        name: what it is.
        state: whether it works.
        value: what was found, such as a version.
        advice: what to do about it, one line; empty if there is nothing to do.
        figures: what was measured, for programs; None where nothing was.
    """

    name: str
    state: State
    value: str
    advice: str = ""
    figures: Mapping[str, float] | None = None


def job() -> list[Finding]:
    """Return the variables of launchers that are set, and the World that shardio detects."""
    launchers = [
        Finding(launcher, "ok", ", ".join(f"{name}={value}" for name, value in found.items()))
        for launcher, found in launcher_variables().items()
        if found
    ]
    try:
        world = World.detect()
    except ConfigError as error:
        return [*launchers, Finding("World", "broken", str(error), "correct or unset that variable")]
    place = f"rank {world.rank} of {world.size}, local rank {world.local_rank} of {world.local_size}"
    alone = "" if launchers else "; no launcher's variables are set"
    return [*launchers, Finding("World", "ok", f"{place}{alone}")]


def memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its control groups' limit if less."""
    return int(min(physical_memory(), control_groups.memory_limit()))


def machine() -> list[Finding]:
    """Return processor, limits, memory and GPUs."""
    limit = control_groups.cpu_limit()
    quota = "no limit of time" if math.isinf(limit) else f"time for {limit:g}"
    affinity = len(cpus.affinity())
    cores = f"{cpus.usable()} usable: {os.cpu_count()} online, affinity to {affinity}, {quota}"
    physical = physical_memory()
    limited = "no limit" if memory() == physical else f"limited to {format_size(memory())}"
    soft, hard = (
        "unlimited" if number == resource.RLIM_INFINITY else str(number)
        for number in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return [
        Finding("processor", "ok", cpus.model()),
        Finding("cores", "ok", cores),
        Finding("memory", "ok", f"{format_size(physical)}, {limited}"),
        _shared_memory(),
        Finding("open files", "ok", f"{soft}, which a Loader may raise to {hard}"),
        *_gpus(),
    ]


def _shared_memory() -> Finding:
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        advice = "NCCL and torch's DataLoader need it; shardio does not"
        return Finding("shared memory", "missing", f"{SHARED_MEMORY}: {error.strerror}", advice)
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    value = f"{format_size(total)}, {format_size(free)} free"
    if total > SMALL_SHARED_MEMORY:
        return Finding("shared memory", "ok", value)
    advice = "NCCL and torch's DataLoader need more: in Docker, the option shm-size; shardio itself does not"
    return Finding("shared memory", "note", value, advice)


def _gpus() -> list[Finding]:
    driver = re.search(r"\d+\.\d+(\.\d+)?", control_groups.read(DRIVER) or "")
    version = "" if driver is None else f"driver {driver[0]}"
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [torch.cuda.get_device_name(number) for number in range(count)]
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # software() reports why torch does not load
        return [Finding("GPU", "broken", f"{version or 'no driver'}; torch: {error}", "see PyTorch above")]
    if names:
        return [Finding(f"GPU {number}", "ok", f"{name}, {version}") for number, name in enumerate(names)]
    if driver is not None:
        built = f"torch was built with CUDA {torch.version.cuda}" if torch.version.cuda else "torch has no CUDA"
        return [Finding("GPU", "note", f"{version}, but torch sees none", f"{built}: take one that fits the driver")]
    return [Finding("GPU", "none", "batches are made on the CPU")]
