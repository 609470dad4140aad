"""Sources of a conversion's samples, and the lookup of the converters that make them.

A converter is a function `(src, **options) -> Source` that an installed distribution registers in the entry-point group
`shardio.converters`. shardio imports converters only by that group, so anyone can add one. Converters themselves import
these names from `shardio.source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..containers.zarr_index import ZarrIndex
from ..errors import BadSample, ConfigError, DatasetError, SourceError
from ..format.fields import Field
from ..format.unwritten import Unwritten
from ..output.shard_writer import Encoded
from ..system.did_you_mean import did_you_mean
from ..system.types import Indices, Sample
from ..views.expression import Condition

GROUP = "shardio.converters"

BoxFormat: TypeAlias = Literal["xywh", "xyxy", "cxcywh", "cxcywhn"]
"""The numbers of a box: edges `x`, `y` or centers `cx`, `cy`, and sizes `w`, `h`; `n`: divided by the image's size."""
AnnotatedPixels: TypeAlias = Literal["upright", "stored"]
"""The pixels that were annotated where an EXIF orientation rotates an image: as viewers show it, or as it is stored."""
InstanceMembers: TypeAlias = Mapping[str, tuple[str, Field]]
"""By field to make, the key of its values among what a source states of an instance, and the field."""


class Source:
    """Samples by number: the base of all sources. A subclass has `fields`, `metadata`, `sizes` and `__getitem__`; the
    other members state further abilities, with defaults that are right for every source.

    A source must be picklable: each worker process gets a copy and reads its part of the samples.

    Attributes:
        fields: the fields of every sample.
        metadata: JSON values on the origin for the manifest, which do not depend on the data's path. `"source"` is the
            name of the converter; `"classes"`, if known, lists the class names by label.
        remarks: a clause for each decision that the user has not taken, such as data that was left out or renamed: a
            note, or with `strict` an error.
        hints: what the user may have meant, and how to get it: a note each, also with `strict`.
        files: the files that must not change while they are read; of an adoptable source in the order of their samples.
        merged: for each of `files` the others that are merged with it; () if none are.
        threads: whether threads of one process may use copies of it at the same time.
        plain_values: whether conversion takes the container that fits the samples, unless the user names one.
        tally: what the source counts of the samples that it makes; None if it counts nothing.
        missing_chunks: what the user wants of chunks that are not there, `"fill"` or `"refuse"`; None for no choice.
    """

    remarks: Sequence[str] = ()
    hints: Sequence[str] = ()
    files: Sequence[Path] = ()
    merged: Sequence[Sequence[Path]] = ()
    threads: bool = False
    plain_values: bool = False
    tally: Tally | None = None
    missing_chunks: str | None = None

    if TYPE_CHECKING:  # without defaults: attributes or properties

        @property
        def fields(self) -> Mapping[str, Field]: ...
        @property
        def metadata(self) -> Mapping[str, Any]: ...

    @property
    def changes(self) -> Mapping[str, Any]:
        """JSON values for a conversion's plan: they set these samples apart from others of the same files."""
        return {}

    @property
    def dimensions(self) -> Mapping[str, Sequence[str | None]]:
        """By field, what its axes are called, that of the samples first; None or "" for an axis without a name."""
        return {}

    @property
    def adoption(self) -> Adoption | None:
        """How `shardio index` reads the files in place; None if it cannot.

        Raises SourceError with the reason, if only these files cannot be read in place.
        """
        return None

    def unwritten(self, *, tables: bool) -> Sequence[Unwritten]:
        """For each field and file, the missing chunks that read as fill values; () where nothing is known.

        It lists names, and reads the tables of shards with `tables`; it reads no values but those of a few rows.
        """
        return ()

    def sizes(self) -> NDArray[np.int64]:
        """Return the approximate bytes of each sample, int64 `[n]`: shards are cut by them. It reads no samples."""
        raise NotImplementedError  # each source has sizes and samples of its own

    def __getitem__(self, index: int) -> Sample:
        """Sample `index`, from 0 to n-1, mostly requested in ascending order, and by one thread at a time.

        Raises:
            BadSample: this sample cannot be stored; the message names the item and the reason.
            IndexError: `index` is not in [0, n).
        """
        raise NotImplementedError  # as above

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """Yield the samples in the given order, and for a bad sample the error that `source[number]` raises.

        A source overrides it if it reads several samples together faster than one by one.
        """
        for number in numbers.tolist():
            try:
                yield self[number]
            except BadSample as error:
                yield error

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        """Return all values of the scalar or text field `name`, an array `[n]` or n strings, which speeds up `where=`.

        None for any other field, if a sample lacks its value, and if it would cost as much as reading the samples.
        """
        return None

    def holds(self, condition: Condition, numbers: Indices) -> NDArray[np.bool_] | None:
        """Return whether a condition holds for each of some samples, bool `[n]`; None if that needs whole samples.

        Raises DatasetError for damage.
        """
        return None

    def encoded(self, numbers: Indices) -> Iterator[Encoded | DatasetError] | None:
        """The samples in stored form, in the order of `numbers`, damaged ones as errors; None if there is none."""
        return None


