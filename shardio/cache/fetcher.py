"""Pieces of objects fetched from their stores into the cache of the node, on threads: ahead of time, or when needed."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import add, attrgetter, sub
from typing import TypeAlias, final

import numpy as np

from ..errors import AccessDenied, CacheError, Message, ObjectChanged, ObjectNotFound, StoreError, StoreUnavailable
from ..format.pieces import PIECE, runs
from ..stores.base import Content, Store
from ..system import at_exit, background, forks
from ..system.timing import stage_within
from ..system.types import Buffer
from ..system.units import format_size
from .cached_object import CachedObject, Parts, Pieces
from .combined import CombinedObjects
from .node_cache import FULL, Hold, NodeCache
from .pace import Pace
from .private_folder import no_cache

REQUESTS = 32  # at once and process, for pieces that are fetched ahead; as many more for those that are waited for
TRIES = 3  # for pieces whose checksums differ
FULL_SECONDS = 30.0
"""Seconds to wait for room on a full disk, where the cache has nothing to evict."""

_FULL_NAPS = 0.02, 1.0  # seconds, the first and the longest: what was fetched in vain is fetched again

FREE_SHARE = 0.25
"""The share of a cache that what is fetched ahead leaves to what is needed now."""

PATIENCE = 300.0  # seconds to wait for room in the cache, or for pieces that others fetch
_LONGEST_NAP = 0.02
_LOOK_SECONDS = 0.5


@final
@dataclass(frozen=True, slots=True, eq=False)
class RemoteFile:
    """An object in a store, and its place in a cache.

    Attributes:
        store: the store.
        name: the object's name in it.
        cached: what the cache has of it.
        is_whole: returns whether a piece, given by its number and its bytes, is what was written, or None if it has no
            checksum; None if no piece has one.
        combined: the objects that are one in the cache; their pieces have no checksums. None for one object.
    """

    store: Store
    name: str
    cached: CachedObject
    is_whole: Callable[[int, memoryview], bool | None] | None = None
    combined: CombinedObjects | None = None

    def runs(self, pieces: Pieces, longest: int) -> list[tuple[int, int]]:
        """Return runs of adjacent pieces that come in one request each, as (first, stop)."""
        return runs(pieces, longest) if self.combined is None else self.combined.runs(pieces, longest)

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the offsets in the cache's file at which adjacent pieces of one run begin and end."""
        start = first * PIECE
        if self.combined is None:
            return start, min(stop * PIECE, self.cached.table.size)
        _, begin, end = self.combined.place(first, stop)
        return start, start + end - begin


@final
class _NoRoom(CacheError):
    """The disk is full, and nothing of the cache may be evicted for what was fetched."""


Wanted: TypeAlias = Sequence[tuple[RemoteFile, Pieces]]
"""Pieces of objects: each object once, with ascending numbers."""


@dataclass(frozen=True, slots=True)
class FetchCounts:
    """The bytes that came from stores into the cache, and their requests, added up over the threads of a process.

    Attributes:
        bytes: bytes fetched.
        requests: the requests that they came in; those that were tried again count once.
        retries: tries after the first one of each request, those for sizes and manifests included.
        wait_seconds: seconds that threads waited for what they needed.
    """

    bytes: int = 0
    requests: int = 0
    retries: int = 0
    wait_seconds: float = 0.0

    def __add__(self, other: "FetchCounts") -> "FetchCounts":
        return FetchCounts(*map(add, _values(self), _values(other)))

    def __sub__(self, other: "FetchCounts") -> "FetchCounts":
        return FetchCounts(*map(sub, _values(self), _values(other)))


_values = attrgetter("bytes", "requests", "retries", "wait_seconds")


