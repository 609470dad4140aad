"""A folder as a place to write to: shards are built in a hidden folder, and moved into place once all are complete.

    OUT/.writing-1a2b3c4d-new/  what `create` builds, locked by its process; or a journal that is about to be removed
    OUT/.converting/            the journal of a conversion
      lock                      locked by the first rank, which it names; the lock ends with its process
      plan.json                 describes the conversion; a conversion with another plan does not resume this one
      rank-00003                locked by that rank; how many samples it has done, and the error that ended it
      RUN/shards/               the shards, until all are finished
      RUN/000012.done           the record of shard 12 after its checksum, written after its files, so they are complete

RUN is drawn at random when a conversion begins, and kept when it resumes: processes that outlive an older conversion,
such as a rank of a dead job or a Dask worker that was given up, have no place to write to. The processes of a
conversion share nothing else, on one machine or on many: they need a common file system.

The directory that the user names may be a link. Nothing below it is: see `system.directory`.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import msgspec

from .. import containers
from ..containers import piece_sums
from ..errors import ConfigError, ObjectChanged, ShardioError
from ..format import manifest
from ..format.manifest import Manifest
from ..system.directory import Directory
from . import leftovers, records
from .base import Beat, Leftovers, RankState
from .locks import LOCK, FolderLock, Lock, first_line, holder, is_held
from .own_files import check_made, existing, is_of_manifest, ours
from .records import JOURNAL, PLAN, Record
from .shard_writer import WORKPLACE, WrittenShard

_MOST_TEXT = 1 << 24
"""Bytes of a plan or of a rank's file, far more than either has."""


