"""The checksums of the pieces of a shard in a store, by which they are compared before anyone sees them."""

import os
import threading
import time
from functools import partial
from typing import final

import xxhash

from ..cache.fetcher import TRIES, RemoteFile
from ..cache.node_cache import CachedObject
from ..cache.table import ABSENT
from ..containers import piece_sums
from ..errors import ObjectNotFound, StoreError
from ..stores.base import Store

_PATIENCE = 2.0
"""Seconds to wait for a table on its way to the cache: it is asked for with the first pieces, and before them."""
_NAP = 0.002


@final
class RemoteSums:
    """The table of checksums of one shard.

    Args:
        store: the store.
        name: the table's name in it.
        cached: its place in the cache.
        checksum: the shard's checksum in the manifest.

    Attributes:
        file: the table.
        missing: whether the store has no such table; nothing is compared then, as in datasets without tables.
    """

    def __init__(self, store: Store, name: str, cached: CachedObject, checksum: str) -> None:
        self.file = RemoteFile(store, name, cached, partial(piece_sums.is_block_whole, checksum))
        self.missing = False
        self._checksum = checksum
        self._lock = threading.Lock()
        self._read: bytes | None = None

    def is_whole(self, first: int, number: int, data: memoryview) -> bool:
        """Return whether a piece is what was written.

        Args:
            first: the number of pieces of the shard's files before this one.
            number: the number of the piece in its file.
            data: the piece.

        Raises:
            StoreError: the table itself cannot be had.
        """
        expected = self._sum(first + number)
        return expected is None or xxhash.xxh3_64_intdigest(data) == expected

    def _sum(self, entry: int) -> int | None:
        begin, until = piece_sums.offset_of(entry), None
        while not self.missing:
            if (table := self._read) is not None:
                return int.from_bytes(table[begin : begin + 8], "little")
            cached = self.file.cached
            if cached.table.complete:
                found = os.pread(cached.file, 8, begin)
                if cached.table.complete:  # else it was dropped meanwhile, and these may be zeros
                    return int.from_bytes(found, "little")
            now = time.monotonic()
            until = until or now + _PATIENCE
            nobody_fetches = bool((cached.table.state == ABSENT).any())  # it was dropped, or could not be had
            if nobody_fetches or now > until:  # or its request waits behind others
                self._read_directly()
            else:
                time.sleep(_NAP)
        return None

    def _read_directly(self) -> None:
        """Read the table past the cache."""
        with self._lock:
            if self._read is not None or self.missing:
                return
            for _ in range(TRIES):
                try:
                    data = bytes(self.file.store.read(self.file.name).data)
                except ObjectNotFound:
                    self.missing = True
                    return
                if len(data) == self.file.cached.table.size and piece_sums.is_whole(self._checksum, data):
                    self._read = data
                    return
        raise StoreError(
            f"{self.file.store.url}/{self.file.name}: is not the table of checksums that was written with this shard "
            f"(tried {TRIES} times)"
        )
