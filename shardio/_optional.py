"""Optional packages: loaded on use, and a clear word when they are missing."""

import importlib
from types import ModuleType

from .errors import MissingDependency


def load(module: str, *, purpose: str, extra: str) -> ModuleType:
    """Imports `module`, or raises MissingDependency: `PURPOSE needs MODULE: pip install 'shardio-data[EXTRA]'`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(f"{purpose} needs {module}: pip install 'shardio-data[{extra}]'") from error
