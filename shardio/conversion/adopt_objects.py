"""Adoption of tars and TFRecords in a store: each is read once, from start to end; nothing is copied.

The indexes and the manifest are written next to the objects, because a manifest names no path outside its folder: a
dataset cannot lead its reader elsewhere. An object is kept in a temporary folder while its index is made. The first and
the last object stay until the end: they decide the fields, as with local files. Indexes wait in a journal next to the
objects until all are made, so that an interrupted adoption can resume.
"""

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from ..containers import piece_sums, side_index
from ..errors import BadSample, ConfigError, ManifestError, ObjectChanged, ObjectNotFound, SourceError
from ..foreign.files import Sort, expanded, order_key
from ..foreign.formats import WORDS, FoundFiles, find_by_content, named_kind
from ..format import manifest
from ..format.fields import describe_fields
from ..output.own_files import stem_of
from ..output.records import Record, Skipped
from ..output.remote_manifest import find_object
from ..output.store import StoreOutput
from ..stores.base import Condition, ObjectInfo, Store
from ..stores.stream import download
from ..stores.url import Url
from ..system.directory import Directory
from ..system.units import counted
from .adopt import AdoptTask, check_plain, is_index, pack_adopted, summed, write_index
from .pack import PackOptions, WrittenDataset
from .runners import Advance
from .shard_tasks import TaskContext
from .source import adoption_of

TEMPORARY = "shardio-index-"
"""The prefix of the temporary folders that objects are kept in."""
MOST_THREADS = 8
"""Threads that are started unless the user says how many: each keeps an object on the disk, and they share the GIL."""
KINDS = ("webdataset", "tfrecord")
"""The formats, by the names of their converters, that can be adopted in a store."""
_LISTED = 5


@dataclass(frozen=True, slots=True)
class _ObjectTask:
    """An object to adopt, by its number; its samples are unknown before it is read."""

    number: int
    count: int = 0


@final
class Listing:
    """The objects in a folder of a bucket, listed once, with one request for a thousand of them."""

    def __init__(self, store: Store, folder: Url) -> None:
        self.store, self.folder = store, folder

    @cached_property
    def objects(self) -> dict[str, ObjectInfo]:
        """All objects by their names from the folder on."""
        prefix = f"{self.folder.path}/" if self.folder.path else ""
        return {info.name.removeprefix(prefix): info for info in self.store.list(self.folder.path)}

    @property
    def direct(self) -> dict[str, ObjectInfo]:
        """The objects directly in the folder."""
        return {name: info for name, info in self.objects.items() if "/" not in name}


@final
class ObjectAdoption:
    """The adoption of objects in a store: the first and the last one are downloaded at once, all others by `run`.

    Args:
        listing: the objects in the folder.
        given: objects, patterns of their names, or the folder itself for all objects named as tars or TFRecords.
        kind: the format; None lets the names in the folder and the content decide.
        make_source: returns the source of some local files.
        temporary: a folder for objects that are read, empty.
        overwrite: whether a dataset of adopted objects may be there, to be replaced or, if a command goes on where an
            earlier one ended, as that one's result.
        sort: see `shardio.index`.

    Attributes:
        names: the names of the objects in the folder, in the order of their samples.
        source: the source of the first and the last object, whose fields are the dataset's.
        remarks: a clause for what was left out.

    Raises ConfigError for objects elsewhere and for a dataset that is there, SourceError if there are no objects, or
    they cannot be read in place, and what the store raises.
    """

    def __init__(
        self,
        listing: "Listing",
        given: Sequence[Url],
        kind: str | None,
        make_source: Callable[[FoundFiles], Any],
        temporary: Path,
        *,
        overwrite: bool,
        sort: Sort,
    ) -> None:
        self._store = store = listing.store
        self._folder = folder = listing.folder
        self._make_source, self._temporary = make_source, temporary
        if kind not in (None, *KINDS):
            raise ConfigError(f"format must be webdataset or tfrecord for objects in a store, got {kind!r}")
        there = listing.direct
        self._indexes = {name for name in there if name.endswith(side_index.SUFFIX)}
        candidates = [n for n in there if n not in {*self._indexes, manifest.FILE_NAME, manifest.TABLE_NAME}]
        self.names: list[str] = []
        self.remarks: list[str] = []
        for one in given:
            if one == folder:
                taken = [name for name in candidates if named_kind(name) in ((kind,) if kind else KINDS)]
                others = [name for name in candidates if name not in taken]
                if taken and others:
                    listed = ", ".join(others[:_LISTED]) + (", ..." if len(others) > _LISTED else "")
                    self.remarks.append(f"left out {counted(len(others), 'object')} beside those in {folder}: {listed}")
            else:
                fitting = ([n] if n in candidates else fnmatch.filter(candidates, n) for n in expanded(one.name))
                taken = [name for names in fitting for name in names]
            if not taken:
                what = "no object is called as a tar or a TFRecord" if one == folder else "no such object"
                raise SourceError(f"{one}: {what}")
            self.names += taken
        if sort != "name":
            self.names.sort(key=order_key(sort))
        for name, count in Counter(self.names).items():
            if count > 1:
                raise SourceError(f"{folder / name} is given twice")
        rule = (
            "shardio calls the shards so that it writes to a store itself, and shardio clean removes those that no "
            "manifest names: copy it to another name"
        )
        check_names(folder, self.names, side_index.path_of, rule)
        self._objects = [there[name] for name in self.names]
        self._replaces = condition_of(store, folder, overwrite=overwrite)
        self._ends = [self._download(number) for number in sorted({0, len(self.names) - 1})]
        with naming(self._temporary, folder):
            files = find_by_content([str(path) for path in self._ends], kind)
            if files.kind not in KINDS:
                raise SourceError(
                    f"{self._ends[0]} is {WORDS[files.kind]}, which is adopted on a local disk only: copy it there"
                )
            self._kind = files.kind
            self.source = make_source(files)

    def run(self, options: PackOptions) -> WrittenDataset:
        """Write the indexes, and then the manifest.

        Raises what `pack` raises, and ObjectChanged if an object is replaced meanwhile.
        """
        states = [[info.name, info.size, info.etag or info.modified] for info in self._objects]
        out = StoreOutput(self._folder, self._store, expects=self._replaces)
        tasks = [_ObjectTask(number) for number in range(len(self.names))]
        return pack_adopted(
            out, self.source, tasks, states, options,
            check=self._check_unchanged, make_shard=self._index, knows_samples=False, beside=True,
        )  # fmt: skip

    def _index(self, context: TaskContext, task: _ObjectTask, folder: Directory, advance: Advance) -> Record:
        """Make the index of an object in a folder; numbers of left-out samples count from its first one."""
        number, name = task.number, self.names[task.number]
        ends = number in (0, len(self.names) - 1)
        path = self._temporary / name if ends else self._download(number)
        try:
            with naming(self._temporary, self._folder):
                paths = self._ends if ends else [self._ends[0], path, self._ends[-1]]
                place = paths.index(path)
                # The same first and last file mostly give the same fields.
                source = self._make_source(FoundFiles(self._kind, tuple(paths), ()))
                adoption, usual = adoption_of(source), self.source
                if dict(source.fields) != dict(usual.fields) or adoption.names != adoption_of(usual).names:
                    raise SourceError(
                        f"{path}: its samples have {describe_fields(source.fields)}, and those of the first and last "
                        f"object {describe_fields(usual.fields)}: choose fields that all of them have"
                    )
                file = AdoptTask.of(source, adoption.starts, place, name)
                record = write_index(source, file, folder, skip=context.skip, advance=advance)
                index = side_index.path_of(path).name
                if index in self._indexes and self._replaces == "new":
                    check_index(self._store, self._folder / index, self._temporary)
                if record.shard.samples:
                    record = summed(record, context.container, file, folder)
        finally:
            if not ends:
                path.unlink(missing_ok=True)
        texts = (Skipped(one.number - file.samples.start, self._named(one.reason)) for one in record.skipped)
        return replace(record, skipped=tuple(texts))

    def _download(self, number: int) -> Path:
        path = self._temporary / self.names[number]
        download(self._store, self._objects[number], path)
        return path

    def _check_unchanged(self) -> None:
        now = Listing(self._store, self._folder).direct
        for name, before in zip(self.names, self._objects, strict=True):
            if name not in now:
                raise ObjectNotFound(f"{self._folder / name}: was removed while it was indexed")
            if now[name] != before:
                raise ObjectChanged(f"{self._folder / name}: was replaced while it was indexed")

    def _named(self, text: str) -> str:
        """Return a message with URLs instead of the paths of temporary files."""
        return text.replace(f"{self._temporary}/", f"{self._folder}/")