@final
class Fetcher:
    """Brings pieces into a cache. Threads may share it; a forked process has threads of its own.

    Args:
        cache: the cache.
        requests: the most requests at once for pieces that are fetched ahead.

    Attributes:
        counts: what was fetched until now.
    """

    def __init__(self, cache: NodeCache, requests: int = REQUESTS) -> None:
        self.cache, self._requests = cache, requests
        self.counts = FetchCounts()
        self.reset_in_child()
        forks.reset_in_children(self)
        at_exit.close_at_exit(self)

    def __reduce__(self) -> tuple[type["Fetcher"], tuple[NodeCache, int]]:
        return Fetcher, (self.cache, self._requests)

    def reset_in_child(self) -> None:
        """Begin without threads."""
        self._pace = Pace()
        self._kept: list[Hold] = []
        # What is needed waits for nothing; what is fetched ahead leaves it the network.
        self._ahead = _Team(self._requests, lambda: self._pace.bytes_under_way)
        self._needed = _Team(self._requests, lambda: math.inf)
        self._count_lock = threading.Lock()

    def fetch(self, wanted: Wanted) -> Hold:
        """Hold pieces, and wait until all of them are there.

        Raises:
            CacheError: the cache is too small for them, or has had no room for too long.
            StoreError: a piece cannot be had.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._fetch_all(wanted)
        return background.call(partial(self._fetch_for_main_thread, wanted))

    def at_exit(self) -> None:
        """Begin no more requests."""
        for team in (self._ahead, self._needed):
            team.end()

    def _fetch_for_main_thread(self, wanted: Wanted) -> Hold:
        hold = self._fetch_all(wanted)
        hold.release_when_gone()  # an interrupt may end the wait for it
        return hold

    def _fetch_all(self, wanted: Wanted) -> Hold:
        begun, (nap, longest) = time.monotonic(), _FULL_NAPS
        while True:
            hold, claims = self._make_hold(wanted, begun)
            try:
                if hold.present:
                    return hold
                if self._complete(hold, wanted, claims, begun):
                    self._count(FetchCounts(wait_seconds=time.monotonic() - begun))
                    return hold
            except _NoRoom:
                if time.monotonic() > begun + FULL_SECONDS:
                    hold.release()
                    raise
            except BaseException:
                hold.release()
                raise
            hold.release()  # readers that each hold a part of what they need would wait for each other
            time.sleep(nap)
            nap = min(longest, 2 * nap)

    def prefetch(self, wanted: Wanted, spare: int) -> Hold | None:
        """Have pieces fetched that are absent, without waiting for them, and keep them until they are read.

        Args:
            wanted: the pieces.
            spare: bytes that are to stay free for those that are needed now, which may also evict these.

        Returns:
            None if there is no room.
        """
        held = self.cache.hold([(file.cached, pieces) for file, pieces in wanted], spare=spare, ahead=True)
        if held is None:
            return None
        hold, claims = held
        self._start(self._ahead, wanted, claims)
        return hold

    def keep(self, wanted: Wanted) -> Hold:
        """Like `fetch`, for pieces that are not let go of before long: indexes."""
        hold = self.fetch(wanted)
        self._kept = [*(one for one in self._kept if one.parts), hold]
        return hold

    def refetch(self, wanted: Wanted) -> bool:
        """Fetch pieces once more, and replace those that are not as the cache has them; none whose checksum is right.

        Returns:
            Whether there were any.

        Raises:
            CacheError, StoreError: as `fetch` does.
        """
        differ = False
        with self.fetch(wanted):
            for file, pieces in wanted:
                doubtful = pieces[[not _is_there(file, number, number + 1) for number in pieces.tolist()]]
                for first, stop in file.runs(doubtful, self._pace.longest_run):
                    data = self._read(file, first, stop)
                    if _in_cache(file, first, stop) != memoryview(data):
                        self._write(file.cached, data, first * PIECE, ahead=False)
                        differ = True
        return differ

    def _make_hold(self, wanted: Wanted, begun: float) -> tuple[Hold, Parts]:
        parts = [(file.cached, pieces) for file, pieces in wanted]
        needed = sum(len(pieces) for _, pieces in parts) * PIECE
        while (held := self.cache.hold(parts)) is None:
            self.cache.release_kept()
            kept = sum(hold.bytes for hold in self._kept)
            if needed + kept > self.cache.most:
                self.cache.try_again(needed + kept)
            too_small = needed + kept > (most := self.cache.most)
            if too_small or time.monotonic() > begun + PATIENCE:
                raise CacheError(
                    "{}: {} are needed at once, beside {} of indexes, and the cache holds {}{}: {}",
                    self.cache.folder,
                    format_size(needed),
                    format_size(kept),
                    format_size(most),
                    "" if too_small else f", in use for {PATIENCE:.0f} s",
                    self._remedy(2 * (needed + (kept if too_small else most))),
                )
            time.sleep(_LONGEST_NAP)
        return held

    def _remedy(self, size: int) -> str:
        """Return the message for a cache that is too small, where `size` bytes would be enough."""
        if self.cache.disk_was_full:
            return f"its disk is full: free space on it, or give a folder on a disk with {format_size(size)}"
        if self.cache.most < self.cache.limit:
            return Message(
                "another process gave a smaller {cache_size} than the {} of this one: give at least {} in all of "
                "them, or another folder",
                format_size(self.cache.limit),
                format_size(size),
            )
        return Message("give a {cache_size} of at least {}", format_size(size))

    def _complete(self, hold: Hold, wanted: Wanted, claims: Parts, begun: float) -> bool:
        """Fetch the pieces claimed, and wait for those that others fetch; return False if there is no room any more."""
        pending = self._start(self._needed, wanted, claims)
        nap, look = 0.0005, time.monotonic() + _LOOK_SECONDS
        while not hold.present:
            if pending:
                pending.popleft().wait()
                continue
            time.sleep(nap)
            nap = min(_LONGEST_NAP, 1.5 * nap)
            if time.monotonic() > look:  # whoever fetches may have died, or failed
                look = time.monotonic() + _LOOK_SECONDS
                if (others := self.cache.take_over(hold)) is None:
                    return False
                pending = self._start(self._needed, wanted, others)
                if not pending and time.monotonic() > begun + PATIENCE:
                    raise CacheError(f"{self.cache.folder}: pieces that others fetch have not come in {PATIENCE:.0f} s")
        return True

    def _start(self, team: "_Team", wanted: Wanted, claims: Parts) -> deque[background.Call]:
        """Have claimed pieces fetched; return the calls that do it."""
        files, calls = {id(file.cached): file for file, _ in wanted}, deque[background.Call]()
        for cached, pieces in claims:
            file = files[id(cached)]
            for first, stop in file.runs(pieces, self._pace.longest_run):
                fetch = partial(self._fetch_run, file, first, stop, ahead=team is self._ahead)
                calls.append(background.Call(fetch))
                team.submit(calls[-1].run, (stop - first) * PIECE)
        return calls

    def _fetch_run(self, file: RemoteFile, first: int, stop: int, *, ahead: bool) -> None:
        """Fetch adjacent pieces, which this process has claimed."""
        cached, pieces, present = file.cached, np.arange(first, stop), False
        try:
            if present := cached.table.suspect and _is_there(file, first, stop):
                return
            if ahead and self.cache.used > self.cache.most:  # the room has become less since they were claimed
                raise _NoRoom(self.cache.full_message)
            self._write(cached, self._read(file, first, stop), first * PIECE, ahead=ahead)
            present = True
        finally:
            self.cache.fetched(cached, pieces, present=present)

    def _read(self, file: RemoteFile, first: int, stop: int) -> Buffer:
        """Read adjacent pieces from the store; StoreError if they are not what was written."""
        if file.combined is not None:
            return self._read_combined(file, file.combined, first, stop)
        start, end = file.span(first, stop)
        wrong = 0
        for _ in range(TRIES):
            asked = time.monotonic()
            try:
                content = file.store.read(file.name, start, end, etag=file.cached.table.etag)
                self._pace.answered(len(content.data), time.monotonic() - asked)
                self._check(file, content.info.size, content.info.etag, len(content.data), start, end)
            except ObjectChanged as changed:
                content = self._read_changed(file, first, stop, changed)
            verdicts = list(_verdicts(file, memoryview(content.data), first, stop))
            if False not in verdicts:
                self._count(FetchCounts(end - start, 1))
                return content.data
            wrong = first + verdicts.index(False)
        raise StoreError(
            f"{file.store.url}/{file.name}: bytes {wrong * PIECE} to {min((wrong + 1) * PIECE, end) - 1} "
            f"are not those that were written: their checksum differs (tried {TRIES} times)"
        )

    def _read_combined(self, file: RemoteFile, combined: CombinedObjects, first: int, stop: int) -> Buffer:
        """Read adjacent pieces of one of several objects; raise what its `check` raises if it is another one."""
        number, start, end = combined.place(first, stop)
        name, asked = combined.name(number), time.monotonic()
        try:
            content = file.store.read(name, start, end)
        except (StoreUnavailable, AccessDenied):
            raise
        except ObjectNotFound:
            combined.check(number, None)
            raise
        except StoreError:  # as of bytes that are no more there
            combined.check(number, file.store.info(name))
            raise
        self._pace.answered(len(content.data), time.monotonic() - asked)
        combined.check(number, content.info)
        if len(content.data) != end - start:
            raise StoreError(
                f"{file.store.url}/{name}: bytes {start} to {end - 1} were asked for, {len(content.data)} bytes came"
            )
        self._count(FetchCounts(end - start, 1))
        return content.data

    def _read_changed(self, file: RemoteFile, first: int, stop: int, changed: ObjectChanged) -> Content:
        """Read pieces of an object that was touched or copied; raise `changed` unless their checksums are the same."""
        (start, end), before = file.span(first, stop), file.cached.table.etag
        if file.is_whole is None or before is None:
            raise changed
        content = file.store.read(file.name, start, end)
        same = content.info.size == file.cached.table.size and len(content.data) == end - start
        if not same or not all(_verdicts(file, memoryview(content.data), first, stop)):
            raise changed
        if content.info.etag is not None:
            self.cache.learn_etag(file.cached, content.info.etag, before)
        return content

    def _write(self, cached: CachedObject, data: Buffer, start: int, *, ahead: bool) -> None:
        left = memoryview(data)
        while left:
            try:
                written = os.pwrite(cached.file, left, start)
            except OSError as error:
                if error.errno not in FULL:
                    raise no_cache(self.cache.folder, error.strerror or f"{error}") from error
                if not (written := self.cache.write_although_full(cached, left, start, ahead=ahead)):
                    raise _NoRoom(self.cache.full_message) from error
            left, start = left[written:], start + written

    def _check(self, file: RemoteFile, size: int, etag: str | None, got: int, start: int, end: int) -> None:
        """Raise ObjectChanged unless an answer belongs to the object that the cache has."""
        place, table = f"{file.store.url}/{file.name}", file.cached.table
        if size != table.size:
            raise ObjectChanged(f"{place}: has {size} bytes, and had {table.size}: it was replaced")
        if table.etag is None and etag is not None:
            self.cache.learn_etag(file.cached, etag)
        if etag != table.etag:
            raise ObjectChanged(f"{place}: has the ETag {etag}, and had {table.etag}: it was replaced")
        if got != end - start:
            raise StoreError(f"{place}: bytes {start} to {end - 1} were asked for, {got} bytes came")

    def _count(self, more: FetchCounts) -> None:
        with self._count_lock:
            self.counts += more


def _verdicts(file: RemoteFile, data: memoryview, first: int, stop: int) -> Iterator[bool | None]:
    """Yield of adjacent pieces whether each has the bytes that were written; None of one without a checksum."""
    for number in range(first, stop):
        begin = (number - first) * PIECE
        yield None if file.is_whole is None else file.is_whole(number, data[begin : begin + PIECE])


def _in_cache(file: RemoteFile, first: int, stop: int) -> memoryview:
    """Return the bytes that the cache's file holds for adjacent pieces."""
    start, end = file.span(first, stop)
    return memoryview(os.pread(file.cached.file, end - start, start))


