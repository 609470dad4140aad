"""Optional packages: imported on first use, with an error that says how to install a missing one."""

import importlib
import importlib.metadata
import os
import re
import shlex
from types import ModuleType

from ..errors import MissingDependency

_SETTINGS = {
    "nvidia.nvimgcodec": ("PYNVIMGCODEC_VERBOSITY", "0"),  # errors report what it would repeat on stderr
    "tokenizers": ("TOKENIZERS_PARALLELISM", "false"),  # workers are threads enough, and forks would bring warnings
}
"""For each module, an environment variable that it reads, and the value to give it unless it has one."""


def load(module: str, *, purpose: str, extra: str, distribution: str = "shardio-data") -> ModuleType:
    """Import and return `module`.

    Raises MissingDependency if it cannot be imported: `PURPOSE needs MODULE: pip install PACKAGES`, with the packages
    that the extra of the distribution adds, and the reason if it is another one than that MODULE is not installed.
    """
    if module in _SETTINGS:
        os.environ.setdefault(*_SETTINGS[module])
    try:
        return importlib.import_module(module)
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f", which cannot be imported ({error})"
        raise MissingDependency(
            f"{purpose} needs {module}{why}: pip install {_packages(distribution, extra)}"
        ) from error


def _packages(distribution: str, extra: str) -> str:
    """Return what an extra adds, as words for pip; by its own name if nothing is known of the distribution.

    By name, pip would look for a distribution that came as a wheel or a checkout on an index that may not have it.
    """
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    marked = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    packages = [
        package.strip() for package, _, marker in (r.partition(";") for r in requirements) if marked.search(marker)
    ]
    return " ".join(map(shlex.quote, packages or [f"{distribution}[{extra}]"]))
