"""The processors, memory and GPUs of this machine, within the limits of its control groups."""

import math
import os
import re
import resource
from pathlib import Path

from ..system import control_groups, cpus
from ..system.units import format_size
from .finding import Finding

SHARED_MEMORY = Path("/dev/shm")
DRIVER = Path("/proc/driver/nvidia/version")
SMALL_SHARED_MEMORY = 64 << 20
"""What Docker gives unless it is asked for more."""


def memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its control groups' limit if less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(physical, control_groups.memory_limit()))


def machine() -> list[Finding]:
    """Return processor, limits, memory and GPUs."""
    return [
        Finding("processor", "ok", cpus.model()),
        _cores(),
        _memory(),
        _shared_memory(),
        _open_files(),
        *_gpus(),
    ]


def _cores() -> Finding:
    limit = control_groups.cpu_limit()
    quota = "no limit of time" if math.isinf(limit) else f"time for {limit:g}"
    affinity = len(os.sched_getaffinity(0))
    return Finding("cores", "ok", f"{cpus.usable()} usable: {os.cpu_count()} online, affinity to {affinity}, {quota}")


def _memory() -> Finding:
    limit = control_groups.memory_limit()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = "no limit" if limit >= physical else f"limited to {format_size(limit)}"
    return Finding("memory", "ok", f"{format_size(physical)}, {told}")


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


def _open_files() -> Finding:
    soft, hard = (
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return Finding("open files", "ok", f"{soft}, which a Loader may raise to {hard}")


def _gpus() -> list[Finding]:
    driver = re.search(r"\d+\.\d+(\.\d+)?", control_groups.read(DRIVER) or "")
    version = "" if driver is None else f"driver {driver[0]}"
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [torch.cuda.get_device_name(number) for number in range(count)]
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # software() tells why torch does not load
        return [Finding("GPU", "broken", f"{version or 'no driver'}; torch: {error}", "see PyTorch above")]
    if names:
        return [Finding(f"GPU {number}", "ok", f"{name}, {version}") for number, name in enumerate(names)]
    if driver is not None:
        built = f"torch was built with CUDA {torch.version.cuda}" if torch.version.cuda else "torch has no CUDA"
        return [Finding("GPU", "note", f"{version}, but torch sees none", f"{built}: take one that fits the driver")]
    return [Finding("GPU", "none", "batches are made on the CPU")]
