"""Adoption of tars and TFRecords that lie in a store: each is read once, from start to end, nothing is copied.

The indexes and the manifest are written beside the objects, because a manifest names no place outside its own: no
dataset can lead its reader to another one. An object is kept in a temporary folder while its index is made, and so are
the first and the last one until the end, by which the fields are found, as those of local files are. Indexes wait in a
journal beside the objects, until all are made: so an adoption that was cut off can go on.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import xxhash

from ..containers import side_index
from ..errors import BadSample, ConfigError, ObjectChanged, ObjectNotFound, SourceError
from ..foreign.formats import WORDS, FoundFiles, find_by_content
from ..format import checksums
from ..format.fields import CHECKSUM, describe_fields, shape_column
from ..output.records import Record, Skipped
from ..output.store import StoreOutput
from ..stores.stream import download
from ..system.directory import Directory
from ..system.replacement import remove_abandoned_folders, temporary_folder
from .adopt import AdoptTask, index_of_places, is_index, write_sums
from .found_objects import KINDS, FoundObjects
from .masks import plan_of
from .pack import PackOptions, WrittenDataset, pack
from .source import state_of
from .tasks import NO_SHARD, Advance, TaskContext

_TEMPORARY = "shardio-index-"
MOST_THREADS = 8
"""Threads that are started unless the user says how many: each keeps an object on the disk, and they share the GIL."""

MakeSource = Callable[[FoundFiles], Any]
"""Returns the source of some files."""


@dataclass(frozen=True, slots=True)
class _ObjectTask:
    """An object to adopt, by its number; nobody knows its samples before it is read."""

    number: int
    count: int = 0


@final
class ObjectAdoption:
    """The adoption of objects in a store, which is open from the first download to the end of the `with` block.

    Args:
        found: the objects.
        make_source: returns the source of some local files.

    Attributes:
        source: the source of the first and the last object, whose fields are the dataset's.

    Raises SourceError if they cannot be read in place, and what the store raises.
    """

    def __init__(self, found: FoundObjects, make_source: MakeSource) -> None:
        self._found, self._make_source = found, make_source
        remove_abandoned_folders(_TEMPORARY)
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(temporary_folder(_TEMPORARY))
        try:
            self._ends = [self._download(number, "ends") for number in sorted({0, len(found.objects) - 1})]
            with self._naming("ends"):
                files = find_by_content([str(path) for path in self._ends], found.kind)
                if files.kind not in KINDS:
                    raise SourceError(
                        f"{self._ends[0]} is {WORDS[files.kind]}, which is adopted on a local disk only: copy it there"
                    )
                self.kind = files.kind
                self.source = self._make_source(files)
        except BaseException:
            self._resources.close()
            raise

    def __enter__(self) -> "ObjectAdoption":
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def run(self, options: PackOptions) -> WrittenDataset:
        """Write the indexes, and then the manifest.

        Raises what `pack` raises, and ObjectChanged if an object is replaced meanwhile.
        """
        context = TaskContext(
            self.source,
            self.source.container,
            skip=options.on_error == "skip",
            make_shard=self._index,
            knows_samples=False,
            adopted=True,
            beside=True,
        )
        out = StoreOutput(self._found.folder, self._found.store, expects=self._found.replaces)
        tasks = [_ObjectTask(number) for number in range(len(self._found.objects))]
        return pack(out, context, tasks, self._plan(), options, check=self._check_unchanged)

    def _plan(self) -> dict[str, Any]:
        # Includes the objects' sizes and ETags, so that nobody goes on with objects that have changed.
        states = [[info.name, info.size, info.etag or info.modified] for info in self._found.objects]
        return {
            "adopted": True,
            "container": self.source.container,
            "names": dict(self.source.names),
            "fields": checksums.Digest(self.source.fields).text(),
            "objects": len(states),
            "their sizes and ETags": xxhash.xxh3_128_hexdigest(repr(states).encode()),
            **plan_of(self.source.fields),
        }

    def _index(self, context: TaskContext, task: _ObjectTask, folder: Directory, advance: Advance) -> Record:
        """Make the index of an object in a folder; numbers of left-out samples count from its first one."""
        found, number, name = self._found, task.number, self._found.name(task.number)
        ends = number in (0, len(found.objects) - 1)
        part = "ends" if ends else str(number)
        path = self._folder / "ends" / name if ends else self._download(number, part)
        try:
            with self._naming(part):
                paths = self._ends if ends else [self._ends[0], path, self._ends[-1]]
                place = paths.index(path)
                # The same first and last file mostly give the same fields.
                source = self._make_source(FoundFiles(self.kind, tuple(paths), ()))
                self._check_fields(path, source)
                samples = range(int(source.starts[place]), int(source.starts[place + 1]))
                file = AdoptTask(number, samples, path, name, state_of(path))
                index, left_out, rotated = index_of_places(source, file, context.skip, advance)
                companion = side_index.path_of(path).name
                if companion in found.indexes and found.replaces == "new":
                    self._check_index(companion, path)
                shard = NO_SHARD
                if len(index):
                    side_index.write(folder, name, index)
                    shapes = {n: index[shape_column(n)] for n, f in source.fields.items() if f.kind == "image"}
                    shard = write_sums(context.container, file, folder, index[CHECKSUM], shapes)
        finally:
            if not ends:
                path.unlink(missing_ok=True)
                side_index.path_of(path).unlink(missing_ok=True)
        texts = (Skipped(one.number - samples.start, self._named(one.reason, part)) for one in left_out)
        return Record(shard, tuple(texts), rotated)

    def _check_fields(self, path: Path, source: Any) -> None:
        """Raise SourceError unless an object has the fields of the first and the last one."""
        usual = self.source
        if dict(source.fields) != dict(usual.fields) or dict(source.names) != dict(usual.names):
            raise SourceError(
                f"{path}: its samples have {describe_fields(source.fields)}, and those of the first and last object "
                f"{describe_fields(usual.fields)}: choose fields that all of them have"
            )

    def _download(self, number: int, part: str) -> Path:
        path = self._folder / part / self._found.name(number)
        path.parent.mkdir(exist_ok=True)
        download(self._found.store, self._found.objects[number], path)
        return path

    def _check_index(self, companion: str, path: Path) -> None:
        """Raise ConfigError if an object that is no index has an index's name: it would be replaced."""
        place = side_index.path_of(path)
        place.write_bytes(self._found.store.read((self._found.folder / companion).path).data)
        if not is_index(place):
            raise ConfigError(f"{place}: not an index that shardio wrote, and it would be replaced: remove it first")

    def _check_unchanged(self) -> None:
        now = {info.name: info for info in self._found.store.list(self._found.folder.path)}
        for before in self._found.objects:
            place = f"{self._found.store.url}/{before.name}"
            if before.name not in now:
                raise ObjectNotFound(f"{place}: was removed while it was indexed")
            if now[before.name] != before:
                raise ObjectChanged(f"{place}: was replaced while it was indexed")

    def _named(self, text: str, part: str) -> str:
        """Return a message with URLs in place of the paths of temporary files."""
        return text.replace(f"{self._folder / part}/", f"{self._found.folder}/").replace(
            f"{self._folder / 'ends'}/", f"{self._found.folder}/"
        )

    @contextmanager
    def _naming(self, part: str) -> Iterator[None]:
        """Name objects by their URLs in the errors of a `with` block."""
        try:
            yield
        except (BadSample, SourceError, ConfigError) as error:
            error.args = (self._named(str(error), part), *error.args[1:])
            raise
