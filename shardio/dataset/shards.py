"""The shards of a dataset, opened for reading: the protocol that those in a folder and those in a store follow."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..cache.node_cache import Hold
from ..containers.base import Reader
from ..errors import DatasetError
from ..format.shard_table import ShardTable
from ..system import forks
from ..system.types import Rows

MOST_OPEN = 10_000  # shards; each takes some of the kernel's 65,530 memory maps

T = TypeVar("T")
Parts: TypeAlias = Iterable[tuple[int, Rows]]
"""Numbers of shards, each with rows in it."""


class Shards(Protocol):
    """The shards of a dataset by number: `LocalShards` or `RemoteShards`.

    Threads share them; forked and unpickled processes open their own. Whoever reads says so by `fetch`; where all files
    are local, `fetch`, `prefetch`, `refetch` and `warn_of_small_cache` have nothing to do.

    Attributes:
        limit: the most shards that are open at once.
        in_store: whether the shards are in a store, so that their files can be read only after `fetch`.
    """

    limit: int
    in_store: bool

    def __getitem__(self, number: int) -> Reader:
        """Return the open reader of a shard; ShardCorrupt if it cannot be opened."""

    def path(self, number: int) -> str:
        """Return the path or URL of a shard."""

    def size(self, number: int) -> int | None:
        """Return the bytes of a shard's files; None if one is missing."""

    def check_files(self, number: int) -> None:
        """Raise DatasetError unless a shard's files have the size and the checksum that the manifest says."""

    def fetch(self, parts: Parts, names: Iterable[str]) -> AbstractContextManager[None]:
        """Return a `with` block in which fields or hidden columns of some rows are in files that their readers read.

        Waiting for them counts as the stage `fetch` of the clock whose stage the thread is in.
        """

    def prefetch(self, parts: Parts, names: Iterable[str], share: float) -> list[Hold] | None:
        """Have fields of some rows fetched without waiting, and return what keeps them in the cache.

        None if there is no room for them beside a `share` of the cache, which must stay free.
        """

    def refetch(self, number: int, row: int) -> bool:
        """Fetch a damaged row once more, unless its bytes are known to be the store's; return whether they differed."""

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the node's cache has no room for `window` samples beside those that are needed now."""

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched until now, and in how many requests."""

    def close(self) -> None:
        """Close all shards; they are opened again on demand."""


@final
class RecentlyUsed(Generic[T]):
    """Things by number, made when they are needed, of which the most recently used ones are kept.

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
        """Return a thing; `make` makes it if it is not kept. Of two threads that make it, one gets the other's."""
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


def by_shard(numbers: NDArray[np.int64], rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield the number of each shard, and the rows in it.

    Args:
        numbers: for each sample the number of its shard, int64 [n].
        rows: its row there, int64 [n].
    """
    order = np.argsort(numbers, kind="stable")
    distinct, starts = np.unique(numbers[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(rows[order], starts[1:]), strict=True)


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