def _is_there(file: RemoteFile, first: int, stop: int) -> bool:
    """Return whether the cache has the pieces all the same, by their checksums."""
    return file.is_whole is not None and all(_verdicts(file, _in_cache(file, first, stop), first, stop))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ReadSet:
    """The pieces that a read of one dataset needs in its cache.

    Attributes:
        fetcher: brings it there.
        keep: returns what keeps all of it there, without waiting for anything; None if some of it is absent.
        wanted: returns the pieces of it, or with True those to fetch ahead of time, which may be more. It may wait, and
            holds nothing afterwards.
    """

    fetcher: Fetcher
    keep: Callable[[], list[Hold] | None]
    wanted: Callable[[bool], Wanted]


@contextmanager
def fetching(read_sets: Sequence[ReadSet]) -> Iterator[None]:
    """Return a `with` block that has what a read of several datasets needs in their caches.

    Readers never wait for each other: each cache holds for a read all or nothing, and whoever holds pieces of one waits
    only for caches whose folders come later by name.

    Raises what `Fetcher.fetch` raises.
    """
    with ExitStack() as holds:
        with stage_within("fetch"):
            if (kept := _kept(read_sets)) is None:  # noqa: F841  # what is kept is kept until the end
                for fetcher, wanted in _by_cache(read_sets):
                    holds.enter_context(fetcher.fetch(wanted))
        yield


