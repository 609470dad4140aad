"""Objects of the user's own that an option names as `module:name`."""

import importlib
from typing import Any

from ..errors import ConfigError


def load_named(name: str, option: str) -> Any:
    """Import the object that `name`, such as `package.module:function`, names; its module must be on the Python path.

    Raises ConfigError, which names `option`, if there is no such module or object.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{option} must be 'module:name', got {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{option} {name!r}: there is no module {error.name!r} on the Python path") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{option} {name!r}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)
