"""A store as a place to write to: shards are built in a temporary folder, uploaded, and removed there.

A store has neither locks nor renames. So nobody writes where somebody else does, nothing is written twice, and of two
writers the one whose manifest comes first has written the dataset: it is written last, and on a condition.

A conversion begins a run of its own, and resuming it goes on in the same run, on whatever machine. Each process that
begins or resumes it writes its shards under names of its own (`StoreOutput.writer`), and the first record of a shard
says whose counts. So processes that outlive an older attempt, or two that resume at once, do no harm. A rank counts as
dead once its object has stayed as it is for `SILENT_SECONDS`. `own_files` lists the names.
"""

import json
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, final

from .. import containers
from ..containers import piece_sums, side_index
from ..errors import ConfigError, NotADataset, ObjectChanged, ObjectNotFound, ShardioError, StoreError
from ..format import manifest
from ..format.manifest import Manifest
from ..stores.base import Condition, ObjectInfo, Store
from ..stores.stream import read_unharmed
from ..stores.url import Url
from ..system import background
from ..system.directory import Directory
from ..system.replacement import remove_abandoned_folders, temporary_folder
from ..system.threads import in_order
from . import leftovers, records
from .base import Beat, Leftovers, RankState
from .own_files import RANK_NAME, WRITING
from .records import JOURNAL, PLAN, NamedState, Record
from .remote_manifest import find_object, load_remote
from .shard_writer import WrittenShard

STAGING = "shardio-shard-"
"""The prefix of the temporary folders in which shards are built before they are uploaded."""

SILENT_SECONDS = 300.0
_BEAT_SECONDS = 15.0
_LEADERS_BEAT_SECONDS = 2.0  # others wait for it
_READERS = 16  # requests at once, while many records or indexes are read or written
_READ_ONLY = ("http", "https")


