"""The shards of a dataset in a store: opened in the cache of the node, which fetches what is read of them."""

import hashlib
import io
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import containers, native
from ..cache.fetcher import FetchCounts, Fetcher, RemoteFile, Wanted
from ..cache.node_cache import CachedObject, Hold, Kept
from ..cache.pieces import PIECE, piece_count, pieces_of, widened_up_to
from ..containers import piece_sums, row_locator, side_index
from ..containers.base import Reader
from ..errors import CacheWarning, Message, ObjectNotFound, ShardCorrupt
from ..format import manifest
from ..format.fields import Field
from ..stores.base import Store
from ..stores.retrying import RetryingStore
from ..stores.url import Url
from ..system import background, forks, processes
from ..system.types import Rows
from ..system.units import format_size
from . import reader_cache
from .remote_sums import RemoteSums

FREE_SHARE = 0.25
"""The share of the cache that what is fetched ahead leaves to what is needed now."""

_DESCRIPTORS = 8  # of an open shard with its index and its checksums
UNIT = 16  # pieces that are fetched together where that costs little
WIDER = 2.0  # times as many pieces, at most


@final
class _Shard:
    """An open shard.

    Attributes:
        reader: reads the file in the cache.
        file: the shard in the store.
        by_spans: whether rows need only the pieces that they are in, not the whole file.
        kept: keeps all of the shard in the cache as long as the shard is open and there is room for it.
    """

    def __init__(self, reader: Reader, file: RemoteFile, by_spans: bool) -> None:
        self.reader, self.file, self.by_spans = reader, file, by_spans
        self.kept: Kept | None = None

    def stays(self, hold: Hold) -> None:
        """Have pieces stay in the cache until nobody has the reader any more."""
        background.call_when_gone(self.reader, hold.release)


