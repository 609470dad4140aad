"""The registry of containers: the only list of the kinds that there are.

To add a container, write a class that has what `Container` asks for, and list an instance of it in `CONTAINERS`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import ConfigError
from ._writing import Columns as Columns
from ._writing import Writer as Writer
from .base import Container as Container
from .base import Reader as Reader
from .hdf5 import Hdf5Container
from .indexed import IndexedContainer
from .lmdb import LmdbContainer
from .memory import MemoryContainer
from .tar import TarContainer
from .zarr import ZarrContainer

_ALL: tuple[Container, ...] = (
    TarContainer(),
    Hdf5Container(),
    LmdbContainer(),
    MemoryContainer(),
    IndexedContainer(),
    ZarrContainer(),
)

CONTAINERS: Mapping[str, Container] = MappingProxyType({container.name: container for container in _ALL})
"""Every container by its name. Importing this loads neither h5py nor lmdb: containers load them when they are used."""


def get(name: str) -> Container:
    """Return the container called `name`; ConfigError lists those that users choose from."""
    try:
        return CONTAINERS[name]
    except KeyError:
        raise ConfigError("{container} must be one of {}, got {!r}", ", ".join(names()), name) from None


def names() -> tuple[str, ...]:
    """Return the names of the containers that a dataset on disk can be written in, the default one first."""
    return tuple(name for name, container in CONTAINERS.items() if container.on_disk and container.suffix)


def with_option(option: str) -> dict[str, str]:
    """Return the containers whose writers have an option: its line of help by the container's name."""
    return {name: CONTAINERS[name].options[option] for name in names() if option in CONTAINERS[name].options}
