"""Sources: what a converter gives to be stored, and how a converter is found by its name.

A converter is a function `(src, **options) -> Source` that an installed distribution offers in the entry-point group
`shardio.converters`. shardio imports none of them itself, so anyone can add one.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .fields import Field
from .types import Sample

GROUP = "shardio.converters"


class Source(Protocol):
    """Samples by number. It can be pickled: every worker process gets a copy and reads its own part."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the manifest says of the origin: JSON values, the same for a copy of the data elsewhere."""

    def sizes(self) -> NDArray[np.int64]:
        """About how many bytes each sample takes, `[n]`: shards are cut by it. Cheap: nothing is read for it."""

    def __getitem__(self, index: int) -> Sample:
        """Sample `index`, 0 to n-1; BadSample names the item and the reason if it cannot be stored."""


Converter: TypeAlias = Callable[..., Source]
"""`(src, **options) -> Source`; raises SourceError if `src` cannot be converted, ConfigError for a wrong option."""


def names() -> tuple[str, ...]:
    """The names of all installed converters, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def find(name: str) -> Converter:
    """The installed converter called `name`; ConfigError if there is none."""
    for entry in entry_points(group=GROUP, name=name):
        return cast(Converter, entry.load())
    raise ConfigError(f"no converter is called {name!r}; installed: {', '.join(names()) or 'none'}")
