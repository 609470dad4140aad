"""Optional packages: imported on first use, with an error that says how to install a missing one."""

import importlib
import os
from types import ModuleType

from ..errors import MissingDependency

_LOG_SETTINGS = {"nvidia.nvimgcodec": ("PYNVIMGCODEC_VERBOSITY", "0")}
"""For each module, the environment variable and value that keep it from repeating on stderr what errors report."""


def load(module: str, *, purpose: str, extra: str, distribution: str = "shardio-data") -> ModuleType:
    """Import and return `module`.

    Raises MissingDependency if it is not installed: `PURPOSE needs MODULE: pip install 'DISTRIBUTION[EXTRA]'`.
    """
    if module in _LOG_SETTINGS:
        os.environ.setdefault(*_LOG_SETTINGS[module])  # the module reads it when it is imported
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(f"{purpose} needs {module}: pip install '{distribution}[{extra}]'") from error
