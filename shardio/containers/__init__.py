"""The containers by name: the one place that knows which kinds there are."""

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import ConfigError
from .base import Container as Container
from .base import Reader as Reader
from .base import Writer as Writer
from .hdf5 import Hdf5Container
from .indexed import IndexedContainer
from .lmdb import LmdbContainer
from .memory import MemoryContainer
from .tar import TarContainer

CONTAINERS: Mapping[str, Container] = MappingProxyType(
    {
        "tar": TarContainer(),
        "hdf5": Hdf5Container(),
        "lmdb": LmdbContainer(),
        "memory": MemoryContainer(),
        "indexed": IndexedContainer(),
    }
)
"""Every container by its name. Importing this loads neither h5py nor lmdb: they are loaded on use."""


def get(name: str) -> Container:
    """The container called `name`; ConfigError names those that exist."""
    try:
        return CONTAINERS[name]
    except KeyError:
        raise ConfigError(f"container must be one of {', '.join(CONTAINERS)}, got {name!r}") from None
