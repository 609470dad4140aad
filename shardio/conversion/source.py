"""Sources, from which conversions take samples, and the lookup of converters, which make sources.

A converter is a function `(src, **options) -> Source` that an installed distribution registers in the entry-point group
`shardio.converters`. shardio imports converters only by that group, so anyone can add one. Converters themselves import
these names from `shardio.source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..containers.zarr_index import ZarrIndex
from ..errors import BadSample, ConfigError
from ..format.fields import Field
from ..system.did_you_mean import did_you_mean
from ..system.types import Sample

GROUP = "shardio.converters"


class Source(Protocol):
    """Samples by number. A source must be picklable: each worker process gets a copy and reads its part of the samples.

    A source with an attribute `threads` that is True may also be copied to threads of one process, which use their
    copies at the same time. For one with an attribute `plain_values` that is True, conversion takes the container that
    fits the samples, unless the user names one.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON values on the origin for the manifest, which do not depend on the data's path.

        `"source"` is the name of the converter; `"classes"`, if known, lists the class names by label.
        """

    def sizes(self) -> NDArray[np.int64]:
        """The approximate bytes of each sample, int64 `[n]`, by which shards are cut. It reads no samples."""

    def __getitem__(self, index: int) -> Sample:
        """Sample `index`, from 0 to n-1, mostly requested in ascending order, and by one thread at a time.

        Raises:
            BadSample: this sample cannot be stored; the message names the item and the reason.
            IndexError: `index` is not in [0, n).
        """


@runtime_checkable
class HasColumns(Protocol):
    """A source that gives all values of some fields without reading whole samples, which speeds up `where=`."""

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        """All values of the scalar or text field `name`: an array `[n]`, or n texts.

        None for any other field, if a sample lacks its value, and if it would cost as much as reading the samples.
        """


@runtime_checkable
class HasBlocks(Protocol):
    """A source that reads several samples together faster than one by one."""

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """Yield the samples in the given order, and for a bad sample the error that `source[number]` raises."""


@runtime_checkable
class HasRemarks(Protocol):
    """A source that left out data which the user may have meant to convert, or gave it another name.

    Attributes:
        remarks: a clause for each kind of data that was left out or renamed: a note, or with `strict` an error.
    """

    remarks: Sequence[str]


@runtime_checkable
class HasHints(Protocol):
    """A source whose samples are complete, but may not be what the user meant.

    Attributes:
        hints: what may be meant, and how to get it: a note each, also with `strict`.
    """

    hints: Sequence[str]


@runtime_checkable
class HasDimensions(Protocol):
    """A source whose arrays have axes with names, as those of netCDF and Zarr.

    Attributes:
        dimensions: by field, what its axes are called, that of the samples first; "" or None for one without a name,
            and nothing for a field without any.
    """

    dimensions: Mapping[str, Sequence[str | None]]


@runtime_checkable
class Adoptable(Source, Protocol):
    """A source whose files shardio can read in place, without converting them: see `shardio index`.

    Attributes:
        container: the container that reads the files: `tar`, `indexed`, `hdf5` or `zarr`.
        files: the files, in the order of their samples.
        starts: the number of each file's first sample, followed by the number of samples, int64 `[files + 1]`.
    """

    container: str
    files: Sequence[Path]
    starts: NDArray[np.int64]


def file_states(source: Source) -> dict[Path, tuple[int, int]]:
    """Return the size and modification time of each file that a source names in `files`; OSError if one is missing."""
    files = getattr(source, "files", ())
    files = [*files, *chain.from_iterable(getattr(source, "joined", ()))] if isinstance(files, (list, tuple)) else []
    paths = [path for path in files if isinstance(path, Path)]
    return {path: state_of(path) for path in paths}


def state_of(path: Path) -> tuple[int, int]:
    """Return the size and modification time of a file, which tell whether it has changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@runtime_checkable
class HasPlaces(Adoptable, Protocol):
    """An adoptable source of files that hold each value contiguously, in the bytes that shardio would store."""

    def places(self, index: int) -> Mapping[str, tuple[int, int]]:
        """The offset and size of each field of sample `index` in its file, except for scalars.

        Raises BadSample if the file does not hold a value in the bytes that shardio would store.
        """


@runtime_checkable
class HasNames(Adoptable, Protocol):
    """An adoptable source whose fields have names of their own in its files.

    Without `places`, its files are HDF5 files, and the names are the paths of datasets in them, unless it is a
    `HasZarrIndex`. One with an attribute `decode_cf` that is True also has `packing(number)`: by field, for those of
    file `number` that are decoded, the attributes of netCDF that say how, as `format.cf.to_json` gives them. One with
    fields in several files each also has `joined`, for each of `files` the others that are joined to it, and `in_file`,
    by field the number of its file, from 1 for the first of these.

    Attributes:
        names: by field, the name in the files, which the option `fields` of its converter takes.
    """

    names: Mapping[str, str]


def joined_to(source: Source, number: int) -> Sequence[Path]:
    """Return the files that are joined to file `number` of a source; see `HasNames`."""
    joined: Sequence[Sequence[Path]] = getattr(source, "joined", ())
    return joined[number] if joined else ()


@runtime_checkable
class HasZarrIndex(HasNames, Protocol):
    """An adoptable source of Zarr stores; their names are those of arrays."""

    def zarr_index(self, number: int, *, listed: bool = True) -> ZarrIndex:
        """The index of store `number`, without columns of its samples; it reads metadata and names, and no chunk.

        Unless `listed` it has no chunks, whose names are then not read.

        Raises SourceError for an array that is not read in place.
        """


Converter: TypeAlias = Callable[..., Source]
"""`(src, **options) -> Source`; raises SourceError if `src` cannot be converted, ConfigError for a wrong option."""


def names() -> tuple[str, ...]:
    """Return the names of all installed converters, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def find(name: str) -> Converter:
    """Return the installed converter called `name`; ConfigError if there is none, or it cannot be imported."""
    for entry in entry_points(group=GROUP, name=name):
        try:
            return cast(Converter, entry.load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the converter {name!r} ({entry.value}) cannot be loaded: {error}") from error
    likely = did_you_mean(name.lower().lstrip("."), "converter", names())
    advice = f"; did you mean {likely!r}?" if likely else ""
    raise ConfigError(f"no converter is called {name!r}; installed: {', '.join(names()) or 'none'}{advice}")


def check_index(index: int, count: int) -> None:
    """Raise IndexError unless `index` is in [0, count), as `Source.__getitem__` must."""
    if not 0 <= index < count:
        raise IndexError(f"index must be in [0, {count}), got {index}")
