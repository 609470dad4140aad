"""Adoption of tars and TFRecords that lie in a store: each is read once, from start to end, nothing is copied.

The indexes and the manifest are written beside the objects, because a manifest names no place outside its own: no
dataset can lead its reader to another one. An object is kept in a temporary folder while its index is made, and so are
the first and the last one until the end, by which the fields are found, as those of local files are.
"""

import fnmatch
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from .. import containers
from ..containers import piece_sums, side_index
from ..dataset.remote_manifest import save_remote
from ..dataset.shard_writer import WrittenShard
from ..dataset.writer import describe
from ..errors import (
    BadSample,
    ConfigError,
    ManifestError,
    ObjectChanged,
    ObjectNotFound,
    SourceError,
    TooManyBad,
)
from ..foreign.files import expanded
from ..foreign.formats import WORDS, FoundFiles, find_by_content, named_kind
from ..format import manifest
from ..format.fields import CHECKSUM, shape_column
from ..loader import quarantine
from ..stores.base import ObjectInfo, Store
from ..stores.stream import download
from ..stores.url import Url
from ..system.directory import Directory
from ..system.threads import in_order
from ..system.units import counted
from .adopt import PLAIN, AdoptTask, index_of_places, is_index, shard_of
from .pack import WrittenDataset
from .runners import Progress, silent
from .skipped import Skipped
from .source import state_of

_KINDS = ("webdataset", "tfrecord")
_LISTED = 5
MOST_THREADS = 8
"""Threads that are started unless the user says how many: each keeps an object on the disk, and they share the GIL."""

MakeSource = Callable[[FoundFiles], Any]
"""Returns the source of some files."""


@final
@dataclass(frozen=True, slots=True)
class FoundObjects:
    """Objects to adopt.

    Attributes:
        store: the store that they are in.
        folder: the URL that they are directly in, which becomes that of the dataset.
        objects: the objects, in the order of their samples.
        kind: the name of the converter that reads them; None before it is known.
        remarks: a clause for what was left out.
        manifest: the ETag of the manifest that is there already; None if there is none.
        indexes: the names of the indexes that are there already.
    """

    store: Store
    folder: Url
    objects: tuple[ObjectInfo, ...]
    kind: str | None
    remarks: tuple[str, ...]
    manifest: str | None
    indexes: frozenset[str]

    def name(self, number: int) -> str:
        """Return the name of an object in the folder."""
        return self.objects[number].name.rpartition("/")[2]


def find_objects(store: Store, given: Sequence[Url], folder: Url, kind: str | None, *, overwrite: bool) -> FoundObjects:
    """List the objects that `given` names, with one request for a thousand of them.

    Args:
        store: the store that all of them are in.
        given: objects, patterns of their names, or the folder itself, for what names tell to be tars or TFRecords.
        folder: the dataset's URL.
        kind: the format; None lets the names in the folder and the content decide.
        overwrite: whether a dataset of adopted objects may be there.

    Raises ConfigError for objects elsewhere and for a dataset that is there, SourceError if there are no objects.
    """
    if kind not in (None, *_KINDS):
        raise ConfigError(f"format must be webdataset or tfrecord for objects in a store, got {kind!r}")
    if folder.root.startswith("http"):
        raise ConfigError(f"{folder}: a file server neither lists nor stores objects: index them on a local disk")
    for one in given:
        if one != folder and one.parent != folder:
            raise ConfigError(
                f"out must be the URL that the objects are directly in, {one.parent}, because their indexes and their "
                f"manifest lie beside them; got {folder}"
            )
    prefix = f"{folder.path}/" if folder.path else ""
    there = {info.name.removeprefix(prefix): info for info in store.list(folder.path)}
    there = {name: info for name, info in there.items() if "/" not in name}
    indexes = frozenset(name for name in there if name.endswith(containers.index_suffixes()))
    own = {*indexes, manifest.FILE_NAME, manifest.TABLE_NAME}
    candidates = [name for name in there if name not in own]
    taken: list[str] = []
    remarks: list[str] = []
    for one in given:
        if one == folder:
            names = [name for name in candidates if named_kind(name) in ((kind,) if kind else _KINDS)]
            others = [name for name in candidates if name not in names]
            if names and others:
                listed = ", ".join(others[:_LISTED]) + (", ..." if len(others) > _LISTED else "")
                remarks.append(f"left out {counted(len(others), 'object')} beside those in {folder}: {listed}")
        else:
            names = [name for text in expanded(one.name) for name in _fitting(text, candidates)]
        if not names:
            what = "no object is called as a tar or a TFRecord" if one == folder else "no such object"
            raise SourceError(f"{one}: {what}")
        taken += names
    if len(set(taken)) < len(taken):
        raise SourceError(f"{folder / next(name for name in taken if taken.count(name) > 1)} is given twice")
    for name in taken:
        if not PLAIN.fullmatch(name):
            raise ConfigError(f"{folder}: a shard's name is letters, digits, '_', '-' and '.', got {name!r}")
    etag = _etag_of_manifest(store, folder, overwrite=overwrite) if manifest.FILE_NAME in there else None
    return FoundObjects(store, folder, tuple(there[name] for name in taken), kind, tuple(remarks), etag, indexes)


