"""Adoption of tars and TFRecords that lie in a store: each is read once, from start to end, nothing is copied.

The indexes and the manifest are written beside the objects, because a manifest names no place outside its own: no
dataset can lead its reader to another one. An object is kept in a temporary folder while its index is made, and so are
the first and the last one until the end, by which the fields are found, as those of local files are. Indexes wait in a
journal beside the objects, see `store_journal`, until all are made: so an adoption that was cut off can go on.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, final

import xxhash

from ..containers import piece_sums, side_index
from ..dataset import bad_budget
from ..dataset.shard_writer import WrittenShard
from ..dataset.store_output import StoreOutput
from ..dataset.writer import describe
from ..errors import (
    BadSample,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    Option,
    ShardioError,
    SourceError,
    StoreError,
    TooManyBad,
)
from ..foreign.formats import WORDS, FoundFiles, find_by_content
from ..format import checksums, manifest
from ..format.fields import CHECKSUM, describe_fields, shape_column
from ..stores.base import Condition
from ..stores.stream import download
from ..stores.url import Url
from ..system.directory import Directory
from ..system.temporary_folder import remove_abandoned_folders, temporary_folder
from ..system.threads import in_order
from .adopt import AdoptTask, index_of_places, is_index, shard_of
from .found_objects import KINDS, FoundObjects
from .journal import Record
from .masks import plan_of
from .pack import WrittenDataset
from .runners import Progress, silent
from .skipped import Skipped
from .source import state_of
from .store_journal import StoreJournal

_TEMPORARY = "shardio-index-"
_WRITERS = 16  # requests at once, while the indexes are written
MOST_THREADS = 8
"""Threads that are started unless the user says how many: each keeps an object on the disk, and they share the GIL."""

MakeSource = Callable[[FoundFiles], Any]
"""Returns the source of some files."""


@final
class ObjectAdoption:
    """The adoption of objects in a store, which is open from the first download to the end of the `with` block.

    Args:
        found: the objects.
        fields, on_error: see `shardio.index`.
        make_source: returns the source of some local files.

    Attributes:
        source: the source of the first and the last object, whose fields are the dataset's.
        remarks: a clause for each kind of data that was left out.

    Raises SourceError if they cannot be read in place, and what the store raises.
    """

    def __init__(self, found: FoundObjects, on_error: str, make_source: MakeSource) -> None:
        self._found, self._on_error, self._make_source = found, on_error, make_source
        remove_abandoned_folders(_TEMPORARY)
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(temporary_folder(_TEMPORARY))
        self._indexes = self._folder / "indexes"
        self._indexes.mkdir()
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
        self.remarks = found.remarks
        self._out = StoreOutput(found.folder, found.store)
        self._journal, self._done = StoreJournal(self._out), frozenset[int]()

    def __enter__(self) -> "ObjectAdoption":
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def run(
        self, *, workers: int, max_bad: float, progress: Progress | None, resume: bool, overwrite: bool
    ) -> WrittenDataset:
        """Write the indexes, and then the manifest; the arguments are those of `shardio.index`.

        Raises ConfigError for a dataset or an unfinished adoption that `resume` and `overwrite` do not provide for,
        BadSample, TooManyBad, SourceError, ObjectChanged if an object or the manifest is replaced meanwhile, and what
        the store raises.
        """
        bad_budget.check_max_bad(max_bad)
        plan, journal = self._plan(), self._journal
        begun = journal.begin(plan, resume=resume, overwrite=overwrite)
        if isinstance(begun, manifest.Manifest):
            return WrittenDataset(self._found.folder, begun)
        try:
            if begun != self._found.replaces:
                raise _overtaken(self._found.folder)
            made = self._make(plan, begun, workers=workers, max_bad=max_bad, progress=progress or silent)
        except Exception as error:
            if isinstance(error, ObjectChanged) or not isinstance(error, StoreError):  # else asking takes minutes
                with suppress(StoreError):
                    journal.remove_if_empty()
            raise
        with suppress(StoreError):  # the dataset is there; `clean` removes what is left
            journal.remove()
        return made

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

    def _make(
        self, plan: dict[str, Any], condition: Condition, *, workers: int, max_bad: float, progress: Progress
    ) -> WrittenDataset:
        found, journal = self._found, self._journal
        self._done = journal.indexed((side_index.SUFFIX, piece_sums.SUFFIX))
        names: dict[int, str] = {}  # of the objects that hold samples
        skipped: list[Skipped] = []
        rotated = samples = 0
        for number, record in enumerate(in_order(self._adopt, range(len(found.objects)), workers)):
            begin = samples + len(skipped)
            skipped += (Skipped(begin + one.number, one.reason) for one in record.skipped)
            rotated += record.rotated
            samples += record.shard.samples
            if record.shard.samples:
                names[number] = record.shard.name
            done = samples + len(skipped)
            progress("indexing", done, max(done, done * len(found.objects) // (number + 1)))
        if not samples:
            raise SourceError(f"all {len(skipped)} samples are bad; the first: {skipped[0].reason}" if skipped else
                              f"{found.folder}: the objects hold no samples")  # fmt: skip
        if len(skipped) > (allowed := bad_budget.allowance(max_bad, samples + len(skipped))):
            error = TooManyBad(
                "{} of {} samples are bad, {} allows {}; one of them: {}",
                len(skipped),
                samples + len(skipped),
                Option("max_bad", max_bad),
                allowed,
                skipped[0].reason,
            )
            error.skipped = tuple(skipped)
            raise error
        self._check_unchanged()
        described = describe(
            self.source.container,
            self.source.fields,
            self._shards(names),
            self.source.metadata,
            adopted=True,
            conversion=plan,
            has_sums=True,
        )
        # Indexes have names that another adoption of the objects gives as well: they are written late, and at once.
        if self._out.condition(overwrite=True) != condition:
            if not self._out.holds(described):
                raise _overtaken(found.folder)
            return WrittenDataset(found.folder, described, tuple(skipped), rotated)  # two processes have resumed it
        for _ in in_order(self._publish_index, names.items(), _WRITERS):
            pass
        self._out.publish(described, condition)
        return WrittenDataset(found.folder, described, tuple(skipped), rotated)

    def _shards(self, names: Mapping[int, str]) -> Iterator[WrittenShard]:
        """Yield what the manifest says of objects, from their records: the checksums of all samples are large."""
        for (number, name), record in zip(names.items(), self._journal.read_all(list(names)), strict=True):
            if record is None:
                raise ShardioError(f"{self._journal.path}: the record of object {number}, {name}, is gone: resume")
            yield record.shard

    def _adopt(self, number: int) -> Record:
        """Make the index of an object, unless that is done; numbers of left-out samples count from its first one."""
        record = self._journal.read(number) if number in self._done else None
        if record is not None:
            if record.skipped and self._on_error != "skip":  # the interrupted command skipped it, this one must not
                raise BadSample(record.skipped[0].reason)
            return record
        record = self._index(number)
        if record.shard.samples:
            for suffix, path in self._index_files(record.shard.name).items():
                self._journal.write_index(number, suffix, path.read_bytes())
                path.unlink()
        return self._journal.write(number, record)

    def _publish_index(self, one: tuple[int, str]) -> None:
        """Copy an object's index, and its table of checksums, from the journal to where loaders look for them."""
        number, name = one
        for suffix, path in self._index_files(name).items():
            self._out.store.write(self._out.name(path.name), self._journal.read_index(number, suffix))

    def _index_files(self, name: str) -> dict[str, Path]:
        """The files that are written beside an object, by what their names in the journal end with."""
        return {
            side_index.SUFFIX: side_index.path_of(self._indexes / name),
            piece_sums.SUFFIX: piece_sums.path_of(self._indexes / name),
        }

    def _index(self, number: int) -> Record:
        found, name = self._found, self._found.name(number)
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
                task = AdoptTask(number, samples, path, name, state_of(path))
                index, left_out, rotated = index_of_places(source, task, self._on_error == "skip", lambda count: None)
                companion = side_index.path_of(path).name
                if companion in found.indexes and found.replaces == "new":
                    self._check_index(companion, path)
                side_index.write(Directory(self._indexes), name, index)
                files = [path, side_index.path_of(self._indexes / name)]
                shapes = {n: index[shape_column(n)] for n, f in source.fields.items() if f.kind == "image"}
                shard, table = shard_of(task, files, index[CHECKSUM], shapes)
                piece_sums.path_of(self._indexes / name).write_bytes(table)
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

    def _naming(self, part: str) -> "_Naming":
        return _Naming(lambda text: self._named(text, part))


def _overtaken(folder: Url) -> ObjectChanged:
    return ObjectChanged(f"{folder}: another process has written a dataset there since this one began, and it stays")


@final
class _Naming:
    """A `with` block whose errors name objects by their URLs."""

    def __init__(self, named: Callable[[str], str]) -> None:
        self._named = named

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (BadSample, SourceError, ConfigError)):
            error.args = (self._named(str(error)), *error.args[1:])
