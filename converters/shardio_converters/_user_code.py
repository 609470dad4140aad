"""Objects of the user's own code, found by name: it is imported, and so it is run."""

import importlib
import importlib.util
import operator
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, final

from shardio.errors import BadSample, ConfigError, ShardioError, SourceError

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class ObjectName:
    """An object by name, to be found again in another process.

    Attributes:
        name: `module:object` or `path/to/file.py:object`.
        folder: where relative paths start, and where modules are looked for first.
        options: keyword arguments, where the object is a class or a function that gives what is wanted.
    """

    name: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """The object, or what it gives when it is called. SourceError for whatever goes wrong on the way."""
        module, _, path = self.name.rpartition(":")
        if not module or not path:
            raise SourceError(f"src must be module:object or path/to/file.py:object, got {self.name!r}")
        if module.endswith(".py"):
            found = run_user_code(self.name, lambda: _of_file((self.folder / module).absolute()))
        else:
            found = run_user_code(self.name, lambda: _of_module(module, self.folder))
        return as_dataset(self.name, run_user_code(self.name, lambda: operator.attrgetter(path)(found)), self.options)


def as_dataset(name: str, found: Any, options: Mapping[str, Any]) -> Any:
    """`found` itself if it has samples by number, otherwise what it gives when it is called with `options`."""
    if isinstance(found, type) or (callable(found) and not hasattr(found, "__getitem__")):
        return run_user_code(name, lambda: found(**options))
    if options:
        raise ConfigError(f"options are for a class or a function, {name} is an instance of {type(found).__name__}")
    return found


def run_user_code(place: str, call: Callable[[], T], kind: type[ShardioError] = SourceError) -> T:
    """What the user's own code gives; whatever it raises comes as `kind`, which names the place."""
    try:
        return call()
    except Exception as error:  # it is the user's code: it may raise anything
        told = str(error) if isinstance(error, BadSample) else f"{type(error).__name__}: {error}"
        raise kind(f"{place}: {told}") from error


def _of_module(name: str, folder: Path) -> ModuleType:
    _look_first_in(folder)
    return importlib.import_module(name)


def _of_file(path: Path) -> ModuleType:
    # A name of its own: `data.py` or `random.py` must not be taken for a module that is already there.
    name = f"{path.stem}_{zlib.crc32(str(path).encode('utf-8', 'surrogateescape')):08x}"
    if name in sys.modules:
        return sys.modules[name]
    _look_first_in(path.parent)  # as for a script, whose neighbours it can import
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _look_first_in(folder: Path) -> None:
    # For good, since the code may import more when it is used.
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