@final
@dataclass(frozen=True, slots=True)
class StoreOutput:
    """An `Output` in a store.

    Attributes:
        path: the dataset's place.
        store: the store that it is in.
        writer: the name of this process and those that work for it, which nobody else has: 8 hexadecimal digits. It is
            part of the names of all shards that they write.
        expects: the state of the manifest that was looked at before the work began, and must still be there then; None
            for any.
        grows: whether a conversion adds shards to the dataset that is there, whose manifest is the one it `expects`.

    Raises ConfigError for a store that cannot be written to.
    """

    poll_seconds: ClassVar[float] = 2.0

    path: Url
    store: Store
    writer: str = field(default_factory=lambda: secrets.token_hex(4))
    expects: Condition = None
    grows: bool = False

    def __post_init__(self) -> None:
        if (scheme := self.path.root.partition(":")[0]) in _READ_ONLY:
            raise ConfigError(f"{self.path}: an output must be a path or a URL of a bucket, got {scheme}://")

    def part(self, split: str) -> "StoreOutput":
        return replace(self, path=self.path / split) if split else self

    def growing(self) -> tuple["StoreOutput", Manifest]:
        with tempfile.TemporaryDirectory() as folder:  # of a table of shards, which stays mapped
            # The state before it is read, so that a later one is not taken for it.
            now = self.manifest_info()
            found = load_remote(self.store, self.path, Path(folder))
        return replace(self, expects=None if now is None else now.etag, grows=True), found

    def create(self, *, overwrite: bool) -> "StoreWriting":
        return StoreWriting(self, self.condition(overwrite=overwrite))

    def begin(
        self, plan: Mapping[str, Any], *, container: str, beside: bool, resume: bool, overwrite: bool
    ) -> "StoreLead | Manifest":
        remove_abandoned_folders(STAGING)
        if self.grows and (appended := self._finished_append(plan, keep=resume and not overwrite)) is not None:
            return appended
        name, replaces = self._run_to_resume(plan) if resume else ("", "new")
        if name and not overwrite and not self.grows:
            now = self.manifest_info()
            overwrite = (now is None and replaces == "new") or (now is not None and now.etag == replaces)
        if resume and not overwrite and not self.grows and (finished := self.finished(plan)) is not None:
            if name:  # it was killed after its last step but one
                with suppress(StoreError):  # `clean` removes it
                    StoreRun(self, name, beside).remove()
            return finished
        condition = self.condition(overwrite=overwrite or self.grows)
        if not resume and not overwrite and (others := self.plans()):
            raise ConfigError(
                "{}: a conversion has begun there ({}) and may be running; {resume} continues it if it has ended, "
                "{overwrite} starts another one beside it",
                self.path,
                next(reversed(others)),
            )
        if self.expects not in (None, condition):
            raise self.overtaken()
        run = StoreRun(self, name or f"run-{self.writer}", beside, container)
        run.write_plan(plan, condition, anew=not name)
        return StoreLead(run, condition, anew=not name)

    def _finished_append(self, plan: Mapping[str, Any], *, keep: bool) -> Manifest | None:
        """Return the manifest if the last append to this place was that of a plan, and to `keep`; else None.

        The records of an append that was killed after it had written the manifest are removed. Raises ConfigError if it
        was that of the plan, and is not to be kept.
        """
        if (found := self.manifest()) is None or records.GROWN not in found.conversion:
            return None
        over = [StoreRun(self, run) for run, one in self.plans().items() if records.is_of(one, found.conversion)]
        same = records.appends_the_same(found.conversion, plan)
        if over and same and not keep:
            raise ConfigError(records.COMPLETE, self.path)
        with suppress(StoreError):  # `clean` removes them
            for run in over:
                run.remove()
        return found if same and keep else None

    def _run_to_resume(self, plan: Mapping[str, Any]) -> tuple[str, Condition]:
        """Return the run of an unfinished conversion with this plan, and the manifest that it is to replace.

        Returns:
            "" and "new" if no conversion is unfinished.

        Raises ConfigError if all of them have other plans, with what differs in the last one.
        """
        problem: ConfigError | None = None
        for name, found in reversed(self.plans().items()):
            try:
                records.compare(f"{self.path}: the unfinished conversion", found, plan)
            except ConfigError as error:
                problem = problem or error
                continue
            replaces = found.get("replaces")
            return name, replaces if isinstance(replaces, str) else "new"
        if problem is not None:
            raise problem
        return "", "new"

    def plans(self) -> dict[str, dict[str, Any]]:
        place = self.path / JOURNAL
        found = []
        for info in self.store.list(place.path):
            run, _, name = info.name.removeprefix(f"{place.path}/").partition("/")
            if name == PLAN and records.RUN_NAME.fullmatch(run):
                found.append((info.modified or 0.0, run))
        plans = {}
        for _, run in sorted(found):
            try:
                text = bytes(self.store.read(self.name(JOURNAL, run, PLAN)).data)
            except ObjectNotFound:  # it has finished meanwhile
                continue
            plans[run] = records.decode_plan(text, f"{place}/{run}/{PLAN}")
        return plans

    def pulse(self, run: str, plan: Mapping[str, Any]) -> tuple[object, bool]:
        return (plan.get("begun"), StoreRun(self, run).state(_object_of(0))), False

    def run(self, name: str, container: str, *, beside: bool) -> "StoreRun":
        remove_abandoned_folders(STAGING)
        return StoreRun(self, name, beside, container)

    def finished(self, plan: Mapping[str, Any]) -> Manifest | None:
        if (found := self.manifest()) is not None and self.grows:
            return found if records.appends_the_same(found.conversion, plan) else None
        if found is not None:
            records.compare(f"{self.path}: the existing dataset", found.conversion, plan)
        return found

    def published(self, plan: Mapping[str, Any]) -> Manifest:
        info, found = self.manifest_info(), self.manifest()
        if info is None or found is None or info.etag == plan.get("replaces"):
            raise ShardioError(f"{self.path}: rank 0 ended before it had written the manifest")
        return found

    def leftovers(self, since: float | None) -> Leftovers | None:
        return leftovers.in_store(self.store, self.path, self.manifest, since)

    def remove(self, found: Leftovers) -> bool:
        return leftovers.remove_from_store(self.store, self.path, found)

    def name(self, *parts: str) -> str:
        """Return the name, in the store, of an object at this place."""
        return (self.path / "/".join(parts)).path

    def upload(self, shard: WrittenShard, folder: Path) -> tuple[WrittenShard, list[NamedState]]:
        """Upload the files of a finished shard, which are all that `folder` holds, and remove them there.

        Returns:
            The shard under the name that it has in the store, and its objects.
        """
        stem = shard.name.partition(".")[0]
        states = []
        for path in sorted(folder.iterdir()):
            name = f"{stem}-{self.writer}{path.name.removeprefix(stem)}"
            written = self.store.upload(self.name(name), path)
            states.append((name, written.size, written.etag))
            path.unlink()
        return replace(shard, name=f"{stem}-{self.writer}{shard.name.removeprefix(stem)}"), states

    def manifest_info(self) -> ObjectInfo | None:
        """Return the size and ETag of the manifest that is there; None if there is none."""
        return find_object(self.store, self.name(manifest.FILE_NAME))

    def manifest(self) -> Manifest | None:
        """Return the manifest that is there; None if there is none. Raises ManifestError if it cannot be trusted."""
        with tempfile.TemporaryDirectory() as folder:  # of a table of shards, which stays mapped
            try:
                return load_remote(self.store, self.path, Path(folder))
            except NotADataset:
                return None

    def condition(self, *, overwrite: bool) -> Condition:
        """Return the state that the manifest has now, which it is to have when it is written.

        Raises ConfigError if there is a manifest, and it may not be overwritten.
        """
        now = self.manifest_info()
        if now is None:
            return "new"
        if not overwrite:
            raise ConfigError("{}: there is a dataset already; {overwrite} replaces it", self.path)
        if now.etag is None:
            raise StoreError(f"{self.path}: the store gives no ETags, so no manifest can be replaced safely: remove it")
        return now.etag

    def write_manifest(self, completed: Manifest, condition: Condition) -> None:
        """Write the manifest of shards that are all there, if the one before is still in its state.

        Raises ObjectNotFound if a file of a shard was removed meanwhile, ObjectChanged if one was replaced, or another
        writer has made a dataset.
        """
        self._check_there(completed)
        content, table = manifest.in_store(completed)
        if table is not None:
            self.store.write(self.name(table[0]), table[1])
        try:
            self.store.write(self.name(manifest.FILE_NAME), content, condition=condition)
        except (ObjectChanged, ObjectNotFound) as error:
            if self.holds(completed):  # two processes have resumed one conversion
                return
            raise self.overtaken() from error

    def overtaken(self) -> ObjectChanged:
        """Return the error of a writer that finds the manifest of another writer."""
        return ObjectChanged(
            f"{self.path / manifest.FILE_NAME}: another writer has changed it since this one began, and its dataset "
            "stays; shardio clean removes, after a day, what this one wrote"
        )

    def _check_there(self, completed: Manifest) -> None:
        """Look up what a manifest names: other programs may have removed it, such as a bucket's lifecycle rule."""
        kind, shards = containers.get(completed.container), completed.shards
        several = kind.read_where_it_lies  # objects, of which the indexes alone count here
        listed = {} if several else {found.name: found.size for found in self.store.list(self.path.path)}
        for shard, expected in zip(shards.names, shards.bytes, strict=True):
            files = (*(() if several else (shard,)), *kind.companions(shard, adopted=completed.adopted))
            sums = () if completed.piece_bytes is None else (f"{shard}{piece_sums.SUFFIX}",)
            sizes = []
            for name in (*files, *sums):
                place = self.name(name)
                try:
                    sizes.append(listed[place] if place in listed else self.store.info(place).size)
                except ObjectNotFound as error:
                    raise ObjectNotFound(
                        f"{self.path / name}: was removed since it was written, so the dataset has no manifest: resume "
                        "the conversion, or write it anew"
                    ) from error
            if (size := sum(sizes[: len(files)])) != expected:
                raise ObjectChanged(
                    f"{self.path / shard}: was replaced since it was written, so the dataset has no manifest: the "
                    f"files have {size} bytes, not {expected}; resume the conversion, or write it anew"
                )

    def holds(self, completed: Manifest) -> bool:
        """Return whether this manifest is there."""
        try:
            return bytes(self.store.read(self.name(manifest.FILE_NAME)).data) == manifest.in_store(completed)[0]
        except ObjectNotFound:
            return False


