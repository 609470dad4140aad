"""Sources: the samples that a converter provides, and how to find a converter by its name.

A converter is a function `(src, **options) -> Source` that an installed distribution registers in the entry-point group
`shardio.converters`. shardio itself imports none of them, so anyone can add one.
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
    """Samples by number. A source can be pickled: every worker process gets a copy and reads its own part.

    If it has an attribute `threads` that is True, threads of one process may each use a copy at the same time.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The origin of the samples, for the manifest: JSON values, the same for a copy of the data elsewhere."""

    def sizes(self) -> NDArray[np.int64]:
        """Return about how many bytes each sample takes, `[n]`. Shards are cut by it. Cheap: it reads no samples."""

    def __getitem__(self, index: int) -> Sample:
        """Return sample `index`, 0 to n-1. Most calls ask in ascending order; one thread calls at a time.

        Raises BadSample, which names the item and the reason, if it cannot be stored; IndexError outside of the range.
        """


@runtime_checkable
class HasColumns(Protocol):
    """A source that knows all values of some scalar fields without reading its samples, which speeds up `where=`."""

    def column(self, name: str) -> NDArray[Any] | None:
        """Return all values of the scalar field `name`, `[n]`; None if that costs as much as reading the samples."""


@runtime_checkable
class HasBlocks(Protocol):
    """A source that reads several samples together faster than one by one."""

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """Yield the samples in the order of `numbers`; a bad one comes as the error that `source[number]` raises."""


@runtime_checkable
class HasRemarks(Protocol):
    """A source that left out something that may have been meant to be in it.

    Attributes:
        remarks: what it left out, a clause for each kind.
    """

    remarks: Sequence[str]


@runtime_checkable
class Adoptable(Source, Protocol):
    """A source whose files can be read in place: see `shardio index`.

    Attributes:
        container: the container that reads the files: `tar`, `indexed` or `hdf5`.
        files: the files, in the order of their samples.
        starts: the number of each file's first sample, followed by the number of all samples, int64 [files + 1].
    """

    container: str
    files: Sequence[Path]
    starts: NDArray[np.int64]


@runtime_checkable
class HasPlaces(Adoptable, Protocol):
    """An adoptable source whose values are each contiguous in its files, as shardio stores them."""

    def places(self, index: int) -> Mapping[str, tuple[int, int]]:
        """Return the offset and size, in the file, of the stored bytes of each field of sample `index` but scalars.

        Raises BadSample if a value is not in the file as shardio would store it.
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
    """Return the names of all installed converters, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def find(name: str) -> Converter:
    """Return the installed converter called `name`; raise ConfigError if there is none, or if it cannot be imported."""
    for entry in entry_points(group=GROUP, name=name):
        try:
            return cast(Converter, entry.load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the converter {name!r} ({entry.value}) cannot be loaded: {error}") from error
    raise ConfigError(f"no converter is called {name!r}; installed: {', '.join(names()) or 'none'}")
