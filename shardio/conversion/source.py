"""Sources: what a converter gives to be stored, and how a converter is found by its name.

A converter is a function `(src, **options) -> Source` that an installed distribution offers in the entry-point group
`shardio.converters`. shardio imports none of them itself, so anyone can add one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError
from ..format.fields import Field
from ..system.types import Sample

GROUP = "shardio.converters"


class Source(Protocol):
    """Samples by number. It can be pickled: every worker process gets a copy and reads its own part.

    With an attribute `threads` that is True, threads of one process may use copies of it at once.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the manifest says of the origin: JSON values, the same for a copy of the data elsewhere."""

    def sizes(self) -> NDArray[np.int64]:
        """About how many bytes each sample takes, `[n]`: shards are cut by it. Cheap: nothing is read for it."""

    def __getitem__(self, index: int) -> Sample:
        """Sample `index`, 0 to n-1; BadSample names the item and the reason if it cannot be stored, IndexError outside.

        Asked for mostly in ascending order, from one thread at a time.
        """


@runtime_checkable
class HasColumns(Protocol):
    """A source that knows all values of some scalar fields without reading its samples: `where=` then need not."""

    def column(self, name: str) -> NDArray[Any] | None:
        """All values of the scalar field `name`, `[n]`; None where that would cost as much as reading the samples."""


@runtime_checkable
class HasBlocks(Protocol):
    """A source that reads several samples together for less than one by one."""

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """The samples in the order asked for; what is bad comes as the error that `source[number]` raises."""


@runtime_checkable
class HasRemarks(Protocol):
    """A source that passed over what may have been meant to be in it.

    Attributes:
        remarks: what it left out, a clause each.
    """

    remarks: Sequence[str]


@runtime_checkable
class Adoptable(Source, Protocol):
    """A source whose files can be read as they lie: see `shardio index`.

    Attributes:
        container: what reads them: `tar`, `indexed` or `hdf5`.
        files: the files, samples in order.
        starts: the first sample's number of each file, and behind them the number of all, int64 [files + 1].
    """

    container: str
    files: Sequence[Path]
    starts: NDArray[np.int64]


@runtime_checkable
class HasPlaces(Adoptable, Protocol):
    """An adoptable source whose values stand in its files in one piece each, as shardio stores them."""

    def places(self, index: int) -> Mapping[str, tuple[int, int]]:
        """Where the stored bytes of each field of sample `index` are in its file, offset and size, but for scalars.

        Raises BadSample if a value is not in the file as it would be stored.
        """


@runtime_checkable
class HasNames(Adoptable, Protocol):
    """An adoptable source of HDF5 files.

    Attributes:
        names: the path within the file of each field's dataset.
    """

    names: Mapping[str, str]


Converter: TypeAlias = Callable[..., Source]
"""`(src, **options) -> Source`; raises SourceError if `src` cannot be converted, ConfigError for a wrong option."""


def names() -> tuple[str, ...]:
    """The names of all installed converters, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def find(name: str) -> Converter:
    """The installed converter called `name`; ConfigError if there is none, or if it cannot be imported."""
    for entry in entry_points(group=GROUP, name=name):
        try:
            return cast(Converter, entry.load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the converter {name!r} ({entry.value}) cannot be loaded: {error}") from error
    raise ConfigError(f"no converter is called {name!r}; installed: {', '.join(names()) or 'none'}")


def check_index(index: int, count: int) -> None:
    """Raise IndexError unless `index` is in [0, count), as `Source.__getitem__` must."""
    if not 0 <= index < count:
        raise IndexError(f"index must be in [0, {count}), got {index}")