def prefetch(read_sets: Sequence[ReadSet]) -> list[Hold] | None:
    """Have what a read needs fetched, without waiting for it, and return what keeps it until the read.

    None if it would not leave `FREE_SHARE` of a cache free.
    """
    holds = list[Hold]()
    for fetcher, wanted in _by_cache(read_sets, ahead=True) if _kept(read_sets) is None else ():
        if (hold := fetcher.prefetch(wanted, round(FREE_SHARE * fetcher.cache.most))) is None:
            for held in holds:
                held.release()
            return None
        holds.append(hold)
    return holds


def _kept(read_sets: Sequence[ReadSet]) -> list[Hold] | None:
    """Return what keeps all that a read needs; None, and nothing is kept, if some of it is absent."""
    kept = list[Hold]()
    for one in read_sets:
        if (more := one.keep()) is None:
            return None
        kept += more
    return kept


def _by_cache(read_sets: Sequence[ReadSet], *, ahead: bool = False) -> list[tuple[Fetcher, Wanted]]:
    """Return the pieces that a read needs of each cache, in an order that all processes of the node share."""
    caches: dict[NodeCache, tuple[Fetcher, dict[CachedObject, tuple[RemoteFile, Pieces]]]] = {}
    for one in read_sets:
        _, files = caches.setdefault(one.fetcher.cache, (one.fetcher, {}))
        for file, pieces in one.wanted(ahead):
            known = files.get(file.cached)
            files[file.cached] = (file, pieces) if known is None else (known[0], np.union1d(known[1], pieces))
    order = sorted(caches, key=lambda cache: cache.folder)
    return [(fetcher, [*files.values()]) for fetcher, files in map(caches.__getitem__, order) if files]


