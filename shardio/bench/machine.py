"""The machine and the packages that a figure was measured with."""

import importlib.metadata
import os
import platform
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
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "compiled": native.library() is not None,
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