@final
@dataclass(frozen=True, slots=True)
class FolderOutput:
    """An `Output` on a file system. It can be pickled.

    Attributes:
        root: the directory that the user names, which may be a link.
        split: the folder of a split in it, which may not be one; "" if the dataset's directory is `root` itself.
        grows: for a conversion that adds shards to the dataset that is there: the state of its manifest, which must be
            the same in the end; else None.
        poll_seconds: the time between two looks at what other ranks have done.
    """

    poll_seconds: ClassVar[float] = 0.2

    root: Path
    split: str = ""
    grows: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """The dataset's place."""
        return self.root / self.split

    def open(self) -> Directory:
        """Open the dataset's directory, which must exist."""
        root = Directory(self.root)
        return root.directory(self.split) if self.split else root

    def _make(self) -> Directory:
        """Open the dataset's directory, and create it if needed; ConfigError if it is anything but a directory."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            root = Directory(self.root)
            return root.make(self.split, exist_ok=True) if self.split else root
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"{self.path}: not a directory") from error

    def part(self, split: str) -> "FolderOutput":
        """Return the place of a split below this one."""
        return replace(self, root=self.root.absolute(), split=split)

    def growing(self) -> tuple["FolderOutput", Manifest]:
        """Return this place for a conversion that adds shards to the dataset which is there, and its manifest.

        Its `begin` and `publish` raise ObjectChanged if the dataset is another one by then. Raises NotADataset if there
        is none, ManifestError if its manifest cannot be trusted.
        """
        # The state before it is read, so that a later one is not taken for it.
        state = leftovers.identity(self.open()) if self.path.is_dir() else None
        return replace(self, grows=state), manifest.load(self.path)

    def create(self, *, overwrite: bool) -> "FolderWriting":
        """Begin to write a dataset without a journal; ConfigError if there is one that may not be overwritten."""
        final = self._make()
        found = existing(final)
        if found and not overwrite:
            raise _not_empty(final, found)
        return FolderWriting(final)

    def begin(
        self, plan: Mapping[str, Any], *, container: str, beside: bool, resume: bool, overwrite: bool
    ) -> "FolderLead | Manifest":
        """Begin a conversion, or go on with one.

        Args:
            plan: JSON values that distinguish this conversion from others.
            container: the container of its shards.
            beside: whether files of other programs in the folder become the shards.
            resume: whether to go on where the last attempt at this conversion has ended.
            overwrite: whether a dataset that is there may be replaced; at a place to add shards it stays, and this says
                whether to start over where a conversion is unfinished.

        Returns:
            The manifest, with `resume`, if this conversion has finished it before.

        Raises ConfigError for a dataset or an unfinished conversion that the options do not provide for.
        """
        self._remove_retired()
        if self.grows and self._has_grown():
            if self.finished(plan) is not None and (overwrite or not resume):
                raise ConfigError(records.COMPLETE, self.path)
            leftovers.remove_journal(self.open())
        anew = not self.has_journal()
        if resume and not overwrite and anew and (finished := self.finished(plan)) is not None:
            return finished
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        final = self._make()
        while True:
            journal = _claim(final, overwrite=overwrite, resume=resume, beside=beside, grows=bool(self.grows))
            with contextlib.suppress(FileNotFoundError):
                lock = Lock(journal, LOCK, "another conversion")
                if journal.place().samefile(final.place(JOURNAL)):
                    break
                lock.release()  # `clean` has removed it meanwhile
        lead = FolderLead(FolderRun(self, "", container), final, lock, beside, missing if anew else None)
        try:
            check_made(journal)
            self.check_grows()
            unfinished = next(iter(self.plans().values()), None) if resume else None
            if unfinished is None:
                if self.grows and not overwrite and (others := leftovers.unnamed_shards(final)):
                    raise ConfigError(
                        "{}: holds {}, which is no part of the dataset: `shardio clean` removes what a killed writer "
                        "has left, {overwrite} replaces what is in the way",
                        self.path,
                        others[0],
                    )
                for name in journal.names():
                    if name != LOCK:
                        journal.remove(name)
                run = FolderRun(self, f"run-{secrets.token_hex(4)}", container)
                journal.make(run.name).make("shards")
            else:
                records.compare(f"{self.path}: the unfinished conversion", unfinished, plan)
                run = self.run(str(unfinished.get("run")), container, beside=beside)
                run.resume()
            lead.run = run
            begun = secrets.token_hex(8)
            journal.write(PLAN, json.dumps({**plan, "run": run.name, "begun": begun}, indent=1).encode())
            lock.write(f"{holder()}, {begun}")
        except BaseException as error:
            if isinstance(error, Exception):
                lead.abandon(error)
            lead.close()
            raise
        return lead

    def plans(self) -> dict[str, dict[str, Any]]:
        """Return the plans of unfinished conversions by run, those written last at the end."""
        try:
            text = self.journal().read(PLAN, _MOST_TEXT)
        except FileNotFoundError:  # there is none yet
            return {}
        plan = records.decode_plan(text, f"{self.path / JOURNAL / PLAN}")
        return {str(plan.get("run")): plan}

    def pulse(self, run: str, plan: Mapping[str, Any]) -> tuple[object, bool]:
        """Return a value that changes while the first rank of a run works, and whether it certainly works now."""
        # The process that holds the lock has written this plan, and not one that died before.
        begun = plan.get("begun")
        try:
            journal = self.journal()
            held = is_held(journal, LOCK) is not False  # None on a file system without locks
            return begun, held and first_line(journal.read(LOCK, _MOST_TEXT)).endswith(f", {begun}".encode())
        except FileNotFoundError:
            return begun, False

    def run(self, name: str, container: str, *, beside: bool) -> "FolderRun":
        """Take part in a run."""
        if not records.RUN_NAME.fullmatch(name):  # and so no other path
            place = self.path / JOURNAL / PLAN
            raise ShardioError("{}: {!r} is not the name of a run; start over with {overwrite}", place, name)
        return FolderRun(self, name, container)

    def finished(self, plan: Mapping[str, Any]) -> Manifest | None:
        """Return the manifest of the dataset that is there, None if there is none; ConfigError if of another plan.

        With a place to add shards: None unless the last conversion there has added those of this plan.
        """
        if not (self.path / manifest.FILE_NAME).exists():
            return None
        found = manifest.load(self.path)
        if self.grows:
            return found if records.appends_the_same(found.conversion, plan) else None
        records.compare(f"{self.path}: the existing dataset", found.conversion, plan)
        return found

    def check_grows(self) -> None:
        """Raise ObjectChanged if this is a place to add shards, and the dataset is not the one that they are for."""
        if self.grows and leftovers.identity(self.open()) != self.grows:
            raise ObjectChanged(
                f"{self.path / manifest.FILE_NAME}: another writer has changed it since this append began, and its "
                "dataset stays"
            )

    def _has_grown(self) -> bool:
        """Return whether an append was killed after it had written the manifest, before it had removed its journal."""
        with contextlib.suppress(ShardioError):  # of a damaged plan, which resuming refuses
            found = manifest.load(self.path).conversion
            return records.GROWN in found and any(records.is_of(plan, found) for plan in self.plans().values())
        return False

    def published(self, plan: Mapping[str, Any]) -> Manifest:
        """Return the manifest that the run with this plan, which has ended, has made; ShardioError if it made none."""
        return manifest.load(self.path)

    def journal(self) -> Directory:
        """Open the journal's folder; FileNotFoundError if there is none."""
        return self.open().directory(JOURNAL)

    def has_journal(self) -> bool:
        """Return whether there is a journal: an unfinished conversion."""
        try:
            return self.open().kind(JOURNAL) is not None
        except FileNotFoundError:
            return False

    def _remove_retired(self) -> None:
        """Remove the journals of finished conversions that were killed before they had removed them."""
        try:
            final = self.open()
        except FileNotFoundError:
            return
        for name in final.names():
            if name.startswith(WORKPLACE) and final.kind(name) == "directory":
                folder = final.directory(name)
                if folder.kind(LOCK) == "file" and is_held(folder, LOCK) is False:
                    check_made(folder)
                    leftovers.remove_retired(final, name)

    def leftovers(self, since: float | None) -> Leftovers:
        """Return what killed and replaced writers left; None if a writer changed the manifest meanwhile: look again.

        What was written later than `since`, in seconds since 1970, is kept, and all that goes with it; None keeps only
        what a process holds a lock on. Raises ManifestError if the manifest, which names the rest, cannot be trusted.
        """
        return leftovers.in_folder(self.open(), since)

    def remove(self, found: Leftovers) -> bool:
        """Remove the removable leftovers; False, with part of them there, if the manifest changed meanwhile."""
        return leftovers.remove_from_folder(self.open(), found)