@final
@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a shard.

    Attributes:
        shard: the shard itself.
        companions: its index, if it has one.
        sums: the checksums of the pieces of all of them, if the dataset has any.
    """

    shard: RemoteFile
    companions: Sequence[RemoteFile]
    sums: RemoteSums | None

    def needed_first(self) -> Wanted:
        """Return what opening the shard needs: the table of checksums first, which the other pieces wait for."""
        has_table = self.sums is not None and not self.sums.missing
        wanted = [*([self.sums.file] if self.sums is not None and has_table else []), *self.companions]
        begin = [(self.shard, np.arange(1))] if has_table and not self.companions else []
        return [*map(_whole, wanted), *begin]


@final
class RemoteShards:
    """Keeps the most recently used shards of a store open, in place of `ReaderCache`.

    The indexes of open shards, and what else their readers look at all the time, stay in the cache; the rest is held
    only while it is read.

    Args:
        described: the dataset.
        url: its place in the store.
        fields: its fields, with hidden columns.
        store: the store.
        fetcher: brings pieces into the cache.
    """

    def __init__(
        self, described: manifest.Manifest, url: Url, fields: Mapping[str, Field], store: Store, fetcher: Fetcher
    ) -> None:
        self._described, self._url, self._fields = described, url, dict(fields)
        self._store, self._fetcher = store, fetcher
        self._container = containers.get(described.container)
        identity = hashlib.blake2b(f"{url}\n".encode() + described.to_json(), digest_size=16)
        self._group = identity.hexdigest()
        most = min(len(described.shards), reader_cache.MOST_OPEN)
        # Pending reads keep readers alive that were dropped, and requests have sockets.
        self.limit = max(4, processes.allow_open_files(2 * _DESCRIPTORS * most + 256) // (2 * _DESCRIPTORS))
        self._begin()
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Open the shards anew in a forked child, before its threads read them."""
        self._begin()

    def _begin(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._open: OrderedDict[int, _Shard] = OrderedDict()
        self._files: OrderedDict[int, _Files] = OrderedDict()
        self._right: set[tuple[int, int]] = set()

    @property
    def total(self) -> int:
        """Bytes of all shards."""
        return int(self._described.shards.bytes.sum())

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched until now, and in how many requests."""
        retries = self._store.counts.retries if isinstance(self._store, RetryingStore) else 0
        return replace(self._fetcher.counts, retries=retries)

    def __getitem__(self, number: int) -> Reader:
        return self._shard(number).reader

    def close(self) -> None:
        """Drop all readers; the last user of each lets go of what it holds in the cache."""
        with self._lock:
            self._open.clear()
            self._files.clear()

    def prepare(self, numbers: Sequence[int]) -> None:
        """Fetch what opening shards needs, all of them at once."""
        missing = [number for number in numbers if number not in self._open]
        if len(missing) > 1:
            wanted = [part for number in missing for part in self._files_of(number).needed_first()]
            if wanted:
                with suppress(ObjectNotFound):  # opening that shard tells which one, or goes on without its table
                    self._fetcher.bring(wanted).release()

    @contextmanager
    def bring(self, parts: Iterable[tuple[int, Rows]], names: Iterable[str]) -> Iterator[None]:
        """Return a `with` block in which some fields of some rows can be read.

        Args:
            parts: numbers of shards, and the rows in each.
            names: fields or hidden columns.
        """
        shards = [(self._shard(number), rows) for number, rows in parts]  # open until the end, and `kept` kept
        wanted, kept = self._wanted(shards, list(names))  # noqa: RUF059
        if not wanted:
            yield
            return
        hold = self._fetcher.bring(wanted)
        try:
            yield
        finally:
            hold.release()

    def ask(self, parts: Iterable[tuple[int, Rows]], names: Iterable[str], share: float) -> list[Hold] | None:
        """Have what reading some fields of some rows needs fetched, without waiting, and hold it.

        Args:
            parts: numbers of shards, and the rows in each.
            names: fields or hidden columns.
            share: the share of the cache that is to stay free.

        Returns:
            None if there is no room.
        """
        wanted, _ = self._wanted([(self._shard(number), rows) for number, rows in parts], list(names))
        if not wanted:
            return []
        if self._fits:  # all of it will be read and stay
            wanted = [(f, widened_up_to(pieces, UNIT, len(f.cached.table.state), WIDER)) for f, pieces in wanted]
        hold = self._fetcher.ask(wanted, round(share * self._fetcher.most))
        return None if hold is None else [hold]

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the cache has no room for `window` samples beside what is needed now."""
        needed, room = (
            self.total * window // max(1, self._described.samples),
            round((1 - FREE_SHARE) * self._fetcher.most),
        )
        if needed > room:
            warnings.warn(
                Message(
                    "{}: the cache holds {}, and a window of {shuffle:block} takes {}: what is fetched for it is "
                    "fetched again; give a smaller window or block, or a {cache_size} of at least {}",
                    self._fetcher.cache.folder,
                    format_size(self._fetcher.most),
                    format_size(needed),
                    format_size(round(needed / (1 - FREE_SHARE))),
                ),
                CacheWarning,
                stacklevel=4,  # where the Loader is made
            )

    def put_right(self, number: int, row: int) -> bool:
        """Fetch once more what a damaged sample was read from, unless its pieces were compared with checksums.

        Returns:
            Whether the cache had other bytes, which are right now. What was found to be right is not fetched again.
        """
        files = self._files_of(number)
        if (files.sums is not None and not files.sums.missing) or (number, row) in self._right:
            return False
        if files.companions and self._fetcher.put_right([_whole(file) for file in files.companions]):
            with self._lock:
                self._open.pop(number, None)
            return True
        known = self._open.get(number)
        if known is None:
            wanted = _whole(files.shard)
        else:
            wanted = files.shard, self._pieces(known, np.array([row]), list(self._fields))
        differ = self._fetcher.put_right([wanted])
        if not differ:
            self._right.add((number, row))
        return differ

    def _wanted(self, shards: Sequence[tuple[_Shard, Rows]], names: Sequence[str]) -> tuple[Wanted, list[Hold]]:
        """Return the pieces that hold some fields of some rows, and the holds of those shards that are kept whole."""
        wanted: list[tuple[RemoteFile, NDArray[np.int64]]] = []
        kept: list[Hold] = []
        if not (fits := self._fits):
            self._fetcher.cache.let_go()
        for shard, rows in shards:
            if fits and (hold := self._keep(shard)) is not None:
                kept.append(hold)
                continue
            pieces = self._pieces(shard, rows, names)
            if len(pieces):
                wanted.append((shard.file, pieces))
        return wanted, kept

    def _pieces(self, shard: _Shard, rows: Rows, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the pieces of a shard that hold some fields of some rows."""
        size = shard.file.cached.table.size
        if not shard.by_spans or native.library() is None:
            return np.arange(piece_count(size))
        offsets, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for name in names:
            locator, field = shard.reader.locator(name), self._fields[name]
            if locator is None:
                return np.arange(piece_count(size))
            spans = row_locator.file_spans(locator, rows, field.row_bytes if field.fixed else 0)
            if spans is not None:  # else reading says what is wrong
                inside = (spans[0] >= 0) & (spans[1] >= 0) & (spans[0] <= size - spans[1])
                offsets.append(spans[0][inside])
                sizes.append(spans[1][inside])
        return pieces_of(np.concatenate(offsets), np.concatenate(sizes))

    @property
    def _fits(self) -> bool:
        """Whether the cache has room for the whole dataset."""
        return self.total <= self._fetcher.most * 7 // 8

    def _keep(self, shard: _Shard) -> Hold | None:
        """Keep a shard, for which the cache has room with the whole dataset, if all of it is there; return its hold."""
        kept = shard.kept
        if (kept is None or kept.hold is None) and shard.file.cached.table.complete:
            kept = shard.kept = self._fetcher.keep_while_room([_whole(shard.file)])
        return None if kept is None else kept.hold

    def _shard(self, number: int) -> _Shard:
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if (known := self._open.get(number)) is not None:
                self._open.move_to_end(number)
                return known
        opened = self._open_shard(number)
        with self._lock:
            opened = self._open.setdefault(number, opened)
            while len(self._open) > self.limit:
                dropped, _ = self._open.popitem(last=False)  # not closed: another thread may be reading
                self._files.pop(dropped, None)
        return opened

    def _open_shard(self, number: int) -> _Shard:
        table = self._described.shards
        name, samples = table.names[number], int(table.samples[number])
        files = self._files_of(number)
        file, holds = files.shard, self._bring_first(files)
        fetched: Any = _FetchedFile(file, self._fetcher)
        by_spans = self._container.touch(fetched, self._fields, adopted=self._described.adopted)
        if by_spans:
            if fetched.pieces:
                holds.append(self._fetcher.keep([(file, np.array(sorted(fetched.pieces)))]))
            reader = self._container.reader(file.cached.path, self._fields)
        else:
            hold = self._fetcher.bring([_whole(file)])
            try:
                reader = self._container.reader(file.cached.path, self._fields)
            finally:
                hold.release()
        if len(reader) != samples:
            raise ShardCorrupt(f"{self._url / name}: {len(reader)} samples, but the manifest says {samples}")
        opened = _Shard(reader, file, by_spans)
        for one in holds:
            opened.stays(one)
        return opened

    def _bring_first(self, files: _Files) -> list[Hold]:
        """Fetch what opening a shard needs, in one round of requests; a table of checksums may be missing."""
        while wanted := files.needed_first():
            with_table = files.sums is not None and wanted[0][0] is files.sums.file
            try:
                return [self._fetcher.keep(wanted)]
            except ObjectNotFound:
                if files.sums is None or not with_table:
                    raise
                files.sums.missing = True  # if it is another file that is missing, the next round says so
        return []

    def objects(self, number: int) -> tuple[Store, list[str]]:
        """Return the store, and the names in it of all files of a shard, the shard itself first."""
        name = self._described.shards.names[number]
        names = (name, *self._container.companions(name, adopted=self._described.adopted))
        return self._store, [(self._url / one).path for one in names]

    def _files_of(self, number: int) -> _Files:
        """Return the files of a shard; the store is asked for sizes that nobody knows."""
        with self._lock:
            known = self._files.get(number)
        if known is not None:
            return known
        described, table = self._described, self._described.shards
        name, size = table.names[number], None
        if described.container == "tar" and not described.adopted:
            size = side_index.size_of(self._fields, int(table.samples[number]))
        names = self._container.companions(name, adopted=described.adopted)
        beside = [self._cached(companion, size) for companion in names]
        shard = self._cached(name, int(table.bytes[number]) - sum(one.table.size for one in beside))
        cached = [shard, *beside]
        sums = None
        if described.piece_bytes == PIECE:
            place = self._url / f"{name}{piece_sums.SUFFIX}"
            in_cache = self._cached(f"{name}{piece_sums.SUFFIX}", piece_sums.size_of(one.table.size for one in cached))
            sums = RemoteSums(self._store, place.path, in_cache, table.checksums[number])
        files, first = [], 0
        for one, file_name in zip(cached, [name, *names], strict=True):
            is_whole = None if sums is None else partial(sums.is_whole, first)
            files.append(RemoteFile(self._store, (self._url / file_name).path, one, is_whole))
            first += piece_count(one.table.size)
        with self._lock:
            found = self._files.setdefault(number, _Files(files[0], files[1:], sums))
            while len(self._files) > self.limit:  # some are fetched before their shard is opened
                self._files.popitem(last=False)
            return found

    def _cached(self, name: str, size: int | None) -> CachedObject:
        """Return the place in the cache of a file of the dataset."""
        cached = self._fetcher.cache.find(self._group, name)
        if cached is None:
            if size is None:
                size = self._store.info((self._url / name).path).size
            cached = self._fetcher.cache.object(self._group, name, size)
        return cached

    def __getstate__(self) -> tuple[Any, ...]:
        return self._described, self._url, self._fields, self._store, self._fetcher

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        RemoteShards.__init__(self, *state)


def _whole(file: RemoteFile) -> tuple[RemoteFile, NDArray[np.int64]]:
    return file, np.arange(piece_count(file.cached.table.size))


@final
class _FetchedFile(io.RawIOBase):
    """A file in a store, for programs that read it as an open file.

    Attributes:
        pieces: the numbers of the pieces that were read.
    """

    def __init__(self, file: RemoteFile, fetcher: Fetcher) -> None:
        super().__init__()
        self._file, self._fetcher, self._position = file, fetcher, 0
        self.pieces: set[int] = set()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = (0, self._position, self._file.cached.table.size)[whence]
        self._position = max(0, begin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self._file.cached.table.size - self._position))
        pieces = pieces_of(np.array([self._position]), np.array([size]))
        hold = self._fetcher.bring([(self._file, pieces)])
        try:
            got = os.preadv(self._file.cached.file, [view[:size]], self._position)
        finally:
            hold.release()
        self.pieces.update(pieces.tolist())
        self._position += got
        return got