def _fitting(text: str, names: Sequence[str]) -> list[str]:
    return [text] if text in names else fnmatch.filter(names, text)


def _etag_of_manifest(store: Store, folder: Url, *, overwrite: bool) -> str | None:
    place = folder / manifest.FILE_NAME
    if not overwrite:
        raise ConfigError(f"{folder}: there is a dataset already; overwrite replaces it")
    found = store.read(place.path)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            name = manifest.table_named_in(bytes(found.data)) or manifest.TABLE_NAME
            table = Path(temporary) / name
            if manifest.table_named_in(bytes(found.data)) is not None:
                table.write_bytes(store.read((folder / name).path).data)
            adopted = manifest.Manifest.from_json(bytes(found.data), str(place), table).adopted
        except ManifestError as error:
            raise ConfigError(f"{error}: index replaces only a dataset of adopted objects: remove it first") from error
    if not adopted:
        raise ConfigError(f"{folder}: index replaces only a dataset of adopted objects, and these are shardio's own")
    return found.info.etag


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
        self._temporary = tempfile.TemporaryDirectory(prefix="shardio-index-")
        self._folder = Path(self._temporary.name)
        self._indexes = self._folder / "indexes"
        self._indexes.mkdir()
        try:
            self._ends = [self._download(number, "ends") for number in sorted({0, len(found.objects) - 1})]
            with self._naming("ends"):
                files = find_by_content([str(path) for path in self._ends], found.kind)
                if files.kind not in _KINDS:
                    raise SourceError(
                        f"{self._ends[0]} is {WORDS[files.kind]}, which is adopted on a local disk only: copy it there"
                    )
                self.kind = files.kind
                self.source = self._make_source(files)
        except BaseException:
            self._temporary.cleanup()
            raise
        self.remarks = found.remarks

    def __enter__(self) -> "ObjectAdoption":
        return self

    def __exit__(self, *error: object) -> None:
        self._temporary.cleanup()

    def run(self, *, workers: int, max_bad: float, progress: Progress | None) -> WrittenDataset:
        """Write the indexes, and then the manifest; the arguments are those of `shardio.index`.

        Raises BadSample, TooManyBad, SourceError, ObjectChanged if an object or the manifest is replaced meanwhile,
        and what the store raises.
        """
        quarantine.check_max_bad(max_bad)
        found, show = self._found, progress or silent
        written: list[WrittenShard] = []
        skipped: list[Skipped] = []
        rotated = done = 0
        for shard, left_out, turned in in_order(self._adopt, range(len(found.objects)), workers):
            skipped += (Skipped(done + one.number, one.reason) for one in left_out)
            rotated += turned
            done += shard.samples + len(left_out)
            if shard.samples:
                written.append(shard)
            show("indexing", done, max(done, done * len(found.objects) // (len(written) or 1)))
        samples = sum(shard.samples for shard in written)
        if not samples:
            raise SourceError(f"all {len(skipped)} samples are bad; the first: {skipped[0].reason}" if skipped else
                              f"{found.folder}: the objects hold no samples")  # fmt: skip
        if len(skipped) > (allowed := quarantine.allowance(max_bad, samples + len(skipped))):
            raise TooManyBad(
                f"{len(skipped)} of {samples + len(skipped)} samples are bad, max_bad={max_bad:g} allows {allowed}; "
                f"one of them: {skipped[0].reason}"
            )
        self._check_unchanged()
        for shard in written:  # late, so that what fails before leaves the store as it was
            for path in (
                side_index.path_of(self._indexes / shard.name),
                piece_sums.path_of(self._indexes / shard.name),
            ):
                found.store.write((found.folder / path.name).path, path.read_bytes())
        plan = {"adopted": True, "container": self.source.container, "names": dict(self.source.names)}
        described = describe(
            self.source.container,
            self.source.fields,
            written,
            self.source.metadata,
            adopted=True,
            conversion=plan,
            has_sums=True,
        )
        save_remote(found.store, found.folder, described, found.manifest or "new")
        return WrittenDataset(found.folder, described, tuple(skipped), rotated)

    def _adopt(self, number: int) -> tuple[WrittenShard, tuple[Skipped, ...], int]:
        """Make the index of an object; numbers of samples that are left out count from its first one."""
        found, name = self._found, self._found.name(number)
        ends = number in (0, len(found.objects) - 1)
        part = "ends" if ends else str(number)
        path = self._folder / "ends" / name if ends else self._download(number, part)
        try:
            with self._naming(part):
                paths = self._ends if ends else [self._ends[0], path, self._ends[-1]]
                place = paths.index(path)
                # The same first and last file give the same fields.
                source = self._make_source(FoundFiles(self.kind, tuple(paths), ()))
                samples = range(int(source.starts[place]), int(source.starts[place + 1]))
                task = AdoptTask(number, samples, path, name, state_of(path))
                index, left_out, rotated = index_of_places(source, task, self._on_error == "skip", lambda count: None)
                companion = side_index.path_of(path).name
                if companion in found.indexes and found.manifest is None:
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
        return shard, tuple(texts), rotated

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