def _not_empty(final: Directory, found: Collection[str]) -> ConfigError:
    kind = "the dataset" if manifest.FILE_NAME in found else "the unfinished dataset"
    return ConfigError("{}: the output directory must be empty; {overwrite} replaces {} in it", final.path, kind)


def _claim(final: Directory, *, overwrite: bool, resume: bool, beside: bool, grows: bool) -> Directory:
    """Open the journal's folder in an output, and make it if needed; a dataset that `grows` may have other files there.

    Raises ConfigError if the output holds anything that shardio did not write, a dataset that may not be overwritten,
    or an unfinished conversion that may be neither resumed nor overwritten.
    """
    found: Collection[str]
    if beside or grows:
        found = {name for name in (JOURNAL, manifest.FILE_NAME)[: 1 if grows else 2] if final.kind(name)}
    else:
        found = existing(final)
    if found and not overwrite and not (resume and JOURNAL in found):
        if grows:
            raise ConfigError(
                "{}: a conversion is unfinished there: {resume} continues it, {overwrite} starts over", final.path
            )
        if JOURNAL in found and manifest.FILE_NAME not in found:
            ways = "{resume} continues the unfinished conversion in it, {overwrite} starts over"
            raise ConfigError("{}: the output directory must be empty; " + ways, final.path)
        raise _not_empty(final, found)
    journal = final.make(JOURNAL, exist_ok=True)
    check_made(journal)
    return journal


@final
class FolderWriting:
    """A dataset in the directory `final` that one process writes, in `folder`, from its first shard to its manifest.

    A dataset that it replaces stays until `publish`.
    """

    def __init__(self, final: Directory) -> None:
        self.path, self._final = final.path, final
        self.folder = final.make(f"{WORKPLACE}{secrets.token_hex(4)}-new")
        self._lock = FolderLock(self.folder)

    def put(self, shard: WrittenShard) -> WrittenShard:
        """Take a shard that is finished in `folder`; return it under the name that it has from now on."""
        return shard

    def publish(self, completed: Manifest) -> None:
        """Make a dataset of the shards; ObjectChanged if another writer has made one meanwhile."""
        move_into_place(completed, self.folder, self._final)

    def close(self) -> None:
        """Remove what was not published, as far as that is possible."""
        self._lock.release()
        with contextlib.suppress(OSError):
            self._final.remove(self.folder.path.name)