def check_places(given: Sequence[Url], folder: Url) -> None:
    """Raise ConfigError unless objects, or stores of them, are directly in a folder of a bucket."""
    if folder.root.startswith("http"):
        raise ConfigError(f"{folder}: a file server neither lists nor stores objects: index them on a local disk")
    for one in given:
        if one != folder and one.parent != folder:
            raise ConfigError(
                f"out must be the URL that the objects are directly in, {one.parent}, because their indexes and "
                f"their manifest lie beside them; got {folder}"
            )


def check_names(folder: Url, names: Sequence[str], path_of: Callable[[Path], Path], rule: str) -> None:
    """Raise ConfigError for objects, or stores of them, that cannot be shards under their names.

    Args:
        folder: the folder that they are in.
        names: their names there; no two may have the same index.
        path_of: returns the path of the index of one of them.
        rule: the error for names that shardio gives itself.
    """
    beside: dict[str, str] = {}
    check_plain(folder, names)
    for name in names:
        if stem_of(name) is not None:
            raise ConfigError(f"{folder / name}: {rule}")
        for path in (path_of(Path(name)), piece_sums.path_of(Path(name))):
            if (other := beside.setdefault(path.name, name)) != name:
                raise ConfigError(f"{folder}: {other} and {name} would have the same index, {path.name}: rename one")


def check_index(store: Store, index: Url, temporary: Path) -> None:
    """Raise ConfigError if there is an object where an index belongs, and shardio did not write it."""
    if (info := find_object(store, index.path)) is None:
        return
    path = temporary / index.name
    download(store, info, path)
    if not is_index(path):
        raise ConfigError(f"{index}: not an index that shardio wrote, and it would be replaced: remove it first")
    path.unlink()


def condition_of(store: Store, folder: Url, *, overwrite: bool) -> Condition:
    """Return the state of the manifest that is there; ConfigError unless its dataset may be replaced."""
    out = StoreOutput(folder, store)
    if (state := out.condition(overwrite=overwrite)) == "new":
        return state
    rule = "index replaces only a dataset of adopted objects"
    try:
        found = out.manifest()
    except ManifestError as error:
        raise ConfigError(f"{error}: {rule}: remove it first") from error
    if found is not None and not found.adopted:
        raise ConfigError(f"{out.path}: {rule}, and these are shardio's own")
    return state


@contextmanager
def naming(temporary: Path, folder: Url) -> Iterator[None]:
    """Name objects by their URLs instead of temporary files in the errors of a `with` block."""
    try:
        yield
    except (BadSample, SourceError, ConfigError) as error:
        error.args = (str(error).replace(f"{temporary}/", f"{folder}/"), *error.args[1:])
        raise