DESCRIBING = (
    "metadata", "changes", "dimensions", "remarks", "hints", "files", "merged", "threads", "plain_values",
    "missing_chunks",
)  # fmt: skip
"""The members that a `WrappedSource` passes on."""
YIELDING = ("fields", "sizes", "unwritten", "block", "column", "holds", "encoded", "adoption", "tally")
"""The members that depend on the samples: a `WrappedSource` has the defaults of `Source`, and passes on `sizes`, which
are estimates, `unwritten`, which is of the files, and `tally`, to which it may add. A subclass that changes no such
value overrides them."""


class WrappedSource(Source):
    """A source that changes the samples of another one: it passes on what describes the source, and no values."""

    fields: Mapping[str, Field]

    def __init__(self, source: Source) -> None:
        self.source = source
        self.remarks, self.hints = source.remarks, source.hints
        self.files, self.merged = source.files, source.merged
        self.threads, self.plain_values = source.threads, source.plain_values
        self.missing_chunks, self.tally = source.missing_chunks, source.tally

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.source.metadata

    @property
    def changes(self) -> Mapping[str, Any]:
        return self.source.changes

    @property
    def dimensions(self) -> Mapping[str, Sequence[str | None]]:
        return self.source.dimensions

    def unwritten(self, *, tables: bool) -> Sequence[Unwritten]:
        return self.source.unwritten(tables=tables)

    def sizes(self) -> NDArray[np.int64]:
        return self.source.sizes()


@dataclass(slots=True)
class Tally:
    """Counts of the samples that a source has made since `clear`.

    Attributes:
        rounded: by field, the largest change of a number by a cast.
        counts: by words for them, numbers of images, such as those that could not be transcoded by the reason.
    """

    rounded: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.rounded.clear()
        self.counts.clear()


@dataclass(frozen=True, slots=True)
class Places:
    """Files that hold each value contiguously, in the bytes that shardio would store.

    Attributes:
        starts: the number of each file's first sample, followed by the number of samples, int64 `[files + 1]`.
        at: returns the offset and size of each field of a sample in its file, except for scalars; BadSample if the file
            does not hold a value in the bytes that shardio would store.
        names: by field, the name in the files, which the option `fields` of the converter takes, if fields have names.
    """

    container: ClassVar[str] = "indexed"

    starts: NDArray[np.int64]
    at: Callable[[int], Mapping[str, tuple[int, int]]]
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hdf5Names:
    """HDF5 files whose datasets hold the fields, along their first axis.

    Attributes:
        starts: see `Places`.
        names: by field, the path of its dataset.
        packing: returns for file `number`, by field that is decoded, the attributes of netCDF that say how, as
            `format.cf.to_json` gives them.
        in_file: by field in a merged file, the number of that file, from 1 for the first of these.
    """

    container: ClassVar[str] = "hdf5"

    starts: NDArray[np.int64]
    names: Mapping[str, str]
    packing: Callable[[int], Mapping[str, Any]]
    in_file: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ZarrIndexes:
    """Zarr stores.

    Attributes:
        starts: see `Places`.
        names: by field, the path of its array.
        index: returns the index of store `number`, without columns of its samples; it reads metadata and names, and no
            chunk. With `listed=False` it has no chunks, whose names are then not read. SourceError for an array that is
            not read in place.
    """

    container: ClassVar[str] = "zarr"

    starts: NDArray[np.int64]
    names: Mapping[str, str]
    index: Callable[..., ZarrIndex]


Adoption: TypeAlias = Places | Hdf5Names | ZarrIndexes
"""How files that others wrote are read in place."""


def as_source(given: Any) -> Source | None:
    """Return an object as a source: the object itself, or one that delegates to its members; None for others."""
    if isinstance(given, Source):
        return given
    if all(hasattr(given, name) for name in ("fields", "metadata", "sizes", "__getitem__")):
        return Delegated(given)
    return None


class Delegated(Source):
    """An object with the members of a source, as a source: a member is the one that is given by its name, else the
    object's, else the default."""

    def __init__(self, given: Any, **own: Any) -> None:
        self._given, self._own = given, own

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = self._given[index]
        return sample

    def __getattribute__(self, name: str) -> Any:
        if name in _MEMBERS:
            if name in (own := object.__getattribute__(self, "_own")):
                return own[name]
            if hasattr(given := object.__getattribute__(self, "_given"), name):
                return getattr(given, name)
        return object.__getattribute__(self, name)


_MEMBERS = frozenset((*DESCRIBING, *YIELDING))


def adoption_of(source: Source) -> Adoption:
    """Return how the files of a source are read in place; SourceError if they cannot be."""
    if (found := source.adoption) is None:
        raise SourceError(f"{type(source).__name__} has no files that can be read in place: convert it")
    return found


def file_states(source: Source) -> dict[Path, tuple[int, int]]:
    """Return the size and modification time of each file that a source names in `files`; OSError if one is missing."""
    return {path: state_of(path) for path in (*source.files, *chain.from_iterable(source.merged))}


def state_of(path: Path) -> tuple[int, int]:
    """Return the size and modification time of a file, to detect changes."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def merged_with(source: Source, number: int) -> Sequence[Path]:
    """Return the files that are merged with file `number` of a source."""
    return source.merged[number] if source.merged else ()


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