@final
class FolderLead:
    """A conversion in the process that leads it, and alone ends it.

    `missing` are the directories that were made for it, if it begins here.
    """

    def __init__(
        self, run: "FolderRun", final: Directory, lock: Lock, beside: bool, missing: Sequence[Path] | None
    ) -> None:
        self.run = run
        self._final, self._lock, self._beside, self._missing = final, lock, beside, missing
        self._retired, self._emptied = "", list[Path]()

    def publish(self, completed: Manifest, numbers: Sequence[int]) -> None:
        """Make a dataset of the shards of these numbers; ObjectChanged if another writer has made one meanwhile."""
        out = self.run.out
        check = out.check_grows if out.grows else None
        move_into_place(completed, self.run.shards(), self._final, beside=self._beside, check=check)
        self._retire()

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind if the conversion began here and no shard is finished: there is nothing to resume."""
        with contextlib.suppress(OSError):
            if self._missing is not None and not (self.run.name and self.run.done()):
                self._retire()
                self._emptied = [*self._missing]

    def _retire(self) -> None:
        """Rename the journal out of the way, in one step, to be removed."""
        self._retired = f"{WORKPLACE}{secrets.token_hex(4)}-new"
        self._final.rename(JOURNAL, self._final, self._retired)

    def close(self) -> None:
        """Release the output, and remove what a published dataset does not need."""
        self._lock.release()
        # After the lock's release: some network file systems keep a folder as long as a file in it is open.
        if self._retired:
            with contextlib.suppress(OSError):
                leftovers.remove_retired(self._final, self._retired)
                for path in self._emptied:
                    path.rmdir()


@final
@dataclass(frozen=True, slots=True)
class FolderRun:
    """A `Run` on a file system: the shards so far and their records, which all processes of a conversion share.

    It can be pickled. Its folders are opened for each use, and no link in it is followed.
    """

    out: FolderOutput
    name: str
    container: str

    @property
    def path(self) -> Path:
        """The place of the records, for messages."""
        return self.out.path / JOURNAL

    def _open(self) -> Directory:
        return self.out.journal().directory(self.name)

    def shards(self) -> Directory:
        """Open the folder of the shards, where they are until all are finished."""
        return self._open().directory("shards")

    def resume(self) -> None:
        """Remove what the processes that were at work have left unfinished."""
        journal = self.out.journal()
        for name in journal.names():
            if name.startswith("rank-"):
                journal.unlink(name)
        try:
            shards = self.shards()
        except FileNotFoundError as error:
            raise ShardioError(
                "{} names {!r}, a run that is not there; start over with {overwrite}", self.path / PLAN, self.name
            ) from error
        for name in shards.names():
            if name.startswith(WORKPLACE):
                shards.remove(name)

    @contextmanager
    def building(self) -> Iterator[Directory]:
        """Return the folder to build shards in, for a `with` block."""
        yield self.shards()

    def put(self, number: int, record: Record, folder: Directory) -> Record:
        """Take a shard that is finished in `folder`; return its record under the name that it has from now on."""
        return record

    def record(self, number: int, record: Record) -> Record:
        """Write the record of a shard that was put; return the one that counts, which may be another process's."""
        self._open().write(records.name_of(number), records.encode_record(record))
        return record

    def read(self, number: int) -> Record | None:
        """Return the record of a shard, None if there is none; ShardioError if it is damaged."""
        try:
            data = self._open().read(records.name_of(number))
        except FileNotFoundError:
            return None
        return records.decode_record(data, f"{self.path}, the record of shard {number}")

    def records(self, numbers: Sequence[int]) -> Iterator[Record | None]:
        """Yield the records of some shards, in the order of `numbers`."""
        return map(self.read, numbers)

    def done(self) -> set[int]:
        """Return the numbers of the shards that have records."""
        return records.numbers_in(self._open().names())

    def is_whole(self, number: int, record: Record) -> bool:
        """Return whether a shard's files match their record, by size and checksum; this reads them.

        Their table of checksums is written anew if it is lost or damaged.
        """
        shard = record.shard
        if not shard.samples:
            return True
        # They are in the output if they are adopted, or publication was interrupted.
        folders = (self.path / self.name / "shards", self.out.path)
        kind = containers.get(self.container)
        names = dict.fromkeys(path.name for folder in folders for path in kind.files(folder / shard.name))
        files = [next((folder / n for folder in folders if (folder / n).exists()), folders[-1] / n) for n in names]
        if not all(path.is_file() for path in files):
            return False
        with contextlib.suppress(FileNotFoundError):
            size, checksum, table = piece_sums.of_files(files)
            if (size, checksum) == (shard.bytes, shard.checksum):
                if not any(piece_sums.matches(folder / shard.name, table) for folder in folders):
                    self.shards().write(piece_sums.path_of(Path(shard.name)).name, table)
                return True
        return False

    def exists(self) -> bool:
        """Return whether the conversion has not ended yet."""
        return self.out.has_journal()

    @contextmanager
    def working(self, rank: int) -> Iterator[Beat]:
        """State that a rank works as long as the `with` block runs, and then how it ended."""
        lock = Lock(self.out.journal(), _file_of(rank), f"rank {rank} of this job")
        done = 0

        def beat(samples: int) -> None:
            nonlocal done
            done = samples
            lock.write(msgspec.json.encode(RankState(samples)).decode())

        try:
            beat(0)
            yield beat
            lock.write(msgspec.json.encode(RankState(done, over=True)).decode())
        except BaseException as error:
            lock.write(msgspec.json.encode(RankState(error=f"{type(error).__name__}: {error}")).decode())
            raise
        finally:
            lock.release()

    def others(self, size: int) -> Callable[[], tuple[set[int], dict[int, RankState]]]:
        """Return a function that the first rank of `size` calls to see what the others have done.

        It returns the numbers of the shards that have records, and what each rank that has begun has stated.
        """

        def look() -> tuple[set[int], dict[int, RankState]]:
            journal = self.out.journal()
            states = {rank: state for rank in range(1, size) if (state := _state_of(journal, rank, _file_of(rank)))}
            return self.done(), states

        return look

    def leader(self) -> Callable[[], RankState | None]:
        """Return a function that another rank calls to see the first one; it returns None if that has not begun."""

        def look() -> RankState | None:
            try:
                return _state_of(self.out.journal(), 0, LOCK)
            except FileNotFoundError:  # put in place meanwhile
                return None

        return look