@final
class StoreWriting:
    """A `Writing` in a store. A dataset that it replaces stays until `publish`, and its shards after that.

    `condition` is the state that the manifest has to have when the new one is written.
    """

    def __init__(self, out: StoreOutput, condition: Condition) -> None:
        self._out, self.path, self._condition = out, out.path, condition
        self._uploaded: list[str] = []
        remove_abandoned_folders(STAGING)
        self._sign = out.name(JOURNAL, f"run-{out.writer}", WRITING)
        out.store.write(self._sign, b"")
        self._resources = ExitStack()
        self.folder = Directory(self._resources.enter_context(temporary_folder(STAGING)))

    def put(self, shard: WrittenShard) -> WrittenShard:
        uploaded, objects = self._out.upload(shard, self.folder.path)
        self._out.store.write(self._sign, b"")
        self._uploaded += [name for name, _, _ in objects]
        return uploaded

    def publish(self, completed: Manifest) -> None:
        uploaded, self._uploaded = self._uploaded, []  # from here on, they may be a dataset's
        try:
            self._out.write_manifest(completed, self._condition)
        except ObjectNotFound:  # there is no manifest
            self._uploaded = uploaded
            raise

    def close(self) -> None:
        self._resources.close()
        uploaded, self._uploaded = self._uploaded, []
        with suppress(StoreError):
            self._out.store.delete([*(self._out.name(name) for name in uploaded), self._sign])