@final
class _Team:
    """Threads that run calls in the order of `submit`, `most` at once, and no more than some bytes of them.

    Args:
        most: the most threads.
        under_way: returns how many bytes may be under way at once; one call always may.
    """

    def __init__(self, most: int, under_way: Callable[[], float]) -> None:
        self._most, self._under_way = most, under_way
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._lock, self._running, self._bytes, self._ended = threading.Lock(), 0, 0, False

    def end(self) -> None:
        """Begin no more calls."""
        self._ended = True

    def submit(self, call: Callable[[], None], size: int) -> None:
        """Have a call run, which moves `size` bytes."""
        with self._lock:
            self._waiting.append((call, size))
        self._start()

    def _start(self) -> None:
        """Start threads for the calls that may begin."""
        while (found := self._next()) is not None:
            background.start(partial(self._work, *found), "shardio fetch")

    def _next(self) -> tuple[Callable[[], None], int] | None:
        """Return the next call, which counts as running from now on; None if it may not begin yet."""
        most = self._under_way()
        with self._lock:
            full = self._running == self._most or (self._running and self._bytes >= most)
            if self._ended or full or not self._waiting:
                return None
            self._running += 1
            self._bytes += self._waiting[0][1]
            return self._waiting.popleft()

    def _work(self, call: Callable[[], None], size: int) -> None:
        while True:
            call()
            with self._lock:
                self._running -= 1
                self._bytes -= size
            following = self._next()
            self._start()  # more may be allowed by now
            if following is None:
                return
            call, size = following
