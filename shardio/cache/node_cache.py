"""The cache of a node: pieces of objects in a folder of bounded size, which all processes of the node share.

There is no server. The processes map the tables of pieces, and change them under one lock, which the kernel releases if
its holder dies. A piece that a process fetches, or needs for what it is about to read, bears the bit of that process's
lease, so nobody evicts it; the bits of processes that have died count for nothing.

    FOLDER/lock             locked while anything changes
    FOLDER/state            what the processes share: bytes taken, limits, a clock, the boot of the machine, the room of
                            a full disk
    FOLDER/leases/N         locked by process number N as long as it lives
    FOLDER/tables/GROUP/NAME  the states of an object's pieces
    FOLDER/files/GROUP/NAME   the object, with holes where pieces are absent

Nobody but this user may write to FOLDER or read in it (`private_folder.py`). It is held open, and what is below it is
opened from there, and through no link.

A process that is killed leaves its files as it saw them, but a machine that stops may not have written pieces to the
disk that their table calls present. So pieces of an earlier boot count as absent: those that have a checksum are
compared with it and stay, the others are fetched again.

Changes to a cache run on threads other than the main one, so that no signal handler can raise in the middle of one.
"""

import errno
import fcntl
import mmap
import os
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..errors import CacheError, CacheWarning, ConfigError
from ..format.pieces import PIECE
from ..system import background, forks, holes, portable
from ..system.directory import Directory
from ..system.types import Buffer
from ..system.units import format_size
from . import eviction, leases
from .cached_object import ABSENT, PRESENT, SUSPECT, CachedObject, Parts, Pieces, PieceTable
from .private_folder import lasting_path, no_cache, no_part, private_folder, private_place, refusing_links

VERSION = 2
_STATE = np.dtype(
    [("version", "<i8"), ("changing", "<i8"), ("clock", "<i8"), ("used", "<i8"),
     ("leases", "<u8", leases.WORDS), ("limits", "<i8", leases.MOST), ("boot", "S36"), ("room", "<i8")]
)  # fmt: skip
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk, or of a user's exhausted quota."""

NO_HOLES = "its file system cannot free parts of files"

LOCK_SECONDS = 60.0
"""Seconds to wait for a process that changes the cache: much longer than a change takes."""

_FREED_AT_ONCE = 64  # of the limit: looking for what to evict takes longer than evicting it
_WORTH_LOOKING = 0.5  # seconds after which processes may have died unnoticed
_LONGEST_NAP = 0.005  # seconds

P = ParamSpec("P")
T = TypeVar("T")


