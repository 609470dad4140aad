"""The machine and the packages that a figure was measured with."""

import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__, native
from ..system import cpus

PACKAGES = (
    *("shardio-data", "torch", "numpy", "h5py", "lmdb", "opencv-python-headless"),
    *("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-dali-cuda120", "nvidia-dali-cuda130"),
)


@dataclass(frozen=True, slots=True)
class Installation:
    """The shardio that measures.

    Attributes:
        version: its version.
        folder: where it is imported from.
        interpreter: the path of the Python that runs it.
        python: the version of that.
    """

    version: str
    folder: str
    interpreter: str
    python: str

    @classmethod
    def of_this_process(cls) -> "Installation":
        """Return that of this process."""
        folder = Path(__file__).parents[1]
        return cls(__version__, str(folder), sys.executable, platform.python_version())

    def __str__(self) -> str:
        return f"shardio {self.version} in {self.folder}, Python {self.python}"


def describe() -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes, Python version, whether shardio is compiled, and packages."""
    return {
        "processor": cpus.model(),
        "cores": len(os.sched_getaffinity(0)),
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