def _file_of(rank: int) -> str:
    return f"rank-{rank:05d}"


def _state_of(journal: Directory, rank: int, lock: str) -> RankState | None:
    """Return what a rank has stated last, and whether the lock that it holds is free; None if it has not begun."""
    state = _stated_by(journal, rank)
    if state is None and rank:
        return None
    ended = is_held(journal, lock) is False  # it had the lock when it wrote its first line
    if ended:
        state = _stated_by(journal, rank) or state
    state = state or RankState()
    lost = f"died after {state.samples} samples" if rank else "ended before it had put the dataset in place"
    return replace(state, lost=lost) if ended and not state.error and not (state.over and rank) else state


def _stated_by(journal: Directory, rank: int) -> RankState | None:
    """Return what a rank has stated last; None if it has not begun, or has not got its lock yet."""
    try:
        line = first_line(journal.read(_file_of(rank), _MOST_TEXT))
        return msgspec.json.decode(line, type=RankState) if line else None
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):  # who holds the lock, or half written
        return RankState()


def move_into_place(
    completed: Manifest,
    directory: Directory,
    final: Directory,
    *,
    beside: bool = False,
    check: Callable[[], None] | None = None,
) -> None:
    """Write the manifest of the finished shards in `directory`, and move both to the dataset's directory `final`.

    The old manifest goes first, and the new one comes last. Files that an interrupted earlier publication has moved
    are there already.

    Args:
        completed: the manifest.
        directory: the folder of the shards, in `final` or below.
        final: the dataset's directory.
        beside: whether `final` holds files of other programs, which become the dataset's shards in place.
        check: if the shards are added to those that are there, which stay, as the old manifest does until the new one
            takes its place: raises an error if that is not the one that they are for.
    """
    kind, names = containers.get(completed.container), completed.shards.names
    directory.sync()
    manifest.save(completed, directory)
    # Not every adopted shard has an index, so the names of the files are looked up in both directories.
    folders = (directory.place(), final.place()) if completed.adopted else (Path(),)
    dataset = {*names}
    for path in (folder / name for name in names for folder in folders):
        dataset |= {file.name for file in (*kind.files(path), *kind.links(path))}
    if completed.piece_bytes is not None:
        dataset |= {piece_sums.path_of(Path(name)).name for name in names}
    # Killed processes leave unfinished shards and temporary files, which go with the folder.
    built = [name for name in directory.names() if name in dataset or is_of_manifest(name)]
    if check is None:
        already_moved = dataset - {*built}
        own = [] if beside else ours(final)  # asked before the manifest goes, which says what is ours
        final.unlink(manifest.FILE_NAME)
        for name in own:
            if name not in already_moved and name not in directory.path.relative_to(final.path).parts:
                final.remove(name)
    for name in sorted(built, key=lambda name: name == manifest.FILE_NAME):
        if check is not None and name == manifest.FILE_NAME:
            final.sync()
            check()
        directory.rename(name, final, name)
    final.sync()
