"""The cache of a node: pieces of objects in a folder of bounded size, which all processes of the node share.

There is no server. The processes map the tables of pieces, and change them under one lock, which the kernel releases if
its holder dies. A piece that a process fetches, or needs for what it is about to read, bears the bit of that process's
lease, so nobody drops it; the bits of processes that have died count for nothing.

    FOLDER/lock             locked while anything changes
    FOLDER/state            what the processes share: bytes taken, limits, a clock
    FOLDER/leases/N         locked by process number N as long as it lives
    FOLDER/tables/GROUP/NAME  the states of an object's pieces
    FOLDER/files/GROUP/NAME   the object, with holes where pieces are absent
"""

import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import CacheError
from ..system import holes
from . import leases
from .pieces import PIECE, runs
from .table import ABSENT, PRESENT, PieceTable

VERSION = 1
_STATE = np.dtype(
    [("version", "<i8"), ("changing", "<i8"), ("clock", "<i8"), ("used", "<i8"), ("leases", "<u8"),
     ("limits", "<i8", leases.MOST)]
)  # fmt: skip
_FREED_AT_ONCE = 64  # of the limit: looking for what to drop takes longer than dropping it
_WORTH_LOOKING = 0.5  # seconds after which processes may have died unnoticed

Pieces: TypeAlias = NDArray[np.int64]


@final
class CachedObject:
    """An object of which the cache has pieces.

    Attributes:
        path: the file that has the present pieces in their places, and zeros elsewhere. It is as large as the object.
        table: the states of the pieces.
        file: the file's descriptor.
    """

    def __init__(self, path: Path, table: PieceTable) -> None:
        self.path, self.table = path, table
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, self.file)
        if os.fstat(self.file).st_size != table.size:
            os.ftruncate(self.file, table.size)

    def drop(self, pieces: Pieces) -> int:
        """Make pieces absent; return the bytes that this frees."""
        freed = -self.table.set_state(pieces, ABSENT)
        for first, stop in runs(pieces, len(self.table.state)):
            holes.punch(self.file, first * PIECE, (stop - first) * PIECE)
        return freed


Parts: TypeAlias = Sequence[tuple[CachedObject, Pieces]]
"""Pieces of objects: each object once, with ascending numbers."""


@final
class Hold:
    """Pieces that nobody drops until `release`, or until the process ends.

    Attributes:
        parts: the objects and their pieces.
    """

    def __init__(self, cache: "NodeCache", parts: Parts) -> None:
        self._cache, self.parts = cache, parts

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
        parts, self.parts = self.parts, ()
        if parts:
            self._cache.give_back(parts)