def _off_main_thread(method: Callable[P, T]) -> Callable[P, T]:
    """Have a method run where no signal handler can raise: an interrupt ends the wait, and the method goes on."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.current_thread() is threading.main_thread():
            return background.call(partial(method, *args, **kwargs))
        return method(*args, **kwargs)

    return run


@final
class Hold:
    """Pieces that nobody evicts until `release`, or until the process ends; if held ahead, nobody without need.

    A hold is also a `with` block, at whose end it is released.
    """

    def __init__(self, cache: "NodeCache", parts: Parts, ahead: bool) -> None:
        self._cache, self._process, self._ahead, self._held = cache, os.getpid(), ahead, [parts]

    @property
    def parts(self) -> Parts:
        """The objects and their pieces."""
        return self._held[0] if self._held else ()

    @property
    def bytes(self) -> int:
        """The bytes of the pieces."""
        return sum(len(pieces) for _, pieces in self.parts) * PIECE

    @property
    def present(self) -> bool:
        """Whether all pieces are there."""
        return all(bool((one.table.state[pieces] == PRESENT).all()) for one, pieces in self.parts)

    def release(self) -> None:
        """Let go of the pieces; you may call it twice."""
        _release(self._cache, self._process, self._ahead, self._held)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.release()

    def release_when_gone(self) -> None:
        """Have the pieces let go of when nobody has the hold any more."""
        background.call_when_gone(self, _release, self._cache, self._process, self._ahead, self._held)


@final
class Kept:
    """Pieces that stay in the cache until others need the room.

    Attributes:
        hold: holds them; None once they stay no more. Whoever reads them has it in a variable meanwhile.
    """

    def __init__(self, hold: Hold) -> None:
        hold.release_when_gone()
        self.hold: Hold | None = hold


def _release(cache: "NodeCache", process: int, ahead: bool, held: list[Parts]) -> None:
    try:
        parts = held.pop()
    except IndexError:  # it was released before
        return
    if process == os.getpid():  # else they are held by the parent process
        cache.give_back(parts, ahead)


@final
class NodeCache:
    """Pieces of objects in a folder, `limit` bytes at most.

    Threads may share it; a forked process has a lease of its own, and holds nothing at first.

    Args:
        folder: the folder, made if there is none; see `private_place`. All processes of this user that use it share
            what is in it.
        limit: the most bytes of pieces. Where processes differ, the smallest limit of those alive holds for all; where
            the disk has room for less, what it has room for.

    Attributes:
        folder: the folder.
        place: a path to it for what opens files by path, which nobody else can lead elsewhere.

    Raises:
        CacheError: the folder belongs to another version or user, too many processes use it, its file system cannot
            free parts of files, or a link is where a file of the cache is to be.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._directory = private_folder(private_place(folder.absolute()))
        self.folder, self.place, self.limit = self._directory.path, lasting_path(self._directory), limit
        if not holes.are_possible(self.place):
            raise no_cache(folder, NO_HOLES)
        self.make_folders()
        with refusing_links():
            self._state_file = self._directory.open("state", os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, self._state_file).atexit = False  # threads may use it until the very end
        portable.allocate(self._state_file, _STATE.itemsize)
        self._state = np.frombuffer(mmap.mmap(self._state_file, _STATE.itemsize), _STATE, 1)[0]
        self._lock: int | None = None
        self._begin()
        forks.reset_in_children(self)
        self._join()

    def make_folders(self) -> None:
        """Make the folders of the cache, also where somebody removed them."""
        with refusing_links():
            self._leases, self._tables, self._files = (
                self._directory.make(name, exist_ok=True) for name in ("leases", "tables", "files")
            )
        self._group = "", self._files, self._tables

    def _begin(self) -> None:
        """Begin as a process that holds nothing."""
        self._thread_lock = threading.Lock()
        self._lease: leases.Lease | None = None
        # How many holds of this process each piece is in, by object, and by whether they are held ahead.
        self._needs: dict[tuple[Path, bool], NDArray[np.uint16]] = {}
        self._objects: weakref.WeakValueDictionary[tuple[str, str], CachedObject] = weakref.WeakValueDictionary()
        self._kept: list[weakref.ref[Kept]] = []
        self._looked, self._told = 0.0, False
        self._notices: list[str] = []

    @_off_main_thread
    def _join(self) -> None:
        with self._changing():
            pass  # takes a lease, and mends what a killed process left

    def reset_in_child(self) -> None:
        """Leave the parent's lease and lock to the parent: a copy would keep them if it were killed."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._lease is not None:
            self._lease.end()
        self._begin()

    @staticmethod
    def shared(folder: Path, limit: int) -> "NodeCache":
        """Return the cache that this process has open for a folder, with another limit if that was given last."""
        if (known := NodeCache.opened(folder)) is None:
            known = _opened[folder] = NodeCache(folder, limit)
        elif known.limit != limit:
            known._resize(limit)
        return known

    @staticmethod
    def opened(folder: Path) -> "NodeCache | None":
        """Return the cache that this process has open for a folder; None if there is none, or it was removed."""
        if (known := _opened.get(folder)) is None or known.removed:
            return None
        if not all(one.status().st_nlink for one in (known._leases, known._tables, known._files)):
            known.make_folders()
        return known

    @_off_main_thread
    def _resize(self, limit: int) -> None:
        with self._changing():
            self.limit = self._state["limits"][self._own.number] = limit
            self._state["room"] = 0
            self._make_room(0)

    @property
    def removed(self) -> bool:
        """Whether the folder was removed, or what it had in it."""
        return os.fstat(self._state_file).st_nlink == 0

    def __reduce__(self) -> tuple[Callable[[Path, int], "NodeCache"], tuple[Path, int]]:
        return NodeCache.shared, (self.folder, self.limit)

    @property
    def used(self) -> int:
        """Bytes of the pieces that are present or being fetched."""
        return int(self._state["used"])

    @property
    def most(self) -> int:
        """The limit that holds now: the smallest of those of the processes that use the cache, and of the disk."""
        return min(self._given, int(self._state["room"]) or self._given)

    @property
    def _given(self) -> int:
        """The smallest limit of the processes that use the cache."""
        alive = np.unpackbits(self._state["leases"].view(np.uint8), bitorder="little").astype(np.bool_)
        return int(self._state["limits"][alive].min(initial=self.limit))

    @property
    def disk_was_full(self) -> bool:
        """Whether the disk has had less room than the limits that were given."""
        return bool(self._state["room"])

    def find(self, group: str, name: str) -> CachedObject | None:
        """Return an object of the cache; None if it is new."""
        known = self._objects.get((group, name))
        if known is None and os.path.lexists(self.place / "tables" / group / name):
            return self.object(group, name, None)
        return known

    @_off_main_thread
    def object(self, group: str, name: str, size: int | None) -> CachedObject:
        """Return an object of the cache; make it if it is new.

        Args:
            group: the folder of the object and its neighbours.
            name: the object's name in it.
            size: bytes; None for an object that is not new.

        Raises:
            CacheError: the cache has pieces of an object of another size, or the disk is full.
        """
        with self._changing():
            known = self._with_space(partial(self._made, group, name, size))
            if size is not None and known.table.size != size:
                folder = self.folder / "files" / group
                raise CacheError(
                    f"{folder / name}: the cache has pieces of an object of {known.table.size} bytes, and it has "
                    f"{size}: remove {folder} once nothing reads from it"
                )
            self._objects[group, name] = known
            known.table.open_in |= self._bit
        self._tell()
        return known

    def _made(self, group: str, name: str, size: int | None) -> CachedObject:
        files, tables = self._folders_of(group)
        if size is not None and tables.kind(name) is None:
            files.unlink(name)
            self._objects.pop((group, name), None)
            PieceTable.make(tables, name, self._directory, size)
        return self._load(group, name)

    def _with_space(self, make: Callable[[], T]) -> T:
        """Call a function that takes space on the disk, and evict pieces while the disk is full."""
        while True:
            try:
                return make()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                if not self._free_disk(PIECE):
                    raise CacheError(self.full_message) from error

    def _load(self, group: str, name: str) -> CachedObject:
        if (known := self._objects.get((group, name))) is not None:
            return known
        files, tables = self._folders_of(group)
        known = CachedObject(files, self.place / "files" / group / name, PieceTable(tables, name))
        if known.was_lost and known.table.taken:  # somebody removed the file, and not its table
            self._state["used"] += known.table.set_state(np.arange(len(known.table.state)), ABSENT)
        return known

    def _folders_of(self, group: str) -> tuple[Directory, Directory]:
        """Return the folders of a group's objects and tables; those of the last group stay open."""
        last, *folders = self._group
        if last != group or not all(one.status().st_nlink for one in folders):
            folders = [above.make(group, exist_ok=True) for above in (self._files, self._tables)]
            self._group = group, folders[0], folders[1]
        return folders[0], folders[1]

    @_off_main_thread
    def hold(self, parts: Parts, *, spare: int = 0, ahead: bool = False) -> tuple[Hold, Parts] | None:
        """Hold pieces, if there is room for those that are absent and for `spare` bytes more.

        Args:
            parts: the pieces.
            spare: bytes.
            ahead: whether the pieces are only expected to be needed. They may be evicted where there is no other room
                for what is needed now: so nobody waits for what others hold ahead.

        Returns:
            The hold, and the pieces that the caller now has to fetch and report to `fetched`; others of the hold may be
            under way to other threads and processes. None if there is no room: nothing is held then.
        """
        with self._changing():
            absent = _to_fetch(parts)
            needed = sum(int(np.count_nonzero(one.table.state[pieces] == ABSENT)) for one, pieces in absent) * PIECE
            words = self._word + 1
            for one, _ in parts:
                if one.table.words < words:
                    tables = self._folders_of(one.path.parent.name)[1]
                    self._with_space(partial(one.table.add_words, tables, words))
            for one, pieces in parts:
                self._need(one, pieces, ahead)
            has_room = False
            try:
                has_room = not needed or self._make_room(needed + spare, also_expected=not ahead)
            finally:
                if not has_room:
                    for one, pieces in parts:
                        self._need_no_more(one, pieces, ahead)
            if not has_room:
                return None
            for one, pieces in absent:
                self._state["used"] += one.table.set_state(pieces, self._own.number + 1)
            return Hold(self, parts, ahead), absent

    def fetched(self, one: CachedObject, pieces: Pieces, *, present: bool) -> None:
        """Report pieces that this process claimed: they are in the file now, or could not be had."""
        with self._changing():
            mine = pieces[one.table.state[pieces] == self._own.number + 1]
            if present:
                one.table.set_state(mine, PRESENT)
            else:
                self._state["used"] -= one.drop(mine)

    def learn_etag(self, one: CachedObject, etag: str, before: str | None = None) -> None:
        """Note the ETag of an object that had `before` (None for a new object), unless another process has."""
        with self._changing():
            if one.table.etag == before:
                one.table.etag = etag

    def take_over(self, hold: Hold) -> Parts | None:
        """Claim pieces of a hold that nobody fetches any more, because their process died or failed.

        Returns None if there is no room for them.
        """
        with self._changing():
            self._forget_dead()
            claims = _to_fetch(hold.parts)
            if claims and not self._make_room(sum(len(pieces) for _, pieces in claims) * PIECE):
                return None
            for one, pieces in claims:
                self._state["used"] += one.table.set_state(pieces, self._own.number + 1)
            return claims

    def keep_while_room(self, one: CachedObject) -> Kept | None:
        """Keep an object until `release_kept`, or until the result is gone; None unless all of it is there."""
        if not one.table.complete or (held := self.hold([(one, np.arange(len(one.table.state)))])) is None:
            return None
        hold, claims = held
        for _, evicted in claims:  # just now
            self.fetched(one, evicted, present=False)
        kept = Kept(hold)
        if not hold.present:
            return None
        with self._thread_lock:
            self._kept = [*(one for one in self._kept if one() is not None), weakref.ref(kept)]
        return kept

    def release_kept(self) -> None:
        """Let go of what this process keeps while there is room, as soon as nobody reads it."""
        if not self._kept:
            return
        with self._thread_lock:
            kept, self._kept = self._kept, []
        for one in kept:
            if (found := one()) is not None:
                found.hold = None

    def write_although_full(self, one: CachedObject, data: Buffer, start: int, *, ahead: bool) -> int:
        """Write to an object's file once the disk was full: evict as many bytes as that takes.

        The limit falls to what the disk holds, for all processes, until another one joins.

        Args:
            one: the object.
            data: the bytes.
            start: their offset in it.
            ahead: whether they are only expected to be needed, so that nothing goes that others expect to need.

        Returns:
            The bytes written; 0 if the disk is full, and nothing there may be evicted.
        """
        with self._changing():
            written = 0
            while not written:
                try:
                    # Nobody evicts anything meanwhile: if the disk is full, it has room for what the cache has there.
                    written = os.pwrite(one.file, data, start)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    if not self._free_disk(memoryview(data).nbytes, also_expected=not ahead):
                        break
        self._tell()
        return written

    def _free_disk(self, size: int, *, also_expected: bool = True) -> bool:
        """Take a full disk for the limit, and evict `size` bytes; return whether any could be evicted."""
        before = self.used
        if before <= self.most:  # else more was claimed than it has room for, as is known
            room = max(PIECE, sum(one.on_disk for one in self.objects()))
            if room < self.most:
                self._notices.append(
                    f"{self.folder}: the disk is full: the cache makes do with {format_size(room)} in place of "
                    f"{format_size(self.most)}"
                )
                self._state["room"] = room
        self._evict(size + self.most // _FREED_AT_ONCE)
        if also_expected and self.used == before:
            self._evict(size, also_expected=True)
        return self.used < before

    def try_again(self, size: int) -> None:
        """Raise the limit that a full disk set to `size` bytes, unless a given one is lower: it may have room now."""
        with self._changing():
            if self._state["room"]:
                self._state["room"] = max(self._state["room"], size)

    @property
    def full_message(self) -> str:
        """Return the message for a full disk where no piece of the cache can be evicted."""
        return (
            f"{self.folder}: the disk is full, and all that the cache has there is in use: free space on it, or give a "
            "folder on another disk"
        )

    def _tell(self) -> None:
        """Warn of a full disk, once."""
        if self._notices and not self._told:
            self._told = True
            warnings.warn(self._notices[0], CacheWarning, stacklevel=2)

    @_off_main_thread
    def give_back(self, parts: Parts, ahead: bool) -> None:
        """Let go of held pieces; `Hold.release` calls it."""
        if self.removed:
            return
        with self._changing():
            self._state["clock"] += 1
            for one, pieces in parts:
                free = self._need_no_more(one, pieces, ahead)
                one.table.used[free] = self._state["clock"]

    def _need(self, one: CachedObject, pieces: Pieces, ahead: bool) -> None:
        needs = self._needs.get((one.path, ahead))
        if needs is None:
            needs = self._needs[one.path, ahead] = np.zeros(len(one.table.state), np.uint16)
        needs[pieces] += 1
        one.table.bits(ahead=ahead)[self._word, pieces] |= self._bit[self._word]

    def _need_no_more(self, one: CachedObject, pieces: Pieces, ahead: bool) -> Pieces:
        """Forget one need of each piece; return those that this process needs no more."""
        needs = self._needs[one.path, ahead]
        needs[pieces] -= 1
        free: Pieces = pieces[needs[pieces] == 0]
        one.table.bits(ahead=ahead)[self._word, free] &= ~self._bit[self._word]
        return free

    def _make_room(self, size: int, *, also_expected: bool = True) -> bool:
        """Drop pieces that nobody needs until `size` bytes are free; return whether there are.

        Args:
            size: bytes.
            also_expected: whether pieces that are held ahead may go, if all others do not suffice.
        """
        if self.used + size <= self.most:
            return True
        if time.monotonic() > self._looked + _WORTH_LOOKING:
            self._forget_dead()
        most = self.most
        self._evict(self.used + size - most + most // _FREED_AT_ONCE)
        if also_expected and self.used + size > most:
            self._evict(self.used + size - most, also_expected=True)
        return self.used + size <= most

    def _evict(self, size: int, *, also_expected: bool = False) -> None:
        """Evict `size` bytes of pieces that nobody needs, or as many as there are."""
        places = list(self._places())
        if len(places) > eviction.MOST_LOOKED_AT:  # looking at all of them takes seconds: some, drawn at random, do
            random.shuffle(places)
        objects = (self._load(*place) for place in places)
        chosen = eviction.choose(objects, -(-size // PIECE), self._state["leases"], also_expected=also_expected)
        for one, pieces in chosen:
            self._state["used"] -= one.drop(pieces)

    def objects(self) -> Iterator[CachedObject]:
        """Yield all objects of the cache, also those that only other processes use."""
        for place in self._places():
            yield self._load(*place)

    def _places(self) -> Iterator[tuple[str, str]]:
        """Yield the group and the name of each object."""
        for group in self._tables.names():
            for name in self._folders_of(group)[1].names():
                yield group, name

    def _take_lease(self) -> leases.Lease:
        if (lease := leases.take(self._leases)) is None:
            raise CacheError(f"{self.folder}: {leases.MOST} processes use this cache already: give others another")
        self._lease = lease
        if leases.as_bits(self._state["leases"]) >> lease.number & 1:  # its former holder died, and nobody has seen it
            self._forget_dead(1 << lease.number)
        self._state["leases"] |= self._bit
        self._state["limits"][lease.number], self._state["room"] = self.limit, 0
        self._make_room(0)  # the limit may be lower than any before
        return lease

    @property
    def _own(self) -> leases.Lease:
        return self._lease or self._take_lease()

    @property
    def _bit(self) -> NDArray[np.uint64]:
        return leases.as_words(1 << self._own.number)

    @property
    def _word(self) -> int:
        return self._own.number // 64

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the cache's lock; with it, what other processes did and left half-done is known and mended."""
        deadline = time.monotonic() + LOCK_SECONDS
        if not self._thread_lock.acquire(timeout=LOCK_SECONDS):
            raise self._locked()
        try:
            if self._lock is None:
                self._lock = self._directory.open("lock", os.O_RDWR | os.O_CREAT)
            self._wait_for(self._lock, deadline)
            try:
                if self.removed:
                    raise self.gone(str(self.folder))
                if self._state["version"] not in (0, VERSION):
                    raise CacheError(f"{self.folder}: another version of shardio made this cache: remove it")
                unfinished, self._state["changing"] = self._state["changing"], os.getpid()
                if unfinished or self._state["version"] != VERSION:
                    self._recover()
                if self._lease is None:
                    if bytes(self._state["boot"]) != portable.boot():
                        self._recover()
                    self._take_lease()
                yield
                self._state["changing"] = 0
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        except FileNotFoundError as error:
            raise self.gone(str(error.filename or "a part of it")) from error
        except OSError as error:
            raise no_cache(self.folder, error.strerror or f"{error}") from error
        except ConfigError as error:
            raise no_part(error) from error
        finally:
            self._thread_lock.release()

    def _wait_for(self, lock: int, deadline: float) -> None:
        """Take the lock that processes share."""
        nap = 0.0001
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._locked() from None
            time.sleep(nap)
            nap = min(_LONGEST_NAP, 1.5 * nap)

    def gone(self, what: str) -> CacheError:
        """Return the error for a part of the cache that somebody removed."""
        return CacheError(f"{what} was removed while the cache in {self.folder} was in use: open the dataset anew")

    def _locked(self) -> CacheError:
        holder = int(self._state["changing"])
        return CacheError(
            f"{self.folder}: process {holder or '(unknown)'} has kept the cache locked for {LOCK_SECONDS:.0f} s: if it "
            f"was stopped, have it go on (kill -CONT {holder or 'PID'}), or end it"
        )

    def _recover(self) -> None:
        """Count anew what is there, because a process was killed, or failed, in a change, or the machine stopped."""
        self._state["version"] = VERSION
        if doubt := bytes(self._state["boot"]) != portable.boot():
            self._state["leases"] = 0
        used = 0
        for group, name in list(self._places()):
            try:
                one = self._load(group, name)
            except ConfigError:  # a link
                raise
            except ValueError:  # a machine that stopped has not written the table
                for folder in self._folders_of(group):
                    folder.unlink(name)
                continue
            if doubt:
                one.table.mark_suspect()
            used += one.table.recount()
            one.drop(np.flatnonzero(one.table.state == ABSENT))
        self._state["used"] = used
        self._forget_dead()
        self._state["boot"] = portable.boot()

    def _forget_dead(self, dead: int = 0) -> None:
        """Forget what processes that have died needed, and drop what they were fetching.

        Args:
            dead: leases whose former holders are dead, as bits; looks for those if 0.
        """
        if not dead:
            self._looked = time.monotonic()
            dead = leases.as_bits(self._state["leases"]) & ~leases.held(self._leases)
        if not dead:
            return
        alive = ~leases.as_words(dead)
        fetching = np.zeros(PRESENT + 1, np.bool_)
        fetching[[number + 1 for number in range(leases.MOST) if dead >> number & 1]] = True
        for one in self.objects():
            one.table.keep_only(alive)
            if one.table.taken:
                self._state["used"] -= one.drop(np.flatnonzero(fetching[one.table.state]))
        self._state["leases"] &= alive  # last: a process that is killed meanwhile leaves them to be buried again


_opened: dict[Path, NodeCache] = {}


def _to_fetch(parts: Parts) -> Parts:
    """Return the pieces that are not there, or may not be, without those that somebody fetches."""
    found = [(one, pieces[np.isin(one.table.state[pieces], (ABSENT, SUSPECT))]) for one, pieces in parts]
    return [(one, pieces) for one, pieces in found if len(pieces)]