@final
class StoreLead:
    """A `Lead` in a store; `condition` as for `StoreWriting`, and `anew` if the run begins here."""

    def __init__(self, run: "StoreRun", condition: Condition, *, anew: bool) -> None:
        self.run = run
        self._condition, self._anew, self._published = condition, anew, False

    def publish(self, completed: Manifest, numbers: Sequence[int]) -> None:
        out = self.run.out
        # Indexes have names that another adoption of the objects gives as well: they are written late, and at once.
        if self.run.beside and out.condition(overwrite=True) == self._condition:
            for _ in in_order(self.run.copy_index, zip(numbers, completed.shards.names, strict=True), _READERS):
                pass
        elif self.run.beside and not out.holds(completed):
            raise out.overtaken()
        out.write_manifest(completed, self._condition)
        self._published = True

    def abandon(self, error: BaseException) -> None:
        if isinstance(error, StoreError) and not isinstance(error, ObjectChanged):
            return  # asking the store again takes minutes
        with suppress(StoreError):
            if self._anew and not self.run.done():
                self.run.remove()

    def close(self) -> None:
        if self._published:
            with suppress(StoreError):  # the dataset is there; `clean` removes what is left
                self.run.remove()


@final
@dataclass(frozen=True, slots=True)
class StoreRun:
    """A `Run` in a store.

    Attributes:
        out: the output.
        name: the run.
        beside: whether the shards are objects of other programs, so that only their indexes are written.
        container: what reads the shards.
        etags: of the records that this process has read, by number.
    """

    out: StoreOutput
    name: str
    beside: bool = False
    container: str = "tar"
    etags: dict[int, str | None] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> Url:
        return self.out.path / JOURNAL

    def _name(self, *parts: str) -> str:
        return self.out.name(JOURNAL, self.name, *parts)

    def write_plan(self, plan: Mapping[str, Any], replaces: Condition, *, anew: bool) -> None:
        """Say what the run is, and which state of the manifest it replaces."""
        if not anew:
            self.out.store.delete([self._name(name) for name in self._states() if RANK_NAME.fullmatch(name)])
        text = json.dumps({**plan, "run": self.name, "begun": secrets.token_hex(8), "replaces": replaces}, indent=1)
        # Written anew by a process that goes on, too: `clean` sees by its age that somebody works here.
        self.out.store.write(self._name(PLAN), text.encode(), condition="new" if anew else None)

    @contextmanager
    def building(self) -> Iterator[Directory]:
        with temporary_folder(STAGING) as folder:
            yield Directory(folder)

    def put(self, number: int, record: Record, folder: Directory) -> Record:
        shard = record.shard
        if not self.beside:
            uploaded, objects = self.out.upload(shard, folder.path)
            return replace(record, shard=uploaded, objects=tuple(objects))
        for suffix, name in self._index_files(shard.name).items():
            self.out.store.write(self._name(f"{number:06d}{suffix}"), folder.read(name))
        return record

    def _index_files(self, name: str) -> dict[str, str]:
        """Return the files that are written next to an adopted object, by the endings of their names in the journal."""
        kind = containers.get(self.container)
        (index,) = kind.companions(name, adopted=True)
        return {side_index.SUFFIX: index, piece_sums.SUFFIX: piece_sums.path_of(Path(name)).name}

    def copy_index(self, one: tuple[int, str]) -> None:
        """Copy what was put of an adopted object, by its number and name, to where loaders look for it."""
        number, shard = one
        for suffix, name in self._index_files(shard).items():
            data = read_unharmed(self.out.store, self._name(f"{number:06d}{suffix}"))
            self.out.store.write(self.out.name(name), data)

    def record(self, number: int, record: Record) -> Record:
        before = self.etags.get(number, "new")
        try:
            self.out.store.write(self._name(records.name_of(number)), records.encode_record(record), condition=before)
        except (ObjectChanged, ObjectNotFound):
            written = self.read(number)
            if written is None:
                raise ShardioError(
                    f"{self.path / self.name}: the record of shard {number} has been removed: start over"
                ) from None
            return written
        return record

    def read(self, number: int) -> Record | None:
        try:
            content = self.out.store.read(self._name(records.name_of(number)))
        except ObjectNotFound:
            return None
        self.etags[number] = content.info.etag
        return records.decode_record(bytes(content.data), f"{self.path / self.name}, the record of shard {number}")

    def records(self, numbers: Sequence[int]) -> Iterator[Record | None]:
        return in_order(self.read, numbers, _READERS)

    def done(self) -> set[int]:
        return records.numbers_in(self._states())

    def is_whole(self, number: int, record: Record) -> bool:
        """Return whether a shard's objects are as they were written, by size and ETag."""
        if self.beside and record.shard.samples:
            suffixes = self._index_files(record.shard.name)
            return all(self.state(f"{number:06d}{suffix}") is not None for suffix in suffixes)
        found = ((find_object(self.out.store, self.out.name(name)), size, etag) for name, size, etag in record.objects)
        return all(
            info is not None and info.size == size and (etag is None or info.etag is None or info.etag == etag)
            for info, size, etag in found
        )

    def exists(self) -> bool:
        return self.state(PLAN) is not None

    def remove(self) -> None:
        """Remove the run, which is over; the plan last."""
        names = [info.name for info in self.out.store.list(self._name())]
        leftovers.delete(self.out.store, sorted(names, key=lambda name: name.endswith(PLAN)))

    def _states(self) -> dict[str, str]:
        """Return the names of the run's objects, each with a string that changes when it is written anew."""
        return {info.name.rpartition("/")[2]: _state(info) for info in self.out.store.list(self._name())}

    def state(self, name: str) -> str | None:
        """Return the string that changes when an object of the run is written anew; None if there is no such object."""
        info = find_object(self.out.store, self._name(name))
        return None if info is None else _state(info)

    def _write(self, name: str, text: str) -> None:
        self.out.store.write(self._name(name), text.encode())

    def _error_of(self, rank: int) -> str:
        name = self._name(f"{_object_of(rank)}.failed")
        return bytes(self.out.store.read(name).data).decode(errors="replace")

    @contextmanager
    def working(self, rank: int) -> Iterator[Beat]:
        stop, lock, name = SimpleQueue[None](), threading.Lock(), _object_of(rank)

        def keep_beating() -> None:
            count = 1
            while True:
                with suppress(Empty):
                    return stop.get(timeout=_BEAT_SECONDS if rank else _LEADERS_BEAT_SECONDS)
                count += 1
                with lock, suppress(StoreError):  # the next one may come through
                    if stop.empty():
                        self._write(name, f"{count}")

        def end(how: str, text: str = "") -> None:
            stop.put(None)
            with lock:  # what is written after the run was removed would stay
                self._write(f"{name}.{how}", text)

        self._write(name, "1")
        background.start(keep_beating, "shardio heartbeat")
        try:
            yield lambda samples: None  # its records tell
        except BaseException as error:
            with suppress(StoreError):  # the error is what counts
                end("failed", f"{type(error).__name__}: {error}")
            raise
        end("over")

    def others(self, size: int) -> Callable[[], tuple[set[int], dict[int, RankState]]]:
        lost = _listener()

        def look() -> tuple[set[int], dict[int, RankState]]:
            names = self._states()
            states = {}
            for rank in range(1, size):
                name = _object_of(rank)
                if f"{name}.failed" in names:
                    states[rank] = RankState(error=self._error_of(rank))
                elif f"{name}.over" in names:
                    states[rank] = RankState(over=True)
                elif name in names:
                    states[rank] = RankState(lost=lost(rank, names[name]))
            return records.numbers_in(names), states

        return look

    def leader(self) -> Callable[[], RankState | None]:
        lost = _listener()

        def look() -> RankState | None:
            if self.state(f"{_object_of(0)}.failed") is not None:
                return RankState(error=self._error_of(0))
            return RankState(lost=lost(0, self.state(_object_of(0))))

        return look


def _listener() -> Callable[[int, str | None], str]:
    """Return a function of a rank and the state of its object: words for one that has been silent for too long."""
    seen: dict[int, tuple[str | None, float]] = {}

    def listen(rank: int, state: str | None) -> str:
        now = time.monotonic()
        if rank not in seen or seen[rank][0] != state:
            seen[rank] = state, now
        return f"has not been heard from for {SILENT_SECONDS:.0f} s" if now - seen[rank][1] > SILENT_SECONDS else ""

    return listen


def _object_of(rank: int) -> str:
    """Return the name of the object that says that a rank is at work."""
    return f"rank-{rank:05d}"


def _state(info: ObjectInfo) -> str:
    return info.etag or f"{info.modified} {info.size}"
