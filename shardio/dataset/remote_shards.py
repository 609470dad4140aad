"""Shards in a store, or behind a slow file system: opened in the node's cache, whose fetcher brings what is read."""

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from .. import containers
from ..cache.cached_object import PRESENT, CachedObject
from ..cache.fetcher import FREE_SHARE, FetchCounts, Fetcher, ReadSet, RemoteFile, Wanted
from ..cache.node_cache import Hold, Kept, NodeCache
from ..containers import piece_sums, side_index
from ..containers.base import OpenedShard, Reader
from ..containers.extents import NO_BYTES, Extent, FileSpans, each_extent
from ..containers.row_locator import within
from ..errors import CacheWarning, ConfigError, DatasetError, Message, ObjectNotFound, ShardCorrupt
from ..format import manifest
from ..format.fields import Field
from ..format.pieces import PIECE, piece_count, pieces_of, widened_up_to
from ..stores.base import Store
from ..stores.retrying import RetryingStore
from ..stores.stream import checksum_of
from ..stores.url import Url
from ..system import background, forks, processes
from ..system.seekable import Seekable
from ..system.timing import stage_within
from ..system.types import Rows
from ..system.units import format_size
from .shards import MOST_OPEN, Part, Parts, RecentlyUsed, Shards, compare_files

_DESCRIPTORS = 8  # of an open shard with its index and its checksums
_UNIT = 16  # pieces that are fetched together where that costs little
_WIDER = 2.0  # times as many pieces, at most
MOST_COMBINED = 1 << 42
"""The most bytes of the objects of one shard: their table takes 37 bytes per piece, and file systems have limits."""

_STAGED_AT_ONCE = 256  # pieces: some requests, of which a file that is staged has several under way


@final
@dataclass(eq=False, slots=True)
class _Shard:
    """An open shard.

    Attributes:
        reader: reads the file in the cache.
        file: the shard in the store.
        by_spans: whether rows need only the pieces that their spans touch, not the whole file.
        kept: keeps all of the shard in the cache as long as the shard is open and there is room for it.
    """

    reader: Reader
    file: RemoteFile
    by_spans: bool
    kept: Kept | None = None


@final
class _Sums:
    """The checksums of the pieces of one shard. Pieces are compared with them before anyone sees them.

    Their table is fetched into the cache, and held there, before any piece is compared.

    Args:
        store: the store.
        name: the table's name in it.
        cached: its place in the cache.
        checksum: the shard's checksum in the manifest.

    Attributes:
        file: the table.
        hold: keeps it in the cache; None until it is there.
        missing: whether the store has no such table; nothing is compared then, as in datasets without tables.
    """

    def __init__(self, store: Store, name: str, cached: CachedObject, checksum: str) -> None:
        self.file = RemoteFile(store, name, cached, partial(piece_sums.is_block_whole, checksum))
        self.hold: Hold | None = None
        self.missing = False

    def is_whole(self, first: int, number: int, data: memoryview) -> bool | None:
        """Return whether a piece is what was written; None if the table is missing.

        Args:
            first: the number of pieces of the shard's files before this one.
            number: the number of the piece in its file.
            data: the piece.
        """
        if self.missing:
            return None
        expected = os.pread(self.file.cached.file, 8, piece_sums.offset_of(first + number))
        return xxhash.xxh3_64_intdigest(data) == int.from_bytes(expected, "little")


@final
@dataclass(frozen=True, eq=False, slots=True)
class _Files:
    """The files of a shard.

    Attributes:
        shard: the shard itself; None if it is several objects, which its index names.
        companions: its index, if it has one.
        sums: the checksums of the pieces of all of them; None if the dataset has none.
    """

    shard: RemoteFile | None
    companions: Sequence[RemoteFile]
    sums: _Sums | None

    @property
    def needed_first(self) -> Wanted:
        """The objects and pieces that opening the shard needs."""
        first = [] if self.shard is None else [(self.shard, np.arange(1))]
        return [_whole(file) for file in self.companions] or first


