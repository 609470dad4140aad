"""Objects of the user's own that an option names as `module:name`."""

import importlib
from pathlib import Path
from typing import Any

from ..errors import ConfigError, Option


def load_named(name: str, option: str) -> Any:
    """Import the object that `name`, such as `package.module:function`, names; its module must be on the Python path.

    Raises ConfigError, which names `option`, if there is no such module or object.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError("{} must be 'module:name', got {!r}", Option(option), name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing, advice = error.name, _advice(error.name or module_name)
        raise ConfigError(
            "{} {!r}: there is no module {!r} on the Python path{}", Option(option), name, missing, advice
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError("{} {!r}: module {!r} has no {!r}", Option(option), name, module_name, attribute)
    return getattr(module, attribute)


def _advice(module: str) -> str:
    """Return how a module in the current folder is found, as the end of a message; "" if there is none."""
    place = Path(*module.split("."))
    here = place.with_suffix(".py").is_file() or place.is_dir()
    return "; it is in the current folder, which PYTHONPATH=. before the command adds" if here else ""
