"""Optional packages: loaded on use, and a clear word when they are missing."""

import importlib
import os
from types import ModuleType

from ..errors import MissingDependency

_QUIET = {"nvidia.nvimgcodec": ("PYNVIMGCODEC_VERBOSITY", "0")}
"""By module the variable that keeps it from writing to stderr what is told by errors, with names, anyway."""


def load(module: str, *, purpose: str, extra: str, distribution: str = "shardio-data") -> ModuleType:
    """Import `module`, or raise MissingDependency: `PURPOSE needs MODULE: pip install 'DISTRIBUTION[EXTRA]'`."""
    if module in _QUIET:
        os.environ.setdefault(*_QUIET[module])  # read when it is imported
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(f"{purpose} needs {module}: pip install '{distribution}[{extra}]'") from error