@final
class RemoteShards(Shards):
    """Keeps the most recently used shards of a store open.

    The indexes of open shards, and what else their readers look at all the time, stay in the cache; the rest is held
    only while it is read.

    Args:
        described: the dataset.
        url: its place in the store; of a folder, its path as `root`.
        fields: its fields, with hidden columns.
        store: the store.
        fetcher: brings pieces into the cache.
    """

    in_store = True

    def __init__(
        self, described: manifest.Manifest, url: Url, fields: Mapping[str, Field], store: Store, fetcher: Fetcher
    ) -> None:
        if described.adopted and described.conversion.get("join"):
            told = "{}: a dataset of merged files (shardio index --merge) is read from a folder, and without {cache}"
            raise ConfigError(told, url)
        self._described, self._url, self._fields = described, url, dict(fields)
        self._store, self._fetcher = store, fetcher
        self._container, self._table = containers.get(described.container), described.shards
        self._groups, self._total = _groups(described, url), int(self._table.bytes.sum())
        if self._container.read_where_it_lies:  # the manifest knows the bytes of the indexes alone
            self._total += described.samples * sum(field.row_bytes for field in described.fields.values())
        # Pending reads keep readers alive that were dropped, and requests have sockets.
        most = min(len(self._table), MOST_OPEN)
        self.limit = max(4, processes.allow_open_files(2 * _DESCRIPTORS * most + 256) // (2 * _DESCRIPTORS))
        self.reset_in_child()
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Open the shards anew in a forked child: what its parent holds in the cache ends with the parent."""
        self._open: RecentlyUsed[_Shard] = RecentlyUsed(self.limit)
        self._files: RecentlyUsed[_Files] = RecentlyUsed(self.limit)
        self._combined: RecentlyUsed[RemoteFile] = RecentlyUsed(self.limit)
        self._verified: set[tuple[int, int]] = set()

    def __getitem__(self, number: int) -> Reader:
        return self._shard(number).reader

    def path(self, number: int) -> Url:
        name: str = self._table.names[number]
        return self._url / name

    def size(self, number: int) -> int | None:
        try:
            return sum(self._store.info(name).size for name in self._objects(number))
        except ObjectNotFound:
            return None

    def check_files(self, number: int) -> None:
        """Compare the objects of a shard with the manifest; they are read from the store, not from the cache."""
        names = self._objects(number)
        try:
            sizes, checksum = checksum_of(self._store, names)
        except ObjectNotFound as error:
            missing = next(name for name in names if f"/{name}: " in f"{error}")
            raise DatasetError(f"{missing.rpartition('/')[2]} is missing") from error
        compare_files(self._table, number, sizes, checksum)
        if self._container.read_where_it_lies:
            self._check_objects(number)

    def _check_objects(self, number: int) -> None:
        """Compare the objects of a shard that is several with those that were indexed."""
        place = self._url / self._table.names[number]
        if not place.is_remote:
            self._container.check(Path(f"{place}"))
            return
        index = self._files_of(number).companions[0]
        with self._fetcher.fetch([_whole(index)]):
            self._container.check_in_store(index.cached.path.with_name(place.name), place, self._store)

    @property
    def fetched(self) -> FetchCounts:
        retries = self._store.retries if isinstance(self._store, RetryingStore) else 0
        return replace(self._fetcher.counts, retries=retries)

    @property
    def cache(self) -> NodeCache:
        """The cache of the node."""
        return self._fetcher.cache

    @property
    def stored_bytes(self) -> int:
        """The bytes of all shards and their indexes, without checksums."""
        size = int(self._table.bytes.sum())
        if self._container.read_where_it_lies:
            every = (self._shard_file(number).combined for number in range(len(self._table)))
            size += sum(int(combined.sizes.sum()) for combined in every if combined is not None)
        return size

    @property
    def staged_bytes(self) -> int:
        """The most bytes that the cache takes for all of the dataset: whole pieces, indexes and checksums included."""
        if self._container.read_where_it_lies:
            every = (self._all_files(number) for number in range(len(self._table)))
            return sum(piece_count(file.cached.table.size) * PIECE for files in every for file in files)
        table, pieces = self._table, self._table.bytes // PIECE
        files = 1 + len(self._container.companions("shard", adopted=self._described.adopted))
        sums = sum(piece_count(piece_sums.size_of([size])) + 1 for size in table.bytes.tolist())
        return PIECE * (int(pieces.sum()) + files * len(table) + (sums if self._described.piece_bytes == PIECE else 0))

    def stage(self, number: int) -> Iterator[int]:
        """Fetch what the cache lacks of a shard and its indexes, in parts; yield the bytes of each once it is there."""
        for file, every in map(_whole, self._all_files(number)):
            for first in range(0, len(every), _STAGED_AT_ONCE):
                pieces = every[first : first + _STAGED_AT_ONCE]
                if not (file.cached.table.state[pieces] == PRESENT).all():
                    self._fetcher.fetch([(file, pieces)]).release()
                yield sum(end - start for start, end in (file.span(*run) for run in file.runs(pieces, len(pieces))))

    def is_staged(self, number: int) -> bool:
        """Whether all pieces of a shard and its indexes are in the cache."""
        return all(file.cached.table.complete for file in self._all_files(number))

    def close(self) -> None:
        self._open.clear()  # the last user of each lets go of what it holds in the cache
        self._files.clear()
        self._combined.clear()

    def read_set(self, parts: Parts, names: Iterable[str]) -> ReadSet:
        listed, fields = list(parts), list(names)
        with stage_within("fetch"):
            self._prepare(number for number, _, _ in listed)
            shards = [self._shard(number) for number, _, _ in listed]
        return ReadSet(self._fetcher, partial(self._keep, shards), partial(self._wanted, shards, listed, fields))

    def warn_of_small_cache(self, window: int) -> None:
        needed = self._total * window // max(1, self._described.samples)
        if needed > round((1 - FREE_SHARE) * self._fetcher.cache.most):
            warnings.warn(
                Message(
                    "{}: the cache holds {}, and a window of {shuffle:block} takes {}: what is fetched for it is "
                    "fetched again; give a smaller window or block, or a {cache_size} of at least {}",
                    self._fetcher.cache.folder,
                    format_size(self._fetcher.cache.most),
                    format_size(needed),
                    format_size(round(needed / (1 - FREE_SHARE))),
                ),
                CacheWarning,
                stacklevel=4,  # where the Loader is made
            )

    def refetch(self, number: int, row: int) -> bool:
        files = self._files_of(number)
        if (number, row) in self._verified:
            return False
        if self._fetcher.refetch([_whole(file) for file in files.companions]):
            self._open.drop(number)
            return True
        wanted = _whole(self._shard_file(number))
        if number in self._open:
            shard = self._shard(number)
            wanted = shard.file, self._pieces(shard, np.array([row]), {}, list(self._fields))
        differ = self._fetcher.refetch([wanted])
        if not differ:
            self._verified.add((number, row))
        return differ

    def _wanted(self, shards: Sequence[_Shard], parts: Sequence[Part], names: Sequence[str], ahead: bool) -> Wanted:
        """Return the pieces that hold some fields of some rows; more, in fewer requests, to fetch `ahead`."""
        # What is fetched of whole values will be read and stay, if there is room for all of it.
        factor = _WIDER if ahead and self._fits and not self._container.read_where_it_lies else 1.0
        pairs = list(zip(shards, parts, strict=True))
        first = [(shard.file, some) for shard, part in pairs if len(some := self._tables(shard, *part[1:], names))]
        with self._fetcher.fetch(first) if first else nullcontext():
            pieces = [self._pieces(shard, *part[1:], names, factor) for shard, part in pairs]
        return [(shard.file, some) for shard, some in zip(shards, pieces, strict=True) if len(some)]

    def _tables(
        self, shard: _Shard, rows: Rows, extents: Mapping[str, Extent], names: Sequence[str]
    ) -> NDArray[np.int64]:
        """Return the pieces of a shard that must be there to find out which pieces hold some fields of some rows."""
        if not shard.by_spans:
            return NO_BYTES[0]
        wanted = [(name, one) for name in names for one in each_extent(extents.get(name))]
        tables = [NO_BYTES, *(shard.reader.tables(rows, name, one) for name, one in wanted)]
        return _touched(tables, shard.file.cached.table.size)

    def _pieces(
        self, shard: _Shard, rows: Rows, extents: Mapping[str, Extent], names: Sequence[str], factor: float = 1.0
    ) -> NDArray[np.int64]:
        """Return the pieces of a shard that hold some fields of some rows.

        Those of whole values may be so many times as many, in longer runs.
        """
        size = shard.file.cached.table.size
        whole, parts = [NO_BYTES], [NO_BYTES]
        for name, one in ((each, one) for each in names for one in each_extent(extents.get(each))):
            spans = shard.reader.spans(rows, name, one) if shard.by_spans else None
            if spans is None:
                return np.arange(piece_count(size))
            (parts if name in extents else whole).append(spans)
        found = [_touched(spans, size) for spans in (whole, parts)]
        if factor > 1:
            found[0] = widened_up_to(found[0], _UNIT, piece_count(size), factor)
        return np.union1d(*found) if len(found[1]) else found[0]

    @property
    def _fits(self) -> bool:
        """Whether the cache has room for the whole dataset."""
        return self._total <= self._fetcher.cache.most * 7 // 8

    def _keep(self, shards: Sequence[_Shard]) -> list[Hold] | None:
        """Keep shards, all of which is there, if the cache has room for the whole dataset; return their holds."""
        if not self._fits:
            self._fetcher.cache.release_kept()
            return None
        for shard in shards:
            if shard.kept is None or shard.kept.hold is None:
                shard.kept = self._fetcher.cache.keep_while_room(shard.file.cached)
        kept = [hold for shard in shards if shard.kept is not None and (hold := shard.kept.hold) is not None]
        return kept if len(kept) == len(shards) else None

    def _prepare(self, numbers: Iterable[int]) -> None:
        """Fetch what opening shards needs, of all of them at once."""
        missing = [number for number in numbers if number not in self._open]
        if len(missing) > 1:
            files = [self._files.get(number, self._find) for number in missing]
            self._fetch_sums(files)
            with suppress(ObjectNotFound):  # opening that shard says which one
                self._fetcher.fetch([part for one in files for part in one.needed_first]).release()

    def _shard(self, number: int) -> _Shard:
        return self._open.get(number, self._open_shard)

    def _open_shard(self, number: int) -> _Shard:
        files, samples = self._files_of(number), int(self._table.samples[number])
        file = self._shard_file(number)
        for one in (file, *files.companions):
            if one.cached.is_gone:
                raise self.cache.gone(str(one.cached.path))
        with ExitStack() as kept:
            if files.companions:
                kept.enter_context(self._fetcher.keep(files.needed_first))
            fetched: Any = _FetchedFile(file, self._fetcher)
            opened = OpenedShard(fetched, fetched.fetch, file.cached.path, self._fields, self._described.adopted)
            by_spans = self._container.touch(opened)
            if by_spans and fetched.pieces:
                kept.enter_context(self._fetcher.keep([(file, np.array(sorted(fetched.pieces)))]))
            with nullcontext() if by_spans else self._fetcher.fetch([_whole(file)]):
                reader = self._container.cached_reader(file.cached.path, self._fields)
            if len(reader) != samples:
                raise ShardCorrupt(f"{self.path(number)}: {len(reader)} samples, but the manifest says {samples}")
            background.call_when_gone(reader, kept.pop_all().close)
        return _Shard(reader, file, by_spans)

    def _objects(self, number: int) -> list[str]:
        """Return the names in the store of all files of a shard, the shard itself first."""
        name = self._table.names[number]
        own = () if self._container.read_where_it_lies else (name,)
        names = (*own, *self._container.companions(name, adopted=self._described.adopted))
        return [(self._url / one).path for one in names]

    def _all_files(self, number: int) -> list[RemoteFile]:
        """Return the shard, its index, and the checksums that the store has."""
        files = self._files_of(number)
        sums = [] if files.sums is None or files.sums.missing else [files.sums.file]
        return [self._shard_file(number), *files.companions, *sums]

    def _shard_file(self, number: int) -> RemoteFile:
        """Return the shard itself; of several objects, the file that has all of them in the cache."""
        files = self._files_of(number)
        return files.shard or self._combined.get(number, partial(self._combine, files.companions[0]))

    def _combine(self, index: RemoteFile, number: int) -> RemoteFile:
        name = self._table.names[number]
        path, place = index.cached.path.with_name(name), self._url / name
        with self._fetcher.fetch([_whole(index)]):
            combined = self._container.combined(path, place)
        if combined.size > MOST_COMBINED:
            raise ConfigError(
                f"{place}: a cache holds at most {format_size(MOST_COMBINED)} of one store, it has "
                f"{format_size(combined.size)}: take fewer fields, or several stores"
            )
        cached = self._fetcher.cache.object(path.parent.name, name, combined.size)
        return RemoteFile(self._store, place.path, cached, combined=combined)

    def _files_of(self, number: int) -> _Files:
        """Return the files of a shard, whose pieces can be compared with their checksums."""
        files = self._files.get(number, self._find)
        self._fetch_sums([files])
        return files

    def _fetch_sums(self, files: Sequence[_Files]) -> None:
        """Have tables of checksums in the cache as long as somebody uses them; some may be missing in the store."""
        tables = [one.sums for one in files if one.sums is not None]
        absent = [one for one in tables if not one.missing and one.hold is None]
        if len(absent) > 1:
            with suppress(ObjectNotFound):
                self._fetcher.fetch([_whole(one.file) for one in absent]).release()
        for one in absent:
            try:
                one.hold = self._fetcher.keep([_whole(one.file)])
            except ObjectNotFound:
                one.missing = True
            else:
                background.call_when_gone(one, one.hold.release)

    def _find(self, number: int) -> _Files:
        """Find a shard's files in the cache; ask the store for sizes that are not known."""
        name, size, several = self._table.names[number], None, self._container.read_where_it_lies
        if several:
            size = int(self._table.bytes[number])  # of its index
        if self._described.container == "tar" and not self._described.adopted:
            size = side_index.size_of(self._fields, int(self._table.samples[number]))
        names = self._container.companions(name, adopted=self._described.adopted)
        group = next((group for end, group in self._groups if number < end), self._groups[-1][1])
        beside = [self._cached(group, companion, size) for companion in names]
        rest = int(self._table.bytes[number]) - sum(one.table.size for one in beside)
        cached = beside if several else [self._cached(group, name, rest), *beside]
        sums = None
        if self._described.piece_bytes == PIECE:
            place = self._url / f"{name}{piece_sums.SUFFIX}"
            in_cache = self._cached(group, place.name, piece_sums.size_of(one.table.size for one in cached))
            sums = _Sums(self._store, place.path, in_cache, self._table.checksums[number])
        files, first = [], 0
        for one, object_name in zip(cached, self._objects(number), strict=True):
            is_whole = None if sums is None else partial(sums.is_whole, first)
            files.append(RemoteFile(self._store, object_name, one, is_whole))
            first += piece_count(one.table.size)
        return _Files(None if several else files[0], files if several else files[1:], sums)

    def _cached(self, group: str, name: str, size: int | None) -> CachedObject:
        """Return the place in the cache of a file of the dataset."""
        cached = self._fetcher.cache.find(group, name)
        if cached is None:
            if size is None:
                size = self._store.info((self._url / name).path).size
            cached = self._fetcher.cache.object(group, name, size)
        return cached

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteShards, (self._described, self._url, self._fields, self._store, self._fetcher)


def _groups(described: manifest.Manifest, url: Url) -> list[tuple[int, str]]:
    """Return the names under which the cache keeps shards, each after the number of the first shard with another name.

    A name identifies the shards of the dataset up to the last one that has it, so a dataset that has grown keeps the
    names of what it was before, and finds its pieces.
    """
    table, groups, first = described.shards, list[tuple[int, str]](), 0
    state = hashlib.blake2b(f"{url}\n{described.container}\n{described.piece_bytes}\n".encode(), digest_size=16)
    bounds = [*described.grew_from.values(), described.samples]
    for end in np.searchsorted(table.starts, bounds).tolist():
        for texts in (table.names[first:end], table.checksums[first:end]):
            state.update(b"\n".join([*texts.array.tolist(), b""]))
        for numbers in (table.samples, table.bytes):
            state.update(np.ascontiguousarray(numbers[first:end], "<i8").tobytes())
        groups.append((end, state.hexdigest()))
        first = end
    return groups


def _touched(spans: Sequence[FileSpans], size: int) -> NDArray[np.int64]:
    """Return the pieces that spans touch in a file of `size` bytes; reading reports spans outside of it."""
    offsets, sizes = (np.concatenate(column) for column in zip(*spans, strict=True))
    inside = within(offsets, sizes, 0, size)
    return pieces_of(offsets[inside], sizes[inside])


def _whole(file: RemoteFile) -> tuple[RemoteFile, NDArray[np.int64]]:
    return file, np.arange(piece_count(file.cached.table.size))


@final
class _FetchedFile(Seekable):
    """A file in a store, for programs that read it as an open file.

    Attributes:
        pieces: the numbers of the pieces that were read.
    """

    def __init__(self, file: RemoteFile, fetcher: Fetcher) -> None:
        super().__init__()
        self._file, self._fetcher = file, fetcher
        self.pieces: set[int] = set()

    @property
    def size(self) -> int:
        return self._file.cached.table.size

    def fetch(self, pieces: Sequence[int]) -> None:
        """Have pieces fetched, all at once."""
        self._fetcher.fetch([(self._file, np.array(sorted(pieces)))]).release()
        self.pieces.update(pieces)

    def read_at(self, offset: int, view: memoryview) -> int:
        pieces = pieces_of(np.array([offset]), np.array([len(view)]))
        with self._fetcher.fetch([(self._file, pieces)]):
            got = os.preadv(self._file.cached.file, [view], offset)
        self.pieces.update(pieces.tolist())
        return got
