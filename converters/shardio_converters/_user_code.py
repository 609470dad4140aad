"""Objects in the user's code, found by name. This imports the code, and so runs it."""

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

from shardio.errors import ConfigError, ShardioError, SourceError

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class ObjectName:
    """The name of an object, by which another process can load it too.

    Attributes:
        name: `module:object` or `path/to/file.py:object`.
        folder: the folder where relative paths start, and that is searched first for modules.
        options: keyword arguments for an object that is a class or a function.
    """

    name: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """Load the object, and call it if it is a class or a function; SourceError for any failure."""
        module, _, path = self.name.rpartition(":")
        if not module or not path:
            raise SourceError(f"src must be module:object or path/to/file.py:object, got {self.name!r}")
        if module.endswith(".py"):
            found = run_user_code(self.name, lambda: _of_file((self.folder / module).absolute()))
        else:
            found = run_user_code(self.name, lambda: _of_module(module, self.folder))
        return as_dataset(self.name, run_user_code(self.name, lambda: _member(found, path, module)), self.options)


def as_dataset(name: str, loaded: Any, options: Mapping[str, Any]) -> Any:
    """Return `loaded` itself if it has samples by number, else the result of calling it with `options`."""
    if isinstance(loaded, type) or (callable(loaded) and not hasattr(loaded, "__getitem__")):
        return run_user_code(name, lambda: loaded(**options))
    if options:
        raise ConfigError(f"options are for a class or a function, {name} is an instance of {type(loaded).__name__}")
    return loaded


def run_user_code(place: str, call: Callable[[], T], kind: type[ShardioError] = SourceError) -> T:
    """Call the user's code; raise any error of it as `kind`, with `place` in the message."""
    try:
        return call()
    except Exception as error:  # it is the user's code: it may raise anything
        reason = str(error) if isinstance(error, ShardioError) else f"{type(error).__name__}: {error}"
        raise kind(f"{place}: {reason}") from error


def _member(found: ModuleType, path: str, module: str) -> Any:
    try:
        return operator.attrgetter(path)(found)
    except AttributeError as error:  # whose text has the module's own name, which of a file is not the user's
        raise AttributeError(f"{module} has no {path!r}") from error


def _of_module(name: str, folder: Path) -> ModuleType:
    _look_first_in(folder)
    return importlib.import_module(name)


def _of_file(path: Path) -> ModuleType:
    # A unique name: `data.py` or `random.py` must not be mistaken for a module that is already imported.
    name = f"{path.stem}_{zlib.crc32(str(path).encode('utf-8', 'surrogateescape')):08x}"
    if name in sys.modules:
        return sys.modules[name]
    _look_first_in(path.parent)  # as for a script, which can import its neighbours
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
    # Permanently, because the code may import more when it is used.
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