@final
class NodeCache:
    """Pieces of objects in a folder, `limit` bytes at most.

    Threads may share it; a forked process has a lease of its own, and holds nothing at first.

    Args:
        folder: the folder, which is made if there is none. All processes that use it share what is in it.
        limit: the most bytes of pieces. Where processes differ, the smallest limit of those alive holds for all.

    Raises:
        CacheError: the folder belongs to another version, too many processes use it, or its file system cannot free
            parts of files.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder.absolute(), limit
        for name in ("leases", "tables", "files"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not holes.are_possible(self.folder):
            raise CacheError(f"{folder}: its file system cannot free parts of files: choose a folder on another disk")
        self._begin()
        with self._changing():
            pass  # takes a lease, and mends what a killed process left

    def _begin(self) -> None:
        """Open what each process has to open for itself."""
        self._pid, self._thread_lock = os.getpid(), threading.Lock()
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        descriptor = os.open(self.folder / "state", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._state = np.frombuffer(mmap.mmap(descriptor, mmap.PAGESIZE), _STATE, 1)[0]
        os.close(descriptor)
        self._lease: leases.Lease | None = None
        self._needs: dict[Path, NDArray[np.uint16]] = {}  # by object, how many holds of this process each piece is in
        self._objects: dict[Path, CachedObject] = {}
        self._looked = 0.0

    def __getstate__(self) -> tuple[Path, int]:
        return self.folder, self.limit

    def __setstate__(self, state: tuple[Path, int]) -> None:
        NodeCache.__init__(self, *state)

    @property
    def used(self) -> int:
        """Bytes of the pieces that are present or being fetched."""
        return int(self._state["used"])

    @property
    def most(self) -> int:
        """The limit that holds now: the smallest of those of the processes that use the cache."""
        alive = int(self._state["leases"])
        limits = [int(limit) for number, limit in enumerate(self._state["limits"]) if alive >> number & 1]
        return min([self.limit, *limits])

    def object(self, group: str, name: str, size: int) -> CachedObject:
        """Return an object of the cache, which is made if it is new.

        Args:
            group: the folder of the object and its neighbours.
            name: the object's name in it.
            size: bytes.

        Raises:
            CacheError: the cache has pieces of an object of another size.
        """
        with self._changing():
            path = self.folder / "files" / group / name
            if (known := self._objects.get(path)) is None:
                table = self.folder / "tables" / group / name
                for place in (path, table):
                    place.parent.mkdir(exist_ok=True)
                known = CachedObject(path, PieceTable(table, size))
            if known.table.size != size:
                raise CacheError(
                    f"{path}: the cache has pieces of an object of {known.table.size} bytes, and it has {size}: "
                    f"remove {path.parent} once nothing reads from it"
                )
            self._objects[path] = known
            known.table.open_in |= self._bit
            return known

    def find(self, group: str, name: str) -> CachedObject | None:
        """Return an object of the cache; None if it is new."""
        path = self.folder / "files" / group / name
        known = self._objects.get(path)
        if known is None and (table := self.folder / "tables" / group / name).exists():
            with self._changing():
                known = self._objects.setdefault(path, CachedObject(path, PieceTable(table)))
                known.table.open_in |= self._bit
        return known

    def hold(self, parts: Parts, *, spare: int = 0) -> tuple[Hold, Parts] | None:
        """Hold pieces, if there is room for those that are absent and for `spare` bytes more.

        Returns:
            The hold, and the pieces that the caller now has to fetch and report to `fetched`; others of the hold may be
            under way to other threads and processes. None if there is no room: nothing is held then.

        Raises:
            CacheError: there never will be room.
        """
        with self._changing():
            absent = [(one, pieces[one.table.state[pieces] == ABSENT]) for one, pieces in parts]
            needed = sum(len(pieces) for _, pieces in absent) * PIECE
            for one, pieces in parts:
                self._need(one, pieces)
            if needed and not self._make_room(needed + spare):
                for one, pieces in parts:
                    self._need_no_more(one, pieces)
                return None
            claims = [(one, pieces) for one, pieces in absent if len(pieces)]
            for one, pieces in claims:
                self._state["used"] += one.table.set_state(pieces, self._own.number + 1)
        return Hold(self, parts), claims

    def fetched(self, one: CachedObject, pieces: Pieces, *, present: bool) -> None:
        """Report pieces that this process claimed: they are in the file now, or could not be had."""
        with self._changing():
            mine = pieces[one.table.state[pieces] == self._own.number + 1]
            if present:
                one.table.set_state(mine, PRESENT)
            else:
                self._state["used"] -= one.drop(mine)

    def learn_etag(self, one: CachedObject, etag: str) -> None:
        """Note the ETag of an object that was made without one, unless another process has."""
        with self._changing():
            if one.table.etag is None:
                one.table.etag = etag

    def take_over(self, hold: Hold) -> Parts:
        """Claim pieces of a hold that nobody fetches any more, because their process died or failed."""
        with self._changing():
            self._bury()
            absent = [(one, pieces[one.table.state[pieces] == ABSENT]) for one, pieces in hold.parts]
            claims = [(one, pieces) for one, pieces in absent if len(pieces)]
            if not self._make_room(sum(len(pieces) for _, pieces in claims) * PIECE):
                return []
            for one, pieces in claims:
                self._state["used"] += one.table.set_state(pieces, self._own.number + 1)
            return claims

    def give_back(self, parts: Parts) -> None:
        """Let go of held pieces; `Hold.release` calls it."""
        if self._pid != os.getpid():
            return  # the parent's
        with self._changing():
            self._state["clock"] += 1
            for one, pieces in parts:
                free = self._need_no_more(one, pieces)
                one.table.used[free] = self._state["clock"]

    def _need(self, one: CachedObject, pieces: Pieces) -> None:
        needs = self._needs.get(one.path)
        if needs is None:
            needs = self._needs[one.path] = np.zeros(len(one.table.state), np.uint16)
        needs[pieces] += 1
        one.table.holders[pieces] |= self._bit

    def _need_no_more(self, one: CachedObject, pieces: Pieces) -> Pieces:
        """Forget one need of each piece; return those that this process needs no more."""
        needs = self._needs[one.path]
        needs[pieces] -= 1
        free: Pieces = pieces[needs[pieces] == 0]
        one.table.holders[free] &= ~self._bit
        return free

    def _make_room(self, size: int) -> bool:
        """Drop pieces that nobody needs until `size` bytes are free; return whether there are."""
        most = self.most
        if self.used + size <= most:
            return True
        if time.monotonic() > self._looked + _WORTH_LOOKING:
            self._bury()
        self._drop(self.used + size - most + most // _FREED_AT_ONCE)
        return self.used + size <= most

    def _drop(self, size: int) -> None:
        """Drop `size` bytes of pieces that nobody needs, or as many as there are.

        Pieces that were used last go first: an epoch needs each once, so what was just read is needed last of all.
        Those of objects that nobody has open go before them, the oldest first.
        """
        alive = self._state["leases"]
        found: list[tuple[CachedObject, Pieces, NDArray[np.int64]]] = []
        for one in self.objects():
            table = one.table
            if table.taken:
                free = np.flatnonzero((table.state == PRESENT) & (table.holders & alive == 0))
                idle = table.open_in & alive == 0
                used = table.used[free].astype(np.int64)
                found.append((one, free, used - (1 << 40) if idle else -used))
        if not found:
            return
        order = np.argsort(np.concatenate([rank for _, _, rank in found]), kind="stable")
        chosen = np.zeros(len(order), np.bool_)
        chosen[order[: -(-size // PIECE)]] = True
        begin = 0
        for one, free, _ in found:
            self._state["used"] -= one.drop(free[chosen[begin : begin + len(free)]])
            begin += len(free)

    def objects(self) -> Iterator[CachedObject]:
        """Yield all objects of the cache, also those that only other processes use."""
        for group in os.listdir(self.folder / "tables"):
            for name in os.listdir(self.folder / "tables" / group):
                path = self.folder / "files" / group / name
                yield self._objects.get(path) or CachedObject(path, PieceTable(self.folder / "tables" / group / name))

    @property
    def _own(self) -> leases.Lease:
        if self._lease is None:
            self._lease = leases.take(self.folder / "leases")
            if self._lease is None:
                raise CacheError(f"{self.folder}: {leases.MOST} processes use this cache already: give others another")
            self._bury(1 << self._lease.number)
            self._state["leases"] |= self._bit
            self._state["limits"][self._lease.number] = self.limit
        return self._lease

    @property
    def _bit(self) -> np.uint64:
        return np.uint64(1 << self._own.number)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the cache's lock; with it, what other processes did and left half-done is known and mended."""
        if self._pid != os.getpid():  # after a fork
            os.close(self._lock)
            self._begin()
        with self._thread_lock:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                if self._state["changing"] or self._state["version"] != VERSION:
                    self._recover()
                self._state["changing"] = 1
                _ = self._own
                yield
                self._state["changing"] = 0
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _recover(self) -> None:
        """Count anew what is there, because a process was killed, or failed, in the middle of a change."""
        if self._state["version"] not in (0, VERSION):
            raise CacheError(f"{self.folder}: another version of shardio made this cache: remove it, or give another")
        self._state["version"] = VERSION
        used = 0
        for one in self.objects():
            used += one.table.recount()
            one.drop(np.flatnonzero(one.table.state == ABSENT))
        self._state["used"] = used
        self._bury()

    def _bury(self, dead: int = 0) -> None:
        """Forget what processes that have died needed, and drop what they were fetching.

        Args:
            dead: leases whose former holders are dead, as bits; looks for those if 0.
        """
        if not dead:
            self._looked = time.monotonic()
            dead = int(self._state["leases"]) & ~leases.held(self.folder / "leases")
            self._state["leases"] &= np.uint64(~dead & 0xFFFF_FFFF_FFFF_FFFF)
        if not dead:
            return
        alive = np.uint64(~dead & 0xFFFF_FFFF_FFFF_FFFF)
        fetching = np.zeros(256, np.bool_)
        fetching[[number + 1 for number in range(leases.MOST) if dead >> number & 1]] = True
        for one in self.objects():
            one.table.open_in &= alive
            if one.table.taken:
                one.table.holders &= alive
                self._state["used"] -= one.drop(np.flatnonzero(fetching[one.table.state]))
