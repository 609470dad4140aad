"""The shards of a dataset, opened for reading: those in a folder or in memory, and the protocol that others follow."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

from .. import containers
from ..cache.fetcher import FetchCounts, ReadSet
from ..containers import piece_sums
from ..containers.base import Reader
from ..containers.extents import Extent
from ..errors import DatasetError, ShardCorrupt
from ..format import manifest
from ..format.fields import CHECKSUM_BYTES, Field
from ..format.pieces import PIECE
from ..format.shard_table import ShardTable
from ..stores.url import Url
from ..system import forks, processes
from ..system.types import Rows

MOST_OPEN = 10_000  # shards; each takes some of the kernel's 65,530 memory maps

T = TypeVar("T")
Part: TypeAlias = tuple[int, Rows, Mapping[str, Extent]]
"""The number of a shard, with rows in it, int64 [n], and n extents of each field that is not read whole."""

Parts: TypeAlias = Iterable[Part]


class Shards(Protocol):
    """The shards of a dataset by number: `LocalShards` or `RemoteShards`.

    Threads share them; forked and unpickled processes open their own. Whoever reads fetches its `read_set` first.
    Methods for stores do nothing here, because all files are local.

    Attributes:
        limit: the most shards that are open at once.
        in_store: whether the shards are read by way of a cache, so that only what was fetched of their files can be
            read.
    """

    limit: int
    in_store: bool = False

    def __getitem__(self, number: int) -> Reader:
        """Return the open reader of a shard; ShardCorrupt if it cannot be opened."""

    def path(self, number: int) -> Path | Url:
        """Return the path or URL of a shard."""

    def size(self, number: int) -> int | None:
        """Return the bytes of a shard's files; None if one is missing."""

    def check_files(self, number: int) -> None:
        """Raise DatasetError unless a shard's files have the size and the checksum that the manifest says."""

    def read_set(self, parts: Parts, names: Iterable[str]) -> ReadSet | None:
        """Return what reading fields or hidden columns of some rows needs in the cache; None if all files are local.

        Of fields with extents, that is only these. Shards that are opened for it stay open as long as the result.
        """
        return None

    def refetch(self, number: int, row: int) -> bool:
        """Fetch a damaged row once more, unless its bytes are known to be the store's; return whether they differed."""
        return False

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the node's cache has no room for `window` samples and those that are needed now."""
        return

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched until now, and in how many requests."""
        return FetchCounts()

    def close(self) -> None:
        """Close all shards; they are opened again on demand."""


@final
class RecentlyUsed(Generic[T]):
    """Things by number, made when they are needed; the most recently used ones are kept.

    What is dropped is not closed, as another thread may be using it: its files close when the last user drops it.

    Args:
        limit: the most things.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[int, T] = OrderedDict()
        self.reset_in_child()
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Have a lock of this process: a thread of the parent may have held the other one."""
        self._lock = threading.Lock()

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def get(self, number: int, make: Callable[[int], T]) -> T:
        """Return a thing; `make` makes it if it is not kept. If two threads make it, both get the first one."""
        with self._lock:
            if (known := self._kept.get(number)) is not None:
                self._kept.move_to_end(number)
                return known
        made = make(number)
        with self._lock:
            made = self._kept.setdefault(number, made)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        return made

    def drop(self, number: int) -> None:
        """Keep a thing no longer."""
        with self._lock:
            self._kept.pop(number, None)

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._kept.clear()


@final
class LocalShards(Shards):
    """Keeps the most recently used shards open: a dataset may have more shards than a process may open files.

    Args:
        described: the dataset.
        folder: its folder.
        fields: its fields, with hidden columns.
    """

    def __init__(self, described: manifest.Manifest, folder: Path, fields: Mapping[str, Field]) -> None:
        self._described, self._folder, self._fields = described, folder, fields
        self._container, self._table = containers.get(described.container), described.shards
        # A shard takes up to two descriptors, and pending reads keep readers alive that were dropped.
        self.limit = max(16, processes.allow_open_files(4 * min(len(self._table), MOST_OPEN) + 256) // 4)
        self._open: RecentlyUsed[Reader] = RecentlyUsed(self.limit)

    def __getitem__(self, number: int) -> Reader:
        return self._open.get(number, self._open_shard)

    def _open_shard(self, number: int) -> Reader:
        path, samples = self.path(number), self._table.samples[number]
        reader = self._container.reader(path, self._fields)
        if len(reader) != samples:
            raise ShardCorrupt(f"{path}: {len(reader)} samples, but the manifest says {samples}")
        return reader

    def path(self, number: int) -> Path:
        name: str = self._table.names[number]
        return self._folder / name

    def size(self, number: int) -> int | None:
        files = self._container.files(self.path(number))
        if not files:  # in memory: there is room for all samples
            return CHECKSUM_BYTES * int(self._table.samples[number])
        return sum(file.stat().st_size for file in files) if all(file.is_file() for file in files) else None

    def check_files(self, number: int) -> None:
        files = self._container.files(self.path(number))
        if not files:
            return
        for file in files:
            if not file.is_file():
                moved = "; if that has moved, index it again; `shardio repair` goes on without it"
                raise DatasetError(f"{file.name} is missing{_target(file)}{moved if file.is_symlink() else ''}")
        size, checksum, table = piece_sums.of_files(files)
        sizes = [size] if len(files) == 1 else [file.stat().st_size for file in files]
        compare_files(self._table, number, sizes, checksum, next(filter(None, map(_target, files)), ""))
        path = self.path(number)
        if self._described.piece_bytes == PIECE and not piece_sums.matches(path, table):
            name = piece_sums.path_of(path).name
            wrong = "does not hold the checksums of its pieces" if path.with_name(name).exists() else "is missing"
            command = "index" if self._container.read_where_it_lies else "repair"
            raise DatasetError(f"{name} {wrong}; `shardio {command}` writes it anew")
        self._container.check(path)

    def close(self) -> None:
        if self._container.on_disk:  # shards in memory stay
            self._open.clear()

    def __getstate__(self) -> tuple[Any, ...]:
        kept = range(0 if self._container.on_disk else len(self._table))  # the samples themselves must be pickled
        return self._described, self._folder, self._fields, {number: self[number] for number in kept}

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        described, folder, fields, kept = state
        LocalShards.__init__(self, described, folder, fields)
        for number in kept:
            self._open.get(number, kept.__getitem__)


def compare_files(table: ShardTable, number: int, sizes: Sequence[int], checksum: str, note: str = "") -> None:
    """Raise DatasetError unless the files of a shard have the size and checksum in the manifest's table.

    Args:
        table: the manifest's table of shards.
        number: the shard.
        sizes: the bytes of each file.
        checksum: the checksum of all files.
        note: text to append to the error.
    """
    size = sum(sizes)
    if size != table.bytes[number]:
        listed = " + ".join(map(str, sizes))
        found = f"{size} bytes" if len(sizes) == 1 else f"with its index {listed} = {size} bytes"
        raise DatasetError(f"{found}, the manifest says {table.bytes[number]}{note}")
    if checksum != table.checksums[number]:
        raise DatasetError(f"checksum {checksum} is not {table.checksums[number]}{note}")


def _target(file: Path) -> str:
    """Return which file a link leads to, as the end of a message; "" for a file that is no link."""
    return f"; it is a link to {os.path.realpath(file)}" if file.is_symlink() else ""
