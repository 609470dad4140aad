"""The machine and the packages that a figure was measured with."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from .. import native
from ..system import cpus

PACKAGES = (
    *("shardio-data", "torch", "numpy", "h5py", "lmdb", "pillow"),
    *("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-dali-cuda120", "nvidia-dali-cuda130"),
)


def describe() -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes, Python version, whether shardio is compiled, and packages."""
    return {
        "processor": cpus.model(),
        "cores": len(cpus.affinity()),
        "memory": physical_memory(),
        "python": platform.python_version(),
        "compiled": native.library() is not None,
        "packages": {name: version for name in PACKAGES if (version := installed((name,)))},
    }


def physical_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def installed(distributions: Iterable[str]) -> str | None:
    """Return the version of the first of some distributions that is installed; None if none is."""
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
